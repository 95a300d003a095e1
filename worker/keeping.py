"""What a session keeps of its arrays in case a worker is lost, and how a worker gets it back: KEEP and Restore.

KEEP reads any buffer at its place in the lane, whatever is in it: elements, a generator's state, a failure. Restore
puts such things under their old numbers. Knows nothing of when either happens: `coordinator/recovery.py` decides.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from ..protocol.messages import Restore, Value
from ..protocol.specs import Spec
from .buffers import Failure, Store, Unavailable
from .devices.base import COMPUTE
from .transfers import Transfers

GENERATOR: Final = "generator"
NOTHING: Final = ("nothing", 0, 0, 0)  # there is no such buffer
_WORD: Final = 16  # bytes of PCG64's two large integers


def answer(store: Store, transfers: Transfers, lane: int, buffer: int, request: int) -> None:
    """Answer with what is in the buffer."""
    failure = store.failures.get(buffer) if store.device.inline else None
    if failure is not None:
        transfers.answer(Value(lane, request, None, tuple(failure)))
        return
    try:
        array = store.arrays[buffer]
    except Unavailable:
        failure = store.failures.get(buffer)
        transfers.answer(Value(lane, request, NOTHING, None if failure is None else tuple(failure)))
        return
    if not isinstance(array, np.random.Generator):
        transfers.read(buffer, request)
    elif store.device.inline:
        transfers.answer(Value(lane, request, state_of(array), None))
    else:
        _keep_in_queue(store, transfers, array, buffer, request)


def _keep_in_queue(store: Store, transfers: Transfers, generator: Any, buffer: int, request: int) -> None:
    """The state as it is when the queue has come so far."""
    found: list[Any] = [None, None]

    def look() -> None:
        found[:] = state_of(generator), store.failures.get(buffer)

    store.device.launch(COMPUTE, look)
    transfers.answer_behind(request, found)


def state_of(generator: np.random.Generator) -> tuple[Any, ...]:
    """The Place of a generator: plain values."""
    state: Any = generator.bit_generator.state
    words = state["state"]
    return (
        GENERATOR,
        0,
        0,
        (
            words["state"].to_bytes(_WORD, "big"),
            words["inc"].to_bytes(_WORD, "big"),
            int(state["has_uint32"]),
            int(state["uinteger"]),
        ),
    )


def generator_of(place: tuple[Any, ...]) -> np.random.Generator:
    """The generator of which `state_of` was the Place."""
    state, inc, has, more = place[3]
    bits = np.random.PCG64()
    bits.state = {
        "bit_generator": "PCG64",
        "state": {"state": int.from_bytes(state, "big"), "inc": int.from_bytes(inc, "big")},
        "has_uint32": has,
        "uinteger": more,
    }
    return np.random.Generator(bits)


def restore(
    message: Restore,
    layouts: dict[int, Spec],
    store: Store,
    transfers: Transfers,
    fail: Callable[[int, Failure, Spec | None], None],
) -> None:
    """Make the buffers again. `fail` lets one hold a failure.

    Raises:
        InterlockError: there is no memory for them, or that of the frontend cannot be opened.
    """
    for buffer, id, place, failure in message.buffers:
        if failure is not None:
            fail(buffer, Failure(*failure), layouts.get(id))
        elif type(place) is tuple and place[0] == GENERATOR:
            store.arrays[buffer] = generator_of(place)
        else:
            transfers.upload(buffer, layouts[id], place)
