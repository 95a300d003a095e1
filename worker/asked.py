"""Calls whose results nobody can describe before they are there: their results are stored as they come.

On a device with queues the worker waits for the call, as nothing behind it can be given an array before there is one.
Knows devices through their interface, and nothing of instructions.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, Final

from ..protocol.messages import NEXT_OUTPUT
from ..protocol.specs import dtype_of, packed_strides, spec
from .buffers import Store
from .devices.base import COMPUTE, Device

LOOK_S: Final = 1.0  # how long to wait for a device at a time


def results(device: Device, look: Callable[[], None], call: Callable[[], Any]) -> tuple[Any, ...]:
    """What the call gives, when the device has come to it.

    Args:
        device: where it runs.
        look: raises if an operand has failed; called in the order of the queue.
        call: the call.
    """
    if device.inline:
        return call()  # type: ignore[no-any-return]
    box: list[Any] = []

    def body() -> None:
        try:
            look()
            box.append(call())
        except Exception as error:
            box.append(error)

    device.launch(COMPUTE, body)
    while not box:
        with contextlib.suppress(TimeoutError):
            device.fence(LOOK_S)
    if isinstance(box[0], Exception):
        raise box[0]
    return box[0]  # type: ignore[no-any-return]


def keep(device: Device, store: Store, first: int, results: tuple[Any, ...], count: int) -> tuple[tuple[Any, ...], ...]:
    """Store the results as buffers `first`, `first + NEXT_OUTPUT`, ...; their (shape, dtype, strides)."""
    if len(results) != count:
        raise AssertionError(f"{len(results)} results where {count} were expected")
    specs = []
    for place, array in enumerate(results):
        shape = tuple([int(extent) for extent in array.shape])
        dtype = dtype_of(array.dtype.str)  # never one of objects, which shared memory cannot hold
        layout = spec(shape, dtype, packed_strides(shape, dtype.itemsize, array.strides))
        target = store.create(first + place * NEXT_OUTPUT, layout)
        device.launch(COMPUTE, device.xp.copyto, target, array)
        specs.append((shape, layout.dtype_str, layout.strides))
    return tuple(specs)
