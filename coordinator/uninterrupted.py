"""Where Ctrl-C may not come between: it comes at the end of the section.

Imports next to nothing, as the loading of all else is such a section: a package that was interrupted while it was
loaded is not whole for the rest of the program.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # what is behind `signal`, which makes enums: ten times as long
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any


class uninterrupted:  # noqa: N801  # it is used like a function
    """A section that Ctrl-C does not come into: it comes at the end.

    For what would be left half done, off the hot path, as it takes a microsecond or two. It changes nothing on other
    threads, where Python never interrupts, and where a program has a handler that is none of Python's.
    """

    __slots__ = ("_before", "_came", "_end")

    def __init__(self, end: Callable[[], None] | None = None) -> None:
        """`end` is called when Ctrl-C comes, to have what is waited for in the section come at once."""
        self._end = end

    def __enter__(self) -> None:
        self._before: Any = None
        self._came = False
        if threading.current_thread() is threading.main_thread():
            before = _signal.getsignal(signal.SIGINT)
            if callable(before):
                _signal.signal(signal.SIGINT, self._note)
                self._before = before

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._came = True  # and no frame, which would keep what is in it
        if self._end is not None:
            self._end()

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            _signal.signal(signal.SIGINT, self._before)
            if self._came:
                self._before(signal.SIGINT, sys._getframe(1))
