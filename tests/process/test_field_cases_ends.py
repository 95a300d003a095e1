"""Bugs that others' users have reported, as tests: how programs and workers start and end.

Each names the public report that it comes from.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import interlock as il

from .programs import becomes, program, run, run_python

GONE_S = 5.0


def marked(mark: str) -> list[int]:
    """The processes that have this mark in their environment, which children inherit."""
    found = []
    for pid in (int(name) for name in os.listdir("/proc") if name.isdigit()):
        try:
            if f"MARK={mark}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                found.append(pid)
        except OSError:
            continue  # it has ended, or is a zombie
    return found


# FL-09: vllm-project/vllm#55510, #28053 ----------------------------------------------------------------------------

BUSY = """
import os, sys
import interlock as il
session = il.connect(devices=["cpu:0", "cpu:1", "cpu:2"], options={"arena": os.environ["ARENA"]})
kept = [il.ones((6000, 6000), dtype="f4", device=device) for device in session.devices]
il.synchronize()
long = [x @ x for x in kept]
session.flush()
print("busy", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("arena", ["memfd", "shm"])
def test_fl09_workers_in_long_operations_end_with_a_program_that_is_killed(arena: str, runtime: Path) -> None:
    """Workers outlived a program killed with SIGKILL: later workers had inherited the pipe that was to tell them."""
    mark = f"fl09-{os.getpid()}-{arena}"
    before = {name for name in os.listdir("/dev/shm") if name.startswith("interlock-")}
    with program(BUSY, env={"MARK": mark, "ARENA": arena}) as running:
        running.line("busy")
        assert len(marked(mark)) == 7  # the program, three workers, and their guards
        running.signal(signal.SIGKILL)
        running.ended()
        becomes(lambda: not marked(mark), GONE_S)
    left = {name for name in os.listdir("/dev/shm") if name.startswith("interlock-")} - before
    assert not [name for name in left if f"-{running.pid}-" in name]


def test_fl09_workers_that_are_still_starting_end_with_a_program_that_is_killed(runtime: Path) -> None:
    chance = random.Random(9)
    for round_ in range(12):
        mark = f"fl09-{os.getpid()}-{round_}"
        script = BUSY.replace("import interlock as il", "import interlock as il; print('starts', flush=True)")
        with program(script, env={"MARK": mark, "ARENA": "memfd"}) as running:
            running.line("starts")
            time.sleep(chance.uniform(0, 0.4))
            running.signal(signal.SIGKILL)
            running.ended()
            becomes(lambda mark=mark: not marked(mark), GONE_S)  # type: ignore[misc]


# FL-24: hw-native-sys/simpler#1396; richardsheridan/trio-parallel#167 ----------------------------------------------


def broken_package(folder: Path, *, device: str, act: str) -> dict[str, str]:
    """A `msgpack` that does this where the worker of a device imports it, and is the real one elsewhere."""
    package = folder / "broken" / "msgpack"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(
        f"import os, sys\n"
        f"if {device!r} in sys.argv and os.path.exists({str(folder / 'flag')!r}):\n"
        f"    print('looking for the driver', file=sys.stderr, flush=True)\n"
        f"    {act}\n"
        f"del sys.modules['msgpack']\nsys.path.remove({str(folder / 'broken')!r})\n"
        f"import msgpack\n"
    )
    (folder / "flag").touch()
    return {"PYTHONPATH": os.pathsep.join([str(folder / "broken"), *filter(None, [os.environ.get("PYTHONPATH")])])}


@pytest.mark.parametrize(
    ("act", "words"),
    [
        ("raise ImportError('libdriver.so.9: cannot open shared object file')", "libdriver.so.9"),
        ("os._exit(11)", "exit code 11"),
        ("os.abort()", "SIGABRT"),
        ("import ctypes; ctypes.PyDLL(None).sleep(600)", "not ready in time"),
    ],
)
def test_fl24_a_worker_that_fails_in_its_set_up_is_told_in_time(
    act: str, words: str, runtime: Path, tmp_path: Path
) -> None:
    """A worker that failed in its set-up left the parent waiting for "ready" for ever."""
    script = f"""
import os, time
import interlock as il
def children():
    return open(f"/proc/self/task/{{os.getpid()}}/children").read().split()
started = time.monotonic()
try:
    il.connect(devices=["cpu:0", "cpu:1", "cpu:2"], start_timeout={5.0 if "not ready" in words else 60.0})
except il.InterlockError as error:
    print(error)
print("in time:", time.monotonic() - started < 20, "left:", children())
os.unlink({str(tmp_path / "flag")!r})
with il.connect(devices=["cpu:0", "cpu:1", "cpu:2"]) as session:
    print((il.ones(2, device="cpu:1") + 1).tolist(), len(children()))
"""
    done = run_python(script, env=broken_package(tmp_path, device="cpu:1", act=act))
    assert done.err == ""
    assert done.out.startswith("the worker")
    assert "cpu:1" in done.out.splitlines()[0]
    assert words in done.out
    assert ("looking for the driver" in done.out) or "libdriver" in words  # whose traceback takes the last lines
    assert "in time: True left: []" in done.out
    assert done.out.splitlines()[-1] == "[2.0, 2.0] 3"


def test_fl24_a_worker_that_fails_is_told_before_one_that_hangs_has_had_its_time(runtime: Path, tmp_path: Path) -> None:
    act = "import time; time.sleep(600) if 'cpu:0' in sys.argv else sys.exit('no driver')"
    env = broken_package(tmp_path, device="--device", act=act)
    script = """
import interlock as il
try:
    il.connect(devices=["cpu:0", "cpu:1"], start_timeout=50)
except il.InterlockError as error:
    print(error)
"""
    done = run_python(script, env=env)
    assert done.out.startswith("the worker of cpu:1 ended with exit code 1 at its start")
    assert "no driver" in done.out
    assert done.seconds < 25


@pytest.mark.parametrize(("limit", "kind"), [(-1, ValueError), ("3", TypeError), (float("nan"), ValueError)])
def test_fl24_a_limit_that_is_none_is_refused(limit: Any, kind: type[Exception], runtime: Path) -> None:
    with pytest.raises(kind):
        il.connect(devices=["cpu:0"], start_timeout=limit)


# FL-48: vllm-project/vllm#51275, #50960 ----------------------------------------------------------------------------


def test_fl48_many_sessions_start_at_the_same_moment(runtime: Path) -> None:
    """A port was probed, let go, and taken by someone else before the real bind."""
    script = """
import sys, threading
import interlock as il
sys.stdin.readline()
failed = []
def start():
    try:
        with il.connect(devices=["cpu:0", "cpu:1", "cpu:2"]) as session:
            x = il.ones(10, device=session.devices[2])
            assert float(x.sum()) == 10
    except BaseException as error:
        failed.append(repr(error))
threads = [threading.Thread(target=start) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(failed)
"""
    with program(script) as one, program(script) as other:
        one.tell()
        other.tell()
        assert one.line() == other.line() == "[]"
        assert one.ended() == other.ended() == 0
        assert one.errors() == other.errors() == ""


# FL-35: zeromq/pyzmq#1307, #222, #613 ------------------------------------------------------------------------------

FORKS = {
    "drops an array and exits": "del kept[0]; gc.collect(); sys.exit(0)",
    "exits at once": "os._exit(0)",
    "uses an array": "print(kept[0] + 1)",
    "reads an array": "kept[0].numpy()",
    "closes the session": "session.close(); sys.exit(0)",
    "makes another session": "print(il.connect('cpu:0') and il.ones(2).tolist()); sys.exit(0)",
    "runs a captured function": "step(kept[0])",
    "ends by an error": "raise ValueError('mine')",
}


def test_fl35_a_forked_child_disturbs_nothing(runtime: Path) -> None:
    """A forked child inherited the context; its clean-up broke the parent."""
    script = f"""
import gc, os, sys
import interlock as il
session = il.connect(devices=["cpu:0", "cpu:1"])
kept = [il.ones(size, device=device) for size in (10, 100_000) for device in session.devices]
step = il.capture(lambda x: x * 2)
step(kept[0])
for how, act in {FORKS!r}.items():
    floating = kept[0] + 1              # issued, perhaps not sent
    pid = os.fork()
    if pid == 0:
        exec(act)
        os._exit(99)
    _, status = os.waitpid(pid, 0)
    print(how + ":", os.waitstatus_to_exitcode(status), flush=True)
    x = kept[1].to("cpu:0")
    for _ in range(1000):
        x = x + 1
    values = [float(each.sum()) for each in kept], float(floating[0]), float(step(kept[0])[0])
    assert x.tolist() == [1001.0] * 10 and values == ([10.0, 10.0, 100_000.0, 100_000.0], 2.0, 2.0), (how, values)
"""
    (tmp := runtime / "forks.py").write_text(script)  # a child that raises unwinds no further than its own copy
    done = run([sys.executable, str(tmp)])
    tmp.unlink()
    assert done.code == 0, done.err
    clear = ("uses an array", "reads an array", "runs a captured function")
    codes = {how: int(how in clear or "error" in how) for how in FORKS}
    assert [line for line in done.out.splitlines() if line != "[1.0, 1.0]"] == [f"{h}: {c}" for h, c in codes.items()]
    assert done.err.count("this is a forked child of the program that made the session: connect again here") == 3
    assert done.err.count("Traceback") == 4
    assert done.err.count("ValueError: mine") == 1


def test_fl35_a_pool_of_forked_processes_disturbs_nothing(runtime: Path) -> None:
    script = """
import multiprocessing, os
import interlock as il
session = il.connect(devices=["cpu:0", "cpu:1"])
kept = il.ones(100_000)
def square(n):
    try:
        kept + n
    except il.InterlockError:
        return n * n
if __name__ == "__main__":
    with multiprocessing.get_context("fork").Pool(3) as pool:
        print(pool.map(square, range(10)))
    process = multiprocessing.get_context("fork").Process(target=square, args=(3,))
    process.start()
    process.join()
    x = kept
    for _ in range(1000):
        x = x + 1
    print(process.exitcode, float(x.sum()), float(x.to("cpu:1").sum()))
"""
    done = run_python(script)
    assert done.out.splitlines() == [str([n * n for n in range(10)]), "0 100100000.0 100100000.0"]
    assert (done.err, done.code) == ("", 0)


# FL-54: python/cpython#113964; cupy/cupy#2809 ----------------------------------------------------------------------

HELD = """
import sys, threading, time
from concurrent.futures import ThreadPoolExecutor
import numpy as np
import interlock as il
session = il.connect(devices=["cpu:0", "cpu:1"])
x = il.ones(100_000)                            # a global of the module
class Ring: pass
ring = Ring(); ring.me = ring; ring.array = x + 1     # in a cycle
ring.session = session
def hold(array):
    while True:
        time.sleep(0.001)
        array = array + 1 if {busy} else array
threading.Thread(target=hold, args=(x * 2,), daemon=True).start()
step = il.capture(lambda a, rate: a - rate * a)
y = step(x, 0.5); y = step(y, 0.25)
out = il.save({file!r}, {{"x": x, "y": y}})
trace = il.trace({file!r} + ".json"); trace.__enter__()
pool = ThreadPoolExecutor(2)
later = [pool.submit(lambda: float((x + 3).sum())) for _ in range(20)]
z = x.to("cpu:1")
lent = np.asarray(z)
ask = session.lanes[1]
{ending}
"""


@pytest.mark.parametrize(
    ("ending", "code", "busy"),
    [("pass", 0, True), ("sys.exit(3)", 3, True), ("raise KeyError('mine')", 1, True), ("pass", 0, False)],
)
def test_fl54_arrays_that_are_held_at_the_end_spoil_neither_its_code_nor_its_words(
    ending: str, code: int, busy: bool, runtime: Path, tmp_path: Path
) -> None:
    """Clean-up in finalisers at the interpreter's exit touched modules already gone, or started threads."""
    file = tmp_path / "held.safetensors"
    script = HELD.format(busy=busy, ending=ending, file=str(file))
    done = run_python(script)
    assert done.code == code
    assert done.err.splitlines()[-1:] == (["KeyError: 'mine'"] if code == 1 else []), done.err
    assert done.err.count("Traceback") == (code == 1)
    assert "Exception ignored" not in done.err
    assert file.stat().st_size > 1_600_000
