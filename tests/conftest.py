"""How the property tests choose their examples.

The same ones in every run, so that a run says something about the change that it tests:

    pytest --hypothesis-profile=new tests/pure     searches among new ones instead
"""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("same", derandomize=True, database=None)
settings.register_profile("new", derandomize=False)
settings.load_profile("same")
