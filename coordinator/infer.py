"""What an operation will give: the specs of its results, or NumPy's own error, before anything is sent.

NumPy itself decides, on a *shrunk sample*: each operand is stood for by a small array of ones with the same dtype, the
same order of the axes in memory, and extents that are 0, 1 or small, equal where the real ones are equal. What NumPy
makes of the sample has the dtype and the order in memory that the real result will have, and its extents lead back to
the real ones. If NumPy refuses the sample, it is asked again with the real shapes (all elements one and the same), so
that the error has the words the user knows. Results may be kept by the caller, keyed on the operation, the operands'
specs (or `weak_key` of a scalar) and the static values.

Pure: no sockets, threads, clocks or devices. Does not know values, but for scalars and static values.
"""

from __future__ import annotations

import functools
import math
import operator
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from ..protocol.operations import BY_NAME, Operation
from ..protocol.specs import Spec, packed_strides, spec
from ..protocol.trees import decode
from . import views
from .numbers import Number

Scalar = bool | int | float | complex | np.generic
Operand = Spec | Scalar
Ref = tuple[bool | int | float] | tuple[str, bytes]
Static = tuple[Any, ...]
Array = np.ndarray[Any, Any]

GENERATOR: Final = spec((), np.dtype("V1"))  # stands for a random generator; no operation on arrays takes it
_INT64: Final = np.iinfo(np.int64)
_LOW, _HIGH = int(_INT64.min), int(_INT64.max)
_QUIET: Final = {"all": "ignore"}  # warnings about values belong to the real run
_COMPARISONS: Final = frozenset(("equal", "not_equal", "less", "less_equal", "greater", "greater_equal"))
# Where a Python int must fit the dtype of the result (for ufuncs, that of their loop).
_REFUSING: Final = {"assign", "setitem_advanced", "full"} | (
    {"where"} if np.lib.NumpyVersion(np.__version__) >= "2.5.0" else set()
)
_NEVER_EMPTY: Final = frozenset(("mean", "var", "std"))  # warn about samples without elements


class Inferred(NamedTuple):
    """The results' specs, and for which plain Python ints among the operands they hold.

    A Python int in low..high gives the same specs, raises nothing, and may travel bare as `(value,)`. For an int
    outside ask again, and send it by `encode_scalar`. An empty range (low > high) never hits. It has no meaning
    without ints.
    """

    specs: tuple[Spec, ...]
    low: int = _LOW
    high: int = _HIGH


# -- what callers ask -------------------------------------------------------------------------------------------------


def infer(operation: Operation, operands: tuple[Operand, ...], static: Static) -> Inferred:
    """The specs of an operation's new buffers.

    Args:
        operation: a row of the table.
        operands: the Spec of each array (GENERATOR for a generator), each scalar as the user gave it.
        static: as `protocol/operations.py` says.

    Raises:
        TypeError: also for a dtype that Interlock does not hold.
        Exception: whatever else NumPy raises for these operands, with its own words.
    """
    _check(operation, operands, static)
    specs = _RULES[operation.kind](operation, operands, static)
    for made in specs:
        if made is not GENERATOR:
            check_dtype(made.dtype)
            if max((made.nbytes, *made.shape, *made.strides)) > _HIGH:
                raise ValueError(
                    "array is too big; `arr.size * arr.dtype.itemsize` is larger than the maximum possible size."
                )
    _check_range(static)
    result = operands[0] if operation.name in ("assign", "setitem_advanced") else specs[0] if specs else None
    return Inferred(specs, *_int_range(operation, operands, result))


def infer_into(operation: Operation, operands: tuple[Operand, ...], static: Static, target: Spec) -> Inferred:
    """As `infer`, for one result that is written into an existing array: `out=target`, `target += ...`.

    The specs are `(target,)`. Refused as by NumPy: a target of the wrong shape, a cast that is not same_kind, a target
    whose elements share memory (a broadcast array).
    """
    _check(operation, operands, static)
    check_dtype(target.dtype)
    if _is_broadcast(target):
        raise ValueError("output array is read-only")
    if operation.kind in ("ufunc", "call", "clip") and operation.name in _TAKES_OUT:
        flat, filled = _flattened(operation, operands, static)
        call = _caller(operation, filled)
        _run(operation, lambda out, *rest: call(*rest, out=out), (target, *flat), target=True)
        result = target
    else:
        (result,) = _RULES[operation.kind](operation, operands, static)
        if result.shape != target.shape:
            raise ValueError(f"output array has shape {target.shape}, but the result has shape {result.shape}")
        _run(operation, lambda out, made: np.copyto(out, made, casting="same_kind"), (target, result), target=True)
    _check_range(static)
    return Inferred((target,), *_int_range(operation, operands, result))


def encode_scalar(operation: Operation, operands: tuple[Operand, ...], position: int, result: Spec) -> Ref:
    """The reference for the scalar at `position`: the worker computes with it what NumPy would with the user's own.

    To be called after `infer` accepted the operands. A bool, a float and an int of 64 bits travel bare.

    Args:
        operation: a row of the table.
        operands: as for `infer`.
        position: of the scalar among the operands.
        result: the first that `infer` gave; for `assign` and `setitem_advanced` the target.
    """
    value: Any = operands[position]
    if isinstance(value, np.generic):
        return value.dtype.str, value.tobytes()
    if isinstance(value, (bool, float)):
        return (bool(value) if isinstance(value, bool) else float(value),)
    if isinstance(value, int) and _LOW <= value <= _HIGH:
        return (int(value),)
    if operation.name == "where" and position == 0:
        return (bool(value),)
    dtype = _loop_dtypes(operation, operands)[position] if operation.kind == "ufunc" else result.dtype
    if isinstance(value, complex) and dtype.kind != "c":
        dtype = np.dtype(complex)  # the imaginary part is dropped by the worker, as by NumPy
    if isinstance(value, int) and dtype.kind in "biu" and operation.name != "where":
        value, dtype = _fitting(operation, value, dtype)
    box = np.empty((), dtype)
    with np.errstate(all="ignore"):
        if operation.name == "where":  # which makes an array of it first, so that ints wrap
            value = np.asarray(value)
        elif isinstance(value, int) and dtype.kind in "fc" and abs(value) > sys.float_info.max:
            value = math.inf if value > 0 else -math.inf  # a bound beyond floats, which clip accepted for ints
        box[()] = value
    return dtype.str, box.tobytes()


def scalar_ref(value: Scalar | Number | None) -> Ref | None:
    """The reference for a scalar among static values, where no array decides what it becomes."""
    if value is None:
        return None
    if type(value) is Number:
        return scalar_ref(value.pinned())
    if isinstance(value, np.generic) or not isinstance(value, (bool, int, float)):
        typed = np.asarray(value)
        check_dtype(typed.dtype)
        return typed.dtype.str, typed.tobytes()
    if isinstance(value, int) and not _LOW <= value <= _HIGH:
        return scalar_ref(np.uint64(value)) if 0 <= value < 1 << 64 else (float(value),)
    return (value,)


def weak_key(value: Scalar) -> object:
    """The part of a cache's key that stands for a scalar operand: what NumPy's answer depends on."""
    kind = type(value)
    if kind is int or kind is float or kind is bool or kind is complex:
        return kind
    if isinstance(value, np.signedinteger) and value < 0:
        return value.dtype, "negative"  # a negative power of ints is refused
    if isinstance(value, np.generic):
        return value.dtype
    for base in (int, float, complex):
        if isinstance(value, base):
            return base
    raise TypeError(f"an operand of type {kind.__name__} is not supported: arrays and numbers are")


def fast_power(dtype: np.dtype[Any], exponent: object) -> Operation | None:
    """The operation by which NumPy's `**` (not `numpy.power`) computes this power, if another than `power`."""
    if type(exponent) is Number:
        exponent = exponent.pinned()
    if type(exponent) is int and exponent == 2:
        return BY_NAME["square"]
    if dtype.kind in "fc":
        if type(exponent) is int and exponent == -1:
            return BY_NAME["reciprocal"]
        if type(exponent) is float and exponent == 0.5:
            return BY_NAME["sqrt"]
    return None


def seed_words(seed: Any) -> tuple[int, ...]:
    """An int seed, or a sequence of them, as the 32-bit words that `rng_new` carries: they give the same stream."""
    if not isinstance(seed, (int, np.integer)):
        return tuple(word for part in seed for word in seed_words(part))
    value = operator.index(seed)
    if value < 0:
        raise ValueError("expected non-negative integer")
    words = [value & 0xFFFFFFFF]
    while value := value >> 32:
        words.append(value & 0xFFFFFFFF)
    return tuple(words)


@functools.lru_cache(4096)
def like_order(spec: Spec) -> tuple[int, ...]:
    """The static value `order` with which `empty` and its kin make an array like this one (`empty_like`, order 'K')."""
    (copied,) = infer(BY_NAME["copy"], (spec,), ("K",)).specs
    return views.memory_order(copied)


def ravel_axes(spec: Spec) -> tuple[int, ...]:
    """The axes in the order in which `ravel(order='K')` walks: transpose so, copy in order 'C', reshape to one axis."""
    (walked,) = infer(BY_NAME["logical_not"], (spec,), ()).specs  # a ufunc walks likewise; this one takes any dtype
    return views.memory_order(walked)


def check_dtype(dtype: np.dtype[Any]) -> None:
    """Refuse what no device computes with."""
    if dtype.kind not in "biufc" or not dtype.isnative:
        raise TypeError(
            f"dtype {dtype} is not supported: arrays hold bool, int, float and complex in native byte order"
        )


# -- the shrunk sample ------------------------------------------------------------------------------------------------


class _Extents:
    """Small extents that stand for the real ones, equal where those are equal; never larger than those."""

    __slots__ = ("real", "small")

    def __init__(self, shapes: Iterable[tuple[int, ...]], without_zero: bool = False) -> None:
        distinct = sorted({extent for shape in shapes for extent in shape if extent > 1})
        self.small = {0: 0, 1: 1}
        self.small.update(zip(distinct, range(2, 2 + len(distinct)), strict=True))
        if without_zero:
            self.small[0] = 2 + len(distinct)
        self.real = {small: real for real, small in self.small.items()}

    def shrink(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return tuple([self.small[extent] for extent in shape])

    def promise(self, sample: Array, shape: tuple[int, ...] | None = None) -> Spec:
        """The spec of the real result, given the sample's. Results are made without gaps, in the sample's order."""
        if shape is None:
            shape = tuple([self.real[extent] for extent in sample.shape])
        return spec(shape, sample.dtype, packed_strides(shape, sample.dtype.itemsize, sample.strides))


def _make_sample(spec: Spec, shape: tuple[int, ...]) -> Array:
    """Ones of this small shape, with the axes in memory as the spec has them."""
    if 0 in shape:
        return np.ndarray(shape, spec.dtype, np.ones(1, spec.dtype), 0, spec.strides)
    steps: dict[int, int] = {0: 0}
    # a gap where the real array has one: order 'A' asks
    step = spec.dtype.itemsize * (1 if spec.contiguous else 2)
    axes = sorted((abs(stride), axis) for axis, stride in enumerate(spec.strides))
    for stride, axis in axes:
        if shape[axis] > 1 and stride not in steps:
            steps[stride] = step
            step *= shape[axis]
    strides = [
        (steps[abs(stride)] if stride >= 0 else -steps[abs(stride)]) if extent > 1 else spec.dtype.itemsize
        for stride, extent in zip(spec.strides, shape, strict=True)
    ]
    reach = [stride * (extent - 1) for stride, extent in zip(strides, shape, strict=True) if extent > 1]
    start = -sum(part for part in reach if part < 0)
    count = (start + sum(part for part in reach if part > 0)) // spec.dtype.itemsize + 1
    return np.ndarray(shape, spec.dtype, np.ones(count, spec.dtype), start, strides)


_sample = functools.lru_cache(4096)(_make_sample)  # shared: only for what is read


def _full(spec: Spec) -> Array:
    """An array of the real shape over one element."""
    return np.ndarray(spec.shape, spec.dtype, np.ones(1, spec.dtype), 0, (0,) * spec.ndim)


def _run(
    operation: Operation,
    call: Callable[..., Any],
    operands: tuple[Operand, ...],
    shapes: tuple[tuple[int, ...], ...] = (),
    target: bool = False,
) -> tuple[Any, _Extents]:
    """What `call` makes of the sample, and the extents that lead back; or NumPy's error in the words for real shapes.

    Args:
        operation: a row of the table.
        call: takes the arrays and scalars that stand for the operands.
        operands: specs and scalars.
        shapes: more shapes whose extents stand in the sample.
        target: whether the first operand is written.
    """
    real = [each.shape for each in operands if isinstance(each, Spec)]
    extents = _Extents([*real, *shapes], operation.name in _NEVER_EMPTY)
    arguments: list[Any] = [
        _sample(each, extents.shrink(each.shape)) if isinstance(each, Spec) else each for each in operands
    ]
    if target:
        assert isinstance(operands[0], Spec)
        arguments[0] = _make_sample(operands[0], extents.shrink(operands[0].shape))
    try:
        with np.errstate(all="ignore"):
            return call(*arguments), extents
    except Exception as error:
        refusal = error
    try:
        # This would take as long as the real call if NumPy accepted it, which it never does: it refused the sample.
        with np.errstate(all="ignore"):
            call(*[_full(each) if isinstance(each, Spec) else each for each in operands])
        raise refusal
    except MemoryError:
        raise refusal from None
    finally:
        del refusal  # or it and this frame, with the user's frames below it, would keep each other alive


def _is_broadcast(target: Spec) -> bool:
    overlaps = [stride == 0 and extent > 1 for stride, extent in zip(target.strides, target.shape, strict=True)]
    return target.size > 0 and any(overlaps)


# -- scalars ----------------------------------------------------------------------------------------------------------


def _loop_dtypes(operation: Operation, operands: tuple[Operand, ...]) -> tuple[Any, ...]:
    """The dtypes in which the ufunc's loop takes its operands."""
    given = [each.dtype if isinstance(each, (Spec, np.generic)) else _weak(each) for each in operands]
    ufunc: Any = getattr(np, operation.name)
    return ufunc.resolve_dtypes((*given, *[None] * ufunc.nout))  # type: ignore[no-any-return]


def _weak(value: object) -> object:
    if isinstance(value, bool):
        return np.dtype(bool)
    return int if isinstance(value, int) else float if isinstance(value, float) else complex


def _int_range(operation: Operation, operands: tuple[Operand, ...], result: Any) -> tuple[int, int]:
    """Which Python ints may stand where these operands have Python ints."""
    places = [place for place, each in enumerate(operands) if isinstance(each, int) and not isinstance(each, bool)]
    if not places:
        return _LOW, _HIGH
    low, high = _LOW, _HIGH
    if operation.kind == "ufunc":
        dtypes = () if operation.name in _COMPARISONS else _loop_dtypes(operation, operands)
        for place in places if dtypes else ():
            low, high = _narrow(low, high, dtypes[place])
            if operation.name == "power" and place == 1 and dtypes[place].kind in "iu":
                low = max(low, 0)
    elif operation.name in _REFUSING:
        low, high = _narrow(low, high, result.dtype)
    if all(low <= operator.index(operands[place]) <= high for place in places):  # type: ignore[arg-type]
        return low, high
    return 1, 0


def _narrow(low: int, high: int, dtype: np.dtype[Any]) -> tuple[int, int]:
    if dtype.kind not in "iu":
        return low, high
    limits = np.iinfo(dtype)
    return max(low, int(limits.min)), min(high, int(limits.max))


def _fitting(operation: Operation, value: int, dtype: np.dtype[Any]) -> tuple[Any, np.dtype[Any]]:
    """A constant that does what this int of more than 64 bits does: compared with ints, clipping ints."""
    if dtype.kind == "b":
        return bool(value), dtype
    limits = np.iinfo(dtype)
    if limits.min <= value <= limits.max:
        return value, dtype
    if operation.name in _COMPARISONS:
        return math.inf if value > 0 else -math.inf, np.dtype(np.float64)
    return min(max(value, int(limits.min)), int(limits.max)), dtype


# -- the rules, one for each kind -------------------------------------------------------------------------------------

Rule = Callable[[Operation, tuple[Any, ...], Static], tuple[Spec, ...]]


def _check(operation: Operation, operands: tuple[Operand, ...], static: Static) -> None:
    if operation.inputs not in (-1, len(operands)) or len(static) != len(operation.static):
        raise AssertionError(f"{operation.name} takes {operation.inputs} operands and {operation.static}")
    for operand in operands[operation.kind == "random" :]:
        if isinstance(operand, (Spec, np.generic)):
            check_dtype(operand.dtype)
        elif not isinstance(operand, (int, float, complex)):
            weak_key(operand)
    for name, value in zip(operation.static, static, strict=True):
        if name == "dtype" and value is not None:
            check_dtype(np.dtype(value))


def _check_range(value: Any) -> None:
    """Refuse, among static values, ints that do not fit into an instruction."""
    if isinstance(value, tuple):
        for each in value:
            _check_range(each)
    elif isinstance(value, int) and not _LOW <= value <= _HIGH:
        raise OverflowError(f"{value} does not fit into 64 bits")


def _caller(operation: Operation, static: Static) -> Callable[..., Any]:
    """NumPy's function with the static values filled in; takes operands and, where NumPy does, `out`."""
    function: Any = getattr(np, operation.name)
    if operation.kind == "ufunc":
        return function  # type: ignore[no-any-return]
    named = dict(zip(operation.static, static, strict=True))
    if operation.kind == "clip":
        return _clipper(named["min"], named["max"])
    if "ddof" in named:
        named["ddof"] = 0  # decides values only, and warns about small samples
    return functools.partial(function, **named)


def _clipper(has_min: bool, has_max: bool) -> Callable[..., Any]:
    def clip(array: Any, *bounds: Any, out: Any = None) -> Any:
        return np.clip(array, bounds[0] if has_min else None, bounds[-1] if has_max else None, out=out)

    return clip


def _infer_call(operation: Operation, operands: tuple[Any, ...], static: Static) -> tuple[Spec, ...]:
    operands, static = _flattened(operation, operands, static)
    result, extents = _run(operation, _caller(operation, static), operands)
    results = result if operation.outputs > 1 else (result,)
    return tuple([extents.promise(np.asarray(each)) for each in results])


_FLATTENING: Final = frozenset(("cumsum", "cumprod", "sort", "argsort"))


def _flattened(operation: Operation, operands: tuple[Any, ...], static: Static) -> tuple[tuple[Any, ...], Static]:
    """With axis=None some functions take the array as flat."""
    if operation.name not in _FLATTENING or static[0] is not None:
        return operands, static
    return (spec((operands[0].size,), operands[0].dtype),), (0, *static[1:])


_TAKES_OUT: Final = frozenset(
    name for name, row in BY_NAME.items() if row.kind in ("ufunc", "call", "clip") and row.outputs == 1
) - {"sort", "argsort", "tril", "triu", "where"}


def _infer_method(operation: Operation, operands: tuple[Any, ...], static: Static) -> tuple[Spec, ...]:
    result, extents = _run(operation, operator.methodcaller(operation.name, *static), operands)
    return (extents.promise(result),)


def _infer_assign(operation: Operation, operands: tuple[Any, ...], static: Static) -> tuple[Spec, ...]:
    if _is_broadcast(operands[0]):
        raise ValueError("assignment destination is read-only")
    _run(operation, lambda target, value: operator.setitem(target, ..., value), operands, target=True)
    return ()


def _infer_join(operation: Operation, operands: tuple[Any, ...], static: Static) -> tuple[Spec, ...]:
    axis = static[0]
    function: Any = getattr(np, operation.name)

    def join(*arrays: Any) -> Any:
        return function(arrays, axis=axis, dtype=static[1])

    result, extents = _run(operation, join, operands)
    if axis is None:
        return (extents.promise(result, (sum(each.size for each in operands),)),)
    axis = operator.index(axis) % result.ndim
    if operation.name == "stack":
        extent, parts = len(operands), list(operands[0].shape)
    else:
        extent, parts = sum(each.shape[axis] for each in operands), list(operands[0].shape)
        del parts[axis]
    parts.insert(axis, extent)
    return (extents.promise(result, tuple(parts)),)


# -- indexing with arrays ---------------------------------------------------------------------------------------------


def _infer_index(operation: Operation, operands: tuple[Any, ...], static: Static) -> tuple[Spec, ...]:
    writes = operation.outputs == 0
    if writes and _is_broadcast(operands[0]):
        raise ValueError("assignment destination is read-only")
    key: tuple[Any, ...] = static[0]
    arrays = operands[1 + writes :]
    # Slices first, as a view; then what is left are whole axes, ints and index arrays.
    sliced, _ = views.index(operands[0], 0, _slices_of(key))
    constants = tuple(_constant_spec(item) for item in key if _is_constant(item))
    for each in (*arrays, *constants):
        _check_index_dtype(each.dtype)
    order = _positions(key, first_array=1 + writes, first_constant=len(operands))

    def index(*arguments: Any) -> Any:
        real_key = tuple([_stand_in(item, place, arguments) for item, place in zip(key, order, strict=True)])
        if writes:
            return operator.setitem(arguments[0], real_key, arguments[1])
        return arguments[0][real_key]

    everything = (sliced, *operands[1:], *constants)
    result, extents = _run(operation, index, everything, target=writes)
    _check_bounds(sliced, key)
    return () if writes else (extents.promise(np.asarray(result)),)


def _slices_of(key: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(
        Ellipsis if item == "..." else slice(*item[1:]) if _is_slice(item) else slice(None)
        for item in key
        if item is not None
    )


def _stand_in(item: Any, place: int, arguments: tuple[Any, ...]) -> Any:
    if place:
        return np.zeros_like(arguments[place])  # any element is as good as another
    if item is None or item == "...":
        return Ellipsis if item else None
    return slice(None) if _is_slice(item) else 0


def _positions(key: tuple[Any, ...], first_array: int, first_constant: int) -> list[int]:
    """For each item of the key: at which place in the sample its index array lies; 0 for none."""
    places = []
    for item in key:
        if item == "@":
            places.append(first_array)
            first_array += 1
        elif _is_constant(item):
            places.append(first_constant)
            first_constant += 1
        else:
            places.append(0)
    return places


def _is_slice(item: Any) -> bool:
    return isinstance(item, tuple) and item[0] == "s"


def _is_constant(item: Any) -> bool:
    return isinstance(item, tuple) and item[0] == "c"


def _constant_spec(item: Any) -> Spec:
    return spec(tuple(item[2]), np.dtype(item[1]))


def _check_index_dtype(dtype: np.dtype[Any]) -> None:
    if dtype.kind not in "iu":
        raise IndexError("arrays used as indices must be of integer (or boolean) type")


def _check_bounds(sliced: Spec, key: tuple[Any, ...]) -> None:
    """Refuse ints and constant index arrays that reach outside, in NumPy's words."""
    consuming = sum(item is not None and item != "..." for item in key)
    axis = 0
    for item in key:
        if item == "...":
            axis += sliced.ndim - consuming
        elif item is not None:
            extent = sliced.shape[axis]
            if isinstance(item, int):
                outside = [item] if not -extent <= item < extent else []
            elif _is_constant(item):
                values = np.frombuffer(item[3], item[1])
                outside = values[(values < -extent) | (values >= extent)][:1].tolist()
            else:
                outside = []
            if outside:
                raise IndexError(f"index {outside[0]} is out of bounds for axis {axis} with size {extent}")
            axis += 1


# -- new arrays -------------------------------------------------------------------------------------------------------


def _infer_create(operation: Operation, operands: tuple[Any, ...], static: Static) -> tuple[Spec, ...]:
    shape, dtype, order = static
    if operation.name == "full":
        value = operands[0]
        if dtype is None:
            dtype = value.dtype if isinstance(value, Spec) else np.asarray(value).dtype
        made = _new(shape, np.dtype(dtype), order)
        check_dtype(made.dtype)
        fill = functools.partial(np.copyto, casting="unsafe")
        _run(operation, fill, (made, *operands), target=True)
        return (made,)
    return (_new(shape, np.dtype("f8" if dtype is None else dtype), order),)


def _new(shape: Any, dtype: np.dtype[Any], order: Any) -> Spec:
    too_big = math.prod(shape) * dtype.itemsize > _HIGH
    np.empty(shape if too_big else tuple([min(extent, 1) for extent in shape]), dtype)  # NumPy refuses bad shapes
    if isinstance(order, str):
        np.empty((), dtype, order)  # type: ignore[call-overload]  # NumPy refuses bad orders
        order = range(len(shape)) if order == "C" else range(len(shape))[::-1]
    return spec(shape, dtype, _packed(shape, dtype.itemsize, order))


def _packed(shape: tuple[int, ...], itemsize: int, order: Sequence[int]) -> tuple[int, ...]:
    """Strides without gaps, given the axes from the slowest to the fastest."""
    like = [0] * len(shape)
    for place, axis in enumerate(reversed(order), 1):
        like[axis] = place
    return packed_strides(shape, itemsize, tuple(like))


def _infer_sequence(operation: Operation, operands: tuple[Any, ...], static: Static) -> tuple[Spec, ...]:
    named = dict(zip(operation.static, static, strict=True))
    with np.errstate(all="ignore"):
        if operation.name == "eye":
            rows, columns = named["N"], named["N"] if named["M"] is None else named["M"]
            sample = np.eye(min(rows, 2), min(columns, 2), named["k"], named["dtype"] or float)
            return (spec((rows, columns), sample.dtype),)
        start, stop = _value(named["start"]), _value(named["stop"])
        if operation.name == "linspace":
            num = named["num"]
            sample = np.linspace(start, stop, min(num, 2), named["endpoint"], dtype=named["dtype"])
            return (spec((num,), sample.dtype),)
        return (_arange(start, stop, _value(named["step"]), named["dtype"]),)


def _value(ref: Any) -> Any:
    """The scalar that a reference stands for."""
    if ref is None:
        return None
    return ref[0] if len(ref) == 1 else np.frombuffer(ref[1], ref[0])[0]


def _arange(start: Any, stop: Any, step: Any, dtype: Any) -> Spec:
    given = [each for each in (start, stop, step) if each is not None]
    if stop is None:
        start, stop = 0, start
    step = 1 if step is None else step
    try:
        length = math.ceil((stop - start) / step)  # as NumPy counts
    except (ZeroDivisionError, ValueError, OverflowError):
        return spec(np.arange(start, stop, step).shape, np.dtype(np.int64))  # NumPy refuses nan, infinity and step 0
    if dtype is None:
        dtype = np.result_type(np.int64, *[np.asarray(each).dtype for each in given])
    if abs(length) * np.dtype(dtype).itemsize > _HIGH:
        return spec(np.arange(start, stop, step, dtype=dtype).shape, np.dtype(dtype))  # NumPy refuses, or overflows
    if abs(length) < 1 << 16 and any(isinstance(each, np.generic) for each in given):
        return spec(np.arange(start, stop, step, dtype=dtype).shape, np.dtype(dtype))  # its arithmetic may wrap
    length = max(length, 0)
    first, step = (each.item() if isinstance(each, np.generic) else each for each in (start, step))
    return spec((length,), np.arange(first, first + min(length, 3) * step, step, dtype=dtype).dtype)


# -- random numbers ---------------------------------------------------------------------------------------------------


@functools.cache
def _drawn() -> np.random.Generator:
    """Checks arguments; what it draws is thrown away. Made when needed: NumPy loads `random` when it is named first."""
    return np.random.Generator(np.random.PCG64(0))


def _infer_random(operation: Operation, operands: tuple[Any, ...], static: Static) -> tuple[Spec, ...]:
    named = dict(zip(operation.static, static, strict=True))
    name = operation.name
    if name == "rng_new":
        np.random.SeedSequence(named["seed"], spawn_key=named["spawn_key"])
        return (GENERATOR,)
    if operands[0] is not GENERATOR:
        raise TypeError(f"{name} needs a random generator as its first operand")
    if name == "rng_shuffle":
        shuffle = functools.partial(_drawn().shuffle, axis=named["axis"])
        _run(operation, lambda target: shuffle(target), operands[1:], target=True)
        return ()
    if name == "rng_permutation":
        return (_permutation(operation, operands[1:], named["x"], named["axis"]),)
    if name == "rng_choice":
        return (_choice(operation, operands[1:], **named),)
    if name == "rng_named":
        return (_draw(operation, operands[1:], **named),)
    shape = _size(named.pop("size"))
    arguments = {key: _value(ref) if key in _REFS else ref for key, ref in named.items()}
    if "dtype" in arguments and arguments["dtype"] is None:
        del arguments["dtype"]
    sample = getattr(_drawn(), name[4:])(size=tuple([min(extent, 1) for extent in shape]), **arguments)
    return (spec(shape, sample.dtype),)


_REFS: Final = frozenset(("loc", "scale", "low", "high", "lam"))


def _size(size: Any) -> tuple[int, ...]:
    return () if size is None else (size,) if isinstance(size, int) else tuple(size)


def _draw(operation: Operation, parameters: tuple[Any, ...], method: str, tree: Any, size: Any) -> Spec:
    def draw(*arrays: Any) -> Any:
        args, kwargs = decode(tree, (None, *arrays))
        if size is not None:  # one of each will do, and more where the parameters are more
            parts = [np.shape(each) for each in (*args, *kwargs.values()) if isinstance(each, np.ndarray)]
            whole = np.broadcast_shapes(*parts) if method not in _VECTORS else ()
            leading = _size(size)[: max(len(_size(size)) - len(whole), 0)]
            kwargs["size"] = tuple([min(extent, 1) for extent in leading]) + whole
        return np.asarray(getattr(_drawn(), method)(*args, **kwargs))

    result, extents = _run(operation, draw, parameters)
    if size is None:
        return extents.promise(result, tuple([extents.real.get(extent, extent) for extent in result.shape]))
    trailing = result.shape[-1:] if method in _VECTORS else ()
    shape = _size(size)
    for array in () if method in _VECTORS else parameters:
        if np.broadcast_shapes(array.shape, shape) != shape:
            raise ValueError(
                f"Output size {shape} is not compatible with broadcast dimensions of inputs {array.shape}."
            )
    return spec((*shape, *[extents.real.get(extent, extent) for extent in trailing]), result.dtype)


_VECTORS: Final = frozenset(("dirichlet", "multinomial", "multivariate_hypergeometric", "multivariate_normal"))


def _permutation(operation: Operation, pool: tuple[Any, ...], x: int | None, axis: int) -> Spec:
    if not pool:
        sample = _drawn().permutation(min(operator.index(x), 2))  # type: ignore[arg-type]
        return spec((max(operator.index(x), 0),), sample.dtype)  # type: ignore[arg-type]
    result, extents = _run(operation, lambda array: _drawn().permutation(array, axis=axis), pool)
    return extents.promise(result)


def _choice(
    operation: Operation, pool: tuple[Any, ...], a: int | None, size: Any, replace: bool, axis: int, shuffle: bool
) -> Spec:
    shape = _size(size)
    draws = tuple([min(extent, 1) for extent in shape])
    if pool:
        if not pool[0].ndim:
            raise ValueError("a must be an int or have at least one axis: the value of this array is not known yet")
        draw = functools.partial(_drawn().choice, size=draws, axis=axis, shuffle=shuffle)
        result, _ = _run(operation, lambda array: draw(array), pool)
        axis = operator.index(axis) % pool[0].ndim
        whole, population = pool[0].shape[:axis] + shape + pool[0].shape[axis + 1 :], pool[0].shape[axis]
    else:
        result = _drawn().choice(a, size=draws, shuffle=shuffle)  # type: ignore[arg-type]
        whole, population = shape, a
    if not replace and math.prod(shape) > population:
        _drawn().choice(1, size=2, replace=False)  # NumPy refuses
    return spec(whole, result.dtype)


def _infer_named(operation: Operation, operands: tuple[Any, ...], static: Static) -> tuple[Spec, ...]:
    from .fitting import find  # which few programs need

    specs = find(static[0], static[1], operands, len(operation.writes)).specs
    if specs is None:
        raise NotImplementedError(f"{static[0]} gives what only its run can tell")
    return specs


_RULES: Final[dict[str, Rule]] = {
    "ufunc": _infer_call,
    "call": _infer_call,
    "clip": _infer_call,
    "method": _infer_method,
    "assign": _infer_assign,
    "index": _infer_index,
    "join": _infer_join,
    "create": _infer_create,
    "sequence": _infer_sequence,
    "random": _infer_random,
    "named": _infer_named,
    "asked": _infer_named,
}
