"""Which instruction a worker was at when it was lost, in words: the operation, its operands' specs, the user's line.

Looked up only when a worker has been lost, from what the lane remembers of what it sent. Of an operand that is a whole
buffer an instruction has the number alone; its spec is found where the buffer is made, or in a handle of it.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from ..protocol.accesses import operation_name, outputs
from ..protocol.messages import CONTROLS, GENERAL, Control, Instruction, Ref
from ..protocol.page import RUNNING, cell
from ..protocol.recordings import outputs_of, refs_of
from .sites import Site, place

if TYPE_CHECKING:
    from .lane import Lane

_SWIFT: Final = (Control.FREE, Control.DEFINE, Control.FORGET)
_NAMED: Final = 6  # operands at the most


class Unfinished(NamedTuple):
    """The instruction that a worker was at."""

    words: str  # operation and operands
    site: Site | None
    others: int  # instructions behind it that left in the same message: it may have been at any of them


def unfinished(lane: Lane) -> Unfinished | None:
    """The first instruction that was sent and has not finished; None if all have. The caller holds the lock.

    The worker notes now and then which one it is at: that may be further on.
    """
    page = lane.session.progress
    n = max(lane.through() + 1, page[cell(page, RUNNING, lane.index)])
    for first, sites, batch, _ in lane.log:
        if not first <= n < first + len(sites):
            continue
        at, last = first, first + len(sites) - 1
        for instruction in batch:
            count = instruction[5] if instruction[0] == Control.RUN else 1
            if n < at + count:
                if instruction[0] not in _SWIFT or n == last:
                    return Unfinished(_words(lane, instruction, n - at), sites[n - first], last - n)
                n += 1  # it takes no time, and hardly ends anything
            at += count
    return None


def told(found: Unfinished | None) -> str:
    """For the text of an error: behind what became of the worker."""
    if found is None:
        return ""
    file, line, _ = place(found.site)
    more = f" or one of the {found.others} instructions behind it" if found.others else ""
    return f" while running {found.words} issued at {file}:{line}{more}"


def _words(lane: Lane, instruction: Instruction, step: int) -> str:
    """The operation and its operands; of a run, those of its instruction number `step`."""
    spec: Callable[[Ref], str]
    captured = ""
    if instruction[0] == Control.RUN:
        part = lane.recordings.get(instruction[1])
        if part is None:
            return "a captured function"
        template = part.template
        specs = {id: _spec(dtype, shape) for id, shape, dtype, _ in template.specs}
        made = {slot: specs[id] for each in template.instructions for slot, id in outputs_of(each)}

        def spec(ref: Ref) -> str:
            if type(ref) is not int:
                return _view(ref)
            return made.get(ref, "array") if ref > 0 else f"array {template.given[-1 - ref]}"

        instruction, captured = template.instructions[step], " of a captured function"
    else:

        def spec(ref: Ref) -> str:
            return _of_buffer(lane, ref) if type(ref) is int else _view(ref)

    name = operation_name(instruction)
    operands = [spec(ref) for ref in _operands(instruction)]
    shown = ", ".join(operands[:_NAMED]) + (", ..." if len(operands) > _NAMED else "")
    return f"`{name}` ({shown}){captured}"


def _operands(instruction: Instruction) -> tuple[Ref, ...]:
    if instruction[0] == Control.READ:
        return (instruction[1],)
    if instruction[0] == Control.UPLOAD or instruction[0] in (Control.FENCE, Control.FREE):
        return ()
    if Control.DEFINE <= instruction[0] < CONTROLS:
        return ()
    if instruction[0] >= CONTROLS and instruction[0] % 4 == GENERAL:
        return (*instruction[3], *(() if instruction[5] is None else (instruction[5],)))
    return refs_of(instruction)


def _spec(dtype: str, shape: tuple[int, ...]) -> str:
    return f"{np.dtype(dtype)} {shape}"


def _view(ref: Any) -> str:
    """Of a view, or of a number."""
    if len(ref) == 5:
        return _spec(ref[4], ref[2])
    return repr(ref[0]) if len(ref) == 1 else "a number"


def _of_buffer(lane: Lane, buffer: int) -> str:
    """The spec of a whole buffer."""
    for made, id in _made(lane):
        if made == buffer and id in lane.known:
            spec = lane.known[id]
            return _spec(spec.dtype.str, spec.shape)
    from .issue import Handle  # here, as it imports lane.py

    for each in gc.get_objects():  # slow, but a worker is lost seldom, and nothing is noted for it as long as it lives
        if isinstance(each, Handle) and getattr(each, "_ref", None) == buffer and each._lane is lane:
            return _spec(each._spec.dtype.str, each._spec.shape)
    return "array"


def _made(lane: Lane) -> Iterator[tuple[int, int]]:
    for _, _, batch, _ in (*lane.past, *lane.log):
        for instruction in batch:
            if instruction[0] != Control.RUN:
                yield from outputs(instruction)
