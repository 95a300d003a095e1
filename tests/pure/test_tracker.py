"""The coordinator's gate and hazards: by example, against naive twins, and by the values of random runs."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from interlock.coordinator.tracker import Gate, Hazards, Instruction, Lost, TrackerError

from .contents import contents
from .naive_tracker import NaiveGate, NaiveHazards


def gate_of(*lanes: int) -> Gate:
    gate = Gate()
    for lane in lanes:
        gate.open(lane)
    return gate


# ---- the gate, by example


def test_what_waits_for_nothing_is_sent_at_once() -> None:
    gate = gate_of(1, 2)
    assert gate.submit(1, 1)
    assert gate.submit(1, 2)
    assert gate.submit(2, 1)
    assert not gate.idle
    assert gate.completed(1, 2) == []
    assert gate.completed(2, 1) == []
    assert gate.idle


def test_a_recv_is_held_until_its_send_is_completed() -> None:
    gate = gate_of(1, 2)
    gate.submit(1, 1)
    gate.submit(1, 2)
    assert not gate.submit(2, 1, ((1, 2),))
    assert gate.completed(1, 1) == []
    assert gate.completed(1, 2) == [(2, 1)]


def test_a_wait_that_is_over_holds_nothing() -> None:
    gate = gate_of(1, 2)
    gate.submit(1, 1)
    gate.completed(1, 1)
    assert gate.submit(2, 1, ((1, 1),))


def test_a_held_head_holds_its_lane_in_order() -> None:
    gate = gate_of(1, 2)
    gate.submit(1, 1)
    assert not gate.submit(2, 1, ((1, 1),))
    assert not gate.submit(2, 2)
    assert not gate.submit(2, 3)
    assert gate.completed(1, 1) == [(2, 1), (2, 2), (2, 3)]


def test_a_release_stops_at_the_next_that_must_wait() -> None:
    gate = gate_of(1, 2)
    gate.submit(1, 1)
    gate.submit(1, 2)
    gate.submit(2, 1, ((1, 1),))
    gate.submit(2, 2)
    gate.submit(2, 3, ((1, 2),))
    assert gate.completed(1, 1) == [(2, 1), (2, 2)]
    assert gate.completed(1, 2) == [(2, 3)]


def test_order_within_a_lane_is_wait_enough() -> None:
    gate = gate_of(1)
    gate.submit(1, 1)
    assert gate.submit(1, 2, ((1, 1),))


def test_a_lost_lane_holds_nobody_and_drops_what_it_held() -> None:
    gate = gate_of(1, 2, 3)
    gate.submit(3, 1)
    gate.submit(1, 1)
    gate.submit(1, 2, ((3, 1),))
    gate.submit(1, 3)
    gate.submit(2, 1, ((1, 3),))
    assert gate.lost(1) == Lost(send=[(2, 1)], dropped=[(1, 2), (1, 3)])
    assert gate.submit(2, 2, ((1, 2),)), "a later wait for it is over as well"
    assert gate.completed(1, 1) == [], "a late report"
    assert gate.lost(1) == Lost([], [])
    gate.completed(2, 2)
    gate.completed(3, 1)
    assert gate.idle


@pytest.mark.parametrize(
    ("impossible", "words"),
    [
        (lambda gate: gate.completed(1, 1), "after 2 were completed and 3 sent"),
        (lambda gate: gate.completed(1, 4), "after 2 were completed and 3 sent"),
        (lambda gate: gate.completed(2, 1), "after 0 were completed and 0 sent"),
        (lambda gate: gate.completed(9, 0), "it was never opened"),
        (lambda gate: gate.lost(9), "it was never opened"),
        (lambda gate: gate.submit(9, 1), "which was never opened"),
        (lambda gate: gate.submit(7, 1), "which was lost"),
        (lambda gate: gate.submit(1, 3), "after 3"),
        (lambda gate: gate.submit(1, 5), "after 3"),
        (lambda gate: gate.submit(1, 4, ((9, 1),)), "lane 9, which was never opened"),
        (lambda gate: gate.submit(1, 4, ((2, 3),)), "where 2 were submitted"),
        (lambda gate: gate.submit(1, 4, ((1, 4),)), "where 3 were submitted"),
        (lambda gate: gate.submit(1, 4, ((2, 0),)), "where 2 were submitted"),
        (lambda gate: gate.open(1), "opened before"),
        (lambda gate: gate.open(7), "opened before"),
    ],
)
def test_a_refused_fact_changes_nothing(impossible: Callable[[Gate], object], words: str) -> None:
    gate = gate_of(1, 2, 7)
    gate.lost(7)
    for n in (1, 2, 3):
        gate.submit(1, n)
    gate.completed(1, 2)
    gate.submit(2, 1, ((1, 3),))
    gate.submit(2, 2)
    before = contents(gate)
    with pytest.raises(TrackerError, match=words):
        impossible(gate)
    assert contents(gate) == before
    assert gate.completed(1, 3) == [(2, 1), (2, 2)]


# ---- hazards, by example


def test_a_write_waits_for_the_recvs_of_its_buffer_only() -> None:
    hazards = Hazards()
    hazards.sent(5, 2, 1)
    hazards.sent(6, 2, 2)
    hazards.sent(5, 3, 1)
    assert sorted(hazards.waits_of_write(5)) == [(2, 1), (3, 1)]
    assert hazards.waits_of_write(6) == ((2, 2),)
    assert hazards.waits_of_write(7) == ()


def test_a_completed_recv_is_forgotten() -> None:
    hazards = Hazards()
    hazards.sent(5, 2, 1)
    hazards.sent(6, 2, 4)
    hazards.completed(2, 3)
    assert hazards.waits_of_write(5) == ()
    assert hazards.waits_of_write(6) == ((2, 4),)
    hazards.completed(2, 4)
    assert hazards.idle


def test_a_buffer_sent_again_does_not_hide_what_completes_before_it() -> None:
    hazards = Hazards()
    hazards.sent(5, 2, 1)
    hazards.sent(6, 2, 2)
    hazards.sent(5, 2, 3)
    hazards.completed(2, 2)
    assert hazards.waits_of_write(6) == ()
    assert hazards.waits_of_write(5) == ((2, 3),)


def test_a_buffer_sent_again_and_again_keeps_one_recv_per_lane() -> None:
    hazards = Hazards()
    for n in range(1, 1001):
        hazards.sent(5, 2, n)
        hazards.sent(5, 3, n)
    assert len(repr(contents(hazards))) < 200
    hazards.completed(2, 999)
    assert sorted(hazards.waits_of_write(5)) == [(2, 1000), (3, 1000)]
    hazards.completed(2, 1000)
    hazards.freed(5)
    assert hazards.idle


def test_a_lost_lane_reads_nothing_any_more() -> None:
    hazards = Hazards()
    hazards.sent(5, 2, 1)
    hazards.sent(5, 3, 1)
    hazards.lost(2)
    assert hazards.waits_of_write(5) == ((3, 1),)


def test_recvs_are_noted_in_lane_order() -> None:
    hazards = Hazards()
    hazards.sent(5, 2, 3)
    before = contents(hazards)
    with pytest.raises(TrackerError, match="recv 3 of buffer 6 noted in lane 2 after recv 3"):
        hazards.sent(6, 2, 3)
    assert contents(hazards) == before


# ---- random runs: workers in miniature behind the gate


@dataclass(frozen=True)
class Issued:
    lane: int
    n: int
    kind: str  # compute, send, recv, free
    reads: tuple[int, ...]
    writes: tuple[int, ...]  # a recv writes its new buffer, and reads in place the one that was sent
    send: int  # of a recv: the number of its send in the lane of the buffer it reads
    source: int


# Long lists, as the average length of Hypothesis's lists is near the smallest.
programs = st.lists(st.integers(0, 999), min_size=15, max_size=40)
schedules = st.lists(st.integers(0, 59), min_size=15, max_size=40)  # each modulo what is possible, over and over


def program_of(lanes: int, choices: list[int]) -> list[Issued]:
    """A program from a list of numbers: each chooses a lane, a kind and buffers, of which every lane has few."""
    program: list[Issued] = []
    count = dict.fromkeys(range(lanes), 0)
    buffers: dict[int, list[int]] = {lane: [2 * lane + 1, 2 * lane + 2] for lane in range(lanes)}
    fresh = 100

    def issue(
        lane: int, kind: str, reads: tuple[int, ...], writes: tuple[int, ...], send: int = 0, source: int = 0
    ) -> None:
        count[lane] += 1
        program.append(Issued(lane, count[lane], kind, reads, writes, send, source))

    for choice in choices:
        lane, choice = choice % lanes, choice // lanes
        kind, choice = choice % 5, choice // 5
        own = buffers[lane]
        first = own[choice % len(own)]
        if kind <= 1:
            second = own[choice // 3 % len(own)]
            issue(lane, "compute", (second,) if choice % 2 else (second, first), (first,))
        elif kind <= 3:
            consumer = (lane + 1 + choice % (lanes - 1)) % lanes
            issue(lane, "send", (first,), ())
            fresh += 1
            issue(consumer, "recv", (), (fresh,), send=count[lane], source=first)
            buffers[consumer].append(fresh)
        elif len(own) > 1:
            issue(lane, "free", (), (first,))
            own.remove(first)
    return program


def execute(each: Issued, values: dict[int, int]) -> None:
    """Change `values` as a worker would; a recv reads the producer's memory in place, whatever is there by then."""
    if each.kind == "free":
        values[each.writes[0]] = -1
    elif each.kind != "send":
        seen = [values.get(buffer, 0) for buffer in (*each.reads, each.source)]
        values.update((buffer, hash((each.lane, each.n, buffer, *seen))) for buffer in each.writes)


class Workers:
    """A session and its workers: instructions leave when the gate lets them, and run in the order of their lane."""

    def __init__(self, lanes: int, program: list[Issued], gate: Gate, hazards: Hazards, forget_raw: bool) -> None:
        self.program = program
        self.gate = gate
        self.hazards = hazards
        self.forget_raw = forget_raw
        self.issued = 0
        self.owner: dict[int, int] = {2 * lane + i: lane for lane in range(lanes) for i in (1, 2)}
        self.sent: dict[int, list[Issued]] = {lane: [] for lane in range(lanes)}
        self.ran = dict.fromkeys(range(lanes), 0)
        self.reported = dict.fromkeys(range(lanes), 0)
        self.values: dict[int, int] = {}
        for lane in range(lanes):
            gate.open(lane)

    def possible(self) -> list[tuple[Callable[[int], None], int]]:
        found: list[tuple[Callable[[int], None], int]] = []
        found += [(self.issue, 0)] * 3 if self.issued < len(self.program) else []
        found += [(self.run, lane) for lane, sent in self.sent.items() if self.ran[lane] < len(sent)]
        found += [(self.report, lane) for lane, n in self.reported.items() if n < self.ran[lane]]
        return found

    def issue(self, _: int) -> None:
        each = self.program[self.issued]
        self.issued += 1
        waits = tuple(wait for buffer in each.writes for wait in self.hazards.waits_of_write(buffer))
        if each.kind == "recv":
            self.owner[each.writes[0]] = each.lane
            self.hazards.sent(each.source, each.lane, each.n)
            waits += () if self.forget_raw else ((self.owner[each.source], each.send),)
        if self.gate.submit(each.lane, each.n, waits):
            self.send(each.lane, each.n)
        if each.kind == "free":
            self.hazards.freed(each.writes[0])

    def send(self, lane: int, n: int) -> None:
        assert n == len(self.sent[lane]) + 1, f"lane {lane} was sent {n} out of order"
        self.sent[lane].append(next(each for each in self.program if (each.lane, each.n) == (lane, n)))

    def run(self, lane: int) -> None:
        execute(self.sent[lane][self.ran[lane]], self.values)
        self.ran[lane] += 1

    def report(self, lane: int) -> None:
        self.reported[lane] = self.ran[lane]
        self.hazards.completed(lane, self.ran[lane])
        for ready in self.gate.completed(lane, self.ran[lane]):
            self.send(*ready)


def check(
    lanes: int,
    choices: list[int],
    schedule: list[int],
    gate: Callable[[], Gate] = Gate,
    hazards: Callable[[], Hazards] = Hazards,
    forget_raw: bool = False,
) -> None:
    program = program_of(lanes, choices)
    workers = Workers(lanes, program, gate(), hazards(), forget_raw)
    for turn in itertools.count():  # each action brings something nearer to its end, so this ends
        if not (possible := workers.possible()):
            break
        action, argument = possible[schedule[turn % len(schedule)] % len(possible)]
        action(argument)
    assert sum(workers.ran.values()) == len(program), "not everything was sent"
    expected: dict[int, int] = {}
    for each in program:
        execute(each, expected)
    assert workers.values == expected
    assert workers.gate.idle
    assert workers.hazards.idle, f"left behind: {contents(workers.hazards)}"


@settings(max_examples=300, deadline=None)
@given(st.integers(2, 4), programs, schedules)
def test_any_legal_interleaving_equals_program_order(lanes: int, choices: list[int], schedule: list[int]) -> None:
    check(lanes, choices, schedule)


class ForgetsReaders(Hazards):
    __slots__ = ()

    def waits_of_write(self, buffer: int) -> tuple[Instruction, ...]:
        return ()


class KeepsOneLane(Hazards):
    __slots__ = ()

    def waits_of_write(self, buffer: int) -> tuple[Instruction, ...]:
        return super().waits_of_write(buffer)[:1]


class KeepsCompletedRecvs(Hazards):
    __slots__ = ()

    def completed(self, lane: int, through: int) -> None:
        pass


class ReleasesOneTooEarly(Gate):
    __slots__ = ()

    def _over(self, waits: tuple[Instruction, ...]) -> bool:
        return super()._over(tuple((lane, n - 1) for lane, n in waits))


class SkipsAhead(Gate):
    __slots__ = ()

    def submit(self, lane: int, n: int, waits: tuple[Instruction, ...] = ()) -> bool:
        return super().submit(lane, n, waits) or self._over(waits)


class ReleasesOneLane(Gate):
    __slots__ = ()

    def completed(self, lane: int, through: int) -> list[Instruction]:
        released = super().completed(lane, through)
        return [each for each in released if each[0] == released[0][0]]


def attempts(check_it: Callable[..., None], *strategies: st.SearchStrategy[object]) -> Callable[[], None]:
    """Run a check that is expected to fail, on the same examples every time."""

    @settings(
        max_examples=1000,
        deadline=None,
        phases=[Phase.generate],
        derandomize=True,
        database=None,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.tuples(*strategies))
    def attempt(arguments: tuple[object, ...]) -> None:
        check_it(*arguments)

    return attempt


@pytest.mark.parametrize(
    ("gate", "hazards", "forget_raw"),
    [
        pytest.param(Gate, Hazards, True, id="drops-RAW"),
        pytest.param(Gate, ForgetsReaders, False, id="drops-WAR"),
        (Gate, KeepsOneLane, False),
        (Gate, KeepsCompletedRecvs, False),
        (ReleasesOneTooEarly, Hazards, False),
        (SkipsAhead, Hazards, False),
        (ReleasesOneLane, Hazards, False),
    ],
)
def test_a_planted_fault_in_the_gate_is_caught(
    gate: Callable[[], Gate], hazards: Callable[[], Hazards], forget_raw: bool
) -> None:
    def faulty(lanes: int, choices: list[int], schedule: list[int]) -> None:
        check(lanes, choices, schedule, gate, hazards, forget_raw)

    with pytest.raises(AssertionError):
        attempts(faulty, st.integers(2, 4), programs, schedules)()


# ---- the naive twins


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(*[st.integers(0, 11)] * 4), min_size=15, max_size=40))
def test_the_gate_decides_as_its_naive_twin_does(facts: list[tuple[int, int, int, int]]) -> None:
    lanes = (1, 2, 3)
    gate, naive = gate_of(*lanes), NaiveGate()
    for lane in lanes:
        naive.open(lane)
    submitted, sent, done = (dict.fromkeys(lanes, 0) for _ in range(3))
    gone: set[int] = set()

    def note(released: list[Instruction], expected: list[Instruction]) -> None:
        assert sorted(released) == sorted(expected)
        for lane, n in released:
            assert n == sent[lane] + 1, "not in the order of its lane"
            sent[lane] = n

    for kind, which, a, b in facts:
        lane = lanes[which % 3]
        if kind <= 5 and lane not in gone:
            submitted[lane] += 1
            n = submitted[lane]
            named = ((lanes[a % 3], max(1, submitted[lanes[a % 3]] - a // 3)), (lanes[b % 3], b // 3))
            waits = tuple((other, m) for other, m in named if 1 <= m <= submitted[other] - (other == lane))
            now = gate.submit(lane, n, waits)
            assert now == naive.submit(lane, n, waits)
            note([(lane, n)] if now else [], [(lane, n)] if now else [])
        elif kind <= 10:
            if lane not in gone:
                done[lane] += (sent[lane] - done[lane] + a % 2) // 2
            note(gate.completed(lane, done[lane]), naive.completed(lane, done[lane]))
        elif kind == 11:
            gone.add(lane)
            send, dropped = gate.lost(lane)
            expected, expected_dropped = naive.lost(lane)
            note(send, expected)
            assert dropped == expected_dropped
        assert gate.idle == naive.idle


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 9), st.integers(1, 3), st.integers(1, 4), st.integers(1, 3)), min_size=15, max_size=40
    )
)
def test_hazards_answer_as_their_naive_twin_does(facts: list[tuple[int, int, int, int]]) -> None:
    hazards, naive = Hazards(), NaiveHazards()
    noted, done = (dict.fromkeys((1, 2, 3), 0) for _ in range(2))
    gone: set[int] = set()
    for kind, lane, buffer, step in facts:
        if kind <= 4 and lane not in gone:
            noted[lane] += step
            hazards.sent(buffer, lane, noted[lane])
            naive.sent(buffer, lane, noted[lane])
        elif kind <= 7:
            done[lane] = min(noted[lane], done[lane] + step)
            hazards.completed(lane, done[lane])
            naive.completed(lane, done[lane])
        elif kind == 8:
            hazards.freed(buffer)
            naive.freed(buffer)
        else:
            gone.add(lane)
            hazards.lost(lane)
            naive.lost(lane)
        for each in (1, 2, 3, 4):
            assert sorted(hazards.waits_of_write(each)) == sorted(naive.waits_of_write(each))
        assert hazards.idle == naive.idle
