"""NumPy's functions on Interlock's arrays: what `np.add(x, y)` and `np.concatenate([x, y])` do.

Whatever NumPy calls with one of our arrays becomes one operation on its device. What there is no operation for is
refused with its name; nothing is read behind the user's back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..protocol.operations import BY_NAME
from . import functions
from .array import Array

_REDUCTIONS = {
    "add": "sum",
    "multiply": "prod",
    "maximum": "max",
    "minimum": "min",
    "logical_or": "any",
    "logical_and": "all",
}


def array_ufunc(ufunc: Any, method: str, inputs: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """What `__array_ufunc__` answers."""
    operation = BY_NAME.get(ufunc.__name__)
    if not options and method == "__call__" and operation is not None:
        return functions._issue_elementwise(operation, inputs)
    out = options.pop("out", (None,))
    options = {name: value for name, value in options.items() if not _is_default(name, value)}
    if method == "__call__" and operation is not None and not options and len(out) == 1:
        if out[0] is not None and not isinstance(out[0], Array):
            raise TypeError(
                f"{ufunc.__name__} cannot write the elements of an array on a device into a NumPy array: "
                f"read the result, out[...] = np.asarray({ufunc.__name__}(...))"
            )
        return functions._issue_elementwise(operation, inputs, out[0])
    if (
        method == "reduce"
        and ufunc.__name__ in _REDUCTIONS
        and out[0] is None
        and set(options) <= {"axis", "keepdims", "dtype"}
    ):
        return getattr(inputs[0], _REDUCTIONS[ufunc.__name__])(**{"axis": 0, **options})
    name = ufunc.__name__ if method == "__call__" else f"{ufunc.__name__}.{method}"
    extra = f" with {', '.join(options)}" if options else ""
    raise TypeError(
        f"numpy.{name}{extra} is not supported on Interlock's arrays; read the elements first: np.asarray(x)"
    )


def _is_default(name: str, value: Any) -> bool:
    known = {"where": True, "casting": "same_kind", "order": "K", "subok": True, "keepdims": False}
    if isinstance(value, (bool, str)):
        return known.get(name) == value
    return value is None and name == "dtype"


def array_function(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What `__array_function__` answers."""
    ours = _FUNCTIONS.get(function)
    if ours is None:
        name = f"{function.__module__}.{function.__name__}"
        raise TypeError(
            f"{name} is not supported on Interlock's arrays; read the elements first, "
            f"such as {name}(np.asarray(x)), and make an array of the result where you go on with it"
        )
    kwargs = {key: value for key, value in kwargs.items() if value is not np._NoValue}
    return ours(*args, **kwargs)


_FUNCTIONS: dict[Callable[..., Any], Callable[..., Any]] = {
    getattr(np, name): getattr(functions, name)
    for name in functions.__all__
    if name not in ("asarray", "array")
    and callable(getattr(np, name, None))
    and not isinstance(getattr(np, name), np.ufunc)
}
_FUNCTIONS[np.shape] = lambda x: x.shape
_FUNCTIONS[np.ndim] = lambda x: x.ndim
_FUNCTIONS[np.size] = lambda x, axis=None: x.size if axis is None else x.shape[axis]
_FUNCTIONS[np.array_repr] = lambda x, *args, **kwargs: repr(x)
_FUNCTIONS[np.array_str] = lambda x, *args, **kwargs: str(x)
