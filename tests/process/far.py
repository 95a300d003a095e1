"""Workers over tcp for tests: keys of the test's own, launchers that listen, workers that share no memory with it.

A worker in a pid namespace of its own is, to everybody else, one on another machine: its process cannot be seen, nor
its memory mapped. Where the system refuses that, a worker that claims to be of another boot is the same to all of us.
"""

from __future__ import annotations

import functools
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from interlock.protocol import keys
from interlock.protocol.tcp import new_pair

from .programs import Program, launcher

INTERLOCK = (sys.executable, "-P", "-m", "interlock.deploy")


def own_keys(folder: Path) -> Path:
    """A file of keys of the test's own."""
    return keys.load_or_make(folder / "keys.json", new_pair).path


def listening(devices: str, own: Path, *more: str) -> Program:
    """A launcher that listens at the loopback."""
    return launcher("--devices", devices, "--listen", "tcp", "--keys", str(own), *more)


@functools.cache
def can_unshare() -> bool:
    """Whether this user can start a process in a pid namespace of its own."""
    if shutil.which("unshare") is None:
        return False
    return subprocess.run(["unshare", "--pid", "--fork", "--mount-proc", "true"], capture_output=True).returncode == 0


class FarWorker(Program):
    """A worker with a runtime folder of its own, as another machine has."""

    def __init__(self, command: list[str]) -> None:
        self._folder = tempfile.mkdtemp(prefix="il-far-", dir="/tmp")
        super().__init__(command, env={"XDG_RUNTIME_DIR": self._folder})

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        shutil.rmtree(self._folder)


def far_worker(device: str, address: str, own: Path) -> Program:
    """A worker that joins a launcher, and to which the rest of the test is on another machine."""
    command = [*INTERLOCK, "worker", "--device", device, "--address", address, "--listen", "tcp", "--keys", str(own)]
    if can_unshare():
        return FarWorker(["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", *command])
    boot = "import interlock.protocol.identity as i; i._boot_id = lambda: 'another'; "
    run = "import sys; from interlock.deploy.cli import main; sys.exit(main(sys.argv[1:]))"
    return FarWorker([sys.executable, "-P", "-c", boot + run, *command[len(INTERLOCK) :]])


def inner_pid(worker: Program) -> int:
    """The process of a far worker, as it is seen from here."""
    children = Path(f"/proc/{worker.pid}/task/{worker.pid}/children").read_text().split()
    return int(children[0]) if can_unshare() else worker.pid
