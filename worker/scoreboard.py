"""Which instructions of a lane must wait at the worker, and which may overtake them.

Pure: no sockets, threads, clocks or devices, and no knowledge of kinds: an instruction is its number, the buffers
that it reads and writes, and the tickets that it waits for. Facts go in (parked, arrived, lost, done); the next
instruction to run comes out. One scoreboard serves one lane.

Three rules for the caller:
  * A buffer is named, never a view. A `send` reads its buffer, a `recv` and a `free` write theirs. What an instruction
    reads and writes may be named on both sides. Instructions that must never overtake one another (collectives) also
    write ORDERED.
  * A ticket is named by exactly one instruction, which consumes it: through `take` if it runs at once, through `park`
    if it is parked. Until then a ticket that came early is remembered.
  * With nothing parked (the scoreboard is false) an instruction without tickets needs no call at all:

        if (board or tickets) and board.blocked(reads, writes, tickets):
            board.park(n, reads, writes, tickets)
        else:
            board.take(tickets)     # only if it has any
            ...                     # run it
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from typing import Final

from ..protocol.errors import InterlockError
from ..protocol.messages import NEXT_OUTPUT, TICKET_BITS

ORDERED: Final = -1  # no buffer has this id

_NUMBER_BITS: Final = TICKET_BITS


class ScoreboardError(InterlockError):
    """The worker told its scoreboard something that cannot be: a broken invariant of the worker itself."""


def ticket_from(peer: int, number: int) -> int:
    """The ticket with this number from this peer, as the one int that a scoreboard takes.

    Args:
        peer: a worker incarnation; its number is not used again for the next one. A negative peer is the worker itself,
            for a wait that only it can end (for memory, say).
        number: unique within the lane for that peer.
    """
    if number >> _NUMBER_BITS:  # also true of a negative number
        raise ScoreboardError(f"ticket number {number} from peer {peer} is outside 0..2**{_NUMBER_BITS}-1")
    return peer << _NUMBER_BITS | number


def peer_of(ticket: int) -> int:
    """The peer that a ticket comes from."""
    # A run numbers its tickets above the peers' bits.
    return ticket >> _NUMBER_BITS if ticket < NEXT_OUTPUT else ticket % NEXT_OUTPUT >> _NUMBER_BITS


class _Parked:
    __slots__ = ("dependents", "handed_out", "reads", "waits", "writes")

    def __init__(self, reads: tuple[int, ...], writes: tuple[int, ...], waits: int) -> None:
        self.reads = reads
        self.writes = writes
        self.waits = waits  # tickets that are missing, plus earlier parked instructions to follow
        self.dependents: list[int] = []
        self.handed_out = False


class _Access:
    """What parked, unfinished instructions do with one buffer. There is none for a buffer they leave alone."""

    __slots__ = ("readers", "writer")

    def __init__(self) -> None:
        self.writer = 0  # the last one that writes it; 0 for none, as lanes count from 1
        self.readers: set[int] = set()  # those that read it since


class Scoreboard:
    """The parked instructions of one lane. Its length is their number, so it is false when nothing is parked."""

    __slots__ = ("_accesses", "_here", "_lost", "_parked", "_runnable", "_waiting")

    def __init__(self) -> None:
        # By number, in lane order. An OrderedDict gives the smallest number in one step even after many removals
        # at the front, which a dict does not.
        self._parked: OrderedDict[int, _Parked] = OrderedDict()
        self._accesses: dict[int, _Access] = {}
        self._waiting: dict[int, int] = {}  # missing ticket -> the parked instruction that names it
        self._here: set[int] = set()  # tickets that came before an instruction named them
        self._lost: set[int] = set()  # peers that send no more
        self._runnable: list[int] = []  # a heap

    def __len__(self) -> int:
        return len(self._parked)

    @property
    def idle(self) -> bool:
        """Nothing is parked and nothing is remembered, but for which peers were lost."""
        return not (self._parked or self._accesses or self._waiting or self._here or self._runnable)

    def blocked(self, reads: tuple[int, ...], writes: tuple[int, ...], tickets: tuple[int, ...] = ()) -> bool:
        """Must an instruction that comes now be parked: is a ticket missing, or a conflicting instruction parked?"""
        return any(map(self._missing, tickets)) or bool(self._conflicts(reads, writes))

    def touches(self, buffer: int) -> bool:
        """Whether a parked instruction reads or writes the buffer."""
        return buffer in self._accesses

    def take(self, tickets: tuple[int, ...]) -> None:
        """An instruction that was not blocked runs now: its tickets are consumed."""
        self._here.difference_update(tickets)

    def park(self, n: int, reads: tuple[int, ...], writes: tuple[int, ...], tickets: tuple[int, ...] = ()) -> None:
        """Instruction `n` waits, for the tickets that are missing and for the parked ones that it conflicts with.

        Called in lane order. `tickets` are all that it names: those that are here are consumed now.
        """
        self._refuse_unless_next(n, tickets)
        missing = [ticket for ticket in tickets if self._missing(ticket)]
        earlier = self._conflicts(reads, writes)
        self._here.difference_update(tickets)
        for ticket in missing:
            self._waiting[ticket] = n
        for m in earlier:
            self._parked[m].dependents.append(n)
        self._parked[n] = _Parked(reads, writes, len(missing) + len(earlier))
        self._note(n, reads, writes)
        if not missing and not earlier:
            heapq.heappush(self._runnable, n)

    def arrived(self, ticket: int) -> None:
        """A ticket came. One from a lost peer is dropped: its instruction was already told that it never comes."""
        n = self._waiting.pop(ticket, None)
        if n is not None:
            self._one_wait_less(n)
        elif ticket in self._here:
            raise ScoreboardError(f"ticket {ticket} from peer {peer_of(ticket)} arrived twice")
        elif peer_of(ticket) not in self._lost:
            self._here.add(ticket)

    def lost(self, peer: int) -> list[int]:
        """A peer is gone. Returns its tickets that are waited for and never come; nobody waits for them any more.

        The caller runs the instructions that named them as failures, when `ready` hands them out. An instruction that
        names such a ticket later is not blocked by it: the caller finds no message for the ticket, and fails it
        likewise. Tickets that came before the loss stay good.
        """
        self._lost.add(peer)
        never = sorted(ticket for ticket in self._waiting if peer_of(ticket) == peer)
        for ticket in never:
            self._one_wait_less(self._waiting.pop(ticket))
        return never

    def ready(self) -> int | None:
        """The lowest parked instruction that may run now, or None. Each is handed out once; `done` follows.

        Several may be out at a time: they do not conflict with one another, and may finish in any order.
        """
        if not self._runnable:
            return None
        n = heapq.heappop(self._runnable)
        self._parked[n].handed_out = True
        return n

    def done(self, n: int) -> None:
        """Instruction `n`, handed out by `ready`, no longer holds back what conflicts with it."""
        parked = self._parked.get(n)
        if parked is None or not parked.handed_out:
            state = "not parked" if parked is None else f"parked with {parked.waits} waits and was not handed out"
            raise ScoreboardError(f"instruction {n} reported done, but it is {state}")
        del self._parked[n]
        self._forget(n, parked)
        for m in parked.dependents:
            self._one_wait_less(m)

    def through(self, last_executed: int) -> int:
        """The highest number such that it and all below it are finished.

        Args:
            last_executed: the highest number that came to the worker and was run or parked.
        """
        return next(iter(self._parked)) - 1 if self._parked else last_executed

    def clear(self) -> None:
        """The session is gone: forget everything, lost peers included."""
        for collection in (self._parked, self._accesses, self._waiting, self._here, self._lost, self._runnable):
            collection.clear()

    def _missing(self, ticket: int) -> bool:
        return ticket not in self._here and peer_of(ticket) not in self._lost

    def _conflicts(self, reads: tuple[int, ...], writes: tuple[int, ...]) -> list[int]:
        """The parked instructions to follow directly; through them it follows every other that it conflicts with.

        One may be there twice, as it is counted twice on both ends.
        """
        found: list[int] = []
        for buffer in reads:
            access = self._accesses.get(buffer)
            if access is not None and access.writer:
                found.append(access.writer)  # RAW
        for buffer in writes:
            access = self._accesses.get(buffer)
            if access is not None:
                if access.readers:
                    found.extend(access.readers)  # WAR; they follow the writer themselves
                elif access.writer:
                    found.append(access.writer)  # WAW
        return found

    def _note(self, n: int, reads: tuple[int, ...], writes: tuple[int, ...]) -> None:
        for buffer in reads:
            self._access(buffer).readers.add(n)
        for buffer in writes:  # second, so that reading and writing a buffer counts as a write
            access = self._access(buffer)
            access.writer = n
            access.readers.clear()

    def _access(self, buffer: int) -> _Access:
        access = self._accesses.get(buffer)
        if access is None:
            access = self._accesses[buffer] = _Access()
        return access

    def _forget(self, n: int, parked: _Parked) -> None:
        """Take `n` out of its buffers' accesses, where a later writer has not replaced it already."""
        for buffer in parked.reads + parked.writes:
            access = self._accesses.get(buffer)
            if access is None:
                continue  # named twice
            access.readers.discard(n)
            if access.writer == n:
                access.writer = 0
            if not access.writer and not access.readers:
                del self._accesses[buffer]

    def _one_wait_less(self, n: int) -> None:
        parked = self._parked[n]
        parked.waits -= 1
        if not parked.waits:
            heapq.heappush(self._runnable, n)

    def _refuse_unless_next(self, n: int, tickets: tuple[int, ...]) -> None:
        if self._parked and n <= (last := next(reversed(self._parked))):
            raise ScoreboardError(f"instruction {n} cannot be parked after {last}: a lane is parked in its order")
        if n < 1:
            raise ScoreboardError(f"instruction {n} cannot be parked: lanes count from 1")
        for ticket in tickets:
            if ticket in self._waiting or tickets.count(ticket) > 1:
                other = self._waiting.get(ticket, n)
                raise ScoreboardError(f"instruction {n} names ticket {ticket}, but {other} waits for it already")
