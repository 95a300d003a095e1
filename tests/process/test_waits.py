"""Waits that do not end yet: what `explain`, TimeoutError, and the warning of a stuck worker say."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import interlock as il

from .programs import Program, interlock

HANG_S = 60.0


@pytest.fixture(params=[("cpu:0,cpu:1", "worker"), ("sim:0,cpu:1", "worker"), ("cpu:0,cpu:1", "coordinator")], ids=str)
def session(request: pytest.FixtureRequest) -> Iterator[il.Session]:
    devices, gate = request.param
    with il.connect(devices, gate=gate) as session:
        yield session


@contextlib.contextmanager
def stopped(session: il.Session, device: object) -> Iterator[None]:
    """Nothing goes on on this device meanwhile."""
    pid = session.pids[str(device)]
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def until(true: Callable[[], bool]) -> None:
    """It will be true, and soon."""
    deadline = time.monotonic() + HANG_S
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_explain_names_the_chain_across_a_transfer(session: il.Session) -> None:
    first, second = session.devices
    there = il.zeros(3, device=second)
    there.numpy()
    with stopped(session, first):
        made = il.ones(3, device=first) * 2  # the producer
        sent = made.to(second)  # the transfer
        wanted = sent + 1
        independent = there + 1

        def waits() -> bool:
            return len(il.explain(wanted).reasons) >= 3

        until(waits)
        told = il.explain(wanted)
        assert told.state == "waiting"
        devices = [reason.device for reason in told.reasons]
        assert devices == sorted(devices, key=[str(second), str(first)].index), str(told)
        assert "`wanted = sent + 1`" in told.reasons[0].line
        assert any("# the transfer" in reason.line for reason in told.reasons), str(told)
        assert "# the producer" in told.reasons[-1].line, str(told)
        assert str(first) in str(told)
        if session.gated:
            assert told.reasons[0].state == "gate"
        else:  # it overtakes
            until(lambda: il.explain(independent).state == "ready")
        with pytest.raises(TimeoutError, match=r"not ready after 0\.2 s") as late:
            wanted.numpy(timeout=0.2)
        assert "# the producer" in str(late.value)
    assert wanted.numpy(timeout=HANG_S).tolist() == [3.0, 3.0, 3.0]
    assert il.explain(wanted).state == "ready"
    assert str(il.explain(wanted)).endswith("is ready")


def test_explain_says_what_failed(session: il.Session) -> None:
    _, second = session.devices
    bad = il.arange(5, device=second)[il.asarray([1, 7], device=second)] + 1
    until(lambda: il.explain(bad).state != "waiting")
    told = il.explain(bad)
    assert told.state == "failed"
    assert isinstance(told.error, IndexError)
    assert "il.asarray([1, 7]" in str(told)


def test_explain_shows_the_call_and_the_line_inside_a_captured_function() -> None:
    @il.capture
    def step(x: il.Array) -> il.Array:
        return x * 2 + 1  # inside

    with il.connect("cpu:0") as session:
        x = il.ones(3)
        for _ in range(3):
            x = step(x)
        x.numpy()
        with stopped(session, "cpu:0"):
            y = step(x)  # the call
            told = il.explain(y)
            assert told.state == "waiting"
            assert "# inside" in told.reasons[0].line
            assert told.reasons[0].call is not None
            assert "# the call" in told.reasons[0].call
        assert y.numpy(timeout=HANG_S).tolist() == [31.0, 31.0, 31.0]


def test_explain_refuses_what_is_no_array() -> None:
    with pytest.raises(TypeError, match="ndarray"):
        il.explain(np.ones(3))


def test_what_runs_is_named_with_the_time_since_when() -> None:
    with il.connect("cpu:0"):
        big = il.ones((1200, 1200))
        made = [big]
        for _ in range(8):
            made.append(made[-1] @ big / 1200)  # slow
        until(lambda: il.explain(made[-1]).reasons[-1].state == "running")
        told = il.explain(made[-1])
        assert told.reasons[0].state == "queued"
        assert "# slow" in told.reasons[-1].line
        assert told.reasons[-1].since_s is not None
        assert told.reasons[-1].since_s >= 0
        made[-1].numpy()


def test_a_stopped_worker_is_warned_of_once(session: il.Session, capfd: pytest.CaptureFixture[str]) -> None:
    first, second = session.devices
    session.stuck_after = 1.5
    x = (il.ones(3, device=first) + 1).to(second)
    x.numpy()
    with stopped(session, first):
        y = (x.to(first) * 3).to(second)  # waits for what is stopped
        with pytest.raises(TimeoutError):
            y.numpy(timeout=3.0)
    assert y.numpy(timeout=HANG_S).tolist() == [6.0, 6.0, 6.0]
    said = capfd.readouterr().err
    assert said.count("interlock:") == 1, said
    assert f"process {session.pids[str(first)]} is stopped" in said
    assert "y.numpy(timeout=3.0)" in said
    assert "# waits for what is stopped" in said


def test_of_a_worker_that_does_not_go_on_the_stack_is_shown(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with il.connect("cpu:0") as session:
        session.stuck_after = 1.0
        gap = il.arange(15_000_000)  # sorting it takes a second or two
        wanted = il.sort((gap * 7919) % 14_999_981)[:1]
        assert wanted.numpy(timeout=HANG_S).tolist() == [0]
    said = capfd.readouterr().err
    if said:  # on a fast machine it was over before
        assert said.count("interlock:") == 1, said
        assert "worker/executor.py" in said or "worker/loop.py" in said, said
        assert "lives but does not go on" in said


def test_a_wait_that_goes_on_is_not_warned_of(capfd: pytest.CaptureFixture[str]) -> None:
    with il.connect("cpu:0") as session:
        session.stuck_after = 2.5
        big = il.ones((700, 700))
        for _ in range(40):
            big = big @ big / 700
        big.numpy()
    assert capfd.readouterr().err == ""


BLOCKED = """
import os, signal, sys
import interlock as il
session = il.connect("cpu:0,cpu:1")
x = il.ones(3, device="cpu:0")
x.numpy()
os.kill(session.pids["cpu:0"], signal.SIGSTOP)
y = (x * 2).to("cpu:1") + 1
if os.fork() == 0:  # it has the sessions' handles, and answers for none of them
    print("child", flush=True)
    sys.stdin.read()
    os._exit(0)
print("blocked", flush=True)
print(y.numpy().tolist(), flush=True)
session.close()
print("closed", flush=True)
sys.stdin.readline()
"""


def test_another_program_is_told_what_a_blocked_one_waits_for(runtime: Path) -> None:
    assert interlock("explain").code == 3
    with Program([sys.executable, "-c", BLOCKED]) as program:
        program.line("blocked")

        def answer() -> dict[str, Any]:
            ran = interlock("explain", "--pid", str(program.pid), "--json")
            assert ran.code == 0, ran.err
            (session,) = json.loads(ran.out)["sessions"]
            assert session["pid"] == program.pid
            return session["answer"]  # type: ignore[no-any-return]

        until(lambda: bool(answer()["waits"]))
        told = answer()
        (wait,) = told["waits"]
        assert (wait["what"], wait["device"]) == ("a read", "cpu:1")
        assert [link["device"] for link in wait["chain"]][:2] == ["cpu:1", "cpu:1"]
        assert wait["chain"][-1]["device"] == "cpu:0"
        states = {worker["device"]: worker["state"] for worker in told["workers"]}
        assert states == {"cpu:0": "stopped", "cpu:1": "alive"}
        said = interlock("explain")
        assert said.code == 0
        assert f"program {program.pid}" in said.out
        assert "a read on cpu:1" in said.out
        assert interlock("explain", "--pid", str(os.getpid())).code == 3
        (stopped,) = [worker["pid"] for worker in told["workers"] if worker["device"] == "cpu:0"]
        os.kill(stopped, signal.SIGCONT)
        assert program.line("[") == "[3.0, 3.0, 3.0]"
        program.line("closed")
        assert interlock("explain").code == 3
        program.tell()


def test_a_program_that_cannot_answer_is_said_so(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from interlock.deploy import explaining

    monkeypatch.setattr(explaining, "ANSWER_S", 0.3)
    script = "import interlock as il, sys; s = il.connect('cpu:0'); print('up', flush=True); sys.stdin.readline()"
    with Program([sys.executable, "-c", script]) as program:
        program.line("up")
        program.signal(signal.SIGSTOP)
        try:
            (asked,) = explaining.ask_programs(program.pid)
            assert asked.answer is None
            assert "does not answer" in explaining.show(asked)
        finally:
            program.signal(signal.SIGCONT)
        program.tell()


def test_explain_does_not_wait_for_a_shape_that_only_the_worker_can_tell(session: il.Session) -> None:
    device = session.devices[0]
    x = il.asarray(np.array([3, 1, 3]), device=device)
    x.numpy()
    with stopped(session, device):
        y = np.unique(x)  # to be told of by its line
        told = il.explain(y)
        assert told.state == "waiting"
        assert "unique at " in str(told)
        assert "# to be told of by its line" in str(told)
    assert y.shape == (2,)
    until(lambda: il.explain(y).state == "ready")  # on a busy machine its question takes longer than it waits
    z = np.unique(x[il.asarray([99], device=device)])
    until(lambda: il.explain(z).state != "waiting")
    assert "IndexError" in str(il.explain(z))
