"""Why something is not there yet: the chain from an instruction to the one that all of it waits for.

Pure: a picture of what is unfinished goes in, links come out; each says what its instruction waits for. Ignorant of
sockets, clocks and of how the picture was made. It follows the workers' rules: a lane is run in its order, but for
what waits for a ticket, which what shares no buffer with it overtakes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

RUNNING: Final = "running"
QUEUED: Final = "queued"  # behind `behind` others of its lane
TICKET: Final = "ticket"  # for what another device sends
COMES: Final = "comes"  # it was sent, and is on its way
NEEDS: Final = "needs"  # for an earlier one of its lane that waits for a ticket itself
GATE: Final = "gate"  # held by the frontend, as gate="coordinator" has it
UNSENT: Final = "unsent"  # it leaves with the next batch
STARTS: Final = "starts"  # it was sent, and nothing is before it: it is about to run
LOST: Final = "lost"  # its worker has gone


class Step(NamedTuple):
    """An instruction that is not known to have finished."""

    lane: int
    n: int
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    takes: int | None = None  # the ticket that it waits for
    gives: int | None = None  # the ticket that it sends
    after_all: bool = False  # it waits for everything before it in its lane


class Lane(NamedTuple):
    """One lane, as it is seen at a moment."""

    steps: tuple[Step, ...]  # what is unfinished, as far as it was told, by n
    sent: int  # the worker has been sent all up to this one
    at: int  # how far the worker is: earlier ones have finished, or wait for tickets; 0 if it is not known
    runs: bool  # the instruction `at` runs
    held: dict[int, tuple[tuple[int, int], ...]]  # before the gate: n -> what it waits for, as (lane, n)
    lost: bool = False


class Link(NamedTuple):
    """One instruction of a chain. The next link is what it waits for."""

    lane: int
    n: int
    state: str
    behind: int = 0  # of QUEUED, how many are before it, the one that runs among them


class Picture:
    """All lanes of a session at a moment."""

    def __init__(self, lanes: Sequence[Lane]) -> None:
        self.lanes = lanes
        self._steps = {(step.lane, step.n): step for lane in lanes for step in lane.steps}
        self._givers = {step.gives: step for step in self._steps.values() if step.gives is not None}
        self._origins: dict[tuple[int, int], Step | None] = {}
        self._mark_all()

    def writer(self, lane: int, buffer: int) -> Step | None:
        """The last unfinished instruction that writes a buffer; None if its value is there."""
        for step in reversed(self.lanes[lane].steps):
            if buffer in step.writes:
                return None if self.over(step) else step
        return None

    def over(self, step: Step) -> bool:
        """It has finished: what runs now was behind it, and it waits for no ticket."""
        lane = self.lanes[step.lane]
        return lane.at > step.n and not lane.lost and self._origins.get((step.lane, step.n)) is None

    def chain(self, step: Step) -> list[Link]:
        """From an unfinished instruction to the first that all of it waits for."""
        links: list[Link] = []
        following: Step | None = step
        while following is not None and len(links) <= len(self._steps):
            link, following = self._look(following)
            links.append(link)
        return links

    def _look(self, step: Step) -> tuple[Link, Step | None]:
        """What one instruction waits for."""
        at, n = step.lane, step.n
        lane = self.lanes[at]
        if lane.lost:
            return Link(at, n, LOST), None
        if n > lane.sent and lane.held:
            return self._before_gate(step)
        if n == lane.at and lane.runs:
            return Link(at, n, RUNNING), None
        origin = self._origins.get((at, n))
        if origin is step:
            giver = self._givers.get(step.takes or 0)
            if giver is None or self.over(giver):
                return Link(at, n, COMES), None
            return Link(at, n, TICKET), giver
        if origin is not None:
            return Link(at, n, NEEDS), origin
        if lane.runs and n > lane.at and (at, lane.at) in self._steps:
            return Link(at, n, QUEUED, n - lane.at), self._steps[at, lane.at]
        # Nothing is known to run: the first that could is what the others are behind.
        free = (each for each in lane.steps if each.n >= lane.at and self._origins.get((at, each.n)) is None)
        first = next(free, step)
        if first.n < n:
            return Link(at, n, QUEUED, n - first.n), first
        if n > lane.sent:
            return Link(at, n, UNSENT), None
        return Link(at, n, STARTS if step.takes is None else COMES), None

    def _before_gate(self, step: Step) -> tuple[Link, Step | None]:
        """What is held waits for the head of what is held; that for the instructions it was given to wait for."""
        lane = self.lanes[step.lane]
        head = min(lane.held, default=step.n)
        if head < step.n:
            return Link(step.lane, step.n, GATE), self._steps.get((step.lane, head))
        for wait in lane.held.get(step.n, ()):
            other = self._steps.get(wait)
            if other is not None:
                return Link(step.lane, step.n, GATE), other
        return Link(step.lane, step.n, GATE), None

    def _mark_all(self) -> None:
        """For each instruction, whose missing ticket keeps it from running, its own included: in `_origins`.

        Each lane in turn, as its scoreboard would park them if all came to be run now; whether a ticket is missing may
        depend on what keeps its sender, which was issued earlier and so never depends on this.
        """
        marks = [_Marks() for _ in self.lanes]
        lanes = [list(reversed(lane.steps)) for lane in self.lanes]
        some = True
        while some:
            some = False
            for steps, mark in zip(lanes, marks, strict=True):
                while steps:
                    step = steps[-1]
                    giver = None if step.takes is None else self._givers.get(step.takes)
                    if giver is not None and (giver.lane, giver.n) not in self._origins:
                        break
                    missing = giver is not None and not self.over(giver)
                    # Where its ticket has come but it is still unfinished, it may be that nobody has taken it in yet.
                    overtaken = step.takes is not None and step.n < self.lanes[step.lane].at
                    self._origins[step.lane, step.n] = mark.take(step, missing or overtaken)
                    steps.pop()
                    some = True
        for step in (step for steps in lanes for step in steps):  # a picture that makes no sense
            self._origins[step.lane, step.n] = None


class _Marks:
    """What is parked in one lane, going through it in its order."""

    def __init__(self) -> None:
        self._readers: dict[int, Step] = {}  # of what is parked, by buffer: whose ticket it waits for
        self._writers: dict[int, Step] = {}
        self._last: Step | None = None

    def take(self, step: Step, missing: bool) -> Step | None:
        """The instruction for whose ticket this one waits; itself, if its own is `missing`; None if it would run."""
        origin: Step | None
        if missing:
            origin = step
        elif step.after_all:
            origin = self._last
        else:
            found = [self._writers[buffer] for buffer in (*step.reads, *step.writes) if buffer in self._writers]
            found += [self._readers[buffer] for buffer in step.writes if buffer in self._readers]
            origin = max(found, key=lambda each: each.n, default=None)
        if origin is not None:
            self._last = origin
            self._readers.update(dict.fromkeys(step.reads, origin))
            self._writers.update(dict.fromkeys(step.writes, origin))
        return origin
