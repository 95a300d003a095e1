"""Templates and runs: what is rewritten with slots is, bound again, the very instruction."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from interlock.protocol.accesses import accesses, issue_number
from interlock.protocol.messages import (
    ARRAYS,
    GENERAL,
    NEXT_OUTPUT,
    SCALAR_LEFT,
    SCALAR_RIGHT,
    TICKET_BITS,
    Control,
    Instruction,
    Ref,
)
from interlock.protocol.operations import OPERATIONS
from interlock.protocol.recordings import MOST_MADE, NUMBER, Binding, bind, bound, made, refs_of, rewritten

BASE = 1000
GIVEN: tuple[Binding, ...] = (7, (8, 64), 9, (10, 0))  # what a run is given: whole buffers, and parts of some
NUMBERS = ((0.5,), ("<f4", b"\0\0\0\0"))
PLAIN = [row for row in OPERATIONS if row.plain]
WRITING = [row for row in OPERATIONS if row.writes]

slots = st.integers(1, 9)
tails = st.tuples(st.integers(0, 99), st.just((2, 3)), st.just((24, 8)), st.just("<f8"))
made_buffers = slots.map(lambda slot: made(BASE, slot))
wholes = made_buffers | st.sampled_from([7, 9])
views = st.tuples(st.sampled_from([7, 8, 9, 10]) | made_buffers, tails).map(
    lambda pair: (pair[0], pair[1][0] + (64 if pair[0] == 8 else 0), *pair[1][1:])
)
arrays: st.SearchStrategy[Ref] = wholes | views
scalars: st.SearchStrategy[Ref] = st.sampled_from([(1,), (2.5,), (True,), ("<i8", b"\0" * 8)])
tickets = st.tuples(st.integers(0, 200), slots).map(lambda pair: (pair[0] << TICKET_BITS) + made(BASE, pair[1]))


def compute(form: int) -> st.SearchStrategy[Instruction]:
    codes = st.sampled_from(PLAIN).map(lambda row: 4 * row.number + form)
    if form == ARRAYS:
        return st.tuples(codes, made_buffers, st.integers(0, 99), wholes, wholes)
    number = st.sampled_from([1, 2.5])
    parts = (number, wholes) if form == SCALAR_LEFT else (wholes, number)
    return st.tuples(codes, made_buffers, st.integers(0, 99), *parts)


general = st.tuples(
    st.sampled_from(WRITING).map(lambda row: 4 * row.number + GENERAL),
    made_buffers,
    st.lists(st.integers(0, 99), max_size=2).map(tuple),
    st.lists(arrays | scalars, min_size=2, max_size=4).map(tuple),
    st.sampled_from([(), (None, (1, 2)), ("...",)]),
    st.none() | arrays,
)
sends = st.tuples(st.just(Control.SEND), arrays, tickets, st.integers(0, 200))
recvs = st.tuples(st.just(Control.RECV), made_buffers, st.integers(0, 99), tickets, st.integers(0, 200))
frees = st.lists(made_buffers, min_size=1, max_size=4).map(lambda buffers: (Control.FREE, *buffers))
instructions: st.SearchStrategy[Instruction] = st.one_of(
    compute(ARRAYS), compute(SCALAR_LEFT), compute(SCALAR_RIGHT), general, sends, recvs, frees
)


def slot_of(buffer: int) -> int:
    return (buffer - BASE) // NEXT_OUTPUT


def template_ref(ref: Ref) -> Ref:
    """The reference with a slot in the place of the buffer."""
    if type(ref) is int:
        return slot_of(ref) if ref >= NEXT_OUTPUT else -1 - GIVEN.index(ref)
    if len(ref) != 5:  # type: ignore[arg-type]
        return ref
    buffer, offset, *rest = ref  # type: ignore[misc]
    if buffer >= NEXT_OUTPUT:
        return (slot_of(buffer), offset, *rest)
    place = next(
        n for n, binding in enumerate(GIVEN) if buffer in (binding, binding[0] if type(binding) is tuple else 0)
    )
    binding = GIVEN[place]
    return (-1 - place, offset - (binding[1] if type(binding) is tuple else 0), *rest)


def template(instruction: Instruction) -> Instruction:
    return rewritten(instruction, template_ref, slot_of, lambda ticket: ticket - BASE)


@given(instructions)
def test_to_bind_what_was_rewritten_gives_the_instruction(instruction: Instruction) -> None:
    made_of = template(instruction)
    assert bind(made_of, BASE, GIVEN, NUMBERS) == instruction
    assert made_of != instruction


@given(instructions, st.integers(2, 1 << 39))
def test_another_run_differs_in_its_own_buffers_and_tickets_alone(instruction: Instruction, base: int) -> None:
    one, two = (bind(template(instruction), each, GIVEN, NUMBERS) for each in (BASE, base))
    moved = rewritten(
        one,
        lambda ref: shifted(ref, base),
        lambda buffer: buffer - BASE + base,
        lambda ticket: ticket - BASE + base,
    )
    assert moved == two


def shifted(ref: Ref, base: int) -> Ref:
    if type(ref) is int:
        return ref if ref < NEXT_OUTPUT else ref - BASE + base
    if len(ref) == 5 and ref[0] >= NEXT_OUTPUT:  # type: ignore[arg-type, index]
        return (ref[0] - BASE + base, *ref[1:])  # type: ignore[index]
    return ref


@given(instructions)
def test_references_are_told_in_order_and_what_is_written_in_place_last(instruction: Instruction) -> None:
    found = refs_of(instruction)
    code = instruction[0]
    if code == Control.SEND:
        assert found == (instruction[1],)
    elif code in (Control.RECV, Control.FREE):
        assert found == ()
    elif code % 4 == GENERAL:
        into = () if instruction[5] is None else (instruction[5],)
        assert found == (*instruction[3], *into)
    else:
        wanted = {ARRAYS: instruction[3:], SCALAR_RIGHT: instruction[3:4], SCALAR_LEFT: instruction[4:]}[code % 4]
        assert found == wanted


def collected(change: Callable[[Instruction], Any], instruction: Instruction) -> Any:
    return change(bind(template(instruction), BASE, GIVEN, NUMBERS))


@given(instructions)
def test_a_run_reads_and_writes_what_its_instructions_do(instruction: Instruction) -> None:
    assert collected(accesses, instruction) == accesses(instruction)


def test_numbers_come_from_the_run() -> None:
    assert bound((NUMBER, 1, 0), BASE, GIVEN, NUMBERS) == NUMBERS[1]
    code = 4 * PLAIN[-1].number + GENERAL
    instruction = (code, 3, (5,), (-1, (NUMBER, 0, 0)), (), (-2, 8, (2,), (8,), "<f8"))
    wanted = (code, made(BASE, 3), (5,), (7, (0.5,)), (), (8, 72, (2,), (8,), "<f8"))
    assert bind(instruction, BASE, GIVEN, NUMBERS) == wanted


@given(st.integers(1, (1 << 40) - 1), st.integers(0, 200), slots, slots)
def test_runs_are_numbered_in_the_order_of_issue(base: int, lane: int, one: int, two: int) -> None:
    def recv(base: int, slot: int) -> Instruction:
        return (Control.RECV, made(base, slot), 1, (lane << TICKET_BITS) + made(base, slot), lane)

    def send(base: int, slot: int) -> Instruction:
        return (Control.SEND, 5, (lane << TICKET_BITS) + made(base, slot), 1)

    assert issue_number(send(base, one)) == issue_number(recv(base, one))
    assert (issue_number(recv(base, one)) < issue_number(recv(base, two))) == (one < two)
    if base > 1:
        assert issue_number(recv(base - 1, one)) < issue_number((Control.UPLOAD, base, 1, b""))
        assert issue_number((Control.UPLOAD, base - 1, 1, b"")) < issue_number(send(base, one))
    assert issue_number(recv((1 << 40) - 1, MOST_MADE)) < 1 << 63
    assert made((1 << 40) - 1, MOST_MADE) < 1 << 63
    assert issue_number((Control.FREE, 5)) == 0
