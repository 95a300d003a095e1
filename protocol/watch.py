"""Tells that a process has ended: the frontend of a session, a session's worker, a launcher.

A thread asleep until the kernel wakes it. A process is known by a pidfd. How a worker ends with its owner is in
`worker/guard.py`.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
from collections.abc import Callable, Hashable
from typing import Final

from .identity import Identity, alive

ASK_S: Final = 0.25  # how often to look whether a process lives, where the kernel does not tell


class Watch:
    """Calls `ended(key)`, on its own thread, once for each watched process that ends."""

    def __init__(self, ended: Callable[[Hashable], None]) -> None:
        self._ended = ended
        self._poll = select.epoll()
        self._watched: dict[int, tuple[Hashable, Identity]] = {}  # by pidfd
        self._asked: dict[Hashable, Identity] = {}  # those that have none: refused, or no descriptor is left
        self._stopping = False
        self._wakeup = os.eventfd(0, os.EFD_CLOEXEC)
        self._poll.register(self._wakeup, select.EPOLLIN)
        self._thread = threading.Thread(target=self._run, name="interlock-watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread. A second time does nothing."""
        if self._poll.closed:
            return
        self._stopping = True
        os.eventfd_write(self._wakeup, 1)
        if self._thread is not threading.current_thread():
            self._thread.join()
        for fd in list(self._watched):
            self._drop(fd)
        if not self._poll.closed:
            self._poll.close()
            os.close(self._wakeup)

    def watch(self, key: Hashable, identity: Identity) -> None:
        """Tell when this process ends; at once if it has ended already."""
        try:
            fd = os.pidfd_open(identity.pid)
        except ProcessLookupError:
            self._ended(key)
            return
        except OSError:
            self._asked[key] = identity
            os.eventfd_write(self._wakeup, 1)
            return
        if not alive(identity):  # the number is another's now
            os.close(fd)
            self._ended(key)
            return
        self._watched[fd] = key, identity
        self._poll.register(fd, select.EPOLLIN)

    def forget(self, key: Hashable) -> None:
        """No longer tell of this one."""
        self._asked.pop(key, None)
        for fd, (other, _) in list(self._watched.items()):
            if other == key:
                self._drop(fd)

    def _drop(self, fd: int) -> None:
        if self._watched.pop(fd, None) is not None:
            with contextlib.suppress(OSError):
                self._poll.unregister(fd)
            os.close(fd)

    def _run(self) -> None:
        while not self._stopping:
            for fd, _ in self._poll.poll(ASK_S if self._asked else None):
                if fd == self._wakeup:
                    os.eventfd_read(fd)
                    continue
                key, identity = self._watched.get(fd, (None, None))
                # The event may be of one that was forgotten meanwhile, whose descriptor's number is another's now.
                if identity is not None and not alive(identity):
                    self._drop(fd)
                    self._ended(key)
            for key, identity in list(self._asked.items()):
                if not alive(identity) and self._asked.pop(key, None) is not None:
                    self._ended(key)
