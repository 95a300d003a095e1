"""What a function reads besides its arguments: closure cells and globals, its own and those of the functions it calls.

`Reach` names the places once; `values` looks at what is there now. Functions are followed where they are found
(also inside containers), modules of the user by the attributes that the code names. Functions and modules of
libraries are not looked into, and neither is what a function reaches through an object's attributes of a class that
a library defines.
"""

from __future__ import annotations

import builtins
import os
import sysconfig
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
        self._places: list[tuple[str, Any, Any]] = []  # (name, mapping or cell or module, key)
        self._followed: list[tuple[int, Any]] = []  # (place, the function that was there)
        self._seen: set[int] = set()
        found = function_of(function)
        if found is not None:
            self._follow(found)

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

    def _follow(self, function: FunctionType) -> None:
        if id(function) in self._seen:
            return
        self._seen.add(id(function))
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            self._note(name, cell, None)
        for code in _codes(function.__code__):
            for name in code.co_names:
                if name in function.__globals__:
                    self._note(name, function.__globals__, name)
                    value = function.__globals__[name]
                    if isinstance(value, ModuleType):
                        self._follow_module(value, code)

    def _follow_module(self, module: ModuleType, code: CodeType) -> None:
        file = getattr(module, "__file__", None)
        if file is None or of_library(file) or "site-packages" in file:
            return
        for name in code.co_names:
            if name in vars(module):
                self._note(f"{module.__name__}.{name}", vars(module), name)

    def _note(self, name: str, where: Any, key: Any) -> None:
        if any(each[1] is where and each[2] == key for each in self._places):
            return
        value = _look(where, key)
        if isinstance(value, ModuleType) or value is builtins:
            return
        self._places.append((name, where, key))
        followed = function_of(value)
        if followed is not None:
            self._followed.append((len(self._places) - 1, value))
            self._follow(followed)
        elif isinstance(value, (list, tuple, dict)):
            for each in value.values() if isinstance(value, dict) else value:
                if (inner := function_of(each)) is not None:
                    self._follow(inner)


def _look(where: Any, key: Any) -> Any:
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
