"""What a session has to do again when a worker is lost: what it sent since the last checkpoint, and what is live in it.

Pure: it is told of batches, and folds them into the buffers that are there afterwards. `recovery.py` does the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from ..protocol.accesses import ASKED, accesses, outputs
from ..protocol.messages import CONTROLS, GENERAL, Control, Instruction
from ..protocol.recordings import Template, made, outputs_of
from ..protocol.specs import Spec
from ..protocol.specs import spec as spec_of
from .sites import Site


class Chunk(NamedTuple):
    """One batch of one lane, as it was sent."""

    lane: int
    first: int
    batch: list[Instruction]
    sites: list[Site | None]
    heavy: int  # bytes of large results

    @property
    def last(self) -> int:
        return self.first + max(len(self.sites), 1) - 1


class Asked(NamedTuple):
    """Stands for a spec that only the worker can tell: the answer to this question has it."""

    request: int
    place: int


class Live:
    """The buffers of one lane at one moment, and the recordings that its worker knows."""

    def __init__(self) -> None:
        self.specs: dict[int, Spec] = {}  # by id: all that instructions since the checkpoint may name
        self.since: dict[int, Spec] = {}  # those of them that are new since the last time a checkpoint was begun
        self.buffers: dict[int, Spec | Asked] = {}
        self.changed: set[int] = set()  # of the buffers: those made or written since the last checkpoint
        self.recordings: dict[int, Template] = {}
        self._writes: dict[int, tuple[int, ...]] = {}  # by recording: which of its bindings a run writes

    def fold(self, batch: Iterable[Instruction]) -> None:
        """Take in a batch."""
        buffers, changed, specs = self.buffers, self.changed, self.specs
        for instruction in batch:
            code = instruction[0]
            if code >= CONTROLS and code % 4 != GENERAL:
                out = instruction[1]
                buffers[out] = specs[instruction[2]]
                changed.add(out)
            elif code == Control.FREE:
                for buffer in instruction[1:]:
                    buffers.pop(buffer, None)
                    changed.discard(buffer)
            elif code == Control.RUN:
                self._fold_run(instruction)
            elif code == Control.DEFINE:
                self.recordings[instruction[1]] = Template(*instruction[2:])
            elif code == Control.FORGET:
                self.recordings.pop(instruction[1], None)
                self._writes.pop(instruction[1], None)
            elif code == ASKED:
                for place, (buffer, _) in enumerate(outputs(instruction)):
                    buffers[buffer] = Asked(instruction[4][3], place)
                    changed.add(buffer)
            else:
                for buffer, id in outputs(instruction):
                    buffers[buffer] = specs[id]
                if code >= CONTROLS or code in (Control.RECV, Control.UPLOAD):
                    changed.update(accesses(instruction)[1])

    def _fold_run(self, run: Instruction) -> None:
        _, recording, base, bindings, _, _ = run
        template = self.recordings[recording]
        specs = {each[0]: each for each in template.specs}
        kept = set(template.kept)
        for instruction in template.instructions:
            for slot, id in outputs_of(instruction):
                if slot in kept:
                    buffer = made(base, slot)
                    self.buffers[buffer] = spec_of(specs[id][1], np.dtype(specs[id][2]), specs[id][3])
                    self.changed.add(buffer)
        if recording not in self._writes:
            self._writes[recording] = tuple(sorted(set(_written_bindings(template))))
        for place in self._writes[recording]:
            binding = bindings[place]
            self.changed.add(binding if type(binding) is int else binding[0])


def _written_bindings(template: Template) -> Iterator[int]:
    for instruction in template.instructions:
        if instruction[0] != Control.FREE and instruction[0] >= CONTROLS:
            for slot in accesses(instruction)[1]:
                if slot < 0:
                    yield -1 - slot


def question_of(instruction: Instruction) -> int | None:
    """The number of the question that the instruction asks."""
    if instruction[0] in (Control.READ, Control.FENCE):
        return int(instruction[-1])
    return int(instruction[4][3]) if instruction[0] == ASKED else None


def without_answered(batch: list[Instruction], asked: Any) -> list[Instruction]:
    """The batch with nothing in the place of questions whose answers have come; `asked` has the others' numbers."""
    if not any(each[0] in (Control.READ, Control.FENCE) for each in batch):
        return batch
    return [
        (Control.FREE,) if each[0] in (Control.READ, Control.FENCE) and each[-1] not in asked else each
        for each in batch
    ]
