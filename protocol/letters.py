"""The short way between two workers of one machine: datagrams, without ZeroMQ's threads in between.

A ticket that a step waits for goes this way: one system call sends it, and wakes the receiver itself. What is too
large, or finds the receiver's box full (the kernel keeps few), goes by ZeroMQ like everything else; none of what
workers tell each other depends on the order in which it comes. Boxes lie beside the endpoints, in a folder that only
its owner can enter.
"""

from __future__ import annotations

import contextlib
import os
import socket
from typing import Final

LARGEST: Final = 64 * 1024  # bytes of a letter
_SUFFIX: Final = ".d"


class Box:
    """Where a worker gets its letters."""

    def __init__(self, endpoint: str) -> None:
        """Beside the worker's own endpoint.

        Raises:
            OSError: no socket can be made there, for want of descriptors or since the path is too long.
        """
        self._path = _path(endpoint)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path)
            self._socket.bind(self._path)
            self._socket.setblocking(False)
        except OSError:
            self._socket.close()
            raise
        self._room = memoryview(bytearray(LARGEST + 1))
        self.fd = self._socket.fileno()

    def poll(self) -> memoryview | None:
        """A letter that is here, or None. It is good until the next call."""
        try:
            nbytes = self._socket.recv_into(self._room)
        except BlockingIOError:
            return None
        return self._room[:nbytes]

    def close(self) -> None:
        self._socket.close()
        with contextlib.suppress(OSError):
            os.unlink(self._path)


class Letters:
    """The way to another worker's box."""

    def __init__(self, endpoint: str) -> None:
        """Beside that worker's endpoint.

        Raises:
            OSError: there is no box.
        """
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            self._socket.connect(_path(endpoint))
            self._socket.setblocking(False)
        except OSError:
            self._socket.close()
            raise

    def send(self, data: bytes) -> bool:
        """Whether it is on its way; if not, it has to go another way."""
        if len(data) > LARGEST:
            return False
        try:
            self._socket.send(data)
        except OSError:  # the box is full, or nobody is there any more
            return False
        return True

    def close(self) -> None:
        self._socket.close()


def _path(endpoint: str) -> str:
    return endpoint.removeprefix("ipc://") + _SUFFIX
