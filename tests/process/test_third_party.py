"""scikit-learn, SciPy, array-api-extra, einops and opt_einsum take Interlock's arrays, and give Interlock's arrays."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from .programs import run


@pytest.mark.usefixtures("runtime")
def test_other_libraries_run_unchanged() -> None:
    # In a program of its own: SciPy asks the environment as it is imported whether it may take other arrays.
    ran = run([sys.executable, str(Path(__file__).parent / "third_party.py")], env={"SCIPY_ARRAY_API": "1"})
    assert ran.code == 0, ran.out + ran.err
