"""What came for a read: the elements, in the message or in the worker's memory, or why there are none."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from ..protocol.errors import ImportFailed, OutOfDeviceMemory, PeerGone, ProtocolError
from ..protocol.specs import Spec, packed_strides
from . import losses
from .events import Pending
from .lane import Lane
from .sites import user_site

if TYPE_CHECKING:
    from .session import Session


def _good(session: Session, pending: Pending) -> Any:
    """What came for a read; raises what came instead of elements."""
    fact = pending.fact
    if isinstance(fact, Exception):
        raise fact
    if fact.failure is not None:
        raise session._error(fact.failure)
    return fact


def value(session: Session, pending: Pending, spec: Spec) -> np.ndarray[Any, Any]:
    """The elements that came for a pending read."""
    fact = _good(session, pending)
    if type(fact.place) is not tuple:
        elements = _of_bytes(fact.place, spec).copy("K")
    else:
        with in_place(session, pending, spec) as lent:
            elements = lent.copy("K")
    if session.flags.on:
        session.flags.tell(user_site(2))
    return elements


@contextlib.contextmanager
def in_place(session: Session, pending: Pending, spec: Spec) -> Iterator[np.ndarray[Any, Any]]:
    """The elements that came for a pending read, where they lie: not the caller's, and gone when the block ends."""
    fact = _good(session, pending)
    if type(fact.place) is not tuple:
        yield _of_bytes(fact.place, spec)
        return
    _, _, offset, ticket = fact.place
    lane = session.lanes[pending.lane]
    try:
        with session.lock:
            memory = _map(session, lane, ticket)
    except (PeerGone, ImportFailed):
        lost = losses.found_lost(session, lane.index)
        if lost is None:
            raise
        raise lost from None
    except OutOfDeviceMemory:
        pending.loan = None
        with session.lock:
            lane.give_back()
        raise
    try:
        strides = packed_strides(spec.shape, spec.dtype.itemsize, spec.strides)
        yield np.ndarray(spec.shape, spec.dtype, memory, offset, strides)
    finally:  # Ctrl-C, and no memory for a copy, too
        del memory
        pending.loan = None
        with session.lock:
            lane.give_back()


def _map(session: Session, lane: Lane, ticket: Any) -> memoryview:
    """Memory of the lane's worker. The caller holds the lock."""
    try:
        return session._mappings.attach(lane.worker.identity, ticket)
    except OutOfDeviceMemory:
        session._mappings.close()  # what was mapped before is kept only to be found again
        return session._mappings.attach(lane.worker.identity, ticket)


def _of_bytes(data: Any, spec: Spec) -> np.ndarray[Any, Any]:
    """The elements that a message brought.

    Raises:
        ProtocolError: they are not as many as the array has.
    """
    if isinstance(data, np.ndarray):
        data = data[: spec.nbytes]  # copied from a worker's memory, of which it may be a part
    if len(data) != spec.nbytes:
        raise ProtocolError(f"{len(data)} bytes came for an array of {spec.nbytes}")
    strides = packed_strides(spec.shape, spec.dtype.itemsize, spec.strides)
    memory = data if isinstance(data, np.ndarray) else bytearray(data or bytes(spec.dtype.itemsize))
    return np.ndarray(spec.shape, spec.dtype, memory, 0, strides)
