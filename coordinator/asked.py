"""Results whose specs only the worker can tell: the call returns at once, and whoever needs the spec waits for it.

Such an array has no `_spec` until somebody reads it: then `Array.__getattr__` comes here. The worker answers as soon
as it has the result, so that mostly the spec is here before it is asked for.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from ..protocol.accesses import ASKED
from ..protocol.messages import NEXT_OUTPUT
from ..protocol.specs import Spec, spec
from . import failures
from .issue import handle
from .lane import Lane
from .sites import Site
from .uninterrupted import uninterrupted

_WHAT: Final = "a shape that depends on values is needed"


def issue(name: str, tree: Any, refs: tuple[Any, ...], count: int, lane: Lane, cls: type[Any], site: Site) -> list[Any]:
    """Issue a call of a function by name; the handles of its `count` results."""
    session = lane.session
    session.check_open()
    session.refuse_in_tape(_WHAT)
    out = lane.next_id()
    made: list[Any] = []
    with uninterrupted(), lane.lock:  # else nobody might wait for the answer, nor have handles
        if lane.lost is not None:
            raise failures.again(lane.lost)
        request, pending = session.question(lane, _WHAT, site)
        lane.append((ASKED, out, (), refs, (name, tree, count, request), None), site)
        for place in range(count):
            each = handle(cls, lane, out + place * NEXT_OUTPUT, None)
            del each._spec
            each._asked = pending, place
            made.append(each)
    if len(lane.batch) >= lane.limit:
        lane.full()
    return made


def is_known(array: Any) -> bool:
    """Whether the array's spec, or why there is none, can be told without waiting."""
    pending = getattr(array, "_asked", None)
    return pending is None or pending[0].done


def spec_of(array: Any) -> Spec:
    """The spec of an array that has none yet; waits for it.

    Raises:
        Exception: what made the call fail.
    """
    pending, place = array._asked
    answer = array._lane.session.wait_for(pending, _WHAT)
    shape, dtype, strides = answer.specs[place]
    found = array._spec = spec(tuple(shape), np.dtype(dtype), tuple(strides))
    return found
