"""Tells that a process has ended: a worker's owner, the frontend of a session, a session's worker.

One thread, asleep until the kernel wakes it. An owner is known by a pipe whose other end only it holds, so that
its end is seen however it comes; any other process by a pidfd.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
from collections.abc import Callable, Hashable

from .identity import Identity, alive


class Watch:
    """Calls `ended(key)`, on its own thread, once for each watched process that ends."""

    def __init__(
        self,
        ended: Callable[[Hashable], None],
        owner_fd: int | None = None,
        orphaned: Callable[[], None] | None = None,
    ) -> None:
        """`orphaned` is called when the other end of the pipe `owner_fd` closes."""
        self._ended = ended
        self._orphaned = orphaned
        self._poll = select.epoll()
        self._keys: dict[int, Hashable] = {}
        self._stop = os.eventfd(0, os.EFD_CLOEXEC)
        self._poll.register(self._stop, select.EPOLLIN)
        self._owner_fd = owner_fd
        if owner_fd is not None:
            self._poll.register(owner_fd, select.EPOLLIN | select.EPOLLHUP)
        self._thread = threading.Thread(target=self._run, name="interlock-watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread."""
        os.eventfd_write(self._stop, 1)
        self._thread.join()
        for fd in list(self._keys):
            self._drop(fd)
        self._poll.close()
        os.close(self._stop)

    def watch(self, key: Hashable, identity: Identity) -> None:
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

    def forget(self, key: Hashable) -> None:
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
                if fd == self._stop:
                    return
                if fd == self._owner_fd:
                    if not os.read(fd, 1) and self._orphaned is not None:
                        self._poll.unregister(fd)
                        self._orphaned()
                    continue
                key = self._keys.get(fd)
                self._drop(fd)
                if key is not None:
                    self._ended(key)
