"""Closing a session, and ending a program, take under two seconds however its workers are, and leave nothing."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import interlock as il

from ..stress.test_idle_is_empty import on_the_machine
from .programs import address_of, customize, gone, interlock, launcher, program, runs

CLOSED_S = 2.0
LOADED = 2.0  # times as long as that, on a machine that runs other things besides
HOLD = """
    import os
    import interlock.worker.kernels as kernels
    quiet = kernels.kernel
    def kernel(operation, xp):
        def holding(*operands):
            import ctypes
            ctypes.PyDLL(None).sleep(600)
        def busy(*operands):
            import time
            time.sleep(600)
        named = {"negative": holding, "positive": busy}
        return named.get(operation.name) or quiet(operation, xp)
    kernels.kernel = kernel
"""
STATES = ("idle", "dead", "stopped", "busy", "holding the interpreter", "parked", "each another")


@pytest.fixture
def faulty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers started in this test are busy for ever with `+x`, and hold their interpreter with `-x`."""
    monkeypatch.setenv("PYTHONPATH", customize(tmp_path, HOLD)["PYTHONPATH"])


@pytest.fixture
def nothing_left(runtime: Path) -> Iterator[None]:
    before = on_the_machine(runtime)
    yield
    gc.collect()
    assert on_the_machine(runtime) == before


def bring(session: il.Session, state: str) -> list[Any]:
    """Bring a session's workers into this state, with loans out and uploads in use; what must be kept for that."""
    _, second, third = session.devices
    kept: list[Any] = [il.ones(100_000, device=device) for device in session.devices]
    kept += [kept[0].to(second), il.asarray(list(range(50_000)), device=third)]
    il.synchronize()
    pids = list(session.pids.values())
    if state == "dead":
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
    elif state == "stopped":
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
    elif state == "busy":
        kept += [+x for x in kept]
    elif state == "holding the interpreter":
        kept += [-x for x in kept]
    elif state == "parked":  # behind a ticket that does not come
        kept += [(+kept[0]).to(second) + 1, (+kept[0]).to(third) * 2]
    elif state == "each another":
        os.kill(pids[0], signal.SIGKILL)
        os.kill(pids[1], signal.SIGSTOP)
        kept += [-kept[2]]
    session.flush()
    return kept


def closes(session: il.Session) -> float:
    started = time.monotonic()
    session.close()
    return time.monotonic() - started


@pytest.mark.parametrize("state", STATES)
def test_a_session_closes_soon_however_its_workers_are(state: str, faulty: None, nothing_left: None) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        session = il.connect("cpu:0,cpu:1,cpu:2")
        pids = list(session.pids.values())
        kept = bring(session, state)
        assert closes(session) < CLOSED_S
        assert not any(map(runs, pids))
        session.close()  # a second time is nothing
        with pytest.raises(il.InterlockError, match="closed"):
            kept[0] + 1
        with pytest.raises(il.InterlockError, match="closed"):
            kept[0].numpy()
        del kept


def test_simulated_devices_close_as_soon(faulty: None, nothing_left: None) -> None:
    for gate, state in (("worker", "parked"), ("coordinator", "each another")):
        session = il.connect("cpu:0,sim:0,sim:1", gate=gate, options={"seed": 3})
        kept = bring(session, state)
        assert closes(session) < CLOSED_S
        del kept


@pytest.mark.parametrize("state", ["dead", "stopped", "busy", "holding the interpreter"])
def test_a_launchers_workers_are_left_as_soon_and_go_down_as_soon(state: str, faulty: None, runtime: Path) -> None:
    with launcher("--devices", "cpu:0,cpu:1,cpu:2", env={"PYTHONPATH": os.environ["PYTHONPATH"]}) as up:
        session = il.connect(address=address_of(up))
        pids = list(session.pids.values())
        kept = bring(session, state)
        assert closes(session) < CLOSED_S
        if state == "stopped":  # what was told it comes to it when it goes on
            os.kill(pids[0], signal.SIGCONT)
        del kept
        assert interlock("down").seconds < CLOSED_S * LOADED
        assert up.ended() == 0
        assert gone(pids, 1.0)


# -- from other threads and at odd moments ----------------------------------------------------------------------------


def in_thread(call: Callable[[], object]) -> tuple[threading.Thread, list[BaseException]]:
    """Call it in another thread; the thread, and what it raised."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, raised


def test_threads_that_wait_get_a_named_error(faulty: None, nothing_left: None) -> None:
    session = il.connect("cpu:0,cpu:1,cpu:2", window=16)
    busy = [+il.ones(3, device=device) for device in session.devices]

    def issue() -> None:
        x = il.ones(3, device="cpu:0")
        while True:
            x = x + 1

    waiting = [in_thread(busy[0].numpy), in_thread(busy[1].numpy), in_thread(session.synchronize), in_thread(issue)]
    while len(session._pending) < 5 or session.lanes[0].credit is None:
        time.sleep(0.001)
    assert closes(session) < CLOSED_S
    for thread, raised in waiting:
        thread.join(5)
        assert [type(error) for error in raised] == [il.InterlockError]
        assert "closed" in str(raised[0])
    del busy, waiting


def test_two_threads_close_at_once_and_both_find_it_closed(faulty: None, nothing_left: None) -> None:
    session = il.connect("cpu:0,cpu:1,cpu:2")
    pids = list(session.pids.values())
    kept = bring(session, "busy")
    found: list[bool] = []

    def end() -> None:
        session.close()
        found.append(any(map(runs, pids)))

    threads = [in_thread(end) for _ in range(3)]
    for thread, raised in threads:
        thread.join(5)
        assert raised == []
    assert found == [False] * 3
    del kept


@pytest.mark.parametrize("gate", ["worker", "coordinator"])
def test_closing_while_another_thread_issues_is_a_clear_error_there(gate: str, nothing_left: None) -> None:
    for round_ in (0, 3):
        session = il.connect("cpu:0,cpu:1", gate=gate)
        begun = threading.Event()

        def issue(session: il.Session = session, begun: threading.Event = begun) -> None:
            x, y = il.ones(3, device=session.devices[0]), il.ones(20_000, device=session.devices[1])
            while True:
                x = x + 1
                y = (y * 1.0).to("cpu:0").to("cpu:1") + il.asarray([1.0] * 20_000, device=session.devices[1])
                float(x[0])
                begun.set()

        thread, raised = in_thread(issue)
        begun.wait(30)
        time.sleep(0.003 * round_)
        assert closes(session) < CLOSED_S
        thread.join(5)
        (error,) = raised
        assert type(error) is il.InterlockError
        assert "closed" in str(error)
        raised.clear()
        del error


def test_a_session_closed_within_what_it_records(nothing_left: None) -> None:
    for elsewhere in (False, True):
        session = il.connect("cpu:0,cpu:1")

        @il.capture
        def step(x: il.Array, session: il.Session = session, elsewhere: bool = elsewhere) -> il.Array:
            y = x + 1
            if elsewhere:
                thread, raised = in_thread(session.close)
                thread.join(5)
                assert raised == []
            else:
                session.close()
            return y * 2

        x = il.ones(3)
        with pytest.raises(il.InterlockError, match="closed"):
            step(x)
        assert session.closed
        del step, x


@pytest.mark.parametrize(
    ("where", "recover"),
    [("with the lock", False), ("with the lock", True), ("with the turn to receive", False), ("while it sends", False)],
)
def test_a_finalizer_may_close_wherever_it_runs(where: str, recover: bool, nothing_left: None) -> None:
    """Python runs finalizers at any line, also at those of ours that hold a lock."""
    session = il.connect("cpu:0,cpu:1", recover=True) if recover else il.connect("cpu:0,cpu:1")
    x = il.ones(3) + 1
    if where == "with the lock":
        with session.lock:
            assert closes(session) < CLOSED_S * LOADED
    elif where == "with the turn to receive":
        handle = session.receiver._handle
        session.receiver._handle = lambda data, close=session.close: (close(), handle(data))
        with pytest.raises(il.InterlockError, match="closed"):
            x.numpy()
    else:
        pack = session.lanes[0]._pack
        session.lanes[0]._pack = lambda message, close=session.close: (close(), pack(message))[1]
        with pytest.raises(il.InterlockError, match="closed"):
            x.numpy()
    assert session.closed
    del session, x


@pytest.mark.parametrize("at", [0, 1, 2, 4, 6, 9])
def test_ctrl_c_in_the_middle_of_closing_leaves_nothing(at: int, faulty: None, nothing_left: None) -> None:
    session = il.connect("cpu:0,cpu:1,cpu:2")
    pids = list(session.pids.values())
    kept = bring(session, ("busy", "idle", "stopped")[at % 3])
    # At the beginning, while the work gets its moment, while workers stop, and whenever it comes to it.
    timer = threading.Timer(0.0 if at < 3 else 0.02 * at * at, os.kill, (os.getpid(), signal.SIGINT))
    started = time.monotonic()
    begun = False
    try:
        timer.start()
        begun = True
        session.close()
        timer.join()
        time.sleep(0.01)  # so that Ctrl-C comes here if it came too late
    except KeyboardInterrupt:
        assert time.monotonic() - started < CLOSED_S + 0.02 * at * at
    if not begun:
        session.close()
    timer.join()
    assert session.closed
    assert not any(map(runs, pids))
    del kept


# -- the end of the program -------------------------------------------------------------------------------------------

START = """
import atexit, os, signal, sys, threading, time
import interlock as il
session = il.connect("cpu:0,cpu:1,cpu:2")
print(*session.pids.values(), flush=True)
xs = [il.ones(3, device=device) for device in session.devices]
il.synchronize()
"""
ENDINGS = {
    "stopped": ("for p in session.pids.values(): os.kill(p, signal.SIGSTOP)", 0),
    "holding the interpreter": ("ys = [-x for x in xs]; session.flush()", 0),
    "a thread reads": ("threading.Thread(target=lambda: (+xs[0]).numpy(), daemon=True).start(); time.sleep(0.05)", 0),
    "a thread issues": (
        "def work(x):\n    while True: x = x + il.asarray([1.0] * 3)\n"
        "threading.Thread(target=work, args=(xs[0],), daemon=True).start(); time.sleep(0.05)",
        0,
    ),
    "a finalizer closes": (
        "class Closing:\n    def __del__(self): session.close()\nclosing = Closing(); closing.me = closing",
        0,
    ),
    "the program's own hook closes": ("atexit.register(session.close)", 0),
    "a second session": ("other = il.connect('cpu:0'); z = +il.ones(3); ys = [+x for x in xs]; other.flush()", 0),
    "a traceback": ("ys = [+x for x in xs]; session.flush(); raise ValueError('mine')", 1),
}


@pytest.mark.parametrize("how", ENDINGS)
def test_a_program_ends_soon_with_its_own_exit_code_and_words(how: str, runtime: Path, tmp_path: Path) -> None:
    ending, code = ENDINGS[how]
    script = START + "print('ending', flush=True); sys.stdin.readline()\n" + ending
    with program(script, env=customize(tmp_path, HOLD)) as running:
        pids = [int(word) for word in running.line().split()]
        running.line("ending")
        started = time.monotonic()
        running.tell()
        assert running.ended() == code
        assert time.monotonic() - started < CLOSED_S * LOADED
        said = running.errors().splitlines()
        assert said[-1:] == (["ValueError: mine"] if code else [])
        assert not code or said[0].startswith("Traceback")
        assert gone(pids, 0.5)


def test_errors_that_nobody_read_are_told_once_at_the_end(runtime: Path) -> None:
    script = START + "kept = xs[0][il.asarray([7])] + 1\nsession.close(); session.close()"
    with program(script) as running:
        running.line()
        assert running.ended() == 0
        assert running.errors().count("nobody read") == 1
