"""Starts worker processes, tells what became of them, stops them.

A worker is a fresh interpreter (never a fork, never the user's script again). It says on a pipe that it is ready,
ends when another pipe closes (its owner has ended, however), and writes what it prints to a log.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from ..protocol.descriptors import LET_GO, pipe
from ..protocol.errors import InterlockError
from ..protocol.identity import Identity
from ..protocol.logs import tail
from .uninterrupted import uninterrupted

START_S: Final = 60.0  # the longest that a worker may take to be ready
STOP_S: Final = 1.0  # how long a worker may take to stop before it is killed
KILLED_S: Final = 5.0  # how long a killed worker may take to be gone
PROGRAM = ("-m", "interlock.worker")  # what the interpreter is told to run
KINDS: Final = ("cpu", "cuda", "sim")
HAS_CUDA: Final = (Path(__file__).parent.parent / "worker" / "devices" / "cuda.py").exists()
_BLAS: Final = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS", "NUMEXPR_NUM_THREADS")


class Adopted(NamedTuple):
    """A worker that runs: where it listens and who it is."""

    device: str
    endpoint: str
    identity: Identity

    @property
    def is_tcp(self) -> bool:
        return self.endpoint.startswith("tcp://")


class Tcp(NamedTuple):
    """Over tcp, besides: where a worker is to listen, and the file of keys."""

    listen: str  # tcp://host:port
    keys: Path


def check_devices(names: Sequence[str]) -> list[str]:
    """The names of devices, such as "cpu:0", checked; "cpu" is "cpu:0".

    Raises:
        ValueError: it is no device's name, or there is none, or one is there twice.
    """
    checked = []
    for name in names:
        kind, _, index = str(name).strip().partition(":")
        if kind not in KINDS or not re.fullmatch("[0-9]{0,6}", index):
            raise ValueError(f"{name!r} is not a device: use one of {', '.join(KINDS)} with a number, such as 'cpu:0'")
        device = f"{kind}:{int(index or 0)}"
        if kind == "cuda" and not HAS_CUDA:
            raise ValueError(
                f"{device} cannot be used: this version of interlock drives no GPU; sim:{index or 0} behaves like one"
            )
        if device in checked:
            raise ValueError(f"{device} is named twice: one worker serves a device")
        checked.append(device)
    if not checked:
        raise ValueError("no devices: name at least one, such as 'cpu:0'")
    return checked


def cores() -> int:
    """How many processor cores this process may use."""
    return len(os.sched_getaffinity(0))


def default_memory(workers: int) -> int:
    """Bytes that each of several workers may take: together half of what this process may use."""
    return min(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), *_group_limits()) // 2 // max(workers, 1)


def _group_limits(root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> list[int]:
    """The memory limits, in bytes, of the control groups that this process is in: a container's, say."""
    files = [root / "memory.max", root / "memory" / "memory.limit_in_bytes"]
    with contextlib.suppress(OSError):
        for line in own.read_text().splitlines():
            _, kind, place = line.split(":", 2)
            here = Path(place.lstrip("/"))
            files += [root / each / "memory.max" for each in (here, *here.parents)] if kind == "" else []
            if kind == "memory":
                files.append(root / "memory" / here / "memory.limit_in_bytes")
    limits = []
    for file in files:
        with contextlib.suppress(OSError, ValueError):  # "max" is no number: there is none
            limits.append(int(file.read_text()))
    return [limit for limit in limits if limit > 0] or [1 << 62]


def blas_environment(threads: int) -> dict[str, str]:
    """What tells the libraries under NumPy how many threads to use; they read it when NumPy is imported."""
    return dict.fromkeys(_BLAS, str(max(threads, 1)))


class Process:
    """One worker process that this process started."""

    def __init__(
        self,
        device: str,
        name: str,
        folder: Path,
        memory: int,
        cpu_workers: int,
        options: dict[str, Any],
        tcp: Tcp | None = None,
        into: list[Process] | None = None,
    ) -> None:
        """Start it. `into` gets this object before there is a process, to be stopped whatever comes in between."""
        self.device = device
        self.log = folder / f"{name}.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._owner_fd: int | None = None
        self._ready_fd = -1
        if into is not None:
            into.append(self)
        _processes.add(self)
        owned, self._owner_fd = pipe()
        self._ready_fd, tell_ready = pipe()
        command = [
            sys.executable, "-P", *PROGRAM, "--device", device, "--name", name, "--folder", str(folder),
            "--memory", str(memory), "--owner", str(os.getpid()), str(owned),
            "--ready-fd", str(tell_ready), "--options", json.dumps(options), "--log", str(self.log),
        ]  # fmt: skip
        if tcp is not None:
            command += ["--listen", tcp.listen, "--keys", str(tcp.keys)]
        environment = {**os.environ, **blas_environment(cores() // max(cpu_workers, 1))}
        try:
            with open(self.log, "ab") as log:  # for appending: it is cut while the worker writes
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=environment,
                    pass_fds=(owned, tell_ready),
                    start_new_session=True,  # Ctrl-C in the terminal goes to the program alone
                )
        except BaseException:
            self.disown()  # the worker ends by this, should there be one
            raise
        finally:
            os.close(owned)
            os.close(tell_ready)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def ready_fd(self) -> int:
        """Readable when `ready` need not wait any more. Closed by `ready`."""
        return self._ready_fd

    def ready(self, deadline: float) -> Adopted:
        """Wait until the worker serves.

        Raises:
            InterlockError: it ended, or did not get ready in time; with the last lines that it wrote.
        """
        said = b""
        poll = select.poll()
        poll.register(self._ready_fd, select.POLLIN)
        try:
            while not said.endswith(b"\n"):
                left = deadline - time.monotonic()
                if left <= 0 or not poll.poll(left * 1000):
                    raise InterlockError(f"the worker of {self.device} was not ready in time{self.last_words()}")
                piece = os.read(self._ready_fd, 65536)
                if not piece:
                    self.ends(deadline)
                    raise InterlockError(f"the worker of {self.device} {self.fate()} at its start{self.last_words()}")
                said += piece
        finally:
            os.close(self._ready_fd)
            self._ready_fd = -1
        told = json.loads(said)
        return Adopted(self.device, told["endpoint"], Identity(*told["identity"]))

    def fate(self) -> str:
        """What became of the process, in words."""
        self.ends(time.monotonic() + 0.5)  # its death may be known a moment before its exit code is
        code = None if self._process is None else self._process.poll()
        if code is None:
            return "still runs"
        return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"

    def last_words(self, lines: int = 12) -> str:
        """The last lines that it wrote, to be put behind a message."""
        written = tail(self.log, lines)
        if written:
            return "; its last lines:\n  " + "\n  ".join(written)
        with contextlib.suppress(OSError):
            if os.statvfs(self.log).f_bavail == 0:
                return "; the log could not be written, as the disk is full"
        return ""

    def kill(self) -> None:
        """End it at once; who waits in `ready` sees it end."""
        if self._process is not None:
            self._process.kill()

    def let_go(self) -> None:
        """The worker ends by itself, if it has not; its endpoints' folder stays, as its owner lives."""
        if self._owner_fd is not None:
            with contextlib.suppress(OSError):  # it has ended
                os.write(self._owner_fd, LET_GO)
        self.disown()

    def disown(self) -> None:
        """Close the pipes. The worker ends, once no other process holds the owner's end."""
        if self._ready_fd >= 0:
            os.close(self._ready_fd)
            self._ready_fd = -1
        if self._owner_fd is not None:
            os.close(self._owner_fd)
            self._owner_fd = None

    def remove_traces(self) -> None:
        """What an ended worker leaves in the folder, where others go on living: its log and its endpoints."""
        for left in (self.log, self.log.with_suffix(""), self.log.with_suffix(".d")):
            with contextlib.suppress(OSError):
                left.unlink()

    def stop(self, deadline: float) -> None:
        """Wait for the end of a worker that was told to stop; end it if it does not."""
        if not self.ends(deadline):
            self.kill()
        self.reap()

    def ends(self, deadline: float) -> bool:
        """Whether it ends by itself in time."""
        if self._process is None:  # it was never there, or Ctrl-C came before anybody knew of it
            return True
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(max(deadline - time.monotonic(), 0.01))
        return self._process.poll() is not None

    def reap(self) -> None:
        """It ends, or was killed: leave nothing of it."""
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):  # the kernel keeps it: nothing here can end it
                self._process.wait(KILLED_S)
        self.let_go()


_processes: weakref.WeakSet[Process] = weakref.WeakSet()


def _in_forked_child() -> None:
    """The workers are the parent's, and end with it: no end of a pipe may be held open here."""
    for process in list(_processes):
        process.disown()


os.register_at_fork(after_in_child=_in_forked_child)


def start(
    devices: Sequence[str],
    folder: Path,
    memory: int | None,
    options: dict[str, Any],
    timeout_s: float = START_S,
    processes: list[Process] | None = None,
) -> tuple[list[Process], list[Adopted]]:
    """Start a worker for each device, side by side, and wait until all serve.

    Args:
        devices: checked names.
        folder: for their endpoints.
        memory: bytes for each worker; None for an equal part of half the machine's.
        options: of the devices.
        timeout_s: the longest that they may take.
        processes: gets each process before it is started; the caller stops them, whatever happens.

    Raises:
        InterlockError: one did not start; the others are stopped.
    """
    cpu_workers = sum(device.startswith(("cpu:", "sim:")) for device in devices)
    share = memory or default_memory(len(devices))
    processes = [] if processes is None else processes
    deadline = time.monotonic() + timeout_s
    try:
        for i, device in enumerate(devices):
            with uninterrupted():  # subprocess waits for a moment where it is interrupted
                Process(device, f"w{i}", folder, share, cpu_workers, options, into=processes)
        return processes, _all_ready(processes, deadline, timeout_s)
    except BaseException:
        stop(processes, 0.0)
        raise


def _all_ready(processes: Sequence[Process], deadline: float, timeout_s: float) -> list[Adopted]:
    """Wait for all at once: one that fails is not found out only when one that hangs has had its time."""
    poll = select.poll()
    waiting = {process.ready_fd: process for process in processes}
    for fd in waiting:
        poll.register(fd, select.POLLIN)
    adopted: dict[Process, Adopted] = {}
    while waiting:
        said = poll.poll(max(deadline - time.monotonic(), 0.0) * 1000)
        if not said:
            words = next((words for process in waiting.values() if (words := process.last_words())), "")
            names = ", ".join(process.device for process in waiting.values())
            which = f"the worker of {names} was" if len(waiting) == 1 else f"the workers of {names} were"
            raise InterlockError(f"{which} not ready in time, which is {timeout_s:g} s{words}")
        for fd, _ in said:
            poll.unregister(fd)
            process = waiting.pop(fd)
            adopted[process] = process.ready(deadline)
    return [adopted[process] for process in processes]


def stop(processes: Sequence[Process], patience_s: float = STOP_S) -> None:
    """End workers that were told to stop, those that do not by force. Ctrl-C takes the patience, and comes out last."""
    interrupt: BaseException | None = None
    while True:
        try:
            deadline = time.monotonic() + patience_s
            for process in [each for each in processes if not each.ends(deadline)]:
                process.kill()
            for process in processes:
                process.reap()
            break
        except KeyboardInterrupt as came:
            interrupt, patience_s = came, 0.0
    if interrupt is not None:
        raise interrupt
