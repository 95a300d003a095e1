"""What is inside the arguments of a captured function: the arrays and numbers in any nesting, and a key of the rest.

Containers (tuples, lists, dicts, sets), dataclasses and objects of the user's own classes are walked; functions,
types and what libraries define stand for themselves. Equal keys mean that a recording made with the one is good for
the other: same nesting, same specs and lanes of the arrays, same plain values.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import sys
from collections.abc import Callable, Iterator
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any, Final

import numpy as np

from .issue import Handle
from .numbers import Number
from .random import Generator
from .reach import of_library

_BY_VALUE: Final = frozenset((int, bool, str, bytes, complex, type(None), type(Ellipsis)))
_ITSELF: Final = (FunctionType, BuiltinFunctionType, type, np.ufunc, np.dtype)
SMALL: Final = 4096  # bytes; a NumPy array of no more is part of the key by its elements


class Refused(TypeError):
    """Something in the arguments that a captured function cannot take."""


class Same:
    """Stands in a key for an object that is like no other."""

    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


class Walk:
    """The arrays and numbers found so far, in order, and the key."""

    __slots__ = ("_inside", "arrays", "classes", "functions", "key", "numbers")

    def __init__(self) -> None:
        self.key: list[Any] = []
        self.arrays: list[Handle] = []
        self.numbers: list[Any] = []  # that change without changing the key
        self.classes: set[type] = set()  # of the user's, of the objects that were met
        self.functions: list[Any] = []  # that were met
        self._inside: set[int] = set()  # objects that are being walked

    def take(self, value: Any, slots: bool) -> None:
        """Walk a value. `slots`: its floats and NumPy scalars may change, otherwise they are part of the key."""
        kind = type(value)
        if kind in _BY_VALUE:
            self.key += (kind, value)
        elif isinstance(value, Handle):
            ref = value._ref
            self.key += (
                kind,
                value._spec,
                value._lane,
                type(ref) is int or (value._base is not None and getattr(value, "_frozen", False)) + 2,
            )
            self.arrays.append(value)
        elif kind is float or isinstance(value, np.generic):
            if slots:
                self.key.append(kind if kind is float else value.dtype)
                self.numbers.append(value)
            else:
                self.key += (kind, value.hex() if kind is float else value.tobytes())
        elif kind is Number:
            self.key.append(float if type(value.value) is float else value.value.dtype)
            self.numbers.append(value)
        elif kind is tuple or kind is list:
            self._inside_of(value, self._take_items, slots)
        elif kind is dict:
            self._inside_of(value, self._take_dict, slots)
        else:
            self._take_other(value, kind, slots)

    def _inside_of(self, value: Any, walk: Callable[[Any, bool], None], slots: bool) -> None:
        if id(value) in self._inside:
            self.key.append("again")  # it holds itself
            return
        self._inside.add(id(value))
        walk(value, slots)
        self._inside.discard(id(value))

    def _take_items(self, value: Any, slots: bool) -> None:
        self.key += (type(value), len(value))
        for each in value:
            self.take(each, slots)

    def _take_dict(self, value: Any, slots: bool) -> None:
        self.key += (dict, len(value))
        for name, each in value.items():
            self.key.append(name)
            self.take(each, slots)

    def _take_other(self, value: Any, kind: type[Any], slots: bool) -> None:
        if isinstance(value, Generator):
            self.key.append(kind)
            self.take(value._state, slots)
        elif isinstance(value, tuple):
            self._inside_of(value, self._take_items, slots)
        elif isinstance(value, MethodType):
            self.key.append(value.__func__)
            self.functions.append(value)
            self.take(value.__self__, False)
        elif isinstance(value, functools.partial):
            self.functions.append(value.func)
            self.take((value.func, value.args, value.keywords), False)
        elif isinstance(value, _ITSELF):
            self.key.append(value)
            if kind is FunctionType:
                self.functions.append(value)
        elif isinstance(value, (set, frozenset)):
            self.key += (kind, frozenset(value))
        elif isinstance(value, np.ndarray):
            if slots:
                raise Refused(
                    f"a NumPy array of shape {value.shape} is among the arguments of a captured function: "
                    f"make an array on a device of it first, such as interlock.asarray(x, device='cpu:0')"
                )
            self.key.append((value.dtype.str, value.shape, value.tobytes()) if value.nbytes <= SMALL else Same(value))
        elif names := fields_of(value):
            self._inside_of(value, lambda value, slots: self._take_fields(value, names, slots), slots)
        else:
            self.key.append(Same(value))

    def _take_fields(self, value: Any, names: tuple[str, ...], slots: bool) -> None:
        self.key += (type(value), names)
        self.classes.add(type(value))
        slots = slots and dataclasses.is_dataclass(value)
        for name in names:
            self.take(getattr(value, name), slots)

    def aliases(self) -> None:
        """Add to the key which arrays look into the same memory, and where: only where any do."""
        refs = [array._ref for array in self.arrays]
        buffers = [ref if type(ref) is int else ref[0] for ref in refs]  # type: ignore[index]
        if len(set(buffers)) == len(buffers):
            return
        first: dict[int, int] = {}
        for place, (buffer, ref) in enumerate(zip(buffers, refs, strict=True)):
            start = refs[first.setdefault(buffer, place)]
            self.key.append((first[buffer], _offset(ref) - _offset(start)))


def _offset(ref: Any) -> int:
    return 0 if type(ref) is int else ref[1]


def fields_of(value: Any) -> tuple[str, ...]:
    """The attributes that are walked: of a dataclass, or of an object whose class is the user's own."""
    kind = type(value)
    if dataclasses.is_dataclass(kind):
        return tuple([field.name for field in dataclasses.fields(kind)])
    module = sys.modules.get(kind.__module__)
    library = kind.__module__ != "__main__" and of_library(getattr(module, "__file__", None))
    if library or kind.__module__ == "builtins":
        return tuple(vars(value)) if kind.__name__ == "SimpleNamespace" else ()
    slots = [name for base in kind.__mro__ for name in _names(getattr(base, "__slots__", ()))]
    names = (*slots, *getattr(value, "__dict__", ()))
    return tuple([name for name in names if name not in ("__dict__", "__weakref__") and hasattr(value, name)])


def _names(slots: Any) -> tuple[str, ...]:
    return (slots,) if isinstance(slots, str) else tuple(slots)


def with_numbers(value: Any, numbers: Iterator[Any]) -> Any:
    """The same nesting with other numbers in the places of floats and NumPy scalars, in the order of `Walk`."""
    kind = type(value)
    if kind in _BY_VALUE or isinstance(value, Handle):
        return value
    if kind is float or isinstance(value, np.generic):
        return next(numbers)
    if isinstance(value, (tuple, list)):
        items = [with_numbers(each, numbers) for each in value]
        if all(new is old for new, old in zip(items, value, strict=True)):
            return value
        return items if kind is list else tuple.__new__(kind, items)
    if kind is dict:
        made = {name: with_numbers(each, numbers) for name, each in value.items()}
        return value if all(made[name] is value[name] for name in value) else made
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        changed = {}
        for name in fields_of(value):
            old = getattr(value, name)
            new = with_numbers(old, numbers)
            if new is not old:
                changed[name] = new
        if changed:
            value = copy.copy(value)
            for name, new in changed.items():
                object.__setattr__(value, name, new)
    return value


def described(value: Any, path: str, found: dict[str, str], slots: bool, depth: int = 0) -> None:
    """What the key says of a value, in words, by the path that leads there."""
    if isinstance(value, Generator):
        value = value._state
    if isinstance(value, Handle):
        spec = value._spec
        kind = "" if value._base is None else "a view, "
        found[path] = f"{kind}{spec.dtype} {spec.shape} on {value._lane.device}"
    elif isinstance(value, (float, np.generic, Number)) and slots:
        found[path] = f"any {type(value.value if isinstance(value, Number) else value).__name__}"
    elif isinstance(value, (list, tuple)) and depth < 8:
        found[path] = f"{type(value).__name__} of {len(value)}"
        for place, each in enumerate(value):
            described(each, f"{path}[{place}]", found, slots, depth + 1)
    elif isinstance(value, dict) and depth < 8:
        found[path] = f"dict of {len(value)}"
        for name, each in value.items():
            described(each, f"{path}[{name!r}]", found, slots, depth + 1)
    elif not isinstance(value, _ITSELF) and depth < 8 and (names := fields_of(value)):
        found[path] = f"a {type(value).__name__}"
        for name in names:
            described(
                getattr(value, name), f"{path}.{name}", found, slots and dataclasses.is_dataclass(value), depth + 1
            )
    else:
        text = repr(value) if type(value) in _BY_VALUE or isinstance(value, (float, np.generic)) else ""
        found[path] = text if text and len(text) < 60 else f"a {type(value).__name__}"
