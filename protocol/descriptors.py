"""Pipes whose ends can be handed to a child process whatever descriptors this one has open."""

from __future__ import annotations

import fcntl
import os
from typing import Final

LET_GO: Final = b"."  # on the pipe that closes with a worker's owner: it lives, and wants the worker to end
_STANDARD: Final = 3  # below it are a process's standard input, output and error, which a child gets others for


def pipe() -> tuple[int, int]:
    """(reading end, writing end) of a new pipe, close-on-exec, none of them a standard descriptor.

    In a process that was started with a closed standard input, say, the kernel would give out its number.
    """
    reading, writing = os.pipe2(os.O_CLOEXEC)
    return _raised(reading), _raised(writing)


def _raised(descriptor: int) -> int:
    if descriptor >= _STANDARD:
        return descriptor
    other = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _STANDARD)
    os.close(descriptor)
    return other
