"""Chains of elementwise operations on large arrays, to be carried out a stretch of rows at a time.

Five operations one after the other on arrays larger than the cache each read and write all of main memory's copy; row
by row they find in the cache what the one before has left there. The bits are the same: only operations are taken
whose every element is rounded by itself (no exp, no sums), on operands that line up row by row.

Pure: instructions with slots in, positions out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from ..protocol.messages import CONTROLS, GENERAL, Instruction, Ref
from ..protocol.operations import BY_NUMBER
from ..protocol.recordings import refs_of, slot_of

Shape = tuple[int, ...]

LARGE: Final = 512 * 1024  # bytes of a result from which on it pays
STRETCH: Final = 128 * 1024  # bytes of a result that are computed at a time
_NAMES: Final = (
    "add subtract multiply divide maximum minimum fmax fmin negative positive absolute sign square sqrt reciprocal "
    "equal not_equal less less_equal greater greater_equal logical_and logical_or logical_xor logical_not "
    "bitwise_and bitwise_or bitwise_xor invert copysign floor ceil trunc rint isnan isinf isfinite"
)
_EXACT: Final = frozenset(_NAMES.split())


class Chain(NamedTuple):
    """Instructions `start` to `stop` (without it), of which every result has the same first extent."""

    start: int
    stop: int
    rows: int  # that are computed at a time


def find_chains(
    instructions: Sequence[Instruction], shape_of: Callable[[Ref], tuple[Shape, int] | None]
) -> list[Chain]:
    """The chains among a lane's instructions, as long as they can be.

    Args:
        instructions: of a template, before frees are put in.
        shape_of: (shape, bytes of an element) of what a reference names; None for a scalar.
    """
    found: list[Chain] = []
    at = 0
    while at < len(instructions):
        stop = _stop(instructions, at, shape_of)
        if stop - at >= 2:
            shape, itemsize = _result(instructions[at], shape_of)
            row = itemsize
            for extent in shape[1:]:
                row *= extent
            found.append(Chain(at, stop, max(STRETCH // row, 1)))
        at = max(stop, at + 1)
    return found


def _stop(instructions: Sequence[Instruction], start: int, shape_of: Callable[[Ref], tuple[Shape, int] | None]) -> int:
    """Behind the last instruction that can go on the chain from `start`."""
    written: dict[int, Ref] = {}  # by slot, the one reference by which it is known in the chain
    named: dict[int, set[Ref]] = {}
    shape: Shape = ()
    for at in range(start, len(instructions)):
        instruction = instructions[at]
        if not _is_exact(instruction):
            return at
        result, itemsize = _result(instruction, shape_of)
        nbytes = itemsize
        for extent in result:
            nbytes *= extent
        if not result or nbytes < LARGE or (shape and result != shape):
            return at
        shape = result
        target = _target(instruction)
        refs = [ref for ref in refs_of(instruction) if shape_of(ref) is not None]
        for ref in (*refs, target):
            named.setdefault(slot_of(ref), set()).add(ref)
        written[slot_of(target)] = target
        for slot, ref in written.items():
            if named[slot] != {ref} or (shape_of(ref) or (None,))[0] != shape:
                return at
    return len(instructions)


def _is_exact(instruction: Instruction) -> bool:
    code = instruction[0]
    if code < CONTROLS or BY_NUMBER[code // 4].name not in _EXACT:
        return False
    return code % 4 != GENERAL or len(instruction[2]) == 1 or instruction[5] is not None


def _target(instruction: Instruction) -> Ref:
    """What an instruction writes: its new slot, or the target in place."""
    if instruction[0] % 4 == GENERAL and instruction[5] is not None:
        target: Ref = instruction[5]
        return target
    return int(instruction[1])


def _result(instruction: Instruction, shape_of: Callable[[Ref], tuple[Shape, int] | None]) -> tuple[Shape, int]:
    found = shape_of(_target(instruction))
    assert found is not None
    return found
