"""How many files a process may still open, asked before they are: ZeroMQ ends the process that lacks one.

Sockets, pipes and segments of shared memory all count. Knows nothing of what they are for.
"""

from __future__ import annotations

import os
import resource
from typing import Final

SPARE: Final = 8  # files that segments of shared memory leave to whoever connects
MANY: Final = 1 << 16
SESSION: Final = 16  # files that a session needs in the program, besides:
SESSION_EACH: Final = 6  # for each of its workers
WORKER: Final = 24  # files that a worker needs for itself and its first session, besides:
WORKER_EACH: Final = 5  # for each worker of the session


def free() -> int:
    """How many files this process may still open."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit == resource.RLIM_INFINITY:
        return MANY
    try:
        return limit - len(os.listdir("/proc/self/fd")) + 1  # the list itself was read through one
    except OSError:
        return 0


def allow_many() -> None:
    """Raise this process's own limit as far as it may: for a process that is ours alone."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wished = MANY if hard == resource.RLIM_INFINITY else min(hard, MANY)
    if soft != resource.RLIM_INFINITY and soft < wished:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wished, hard))


def lacking(workers: int, starting: bool) -> str | None:
    """Why this process cannot have a session with so many workers, for want of files; None if it can.

    Args:
        workers: how many.
        starting: they are started from here, and have this process's limit for their own.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed, left = SESSION + SPARE + SESSION_EACH * workers, free()
    if left < needed:
        return (
            f"a session with {workers} workers needs {needed} open files, and this process may open {left} more of the "
            f"{soft} that it is allowed: raise that (ulimit -n, at least {soft - left + needed}), or close what is open"
        )
    each = WORKER + SPARE + WORKER_EACH * workers
    if starting and hard != resource.RLIM_INFINITY and hard < each:
        return f"each of {workers} workers needs {each} open files, and may have {hard}: raise that (ulimit -Hn)"
    return None
