"""A thread beside the worker's loop: it sees what the loop cannot while a kernel runs.

A few times a second while there is work, and never while there is none, it notes on the shared page which instruction
runs and since when, and looks whether the frontend has dropped what was not started (Ctrl-C): a batch may have an hour
of work in it, and the loop takes in messages only between batches.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable
from typing import Final, Protocol

from ..protocol.page import CANCEL, CANCEL_AT, RUNNING, SINCE, cell
from .executor import Executor

TICK_S: Final = 0.1


class Watched(Protocol):
    """What the monitor sees of a session."""

    lane: int
    progress: memoryview | None
    executor: Executor
    drop: tuple[int, int]  # what has not started up to (instruction) is dropped at (nanoseconds): a message said so
    seen: int  # the instruction that ran when the monitor last looked


class Monitor:
    """Looks at the sessions of one worker."""

    def __init__(self, sessions: Callable[[], Iterable[Watched]]) -> None:
        self.resting = False  # the loop waits for messages
        self.asleep = False
        self._sessions = sessions
        self._awake = threading.Lock()
        self._awake.acquire()
        threading.Thread(target=self._run, name="interlock-monitor", daemon=True).start()

    def wake(self) -> None:
        """There is work: look at it. Called by the loop alone."""
        self.asleep = False
        self._awake.release()

    def _run(self) -> None:
        while True:
            busy = self._look()
            if self.resting and not busy:
                self.asleep = True
                if self.resting:  # else the loop went on before it could see that we sleep
                    self._awake.acquire()
                self.asleep = False
            time.sleep(TICK_S)

    def _look(self) -> bool:
        """One look at each session; True if something is to be dropped later."""
        later = False
        now = time.monotonic_ns()
        for session in list(self._sessions()):
            with contextlib.suppress(ValueError):  # the session is just being closed
                note_running(session, now)
                later = drop_cancelled(session, now) or later
        return later


def note_running(session: Watched, now: int) -> None:
    """Write down which instruction runs, unless it was the same at the last look."""
    running = session.executor.running()
    page = session.progress
    if running != session.seen and page is not None:
        session.seen = running
        page[cell(page, SINCE, session.lane)] = now
        page[cell(page, RUNNING, session.lane)] = running


def drop_cancelled(session: Watched, now: int) -> bool:
    """Drop what was not started, if it is time; True if it will be later."""
    orders, page = [session.drop], session.progress
    if page is not None:
        orders.append((page[cell(page, CANCEL, session.lane)], page[cell(page, CANCEL_AT, session.lane)]))
    later = False
    for through, at in orders:
        if through > session.executor.cancelled:
            if now >= at:
                session.executor.cancel(through)
            else:
                later = True
    return later
