"""`interlock.fft`: NumPy's Fourier transforms on arrays of a device, and the standard's extension of this name."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..protocol.functions import FUNCTIONS
from . import functions
from .protocols import named_here

_NAMES = sorted({"fftfreq", "rfftfreq"} | {name[4:] for name in FUNCTIONS if name.startswith("fft.")})


def fftfreq(n: int, /, *, d: float = 1.0, dtype: Any = None, device: Any = None) -> Any:
    """The frequencies of the `n` elements that `fft` gives, in cycles per unit of the sample spacing `d`."""
    return functions.asarray(np.fft.fftfreq(n, d), dtype, device=device)


def rfftfreq(n: int, /, *, d: float = 1.0, dtype: Any = None, device: Any = None) -> Any:
    """As `fftfreq`, for `rfft` of `n` elements."""
    return functions.asarray(np.fft.rfftfreq(n, d), dtype, device=device)


def __getattr__(name: str) -> Any:
    if name not in _NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    made = globals()[name] = named_here(getattr(np.fft, name))
    return made


def __dir__() -> list[str]:
    return list(_NAMES)


__all__ = __dir__()
