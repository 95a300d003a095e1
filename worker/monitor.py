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
    seen: tuple[int, bool]  # what the monitor noted last


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
        """One look at each session; True if something is to be dropped later, or a device works by itself."""
        later = False
        now = time.monotonic_ns()
        for session in list(self._sessions()):
            with contextlib.suppress(ValueError):  # the session is just being closed
                device_works = session.executor.device_works()
                note_running(session, now, device_works or not self.resting)
                later = drop_cancelled(session, now) or device_works or later
        return later


def note_running(session: Watched, now: int, some: bool) -> None:
    """Write down how far the worker is, unless it was the same at the last look; `some`: an instruction runs."""
    running = session.executor.running() if some else session.executor.executed + 1
    page, seen = session.progress, (running, some)
    if seen != session.seen and page is not None:
        session.seen = seen
        page[cell(page, SINCE, session.lane)] = 0
        page[cell(page, RUNNING, session.lane)] = running
        page[cell(page, SINCE, session.lane)] = now if some else 0


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
