"""What is known of an array before it exists: shape, dtype and memory layout, interned.

Equal specs are one object, so that the frontend's tables can be keyed on identity.
Knows nothing of where an array lies or what is in it.
"""

from __future__ import annotations

import itertools
import math
from typing import Final

import numpy as np


class Spec:
    """The shape, dtype and strides (bytes) of an array. Made by `spec()` only, compared by identity."""

    __slots__ = ("contiguous", "dtype", "dtype_str", "id", "nbytes", "ndim", "shape", "size", "strides")

    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]
    dtype_str: str  # NumPy's `dtype.str`, which takes longer to ask for
    strides: tuple[int, ...]
    size: int
    ndim: int
    nbytes: int  # of the elements, not of the span that strides cover
    contiguous: bool  # C order, or C order but for a permutation of the axes: the elements fill nbytes without a gap
    id: int  # unique in this process, in order of making, never used again; what the wire carries

    def __repr__(self) -> str:
        return f"Spec({self.shape}, {self.dtype}, strides={self.strides})"

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError("a Spec is known by identity and cannot be pickled")


_DTYPES: Final = {text: np.dtype(text) for text in {np.dtype(char).str for char in "?bhilqBHILQefdgFDG"}}
_DTYPES["|V1"] = np.dtype("V1")  # of what stands for a random generator: bytes without a meaning


def dtype_of(text: str) -> np.dtype[np.generic]:
    """The dtype that a message names by its `dtype.str`: a number's, in native byte order.

    No other is taken from a message. An array of objects over bytes that came from elsewhere, which NumPy would make,
    is an array of pointers to anywhere.

    Raises:
        TypeError: it names none of those.
    """
    try:
        return _DTYPES[text]
    except (KeyError, TypeError):
        raise TypeError(f"{str(text)[:50]!r} is not the dtype of an array that can be sent") from None


LIMIT: Final = 50_000  # specs kept for sharing; a program that makes ever new shapes starts a new table
_table: dict[tuple[object, ...], Spec] = {}
_ids = itertools.count()  # next() is one step: two threads never get the same id


def c_strides(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """The strides in bytes of a C-ordered array of `shape`."""
    strides = []
    step = itemsize
    for extent in reversed(shape):
        strides.append(step)
        step *= max(extent, 1)
    return tuple(reversed(strides))


def packed_strides(shape: tuple[int, ...], itemsize: int, like: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of a gapless array of `shape` whose axes lie in memory in the order that `like`'s strides have."""
    order = sorted(range(len(shape)), key=lambda axis: (-abs(like[axis]), axis))
    strides = [0] * len(shape)
    step = itemsize
    for axis in reversed(order):
        strides[axis] = step
        step *= max(shape[axis], 1)
    return tuple(strides)


def spec(shape: tuple[int, ...], dtype: np.dtype[np.generic], strides: tuple[int, ...] | None = None) -> Spec:
    """The one Spec of this shape, dtype and strides (bytes; None for C order).

    Args:
        shape: extents, plain ints.
        dtype: a NumPy dtype in native byte order.
        strides: bytes from one element to the next along each axis.
    """
    if strides is None:
        strides = c_strides(shape, dtype.itemsize)
    key = (shape, dtype, strides)
    found = _table.get(key)
    if found is None:
        found = _make(shape, dtype, strides)
        if len(_table) >= LIMIT:
            _table.clear()  # live specs stay valid; equal ones made from now on are other objects
        _table[key] = found
    return found


def _make(shape: tuple[int, ...], dtype: np.dtype[np.generic], strides: tuple[int, ...]) -> Spec:
    made = Spec.__new__(Spec)
    made.shape, made.dtype, made.strides = shape, dtype, strides
    made.dtype_str = dtype.str
    made.ndim = len(shape)
    made.size = math.prod(shape)
    made.nbytes = made.size * dtype.itemsize
    step, gapless = dtype.itemsize, True
    for stride, extent in sorted((s, e) for s, e in zip(strides, shape, strict=True) if e != 1):
        gapless = gapless and stride == step
        step *= extent
    made.contiguous = gapless or made.size == 0
    made.id = next(_ids)
    return made
