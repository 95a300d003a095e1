"""A worker is lost: how soon and in which words that is told, and another one that takes its place in the session."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import interlock as il
from interlock.coordinator import answers, incoming, lives, restarts, workers
from interlock.protocol import messages as m

from .programs import address_of, becomes, gone, kill, launcher

SOON_S = 5.0  # a loss is known within a second; this is for a busy machine
PLANTED = str(Path(__file__).with_name("ending_worker.py"))
pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def session(runtime: Path) -> Iterator[il.Session]:
    with il.connect(devices=["cpu:0", "cpu:1", "cpu:2"]) as session:
        yield session


@pytest.fixture(params=["worker", "coordinator"])
def either(runtime: Path, request: pytest.FixtureRequest) -> Iterator[il.Session]:
    """A session with each gate."""
    with il.connect(devices=["cpu:0", "cpu:1", "cpu:2"], gate=request.param) as session:
        yield session


def values(x: Any) -> Any:
    return x.numpy(timeout=30).tolist()


def loss_of(read: Callable[[], Any]) -> str:
    """The words of the WorkerLost that comes soon."""
    begun = time.monotonic()
    with pytest.raises(il.WorkerLost) as caught:
        read()
    assert time.monotonic() - begun < SOON_S
    return str(caught.value) + "\n" + "\n".join(getattr(caught.value, "__notes__", ()))


def line_of(text: str) -> str:
    """Where this file has this line."""
    number = next(n for n, line in enumerate(Path(__file__).read_text().splitlines(), 1) if line.strip() == text)
    return f"{__file__}:{number}"


# -- what is told


@pytest.mark.parametrize(
    ("name", "fate"),
    [
        ("arctan", "ended with exit code 7"),
        ("arcsinh", "was ended by SIGSEGV"),
        ("arccosh", "refused: cpu:1 is broken: a sticky fault"),
    ],
)
def test_a_worker_that_ends_in_an_operation_names_it(
    name: str, fate: str, runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "PROGRAM", (PLANTED,))
    with il.connect(devices=["cpu:0", "cpu:1"]) as session:
        function = getattr(il, name)

        def step(x: Any) -> Any:
            return function(x)

        other = il.arange(3, device="cpu:0")
        for form in (step, il.capture(step)):
            x = il.ones((3, 4), device="cpu:1")
            assert values(x)[0] == [1.0] * 4
            y = form(x)
            words = loss_of(lambda: y.numpy(timeout=30))  # noqa: B023
            assert f"the worker of cpu:1 {fate} while running `{name}` (" in words
            assert f"issued at {line_of('return function(x)')}" in words
            assert "(3, 4)" in words
            assert values(other + 1) == [1, 2, 3]
            session.restart("cpu:1")


def test_a_worker_that_is_ended_at_work_names_the_operation(session: il.Session) -> None:
    for number in (signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM):
        x = il.ones((1200, 1200), device="cpu:1")
        session.synchronize()
        for _ in range(8):
            x = x @ x  # for some seconds
        lane = session.devices[1].lane
        with session.lock:
            lane.flush()
        os.kill(session.pids["cpu:1"], number)
        words = loss_of(x.numpy)
        shape = "float64 (1200, 1200)"
        assert f"was ended by {number.name} while running `matmul` ({shape}, {shape})" in words
        assert f"issued at {line_of('x = x @ x  # for some seconds')}" in words
        session.restart("cpu:1")


def test_whatever_goes_on_a_loss_ends_it_and_what_is_elsewhere_stays(either: il.Session) -> None:
    session = either
    cpu, d0, d1 = session.devices
    kept, other = il.arange(5, device=cpu), il.arange(4, device=d1)
    step = il.capture(lambda a: (a * 2).to(d1) + 1)

    def credit(x: Any) -> Any:
        for _ in range(3000):
            x = x * 1.0

    doings: list[Callable[[Any], Any]] = [
        lambda x: gone([session.pids["cpu:1"]], SOON_S) and x,
        lambda x: x.numpy(timeout=30),
        credit,
        lambda x: (x + 1).to(d1),
        lambda x: il.ones(50_000, device=d1).to(d0),
        step,
    ]
    for doing in doings:
        x = il.ones(50_000, device=d0)
        y = x.to(d1) + 1
        step(x)
        assert values(y[:1]) == [2.0]
        session.synchronize()
        if doing is not doings[0]:
            os.kill(session.pids["cpu:1"], signal.SIGSTOP)
        threading.Timer(0.1, kill, (session.pids["cpu:1"],)).start()
        assert "cpu:1 was ended by SIGKILL" in loss_of(lambda: doing(x).numpy(timeout=30))  # noqa: B023
        assert values(kept * 2) == [0, 2, 4, 6, 8]
        assert values(other.to(cpu) + 1) == [1, 2, 3, 4]
        assert values(y[:2]) == [2.0, 2.0]  # what had arrived is there
        session.restart(d0)


# -- another worker


def test_a_lost_device_has_another_worker_and_the_old_arrays_stay_lost(either: il.Session) -> None:
    session = either
    cpu, d0, d1 = session.devices
    x, kept = il.ones(5, device=d0), il.arange(4, device=d1)
    big = il.ones(100_000, device=d0).to(d1)
    assert values(x) == [1.0] * 5
    assert float(big[:3].sum()) == 3.0
    for life in range(2):
        old = session.pids["cpu:1"]
        kill(old)
        before = loss_of(x.numpy)
        session.restart(d0 if life % 2 else "cpu:1")
        assert session.pids["cpu:1"] != old
        assert session.device("cpu:1") is d0
        assert loss_of(x.numpy) == before
        assert "SIGKILL" in loss_of(lambda: x + 1)  # noqa: B023
        y = il.ones(5, device=d0)
        assert "SIGKILL" in loss_of(lambda: x + y)  # noqa: B023
        assert "SIGKILL" in loss_of(lambda: x.to(d0))  # noqa: B023
        assert "SIGKILL" in loss_of(lambda: x.to(d1))  # noqa: B023
        there = il.full(50_000, 2.0, device=d0).to(d1).to(cpu).to(d0)  # every way, in both directions
        assert float(there.sum()) == 100_000.0
        assert values(kept.to(d0) + 1) == [1, 2, 3, 4]
        session.synchronize()  # what was lost before the restart is no news any more
        x = y
    assert float(big.sum()) == 100_000.0
    assert values(il.random.default_rng(3, device=d0).random(4)) == np.random.default_rng(3).random(4).tolist()


def test_a_worker_that_lives_is_stopped_before_another_one_serves(session: il.Session) -> None:
    x, old = il.ones(3, device="cpu:1"), session.pids["cpu:1"]
    assert values(x) == [1.0] * 3
    session.restart("cpu:1")
    assert gone([old], SOON_S)
    assert "the worker of cpu:1 was stopped by restart()" in loss_of(x.numpy)
    assert values(il.ones(3, device="cpu:1").to("cpu:0")) == [1.0] * 3


def test_what_an_earlier_life_still_says_is_not_heard(session: il.Session) -> None:
    lost = session.devices[1].lane
    x = il.ones(3, device="cpu:1")
    assert values(x) == [1.0] * 3
    kill(session.pids["cpu:1"])
    loss_of(x.numpy)
    session.restart("cpu:1")
    lane = session.devices[1].lane
    y = il.ones(3, device="cpu:1")
    pending = session.ask(y._lane, y._ref, None)
    request = next(iter(session._pending))
    for message in (
        m.Completed(lost.index, 10**6),
        m.Released(lost.index, (1, 2)),
        m.Lost((lost.index, lost.worker.identity.incarnation), "again"),
    ):
        incoming._handle_whole(session, message)
    assert lane.completed < 10**6
    assert session.receiver.wait(pending, 30)
    assert request not in session._pending
    assert answers.value(session, pending, y._spec).tolist() == [1.0] * 3


def test_a_captured_function_is_recorded_anew_when_a_worker_was_replaced(session: il.Session) -> None:
    cpu, d0, d1 = session.devices
    through = il.capture(lambda a: (a.to(d0) + 1).to(d1))  # the device is one that it reads itself
    named = il.capture(lambda a: (a.to("cpu:1") + 1).to("cpu:2"))
    for life in range(2):
        a = il.arange(3, device=d1)
        for step in (through, named):
            assert [values(step(a)) for _ in range(3)] == [[1, 2, 3]] * 3
            assert ("another worker since" in step.report()) == (life > 0)
            assert "1 recordings" in step.report()
        kill(session.pids["cpu:1"])
        session.restart(d0)
    assert values(cpu_copy := il.ones(2, device=cpu)) == [1.0, 1.0], cpu_copy


def test_a_restart_is_refused_where_it_cannot_be(session: il.Session, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="there is no device 'cpu:7'"):
        session.restart("cpu:7")
    with pytest.raises(il.CaptureError, match="a worker is restarted"):
        il.capture(lambda: session.restart("cpu:1"))()
    monkeypatch.setattr(lives, "MOST_LANES", 4)
    session.restart("cpu:1")
    with pytest.raises(il.InterlockError, match="has had 4 workers, and that is all it may have: connect anew"):
        session.restart("cpu:1")


def test_a_worker_that_cannot_be_started_again_is_told_and_another_try_is_free(
    session: il.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    kill(session.pids["cpu:1"])
    with monkeypatch.context() as patch:
        patch.setattr(workers, "PROGRAM", ("-c", "import sys; sys.exit('no such luck')"))
        with pytest.raises(il.InterlockError, match="no such luck"):
            session.restart("cpu:1")
    assert values(il.ones(2, device="cpu:2")) == [1.0, 1.0]
    session.restart("cpu:1")
    assert values(il.ones(2, device="cpu:1")) == [1.0, 1.0]


def test_closing_while_a_worker_starts_again_does_not_wait_for_it(
    runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = il.connect(devices=["cpu:0", "cpu:1"])
    kill(session.pids["cpu:1"])
    monkeypatch.setattr(workers, "PROGRAM", ("-c", "import time; time.sleep(100)"))
    found: list[BaseException] = []

    def restart() -> None:
        try:
            session.restart("cpu:1")
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=restart)
    thread.start()
    assert session.lives is not None
    becomes(lambda: session.lives.source._starting)  # type: ignore[union-attr, attr-defined]
    begun = time.monotonic()
    session.close()
    assert time.monotonic() - begun < SOON_S
    thread.join(SOON_S)
    assert [type(error) for error in found] == [il.InterlockError]


# -- by itself


def test_a_session_replaces_lost_workers_by_itself_and_says_so_once_each(
    runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restarts, "FIRST_WAIT_S", 0.0)
    told: list[Any] = []
    monkeypatch.setattr(lives.warnings, "warn", lambda text, *_, **__: told.append(text))
    with il.connect(devices=["cpu:0", "cpu:1"], restart=True) as session:
        x = il.arange(3, device="cpu:0")
        for _ in range(restarts.ENDS - 1):
            y = il.ones(3, device="cpu:1")
            kill(session.pids["cpu:1"])
            loss_of(lambda: y.numpy(timeout=30))  # noqa: B023
            assert values(x.to("cpu:1") + il.ones(3, device="cpu:1")) == [1.0, 2.0, 3.0]  # waits for the next worker
            loss_of(y.numpy)
        kill(session.pids["cpu:1"])
        becomes(lambda: len(told) == restarts.ENDS)
        loss_of(lambda: il.ones(3, device="cpu:1"))
        assert values(x) == [0, 1, 2]
        session.restart("cpu:1")  # whoever asks for it gets it
        assert values(il.ones(3, device="cpu:1")) == [1.0] * 3
    assert all("the worker of cpu:1 was ended by SIGKILL" in story for story in told)
    assert ["a new worker serves cpu:1" in story for story in told] == [True] * (restarts.ENDS - 1) + [False]
    assert "again and again" in told[-1]


@pytest.mark.parametrize("by_itself", [False, True])
def test_the_next_worker_of_a_launcher_is_adopted(by_itself: bool, runtime: Path) -> None:
    with launcher("--devices", "cpu:0,cpu:1") as up:
        address = address_of(up)
        with il.connect(address=address, restart=by_itself) as session, il.connect(address=address) as other:
            x, theirs = il.ones(3, device=session.devices[1]), il.ones(3, device=other.devices[0])
            assert values(x) == values(theirs) == [1.0] * 3
            kill(session.pids["cpu:1"])
            assert "has ended" in loss_of(x.numpy)
            if by_itself:
                y = il.ones(3, device=session.devices[1])
            else:
                session.restart("cpu:1")
                y = il.ones(3, device=session.devices[1])
            assert values(y.to(session.devices[0]) + 1) == [2.0] * 3
            living = session.pids["cpu:0"]
            z = il.ones(3, device=session.devices[0])
            session.restart("cpu:0")  # it lives, and serves another program: it goes on
            assert session.pids["cpu:0"] == living
            assert "was stopped by restart()" in loss_of(z.numpy)
            assert values(y.to(session.devices[0])) == [1.0] * 3
            assert values(theirs + 1) == [2.0] * 3
        up.signal(signal.SIGTERM)
        up.ended()
