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
from .lane import BIG, Lane
from .sites import Site
from .tracebacks import let_go

if TYPE_CHECKING:
    from .session import Session

INLINE: Final = 32 * 1024  # bytes; smaller uploads travel inside the message


def upload(session: Session, lane: Lane, data: np.ndarray[Any, Any], spec: Spec, site: Site | None) -> int:
    """Copy the user's data now, and make an array of it on the worker; the new buffer's number.

    `data` has the dtype and the shape of `spec`, whose memory order the elements are sent in.
    """
    session.refuse_in_tape("a NumPy array is sent to a device")
    buffer = session.next_id()
    place: Any
    if spec.nbytes < INLINE or not lane.shares:
        if spec.nbytes > CARRIED:
            raise ValueError(too_large(spec.nbytes, f"be sent to {lane.device}"))
        place = _in_memory_order(data, spec).tobytes()
    else:
        block = _allocate(session, spec, site)
        try:
            target = session._arena.array(block, spec.shape, spec.dtype, spec.strides)
            target[...] = data
            number = next(session._blocks)
            place = ("host", number, 0, session._arena.ticket(block))
        except BaseException:  # Ctrl-C in a long copy
            with session.lock:
                session._arena.free(block)
            raise
    lent: dict[int, tuple[int, Any, int]] = {}
    if type(place) is tuple:
        lent[place[1]] = lane.index, block, buffer
    instruction = (Control.UPLOAD, buffer, spec.id, place)
    carried = type(place) is bytes and len(place) >= INLINE
    try:
        with session.lock:
            if lane.lost is not None:
                if lent:
                    session._arena.free(block)
                raise failures.again(lane.lost)
            if carried:
                lane.flush()  # two of them together could be more than a message carries
            lane.define(spec)
            if spec.nbytes >= BIG:
                lane.expect(spec.nbytes)
            if lent and session.recovery is not None:
                session.recovery.uploaded(place[1], lent[place[1]])
            # No calls: Ctrl-C comes before all of it or after. What is lent comes back from who is told of it only.
            session._uploads |= lent
            lane.batch += (instruction,)
            lane.sites += (site,)
            if carried:
                lane.flush()
            elif type(place) is bytes and len(place) > 1024:
                lane.heavy += len(place)  # let it leave soon: the message grows
                lane.limit = 0
        if len(lane.batch) >= lane.limit:
            lane.full()
    except BaseException:  # nobody will have a handle of it
        lane.dropped.append(buffer)
        raise
    return buffer


def _allocate(session: Session, spec: Spec, site: Site | None) -> Any:
    """A block of the arena; when it is full, wait until the workers have given back what they do not hold on to."""
    for wait in (True, True, False):  # what the first fence lets go has been told of before the second is answered
        try:
            with session.lock:  # whoever receives frees blocks meanwhile
                return session._arena.allocate(spec.nbytes)
        except OutOfDeviceMemory as error:
            let_go()
            if not wait or not session._uploads:
                with session.lock:
                    raise session._owners.of_uploads(error, session._uploads.values(), spec, site) from None
        if session.recovery is not None:  # which keeps uploads until they are in a checkpoint
            session.recovery.checkpoint(None)
        session.synchronize(raising=False)
        if session.recorder is not None:
            session.recorder.said("upload", f"the memory for {spec.dtype} {spec.shape} that workers still read")


def _in_memory_order(data: np.ndarray[Any, Any], spec: Spec) -> np.ndarray[Any, Any]:
    """The elements as they will lie in memory, C-contiguous."""
    if data.strides == spec.strides and data.flags.c_contiguous:
        return data
    axes = sorted(range(spec.ndim), key=lambda axis: (-abs(spec.strides[axis]), axis))
    return np.ascontiguousarray(data.transpose(axes))
