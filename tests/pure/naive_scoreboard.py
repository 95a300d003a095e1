"""The slow, obvious twin of worker/scoreboard.py: it keeps everything that was parked and looks at all of it each time.

It finds no fault with its caller. The tests compare the two on random runs.
"""

from __future__ import annotations

from dataclasses import dataclass

from interlock.worker.scoreboard import peer_of


def conflict(
    reads: tuple[int, ...], writes: tuple[int, ...], other_reads: tuple[int, ...], other_writes: tuple[int, ...]
) -> bool:
    """Do two instructions share a buffer that at least one of them writes?"""
    return bool(set(writes) & (set(other_reads) | set(other_writes)) or set(reads) & set(other_writes))


@dataclass
class Instruction:
    n: int
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    tickets: tuple[int, ...]
    state: str = "parked"  # then "out", then "done"


class NaiveScoreboard:
    def __init__(self) -> None:
        self.story: list[Instruction] = []
        self.came: set[int] = set()
        self.taken: set[int] = set()
        self.gone: set[int] = set()

    def unfinished(self) -> list[Instruction]:
        return [each for each in self.story if each.state != "done"]

    def __len__(self) -> int:
        return len(self.unfinished())

    def here(self, ticket: int) -> bool:
        return ticket in self.came or peer_of(ticket) in self.gone

    @property
    def idle(self) -> bool:
        named = {ticket for each in self.story for ticket in each.tickets} | self.taken
        return not self.unfinished() and self.came <= named

    def blocked(self, reads: tuple[int, ...], writes: tuple[int, ...], tickets: tuple[int, ...] = ()) -> bool:
        if not all(self.here(ticket) for ticket in tickets):
            return True
        return any(conflict(reads, writes, each.reads, each.writes) for each in self.unfinished())

    def take(self, tickets: tuple[int, ...]) -> None:
        self.taken |= set(tickets)

    def park(self, n: int, reads: tuple[int, ...], writes: tuple[int, ...], tickets: tuple[int, ...] = ()) -> None:
        self.story.append(Instruction(n, reads, writes, tickets))

    def arrived(self, ticket: int) -> None:
        if peer_of(ticket) not in self.gone:
            self.came.add(ticket)

    def lost(self, peer: int) -> list[int]:
        waited = {ticket for each in self.unfinished() for ticket in each.tickets}
        never = sorted(ticket for ticket in waited if peer_of(ticket) == peer and not self.here(ticket))
        self.gone.add(peer)
        return never

    def runnable(self, instruction: Instruction) -> bool:
        earlier = [each for each in self.unfinished() if each.n < instruction.n]
        return all(self.here(ticket) for ticket in instruction.tickets) and not any(
            conflict(instruction.reads, instruction.writes, each.reads, each.writes) for each in earlier
        )

    def ready(self) -> int | None:
        for each in self.story:
            if each.state == "parked" and self.runnable(each):
                each.state = "out"
                return each.n
        return None

    def done(self, n: int) -> None:
        next(each for each in self.story if each.n == n).state = "done"

    def through(self, last_executed: int) -> int:
        return min((each.n - 1 for each in self.unfinished()), default=last_executed)
