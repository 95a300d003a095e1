"""Workers end with their owner whatever they are doing, and leave nothing; neither sign of its end is needed alone."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

import pytest

from .programs import Program, becomes, customize, gone, kill, program, runs

START = """
import os, signal, subprocess, sys, threading, time
import interlock as il
session = il.connect(devices=["cpu:0", "cpu:1", "cpu:2"], options={"arena": os.environ.get("ARENA")})
print(*session.pids.values(), flush=True)
kept = [il.ones(100_000, device=device) for device in session.devices]
il.synchronize()
"""
# A worker that runs `negative` holds the interpreter: no other thread of it runs any more.
HOLD = """
    import interlock.worker.kernels as kernels
    quiet = kernels.kernel
    def kernel(operation, xp):
        def holding(*operands):
            open(f"{os.environ['SEEN']}/{os.getpid()}", "w").close()
            import ctypes
            ctypes.PyDLL(None).sleep(600)
        return holding if operation.name == "negative" else quiet(operation, xp)
    import os
    kernels.kernel = kernel
"""
STUCK = "for x in kept: -x\nsession.flush()\n"
ENDING = "print('ready', flush=True); sys.stdin.read()"


def pids_said(running: Program) -> list[int]:
    return [int(word) for word in running.line().split()]


def stick(folder: Path) -> dict[str, str]:
    """An environment in which a worker can be made to hold its interpreter."""
    (folder / "seen").mkdir()
    return {**customize(folder, HOLD), "SEEN": str(folder / "seen")}


def stuck(folder: Path, count: int = 3) -> None:
    becomes(lambda: len(os.listdir(folder / "seen")) == count)


def guards(pids: list[int]) -> list[int]:
    """The processes that guard these workers."""
    found = []
    for pid in pids:
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            if Path(f"/proc/{child}/comm").read_text().strip() == "interlock-guard":
                found.append(int(child))
    return found


def pipes(pid: int) -> set[str]:
    found = set()
    for fd in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):  # closed meanwhile
            found.add(os.readlink(f"/proc/{pid}/fd/{fd}"))
    return {name for name in found if name.startswith("pipe:")}


def segments() -> list[str]:
    return [name for name in os.listdir("/dev/shm") if name.startswith("interlock-")]


@pytest.mark.parametrize(
    ("how", "arena"), [("idle", "shm"), ("stopped", "memfd"), ("holding the interpreter", "memfd"), ("stopped", "shm")]
)
def test_workers_end_whatever_they_are_doing(how: str, arena: str, runtime: Path, tmp_path: Path) -> None:
    script = START + (STUCK if how.startswith("holding") else "") + ENDING
    with program(script, env={**stick(tmp_path), "ARENA": arena}) as running:
        pids = pids_said(running)
        running.line("ready")
        watching = becomes(lambda: len(found := guards(pids)) == 3 and found)
        if how == "stopped":
            for pid in pids:
                os.kill(pid, signal.SIGSTOP)
        elif how.startswith("holding"):
            stuck(tmp_path)
        running.signal(signal.SIGKILL)
        assert gone([*pids, *watching], 5.0)
    assert not [name for name in segments() if any(f"-{pid}-" in name for pid in (*pids, running.pid))]


@pytest.mark.parametrize("how", ["stopped", "holding the interpreter"])
def test_the_kernel_alone_ends_them(how: str, runtime: Path, tmp_path: Path) -> None:
    with program(START + (STUCK if how.startswith("holding") else "") + ENDING, env=stick(tmp_path)) as running:
        pids = pids_said(running)
        running.line("ready")
        first, *others = becomes(lambda: len(found := guards(pids)) == 3 and found)
        if how == "stopped":
            os.kill(pids[0], signal.SIGSTOP)
        else:
            stuck(tmp_path)
        kill(first)  # a guard that is left removes the folder
        running.signal(signal.SIGKILL)
        assert gone([*pids, *others], 5.0)


def test_the_guard_alone_ends_them(runtime: Path, tmp_path: Path) -> None:
    """Here a program that nobody sees holds on to the owner's pipe."""
    script = START + (
        "import subprocess\n"
        "fds = [process._owner_fd for process in session._processes]\n"
        "holder = subprocess.Popen(['sleep', '600'], pass_fds=fds, stdout=subprocess.DEVNULL)\n"
        "print(holder.pid, flush=True)\n" + STUCK + ENDING
    )
    with program(script, env=stick(tmp_path)) as running:
        pids = pids_said(running)
        (holder,) = pids_said(running)
        try:
            running.line("ready")
            stuck(tmp_path)
            running.signal(signal.SIGKILL)
            assert gone(pids, 5.0)
            assert runs(holder)
        finally:
            kill(holder)


def test_what_the_program_starts_later_does_not_hold_them(runtime: Path) -> None:
    """A second session's workers, programs, and children that it forks: none has the end of a pipe that tells."""
    script = START + (
        "other = il.connect(devices=['cpu:0'])\n"
        "print(*other.pids.values(), flush=True)\n"
        "sleeping = subprocess.Popen(['sleep', '600'], stdout=subprocess.DEVNULL, close_fds=False)\n"
        "forked = os.fork()\n"
        "if forked == 0:\n    time.sleep(600)\n"
        "print(sleeping.pid, forked, flush=True)\n" + ENDING
    )
    with program(script) as running:
        pids = [*pids_said(running), *pids_said(running)]
        others = pids_said(running)
        running.line("ready")
        try:
            kept = pipes(running.pid)
            for other in others:  # its standard streams are the program's
                becomes(lambda other=other: len(kept & pipes(other)) <= 3, 5.0)  # type: ignore[misc]
            running.signal(signal.SIGKILL)
            assert gone(pids, 5.0)
            assert all(map(runs, others))
        finally:
            for other in others:
                kill(other)


def test_workers_that_were_killed_before_leave_nothing_either(runtime: Path) -> None:
    with program(START + ENDING, env={"ARENA": "shm"}) as running:
        pids = pids_said(running)
        running.line("ready")
        watching = becomes(lambda: len(found := guards(pids)) == 3 and found)
        for pid in pids:
            kill(pid)
        becomes(lambda: not [name for name in segments() if any(f"-{pid}-" in name for pid in pids)], 5.0)
        assert all(map(runs, watching))
        running.signal(signal.SIGKILL)
        assert gone(watching, 5.0)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_workers_end_with_an_owner_that_is_stopped_and_then_ended(number: int, runtime: Path) -> None:
    with program(START + ENDING) as running:
        pids = pids_said(running)
        running.line("ready")
        running.signal(signal.SIGSTOP)
        running.signal(number)
        running.signal(signal.SIGCONT)
        assert running.ended(5.0) == -number
        assert gone(pids, 5.0)


def test_a_daemon_keeps_the_workers_that_it_started(runtime: Path) -> None:
    twice = "import os\nif os.fork(): os._exit(0)\nos.setsid()\nif os.fork(): os._exit(0)\nprint(os.getpid())\n"
    with program(twice + START + "print(il.ones(2).tolist()); " + ENDING) as running:
        (daemon,) = pids_said(running)
        pids = pids_said(running)
        assert running.ended() == 0
        assert running.line("[") == "[1.0, 1.0]"
        assert all(map(runs, pids))
        kill(daemon)
        assert gone([daemon, *pids], 5.0)


def test_a_worker_that_ends_in_order_leaves_no_guard(runtime: Path) -> None:
    script = START + "session.close(); print('closed', flush=True); sys.stdin.read()"
    with program(script) as running:
        pids_said(running)
        running.line("closed")
        assert Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text() == ""
        assert guards_of(running.pid) == []


def guards_of(pid: int) -> list[int]:
    """Guards whose owner's process is this one, found by their descriptors of it."""
    found = []
    for each in (int(name) for name in os.listdir("/proc") if name.isdigit()):
        try:
            if Path(f"/proc/{each}/comm").read_text().strip() != "interlock-guard":
                continue
            for fd in os.listdir(f"/proc/{each}/fdinfo"):
                if f"Pid:\t{pid}\n" in Path(f"/proc/{each}/fdinfo/{fd}").read_text():
                    found.append(each)
        except OSError:
            continue
    return found
