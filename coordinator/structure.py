"""What is inside the arguments of a captured function: the arrays and numbers in any nesting, and a key of the rest.

Containers (tuples, lists, dicts, sets), dataclasses, objects of the user's own classes, and these classes are walked;
functions and what libraries define stand for themselves. Equal keys mean that a recording made with the one is good
for the other: same nesting, same specs and lanes of the arrays, same plain values.
"""

from __future__ import annotations

import copy
import dataclasses
import enum
import functools
import random
import sys
import weakref
from collections import deque
from collections.abc import Collection, Iterator
from types import BuiltinFunctionType, FunctionType, MemberDescriptorType, MethodType
from typing import Any, Final, NamedTuple

import numpy as np

from .issue import Handle
from .lane import Device
from .numbers import Number
from .random import Generator
from .reach import function_of, of_library

_BY_VALUE: Final = frozenset((int, bool, str, bytes, range, type(None), type(Ellipsis)))
_ITSELF: Final = (FunctionType, BuiltinFunctionType, type, np.ufunc, np.dtype, enum.Enum)
_CONTAINERS: Final = (list, tuple, dict, set, frozenset, deque)
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
    """The arrays and numbers found so far, in order, the key, and the user's functions that were met."""

    __slots__ = ("_classes", "_inside", "_named", "arrays", "functions", "key", "numbers")

    def __init__(self, named: Collection[str] = ()) -> None:
        """`named`: of a class, the methods that count; those with a name like __call__ always do."""
        self.key: list[Any] = []
        self.arrays: list[Handle] = []
        self.numbers: list[Any] = []  # that change without changing the key
        self.functions: dict[FunctionType, None] = {}  # a set that keeps its order
        self._named = named
        self._classes: set[type[Any]] = set()  # that were walked
        self._inside: dict[int, int] = {}  # objects that are being walked, with how deep they are

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
        elif kind is Number:
            self.key.append(type(value.value))
            self.numbers.append(value)
        elif kind is float or isinstance(value, np.generic):
            if slots:
                self.key.append(kind)
                self.numbers.append(value)
            else:
                self.key += (kind, value.hex() if kind is float else value.tobytes())
        elif kind is tuple or kind is list or kind is dict:
            self._inside_of(value, slots)
        elif kind is FunctionType:
            self.key += (kind, value)
            self._meet(value)
        elif kind is Device:
            self.key += (value, value.lane)  # after a restart it has another
        elif isinstance(value, tuple):
            self._inside_of(value, slots)
        else:
            self._take_other(value, kind, slots)

    def _inside_of(self, value: Any, slots: bool) -> None:
        """Walk what is inside an object, unless that is being done already."""
        if id(value) in self._inside:
            self.key += ("again", self._inside[id(value)])  # it holds itself
            return
        self._inside[id(value)] = len(self._inside)
        if isinstance(value, _CONTAINERS):
            slots = slots and changes_inside(value)
            self.key += (type(value), len(value))
            if isinstance(value, dict):
                for name, each in value.items():
                    if type(name) is str:
                        self.key.append(name)
                    else:
                        self.take(name, False)
                    self.take(each, slots)
            else:
                for each in value:
                    self.take(each, slots)
        if type(value) not in _PLAIN:
            self._take_fields(value, slots)
        del self._inside[id(value)]

    def _take_other(self, value: Any, kind: type[Any], slots: bool) -> None:
        if kind is complex:
            self.key += (kind, value.real.hex(), value.imag.hex())
        elif isinstance(value, Generator):
            self.key.append(kind)
            self.take(value._state, slots)
        elif isinstance(value, MethodType):
            self.take(value.__func__, False)
            self.take(value.__self__, False)
        elif isinstance(value, _ITSELF):
            self.key += (kind, value)  # a dtype may be equal to a type
            if isinstance(value, type):
                self._take_class(value)
            else:
                self._meet(value)
        elif isinstance(value, functools.partial):
            self.key.append(kind)
            self._inside_of([value.func, value.args, value.keywords], False)
        elif kind is slice:
            self.key.append(kind)
            self._inside_of([value.start, value.stop, value.step], False)
        elif kind is bytearray:
            self.key += (kind, bytes(value))
        elif isinstance(value, np.random.Generator):
            self.key += (kind, repr(value.bit_generator.state))  # so that a function that draws from it is refused
        elif isinstance(value, (random.Random, np.random.RandomState)):
            self.key += (kind, repr(value.getstate() if isinstance(value, random.Random) else value.get_state()))
        elif slots and hasattr(kind, "__next__"):
            raise Refused(f"an iterator ({kind.__name__}) is among the arguments of a captured function: give a list")
        elif isinstance(value, np.ndarray):
            if slots:
                raise Refused(
                    f"a NumPy array of shape {value.shape} is among the arguments of a captured function: "
                    f"make an array on a device of it first, such as interlock.asarray(x, device='cpu:0')"
                )
            self.key.append((value.dtype.str, value.shape, value.tobytes()) if value.nbytes <= SMALL else Same(value))
        elif isinstance(value, _CONTAINERS) or fields_of(value) or (of_user(kind) and not _kind(kind).more):
            self._inside_of(value, slots)
        else:
            self.key.append(Same(value))
            self._meet(value)
            self._take_class(kind)

    def _take_fields(self, value: Any, slots: bool) -> None:
        names = fields_of(value)
        self.key += (type(value), names)
        if _kind(type(value)).more:
            self.key.append(Same(value))
        slots = slots and changes_inside(value)
        for name in names:
            self.take(getattr(value, name), slots)
        self._take_class(type(value))

    def _take_class(self, kind: type[Any]) -> None:
        """What the user's classes hold themselves: values, and methods."""
        if kind in self._classes or not of_user(kind) or issubclass(kind, enum.Enum):
            return
        self._classes.add(kind)
        for place, name in _worth_looking(kind, self._named):
            each = vars(kind.__mro__[place]).get(name)
            if isinstance(each, (staticmethod, classmethod)):
                each = each.__func__
            if isinstance(each, property):
                self._inside_of([each.fget, each.fset], False)
            elif isinstance(each, FunctionType):
                self.take(each, False)
            else:
                self.key.append(name)
                self.take(each, False)

    def _meet(self, value: Any) -> None:
        function = function_of(value)
        if function is not None:
            self.functions[function] = None

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


_ATTRIBUTES_ONLY: Final = frozenset((object, list, tuple, dict, set, frozenset))
_PLAIN: Final = frozenset((list, tuple, dict, set, frozenset, deque))


def _offset(ref: Any) -> int:
    return 0 if type(ref) is int else ref[1]


def changes_inside(value: Any) -> bool:
    """Whether numbers inside may change from call to call: of what `with_numbers` can make another of."""
    kind = type(value)
    if isinstance(value, _CONTAINERS):
        return kind is list or kind is dict or isinstance(value, tuple)
    return dataclasses.is_dataclass(kind)


# By class: how many attributes it and its bases had, the names that counted, and what of it is worth looking at then.
_looked: weakref.WeakKeyDictionary[type[Any], tuple[Any, ...]] = weakref.WeakKeyDictionary()


# What named tuples have from their maker.
_GENERATED: Final = frozenset(
    ("_fields", "_field_defaults", "_make", "_replace", "_asdict", "__new__", "__repr__", "__getnewargs__")
)


def _worth_looking(kind: type[Any], named: Collection[str]) -> list[tuple[int, str]]:
    """(place in the __mro__, attribute) of all that a class of the user's holds: values, and methods that count."""
    users = [(place, base) for place, base in enumerate(kind.__mro__) if of_user(base)]
    sizes = tuple([len(vars(base)) for _, base in users])
    known = _looked.get(kind)
    if known is not None and known[0] == sizes and known[1] is named:
        found: list[tuple[int, str]] = known[2]  # no class itself, or it would keep its own key alive
        return found
    found = []
    for place, base in users:
        for name, each in vars(base).items():
            dunder = name.startswith("__")
            if name in _GENERATED and "_fields" in vars(base):
                continue
            if isinstance(each, (staticmethod, classmethod)):
                each = each.__func__
            if isinstance(each, property):
                counts = name in named
            elif isinstance(each, FunctionType):
                counts = dunder or name in named
            else:
                counts = not dunder and not isinstance(each, MemberDescriptorType)
            if counts:
                found.append((place, name))
    _looked[kind] = (sizes, named, found)
    return found


class _Kind(NamedTuple):
    """What is known of a class."""

    users: bool  # it is the user's own
    slots: tuple[str, ...]
    more: bool  # its objects hold something beside attributes and elements: those derived from int, say


_kinds: weakref.WeakKeyDictionary[type[Any], _Kind] = weakref.WeakKeyDictionary()


def _kind(kind: type[Any]) -> _Kind:
    found = _kinds.get(kind)
    if found is None:
        name = kind.__module__
        file = getattr(sys.modules.get(name), "__file__", None)
        users = name == "__main__" or (name != "builtins" and not of_library(file))
        slots = tuple([name for base in kind.__mro__ for name in _names(vars(base).get("__slots__", ()))])
        more = any(base.__module__ == "builtins" and base not in _ATTRIBUTES_ONLY for base in kind.__mro__)
        found = _kinds[kind] = _Kind(users, slots, more)
    return found


def of_user(kind: type[Any]) -> bool:
    """Whether a class is the user's own."""
    return _kind(kind).users


def fields_of(value: Any) -> tuple[str, ...]:
    """The attributes that are walked: of a dataclass, or of an object whose class is the user's own."""
    kind = type(value)
    if not (of_user(kind) or dataclasses.is_dataclass(kind) or kind.__name__ == "SimpleNamespace"):
        return ()
    names = (*_kind(kind).slots, *getattr(value, "__dict__", ()))
    if not names:
        return ()
    return tuple([name for name in names if name not in ("__dict__", "__weakref__") and hasattr(value, name)])


def _names(slots: Any) -> tuple[str, ...]:
    return (slots,) if isinstance(slots, str) else tuple(slots)


def with_numbers(value: Any, numbers: Iterator[Any], inside: tuple[int, ...] = ()) -> Any:
    """The same nesting with other numbers in the places of floats and NumPy scalars, in the order of `Walk`."""
    kind = type(value)
    if kind in _BY_VALUE or isinstance(value, Handle):
        return value
    if kind is float or isinstance(value, np.generic):
        return next(numbers)
    if id(value) in inside or isinstance(value, type) or not changes_inside(value):
        return value
    inside = (*inside, id(value))
    if kind is dict:
        made = {name: with_numbers(each, numbers, inside) for name, each in value.items()}
        return value if all(made[name] is value[name] for name in value) else made
    if isinstance(value, (tuple, list)):
        items = [with_numbers(each, numbers, inside) for each in value]
        if any(new is not old for new, old in zip(items, value, strict=True)):
            value = items if kind is list else tuple.__new__(kind, items)
        if kind is list or kind is tuple:
            return value
    changed = {}
    for name in fields_of(value):
        old = getattr(value, name)
        new = with_numbers(old, numbers, inside)
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
            described(getattr(value, name), f"{path}.{name}", found, slots and changes_inside(value), depth + 1)
    else:
        text = repr(value) if type(value) in _BY_VALUE or isinstance(value, (float, np.generic)) else ""
        found[path] = text if text and len(text) < 60 else f"a {type(value).__name__}"
