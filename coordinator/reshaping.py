"""NumPy's functions that give views, on Interlock's arrays: flips, diagonals, splits, real and imaginary parts.

NumPy itself is called, on memory that nobody touches (`views.ghost`), and tells the geometry of what it gives.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from . import functions, views
from .array import Array


def _viewing(function: Any, frozen: bool = False) -> Callable[..., Any]:
    """The function on one array: its views, nested as NumPy nests them."""

    def view(*args: Any, **kwargs: Any) -> Any:
        if args:
            array, *rest = args
        else:
            rest = []
            name, array = next(iter(kwargs.items()))
            kwargs = {key: value for key, value in kwargs.items() if key != name}
        array = functions.asarray(array)
        return _nest(array, function(views.ghost(array._spec), *rest, **kwargs), frozen)

    return view


def _nest(array: Array, found: Any, frozen: bool) -> Any:
    if isinstance(found, (tuple, list)):
        return type(found)([_nest(array, each, frozen) for each in found])
    if isinstance(found, np.generic) and not array.ndim:  # of an array without axes NumPy gives the element
        return array._view((array._spec, array._offset), frozen)
    return array._view(views.placed(found, array._offset), frozen)


def _real(val: Any) -> Any:
    array = functions.asarray(val)
    return _view_of_real(array) if array.dtype.kind == "c" else array


def _imag(val: Any) -> Any:
    array = functions.asarray(val)
    return _view_of_imag(array) if array.dtype.kind == "c" else functions.zeros_like(array)


_view_of_real = _viewing(lambda array: array.real)
_view_of_imag = _viewing(lambda array: array.imag)


def _diag(v: Any, k: int = 0) -> Any:
    """A view of a matrix's diagonal; what it makes of a vector is no view."""
    array = functions.asarray(v)
    return _diagonal_view(array, k) if array.ndim == 2 else NotImplemented


_diagonal_view = _viewing(np.diagonal, frozen=True)


def _at_least(function: Any) -> Callable[..., Any]:
    view = _viewing(function)

    def each(*arrays: Any) -> Any:
        made = [view(array) for array in arrays]
        return made[0] if len(made) == 1 else tuple(made)

    return each


def _broadcast_arrays(*args: Any, subok: bool = False) -> Any:
    arrays = [functions.asarray(each) for each in args]
    shape = np.broadcast_shapes(*[each.shape for each in arrays])
    return tuple([functions.broadcast_to(each, shape) for each in arrays])


def _unstack(x: Any, /, *, axis: int = 0) -> tuple[Array, ...]:
    """Not NumPy's own, which gives elements where no axis is left."""
    array = functions.asarray(x)
    if not array.ndim:
        raise ValueError("Input array must be at least 1-d.")
    return tuple(functions.moveaxis(array, axis, 0))


def _all() -> dict[Any, Callable[..., Any]]:
    names = "flip fliplr flipud rot90 split array_split hsplit vsplit dsplit rollaxis matrix_transpose"
    found: dict[Any, Callable[..., Any]] = {}
    for name in names.split():
        if hasattr(np, name):  # some are newer than the oldest NumPy that will do
            found[getattr(np, name)] = _viewing(getattr(np, name))
    if hasattr(np, "unstack"):
        found[np.unstack] = _unstack
    for name in ("atleast_1d", "atleast_2d", "atleast_3d"):
        found[getattr(np, name)] = _at_least(getattr(np, name))
    found[np.diagonal] = _diagonal_view
    found[np.linalg.diagonal] = _viewing(np.linalg.diagonal, frozen=True)
    found[np.linalg.matrix_transpose] = _viewing(np.linalg.matrix_transpose)
    found[np.lib.stride_tricks.sliding_window_view] = _viewing(np.lib.stride_tricks.sliding_window_view, frozen=True)
    found |= {np.real: _real, np.imag: _imag, np.diag: _diag, np.broadcast_arrays: _broadcast_arrays}
    return found


VIEWING: Final = _all()
