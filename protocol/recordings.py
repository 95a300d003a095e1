"""A recording of one lane: instructions with slots in place of buffers, and how a run makes real ones of them.

A slot names a buffer relative to the run. Those that the run is given (its inputs) are negative: -1 is the first of
`bindings`, -2 the second, and so on. Those that it makes are positive, numbered over all lanes, and so are the
tickets between them; slot 0 is no buffer: what writes in place has it where others have what they make. A view of a
slot has its offset from where the binding begins. A number that changes from run to run is the reference
(NUMBER, its place among the run's numbers, 0).

Pure. What a run of a recording does is by definition what the instructions that `bind` gives do, in their order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from .messages import CONTROLS, GENERAL, NEXT_OUTPUT, SCALAR_LEFT, SCALAR_RIGHT, Control, Instruction, Ref

NUMBER: Final = "number"
MOST_MADE: Final = (1 << 15) - 1  # buffers that one run may make: their numbers have this much room in 64 bits

Binding = int | tuple[int, int]  # a whole buffer, or (buffer, offset): what lies from there on


class Template(NamedTuple):
    """What one lane does in each run."""

    specs: tuple[tuple[Any, ...], ...]  # (id, shape, dtype, strides) of all that is made
    given: tuple[tuple[int, ...], ...]  # the shapes of the bindings that a run gives
    instructions: tuple[Instruction, ...]
    kept: tuple[int, ...]  # slots that are there after the run
    places: tuple[tuple[int, int], ...]  # (slot, offset): temporaries that lie in memory planned for them
    planned: int  # bytes of that memory
    # (start, stop, rows): elementwise instructions in a row, which may be carried out so many rows at a time.
    chains: tuple[tuple[int, int, int], ...]
    inner: tuple[int, ...]  # slots that only a chain uses: so many rows of them are planned for
    # (slot, input): a kept result that may take the memory of an input, if nobody else needs that any more.
    donated: tuple[tuple[int, int], ...]


def made(base: int, slot: int) -> int:
    """The buffer that slot `slot` of the run with this base is."""
    return base + slot * NEXT_OUTPUT


def rewritten(
    instruction: Instruction,
    ref: Callable[[Ref], Ref],
    buffer: Callable[[int], int],
    ticket: Callable[[int], int],
) -> Instruction:
    """The instruction with every reference to an operand, every buffer that it makes or frees, every ticket changed."""
    code = instruction[0]
    if code == Control.SEND:
        return (code, ref(instruction[1]), ticket(instruction[2]), instruction[3])
    if code == Control.RECV:
        return (code, buffer(instruction[1]), instruction[2], ticket(instruction[3]), instruction[4])
    if code == Control.FREE:
        return (code, *[buffer(each) for each in instruction[1:]])
    form = code % 4
    if form == GENERAL:
        _, out, specs, operands, static, into = instruction
        into = None if into is None else ref(into)
        return (code, buffer(out), specs, tuple([ref(each) for each in operands]), static, into)
    _, out, spec, *operands = instruction
    if form == SCALAR_RIGHT:
        return (code, buffer(out), spec, ref(operands[0]), operands[1])
    if form == SCALAR_LEFT:
        return (code, buffer(out), spec, operands[0], ref(operands[1]))
    return (code, buffer(out), spec, *[ref(each) for each in operands])


def bound(ref: Ref, base: int, bindings: tuple[Binding, ...], numbers: tuple[Any, ...]) -> Ref:
    """The real reference behind one with a slot."""
    if type(ref) is int:
        if ref > 0:
            return base + ref * NEXT_OUTPUT
        whole = bindings[-1 - ref]
        assert type(whole) is int
        return whole
    if len(ref) == 5:  # type: ignore[arg-type]
        slot, offset, shape, strides, dtype = ref  # type: ignore[misc]
        if slot > 0:
            return (base + slot * NEXT_OUTPUT, offset, shape, strides, dtype)
        binding = bindings[-1 - slot]
        if type(binding) is int:
            return (binding, offset, shape, strides, dtype)
        return (binding[0], binding[1] + offset, shape, strides, dtype)
    if len(ref) == 3:  # type: ignore[arg-type]
        found: Ref = numbers[ref[1]]  # type: ignore[index]
        return found
    return ref


def bind(instruction: Instruction, base: int, bindings: tuple[Binding, ...], numbers: tuple[Any, ...]) -> Instruction:
    """A template's instruction as one run carries it out."""
    return rewritten(
        instruction,
        lambda ref: bound(ref, base, bindings, numbers),
        lambda slot: base + slot * NEXT_OUTPUT,
        lambda ticket: base + ticket,
    )


def slot_of(ref: Ref) -> int:
    """The slot that a reference looks into; 0 for a scalar."""
    if type(ref) is int:
        return ref
    return ref[0] if len(ref) == 5 else 0  # type: ignore[index, arg-type]


def refs_of(instruction: Instruction) -> tuple[Ref, ...]:
    """The references to operands, the target of an in-place operation last; bare scalars are none of them."""
    found: list[Ref] = []

    def note(ref: Ref) -> Ref:
        found.append(ref)
        return ref

    rewritten(instruction, note, int, int)
    if instruction[0] >= CONTROLS and instruction[0] % 4 == GENERAL and instruction[5] is not None:
        found.append(found.pop(0))  # it is rewritten first
    return tuple(found)


def outputs_of(instruction: Instruction) -> list[tuple[int, int]]:
    """(slot, spec) of what an instruction of a template makes."""
    code = instruction[0]
    if code == Control.RECV:
        return [(instruction[1], instruction[2])]
    if code < CONTROLS:
        return []
    if code % 4 == GENERAL:
        return [(instruction[1] + place, id) for place, id in enumerate(instruction[2])]
    return [(instruction[1], instruction[2])]
