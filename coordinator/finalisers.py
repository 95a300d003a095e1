"""Ctrl-C that comes in a finaliser, which is where Python drops it, with all that the finaliser had still to do.

Handles go all the time: of the interrupts of a program that does nothing but issue, one in twenty comes there. While a
session is open such a finaliser is called again, and the interrupt comes again a moment later. What other finalisers
raise is shown as before.
"""

from __future__ import annotations

import _thread
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FunctionType
from typing import Any, Final

AGAIN_S: Final = 0.001  # by then the finaliser is over
_OURS: Final = __name__.partition(".")[0]

_hook: _Hook | None = None  # while it is there


def watch() -> None:
    """A session begins."""
    global _hook
    if _hook is None or sys.unraisablehook is not _hook:
        _hook = sys.unraisablehook = _Hook(sys.unraisablehook)


def leave() -> None:
    """The last session has ended."""
    global _hook
    if _hook is not None and sys.unraisablehook is _hook:
        sys.unraisablehook = _hook.before
    _hook = None


class _Hook:
    def __init__(self, before: Callable[[Any], Any]) -> None:
        self.before = before

    def __call__(self, unraisable: Any) -> None:
        where, came = unraisable.object, unraisable.exc_type
        if came is None or not issubclass(came, KeyboardInterrupt) or not _is_ours(where):
            self.before(unraisable)
            return
        _thread.start_new_thread(_again, ())
        trace = unraisable.exc_traceback
        while trace is not None and trace.tb_frame.f_code is not where.__code__:
            trace = trace.tb_next
        if trace is not None and trace.tb_lineno == where.__code__.co_firstlineno:  # it had not begun
            where(trace.tb_frame.f_locals["self"])


def _is_ours(where: Any) -> bool:
    return type(where) is FunctionType and where.__name__ == "__del__" and where.__module__.startswith(f"{_OURS}.")


def _again() -> None:
    time.sleep(AGAIN_S)
    main = threading.main_thread().ident
    if main is not None:
        signal.pthread_kill(main, signal.SIGINT)
