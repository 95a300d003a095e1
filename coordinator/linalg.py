"""`interlock.linalg`: NumPy's linear algebra on arrays of a device, and the standard's extension of this name."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..protocol.functions import FUNCTIONS
from . import functions
from .protocols import named_here

LinAlgError = np.linalg.LinAlgError
_NAMES = sorted(name[7:] for name in FUNCTIONS if name.startswith("linalg.") and hasattr(np.linalg, name[7:]))


def __getattr__(name: str) -> Any:
    if name not in _NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    made = globals()[name] = functions.matmul if name == "matmul" else named_here(getattr(np.linalg, name))
    return made


def __dir__() -> list[str]:
    return [*_NAMES, "LinAlgError"]


__all__ = __dir__()
