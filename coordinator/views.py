"""The geometry of views: where in its buffer a view lies, by NumPy's own rules and with NumPy's own errors.

A view is a (Spec, offset): the offset is the bytes from the start of the buffer to the element at index (0, 0, ...).
NumPy itself indexes and transposes *ghost memory*: address space that is reserved and never touched, so an array of
terabytes costs nothing. Geometry does not depend on where in a buffer a view starts, so it is kept per (spec, key).
Knows nothing of buffers, devices or values. Pure, but for the one reservation of address space.
"""

from __future__ import annotations

import functools
import mmap
import operator
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from ..protocol.specs import Spec, spec

View = tuple[Spec, int]
Array = np.ndarray[Any, Any]

_NORESERVE: Final = 0x4000
_KEPT: Final = 20_000  # results of index() kept, and as many of the other functions


def _reserve() -> mmap.mmap:
    """As much untouched, read-only address space as the system grants."""
    for bits in range(45, 24, -1):
        try:
            return mmap.mmap(
                -1, 1 << bits, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE, prot=mmap.PROT_READ
            )
        except (OSError, ValueError):
            continue
    raise MemoryError("no address space for the geometry of views: is the limit on virtual memory very low?")


_GHOST: Final = _reserve()
_MIDDLE: Final = len(_GHOST) // 2  # negative strides reach downwards from here, positive ones upwards
_BASE: Final[int] = np.ndarray((1,), np.uint8, _GHOST, _MIDDLE).__array_interface__["data"][0]


class AdvancedKey(Exception):
    """The key holds a list, an array or a bool: it selects a copy, not a view."""


def ghost(spec: Spec) -> Array:
    """An array of this geometry over memory that must not be read for its values."""
    return np.ndarray(spec.shape, spec.dtype, _GHOST, _MIDDLE, spec.strides)


def ghost_at(spec: Spec, offset: int) -> Array:
    """As `ghost`, this many bytes further on."""
    return np.ndarray(spec.shape, spec.dtype, _GHOST, _MIDDLE + offset, spec.strides)


def placed(array: Array, offset: int) -> View:
    """The view that this array over ghost memory is, of an array that begins at `offset`."""
    derived, delta = _geometry(array)
    if not -_MIDDLE <= delta < _MIDDLE:
        raise AssertionError("NumPy made a copy where it promises a view")
    return derived, offset + delta


def _geometry(array: Array) -> View:
    # A view of no elements may be given any address by NumPy: its own stays inside the buffer.
    delta = array.__array_interface__["data"][0] - _BASE if array.size else 0
    return spec(array.shape, array.dtype, array.strides), delta


def derive(spec: Spec, offset: int, function: Callable[[Array], Array]) -> View | None:
    """The geometry of `function(array)`; None if that is not a view of the array (then it is a copy).

    Args:
        spec: of the array.
        offset: of the array in its buffer.
        function: pure geometry: must not look at a value. What it raises passes through.
    """
    derived, delta = _geometry(function(ghost(spec)))
    return (derived, offset + delta) if -_MIDDLE <= delta < _MIDDLE else None


# -- indexing ---------------------------------------------------------------------------------------------------------

_indexed: dict[tuple[Spec, object], View] = {}

# NumPy's words for what is no index at all
NOT_AN_INDEX: Final = (
    "only integers, slices (`:`), ellipsis (`...`), numpy.newaxis (`None`) and integer or boolean "
    "arrays are valid indices"
)


def index(spec: Spec, offset: int, key: object) -> View:
    """The view that `array[key]` is. Unlike NumPy, a view without axes where NumPy gives a scalar.

    Raises:
        AdvancedKey: the key selects a copy (`getitem_advanced`).
        IndexError: as NumPy raises it.
    """
    cached = (spec, (tuple, *map(_hashable, key)) if type(key) is tuple else _hashable(key))
    found = _indexed.get(cached)
    if found is None:
        found = _index(spec, key)
        if len(_indexed) >= _KEPT:
            _indexed.clear()
        _indexed[cached] = found
    return found[0], offset + found[1]


def _hashable(item: object) -> object:
    """One item of a key, with a slice (not hashable before Python 3.12) as a tuple; refuses advanced items."""
    kind = type(item)
    if kind is int or item is None or item is Ellipsis:
        return item
    if kind is slice:
        assert isinstance(item, slice)
        return (slice, _bound(item.start), _bound(item.stop), _bound(item.step))
    if isinstance(item, np.integer):
        return int(item)
    if is_advanced(item):
        raise AdvancedKey
    try:
        return operator.index(item)  # type: ignore[arg-type]
    except TypeError:
        raise IndexError(NOT_AN_INDEX) from None


def is_advanced(item: object) -> bool:
    """Whether this item of a key makes NumPy copy: bools, sequences, whatever has a dtype."""
    return (isinstance(item, (bool, Sequence)) and not isinstance(item, (str, bytes))) or (
        hasattr(item, "dtype") and not isinstance(item, np.integer)
    )


def without_masks(spec: Spec, key: object) -> tuple[Any, bool]:
    """The key with the index arrays that NumPy makes of masks in place of the masks which are known when issued.

    Returns:
        (key, whether it holds a bool still: an array's elements that the worker has, or a bool without an axis).
    """
    items = list(key) if type(key) is tuple else [key]
    found: list[Any] = []
    axis, left = 0, False
    for place, item in enumerate(items):
        if item is Ellipsis:
            axis = spec.ndim - sum(map(_consumed, items[place + 1 :]))
        mask = item if _is_mask(item) else None
        if mask is not None and (mask is True or mask is False or not hasattr(mask, "_ref")):
            mask = np.asarray(mask)
            if mask.ndim:
                _check_mask(spec, mask, axis)
                found += mask.nonzero()
                axis += mask.ndim
                continue
        left = left or mask is not None
        found.append(item)
        axis += _consumed(item)
    return (tuple(found) if type(key) is tuple or len(found) != 1 else found[0]), left


def _is_mask(item: Any) -> bool:
    if isinstance(item, (bool, np.bool_)):
        return True
    if isinstance(item, (list, tuple)):
        return np.asarray(item).dtype.kind == "b" if not any(hasattr(each, "_ref") for each in item) else False
    return getattr(getattr(item, "dtype", None), "kind", "") == "b"


def _consumed(item: Any) -> int:
    """How many axes an item of a key takes."""
    if item is None or item is Ellipsis:
        return 0
    return int(np.ndim(item)) if _is_mask(item) else 1


def _check_mask(spec: Spec, mask: Array, axis: int) -> None:
    for place, extent in enumerate(mask.shape):
        if axis + place >= spec.ndim:
            raise IndexError(
                f"too many indices for array: array is {spec.ndim}-dimensional, but {axis + mask.ndim} were indexed"
            )
        if extent != spec.shape[axis + place]:
            raise IndexError(
                f"boolean index did not match indexed array along axis {axis + place}; size of axis is "
                f"{spec.shape[axis + place]} but size of corresponding boolean axis is {extent}"
            )


def encode_key(key: object, handle: type) -> tuple[tuple[Any, ...], list[Any]]:
    """The static value `key` of `getitem_advanced` and `setitem_advanced`, and the index arrays that are operands.

    Lists and NumPy arrays of integers are constants in the key: their bounds are checked by `infer`.

    Args:
        key: what stood in the brackets.
        handle: the class of Interlock's arrays.
    """
    items: list[object] = []
    arrays: list[object] = []
    for item in key if type(key) is tuple else (key,):
        if isinstance(item, handle):
            items.append("@")
            arrays.append(item)
        elif is_advanced(item):
            items.append(_constant(item))
        else:
            plain = _hashable(item)
            items.append(
                "..."
                if plain is Ellipsis
                else ("s", *map(_in_64_bits, plain[1:]))
                if isinstance(plain, tuple)
                else plain
            )
    if items.count("...") > 1:
        raise IndexError("an index can only have a single ellipsis ('...')")
    return tuple(items), arrays


def _constant(item: Any) -> tuple[str, str, tuple[int, ...], bytes]:
    array = np.asarray(item)
    if array.size == 0 and not isinstance(item, np.ndarray):
        array = array.astype(np.intp)  # an empty list is a list of no indices
    if array.dtype.kind not in "iu":
        raise IndexError("arrays used as indices must be of integer (or boolean) type")
    array = array.astype(np.intp)
    return "c", array.dtype.str, array.shape, array.tobytes()


def _bound(bound: Any) -> int | None:
    if bound is None or type(bound) is int:
        return bound
    try:
        return operator.index(bound)
    except TypeError:
        raise TypeError("slice indices must be integers or None or have an __index__ method") from None


def _in_64_bits(bound: int | None) -> int | None:
    """Of a slice: beyond every array is beyond every array."""
    return None if bound is None else min(max(bound, -(1 << 63)), (1 << 63) - 1)


def _index(spec: Spec, key: object) -> View:
    key = key if type(key) is tuple else (key,)
    if not any(item is Ellipsis for item in key):
        key = (*key, Ellipsis)  # then NumPy gives a view where it would read a scalar
    return _geometry(ghost(spec)[key])


# -- the other views --------------------------------------------------------------------------------------------------


def reshape(spec: Spec, offset: int, shape: int | Sequence[int], order: str = "C") -> View | None:
    """The view that `array.reshape(shape)` is; None if it needs a copy.

    Then a copy of the whole in this order (operation `copy`) reshapes without another one.
    """
    extents = (shape,) if type(shape) is int else shape
    if type(extents) is tuple and _INT.issuperset(map(type, extents)):
        found = _reshaped(spec, extents, order)
    else:
        found = _reshape(spec, shape, order)
    return None if found is None else (found[0], offset + found[1])


def _reshape(spec: Spec, shape: Any, order: str) -> View | None:
    try:
        return _geometry(np.reshape(ghost(spec), shape, order=order, copy=False))  # type: ignore[call-overload]
    except ValueError as error:
        if "avoid creating a copy" in str(error):
            return None
        raise


_INT: Final = frozenset((int,))
_reshaped = functools.lru_cache(_KEPT)(_reshape)


def ravel(spec: Spec, offset: int, order: str = "C") -> View | None:
    """The view that `array.ravel(order)` is; None if it needs a copy, as `array.flatten(order)` always does.

    For the copy: operation `copy` with `ravel_order(spec, order)`, then a reshape to one axis in that order; with 'K'
    a transposition to `ravel_axes` of infer, operation `copy` with 'C', then a reshape to one axis.
    """
    if order == "K":
        backwards = any(stride < 0 for stride, extent in zip(spec.strides, spec.shape, strict=True) if extent > 1)
        if backwards or not spec.contiguous:
            return None
        axes = memory_order(spec)
        transposed = transpose(spec, offset, axes)
        return reshape(*transposed, -1)
    order = ravel_order(spec, order)
    flags = ghost(spec).flags
    if not (flags.f_contiguous if order == "F" else flags.c_contiguous):
        return None  # even where a reshape would be a view: NumPy promises a contiguous result
    return reshape(spec, offset, -1, order)


def ravel_order(spec: Spec, order: str) -> str:
    """What order 'A' means for this array; the others as they are."""
    if order != "A":
        return order
    flags = ghost(spec).flags
    return "F" if flags.f_contiguous and not flags.c_contiguous else "C"


def memory_order(spec: Spec) -> tuple[int, ...]:
    """The axes from the slowest to the fastest in memory."""
    return tuple(sorted(range(spec.ndim), key=lambda axis: (-abs(spec.strides[axis]), axis)))


def transpose(spec: Spec, offset: int, axes: Sequence[int] | None = None) -> View:
    """The view that `array.transpose(axes)` is."""
    if axes is None:
        derived, delta = _reversed(spec)
        return derived, offset + delta
    return _view(spec, offset, lambda array: array.transpose(axes))


@functools.lru_cache(_KEPT)
def _reversed(spec: Spec) -> View:
    return _geometry(ghost(spec).T)


def swapaxes(spec: Spec, offset: int, first: int, second: int) -> View:
    """The view that `array.swapaxes(first, second)` is."""
    return _view(spec, offset, lambda array: array.swapaxes(first, second))


def moveaxis(spec: Spec, offset: int, source: int | Sequence[int], destination: int | Sequence[int]) -> View:
    """The view that `numpy.moveaxis(array, source, destination)` is."""
    return _view(spec, offset, lambda array: np.moveaxis(array, source, destination))


def squeeze(spec: Spec, offset: int, axis: int | tuple[int, ...] | None = None) -> View:
    """The view that `array.squeeze(axis)` is."""
    return _view(spec, offset, lambda array: array.squeeze(axis))


def expand_dims(spec: Spec, offset: int, axis: int | tuple[int, ...]) -> View:
    """The view that `numpy.expand_dims(array, axis)` is."""
    return _view(spec, offset, lambda array: np.expand_dims(array, axis))


def broadcast_to(spec: Spec, offset: int, shape: int | tuple[int, ...]) -> View:
    """The view that `numpy.broadcast_to(array, shape)` is. Writing through it is refused, as it is in NumPy."""
    return _view(spec, offset, lambda array: np.broadcast_to(array, shape))


def _view(spec: Spec, offset: int, function: Callable[[Array], Array]) -> View:
    derived = derive(spec, offset, function)
    if derived is None:
        raise AssertionError("NumPy made a copy where it promises a view")
    return derived


# -- questions --------------------------------------------------------------------------------------------------------
