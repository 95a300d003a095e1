"""NumPy's functions on Interlock's arrays: what `np.add(x, y)` and `np.concatenate([x, y])` do.

In order: a function that has a rule of its own is issued as that (`functions.py`); one that gives a view is a view
(`reshaping.py`); one that looks at no element is answered here (`np.result_type`); any other that workers know is
called there by its name (`named.py`). What is left would need Python code, files or objects on a worker: it is
refused, naming what comes nearest. Nothing is read behind the user's back.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from ..protocol.operations import BY_NAME
from . import functions, named, reshaping, views
from .array import Array
from .client import lane_of
from .issue import Handle

_REDUCTIONS = {
    "add": "sum",
    "multiply": "prod",
    "maximum": "max",
    "minimum": "min",
    "logical_or": "any",
    "logical_and": "all",
}


# -- ufuncs -----------------------------------------------------------------------------------------------------------


def array_ufunc(ufunc: Any, method: str, inputs: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """What `__array_ufunc__` answers."""
    operation = BY_NAME.get(ufunc.__name__)
    plain = method == "__call__" and operation is not None and _is_numpys(ufunc)
    if plain and not options:
        return functions._issue_elementwise(operation, inputs)  # type: ignore[arg-type]
    out = options.pop("out", ())
    outs = [each for each in out if each is not None]
    for each in outs:
        if not isinstance(each, Array):
            raise TypeError(
                f"{ufunc.__name__} cannot write the elements of an array on a device into a NumPy array: "
                f"read the result, out[...] = np.asarray({ufunc.__name__}(...))"
            )
    options = {name: value for name, value in options.items() if not _is_default(name, value)}
    if plain and not options and len(out) == 1:
        return functions._issue_elementwise(operation, inputs, out[0])  # type: ignore[arg-type]
    if method == "reduce" and ufunc.__name__ in _REDUCTIONS and not outs and set(options) <= _OF_REDUCTIONS:
        return getattr(inputs[0], _REDUCTIONS[ufunc.__name__])(**{"axis": 0, **options})
    if not _is_numpys(ufunc) or ufunc.__name__ == "isnat":
        raise TypeError(
            f"the ufunc {ufunc.__name__} is not NumPy's own, and no worker knows it: read the elements, "
            f"{ufunc.__name__}(x.numpy()), and make an array of the result where you go on with it"
        )
    name = ufunc.__name__ if method == "__call__" else f"{ufunc.__name__}.{method}"
    if method == "at":
        if not isinstance(inputs[0], Array):
            raise TypeError(f"{name} cannot write to a NumPy array what lies on a device: read it, np.asarray(...)")
        return named.call(name, inputs, options, writes=inputs[:1])
    if len(outs) < len(out) and outs:
        raise TypeError(f"{name} takes an array for each result as out=, or none")
    if outs:
        named.call(name, inputs, {**options, "out": out}, writes=outs)
        return out[0] if len(out) == 1 else out
    return named.call(name, inputs, options)


_OF_REDUCTIONS: Final = frozenset(("axis", "keepdims", "dtype"))


def _is_numpys(ufunc: Any) -> bool:
    return getattr(np, ufunc.__name__, None) is ufunc


def _is_default(name: str, value: Any) -> bool:
    known = {"where": True, "casting": "same_kind", "order": "K", "subok": True, "keepdims": False}
    if isinstance(value, (bool, str)):
        return known.get(name) == value
    return value is None and name == "dtype"


# -- other functions --------------------------------------------------------------------------------------------------


def array_function(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What `__array_function__` answers."""
    kwargs = {key: value for key, value in kwargs.items() if value is not np._NoValue}
    ours = _FUNCTIONS.get(function)
    if ours is not None and _accepts(ours, len(args), kwargs):
        return ours(*args, **kwargs)
    return by_name(function, args, kwargs)


def by_name(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], lane: Any = None) -> Any:
    """NumPy's function where it has no rule of its own."""
    viewing = reshaping.VIEWING.get(function)
    if viewing is not None and lane is None:
        found = viewing(*args, **kwargs)
        if found is not NotImplemented:
            return found
    if function in _ON_THE_FRONTEND:
        return _ON_THE_FRONTEND[function](*args, **kwargs)
    name = named.name_of(function)
    if name is None:
        raise TypeError(_refusal(function))
    if kwargs.pop("overwrite_input", False):
        pass  # it only allows to, and takes no promise
    if name in _WRITING or (name == "nan_to_num" and _copy_is_false(args, kwargs)):
        return _write(name, args, kwargs)
    args, out = _out_of(function, args, kwargs)
    if out is None:
        return named.call(name, args, kwargs, lane=lane)
    if not isinstance(out, Array):
        raise TypeError(
            f"{name} cannot write the elements of an array on a device into a NumPy array: "
            f"read the result, out[...] = np.asarray({name}(...))"
        )
    named.call(name, args, {**kwargs, "out": out}, writes=(out,))
    return out


_WRITING: Final = frozenset(("copyto", "fill_diagonal", "place", "put", "put_along_axis", "putmask"))


def _copy_is_false(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return (len(args) > 1 and not args[1]) or not kwargs.get("copy", True)


def _write(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    target, *rest = args if args else (kwargs.pop(_FIRST_OF[name]),)
    if not isinstance(target, Array):
        raise TypeError(
            f"{name} cannot write the elements of an array on a device into a NumPy array: read them first, "
            f"np.asarray(...)"
        )
    named.call(name, (target, *rest), kwargs, writes=(target,))
    return target if name == "nan_to_num" else None


_FIRST_OF: Final = {
    "copyto": "dst", "fill_diagonal": "a", "place": "arr", "put": "a", "put_along_axis": "arr", "putmask": "a",
    "nan_to_num": "x",
}  # fmt: skip


def _out_of(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], Any]:
    """The positional arguments without `out`, and `out`; it is taken out of the others as well."""
    at = _place_of_out(function)
    if at is not None and len(args) > at:
        names = list(inspect.signature(function).parameters)
        kwargs.update(zip(names[at:], args[at:], strict=False))
        args = args[:at]
    return args, kwargs.pop("out", None)


@functools.cache
def _place_of_out(function: Any) -> int | None:
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # one of those written in C, and none of these takes it by place
        return None
    for place, each in enumerate(parameters):
        if each.name == "out" and each.kind is not each.KEYWORD_ONLY:
            return place
    return None


@functools.cache
def _parameters(ours: Any) -> tuple[int, frozenset[str] | None]:
    """How many positional arguments a function of ours takes, and which names; None: any."""
    try:
        parameters = inspect.signature(ours).parameters.values()
    except ValueError:  # it stands for one of NumPy's that is written in C
        parameters = inspect.signature(ours, follow_wrapped=False).parameters.values()
    kinds = [each.kind for each in parameters]
    positional = sum(kind in (0, 1) for kind in kinds) if 2 not in kinds else 1 << 30
    return positional, None if 4 in kinds else frozenset(each.name for each in parameters if each.kind in (1, 3))


def _accepts(ours: Any, positional: int, kwargs: dict[str, Any]) -> bool:
    most, names = _parameters(ours)
    return positional <= most and (names is None or kwargs.keys() <= names)


# -- what is answered here --------------------------------------------------------------------------------------------


def _described(value: Any) -> Any:
    """The argument with arrays of untouched memory for arrays."""
    if isinstance(value, Handle):
        return views.ghost(value._spec)
    if isinstance(value, (list, tuple)):
        return type(value)([_described(each) for each in value])
    return value


def _without_elements(function: Any) -> Callable[..., Any]:
    """NumPy's function, which looks at no element."""

    def answer(*args: Any, **kwargs: Any) -> Any:
        return function(*_described(args), **{key: _described(value) for key, value in kwargs.items()})

    return answer


def _sent(function: Any) -> Callable[..., Any]:
    """As above, for one that makes index arrays: they go to the array's device."""

    def answer(array: Any, *args: Any, **kwargs: Any) -> Any:
        made = function(_described(array), *args, **kwargs)
        return tuple([functions.asarray(each, device=array.device) for each in made])

    return answer


def _min_scalar_type(a: Any) -> Any:
    return a.dtype if a.ndim else np.min_scalar_type(a.numpy()[()])


def _shares(function: Any) -> Callable[..., Any]:
    def answer(a: Any, b: Any, *args: Any, **kwargs: Any) -> bool:
        if not (isinstance(a, Array) and isinstance(b, Array)) or _buffer(a) != _buffer(b):
            return False
        ghosts = [views.ghost_at(each._spec, each._offset) for each in (a, b)]
        return bool(function(*ghosts, *args, **kwargs))

    return answer


def _buffer(array: Array) -> Any:
    return array._ref if array._base is None else array._base._ref


_ON_THE_FRONTEND: Final[dict[Any, Callable[..., Any]]] = {
    **{
        function: _without_elements(function)
        for function in (
            np.result_type, np.can_cast, np.common_type, np.iscomplexobj, np.isrealobj, np.isfortran, np.einsum_path,
        )
    },
    **{each: _sent(each) for each in (np.tril_indices_from, np.triu_indices_from, np.diag_indices_from)},
    **{each: _shares(each) for each in (np.may_share_memory, np.shares_memory)},
    np.min_scalar_type: _min_scalar_type,
    np.shape: lambda a: a.shape,
    np.ndim: lambda a: a.ndim,
    np.size: lambda a, axis=None: a.size if axis is None else a.shape[axis],
    np.iterable: lambda y: y.ndim > 0,
    np.array_repr: lambda arr, *args, **kwargs: repr(arr) if not (args or kwargs) else np.array_repr(
        arr.numpy(), *args, **kwargs
    ),
    np.array_str: lambda a, *args, **kwargs: np.array_str(a.numpy(), *args, **kwargs),
    np.array2string: lambda a, *args, **kwargs: np.array2string(a.numpy(), *args, **kwargs),
}  # fmt: skip

NEAREST: Final = {
    "save": "interlock.asarray of what you load, and numpy.save(file, x.numpy())",
    "savez": "numpy.savez(file, x=x.numpy())",
    "savez_compressed": "numpy.savez_compressed(file, x=x.numpy())",
    "savetxt": "numpy.savetxt(file, x.numpy())",
    "apply_along_axis": "a function of whole arrays with axis=",
    "apply_over_axes": "the function itself with a tuple as axis=",
    "piecewise": "numpy.select([condition, ...], [array, ...], default)",
    "frompyfunc": "operations on whole arrays",
    "busday_count": "x.numpy(): arrays on devices hold numbers, no dates",
    "busday_offset": "x.numpy(): arrays on devices hold numbers, no dates",
    "is_busday": "x.numpy(): arrays on devices hold numbers, no dates",
    "datetime_as_string": "x.numpy(): arrays on devices hold numbers, no dates",
}


def _refusal(function: Any) -> str:
    module = getattr(function, "__module__", "numpy")
    name = f"{module}.{getattr(function, '__name__', function)}"
    nearest = NEAREST.get(getattr(function, "__name__", ""))
    instead = f"use {nearest}" if nearest else f"read the elements first, such as {name}(np.asarray(x))"
    return f"{name} is not supported on Interlock's arrays: no worker can be given what it needs; {instead}"


_FUNCTIONS: dict[Callable[..., Any], Callable[..., Any]] = {
    getattr(np, name): getattr(functions, name)
    for name in functions.OWN
    if name not in ("asarray", "array")
    and callable(getattr(np, name, None))
    and not isinstance(getattr(np, name), np.ufunc)
}


# `il.argsort` is stable, as the standard says; NumPy's is as fast as it can be, and orders equal elements as it comes.
_FUNCTIONS[np.argsort] = lambda a, axis=-1: functions._one("argsort", functions.asarray(a), axis)


_NOT_SIMPLE: Final = frozenset(("out", "overwrite_input"))


def named_here(function: Any) -> Callable[..., Any]:
    """NumPy's function as one of Interlock's: `device=` says where, when no array does."""
    name = named.name_of(function)
    elsewhere = function in reshaping.VIEWING or function in _ON_THE_FRONTEND
    simple = name is not None and not elsewhere and name not in (*_WRITING, "nan_to_num")
    most = _place_of_out(function) or 1 << 30

    def call(*args: Any, device: Any = None, **kwargs: Any) -> Any:
        if simple and device is None and len(args) <= most and kwargs.keys().isdisjoint(_NOT_SIMPLE):
            return named.call(name, args, kwargs)  # type: ignore[arg-type]  # what is left to do for most calls
        return by_name(function, args, kwargs, None if device is None else lane_of(device))

    call.__name__ = call.__qualname__ = function.__name__
    call.__wrapped__ = function  # type: ignore[attr-defined]  # its signature is this one's
    call.__doc__ = (
        f"`{function.__module__}.{function.__name__}` on arrays of a device.\n\n"
        + ((function.__doc__ or "").strip().partition("\n\n")[0])
    )
    return call
