"""The scoreboard of a worker: by example, against its naive twin, and by the values that random runs leave behind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from interlock.worker.scoreboard import ORDERED, Scoreboard, ScoreboardError, _Parked, peer_of, ticket_from

from .contents import contents
from .naive_scoreboard import NaiveScoreboard, conflict

A, B, C, D = 1, 2, 3, 4  # buffers
T, U = ticket_from(1, 1), ticket_from(2, 1)


def drain(board: Scoreboard) -> list[int]:
    """Run all that can run now, and say in which order."""
    order = []
    while (n := board.ready()) is not None:
        order.append(n)
        board.done(n)
    return order


# ---- by example


def test_a_new_scoreboard_is_false_and_idle() -> None:
    board = Scoreboard()
    assert not board
    assert board.idle
    assert board.ready() is None
    assert board.through(7) == 7


def test_a_recv_waits_for_its_ticket() -> None:
    board = Scoreboard()
    assert board.blocked((), (A,), (T,))
    board.park(1, (), (A,), (T,))
    assert len(board) == 1
    assert board.ready() is None
    board.arrived(T)
    assert drain(board) == [1]
    assert board.idle


def test_a_ticket_that_comes_early_is_remembered_until_its_recv_takes_it() -> None:
    board = Scoreboard()
    board.arrived(T)
    assert not board
    assert not board.idle
    assert not board.blocked((), (A,), (T,))
    assert not board.idle, "asking consumes nothing"
    board.take((T,))
    assert board.idle


def test_a_ticket_that_is_here_is_consumed_by_parking() -> None:
    board = Scoreboard()
    board.arrived(U)
    board.park(1, (), (A,), (T, U))
    board.arrived(T)
    assert drain(board) == [1]
    assert board.idle


def test_what_shares_nothing_overtakes() -> None:
    board = Scoreboard()
    board.park(1, (), (A,), (T,))
    assert not board.blocked((B, C), (D,))


@pytest.mark.parametrize(
    ("first", "second", "blocked"),
    [
        (((), (A,)), ((A,), (B,)), True),  # RAW
        (((A,), (B,)), ((), (A,)), True),  # WAR
        (((), (A,)), ((), (A,)), True),  # WAW
        (((A,), (B,)), ((A,), (C,)), False),  # both only read it
        (((A,), (A,)), ((A,), (B,)), True),  # in place, then a read
        (((A,), ()), ((A, A), (A,)), True),  # a read, then in place
    ],
)
def test_what_shares_a_buffer_is_blocked_unless_both_only_read_it(
    first: tuple[tuple[int, ...], tuple[int, ...]], second: tuple[tuple[int, ...], tuple[int, ...]], blocked: bool
) -> None:
    board = Scoreboard()
    board.park(1, *first, (T,))
    assert board.blocked(*second) is blocked
    board.park(2, *second)
    assert (board.ready() is None) is blocked
    board.arrived(T)
    drain(board)
    if not blocked:
        board.done(2)
    assert board.idle


def test_a_write_follows_every_parked_reader() -> None:
    board = Scoreboard()
    board.park(1, (A,), (B,), (T,))
    board.park(2, (A,), (C,), (U,))
    board.park(3, (), (A,))
    board.arrived(U)
    assert drain(board) == [2]
    board.arrived(T)
    assert drain(board) == [1, 3]


def test_a_write_follows_the_last_write_though_an_older_reader_is_gone() -> None:
    board = Scoreboard()
    board.park(1, (A,), (B,), (T,))
    board.park(2, (), (A,), (U,))
    board.park(3, (), (A,))
    board.arrived(T)
    assert drain(board) == [1]
    assert board.blocked((A,), (C,)), "the write that is still parked is remembered"
    board.arrived(U)
    assert drain(board) == [2, 3]


def test_the_lowest_runnable_instruction_comes_first() -> None:
    board = Scoreboard()
    board.park(1, (), (A,), (T,))
    board.park(2, (A,), (B,))
    board.park(3, (), (C,), (U,))
    board.park(4, (C,), (D,))
    board.arrived(U)
    board.arrived(T)
    assert drain(board) == [1, 2, 3, 4]


def test_an_instruction_is_handed_out_once_and_holds_back_its_dependents_until_done() -> None:
    board = Scoreboard()
    board.park(1, (), (A,), (T,))
    board.park(2, (A,), (B,))
    board.arrived(T)
    assert board.ready() == 1
    assert board.ready() is None
    assert board.blocked((A,), (C,)), "an instruction that is out still counts as parked"
    board.done(1)
    assert board.ready() == 2


def test_through_stops_below_the_lowest_parked_instruction() -> None:
    board = Scoreboard()
    board.park(4, (), (A,), (T,))
    board.park(6, (), (B,), (U,))
    assert board.through(9) == 3
    board.arrived(U)
    drain(board)
    assert board.through(9) == 3
    board.arrived(T)
    assert board.ready() == 4
    assert board.through(9) == 3
    board.done(4)
    assert board.through(9) == 9


def test_ordered_instructions_never_overtake_one_another() -> None:
    board = Scoreboard()
    board.park(1, (A,), (B, ORDERED), (T,))
    assert board.blocked((C,), (D, ORDERED))
    board.park(2, (C,), (D, ORDERED), (U,))
    board.arrived(U)
    assert board.ready() is None
    board.arrived(T)
    assert drain(board) == [1, 2]


def test_a_lost_peer_ends_the_waits_for_its_tickets_and_no_others() -> None:
    board = Scoreboard()
    board.park(1, (), (A,), (ticket_from(1, 8),))
    board.park(2, (), (B,), (ticket_from(2, 8),))
    board.park(3, (), (C,), (ticket_from(1, 5),))
    assert board.lost(1) == [ticket_from(1, 5), ticket_from(1, 8)]
    assert drain(board) == [1, 3]
    assert not board.blocked((), (D,), (ticket_from(1, 9),)), "a later recv from it runs at once, to fail"
    board.arrived(ticket_from(1, 9))  # too late: dropped
    board.arrived(ticket_from(2, 8))
    assert drain(board) == [2]
    assert board.idle


def test_a_ticket_that_came_before_its_peer_was_lost_stays_good() -> None:
    board = Scoreboard()
    board.arrived(T)
    assert board.lost(peer_of(T)) == []
    assert not board.idle
    board.take((T,))
    assert board.idle


def test_clear_forgets_everything() -> None:
    board = Scoreboard()
    board.arrived(U)
    board.lost(3)
    board.park(5, (A,), (B,), (T,))
    board.clear()
    assert board.idle
    assert not board
    board.park(1, (), (A,), (ticket_from(3, 1),))
    assert board.ready() is None, "the next session's peers are others"


def test_a_ticket_keeps_its_peer() -> None:
    assert [peer_of(ticket_from(peer, 7)) for peer in (-1, 0, 1, 255)] == [-1, 0, 1, 255]
    with pytest.raises(ScoreboardError, match="outside"):
        ticket_from(1, 1 << 40)
    with pytest.raises(ScoreboardError, match="outside"):
        ticket_from(1, -1)


@pytest.mark.parametrize(
    ("impossible", "words"),
    [
        (lambda board: board.park(3, (A,), (B,)), "cannot be parked after 4"),
        (lambda board: board.park(4, (A,), (B,)), "cannot be parked after 4"),
        (lambda board: board.park(5, (), (B,), (T,)), "3 waits for it already"),
        (lambda board: board.park(5, (), (B,), (9, 9)), "5 waits for it already"),
        (lambda board: board.arrived(U), "arrived twice"),
        (lambda board: board.done(3), "was not handed out"),
        (lambda board: board.done(9), "not parked"),
    ],
)
def test_a_refused_fact_changes_nothing(impossible: Callable[[Scoreboard], None], words: str) -> None:
    board = Scoreboard()
    board.arrived(U)
    board.park(3, (C,), (A,), (T,))
    board.park(4, (A,), (B,))
    before = contents(board)
    with pytest.raises(ScoreboardError, match=words):
        impossible(board)
    assert contents(board) == before


# ---- random runs


@dataclass(frozen=True)
class Instruction:
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    tickets: tuple[int, ...] = ()


@st.composite
def programs(draw: st.DrawFn) -> list[Instruction]:
    """A lane with recvs from two peers, and collectives with a ticket of each; few buffers, so many conflicts."""
    buffers = st.lists(st.integers(1, 4), max_size=3).map(tuple)
    program = []
    for number in range(draw(st.integers(1, 16))):
        kind = draw(st.integers(0, 8))
        if kind <= 2:
            ticket = ticket_from(draw(st.integers(1, 2)), number)
            program.append(Instruction((), (draw(st.integers(1, 4)),), (ticket,)))
        elif kind == 3:
            tickets = (ticket_from(1, number), ticket_from(2, number))
            program.append(Instruction(draw(buffers), (draw(st.integers(1, 4)), ORDERED), tickets))
        else:
            program.append(Instruction(draw(buffers), draw(buffers)))
    return program


# What happens next is taken from a list of numbers, each modulo the number of things that can happen. It is long, as
# the average length of Hypothesis's lists is near the smallest: the faults hide in runs that park and drain in turns.
schedules = st.lists(st.integers(0, 59), min_size=30, max_size=60)


class Run:
    """An executor in miniature: it runs a program through a scoreboard as the schedule says, and keeps what came of it.

    An instruction computes when it is done, not when it is handed out: several are out at a time.
    """

    def __init__(self, board: Scoreboard | NaiveScoreboard, program: list[Instruction]) -> None:
        self.board = board
        self.program = program
        self.come = 0  # instructions that came to the worker
        self.to_arrive = [ticket for each in program for ticket in each.tickets]
        self.out: list[int] = []
        self.order: list[int] = []  # as they ran
        self.values: dict[int, int] = {}
        self.told: list[object] = []  # every answer of the scoreboard

    def possible(self, losses: bool) -> list[tuple[Callable[..., None], int]]:
        found: list[tuple[Callable[..., None], int]] = []
        if self.come < len(self.program):
            found += [(self.next_comes, 0)] * 3
        found += [(self.arrives, ticket) for ticket in self.to_arrive[:5]]
        found += [(self.finish, n) for n in self.out]
        found += [(self.hand_out, 0)] if self.board else []
        found += [(self.lose, 1)] if losses and any(peer_of(ticket) == 1 for ticket in self.to_arrive) else []
        return found

    def next_comes(self, _: int) -> None:
        each = self.program[self.come]
        self.come += 1
        blocked = self.board.blocked(each.reads, each.writes, each.tickets)
        self.told.append(("blocked", self.come, blocked))
        if blocked:
            self.board.park(self.come, each.reads, each.writes, each.tickets)
        else:
            self.board.take(each.tickets)
            self.compute(self.come)

    def arrives(self, ticket: int) -> None:
        self.to_arrive.remove(ticket)
        self.board.arrived(ticket)

    def lose(self, peer: int) -> None:
        self.told.append(("lost", self.board.lost(peer)))
        self.to_arrive = [ticket for ticket in self.to_arrive if peer_of(ticket) != peer]

    def hand_out(self, _: int) -> None:
        n = self.board.ready()
        self.told.append(("ready", n))
        if n is not None:
            self.out.append(n)

    def finish(self, n: int) -> None:
        self.out.remove(n)
        self.compute(n)
        self.board.done(n)

    def compute(self, n: int) -> None:
        self.order.append(n)
        self.values.update(results(n, self.program[n - 1], self.values))

    def go(self, schedule: list[int], losses: bool = False) -> None:
        """Follow the schedule, and then take whatever is possible until nothing is."""
        for number in schedule:
            if possible := self.possible(losses):
                action, argument = possible[number % len(possible)]
                action(argument)
                self.told.append((len(self.board), self.board.through(self.come), self.board.idle))
        while self.come < len(self.program):
            self.next_comes(0)
        while self.to_arrive:
            self.arrives(self.to_arrive[-1])
        while True:
            self.hand_out(0)
            if not self.out:
                return
            self.finish(self.out[0])


def results(n: int, instruction: Instruction, values: dict[int, int]) -> dict[int, int]:
    """What instruction `n` writes: a number that tells of the instruction and of all that it read."""
    seen = hash((n, tuple(values.get(buffer, 0) for buffer in instruction.reads)))
    return {buffer: hash((seen, buffer)) for buffer in instruction.writes}


def check(board: Scoreboard, program: list[Instruction], schedule: list[int], losses: bool = False) -> None:
    run = Run(board, program)
    run.go(schedule, losses)
    assert sorted(run.order) == list(range(1, len(program) + 1)), "not everything ran, once"
    at = {n: position for position, n in enumerate(run.order)}
    for m, first in enumerate(program, 1):
        for n, second in enumerate(program[m:], m + 1):
            if conflict(first.reads, first.writes, second.reads, second.writes):
                assert at[m] < at[n], f"{n} overtook {m}"
    expected: dict[int, int] = {}
    for n, each in enumerate(program, 1):
        expected.update(results(n, each, expected))
    assert run.values == expected
    assert not board
    assert board.through(len(program)) == len(program)
    assert board.idle, f"left behind: {contents(board)}"


@settings(max_examples=300, deadline=None)
@given(programs(), schedules, st.booleans())
def test_any_order_of_arrival_gives_the_values_of_program_order(
    program: list[Instruction], schedule: list[int], losses: bool
) -> None:
    check(Scoreboard(), program, schedule, losses)


@settings(max_examples=300, deadline=None)
@given(programs(), schedules, st.booleans())
def test_the_scoreboard_decides_as_its_naive_twin_does(
    program: list[Instruction], schedule: list[int], losses: bool
) -> None:
    clever, naive = Run(Scoreboard(), program), Run(NaiveScoreboard(), program)
    clever.go(schedule, losses)
    naive.go(schedule, losses)
    assert clever.told == naive.told
    assert clever.order == naive.order


# ---- planted faults: the check above can fail


class DropsAHazard(Scoreboard):
    __slots__ = ("dropped",)

    def __init__(self, dropped: str) -> None:
        super().__init__()
        self.dropped = dropped

    def _conflicts(self, reads: tuple[int, ...], writes: tuple[int, ...]) -> list[int]:
        found: list[int] = []
        for buffer in set(reads + writes) & self._accesses.keys():
            access = self._accesses[buffer]
            if buffer in reads and access.writer and self.dropped != "RAW":
                found.append(access.writer)
            if buffer in writes and self.dropped != "WAR":
                found += access.readers
            if buffer in writes and access.writer and self.dropped != "WAW":
                found.append(access.writer)
        return found


class LeaksReaders(Scoreboard):
    __slots__ = ()

    def _forget(self, n: int, parked: _Parked) -> None:
        super()._forget(n, parked)
        for buffer in parked.reads:
            self._access(buffer + 1000).readers.add(n)  # under a buffer of no program: the values stay right


class LeaksTickets(Scoreboard):
    __slots__ = ()

    def take(self, tickets: tuple[int, ...]) -> None:
        pass


class FreesDependentsAtHandOut(Scoreboard):
    __slots__ = ()

    def ready(self) -> int | None:
        n = super().ready()
        if n is not None:
            for m in self._parked[n].dependents:
                self._one_wait_less(m)
            self._parked[n].dependents.clear()
        return n


class WaitsForLostPeers(Scoreboard):
    __slots__ = ()

    def lost(self, peer: int) -> list[int]:
        return []


@pytest.mark.parametrize(
    "faulty",
    [
        *(pytest.param(lambda kind=kind: DropsAHazard(kind), id=f"drops-{kind}") for kind in ("RAW", "WAR", "WAW")),
        LeaksReaders,
        LeaksTickets,
        FreesDependentsAtHandOut,
        WaitsForLostPeers,
    ],
)
def test_a_planted_fault_is_caught(faulty: Callable[[], Scoreboard]) -> None:
    @settings(
        max_examples=1000,
        deadline=None,
        phases=[Phase.generate],
        derandomize=True,
        database=None,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    @given(programs(), schedules, st.booleans())
    def attempt(program: list[Instruction], schedule: list[int], losses: bool) -> None:
        check(faulty(), program, schedule, losses)

    with pytest.raises(AssertionError):
        attempt()


def test_an_intact_subclass_of_the_planted_kind_passes() -> None:
    """The control: it is the dropped hazard that is caught above, not the subclass."""

    @settings(max_examples=100, deadline=None)
    @given(programs(), schedules)
    def attempt(program: list[Instruction], schedule: list[int]) -> None:
        check(DropsAHazard("none"), program, schedule)

    attempt()
