"""Keeps the log of a worker, or of a launcher, from growing without an end: of a long one the last part is kept.

What is written comes from Python and from foreign code alike, straight into the file, so that nobody who prints waits
for anybody who reads. Writers have it open for appending; whoever shortens it is another process.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Final

LONGEST: Final = 4 << 20  # bytes of a log, after which it is shortened
KEPT: Final = 1 << 20  # bytes that are left of it
LOOK_S: Final = 0.1  # between two looks at one that grows


def shorten(log: Path) -> None:
    """Cut off the beginning of a log that has become too long. What is written in its last microsecond is lost."""
    with contextlib.suppress(OSError):
        if os.stat(log).st_size <= LONGEST:
            return
        fd = os.open(log, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            size = os.fstat(fd).st_size
            kept = os.pread(fd, KEPT, size - KEPT)
            kept = kept[kept.find(b"\n") + 1 :] or kept  # from the beginning of a line
            kept = b"[%d bytes were left out here]\n" % (size - len(kept)) + kept
            length = os.pwrite(fd, kept, 0)  # over the beginning: whoever reads the end meanwhile finds one
            while (more := os.pread(fd, KEPT, size)) and length + len(more) < size:  # written meanwhile
                length += os.pwrite(fd, more, length)
                size += len(more)
            os.ftruncate(fd, length)
        finally:
            os.close(fd)


def tail(log: Path, lines: int, nbytes: int = 4096) -> list[str]:
    """The last lines of a log, of its last so many bytes; none if it cannot be read."""
    try:
        with open(log, "rb") as file:
            file.seek(max(os.fstat(file.fileno()).st_size - nbytes, 0))
            return file.read(nbytes).decode(errors="replace").strip().splitlines()[-lines:]
    except OSError:
        return []


def keep_short(log: Path, fds: Sequence[int]) -> None:
    """Keep a log short until one of the descriptors is readable. Asleep while nothing is written.

    For a process that does nothing else: it takes SIGIO.
    """
    told, tell = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.signal(signal.SIGIO, lambda *_: None)
    signal.set_wakeup_fd(tell, warn_on_full_buffer=False)
    folder = os.open(log.parent, os.O_RDONLY | os.O_CLOEXEC)
    ends, all_of_it = select.poll(), select.poll()
    for fd in fds:
        ends.register(fd, select.POLLIN)
        all_of_it.register(fd, select.POLLIN)
    all_of_it.register(told, select.POLLIN)
    while True:
        wait_ms: float | None = None
        try:
            fcntl.fcntl(folder, fcntl.F_NOTIFY, fcntl.DN_MODIFY)  # once, so that much printing wakes us seldom
        except OSError:  # a system without it
            wait_ms = 1000
        shorten(log)
        ready = [fd for fd, _ in all_of_it.poll(wait_ms)]
        if any(fd != told for fd in ready):
            return
        if ready:
            with contextlib.suppress(BlockingIOError):
                os.read(told, 4096)
        if ends.poll(LOOK_S * 1000):
            return
