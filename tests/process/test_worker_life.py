"""How workers start, and that they end with their owner, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

import interlock as il
from interlock.coordinator import workers
from interlock.protocol.errors import InterlockError
from interlock.protocol.sockets import private_folder, remove_folder

from .programs import (
    Program,
    becomes,
    customize,
    environment,
    gone,
    kill,
    program,
    python_path,
    run,
    run_python,
    runs,
)

START = """
import os, signal, subprocess, sys, threading, time
import interlock as il
session = il.connect(devices=["cpu:0", "cpu:1", "cpu:2"])
print(*session.pids.values(), flush=True)
"""
BUSY = """
for device in session.devices:
    x = il.ones((1500, 1500), device=device)
    for _ in range(20):
        x = x @ x
session.flush()
"""


def pids_said(running: Program) -> list[int]:
    return [int(word) for word in running.line().split()]


BREAK_IMPORT = """
    import os
    class Broken:
        def find_spec(self, name, *_):
            if name == "numpy" and "{device}" in sys.orig_argv and os.path.exists({flag!r}):
                {act}
    sys.meta_path.insert(0, Broken())
"""


# -- the end of the owner ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ending", "code"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
        ("os._exit(7)", 7),
        ("sys.exit(3)", 3),
        ("raise ValueError('mine')", 1),
        ("pass", 0),
    ],
)
@pytest.mark.parametrize("work", ["", BUSY], ids=["idle", "busy"])
def test_workers_end_with_their_program_however_it_ends(ending: str, code: int, work: str, runtime: Path) -> None:
    with program(START + work + ending) as running:
        pids = pids_said(running)
        assert running.ended() == code
        assert gone(pids, 5.0)
        errors = running.errors()
        assert errors.splitlines()[-1:] == (["ValueError: mine"] if "mine" in ending else [])


def test_a_forked_child_of_the_program_does_not_keep_the_workers(runtime: Path) -> None:
    script = START + "if os.fork() == 0:\n    time.sleep(600)\nprint('forked', flush=True)\nsys.stdin.read()"
    with program(script) as running:
        pids = pids_said(running)
        running.line("forked")
        children = [int(c) for c in Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split()]
        (forked,) = set(children) - set(pids)
        try:
            running.signal(signal.SIGKILL)
            assert gone(pids, 5.0)
            assert runs(forked)
        finally:
            kill(forked)


def test_workers_that_hang_in_an_import_end_with_their_program(runtime: Path, tmp_path: Path) -> None:
    flag = tmp_path / "hang"
    flag.touch()
    act = "open(f'{os.environ[\"SEEN\"]}/{os.getpid()}', 'w').close(); import time; time.sleep(600)"
    env = customize(tmp_path, BREAK_IMPORT.format(device="--device", flag=str(flag), act=act))
    seen = tmp_path / "seen"
    seen.mkdir()
    with program(START, env={**env, "SEEN": str(seen)}) as running:
        hanging = becomes(lambda: (found := os.listdir(seen)) and len(found) == 3 and [int(pid) for pid in found])
        running.signal(signal.SIGKILL)
        assert gone(hanging, 5.0)


def test_the_thread_that_started_the_workers_may_end(runtime: Path) -> None:
    sessions: list[il.Session] = []
    thread = threading.Thread(target=lambda: sessions.append(il.connect(devices=["cpu:0", "cpu:1"])))
    thread.start()
    thread.join()
    with sessions[0] as session:
        x = il.ones(3, device="cpu:1")
        assert (x + 1).to("cpu:0").tolist() == [2.0, 2.0, 2.0]
        assert all(map(runs, session.pids.values()))


def test_closing_ends_the_workers_and_removes_what_they_made(runtime: Path) -> None:
    with il.connect(devices=["cpu:0", "cpu:1", "cpu:2"]) as session:
        pids = list(session.pids.values())
        assert len(list((runtime / "interlock").iterdir())) == 1
    assert not any(map(runs, pids))
    assert list((runtime / "interlock").iterdir()) == []


# -- Ctrl-C -----------------------------------------------------------------------------------------------------------


def test_ctrl_c_in_the_terminals_group_interrupts_the_program_and_spares_the_workers(runtime: Path) -> None:
    script = (
        START
        + BUSY
        + """
try:
    print("reading", flush=True)
    x.numpy()
    print("read", flush=True)
except KeyboardInterrupt:
    print("interrupted", flush=True)
print((il.ones(3, device="cpu:2") + 1).tolist(), all(os.path.exists(f"/proc/{p}") for p in session.pids.values()))
"""
    )
    with program(script) as running:
        pids = pids_said(running)
        running.line("reading")
        assert running.pid not in [os.getsid(pid) for pid in pids]
        os.killpg(running.pid, signal.SIGINT)  # as the terminal does: the program leads its group
        assert running.line() == "interrupted"
        assert running.line() == "[2.0, 2.0, 2.0] True"
        assert running.ended() == 0
        assert not any(map(runs, pids))


def test_workers_ignore_ctrl_c(runtime: Path) -> None:
    with il.connect(devices=["cpu:0"]) as session:
        os.kill(session.pids["cpu:0"], signal.SIGINT)
        assert (il.ones(3) + 1).tolist() == [2.0, 2.0, 2.0]


def test_ctrl_c_during_start_up_leaves_no_worker(runtime: Path, tmp_path: Path) -> None:
    flag = tmp_path / "hang"
    flag.touch()
    act = "open(f'{os.environ[\"SEEN\"]}/{os.getpid()}', 'w').close(); import time; time.sleep(600)"
    env = customize(tmp_path, BREAK_IMPORT.format(device="cpu:1", flag=str(flag), act=act))
    seen = tmp_path / "seen"
    seen.mkdir()
    with program(START, env={**env, "SEEN": str(seen)}) as running:
        becomes(lambda: os.listdir(seen))
        children = [int(c) for c in Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split()]
        running.signal(signal.SIGINT)
        assert running.ended(5.0) == -signal.SIGINT
        assert len(children) == 3
        assert not any(map(runs, children))


# -- failing starts ---------------------------------------------------------------------------------------------------


def test_a_worker_that_fails_at_its_start_is_told_with_its_last_lines_and_starting_again_works(
    runtime: Path, tmp_path: Path
) -> None:
    flag = tmp_path / "broken"
    flag.touch()
    env = customize(
        tmp_path,
        BREAK_IMPORT.format(device="cpu:1", flag=str(flag), act="raise ImportError('libsomething.so.9: not found')"),
    )
    script = f"""
import os, sys
import interlock as il
def children():
    return open(f"/proc/self/task/{{os.getpid()}}/children").read().split()
try:
    il.connect(devices=["cpu:0", "cpu:1", "cpu:2"])
except il.InterlockError as error:
    print(error)
folder = os.environ["XDG_RUNTIME_DIR"] + "/interlock"
print("left:", children(), os.listdir(folder), len(os.listdir("/proc/self/fd")) < 20)
os.unlink({str(flag)!r})
with il.connect(devices=["cpu:0", "cpu:1", "cpu:2"]) as session:
    print((il.ones(2, device="cpu:1") + 1).tolist(), len(children()))
"""
    done = run_python(script, env=env)
    assert done.err == ""
    first, *lines = done.out.splitlines()
    assert first == "the worker of cpu:1 ended with exit code 1 at its start; its last lines:"
    assert "  ImportError: libsomething.so.9: not found" in lines
    assert lines[-2:] == ["left: [] [] True", "[2.0, 2.0] 3"]


def test_a_worker_that_is_not_ready_in_time_is_told_and_ended(
    runtime: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flag = tmp_path / "hang"
    flag.touch()
    act = "print('waiting for the driver', flush=True); import time; time.sleep(600)"
    env = customize(tmp_path, BREAK_IMPORT.format(device="cpu:1", flag=str(flag), act=act))
    monkeypatch.setenv("PYTHONPATH", env["PYTHONPATH"])
    folder = private_folder()
    try:
        with pytest.raises(InterlockError, match=r"cpu:1 was not ready in time.*\n.*waiting for the driver"):
            workers.start(["cpu:0", "cpu:1"], folder, 1 << 20, {}, timeout_s=3.0)
    finally:
        remove_folder(folder)
    assert Path(f"/proc/self/task/{os.getpid()}/children").read_text() == ""


def test_more_descriptors_than_select_can_bear_are_no_hindrance(runtime: Path) -> None:
    script = """
import os, resource
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
held = [os.open("/dev/null", os.O_RDONLY) for _ in range(1100)]
import interlock as il
with il.connect(devices=["cpu:0", "cpu:1"]) as session:
    x = il.ones(100_000, device="cpu:0")
    print(float((x + 1).to("cpu:1").sum()))
"""
    done = run_python(script)
    assert (done.out, done.err) == ("200000.0\n", "")


# -- what workers print -----------------------------------------------------------------------------------------------


def test_a_worker_that_prints_a_lot_does_not_stall_and_its_words_are_in_its_log(runtime: Path, tmp_path: Path) -> None:
    loud = """
        import interlock.worker.kernels as kernels
        quiet = kernels.kernel
        def kernel(operation, xp):
            run = quiet(operation, xp)
            def shouting(*operands):
                print("o" * 1_000_000)
                print("e" * 1_000_000, file=sys.stderr, flush=True)
                return run(*operands)
            return shouting if operation.name == "negative" else run
        kernels.kernel = kernel
        print("s" * 1_000_000, flush=True)
    """
    script = """
import os
import interlock as il
with il.connect(devices=["cpu:0"]) as session:
    print((-il.ones(3)).tolist())
    log = (session._folder / "w0.log").read_text()
    print(log.count("s"), log.count("o"), log.count("e"))
"""
    done = run_python(script, env=customize(tmp_path, loud))
    assert done.out.splitlines() == ["[-1.0, -1.0, -1.0]", "1000000 1000000 1000000"], done.err


# -- the same lines everywhere ----------------------------------------------------------------------------------------

ANYWHERE = """
import os
import interlock as il
print("top level")
session = il.connect(devices=["cpu:0", "cpu:1", "cpu:2"])
x = il.ones(3, device="cpu:1")
print((x + 1).to("cpu:2").tolist())
print(len(open(f"/proc/self/task/{os.getpid()}/children").read().split()), "workers")
"""
SAID = "top level\n[2.0, 2.0, 2.0]\n3 workers\n"


@pytest.mark.parametrize("how", ["script", "-c", "stdin", "module"])
def test_the_same_lines_start_the_workers_once_wherever_they_are(how: str, runtime: Path, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(ANYWHERE)
    arguments = {"script": [str(file)], "-c": ["-c", ANYWHERE], "stdin": ["-"], "module": ["-m", "mine"]}[how]
    text = ANYWHERE if how == "stdin" else None
    done = run([sys.executable, *arguments], text=text, env=python_path(tmp_path))
    assert (done.out, done.err, done.code) == (SAID, "", 0)


def test_the_same_lines_start_the_workers_once_under_pytest(runtime: Path, tmp_path: Path) -> None:
    body = textwrap.indent(ANYWHERE, "    ")
    (tmp_path / "test_mine.py").write_text(f"def test_mine():\n{body}    session.close()\n")
    done = run([sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", str(tmp_path)])
    assert done.code == 0, done.out
    assert SAID in done.out


def test_a_worker_never_imports_the_coordinator(runtime: Path, tmp_path: Path) -> None:
    tell = "import atexit; atexit.register(lambda: print(*sys.modules, flush=True))"
    script = """
import interlock as il
session = il.connect(devices=["cpu:0"])
(il.ones(3) + 1).numpy()
log, remove = session._folder / "w0.log", il.coordinator.closing.remove_folder
il.coordinator.closing.remove_folder = lambda folder: print(log.read_text()) or remove(folder)
session.close()
"""
    done = run_python("import interlock.coordinator.closing\n" + script, env=customize(tmp_path, tell))
    assert "interlock.worker.loop" in done.out.split(), done.err
    assert not [name for name in done.out.split() if name.startswith(("interlock.coordinator", "interlock.deploy"))]


def test_many_sessions_of_several_workers_start_at_the_same_moment(runtime: Path) -> None:
    script = START + "print(float(il.ones(10, device='cpu:2').sum()))"
    pipe, env = subprocess.PIPE, environment(None)
    running = [
        subprocess.Popen([sys.executable, "-c", script], stdout=pipe, stderr=pipe, text=True, env=env) for _ in range(8)
    ]
    try:
        for each in running:
            out, err = each.communicate(timeout=100)
            assert (out.splitlines()[-1:], err, each.returncode) == (["10.0"], "", 0)
    finally:
        for each in running:
            each.kill()
            each.wait()
