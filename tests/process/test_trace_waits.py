"""A trace shows who waited for what: the program at its reads, and the workers for tickets and behind what waits."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import interlock as il
from interlock.coordinator import greetings
from interlock.protocol.errors import ProtocolError


@pytest.fixture(params=["cpu:0,cpu:1", "cpu:0,sim:0"])
def session(request: pytest.FixtureRequest) -> Iterator[il.Session]:
    with il.connect(devices=request.param, window=64, memory=64 << 20) as session:
        yield session


@contextlib.contextmanager
def held(pid: int) -> Iterator[None]:
    """The worker stands still for a while, so that the other meets what it waits for before it is there."""
    os.kill(pid, signal.SIGSTOP)
    timer = threading.Timer(1.0, os.kill, (pid, signal.SIGCONT))
    timer.start()
    try:
        yield
    finally:
        timer.join()


def waits(path: Path) -> list[dict[str, Any]]:
    events = json.loads(path.read_text())["traceEvents"]
    return [{**event["args"], "name": event["name"]} for event in events if event.get("cat") == "wait"]


@pytest.mark.parametrize("captured", [False, True])
def test_a_trace_says_what_was_waited_for_and_where(session: il.Session, tmp_path: Path, captured: bool) -> None:
    here, there = session.devices

    def step(x: il.Array) -> il.Array:
        for _ in range(4):
            x = x @ x * 1e-3
        moved = x.to(there)  # the transfer
        return moved.sum() + 1  # the sum

    run = il.capture(step) if captured else step
    x = il.ones((500, 500), device=here)
    run(x).numpy()
    with il.trace(tmp_path / "t.json"), held(session.pids[str(here)]):
        float(run(x))
    found = waits(tmp_path / "t.json")
    read = next(each for each in found if each["name"] == "waiting: read")
    assert read["reason"] == f"the elements of float64 () on {there}"
    assert read["line"].startswith(__file__)
    assert read["made_by"].startswith("add at ")
    ticket = next(each for each in found if each["name"] == f"waits for the ticket from {here}")
    lines = Path(__file__).read_text().splitlines()
    for place in (ticket["line"], ticket["sent_at"]):
        assert "# the transfer" in lines[int(place.rpartition(":")[2]) - 1]
    if not captured:
        behind = next(each for each in found if each["name"].startswith("waits behind recv at "))
        assert "# the sum" in lines[int(behind["line"].rpartition(":")[2]) - 1]


def test_a_trace_says_that_the_window_was_full(session: il.Session, tmp_path: Path) -> None:
    here = session.devices[0]
    with il.trace(tmp_path / "t.json"):
        x = il.ones((400, 400), device=here)
        for _ in range(100):
            x @ x
    assert f"there was no room in the window of {here}" in {each["reason"] for each in waits(tmp_path / "t.json")}


def test_a_trace_says_that_the_memory_for_uploads_was_full(tmp_path: Path) -> None:
    host = np.ones(1 << 20)
    with il.connect("cpu:0", memory=64 << 20), il.trace(tmp_path / "t.json"):
        for _ in range(2):
            kept = [il.asarray(host) for _ in range(7)]  # which the worker reads in place
            x = il.ones((700, 700))
            for _ in range(10):  # the worker comes to the end of these arrays behind this
                x @ x
            del kept
    upload = next(each for each in waits(tmp_path / "t.json") if each["name"] == "waiting: upload")
    assert upload["reason"] == "the memory for float64 (1048576,) that workers still read"
    assert upload["line"].startswith(__file__)


def test_many_that_wait_behind_one_ticket_take_few_tracks(session: il.Session, tmp_path: Path) -> None:
    here, there = session.devices
    x = il.ones((700, 700), device=here)
    with il.trace(tmp_path / "t.json"), held(session.pids[str(here)]):
        y = (x @ x @ x).to(there)
        rows = [y[i] + 1 for i in range(40)]
        float(rows[-1][0])
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    tracks = [each["args"]["name"] for each in events if each["name"] == "thread_name"]
    assert 1 <= sum(name.startswith("waiting (") for name in tracks) <= 8


def test_a_trace_names_the_devices_after_a_restart_that_a_worker_refused_at_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each greeting takes a lane."""
    sound, refusals = greetings.greet, [ProtocolError("the worker serves a session of that number already")] * 2

    def greet(session: il.Session, lanes: list[Any]) -> None:
        if refusals:
            raise refusals.pop()
        sound(session, lanes)

    with il.connect("cpu:0,cpu:1") as session:
        with il.trace(tmp_path / "timeline.json", session=session) as trace:
            os.kill(session.pids["cpu:1"], signal.SIGKILL)
            monkeypatch.setattr(greetings, "greet", greet)
            session.restart("cpu:1")
            x = il.ones(3, device="cpu:1").to("cpu:0")
            assert x.tolist() == [1.0, 1.0, 1.0]
        assert trace.records.devices[-1] == "cpu:1"
        events = json.loads((tmp_path / "timeline.json").read_text())["traceEvents"]
        assert any(event.get("args", {}).get("device") == "cpu:1" for event in events)
