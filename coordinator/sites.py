"""The user's line of an operation: noted as a code object and an offset in it, resolved only when somebody looks.

Noting costs a fraction of a microsecond, a stack or a line number many times that.
"""

from __future__ import annotations

import linecache
import os
import sys
from pathlib import Path
from types import CodeType
from typing import Any, Final

import numpy as np

Site = tuple[CodeType, int]  # where an operation was issued: the code and the offset in it, resolved only when shown

_FRAME: Final = sys._getframe
_LIBRARIES: Final = (str(Path(__file__).parent) + os.sep, str(Path(np.__file__).parent) + os.sep)
OURS: dict[str, bool] = {}  # by file: is it Interlock's or NumPy's, so that the user's line is further out


def _is_ours(file: str) -> bool:
    found = OURS[file] = file.startswith(_LIBRARIES)
    return found


def is_ours(file: str) -> bool:
    """Whether a file is Interlock's or NumPy's."""
    found = OURS.get(file)
    return _is_ours(file) if found is None else found


def user_site(depth: int = 2) -> Site:
    """The user's line: the first frame outside this library, from `depth` frames up."""
    frame: Any = _FRAME(depth)
    while True:
        code: CodeType = frame.f_code
        file = code.co_filename
        ours = OURS.get(file)
        if not (_is_ours(file) if ours is None else ours) or frame.f_back is None:
            return code, frame.f_lasti
        frame = frame.f_back


def place(site: Site | None) -> tuple[str, int, str]:
    """(file, line, function) of a site."""
    if site is None:
        return "<unknown>", 0, "<unknown>"
    code, offset = site
    line = code.co_firstlineno
    for start, end, number in code.co_lines():
        if start <= offset < end and number is not None:
            line = number
            break
    return code.co_filename, line, code.co_name


def describe(site: Site | None) -> str:
    """`file:line` and the source text there."""
    file, line, _ = place(site)
    source = linecache.getline(file, line).strip()
    return f"{file}:{line}" + (f" `{source}`" if source else "")
