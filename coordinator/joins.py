"""Parts of a concatenation written where they will lie in it, instead of being copied there.

Where a recording computes arrays only to concatenate them, the joined array is made first, each part becomes a view
of it, written in place, and nothing is left of the concatenation. The bits are the same: an operation computes the
same into any memory of the same layout.

Pure: a lane's instructions in, and out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from ..protocol.messages import CONTROLS, GENERAL, SCALAR_LEFT, SCALAR_RIGHT, Control, Instruction, Ref
from ..protocol.operations import BY_NAME, BY_NUMBER
from ..protocol.recordings import refs_of, rewritten, slot_of
from ..protocol.specs import Spec

_CONCATENATE: Final = 4 * BY_NAME["concatenate"].number + GENERAL
_EMPTY: Final = 4 * BY_NAME["empty"].number + GENERAL


class Join(NamedTuple):
    """A concatenation that can go: where it stands, what it makes, and where in that each part begins."""

    at: int
    slot: int
    first: int  # the first instruction that makes a part
    parts: dict[int, int]  # slot -> offset in bytes


def find_joins(instructions: Sequence[Instruction], specs: dict[int, Spec], kept: set[int]) -> list[Join]:
    """The concatenations whose parts can be written in place.

    Args:
        instructions: of a template, before frees are put in.
        specs: by id.
        kept: slots that are there after the run.
    """
    made_at: dict[int, int] = {}
    last: dict[int, int] = {}
    sent: set[int] = set()
    for at, instruction in enumerate(instructions):
        for ref in refs_of(instruction):
            slot = slot_of(ref)
            last[slot] = at
            if instruction[0] == Control.SEND:
                sent.add(slot)
        if instruction[0] >= CONTROLS and _can_write_in_place(instruction):
            made_at[instruction[1]] = at
    found: list[Join] = []
    taken: set[int] = set()
    for at, instruction in enumerate(instructions):
        if instruction[0] != _CONCATENATE or instruction[5] is not None:
            continue
        parts = instruction[3]
        usable = all(
            type(part) is int
            and part in made_at
            and last[part] == at
            and part not in kept
            and part not in sent
            and part not in taken
            for part in parts
        )
        if not usable or len(set(parts)) < len(parts):
            continue
        offsets = _offsets(
            [specs[_spec_id(instructions[made_at[part]])] for part in parts], specs[instruction[2][0]], instruction[4]
        )
        if offsets is not None:
            taken.update(parts)
            first = min(made_at[part] for part in parts)
            found.append(Join(at, instruction[1], first, dict(zip(parts, offsets, strict=True))))
    return found


def _can_write_in_place(instruction: Instruction) -> bool:
    operation = BY_NUMBER[instruction[0] // 4]
    one = instruction[0] % 4 != GENERAL or (len(instruction[2]) == 1 and instruction[5] is None)
    return one and (operation.plain or (operation.kind == "call" and operation.outputs == 1))


def _spec_id(instruction: Instruction) -> int:
    return int(instruction[2][0] if instruction[0] % 4 == GENERAL else instruction[2])


def _offsets(parts: list[Spec], whole: Spec, static: tuple[object, ...]) -> list[int] | None:
    """Where each part begins; None if one would not lie there as it lies by itself."""
    axis = static[0]
    if not isinstance(axis, int) or not whole.ndim or any(extent != 1 for extent in whole.shape[: axis % whole.ndim]):
        return None
    offsets, offset = [], 0
    for part in parts:
        alike = all(
            mine == its or extent == 1
            for mine, its, extent in zip(part.strides, whole.strides, part.shape, strict=True)
        )
        if part.dtype != whole.dtype or not alike or not part.size:
            return None
        offsets.append(offset)
        offset += part.nbytes
    return offsets if whole.strides == _c_strides(whole) else None


def _c_strides(spec: Spec) -> tuple[int, ...]:
    strides, step = [], spec.dtype.itemsize
    for extent in reversed(spec.shape):
        strides.append(step)
        step *= extent
    return tuple(reversed(strides))


def without(join: Join, instructions: Sequence[Instruction], specs: dict[int, Spec]) -> list[Instruction | None]:
    """The instructions without the concatenation: one longer, the new array's making where the first part is made.

    In the concatenation's own place is None.
    """
    whole = specs[instructions[join.at][2][0]]
    own = {part: specs[_spec_id(each)] for each in instructions for part in join.parts if _makes(each, part)}

    def ref(operand: Ref) -> Ref:
        slot = slot_of(operand)
        if slot not in join.parts:
            return operand
        offset = join.parts[slot]
        if type(operand) is int:
            spec = own[slot]
            return (join.slot, offset, spec.shape, spec.strides, spec.dtype.str)
        return (join.slot, offset + operand[1], *operand[2:])  # type: ignore[index]

    made: list[Instruction | None] = []
    for at, instruction in enumerate(instructions):
        if at == join.first:
            made.append((_EMPTY, join.slot, (whole.id,), (), (whole.shape, whole.dtype.str, "C"), None))
        if at == join.at:
            made.append(None)
            continue
        changed = rewritten(instruction, ref, int, int)
        if instruction[0] >= CONTROLS and _can_write_in_place(instruction) and instruction[1] in join.parts:
            changed = _in_place(changed, ref(instruction[1]))
        made.append(changed)
    return made


def _makes(instruction: Instruction, slot: int) -> bool:
    return instruction[0] >= CONTROLS and _can_write_in_place(instruction) and instruction[1] == slot


def _in_place(instruction: Instruction, into: Ref) -> Instruction:
    """The same operation, writing to a view."""
    code, form = instruction[0] - instruction[0] % 4 + GENERAL, instruction[0] % 4
    if form == GENERAL:
        return (code, 0, (), instruction[3], instruction[4], into)
    _, _, _, *operands = instruction
    if form == SCALAR_RIGHT:
        operands[1] = (operands[1],)
    elif form == SCALAR_LEFT:
        operands[0] = (operands[0],)
    return (code, 0, (), tuple(operands), (), into)
