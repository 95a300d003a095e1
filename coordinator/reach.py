"""What a function reads besides its arguments: closure cells, globals and defaults, its own and those of its callees.

`Reach` names the places; `values` looks at what is there now. Which functions are callees is found by walking those
values (`structure.py`): whatever function of the user's is met there, methods that the code names included, is
followed. Modules of the user are followed by the attributes that the code names. Functions and modules of libraries
are not looked into, and neither is what a function reaches through objects of a class that a library defines.
"""

from __future__ import annotations

import dis
import functools
import os
import sysconfig
from collections.abc import Collection
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


@functools.lru_cache(4096)
@functools.lru_cache(4096)
def of_library(file: str | None) -> bool:
    """Whether code in this file is a library's, Interlock's own included."""
    return file is None or file.startswith("<frozen") or file.startswith(_LIBRARIES)


def function_of(value: Any) -> FunctionType | None:
    """The Python function behind something that is called, if it is one of the user's."""
    while not isinstance(value, type):
        if isinstance(value, MethodType):
            value = value.__func__
        elif isinstance(value, functools.partial):
            value = value.func
        elif isinstance(value, FunctionType) and not of_library(value.__code__.co_filename):
            return value
        elif hasattr(value, "__wrapped__"):
            value = value.__wrapped__
        else:
            break
    return None


class Reach:
    """The places that a function and the callees met so far read."""

    def __init__(self, function: Any, met: Collection[FunctionType] = ()) -> None:
        """`met`: functions found by walking the arguments, and the values of a smaller reach."""
        self.met = set(met)
        self.names: set[str] = set()  # attributes that the code names, as far as it is followed
        self._places: list[tuple[str, Any, Any]] = []  # (name, mapping or cell or function, key)
        self._noted: set[tuple[int, Any]] = set()
        self._seen: set[int] = set()
        found = function_of(function)
        if found is not function:
            self._note("the function itself", {"": function}, "")
        for each in (found, *met):
            if each is not None:
                self._follow(each)

    def values(self) -> list[tuple[str, Any]]:
        """(name, what is there now) of each place that holds something."""
        found = []
        for name, where, key in self._places:
            value = _look(where, key)
            if value is not _MISSING and not isinstance(value, ModuleType):
                found.append((name, value))
        return found

    def _follow(self, function: FunctionType) -> None:
        if id(function) in self._seen:
            return
        self._seen.add(id(function))
        for key in ("__defaults__", "__kwdefaults__"):
            if getattr(function, key):
                self._note(f"{function.__name__}.{key}", function, key)
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            self._note(name, cell, None)
        globals_, attributes = _names(function.__code__)
        self.names.update(attributes)
        for name in globals_:
            self._note(name, function.__globals__, name)  # one that is not there yet, too
            value = function.__globals__.get(name)
            if isinstance(value, ModuleType):
                self._follow_module(value, attributes)

    def _follow_module(self, module: ModuleType, attributes: tuple[str, ...]) -> None:
        if id(module) in self._seen or of_library(getattr(module, "__file__", None)):
            return
        for name in attributes:
            if name in vars(module):
                self._note(f"{module.__name__}.{name}", vars(module), name)
                value = vars(module)[name]
                if isinstance(value, ModuleType) and value is not module:
                    self._follow_module(value, attributes)

    def _note(self, name: str, where: Any, key: Any) -> None:
        if (id(where), key) not in self._noted:
            self._noted.add((id(where), key))
            self._places.append((name, where, key))


def _look(where: Any, key: Any) -> Any:
    if key is None:
        try:
            return where.cell_contents
        except ValueError:
            return _MISSING
    return where.get(key, _MISSING) if isinstance(where, dict) else getattr(where, key)


@functools.lru_cache(1024)
def _names(code: CodeType) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The globals that the code and what is defined inside it read, and the attributes of anything."""
    globals_: dict[str, None] = {}
    attributes: dict[str, None] = {}
    for each in _codes(code):
        for instruction in dis.get_instructions(each):
            if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
                globals_[instruction.argval] = None
        attributes.update(dict.fromkeys(each.co_names))
    return tuple(globals_), tuple(attributes)


def _codes(code: CodeType) -> list[CodeType]:
    """The code and that of what is defined inside it."""
    found = [code]
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            found += _codes(constant)
    return found
