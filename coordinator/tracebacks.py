"""What the traceback of an error that nobody caught keeps alive, in a notebook or at a prompt, and letting it go.

There Python keeps the last error, its traceback, and in that the local variables of every function on the way, so that
what a failed cell made stays in memory while the next cell runs. Frames of Interlock's own must not add to that; and
where the error was that memory is short, the arrays in the user's functions are what the next try needs.
Nothing is touched before a large array is about to be made: until then a debugger finds everything in its place.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
from types import FrameType
from typing import Any, Final

from ..protocol.errors import OutOfDeviceMemory
from .sites import is_ours

_SUSPENDS: Final = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR  # clearing would close it
_DONE: Final = "_interlock_let_go"  # on an error that was seen to
_SYS: Final = vars(sys)


def let_go() -> None:
    """Drop what the last error that nobody caught keeps of arrays; at most once for each error."""
    error = _SYS.get("last_value")
    if error is None or _DONE in error.__dict__:
        return
    setattr(error, _DONE, True)
    chain: list[BaseException] = []
    while error is not None and error not in chain:
        chain.append(error)
        error = error.__cause__ or error.__context__
    short = any(isinstance(each, OutOfDeviceMemory) for each in chain)
    for each in chain:
        at: Any = each.__traceback__
        while at is not None:
            if short or is_ours(at.tb_frame.f_code.co_filename):
                _clear(at.tb_frame)
            at = at.tb_next


def _clear(frame: FrameType) -> None:
    """Forget the local variables of a function that has ended. The variables of a cell are no local ones, and stay."""
    if not frame.f_code.co_flags & _SUSPENDS:
        with contextlib.suppress(RuntimeError):  # it has not ended
            frame.clear()
