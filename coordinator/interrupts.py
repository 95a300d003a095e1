"""Ctrl-C: what it drops, who is told, and where it may not come between.

An interrupt during a wait drops what was issued and has not started, after a grace: a training loop that keeps up has
tens of milliseconds of work on the way, which writes its parameters in place, and these must not be lost for that; a
backlog of half a minute must. What runs goes on to its end.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # what is behind `signal`, which makes enums: ten times as long
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from ..protocol import messages as m
from ..protocol.page import CANCEL, CANCEL_AT, cell
from .sites import Site

if TYPE_CHECKING:
    from .session import Session

GRACE_S: Final = 0.25  # what starts within this time after an interrupt is not dropped
KEPT: Final = 64  # interrupts whose line is remembered


class Interrupts:
    """Those of one session. Guarded by its lock."""

    def __init__(self) -> None:
        self._known: deque[tuple[tuple[int, ...], Site | None]] = deque(maxlen=KEPT)

    def drop(self, session: Session, site: Site | None) -> None:
        """Drop what was issued on all of the session's workers and has not started by the end of the grace.

        Args:
            session: whose; the caller does not hold its lock.
            site: the user's line that was interrupted.
        """
        with session.lock:
            session.flush()
            ends = int((time.monotonic() + GRACE_S) * 1e9)
            for lane in session.lanes:
                through = lane.first - 1
                if lane.lost is None and not lane.paused and lane.replayed <= lane.through() < through:
                    page = session.progress
                    page[cell(page, CANCEL_AT, lane.index)] = ends
                    page[cell(page, CANCEL, lane.index)] = through
                    lane.send(m.Cancel(through, int(GRACE_S * 1000)))
            self._known.append((tuple([lane.first - 1 for lane in session.lanes]), site))

    def site(self, lane: int, n: int) -> Site | None:
        """The line whose interrupt dropped instruction n of this lane."""
        for through, site in self._known:
            if lane < len(through) and n <= through[lane]:
                return site
        return None


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
