"""Tells a worker that a process has ended: its owner, or the frontend of a session.

One thread, asleep until the kernel wakes it. The owner is known by a pipe whose other end only it holds, so that
its end is seen however it comes; a frontend by a pidfd.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
from collections.abc import Callable

from ..protocol.identity import Identity, alive


class Watch:
    """Calls `ended(key)`, on its own thread, once for each watched process that ends."""

    def __init__(self, ended: Callable[[bytes], None], owner_fd: int | None, orphaned: Callable[[], None]) -> None:
        self._ended = ended
        self._orphaned = orphaned
        self._poll = select.epoll()
        self._keys: dict[int, bytes] = {}
        self._owner_fd = owner_fd
        if owner_fd is not None:
            self._poll.register(owner_fd, select.EPOLLIN | select.EPOLLHUP)
        self._thread = threading.Thread(target=self._run, name="interlock-watch", daemon=True)
        self._thread.start()

    def watch(self, key: bytes, identity: Identity) -> None:
        """Tell when this process ends; at once if it has ended already."""
        try:
            fd = os.pidfd_open(identity.pid)
        except OSError:
            fd = -1
        if fd < 0 or not alive(identity):
            if fd >= 0:
                os.close(fd)
            self._ended(key)
            return
        self._keys[fd] = key
        self._poll.register(fd, select.EPOLLIN)

    def forget(self, key: bytes) -> None:
        """No longer tell of this one."""
        for fd, other in list(self._keys.items()):
            if other == key:
                self._drop(fd)

    def _drop(self, fd: int) -> None:
        if self._keys.pop(fd, None) is not None:
            with contextlib.suppress(OSError):
                self._poll.unregister(fd)
            os.close(fd)

    def _run(self) -> None:
        while True:
            for fd, _ in self._poll.poll():
                if fd == self._owner_fd:
                    if not os.read(fd, 1):
                        self._orphaned()
                    continue
                key = self._keys.get(fd)
                self._drop(fd)
                if key is not None:
                    self._ended(key)
