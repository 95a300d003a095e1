"""Faults of interrupts that other systems had in the field: Ctrl-C in a script and in a notebook.

The names begin with the number of the case in the collection that they come from; the docstring names the report.
"""

from __future__ import annotations

import os
import signal
import sys
import textwrap
import time
from pathlib import Path

import pytest

from .programs import Program

# What the programs have in common: a backlog of some seconds on one worker, and what was there before it.
BACKLOG = """
import os, signal, sys, time
import numpy as np
import interlock as il

def backlog(device, count=48):
    made, factor = [il.ones((1500, 1500), device=device)], il.full((1500, 1500), 1 / 1500, device=device)
    for _ in range(count):
        made.append(made[-1] @ factor)
    return made

def pids_alive(session):
    return all(os.path.exists(f"/proc/{pid}") for pid in session.pids.values())
"""


def script(body: str) -> list[str]:
    return [sys.executable, "-c", BACKLOG + textwrap.dedent(body)]


@pytest.mark.parametrize("devices", ["cpu:0,cpu:1", "cpu:0,sim:0"])
@pytest.mark.parametrize("gate", ["worker", "coordinator"])
def test_fl42a_ctrl_c_in_a_blocked_read(runtime: Path, devices: str, gate: str) -> None:
    """gmr/rejected#90: Ctrl-C went to the parent alone, which then waited for children that nobody had stopped."""
    body = f"""
    session = il.connect({devices!r}, gate={gate!r})
    first, second = session.devices
    before, pids = il.arange(5, device=second), session.pids
    weights = il.zeros(3, device=second)
    made = backlog(second)
    weights += 1
    there = made[-1].to(first)
    try:
        print("waits", flush=True)
        there.numpy()
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    assert before.tolist() == [0, 1, 2, 3, 4]
    assert (before + 1).to(first).tolist() == [1, 2, 3, 4, 5]
    assert session.pids == pids and pids_alive(session)
    states = []
    for each in (*made, weights, there):
        try:
            each.numpy()
            states.append("done")
        except il.Cancelled as error:
            states.append("dropped")
            notes = "\\n".join(error.__notes__)
            assert "Ctrl-C came at <string>" in notes and "issued at <string>" in notes, notes
    assert states[0] == "done" and states[-3:] == ["dropped"] * 3, states
    assert states == sorted(states), states  # what was dropped is the end of the lane
    del each, made, weights, there, before
    session.synchronize()
    counts = session.inspect()
    assert all(sum(each.values()) == 0 for each in counts.values()), counts
    print("right", flush=True)
    """
    with Program(script(body)) as program:
        program.line("waits")
        _until_it_waits(program.pid)
        program.signal(signal.SIGINT)
        assert program.line() == "interrupted"
        program.line("right")
        assert program.ended() == 0, program.errors()


def test_fl42b_ctrl_c_while_issuing_is_blocked_by_a_full_window(runtime: Path) -> None:
    """zeromq/pyzmq#64: the blocked send ignored the signal."""
    body = """
    session = il.connect("cpu:0", window=8)
    before = il.arange(5)
    made = []
    try:
        print("waits", flush=True)
        made.append(il.ones((1500, 1500)))
        factor = made[0] / 1500
        while True:
            made.append(made[-1] @ factor)
    except KeyboardInterrupt:
        print("interrupted", len(made), flush=True)
    assert before.tolist() == [0, 1, 2, 3, 4]
    states = []
    for each in made:
        try:
            each.numpy()
            states.append("done")
        except il.Cancelled:
            states.append("dropped")
    assert states[0] == "done" and states[-1] == "dropped", states
    assert il.full(7, 2.5).tolist() == [2.5] * 7
    print("right", flush=True)
    """
    with Program(script(body)) as program:
        program.line("waits")
        _until_it_waits(program.pid)
        program.signal(signal.SIGINT)
        assert program.line().startswith("interrupted")
        program.line("right")
        assert program.ended() == 0, program.errors()


def _until_it_waits(pid: int) -> None:
    """The program's main thread uses no processor time."""

    def used() -> int:
        fields = Path(f"/proc/{pid}/task/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        return int(fields[11]) + int(fields[12]) if fields[0] == "S" else -1

    last = -1
    for _ in range(600):
        now = used()
        if now == last and now >= 0:
            return
        last = now
        time.sleep(0.1)
    raise AssertionError("the program never waits")


@pytest.mark.parametrize("after_ms", [30, 120, 300])
def test_fl42c_ctrl_c_during_the_start_leaves_no_worker(runtime: Path, after_ms: int) -> None:
    """zeromq/pyzmq#746: interrupted while the children were being started, it left them."""
    body = f"""
    import threading
    threading.Timer({after_ms} / 1000, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
        while True:
            il.connect("cpu:0,cpu:1").close()
    except KeyboardInterrupt:
        pass
    mine = []
    for each in os.listdir("/proc"):
        try:
            parent = int(open(f"/proc/{{each}}/stat").read().rsplit(")", 1)[1].split()[1])
        except (OSError, ValueError, IndexError):
            continue
        if parent == os.getpid():
            mine.append(each)
    print(mine, flush=True)
    with il.connect("cpu:0") as session:
        print(il.arange(3).tolist(), flush=True)
    """
    with Program(script(body)) as program:
        assert program.line() == "[]"
        assert program.line() == "[0, 1, 2]"
        assert program.ended() == 0, program.errors()


def test_a_second_ctrl_c_ends_the_wait_that_follows_the_first(runtime: Path) -> None:
    body = """
    session = il.connect("cpu:0")
    made = backlog("cpu:0")
    os.kill(session.pids["cpu:0"], signal.SIGSTOP)  # nothing ends any more
    for _ in range(2):
        try:
            print("waits", flush=True)
            made[-1].numpy()
        except KeyboardInterrupt:
            print("interrupted", flush=True)
    os.kill(session.pids["cpu:0"], signal.SIGCONT)
    try:
        made[-1].numpy()
    except il.Cancelled:
        print("dropped", flush=True)
    assert il.arange(3).tolist() == [0, 1, 2]
    """
    with Program(script(body)) as program:
        for _ in range(2):
            program.line("waits")
            _until_it_waits(program.pid)
            program.signal(signal.SIGINT)
            assert program.line() == "interrupted"
        assert program.line() == "dropped"
        assert program.ended() == 0, program.errors()


def test_what_is_on_the_way_for_a_moment_only_survives_an_interrupt(runtime: Path) -> None:
    """Of a training loop that keeps up nothing is lost: its parameters are written in place."""
    body = """
    session = il.connect("cpu:0")
    weights, steps = il.zeros(1000), 0
    try:
        print("waits", flush=True)
        while True:
            weights += 1
            steps += 1
            if steps % 50 == 0:
                weights.sum().numpy()
    except KeyboardInterrupt:
        pass
    assert weights.numpy()[0] in (steps, steps + 1)
    print("right", flush=True)
    """
    with Program(script(body)) as program:
        program.line("waits")
        program.signal(signal.SIGINT)
        program.line("right")
        assert program.ended() == 0, program.errors()


@pytest.mark.parametrize("devices", ["cpu:0,cpu:1", "sim:0,sim:1"])
def test_runs_of_a_captured_function_are_dropped_as_wholes(runtime: Path, devices: str) -> None:
    body = f"""
    session = il.connect({devices!r})
    first, second = session.devices

    @il.capture
    def step(weights, count, factor):
        big = factor @ factor
        there = (big[0, :1] * 0 + 1).to(second)
        count = count + there
        return weights + there.to(first), count

    factor = il.ones((1200, 1200), device=first)
    weights, count = il.zeros(1, device=first), il.zeros(1, device=second)
    seen = []
    for _ in range(3):
        weights, count = step(weights, count, factor)
    weights.numpy()
    for _ in range(60):
        weights, count = step(weights, count, factor)
        seen.append((weights, count))
    try:
        print("waits", flush=True)
        count.numpy()
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    states = []
    for number, pair in enumerate(seen, 4):
        for each in pair:
            try:
                states.append(each.tolist() == [number])
            except il.Cancelled:
                states.append(None)
    assert set(states[:-1]) <= {{True, None}} and states[-1] is None and states[0] is True, states
    fresh = il.zeros(1, device=first), il.zeros(1, device=second)
    assert [each.tolist() for each in step(*fresh, factor)] == [[1.0], [1.0]]  # the recording is as good as before
    del seen, weights, count, pair, each, fresh, factor, step
    import gc
    gc.collect()
    session.synchronize()
    counts = session.inspect()
    assert all(sum(each.values()) == 0 for each in counts.values()), counts
    print("right", flush=True)
    """
    with Program(script(body)) as program:
        program.line("waits")
        _until_it_waits(program.pid)
        program.signal(signal.SIGINT)
        assert program.line() == "interrupted"
        program.line("right")
        assert program.ended() == 0, program.errors()


STORM = """
import contextlib, gc, random
session = il.connect("cpu:0,cpu:1", gate=sys.argv[1])
first, second = session.devices
signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
sys.unraisablehook = lambda _: None  # it may come as a handle goes
generator = random.Random(5)

@il.capture
def step(x, y):
    there = (x * 2).to(y.device)
    return x + 1, y + there

interrupted = 0
ends = time.monotonic() + 3
while time.monotonic() < ends:
    x, y, count, total = il.zeros(3, device=first), il.zeros(3, device=second), 0, 0
    signal.setitimer(signal.ITIMER_REAL, generator.uniform(0.001, 0.03), 0.05)
    try:
        try:
            while True:
                fresh = il.asarray(np.full(3, count, float), device=first)
                z = (fresh * 2).to(second) + y
                x, y = step(x, y)  # both or none
                count += 1
                del z, fresh
                if count % 7 == 0:
                    y.numpy()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:
        interrupted += 1
    try:
        seen = [each.numpy(timeout=30).tolist() for each in (x, y)]
    except il.Cancelled:  # on a machine with more to do than this, the grace was over
        pass
    else:
        steps = int(seen[0][0])
        assert steps - count in (0, 1), (steps, count)
        assert seen == [[steps] * 3, [steps * (steps - 1)] * 3], (seen, count)
    assert il.arange(3, device=second).numpy(timeout=30).tolist() == [0, 1, 2]
    session.synchronize(timeout=30)
print("storms", interrupted, flush=True)
del x, y, step
for name in ("z", "fresh"):
    globals().pop(name, None)
gc.collect()
session.synchronize(timeout=30)
counts = session.inspect()
# An interrupt between an operation's being issued and its handle's being made leaves an array that nobody can drop.
left = sum(each["arrays"] for each in counts.values())
assert left <= interrupted, (counts, interrupted)
for each in counts.values():
    assert each["parked"] == each["tickets"] == each["lent to workers"] == each["recordings"] == 0, counts
print("right", left, flush=True)
"""


@pytest.mark.parametrize("gate", ["worker", "coordinator"])
def test_a_storm_of_interrupts_leaves_right_values_and_nothing_half_done(runtime: Path, gate: str) -> None:
    with Program([sys.executable, "-c", BACKLOG + STORM, gate]) as program:
        assert int(program.line("storms").split()[1]) > 2
        program.line("right")
        assert program.ended() == 0, program.errors()


CELLS = [
    BACKLOG
    + """
session = il.connect("cpu:0,cpu:1")
A = il.ones(4, device="cpu:1")
pids = session.pids
made = backlog("cpu:1")
""",
    """
import threading

def tell():  # once the read waits: before that Ctrl-C drops nothing
    looks = 0
    while looks < 20:
        looks = 0 if session.receiver._turn else looks + 1
        time.sleep(0.01)
    print("waits", flush=True)

threading.Thread(target=tell).start()
made[-1].numpy()
""",
    """
assert A.tolist() == [1.0] * 4
assert session.pids == pids and pids_alive(session)
try:
    made[-1].numpy()
except il.Cancelled:  # so it was interrupted long before its end
    pass
else:
    assert False
""",
    "session.close()",
]


def test_fl12_interrupting_a_notebooks_cell(runtime: Path) -> None:
    """jupyter_client#68: the signal goes to the whole process group of the kernel: workers died, or the client hung."""
    manager_of = pytest.importorskip("jupyter_client.manager")
    manager, client = manager_of.start_new_kernel(kernel_name="python3", env={**os.environ})
    try:
        assert _cell(client, CELLS[0])[0] == "ok"
        asked = client.execute(CELLS[1])
        said = ""
        while "waits" not in said:
            message = client.get_iopub_msg(timeout=60)
            said += message["content"].get("text", "")
        manager.interrupt_kernel()
        reply = client.get_shell_msg(timeout=60)
        assert reply["parent_header"]["msg_id"] == asked
        assert (reply["content"]["status"], reply["content"]["ename"]) == ("error", "KeyboardInterrupt")
        status, text = _cell(client, CELLS[2])
        assert status == "ok", text
        assert _cell(client, CELLS[3])[0] == "ok"
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=False)
        manager.cleanup_resources()


def _cell(client: object, code: str) -> tuple[str, str]:
    reply = client.execute(code, reply=True, timeout=60)["content"]  # type: ignore[attr-defined]
    return reply["status"], "\n".join(reply.get("traceback", []))
