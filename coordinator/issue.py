"""From the user's operation to an instruction in a lane: the path that every operation takes.

`binary_method` makes the operators' methods, which are the hot path: one Python frame between the user and the
batch; `inplace_method` does the same for `x += y`, `call_one` for reductions, copies and new arrays. `call` is the
general way, for everything else. All find the result's spec in a table keyed on the operation
and the operands' specs, which are compared by identity; only what the table lacks is inferred (`infer.py`).

What the hot path leaves out, and why it may:
- no tracking of hazards: a buffer lives on one worker, and order within a lane settles them (`tracker.py`);
- no instruction number: it is the place in the batch;
- no line number: the code object and the offset in it are kept, and resolved when somebody asks;
- no check that the session is open: a closed or lost lane has the limit 0, so that `full` is called, which raises;
- no encoding: the batch is encoded as a whole when it leaves.

A handle is made before its instruction is issued, so that what Ctrl-C leaves between the two is freed: workers take
it well that a number is freed which nothing has.
"""

from __future__ import annotations

import functools
import marshal
import operator
import sys
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from ..protocol.messages import ARRAYS, GENERAL, NEXT_OUTPUT, SCALAR_LEFT, SCALAR_RIGHT, Ref
from ..protocol.operations import BY_NAME, OPERATIONS, Operation
from ..protocol.specs import Spec
from ..protocol.specs import spec as spec_of
from . import uploads, views
from .failures import again
from .infer import check_dtype, encode_scalar, fast_power, infer, infer_into, weak_key
from .lane import BIG, Lane
from .numbers import Number
from .sites import OURS, Site, user_site

_FRAME: Final = sys._getframe
_KEPT: Final = 100_000
ArrayLike = (np.ndarray, np.generic, list, tuple, bool, int, float, complex, Number)


class Handle:
    """What the user holds of an array: where it is, and what is known of it. Its elements are the worker's.

    A view keeps the handle of its buffer alive; when that goes, its number is put on a list, and no more: a handle
    may go in any thread, at any moment, the interpreter's end included.
    """

    __slots__ = ("__weakref__", "_asked", "_base", "_frozen", "_lane", "_ref", "_spec")

    _asked: Any  # of a result whose spec only the worker can tell: (the answer when it comes, which result)
    _base: Handle | None  # of a view, the handle of its buffer
    _frozen: bool  # of a view, whether NumPy would not let it be written; not there on any other
    _lane: Lane
    _ref: Ref
    _spec: Spec  # of such a result missing until somebody asks

    def __del__(self) -> None:
        try:
            if self._base is None:
                self._lane.dropped.append(self._ref)  # type: ignore[arg-type]  # a buffer's own handle has its number
        except AttributeError:
            pass  # it was never made whole


def refuse_frozen(target: Any, what: str) -> None:
    """Raise NumPy's error if the array is a view that must not be written."""
    if target._base is not None and target._frozen:
        raise ValueError(f"{what} is read-only")


def handle(cls: type[Any], lane: Lane, ref: Ref, spec: Any, base: Handle | None = None) -> Any:
    """A handle of class `cls`."""
    made: Any = object.__new__(cls)
    made._base = base
    made._lane = lane
    made._ref = ref
    made._spec = spec
    if base is not None:
        made._frozen = False
    return made


# -- the hot path -----------------------------------------------------------------------------------------------------

# (operation, spec, spec or type of scalar) -> (code, spec of the result, its id, its bytes if it is big, low, high)
_known: dict[tuple[Any, ...], tuple[int, Spec, int, int, int, int]] = {}


def _learn(operation: Operation, key: tuple[Any, ...], operands: tuple[Any, ...], form: int) -> Any:
    """Infer what the table lacks; None where a scalar is out of the range for which the bare value will do."""
    specs, low, high = infer(operation, operands, ())
    entry = (4 * operation.number + form, specs[0], specs[0].id, _weight(specs[0]), low, high)
    if len(_known) >= _KEPT:
        _known.clear()
    _known[key] = entry
    scalar = operands[1] if form == SCALAR_RIGHT else operands[0]
    return entry if form == ARRAYS or type(scalar) is not int or low <= scalar <= high else None


def _weight(spec: Spec) -> int:
    return spec.nbytes if spec.nbytes >= BIG else 0


def binary_method(name: str) -> Callable[[Any, Any], Any]:
    """The method `left.__name__(right)` of a ufunc with two operands."""
    operation = BY_NAME[name]
    number = operation.number
    known, ours, new = _known, OURS, object.__new__

    def method(left: Any, right: Any) -> Any:
        kind = type(right)
        if kind is type(left):
            key = (number, left._spec, right._spec)
            ref = right._ref
        elif kind is float or kind is int:
            key = (number, left._spec, kind)
            ref = right
        else:
            return _other(operation, left, right, reflected=False)
        lane = left._lane
        entry = known.get(key)
        if entry is None or (kind is int and not entry[4] <= right <= entry[5]):
            if kind is type(left):
                entry = _learn(operation, key, (left._spec, right._spec), ARRAYS)
            else:
                entry = _learn(operation, key, (left._spec, right), SCALAR_RIGHT)
            if entry is None:
                return call(operation, (left, right))
        if kind is type(left) and right._lane is not lane:
            raise _elsewhere(left._lane, right._lane)
        code, spec, id, weight, _, _ = entry
        frame = _FRAME(1)
        site = frame.f_code
        if ours.get(site.co_filename, True):
            site, offset = user_site(2)
        else:
            offset = frame.f_lasti
        out = lane.next_id()
        made = new(type(left))
        made._base = None
        made._lane = lane
        made._ref = out
        made._spec = spec
        with lane.lock:
            if id not in lane.known:
                lane.define(spec)
            if weight:
                lane.expect(weight)
            batch = lane.batch
            batch.append((code, out, id, left._ref, ref))
            lane.sites.append((site, offset))
        if len(batch) >= lane.limit:
            lane.full()
        return made

    method.__name__ = method.__qualname__ = f"__{name}__"
    return method


def reflected_method(name: str) -> Callable[[Any, Any], Any]:
    """The method `right.__rname__(left)`: the left operand is a number, or another kind of array."""
    operation = BY_NAME[name]

    def method(right: Any, left: Any) -> Any:
        kind = type(left)
        if kind is not float and kind is not int:
            return _other(operation, right, left, reflected=True)
        key = (operation.number, kind, right._spec)
        entry = _known.get(key)
        if entry is None or (kind is int and not entry[4] <= left <= entry[5]):
            entry = _learn(operation, key, (left, right._spec), SCALAR_LEFT)
            if entry is None:
                return call(operation, (left, right))
        code, spec, id, weight, _, _ = entry
        lane = right._lane
        site = user_site(2)
        out = lane.next_id()
        made = handle(type(right), lane, out, spec)
        with lane.lock:
            if id not in lane.known:
                lane.define(spec)
            lane.append((code, out, id, left, right._ref), site, weight)
        if len(lane.batch) >= lane.limit:
            lane.full()
        return made

    return method


def unary_method(name: str) -> Callable[[Any], Any]:
    """The method of a ufunc with one operand."""
    operation = BY_NAME[name]

    def method(array: Any) -> Any:
        key = (operation.number, array._spec)
        entry = _known.get(key)
        if entry is None:
            entry = _learn(operation, key, (array._spec,), ARRAYS)
        code, spec, id, weight, _, _ = entry
        lane = array._lane
        site = user_site(2)
        out = lane.next_id()
        made = handle(type(array), lane, out, spec)
        with lane.lock:
            if id not in lane.known:
                lane.define(spec)
            lane.append((code, out, id, array._ref), site, weight)
        if len(lane.batch) >= lane.limit:
            lane.full()
        return made

    return method


def inplace_method(name: str) -> Callable[[Any, Any], Any]:
    """The method `left.__iname__(right)`."""
    if name == "power":
        return _writer(BY_NAME[name], _inplace_power, into=True, numbers=False)  # the number decides which operation
    return _writer(BY_NAME[name], _inplace, into=True)


def _writer(
    operation: Operation, other: Callable[[Operation, Any, Any], Any], into: bool, numbers: bool = True
) -> Callable[[Any, Any], Any]:
    """A function that writes an array and issues the operation on it and an array or a number.

    Args:
        operation: a row of the table.
        other: what to do with other operands, and with what has to be inferred.
        into: whether it is the result that is written to the first operand; else the operation itself writes it.
        numbers: whether Python's numbers may be the second operand, too.
    """
    number = operation.number
    code = 4 * number + GENERAL

    def method(left: Any, right: Any) -> Any:
        kind = type(right)
        target = left._spec if into else None
        if kind is type(left) and right._lane is left._lane:
            key = (number, (left._spec, right._spec), b"", target)  # as `_infer` has it
            ref = right._ref
        elif numbers and (kind is float or kind is int):
            key = (number, (left._spec, kind), b"", target)
            ref = (right,)
        else:
            return other(operation, left, right)
        found = _inferred.get(key)
        if found is None or (kind is int and not found.low <= right <= found.high):
            return other(operation, left, right)
        if left._base is not None:
            refuse_frozen(left, "output array")
        frame = _FRAME(1)
        site = frame.f_code
        if OURS.get(site.co_filename, True):
            site, offset = user_site(2)
        else:
            offset = frame.f_lasti
        lane = left._lane
        out = lane.next_id()
        with lane.lock:
            batch = lane.batch
            batch.append((code, out, (), (left._ref, ref), (), left._ref if into else None))
            lane.sites.append((site, offset))
        if len(batch) >= lane.limit:
            lane.full()
        return left

    return method


def _inplace(operation: Operation, left: Any, right: Any) -> Any:
    if not isinstance(right, (Handle, *ArrayLike)):
        return NotImplemented
    call(operation, (left, right), into=left)
    return left


def _inplace_power(operation: Operation, left: Any, right: Any) -> Any:
    fast = fast_power(left._spec.dtype, right)
    if fast is None:
        return _inplace(operation, left, right)
    call(fast, (left,), into=left)
    return left


def _assign(operation: Operation, target: Any, value: Any) -> None:
    call(operation, (target, value))


assign = _writer(BY_NAME["assign"], _assign, into=False)  # target[...] = value


def _other(operation: Operation, array: Any, other: Any, reflected: bool) -> Any:
    if not isinstance(other, (Handle, *ArrayLike)):
        if (other is None or isinstance(other, (str, bytes))) and operation.name in ("equal", "not_equal"):
            unequal = operation.name == "not_equal"  # to every number, and NumPy says so for each
            shape = array._spec.shape
            return call(BY_NAME["full"], (unequal,), (shape, "|b1", "C"), lane=array._lane, cls=type(array))
        return NotImplemented
    return call(operation, (other, array) if reflected else (array, other))


def call_one(
    operation: Operation, static: tuple[Any, ...], array: Any = None, lane: Any = None, cls: type[Any] | None = None
) -> Any:
    """`call` for what has static values, one result and one array as its operand, or none: its commonest kind."""
    refs: tuple[Any, ...]
    if array is None:
        spec, refs = None, ()
    else:
        lane, cls, spec, refs = array._lane, type(array), array._spec, (array._ref,)
    if not _PLAIN.issuperset(map(type, static)):
        static = tuple([_plain(each) for each in static])
    found = _inferred.get((operation.number, (spec,) if refs else (), marshal.dumps(static, 2), None))
    if found is None:
        return call(operation, () if array is None else (array,), static, lane=lane, cls=cls)
    spec = found.specs[0]
    site = user_site(3)
    out = lane.next_id()
    made = handle(cls, lane, out, spec)  # type: ignore[arg-type]
    with lane.lock:
        if spec.id not in lane.known:
            lane.define(spec)
        if spec.nbytes >= BIG:
            lane.expect(spec.nbytes)
        batch = lane.batch
        batch.append((4 * operation.number + GENERAL, out, (spec.id,), refs, static, None))
        lane.sites.append(site)
    if len(batch) >= lane.limit:
        lane.full()
    return made


# -- the general way --------------------------------------------------------------------------------------------------

_inferred: dict[tuple[Any, ...], Any] = {}
_WEAK: Final = frozenset((bool, int, float, complex))
_DIRECT: Final = frozenset(row.number for row in OPERATIONS if row.plain)  # on arrays alone: ARRAYS for GENERAL


def call(
    operation: Operation,
    operands: tuple[Any, ...],
    static: tuple[Any, ...] = (),
    into: Any = None,
    lane: Lane | None = None,
    cls: type[Any] | None = None,
) -> Any:
    """Issue an operation on arrays, numbers and NumPy arrays (these are copied to the others' device).

    Args:
        operation: a row of the table.
        operands: as the user gave them.
        static: as the table says.
        into: an array that the result is written to, instead of a new one.
        lane: where, if no operand says so.
        cls: the class of the new arrays; None for that of the operands.

    Returns:
        The new array, a tuple of them, `into`, or None.
    """
    if into is not None:
        refuse_frozen(into, "output array")
    site = user_site(2)
    if static and not _PLAIN.issuperset(map(type, static)):
        static = tuple([_plain(each) for each in static])
    # The usual operands, arrays and bare numbers, are looked at once; whatever else is among them, or whatever is
    # not in the table, goes the longer way, which tells apart all that NumPy tells apart.
    parts: list[Any] = []
    refs: list[Any] = []
    bare = False
    target = None
    for operand in operands:
        kind = type(operand)
        if kind is float or kind is int or kind is bool:
            parts.append(kind)
            refs.append((operand,))
            bare = True
        elif isinstance(operand, Handle) and (operand._lane is lane or lane is None):
            lane = operand._lane
            if cls is None:
                cls = kind
            parts.append(operand._spec)
            refs.append(operand._ref)
        else:
            return _call_at_length(operation, operands, static, into, lane, cls, site)
    if into is not None:
        target = into._spec
        if into._lane is not lane:
            return _call_at_length(operation, operands, static, into, lane, cls, site)
    found = _inferred.get((operation.number, tuple(parts), marshal.dumps(static, 2) if static else b"", target))
    if found is None or (bare and not _holds_for(operands, found)):
        return _call_at_length(operation, operands, static, into, lane, cls, site)
    return _issue(operation, found, tuple(refs), bare, static, into, lane, cls, site)


def _call_at_length(
    operation: Operation,
    operands: tuple[Any, ...],
    static: tuple[Any, ...],
    into: Any,
    lane: Lane | None,
    cls: type[Any] | None,
    site: Site,
) -> Any:
    """`call` for operands of any kind, and for what has to be inferred."""
    arrays = True
    for operand in operands if into is None else (*operands, into):
        if isinstance(operand, Handle):
            if lane is None:
                lane = operand._lane
            elif operand._lane is not lane:
                raise _elsewhere(lane, operand._lane)
            if cls is None:
                cls = type(operand)
        else:
            arrays = False
    assert lane is not None
    assert cls is not None
    described: tuple[Any, ...]
    if arrays:
        described = tuple([each._spec for each in operands])
    else:
        operands = tuple([_as_operand(operand, lane, cls, site) for operand in operands])
        described = tuple([_described(each) for each in operands])
        if Number in map(type, operands) and (operation.name == "power" or _depends_on_number(operation, described)):
            operands = tuple([each.pinned() if type(each) is Number else each for each in operands])
    found = _infer(operation, described, static, None if into is None else into._spec, arrays)
    refs: tuple[Any, ...]
    if arrays:
        refs = tuple([each._ref for each in operands])
    else:
        result = found.specs[0] if found.specs else described[0]
        refs = tuple(
            [
                each._ref
                if isinstance(each, Handle)
                else each  # each run brings its own
                if type(each) is Number
                else _scalar_ref(operation, described, place, result, found)
                for place, each in enumerate(operands)
            ]
        )
    return _issue(operation, found, refs, not arrays, static, into, lane, cls, site)


def _issue(
    operation: Operation,
    found: Any,
    refs: tuple[Any, ...],
    scalars: bool,
    static: tuple[Any, ...],
    into: Any,
    lane: Any,
    cls: Any,
    site: Site,
) -> Any:
    """Make the handles of the results and append the instruction; `scalars`: some operand is none of an array's."""
    specs: tuple[Spec, ...] = () if into is not None else found.specs
    out = lane.next_id()
    instruction: tuple[Any, ...]
    if into is None and not scalars and operation.number in _DIRECT:
        instruction = (4 * operation.number + ARRAYS, out, specs[0].id, *refs)
    else:
        target = None if into is None else into._ref
        ids = tuple([spec.id for spec in specs])
        instruction = (4 * operation.number + GENERAL, out, ids, refs, static, target)
    if len(specs) == 1:
        made = handle(cls, lane, out, specs[0])
    else:
        made = tuple([handle(cls, lane, out + place * NEXT_OUTPUT, spec) for place, spec in enumerate(specs)]) or into
    with lane.lock:
        weight = 0
        for spec in specs:
            if spec.id not in lane.known:
                lane.define(spec)
            if spec.nbytes >= BIG:
                weight += spec.nbytes
        lane.append(instruction, site, weight)
    if len(lane.batch) >= lane.limit:
        lane.full()
    return made


_PLAIN: Final = frozenset((bool, int, float, str, bytes, type(None)))


def _plain(value: Any) -> Any:
    """A static value as instructions carry it: NumPy's numbers, and others that are integers, as Python's."""
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is tuple:
        return value if _PLAIN.issuperset(map(type, value)) else tuple([_plain(each) for each in value])
    return value.item() if isinstance(value, np.generic) else operator.index(value)


def _infer(
    operation: Operation, described: tuple[Any, ...], static: tuple[Any, ...], target: Spec | None, arrays: bool
) -> Any:
    """What the operation gives, from the table or inferred; `arrays`: no operand is a scalar."""
    parts = described if arrays else tuple([each if type(each) is Spec else weak_key(each) for each in described])
    # `call`, `call_one` and the methods in place look up the same keys. The dump of the static values tells 1, 1.0 and
    # True apart, whatever they are nested in, as == does not.
    key = (operation.number, parts, marshal.dumps(static, 2) if static else b"", target)
    found = _inferred.get(key)
    if found is None or not (arrays or _holds_for(described, found)):
        if target is None:
            found = infer(operation, described, static)
        else:
            found = infer_into(operation, described, static, target)
        if len(_inferred) >= _KEPT:
            _inferred.clear()
        if not _depends_on_number(operation, described):
            _inferred[key] = found
    return found


def _depends_on_number(operation: Operation, described: tuple[Any, ...]) -> bool:
    """Whether more than a scalar's type matters: NumPy puts no nan into ints."""
    writes = operation.kind in ("assign", "index") and not operation.outputs
    return writes and described[0].dtype.kind in "iu" and isinstance(described[1], float)


def _holds_for(operands: tuple[Any, ...], found: Any) -> bool:
    """Whether what was inferred for other scalars of these types holds for these."""
    return all(found.low <= each <= found.high for each in operands if type(each) is int)


def _scalar_ref(operation: Operation, described: tuple[Any, ...], place: int, result: Any, found: Any) -> Any:
    value = described[place]
    kind = type(value)
    if kind is float or kind is bool or (kind is int and found.low <= value <= found.high):
        return (value,)
    return encode_scalar(operation, described, place, result)


def _described(operand: Any) -> Any:
    """What inference takes for an operand."""
    if isinstance(operand, Handle):
        return operand._spec
    return operand.value if type(operand) is Number else operand


def _as_operand(value: Any, lane: Lane, cls: type[Any], site: Site) -> Any:
    if type(value) in _WEAK or isinstance(value, (Handle, np.generic, Number)):
        return value
    array = np.asarray(value)
    if array.ndim == 0:
        check_dtype(array.dtype.newbyteorder("="))
        return array[()]  # also of a class derived from a number's, which NumPy does not take for weak
    if 0 not in array.strides:
        return upload(array, lane, cls, site)
    once = array[(*[slice(0, 1) if stride == 0 else slice(None) for stride in array.strides],)]
    if once.shape == array.shape:
        return upload(array, lane, cls, site)
    # What is repeated goes once, and is repeated there: NumPy lays the result out by the operands' strides of 0.
    sent = upload(once, lane, cls, site)
    spec, offset = views.broadcast_to(sent._spec, 0, array.shape)
    return handle(cls, lane, (sent._ref, offset, spec.shape, spec.strides, spec.dtype.str), spec, sent)


@functools.lru_cache(_KEPT)
def _copied(layout: Spec, order: str) -> Spec:
    """The spec of a copy."""
    return infer(BY_NAME["copy"], (layout,), (order,)).specs[0]


def upload(data: Any, lane: Lane, cls: type[Any], site: Site, order: str = "K") -> Any:
    """A copy of NumPy's array on a worker; its dtype in native byte order, its axes in memory as `order` says."""
    if not data.dtype.isnative:
        data = data.astype(data.dtype.newbyteorder("="))
    check_dtype(data.dtype)
    layout = spec_of(data.shape, data.dtype, data.strides)
    spec = _copied(layout, order)
    session = lane.session
    session.check_open()
    made = handle(cls, lane, session.next_id(), spec)
    uploads.upload(session, lane, data, made._ref, spec, site)
    return made


def transfer(array: Any, target: Lane, site: Site) -> Any:
    """An independent copy of the array on another worker."""
    source = array._lane
    session = source.session
    if target.session is not session:
        raise ValueError("the target device belongs to another session; read the array there and make a new one here")
    session.check_open()
    spec = _copied(array._spec, "K")
    made = handle(type(array), target, session.next_id(), spec)
    session.transfer(array._ref, source, target, made._ref, spec, site)
    return made


def _elsewhere(a: Lane, b: Lane) -> Exception:
    for lane in (a, b):
        if lane.lost is not None:  # of a device that has another worker by now, too
            return again(lane.lost)
    if a.session is not b.session:
        return ValueError("operands belong to different sessions: read one and make a new array in the other's session")
    return ValueError(
        f"operands are on different devices, {a.device} and {b.device}: move one with .to(), such as y.to('{a.device}')"
    )
