"""Which buffers an instruction reads and writes: all that the trackers on both sides know of it.

Pure, and ignorant of what operations mean: the operation table says which operands are written.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from .messages import (
    CONTROLS,
    GENERAL,
    NEXT_OUTPUT,
    SCALAR_LEFT,
    SCALAR_RIGHT,
    TICKET_BITS,
    Control,
    Instruction,
    Ref,
)
from .operations import BY_NAME, BY_NUMBER

Buffers = tuple[int, ...]
_NOTHING: Final[Buffers] = ()
_SLOT_BITS: Final = 15
_CONTROL_NAMES: Final = ("free", "send", "recv", "read", "upload", "fence", "define", "forget", "run", "keep")
MOST_ASKED: Final = 1 << 14  # results of one call
ASKED: Final = 4 * BY_NAME["asked"].number + GENERAL


def buffer_of(ref: Ref) -> int | None:
    """The buffer that a reference looks into; None for a scalar."""
    if type(ref) is int:
        return ref
    return ref[0] if len(ref) == 5 else None  # type: ignore[index, arg-type]


def _buffers(refs: tuple[Ref, ...]) -> Buffers:
    return tuple(buffer for ref in refs if (buffer := buffer_of(ref)) is not None)


def accesses(instruction: Instruction) -> tuple[Buffers, Buffers]:
    """(read, written) buffers. What is overwritten only in part is in both: its old value matters.

    Of a run only its recording can tell.
    """
    code = instruction[0]
    if code < CONTROLS:
        return _control_accesses(instruction)
    form = code % 4
    if form == GENERAL:
        _, _, _, operands, _, into = instruction
        operation = BY_NUMBER[code // 4]
        written = [operands[place] for place in operation.writes]
        if into is not None:
            written.append(into)
        reads = list(operands)
        if operation.name == "assign" and type(operands[0]) is int:
            del reads[0]  # all of it is overwritten
        if into is not None and type(into) is not int:
            reads.append(into)
        return _buffers(tuple(reads)), (*[buffer for buffer, _ in outputs(instruction)], *_buffers(tuple(written)))
    if form == SCALAR_RIGHT:
        return _buffers(instruction[3:4]), (instruction[1],)
    if form == SCALAR_LEFT:
        return _buffers(instruction[4:]), (instruction[1],)
    return _buffers(instruction[3:]), (instruction[1],)


def recording_buffer(recording: int) -> int:
    """The number of no buffer, which all that concerns a recording writes, so that it happens in order."""
    return -2 - recording


def spoiled(instruction: Instruction) -> Buffers:
    """The buffers that hold no good value if the instruction fails: those that it writes.

    But a generator stays as it was: what fails has not drawn from it.
    """
    _, writes = accesses(instruction)
    code = instruction[0]
    if code >= CONTROLS and code % 4 == GENERAL:
        operation = BY_NUMBER[code // 4]
        if operation.kind == "random" and operation.writes:
            generator = buffer_of(instruction[3][0])
            return tuple(buffer for buffer in writes if buffer != generator)
    return writes


def _control_accesses(instruction: Instruction) -> tuple[Buffers, Buffers]:
    match instruction[0]:
        case Control.FREE:
            return _NOTHING, instruction[1:]
        case Control.SEND | Control.READ | Control.KEEP:
            return _buffers(instruction[1:2]), _NOTHING
        case Control.RECV | Control.UPLOAD:
            return _NOTHING, (instruction[1],)
        case Control.DEFINE | Control.FORGET:
            return _NOTHING, (recording_buffer(instruction[1]),)
        case _:
            return _NOTHING, _NOTHING


def issue_number(instruction: Instruction) -> int:
    """A number that grows in the order of issue over all lanes; 0 for what makes and sends nothing.

    Buffers are numbered as operations are issued, even where one writes an older buffer. All that a run makes is
    numbered as the run is, and its place in the run follows (`recordings.py`).
    """
    code = instruction[0]
    if code >= CONTROLS or code in (Control.RECV, Control.UPLOAD):
        number = instruction[1]
    elif code == Control.SEND:
        number = instruction[2]
    else:
        return 0
    return int((number & ((1 << TICKET_BITS) - 1)) << _SLOT_BITS | number // NEXT_OUTPUT)


def operation_name(instruction: Instruction) -> str:
    """What an instruction is called: for a call by name that name."""
    if instruction[0] < CONTROLS:
        return _CONTROL_NAMES[instruction[0]]
    operation = BY_NUMBER[instruction[0] // 4]
    return operation.name if operation.kind not in ("named", "asked") else str(instruction[4][0])


def outputs(instruction: Instruction) -> Iterator[tuple[int, int]]:
    """The buffers that the instruction makes, each with the number of its spec; -1 where only the worker will know."""
    code = instruction[0]
    if code in (Control.RECV, Control.UPLOAD):
        yield instruction[1], instruction[2]
    elif code >= CONTROLS:
        if code == ASKED:
            if instruction[4][2] > MOST_ASKED:  # or a number in a message could keep us here for ever
                raise ValueError(f"{instruction[4][2]} results are more than one call has")
            yield from ((instruction[1] + place * NEXT_OUTPUT, -1) for place in range(instruction[4][2]))
        elif code % 4 == GENERAL:
            yield from ((instruction[1] + place * NEXT_OUTPUT, spec) for place, spec in enumerate(instruction[2]))
        else:
            yield instruction[1], instruction[2]
