"""Reads that a program does not spell out: `np.asarray(x)`, `float(x)`, `if x:`. What `connect(implicit_reads=)` says.

Each waits for the worker, and copies. They are allowed by default, as code for NumPy's arrays has many; "warn" and
"raise" find the lines. Spelt out are `x.numpy()`, `x.item()`, `x.tolist()`, `await x` and printing.
"""

from __future__ import annotations

import os
import warnings
from typing import TYPE_CHECKING, Any, Final

from ..protocol.errors import InterlockError
from .sites import place, user_site

if TYPE_CHECKING:
    from .array import Array

CHOICES: Final = ("warn", "raise")
_VARIABLE: Final = "INTERLOCK_IMPLICIT_READS"
_warned: dict[Any, Any] = {}  # lines, as `warnings` keeps them: each is told of once


class ImplicitRead(InterlockError):
    """An array was read where the program does not spell it out, under `implicit_reads="raise"`."""


class ImplicitReadWarning(UserWarning):
    """An array was read where the program does not spell it out, under `implicit_reads="warn"`."""


def chosen(choice: str | None) -> str:
    """What `connect` is told, else what INTERLOCK_IMPLICIT_READS says; "" for nothing.

    Raises:
        ValueError: there is no such choice.
    """
    said = "" if choice is not None else f" (from {_VARIABLE})"
    choice = os.environ.get(_VARIABLE, "") if choice is None else choice
    if choice not in ("", *CHOICES):
        raise ValueError(f"implicit_reads must be 'warn' or 'raise', or '' for neither, not {choice!r}{said}")
    return choice


def tell(array: Array, what: str) -> None:
    """The array is about to be read by `what`, and its session wants to know."""
    text = (
        f"{what} waits for {array.device} and reads {array.nbytes} bytes: write x.numpy() where that is meant, "
        f"or keep the value on the device"
    )
    if array._lane.session.implicit_reads == "raise":
        raise ImplicitRead(text)
    file, line, _ = place(user_site(2))
    warnings.warn_explicit(text, ImplicitReadWarning, file, line, registry=_warned)
