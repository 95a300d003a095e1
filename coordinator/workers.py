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
from .interrupts import uninterrupted

START_S: Final = 60.0  # the longest that a worker may take to be ready
STOP_S: Final = 1.0  # how long a worker may take to stop before it is killed
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
    """Bytes that each of several workers may take: together half of the machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2 // max(workers, 1)


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
    ) -> None:
        self.device = device
        self.log = folder / f"{name}.log"
        owned, owner = pipe()
        ready, tell_ready = pipe()
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
            os.close(owner)
            os.close(ready)
            raise
        finally:
            os.close(owned)
            os.close(tell_ready)
        self._owner_fd: int | None = owner
        self._ready_fd = ready
        _processes.add(self)

    @property
    def pid(self) -> int:
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
                    self._process.wait()
                    raise InterlockError(f"the worker of {self.device} {self.fate()} at its start{self.last_words()}")
                said += piece
        finally:
            os.close(self._ready_fd)
            self._ready_fd = -1
        told = json.loads(said)
        return Adopted(self.device, told["endpoint"], Identity(*told["identity"]))

    def fate(self) -> str:
        """What became of the process, in words."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(0.5)  # its death may be known a moment before its exit code is
        code = self._process.poll()
        if code is None:
            return "still runs"
        return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"

    def last_words(self, lines: int = 12) -> str:
        """The last lines that it wrote, to be put behind a message."""
        written = tail(self.log, lines)
        return "; its last lines:\n  " + "\n  ".join(written) if written else ""

    def kill(self) -> None:
        """End it at once; who waits in `ready` sees it end."""
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
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(max(deadline - time.monotonic(), 0.01))
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self.let_go()


_processes: weakref.WeakSet[Process] = weakref.WeakSet()


def _in_forked_child() -> None:
    """The workers are the parent's, and end with it: no end of a pipe may be held open here."""
    for process in list(_processes):
        process.disown()


os.register_at_fork(after_in_child=_in_forked_child)


def start(
    devices: Sequence[str], folder: Path, memory: int | None, options: dict[str, Any], timeout_s: float = START_S
) -> tuple[list[Process], list[Adopted]]:
    """Start a worker for each device, side by side, and wait until all serve.

    Raises:
        InterlockError: one did not start; the others are stopped.
    """
    cpu_workers = sum(device.startswith(("cpu:", "sim:")) for device in devices)
    share = memory or default_memory(len(devices))
    processes: list[Process] = []
    try:
        for i, device in enumerate(devices):
            with uninterrupted():
                processes.append(Process(device, f"w{i}", folder, share, cpu_workers, options))
        deadline = time.monotonic() + timeout_s
        return processes, [process.ready(deadline) for process in processes]
    except BaseException:
        stop(processes, 0.0)
        raise


def stop(processes: Sequence[Process], patience_s: float = STOP_S) -> None:
    """End workers that were told to stop, those that do not by force."""
    deadline = time.monotonic() + patience_s
    for process in processes:
        process.stop(deadline)
