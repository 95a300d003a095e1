"""What a function reads besides its arguments: closure cells and globals, its own and those of the functions it calls.

`Reach` names the places once; `values` looks at what is there now. Functions are followed where they are found, classes
of the user's by all their methods, modules of the user's by the attributes that the code names; defaults of parameters,
what a method or a partial is bound to, and plain attributes of classes count as well. What libraries define is not
looked into.
"""

from __future__ import annotations

import builtins
import functools
import os
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, Final

_LIBRARIES: Final = tuple(
    str(path) + os.sep
    for path in {
        *(Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
        Path(__file__).parent.parent / "coordinator",
        Path(__file__).parent.parent / "protocol",
    }
)
_MISSING: Final = object()


def of_library(file: str | None) -> bool:
    """Whether code in this file is a library's, Interlock's own included."""
    return file is None or file.startswith("<frozen") or file.startswith(_LIBRARIES)


def function_of(value: Any) -> FunctionType | None:
    """The Python function behind something that is called, if it is one of the user's."""
    while True:
        if isinstance(value, MethodType):
            value = value.__func__
        elif hasattr(value, "__wrapped__") and not isinstance(value, type):
            value = value.__wrapped__
        else:
            break
    if isinstance(value, FunctionType) and not of_library(value.__code__.co_filename):
        return value
    return None


class Reach:
    """The places that a function and its callees read, as they were found; `stale` says when to look again."""

    def __init__(self, function: Any) -> None:
        self._places: list[tuple[str, Any, Any]] = []  # (name, mapping, cell, function or object, key)
        self._followed: list[tuple[int, Any]] = []  # (place, the function that was there)
        self._seen: set[int] = set()
        self._classes: set[type] = set()
        self._met: dict[int, Any] = {}  # functions by identity, kept so that it stays theirs
        self._add_called(function)

    def values(self) -> list[tuple[str, Any]]:
        """(name, what is there now) of each place that holds something."""
        found = []
        for name, where, key in self._places:
            value = _look(where, key)
            if value is not _MISSING:
                found.append((name, value))
        return found

    def stale(self) -> bool:
        """Whether another function stands where one was followed."""
        places = self._places
        return any(_look(*places[place][1:]) is not was for place, was in self._followed)

    def add(self, classes: set[type], functions: Iterable[Any]) -> bool:
        """Follow the methods of these classes of the user's, and these functions. True if any was new."""
        new = classes - self._classes
        for cls in new:
            self._follow_class(cls)
        for function in functions:
            if id(function) not in self._met:
                self._met[id(function)] = function
                if (found := function_of(function)) is not None:
                    new.add(object)
                    self._follow(found)
        return bool(new)

    def _add_called(self, function: Any) -> None:
        """What is called, with all that is bound to it."""
        if isinstance(function, functools.partial):
            self._note("the partial's arguments", {"bound": (function.args, function.keywords)}, "bound")
            self._add_called(function.func)
            return
        if isinstance(function, MethodType):
            self._note("self", {"self": function.__self__}, "self")
        elif not isinstance(function, (FunctionType, type)) and not hasattr(function, "__wrapped__"):
            called = next((vars(base)["__call__"] for base in type(function).__mro__ if "__call__" in vars(base)), None)
            if function_of(called) is not None:
                self._note("self", {"self": function}, "self")
                function = called
        found = function_of(function)
        if found is not None:
            self._follow(found)

    def _follow(self, function: FunctionType) -> None:
        if id(function) in self._seen:
            return
        self._seen.add(id(function))
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            self._note(name, cell, None)
        if function.__defaults__ or function.__kwdefaults__:
            self._note(f"{function.__name__}'s defaults", function, "__defaults__")
            self._note(f"{function.__name__}'s defaults by name", function, "__kwdefaults__")
        for code in _codes(function.__code__):
            for name in code.co_names:
                if name in function.__globals__:
                    self._note(name, function.__globals__, name)
                    value = function.__globals__[name]
                    if isinstance(value, ModuleType):
                        self._follow_module(value, code)

    def _follow_module(self, module: ModuleType, code: CodeType) -> None:
        file = getattr(module, "__file__", None)
        if file is None or of_library(file):
            return
        for name in code.co_names:
            if name in vars(module):
                self._note(f"{module.__name__}.{name}", vars(module), name)

    def _follow_class(self, cls: type) -> None:
        """A class's methods, and the plain values among its attributes."""
        self._classes.add(cls)
        for base in cls.__mro__:
            if base is object or _of_library_class(base):
                continue
            for name, value in vars(base).items():
                inner = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
                if (found := function_of(inner)) is not None:
                    self._follow(found)
                elif not name.startswith("__") and not callable(value) and not hasattr(type(value), "__get__"):
                    self._note(f"{base.__name__}.{name}", vars(base), name)

    def _note(self, name: str, where: Any, key: Any) -> None:
        if any(each[1] is where and each[2] == key for each in self._places):
            return
        value = _look(where, key)
        if isinstance(value, ModuleType) or value is builtins:
            return
        self._places.append((name, where, key))
        if isinstance(value, type) and not _of_library_class(value):
            self._follow_class(value)
        followed = function_of(value)
        if followed is not None:
            self._followed.append((len(self._places) - 1, value))
            self._follow(followed)


def _of_library_class(cls: type) -> bool:
    if cls.__module__ == "__main__":
        return False
    return cls.__module__ == "builtins" or of_library(getattr(sys.modules.get(cls.__module__), "__file__", None))


def _look(where: Any, key: Any) -> Any:
    if isinstance(where, FunctionType):
        return getattr(where, key)
    if key is not None:
        return where.get(key, _MISSING)
    try:
        return where.cell_contents
    except ValueError:
        return _MISSING


def _codes(code: CodeType) -> list[CodeType]:
    """The code and that of what is defined inside it."""
    found = [code]
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            found += _codes(constant)
    return found
