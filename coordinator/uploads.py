"""Uploads: the user's data is copied once, at the call, into memory that the workers read, or into the message.

When the memory for it is full, the next upload waits until workers have given back what they read no more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ..protocol.errors import OutOfDeviceMemory
from ..protocol.limits import CARRIED, too_large
from ..protocol.messages import Control
from ..protocol.specs import Spec
from . import failures
from .lane import Lane
from .sites import Site
from .tracebacks import let_go
from .uninterrupted import uninterrupted

if TYPE_CHECKING:
    from .session import Session

INLINE: Final = 32 * 1024  # bytes; smaller uploads travel inside the message


def upload(
    session: Session, lane: Lane, data: np.ndarray[Any, Any], buffer: int, spec: Spec, site: Site | None
) -> None:
    """Copy the user's data now, and make an array of it on the worker, with this number; there is a handle of it.

    `data` has the dtype and the shape of `spec`, whose memory order the elements are sent in.
    """
    session.refuse_in_tape("a NumPy array is sent to a device")
    if spec.nbytes < INLINE or not lane.shares:
        _carry(session, lane, data, buffer, spec, site)
    else:
        _lend(session, lane, data, buffer, spec, site)
    if len(lane.batch) >= lane.limit:
        lane.full()


def _carry(
    session: Session, lane: Lane, data: np.ndarray[Any, Any], buffer: int, spec: Spec, site: Site | None
) -> None:
    """Issue it with the elements in the instruction."""
    if spec.nbytes > CARRIED:
        raise ValueError(too_large(spec.nbytes, f"be sent to {lane.device}"))
    elements = _in_memory_order(data, spec).tobytes()
    with session.lock:
        if lane.lost is not None:
            raise failures.again(lane.lost)
        large = len(elements) >= INLINE
        if large:
            lane.flush()  # two of them together could be more than a message carries
        lane.define(spec)
        lane.append((Control.UPLOAD, buffer, spec.id, elements), site, spec.nbytes)
        if large:
            lane.flush()
        elif len(elements) > 1024:
            lane.heavy += len(elements)  # let it leave soon: the message grows
            lane.limit = 0


def _lend(session: Session, lane: Lane, data: np.ndarray[Any, Any], buffer: int, spec: Spec, site: Site | None) -> None:
    """Issue it with the elements in a block of the arena.

    When that is full, wait until the workers have given back what they do not hold on to.
    """
    for wait in (True, True, False):  # what the first fence lets go has been told of before the second is answered
        with uninterrupted():  # from when it is taken until it is told of, the block is nobody's
            try:
                with session.lock:  # whoever receives frees blocks meanwhile
                    block = session._arena.allocate(spec.nbytes)
            except OutOfDeviceMemory as error:
                let_go()
                if not wait or not session._uploads:
                    with session.lock:
                        raise session._owners.of_uploads(error, session._uploads.values(), spec, site) from None
            else:
                _issue_lent(session, lane, data, block, buffer, spec, site)
                return
        if session.recovery is not None:  # which keeps uploads until they are in a checkpoint
            session.recovery.checkpoint(None)
        session.synchronize(raising=False)
        if session.recorder is not None:
            session.recorder.said("upload", f"the memory for {spec.dtype} {spec.shape} that workers still read")


def _issue_lent(
    session: Session, lane: Lane, data: np.ndarray[Any, Any], block: Any, buffer: int, spec: Spec, site: Site | None
) -> None:
    try:
        session._arena.array(block, spec.shape, spec.dtype, spec.strides)[...] = data
        number = next(session._blocks)
        place = ("host", number, 0, session._arena.ticket(block))
        with session.lock:
            if lane.lost is not None:
                raise failures.again(lane.lost)
            lane.define(spec)
            lane.append((Control.UPLOAD, buffer, spec.id, place), site, spec.nbytes)
            session._uploads[number] = lane.index, block, buffer
            if session.recovery is not None:
                session.recovery.uploaded(number, session._uploads[number])
    except BaseException:
        with session.lock:
            session._arena.free(block)
        raise


def _in_memory_order(data: np.ndarray[Any, Any], spec: Spec) -> np.ndarray[Any, Any]:
    """The elements as they will lie in memory, C-contiguous."""
    if data.strides == spec.strides and data.flags.c_contiguous:
        return data
    axes = sorted(range(spec.ndim), key=lambda axis: (-abs(spec.strides[axis]), axis))
    return np.ascontiguousarray(data.transpose(axes))
