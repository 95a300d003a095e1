"""Sees to it that a worker ends with its owner, whatever the worker is doing, and that neither leaves anything.

A thread of the worker could not do it: a call that keeps the interpreter (a huge Python integer, a foreign function)
lets no other thread run, and a stopped process runs none at all. So there are two, neither of which needs the worker:
the kernel kills it when the owner's end of a pipe closes, and a second process, forked before the worker has
threads, does the same where the kernel did not (a child that the owner forked in a way that Python does not see may
hold that end open), and then removes what is left. A signal at the parent's death (PR_SET_PDEATHSIG) would be
simpler and is wrong: it comes when the *thread* ends that started the worker.

Imports nothing but the standard library, so that it stands before anything that may hang, such as a driver.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import shutil
import signal
from pathlib import Path
from typing import Final

from ..protocol.descriptors import LET_GO
from ..protocol.identity import own_identity, start_time
from ..protocol.logs import keep_short

F_SETSIG: Final = 10  # Linux: which signal O_ASYNC sends; the module fcntl does not name it
SEGMENTS: Final = Path("/dev/shm")
GRACE_S: Final = 5.0  # how long a killed worker may take to be gone, before what it made is removed all the same


def kill_when_closed(pipe: int, pid: int) -> None:
    """Have the kernel kill process `pid` when the last writing end of this pipe is closed."""
    fcntl.fcntl(pipe, fcntl.F_SETOWN, pid)
    fcntl.fcntl(pipe, F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(pipe, fcntl.F_SETFL, fcntl.fcntl(pipe, fcntl.F_GETFL) | os.O_ASYNC)


class Guard:
    """The second process of a worker."""

    def __init__(self, pipe: int, owner: int, folder: Path, log: Path | None = None) -> None:
        """Fork it. The caller has one thread only.

        Args:
            pipe: the reading end of a pipe whose other end the owner holds, and writes nothing to but LET_GO.
            owner: its process id.
            folder: of the endpoints, the owner's; goes with it.
            log: the file that the worker prints into, to be kept short; None if it is not ours to shorten.
        """
        me = os.getpid()
        named = [f"interlock-{own_identity().pid_namespace}-{pid}-{start_time(pid) or 0}-" for pid in (me, owner)]
        ended, self._held = os.pipe2(os.O_CLOEXEC)
        owners = [pipe]
        with contextlib.suppress(OSError):  # it has ended, or cannot be seen: the pipe tells
            owners.append(os.pidfd_open(owner))
        self._pid = os.fork()
        if self._pid == 0:
            try:
                _guard(me, ended, owners, folder, named, log)
            finally:
                os._exit(0)
        for fd in (ended, *owners[1:]):
            os.close(fd)
        with contextlib.suppress(OSError):  # a system that does not know it: the guard does it alone
            kill_when_closed(pipe, me)

    def dismiss(self) -> None:
        """The worker ends in order: nothing is left to be done, and no process is to be."""
        with contextlib.suppress(OSError):
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)


def _guard(worker: int, ended: int, owners: list[int], folder: Path, named: list[str], log: Path | None) -> None:
    """In the second process: wait for the end of the worker or of its owner.

    Args:
        worker: its process id.
        ended: a pipe that closes with the worker.
        owners: the pipe that closes with its owner, and a descriptor of the owner's process, if it could be had.
        folder: the owner's.
        named: what the names of segments begin with, of the worker and of the owner.
        log: of the worker, to be kept short; None if it is not ours.
    """
    os.setsid()  # what is sent to the worker's group is not for its guard
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    _keep_only([ended, *owners])
    with contextlib.suppress(OSError), open("/proc/self/comm", "w") as name:
        name.write("interlock-guard")
    if log is None:
        _readable([ended, *owners])
    else:
        keep_short(log, [ended, *owners])  # nothing that the worker does can hold this up
    if not _readable(owners, 0):  # the worker was killed: what it made goes now, and its endpoints with its owner's
        _remove_segments(named[:1])
        _readable(owners)
    if os.getppid() == worker:  # else it has ended, and the number may be another's
        os.kill(worker, signal.SIGKILL)
    _readable([ended], GRACE_S)
    abandoned = not (_readable(owners[:1], 0) and os.read(owners[0], 1) == LET_GO)
    if abandoned:
        shutil.rmtree(folder, ignore_errors=True)
    _remove_segments(named if abandoned else named[:1])


def _readable(fds: list[int], timeout_s: float | None = None) -> bool:
    """Whether one of them is, or is before the time is over."""
    poll = select.poll()
    for fd in fds:
        poll.register(fd, select.POLLIN)
    return bool(poll.poll(None if timeout_s is None else timeout_s * 1000))


def _keep_only(kept: list[int]) -> None:
    """Close every other descriptor: an end of a pipe kept open here would hide the worker's end from its owner."""
    null = os.open(os.devnull, os.O_RDWR)
    for standard in range(3):
        os.dup2(null, standard)
    for fd in [int(name) for name in os.listdir("/proc/self/fd")]:
        if fd > 2 and fd not in kept:
            with contextlib.suppress(OSError):  # the one with which the folder was listed
                os.close(fd)


def _remove_segments(named: list[str]) -> None:
    """Remove the named segments of processes that have ended; memfds go by themselves."""
    with contextlib.suppress(OSError):
        for name in os.listdir(SEGMENTS):
            if name.startswith(tuple(named)):
                with contextlib.suppress(OSError):
                    os.unlink(SEGMENTS / name)
