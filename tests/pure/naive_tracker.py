"""The slow, obvious twins of coordinator/tracker.py: they keep all that they are told and look at all of it each time.

They find no fault with their caller. The tests compare the two on random facts.
"""

from __future__ import annotations

from dataclasses import dataclass

Instruction = tuple[int, int]


@dataclass
class Submitted:
    lane: int
    n: int
    waits: tuple[Instruction, ...]
    sent: bool = False


class NaiveGate:
    def __init__(self) -> None:
        self.story: list[Submitted] = []
        self.through: dict[int, int] = {}
        self.gone: set[int] = set()

    def open(self, lane: int) -> None:
        self.through[lane] = 0

    def finished(self, lane: int, n: int) -> bool:
        return lane in self.gone or self.through[lane] >= n

    def may_go(self, each: Submitted) -> bool:
        before = [other for other in self.story if other.lane == each.lane and other.n < each.n]
        return (
            each.lane not in self.gone
            and all(other.sent for other in before)
            and all(lane == each.lane or self.finished(lane, n) for lane, n in each.waits)
        )

    def release(self) -> list[Instruction]:
        released = []
        for each in self.story:
            if not each.sent and self.may_go(each):
                each.sent = True
                released.append((each.lane, each.n))
        return released

    def submit(self, lane: int, n: int, waits: tuple[Instruction, ...] = ()) -> bool:
        self.story.append(Submitted(lane, n, waits))
        return self.release() == [(lane, n)]

    def completed(self, lane: int, through: int) -> list[Instruction]:
        self.through[lane] = through
        return self.release()

    def lost(self, lane: int) -> tuple[list[Instruction], list[Instruction]]:
        known = lane in self.gone
        self.gone.add(lane)
        dropped = [(each.lane, each.n) for each in self.story if each.lane == lane and not each.sent and not known]
        return self.release(), dropped

    @property
    def idle(self) -> bool:
        return all(self.finished(each.lane, each.n) for each in self.story)


class NaiveHazards:
    def __init__(self) -> None:
        self.story: list[tuple[int, int, int]] = []
        self.through: dict[int, int] = {}
        self.gone: set[int] = set()

    def sent(self, buffer: int, consumer_lane: int, recv_n: int) -> None:
        self.story.append((buffer, consumer_lane, recv_n))

    def waits_of_write(self, buffer: int) -> tuple[Instruction, ...]:
        highest: dict[int, int] = {}
        for sent, lane, n in self.story:
            if sent == buffer and lane not in self.gone and n > self.through.get(lane, 0):
                highest[lane] = max(n, highest.get(lane, 0))
        return tuple(highest.items())

    def freed(self, buffer: int) -> None:
        self.story = [each for each in self.story if each[0] != buffer]

    def completed(self, lane: int, through: int) -> None:
        self.through[lane] = through

    def lost(self, lane: int) -> None:
        self.gone.add(lane)

    @property
    def idle(self) -> bool:
        return not any(self.waits_of_write(buffer) for buffer, _, _ in self.story)
