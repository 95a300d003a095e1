"""Ctrl-C: what it drops, and who is told.

An interrupt during a wait drops what was issued and has not started, after a grace: a training loop that keeps up has
tens of milliseconds of work on the way, which writes its parameters in place, and these must not be lost for that; a
backlog of half a minute must. What runs goes on to its end.
"""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Final

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
