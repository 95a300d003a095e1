"""The slow modes of a session: what they are called, what they cost, and what the frontend does in them.

They run the same processes and the same order as a plain session; each only adds a wait or a look. One line on stderr
says so, once for each session: nobody should measure a slow mode, or leave one on, without knowing.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
import warnings
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ..protocol.page import FLAGGED, cell
from .events import Pending
from .sites import Site, describe, place

if TYPE_CHECKING:
    from ..protocol.messages import Flagged
    from .session import Session

SYNCS: Final = ("op",)
NANS: Final = ("flag", "raise")
TRIES: Final = 15  # round trips that are measured for the line that says what a mode costs
ON_THE_WAY_S: Final = 1.0  # the longest that a finding may be on the way from its worker
LATELY: Final = 50_000  # findings that are remembered, more than are computed again at once
SHOWN: Final = 5  # findings that are told of at once


class Modes(NamedTuple):
    """Which are on; "" is off."""

    sync: str = ""
    nan: str = ""


PLAIN: Final = Modes()


def chosen(sync: str | None, nan: str | None) -> Modes:
    """What `connect` is told, else what INTERLOCK_SYNC and INTERLOCK_NAN say.

    Raises:
        ValueError: there is no such mode.
    """
    found = []
    for name, value, known in (("sync", sync, SYNCS), ("nan", nan, NANS)):
        variable = f"INTERLOCK_{name.upper()}"
        said = "" if value is not None else f" (from {variable})"
        value = os.environ.get(variable, "") if value is None else value
        if value not in ("", *known):
            raise ValueError(f"{name} must be {' or '.join(map(repr, known))}, or '' for off, not {value!r}{said}")
        found.append(value)
    return Modes(*found)


def words(session: Session) -> str:
    """The modes that are on, as `connect` is told of them; "" for a plain session."""
    on = [f"{name}={value!r}" for name, value in session.modes._asdict().items() if value]
    return ", ".join([*on, *(["gate='coordinator'"] if session.gated else [])])


def announce(session: Session) -> None:
    """Say what is on and what it costs, if anything is."""
    on = words(session)
    if not on:
        return
    trip = f"about {_round_trip_us(session):.0f} µs each here"
    costs = []
    if session.modes.sync:
        costs.append(f"every operation waits for its worker ({trip})")
    if session.modes.nan:
        costs.append("workers look through every result once more, and replay captured functions step by step")
    if session.gated:
        costs.append(f"what crosses workers waits for this program in between ({trip})")
    print(f"interlock: {on}: {'; '.join(costs)}", file=sys.stderr)


def announce_verify(session: Session) -> None:
    """Say that a captured function with verify=True runs in this session."""
    if not session.verifying:
        session.verifying = True
        print(
            "interlock: capture(verify=True): the function is called and compared at every call, so that a replay "
            "saves nothing",
            file=sys.stderr,
        )


def _round_trip_us(session: Session) -> float:
    times = []
    for _ in range(TRIES):
        began = time.perf_counter_ns()
        session.finish(session.lanes[0])
        times.append(time.perf_counter_ns() - began)
    return statistics.median(times) / 1000


# -- nan=


class Flags:
    """What workers found that is not finite, and the program has not been told of.

    A finding is sent before anything that depends on it, but by another road: what a read gives may be here sooner,
    by way of another worker. So each worker counts what it sends on the shared page, and who tells waits for that many.
    """

    def __init__(self, session: Session, mode: str) -> None:
        self.on = bool(mode)
        self._session = session
        self._raising = mode == "raise"
        self._came: defaultdict[int, int] = defaultdict(int)  # by lane
        self._awaited: Pending | None = None
        self._lately: dict[tuple[int, int], None] = {}  # with recover=True: found once, and perhaps to be found again
        self._found: list[tuple[int, str, Site | None]] = []  # place in the order of issue, words, line

    def add(self, message: Flagged) -> None:
        """The caller holds the session's lock."""
        lane, at = self._session.lanes[message.lane], (message.lane, message.n)
        if at not in self._lately:
            self._found.append((message.issued, _story(message, str(lane.device)), lane.site(message.n)))
        if self._session.recovery is not None:
            self._lately[at] = None
            if len(self._lately) > LATELY:
                del self._lately[next(iter(self._lately))]
        self._came[message.lane] += 1
        if self._awaited is not None and not self._missing():
            self._awaited.happened(True)
            self._awaited = None

    def again(self) -> None:
        """All lanes begin another life, and count from 0. The caller holds the lock."""
        self._came.clear()

    def _missing(self) -> bool:
        page = self._session.progress
        return any(
            page[cell(page, FLAGGED, lane.index)] > self._came[lane.index]
            for lane in self._session.lanes
            if lane.lost is None
        )

    def _await_sent(self) -> None:
        with self._session.lock:
            if not self._missing():
                return
            pending = self._awaited = self._awaited or Pending(0)
        self._session.receiver.wait(pending, ON_THE_WAY_S)

    def tell(self, asked_at: Site | None, closing: bool = False) -> None:
        """Warn, or raise, of what has come, the first by order of issue first. At the end it only warns.

        Raises:
            FloatingPointError: under nan="raise".
        """
        if closing:  # nothing comes any more, and the lock may be this thread's, further down
            found, self._found = sorted(self._found, key=lambda each: each[0]), []
        else:
            self._await_sent()
            with self._session.lock:
                found, self._found = sorted(self._found, key=lambda each: each[0]), []
        if not found:
            return
        texts = [f"{story}\n  issued at {describe(site)}" for _, story, site in found]
        more = [f"and {len(texts) - SHOWN} more"] if len(texts) > SHOWN else []
        if self._raising and not closing:
            error = FloatingPointError(found[0][1])
            for text in [f"issued at {describe(found[0][2])}", *[f"also {each}" for each in texts[1:SHOWN]], *more]:
                error.add_note(text)
            raise error
        file, line, _ = place(asked_at)
        text = "\nalso ".join(texts[:SHOWN]) + "".join(f"\n{each}" for each in more)
        warnings.warn_explicit(text, RuntimeWarning, file, line)


def _story(message: Any, device: str) -> str:
    nan, inf, size = message.counts
    counts = " and ".join([f"{count} {name}" for count, name in ((nan, "nan"), (inf, "inf")) if count])
    counts = f"{counts} among {size} element{'s' if size != 1 else ''}"
    if message.how == "data":
        return f"{counts} came in with the user's data: {message.detail}, sent to {device}"
    if message.how == "number":
        return f"{counts} came in with a number of the user's that is nan or inf: {message.detail} on {device}"
    return f"{counts} made by {message.detail} on {device}, whose operands were all finite"
