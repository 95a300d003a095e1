"""nan="flag": finds the operations that made a NaN or an infinity out of operands without one.

Each result is looked through where it was made, right after it was. Buffers in which something was found are
remembered, so that what only inherits it is no news. Knows neither queues nor the order of things: it is called in
that order.
"""

from __future__ import annotations

import cmath
import functools
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from ..protocol.accesses import ASKED, accesses, buffer_of, issue_number, outputs
from ..protocol.messages import CONTROLS, GENERAL, NEXT_OUTPUT, SCALAR_LEFT, Control, Flagged, Instruction, Ref
from ..protocol.operations import BY_NUMBER
from .devices.base import COMPUTE, Device
from .kernels import decode_operand

Handler = Callable[[int, Instruction], None]
MOST: Final = 1000  # findings that are told of in a lane; what comes later is news to nobody
_UNSET: Final = ("empty", "rng_new")  # what they make has no elements yet


class Finiteness:
    """The look at every result of one lane."""

    def __init__(
        self,
        lane: int,
        device: Device,
        arrays: dict[Any, Any],
        describe: Callable[[Instruction, tuple[Any, ...] | None], str],
        tell: Callable[[Flagged], None],
    ) -> None:
        """`arrays` by reference; `describe` gives the words for an instruction, of whose operands some may be gone."""
        self._lane = lane
        self._device = device
        self._arrays = arrays
        self._describe = describe
        self._tell = tell
        self._tainted: set[int] = set()  # buffers in which something was found
        self._told = 0

    def around(self, handlers: dict[int, Handler]) -> dict[int, Handler]:
        """These handlers, with a look behind each. On a device with queues the queue looks at operations: `look`."""
        watched = dict(handlers)
        for code, handler in handlers.items():
            if code >= CONTROLS and self._device.inline:
                watched[code] = functools.partial(self._operate, handler)
            elif code in (Control.RECV, Control.UPLOAD):
                watched[code] = functools.partial(self._bring, handler)
            elif code == Control.FREE:
                watched[code] = functools.partial(self._free, handler)
        return watched

    def _operate(self, handler: Handler, n: int, instruction: Instruction) -> None:
        handler(n, instruction)
        self.look(n, instruction, [self._arrays[ref] for ref in _written(instruction)])

    def _bring(self, handler: Handler, n: int, instruction: Instruction) -> None:
        handler(n, instruction)
        if type(instruction[1]) is not int:  # what raises in the queue is the end of the device, for everybody
            raise TypeError(f"{str(instruction[1])[:50]!r} is no buffer's number")
        array = self._arrays[instruction[1]]
        self._device.launch(COMPUTE, self._look_at_what_came, n, instruction, array)

    def _free(self, handler: Handler, n: int, instruction: Instruction) -> None:
        handler(n, instruction)
        self._device.launch(COMPUTE, self._tainted.difference_update, instruction[1:])

    def look(
        self, n: int, instruction: Instruction, results: list[Any], operands: tuple[Any, ...] | None = None
    ) -> None:
        """An operation has finished; `results` are the arrays that it wrote."""
        operation = BY_NUMBER[instruction[0] // 4]
        if operation.name in _UNSET:
            return
        found = []
        for ref, array in zip(_written(instruction), results, strict=True):
            if not self._is_finite(array):
                found.append((ref, array))
            elif type(ref) is int:
                self._tainted.discard(ref)
        if not found:
            return
        if self._tainted.isdisjoint(accesses(instruction)[0]):
            scalars = [each for each in _scalars(instruction) if not _is_finite_number(each)]
            self._report(n, instruction, "number" if scalars else "made", found[0][1], operands)
        self._tainted.update(buffer for ref, _ in found if (buffer := buffer_of(ref)) is not None)

    def _look_at_what_came(self, n: int, instruction: Instruction, array: Any) -> None:
        if not self._is_finite(array):
            self._tainted.add(instruction[1])
            if instruction[0] == Control.UPLOAD:  # of what was received its own worker has told
                self._report(n, instruction, "data", array)

    def _report(
        self, n: int, instruction: Instruction, how: str, array: Any, operands: tuple[Any, ...] | None = None
    ) -> None:
        self._told += 1
        if self._told > MOST:
            return
        xp = self._device.xp
        counts = (int(xp.isnan(array).sum()), int(xp.isinf(array).sum()), int(array.size))
        words = f"{array.dtype} {array.shape}" if instruction[0] < CONTROLS else self._describe(instruction, operands)
        self._tell(Flagged(self._lane, n, how, words, counts, issue_number(instruction)))

    def _is_finite(self, array: Any) -> bool:
        """One pass in nearly all cases: a sum has whatever is not finite in it, and is rarely too large itself."""
        xp = self._device.xp
        if not isinstance(array, xp.ndarray) or array.dtype.kind not in "fc" or not array.size:
            return True
        total = array.sum(dtype=np.float32) if array.dtype.char == "e" else array.sum()
        return cmath.isfinite(complex(total)) or bool(xp.isfinite(array).all())


def _written(instruction: Instruction) -> list[Ref]:
    """What an operation writes, in the order in which its kernel is given it."""
    if instruction[0] % 4 != GENERAL:
        return [instruction[1]]
    _, out, specs, operands, _, into = instruction
    if instruction[0] == ASKED:
        return [buffer for buffer, _ in outputs(instruction)]
    if specs:
        return [out + place * NEXT_OUTPUT for place in range(len(specs))]
    return [into] if into is not None else [operands[place] for place in BY_NUMBER[instruction[0] // 4].writes]


def _scalars(instruction: Instruction) -> list[Any]:
    """The numbers among an operation's operands."""
    form = instruction[0] % 4
    if form == GENERAL:
        return [decode_operand(ref) for ref in instruction[3] if buffer_of(ref) is None]
    return [instruction[3 if form == SCALAR_LEFT else 4]] if form else []


def _is_finite_number(value: Any) -> bool:
    return not isinstance(value, (float, complex, np.inexact)) or cmath.isfinite(complex(value))
