"""What a program answers to another one of its user, while its own threads may be blocked.

A socket in the private folder of a session, and a thread that is asleep on it. Who connects is sent one answer, as
text; there is nothing to ask but why it waits, and nothing that can be ordered. The folder lets in its owner alone.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

NAME: Final = "why"
PATIENCE_S: Final = 5.0  # for one who asks and does not read


class Questions:
    """The asked side."""

    def __init__(self, folder: Path, answer: Callable[[], str]) -> None:
        """`answer` is called on a thread of its own, once for each who asks.

        Raises:
            OSError: no socket can be made there.
        """
        self._path = folder / NAME
        self._answer = answer
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.bind(os.fspath(self._path))
            self._socket.listen()
        except OSError:
            self._socket.close()
            raise
        self._thread = threading.Thread(target=self._run, name="interlock-questions", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread, and remove the socket."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        with contextlib.suppress(OSError):
            os.unlink(self._path)
        if self._thread is not threading.current_thread():
            self._thread.join(PATIENCE_S)

    def disown(self) -> None:
        """In a forked child, which has the parent's socket and not its thread: let go of it."""
        self._socket.close()

    def _run(self) -> None:
        while True:
            try:
                asker, _ = self._socket.accept()
            except OSError:
                return
            with contextlib.suppress(OSError), asker:
                asker.settimeout(PATIENCE_S)
                asker.sendall(self._answer().encode())


def ask_why(folder: Path, timeout_s: float) -> str | None:
    """The answer of the session whose private folder this is; None if it gives none in time."""
    said = b""
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        asking.settimeout(timeout_s)
        asking.connect(os.fspath(folder / NAME))
        while piece := asking.recv(65536):
            said += piece
        return said.decode() or None
    return None
