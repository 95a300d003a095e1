"""The functions of the public face, under NumPy's names: creation, elementwise functions, reductions, joining.

Each issues one operation and returns at once. Where no operand says on which device, `device` does; without it
the first device of the default session. All others of NumPy's functions that workers know are made when first asked for
(`protocols.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..protocol.functions import FUNCTIONS
from ..protocol.operations import BY_NAME, OPERATIONS, Operation
from ..protocol.specs import Spec
from . import issue, named, views
from .array import Array, _dtype
from .client import lane_of
from .infer import like_order, scalar_ref
from .issue import Handle, binary_method, call, call_one, unary_method
from .lane import Device, Lane
from .sites import user_site

Where = Device | str | None
_NEW_UFUNCS = ("vecdot", "matvec", "vecmat")  # NumPy's later ones, which have no rows in the table


def _lane(like: Any, device: Where) -> Lane:
    """Where a new array goes: to the named device, or to where the array is that it is like."""
    return like._lane if device is None and isinstance(like, Array) else lane_of(device)


def _make(name: str, operands: tuple[Any, ...], static: tuple[Any, ...], device: Where) -> Array:
    made: Array
    if not operands:
        lane = lane_of(device)
        lane.session.check_open()
        made = call_one(BY_NAME[name], static, None, lane, Array)
        return made
    lane = (_lane_among(operands) if device is None else None) or lane_of(device)
    lane.session.check_open()
    made = call(BY_NAME[name], operands, static, lane=lane, cls=Array)
    return made


def _lane_among(operands: Sequence[Any]) -> Lane | None:
    for operand in operands:
        if isinstance(operand, Handle):
            return operand._lane
    return None


_INT = frozenset((int,))


def _shape(shape: Any) -> tuple[int, ...]:
    if type(shape) is int:
        return (shape,)
    if type(shape) is tuple and _INT.issuperset(map(type, shape)):
        return shape
    return (int(shape),) if np.ndim(shape) == 0 else tuple([int(extent) for extent in shape])


# -- creation


def asarray(data: Any, dtype: Any = None, *, device: Where = None, copy: bool | None = None) -> Array:
    """An array with these elements. NumPy data is copied before the call returns: changing it later changes nothing.

    Args:
        data: an array of Interlock's (itself is returned unless dtype, device or copy ask for another), or whatever
            `numpy.asarray` takes.
        dtype: of the result.
        device: where to; None keeps an Interlock array where it is.
        copy: True for a copy in any case, False to refuse one.

    Raises:
        TypeError: a dtype that is neither bool nor numeric.
    """
    if isinstance(data, Array):
        moved = data if device is None else data.to(device)
        changed = dtype is not None and np.dtype(dtype) != moved.dtype
        if copy is False and (moved is not data or changed):
            raise ValueError("Unable to avoid copy while creating an array as requested.")
        if changed:
            return moved.astype(dtype)
        return moved.copy("K") if copy and moved is data else moved
    if copy is False:
        raise ValueError("Unable to avoid copy while creating an array as requested.")
    host = np.asarray(data, dtype)
    lane = lane_of(device)
    made: Array = issue.upload(host, lane, Array, user_site(2))
    return made


def array(data: Any, dtype: Any = None, *, copy: bool | None = True, device: Where = None) -> Array:
    """As `asarray`, but a copy unless `copy` says otherwise."""
    if copy is False and not isinstance(data, Array):
        raise ValueError("Unable to avoid copy while creating an array as requested.")
    return asarray(data, dtype, device=device, copy=copy)


def empty(shape: Any, dtype: Any = float, *, order: str = "C", device: Where = None) -> Array:
    """An array whose elements are not set."""
    return _make("empty", (), (_shape(shape), _dtype(dtype), order), device)


def zeros(shape: Any, dtype: Any = float, *, order: str = "C", device: Where = None) -> Array:
    """An array of zeros."""
    return _make("zeros", (), (_shape(shape), _dtype(dtype), order), device)


def ones(shape: Any, dtype: Any = float, *, order: str = "C", device: Where = None) -> Array:
    """An array of ones."""
    return _make("ones", (), (_shape(shape), _dtype(dtype), order), device)


def full(shape: Any, fill_value: Any, dtype: Any = None, *, order: str = "C", device: Where = None) -> Array:
    """An array whose elements all are `fill_value`."""
    return _make("full", (fill_value,), (_shape(shape), _dtype(dtype), order), device)


def _like(name: str, operands: tuple[Any, ...], like: Any, dtype: Any, shape: Any, device: Where) -> Array:
    layout: Spec | np.ndarray[Any, Any] = like._spec if isinstance(like, Array) else np.asarray(like)
    order: Any = "C"
    if shape is None:
        shape = layout.shape
        if isinstance(layout, Spec):
            order = like_order(layout)
    wanted = _dtype(layout.dtype if dtype is None else dtype)
    lane = _lane(like, device)
    lane.session.check_open()
    made: Array = call(BY_NAME[name], operands, (_shape(shape), wanted, order), lane=lane, cls=Array)
    return made


def empty_like(x: Any, dtype: Any = None, *, shape: Any = None, device: Where = None) -> Array:
    """An array of the shape, dtype and layout of `x`, its elements not set, on the device of `x`."""
    return _like("empty", (), x, dtype, shape, device)


def zeros_like(x: Any, dtype: Any = None, *, shape: Any = None, device: Where = None) -> Array:
    """As `empty_like`, of zeros."""
    return _like("zeros", (), x, dtype, shape, device)


def ones_like(x: Any, dtype: Any = None, *, shape: Any = None, device: Where = None) -> Array:
    """As `empty_like`, of ones."""
    return _like("ones", (), x, dtype, shape, device)


def full_like(x: Any, fill_value: Any, dtype: Any = None, *, shape: Any = None, device: Where = None) -> Array:
    """As `empty_like`, all elements `fill_value`."""
    return _like("full", (fill_value,), x, dtype, shape, device)


def arange(start: Any, stop: Any = None, step: Any = 1, dtype: Any = None, *, device: Where = None) -> Array:
    """Evenly spaced numbers from `start` up to, not including, `stop`; `arange(n)` counts from 0."""
    ends = tuple(scalar_ref(each) for each in (start, stop, step))
    return _make("arange", (), (*ends, _dtype(dtype)), device)


def linspace(
    start: Any, stop: Any, num: int = 50, *, endpoint: bool = True, dtype: Any = None, device: Where = None
) -> Array:
    """`num` evenly spaced numbers from `start` to `stop`."""
    return _make("linspace", (), (scalar_ref(start), scalar_ref(stop), int(num), bool(endpoint), _dtype(dtype)), device)


def eye(N: int, M: int | None = None, k: int = 0, dtype: Any = float, *, device: Where = None) -> Array:  # noqa: N803
    """Ones on the k-th diagonal, zeros elsewhere."""
    return _make("eye", (), (int(N), None if M is None else int(M), int(k), _dtype(dtype)), device)


# -- elementwise


def _elementwise(name: str) -> Callable[..., Any]:
    operation = BY_NAME[name]
    ufunc = getattr(np, name)

    def function(*operands: Any, out: Any = None, **options: Any) -> Any:
        if options or type(out) is tuple:
            from .protocols import array_ufunc  # here, as it imports this module

            return array_ufunc(ufunc, "__call__", operands, {**options, "out": out if type(out) is tuple else (out,)})
        if len(operands) != operation.inputs:
            raise TypeError(f"{name}() takes {operation.inputs} arrays, {len(operands)} were given")
        if out is not None and (operation.outputs > 1 or not isinstance(out, Array)):
            wanted = "no out=" if operation.outputs > 1 else f"an array on a device as out=, not a {type(out).__name__}"
            raise TypeError(f"{name}() takes {wanted}")
        return _issue_elementwise(operation, operands, out)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"`numpy.{name}` on arrays of a device; numbers and NumPy arrays go there by themselves.\n\n" + (
        (ufunc.__doc__ or "").partition("\n\n")[2].partition("\n\n")[0].strip()
    )
    return function


# By number, the functions that issue a ufunc on arrays, or on an array and a bare number, as operators do.
_QUICK: dict[int, Callable[..., Any]] = {
    operation.number: (unary_method if operation.inputs == 1 else binary_method)(operation.name)
    for operation in OPERATIONS
    if operation.plain
}
_BESIDE_ARRAYS = frozenset((Array, float, int))


def _issue_elementwise(operation: Operation, operands: tuple[Any, ...], out: Array | None = None) -> Any:
    quick = _QUICK.get(operation.number)
    if out is None and quick is not None and type(operands[0]) is Array and type(operands[-1]) in _BESIDE_ARRAYS:
        return quick(*operands)
    lane = _lane_among((*operands, out)) or lane_of(None)
    return call(operation, operands, into=out, lane=lane, cls=Array)


for _operation in OPERATIONS:
    if _operation.kind == "ufunc":
        globals()[_operation.name] = _elementwise(_operation.name)

abs = globals()["absolute"]
conj = globals()["conjugate"]
true_divide = globals()["divide"]
mod = globals()["remainder"]
pow = globals()["power"]


def where(condition: Any, x1: Any = None, x2: Any = None, /) -> Any:
    """Elements of `x1` where the condition holds, of `x2` elsewhere; without both, as `nonzero`."""
    if x1 is None and x2 is None:
        return named.call("nonzero", (condition,))
    if x1 is None or x2 is None:
        raise ValueError("either both or neither of x and y should be given")
    return _make("where", (condition, x1, x2), (), None)


def clip(a: Any, min: Any = None, max: Any = None, *, a_min: Any = None, a_max: Any = None) -> Array:
    """The elements, those below or above the bounds replaced by them."""
    low, high = a_min if min is None else min, a_max if max is None else max
    bounds = tuple(bound for bound in (low, high) if bound is not None)
    return _make("clip", (a, *bounds), (low is not None, high is not None), None)


def astype(x: Array, dtype: Any, /, *, copy: bool = True, device: Where = None) -> Array:
    """The elements in another dtype, on another device if one is named."""
    made = asarray(x).astype(dtype, copy=copy)
    return made if device is None else made.to(device)


# -- reductions and shapes: the array's own methods


def _method(name: str) -> Callable[..., Any]:
    def function(*args: Any, **options: Any) -> Any:
        x, *rest = args or (options.pop("a"),)
        return getattr(asarray(x), name)(*rest, **options)

    function.__name__ = function.__qualname__ = name
    function.__wrapped__ = getattr(np, name)  # type: ignore[attr-defined]  # its signature is this one's
    function.__doc__ = getattr(Array, name).__doc__ or f"`numpy.{name}`, on an array of a device."
    return function


_METHODS = (
    "sum", "prod", "mean", "var", "std", "max", "min", "argmax", "argmin", "any", "all", "cumsum", "cumprod", "round",
    "swapaxes", "squeeze", "ravel", "dot",
)  # fmt: skip
for _name in _METHODS:
    globals()[_name] = _method(_name)

amax = globals()["max"]
amin = globals()["min"]


def _one(name: str, x: Any, *static: Any) -> Array:
    return _make(name, (asarray(x),), static, None)


def reshape(x: Any, /, shape: Any, order: str = "C", *, copy: bool | None = None) -> Array:
    """A view of this shape where there is one, else a copy."""
    return asarray(x).reshape(shape, order=order, copy=copy)


def copy(x: Any, order: str = "K") -> Array:
    """An independent array with the same elements."""
    return asarray(x).copy(order)


def transpose(x: Any, axes: Any = None) -> Array:
    """A view with the axes in another order; None reverses them."""
    return asarray(x).transpose(axes)


permute_dims = transpose


def sort(x: Any, axis: int | None = -1, *, descending: bool = False, stable: bool = True) -> Array:
    """A sorted copy along an axis."""
    made = _one("sort", x, axis)
    return _flipped(made, -1 if axis is None else axis) if descending else made


def argsort(x: Any, axis: int | None = -1, *, descending: bool = False, stable: bool = True) -> Array:
    """The indices that would sort along an axis; of equal elements in their order, unless `stable` is False."""
    array = asarray(x)
    if descending:  # from behind, so that of equal ones the first stays the first
        along = -1 if axis is None else axis
        array = array.ravel() if axis is None else array
        last = array.shape[along] - 1 if array.ndim else 0
        order: Array = last - _flipped(argsort(_flipped(array, along), along, stable=stable), along)
        return order
    if stable:
        made: Array = named.call("argsort", (array, axis), {"stable": True})
        return made
    return _one("argsort", array, axis)


def _flipped(array: Array, axis: int) -> Array:
    if not array.ndim:
        return array
    key = [slice(None)] * array.ndim
    key[axis] = slice(None, None, -1)
    return array[tuple(key)]


def tril(x: Any, k: int = 0) -> Array:
    """The lower triangle."""
    return _one("tril", x, k)


def triu(x: Any, k: int = 0) -> Array:
    """The upper triangle."""
    return _one("triu", x, k)


def expand_dims(x: Any, axis: Any) -> Array:
    """A view with axes of extent 1 put in."""
    source = asarray(x)
    return source._view(views.expand_dims(source._spec, source._offset, axis))


def moveaxis(x: Any, source: Any, destination: Any) -> Array:
    """A view with axes moved."""
    array = asarray(x)
    return array._view(views.moveaxis(array._spec, array._offset, source, destination))


def broadcast_to(x: Any, shape: Any) -> Array:
    """A read-only view of a larger shape."""
    source = asarray(x)
    return source._view(views.broadcast_to(source._spec, source._offset, shape), frozen=True)


def concatenate(arrays: Sequence[Any], axis: int | None = 0, *, dtype: Any = None) -> Array:
    """The arrays joined along an axis; all on one device."""
    return _join("concatenate", arrays, axis, dtype)


def stack(arrays: Sequence[Any], axis: int = 0, *, dtype: Any = None) -> Array:
    """The arrays joined along a new axis; all on one device."""
    return _join("stack", arrays, axis, dtype)


concat = concatenate


def _join(name: str, arrays: Any, axis: Any, dtype: Any) -> Array:
    parts = list(arrays)
    if not parts:
        raise ValueError(f"need at least one array to {name}")
    lane = _lane_among(parts) or lane_of(None)
    here = [part if isinstance(part, Handle) else asarray(part, device=lane.device) for part in parts]
    made: Array = call(BY_NAME[name], tuple(here), (axis, _dtype(dtype)), lane=lane, cls=Array)
    return made


def unique_values(x: Any, /) -> Array:
    """The different elements, in order, as code relies on it; NumPy's function of this name gives them as they come."""
    made: Array = named.call("unique", (asarray(x),), {"equal_nan": False})
    return made


def from_dlpack(x: Any, /, *, device: Where = None, copy: bool | None = None) -> Array:
    """An array with the elements of another library's, which lie in the host's memory."""
    if isinstance(x, Array):
        return asarray(x, device=device, copy=copy)
    if copy is False:
        raise BufferError("the elements are copied to a worker: they cannot be had without a copy")
    return asarray(np.from_dlpack(x), device=device)


def isdtype(dtype: Any, kind: Any) -> bool:
    """Whether a dtype is of a kind, as `numpy.isdtype` says."""
    return np.isdtype(dtype, kind)


def finfo(type: Any, /) -> Any:
    """`numpy.finfo` of a dtype or of an array's."""
    return np.finfo(type.dtype if isinstance(type, Array) else type)


def iinfo(type: Any, /) -> Any:
    """`numpy.iinfo` of a dtype or of an array's."""
    return np.iinfo(type.dtype if isinstance(type, Array) else type)


def _of_dtypes(function: Any) -> Callable[..., Any]:
    """NumPy's function of dtypes and of what has one."""

    def answer(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)  # NumPy comes back for arrays

    answer.__name__ = answer.__qualname__ = function.__name__
    answer.__wrapped__ = function  # type: ignore[attr-defined]
    answer.__doc__ = f"`numpy.{function.__name__}`."
    return answer


result_type = _of_dtypes(np.result_type)
can_cast = _of_dtypes(np.can_cast)
broadcast_shapes = _of_dtypes(np.broadcast_shapes)
promote_types = _of_dtypes(np.promote_types)
common_type = _of_dtypes(np.common_type)
einsum_path = _of_dtypes(np.einsum_path)
shape = _of_dtypes(np.shape)
ndim = _of_dtypes(np.ndim)
size = _of_dtypes(np.size)
iscomplexobj = _of_dtypes(np.iscomplexobj)
isrealobj = _of_dtypes(np.isrealobj)
may_share_memory = _of_dtypes(np.may_share_memory)
shares_memory = _of_dtypes(np.shares_memory)


# -- all others


def __getattr__(name: str) -> Any:
    """NumPy's function of this name, which workers know."""
    if name not in BY_NAME_ONLY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .protocols import named_here  # here, as it imports this module

    made = globals()[name] = named_here(getattr(np, name))
    return made


OWN = (
    *[operation.name for operation in OPERATIONS if operation.kind == "ufunc"], *_METHODS,
    "abs", "amax", "amin", "arange", "argsort", "array", "asarray", "astype", "broadcast_to", "clip", "concat",
    "concatenate", "conj", "copy", "empty", "empty_like", "expand_dims", "eye", "full", "full_like", "linspace",
    "mod", "moveaxis", "ones", "ones_like", "permute_dims", "pow", "reshape", "sort", "stack", "transpose", "tril",
    "triu", "true_divide", "where", "zeros", "zeros_like",
)  # fmt: skip
ALIASES = {
    "acos": "arccos", "acosh": "arccosh", "asin": "arcsin", "asinh": "arcsinh", "atan": "arctan", "atan2": "arctan2",
    "atanh": "arctanh", "bitwise_invert": "invert", "bitwise_left_shift": "left_shift", "bitwise_not": "invert",
    "bitwise_right_shift": "right_shift",
}  # fmt: skip
for _alias, _name in ALIASES.items():
    globals()[_alias] = globals()[_name]
# Not what NumPy's functions of these names do on Interlock's arrays; most are answered without a worker.
_HERE = (
    "broadcast_shapes", "can_cast", "common_type", "einsum_path", "finfo", "from_dlpack", "iinfo", "iscomplexobj",
    "isdtype", "isrealobj", "may_share_memory", "ndim", "promote_types", "result_type", "shape", "shares_memory",
    "size", "unique_values",
)  # fmt: skip
_FIXED = frozenset((*OWN, *ALIASES, *_HERE))
BY_NAME_ONLY = frozenset(
    name for name in (*FUNCTIONS, *_NEW_UFUNCS) if name not in _FIXED and "." not in name and hasattr(np, name)
)
__all__ = sorted((*_FIXED, *BY_NAME_ONLY))
