"""connect(recover=True): workers die at any moment, and every result is that of a run in which none did, to the bit."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import random
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import interlock as il
from interlock.coordinator import lives, recovery, workers

from .programs import address_of, becomes, kill, launcher

pytestmark = pytest.mark.timeout(110)
DEVICES = ("cpu:0", "cpu:1", "cpu:2")
PLANTED = str(Path(__file__).with_name("ending_worker.py"))


@pytest.fixture
def session(runtime: Path) -> Iterator[il.Session]:
    with il.connect(devices=DEVICES, recover=True) as session:
        yield session


def same(found: Any, wanted: Any) -> bool:
    found = found.numpy(timeout=90)
    return bool(found.dtype == wanted.dtype and found.shape == wanted.shape and found.tobytes() == wanted.tobytes())


def leftovers(session: il.Session) -> dict[str, Any]:
    """What the workers hold of the session, if they go on holding it."""
    held: dict[str, Any] = {}
    for _ in range(20):
        session.synchronize()
        held = {device: counts for device, counts in session.inspect().items() if counts["in use"]}
        if not held:
            break
        time.sleep(0.1)  # what was lent comes back in a moment
    return held


class Twin:
    """A random program on devices, and the same with NumPy."""

    def __init__(self, session: il.Session, seed: int) -> None:
        self.chance = random.Random(seed)
        self.session = session
        self.arrays: list[tuple[Any, Any]] = []
        self.generators = [
            (il.random.default_rng(seed, device=device), np.random.default_rng(seed)) for device in session.devices
        ]
        self.steps = [il.capture(self._step_to(device)) for device in session.devices]
        self.failed: list[Any] = []

    @staticmethod
    def _step_to(device: Any) -> Callable[..., Any]:
        def step(x: Any, rate: float) -> Any:
            y = (x * rate + 1.0).to(device)
            z = y.sqrt() if hasattr(y, "sqrt") else il.sqrt(y)
            return z - 0.5, (z * 2.0).to(x.device)

        return step

    def turn(self) -> None:
        device = self.chance.choice(self.session.devices)
        doing = self.chance.choice(
            ("upload", "draw", "add", "add", "inplace", "view", "send", "send", "step", "drop", "read", "fail")
        )
        if doing == "upload" or not self.arrays:
            n = self.chance.choice((3, 100, 10_000))
            host = np.arange(n) * self.chance.random()
            self.arrays.append((il.asarray(host, device=device), host.copy()))
            return
        if doing == "draw":
            mine, twin = self.chance.choice(self.generators)
            self.arrays.append((mine.random(50), twin.random(50)))
            return
        place = self.chance.randrange(len(self.arrays))
        x, host = self.arrays[place]
        if doing == "add":
            self.arrays.append((x + x * 0.5, host + host * 0.5))
        elif doing == "inplace":
            x += 1.25
            host += 1.25
        elif doing == "view":
            x[1:] *= 0.75
            host[1:] *= 0.75
        elif doing == "send":
            self.arrays.append((x.copy() if device is x.device else x.to(device), host.copy()))
        elif doing == "step":
            rate = self.chance.random()
            one, two = self.chance.choice(self.steps)(il.absolute(x), rate)
            root = np.sqrt(np.absolute(host) * rate + 1.0)
            self.arrays += [(one, root - 0.5), (two, root * 2.0)]
        elif doing == "drop":
            del self.arrays[place]
        elif doing == "read":
            assert same(x, host)
        elif len(self.failed) < 5:
            self.failed.append(x[il.asarray([10**9], device=x.device)])
        while len(self.arrays) > 30:
            del self.arrays[self.chance.randrange(len(self.arrays))]

    def check(self) -> None:
        for x, host in self.arrays:
            assert same(x, host)
        for x in self.failed:
            with pytest.raises(IndexError, match="1000000000 is out of bounds"):
                x.numpy(timeout=90)
        for mine, twin in self.generators:
            assert same(mine.random(3), twin.random(3))


@pytest.mark.parametrize(("seed", "devices"), [(0, DEVICES), (1, ("cpu:0", "sim:0", "sim:1"))])
def test_programs_whose_workers_are_killed_give_what_undisturbed_ones_give(
    seed: int, devices: tuple[str, ...], runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "INSTRUCTIONS", 150)  # many checkpoints
    monkeypatch.setattr(recovery, "TRIES", 100)
    chance, kills, over = random.Random(seed), 0, threading.Event()
    with il.connect(devices=devices, recover=True) as session:
        twin = Twin(session, seed)

        def killer() -> None:
            nonlocal kills
            for _ in range(6):
                time.sleep(chance.random() * 0.3)
                for device in chance.sample(devices, chance.choice((1, 1, 2))):
                    with contextlib.suppress(ProcessLookupError):  # it is dead
                        kill(session.pids[device])
                        kills += 1
                if chance.random() < 0.7:  # else another one is killed while these are being replaced
                    becomes(lambda: session.recovery is None or not session.recovery.recovering)
            over.set()

        thread = threading.Thread(target=killer)
        thread.start()
        while not over.is_set():
            twin.turn()
        thread.join()
        twin.check()
        assert kills > 2
        assert session.recovery is not None
        session.checkpoint(timeout=60)
        assert len(session.recovery._log) < 20
        assert sum(map(len, session.recovery._saved.values())) <= 50
        twin.failed.clear()
        twin.arrays.clear()
        twin.generators.clear()
        twin.steps.clear()
        gc.collect()  # tracebacks hold some
        session.checkpoint(timeout=60)
        assert leftovers(session) == {}
        assert session.recovery._arena.used_bytes == session._arena.used_bytes == 0


@pytest.mark.parametrize("checkpoint", [False, True])
def test_everything_that_can_be_in_a_buffer_comes_back(checkpoint: bool, session: il.Session) -> None:
    _, d0, d1 = session.devices
    host = np.arange(100_000.0)
    big, small = il.asarray(host, device=d0), il.arange(5, device=d0)
    fortran = il.asarray(np.asfortranarray(np.arange(20_000.0).reshape(100, 200)), device=d0)
    empty, scalar = il.zeros((0, 3), device=d0), il.asarray(2.5, device=d0)
    there = big.to(d1)
    big += 1
    view = big[10:20]
    generator, twin = il.random.default_rng(7, device=d0), np.random.default_rng(7)
    drawn = generator.integers(0, 9, 3, dtype="int32")  # half of a word is left in the generator
    expected = twin.integers(0, 9, 3, dtype="int32")
    failed = small[il.asarray([9], device=d0)]
    inherited = failed + 1
    step = il.capture(lambda x: (x * 2).to(d1) + 1)
    once = step(big)
    chosen, late = il.unique(small % 2), il.nonzero(small)[0]  # their shapes only the worker can tell
    assert chosen.shape == (2,)
    with pytest.raises(IndexError) as before:
        inherited.numpy()
    if checkpoint:
        session.checkpoint(timeout=60)
    for round in range(2):
        kill(session.pids["cpu:1"])
        if round:
            kill(session.pids["cpu:2"])
        assert same(view, host[10:20] + 1)
        view *= 1.0  # it is a view still
        assert same(big, host + 1)
        assert same(there, host)
        assert same(fortran, np.arange(20_000.0).reshape(100, 200))
        assert fortran.strides == (8, 800)
        assert (empty.numpy().shape, float(scalar), small.tolist()) == ((0, 3), 2.5, [0, 1, 2, 3, 4])
        assert same(drawn, expected)
        assert (chosen.tolist(), late.tolist()) == ([0, 1], [1, 2, 3, 4])
        assert same(once, (host + 1) * 2 + 1)
        assert same(step(big), (host + 1) * 2 + 1)
        assert same(generator.integers(0, 9, 3, dtype="int32"), twin.integers(0, 9, 3, dtype="int32"))
        with pytest.raises(IndexError) as after:
            inherited.numpy()
        assert str(after.value) == str(before.value)
        assert "failed = small[il.asarray([9], device=d0)]" in "".join(after.value.__notes__)
    session.restart(d0)  # here it costs nothing either
    assert same(big, host + 1)
    session.synchronize()  # what was read once is no news


def test_whoever_waits_goes_on_waiting_and_gets_it(session: il.Session) -> None:
    cpu, d0, _ = session.devices
    x = il.arange(50_000, device=d0)
    session.synchronize()
    os.kill(session.pids["cpu:1"], signal.SIGSTOP)
    y = x + 1
    found: list[Any] = []

    async def awaited() -> Any:
        return await y

    def credit() -> Any:
        z = x * 1.0
        for _ in range(3000):
            z = z + 1.0
        return z.numpy(timeout=90)

    waits: list[Callable[[], Any]] = [
        lambda: y.numpy(timeout=90),
        lambda: y.to(cpu).numpy(timeout=90),
        lambda: asyncio.run(awaited()),
        lambda: session.synchronize(timeout=90),
        lambda: session.checkpoint(timeout=30),
        credit,
    ]
    threads = [threading.Thread(target=lambda wait=wait: found.append(wait())) for wait in waits]
    for thread in threads:
        thread.start()
    with pytest.raises(TimeoutError):
        y.numpy(timeout=0.2)
    kill(session.pids["cpu:1"])
    for thread in threads:
        thread.join(90)
    right = np.arange(1, 50_001)
    arrays = sorted((each for each in found if each is not None), key=lambda each: each.dtype.kind)
    assert len(found) == len(waits)
    assert [np.array_equal(each, right) for each in arrays if each.dtype == right.dtype] == [True] * 3
    assert np.array_equal(arrays[0], np.arange(50_000) + 3000.0)


def test_uploads_are_kept_within_bounds(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "UPLOADED", 8 << 20)
    with il.connect(devices=["cpu:0", "cpu:1"], recover=True, memory=32 << 20) as session:
        host, total = np.arange(250_000.0), np.zeros(250_000)
        x = il.zeros(250_000, device="cpu:1")
        for turn in range(30):  # twice what there is room for
            x += il.asarray(host * turn, device="cpu:1")
            total += host * turn
            if turn in (9, 10, 21):
                with contextlib.suppress(ProcessLookupError):  # the one before is not replaced yet
                    kill(session.pids["cpu:1"])
        assert same(x, total)
        assert session.recovery is not None
        assert session.recovery._uploaded <= 32 << 20


def test_what_kills_every_worker_is_given_up_with_its_name(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "PROGRAM", (PLANTED,))
    monkeypatch.setattr(recovery, "TRIES", 3)
    with il.connect(devices=["cpu:0", "cpu:1"], recover=True) as session:
        x, other = il.ones(3, device="cpu:1"), il.arange(3, device="cpu:0")
        y = il.arctan(x)  # its process ends
        with pytest.raises(il.WorkerLost, match="it ended with exit code 7 while running `arctan`") as caught:
            y.numpy(timeout=90)
        assert "not recovered in 3 tries" in str(caught.value)
        for array in (x, other):
            with pytest.raises(il.WorkerLost, match="not recovered in 3 tries"):
                array.numpy()
        for device in session.devices:
            session.restart(device)
        assert same(il.arange(3, device="cpu:1").to("cpu:0"), np.arange(3))


def test_closing_does_not_wait_for_a_worker_that_is_being_replaced(
    runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = il.connect(devices=["cpu:0", "cpu:1"], recover=True)
    x = il.ones(3, device="cpu:1")
    assert same(x, np.ones(3))
    monkeypatch.setattr(workers, "PROGRAM", ("-c", "import time; time.sleep(100)"))
    kill(session.pids["cpu:1"])
    becomes(lambda: session.lives.source._starting)  # type: ignore[union-attr, attr-defined]
    begun = time.monotonic()
    session.close()
    assert time.monotonic() - begun < 5.0
    with pytest.raises(il.InterlockError, match="closed"):
        x.numpy()


def test_workers_of_a_launcher_are_recovered_too(runtime: Path) -> None:
    with launcher("--devices", "cpu:0,cpu:1") as up:
        address = address_of(up)
        with il.connect(address=address, recover=True) as session, il.connect(address=address) as other:
            host = np.arange(20_000.0)
            x, theirs = il.asarray(host, device=session.devices[1]), il.ones(3, device=other.devices[0])
            y = x.to(session.devices[0])
            assert same(y, host)
            kill(session.pids["cpu:1"])
            x += 1
            assert same(x, host + 1)
            assert same(y, host)
            assert same(theirs + 1, np.full(3, 2.0))
        up.signal(signal.SIGTERM)
        up.ended()


def test_where_it_cannot_be_it_is_refused(runtime: Path) -> None:
    with pytest.raises(ValueError, match="recover=True needs gate='worker'"):
        il.connect(devices=["cpu:0"], gate="coordinator", recover=True)
    with pytest.raises(ValueError, match="needs workers on this machine"):
        il.connect(address="tcp://localhost:1", recover=True)
    with il.connect(devices=["cpu:0"]) as session:
        assert session.recovery is None
        with pytest.raises(il.InterlockError, match="connected with recover=True"):
            session.checkpoint()


@pytest.mark.filterwarnings("ignore")
def test_a_living_worker_of_a_launcher_is_begun_anew_with_at_once(runtime: Path) -> None:
    with launcher("--devices", "cpu:0,cpu:1") as up:
        with il.connect(address=address_of(up), recover=True) as session:
            x = il.arange(20_000.0, device="cpu:1")
            pids = session.pids
            begun = time.monotonic()
            session.restart("cpu:1")
            assert time.monotonic() - begun < lives.RESTART_S / 2
            assert session.pids == pids
            assert same(x + 1, np.arange(20_000.0) + 1)
        up.signal(signal.SIGTERM)
        up.ended()


def test_what_is_computed_again_is_flagged_once(runtime: Path) -> None:
    with il.connect("cpu:0,cpu:1", recover=True, nan="flag") as session:
        x, y = il.zeros(3, device="cpu:0"), il.zeros(3, device="cpu:1")
        with pytest.warns(RuntimeWarning, match="3 inf among 3 elements"):
            (1 / x).numpy()
        kept = 1 / (y + 0.0)
        with pytest.warns(RuntimeWarning, match="3 inf among 3 elements"):
            kept.numpy()
        for pid in session.pids.values():
            kill(pid)
        assert same(kept, np.full(3, np.inf))  # a warning would be an error
        assert not session.flags._missing()
        with pytest.warns(RuntimeWarning, match="3 inf among 3 elements") as told:
            (1 / (x + 0.0)).numpy()
        assert len(told) == 1


def test_a_trace_goes_on_over_a_loss_and_ends(runtime: Path, tmp_path: Path) -> None:
    with il.connect("cpu:0,cpu:1", recover=True) as session:
        x = il.ones(1000, device="cpu:1")
        with il.trace(tmp_path / "timeline.json", session=session):
            x = x + 1
            kill(session.pids["cpu:1"])
            y = x * 2
            assert same(y, np.full(1000, 4.0))
            z = x * 3
        assert same(z, np.full(1000, 6.0))
        assert "multiply" in (tmp_path / "timeline.json").read_text()


def test_a_shape_that_only_a_worker_can_tell_is_told_after_its_loss(runtime: Path) -> None:
    with il.connect("cpu:0,cpu:1", recover=True) as session:
        host = np.array([3, 1, 3])
        x = il.asarray(host, device="cpu:1")
        x.numpy()
        os.kill(session.pids["cpu:1"], signal.SIGSTOP)
        y = np.unique(x)
        known = np.unique(x + 1)
        kill(session.pids["cpu:1"])
        assert y.shape == (2,)
        session.checkpoint()
        kill(session.pids["cpu:1"])
        assert same(y + 1, np.unique(host) + 1)
        assert same(known, np.unique(host + 1))


def test_restarts_that_are_asked_for_are_not_counted(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "TRIES", 2)
    with il.connect("cpu:0", recover=True) as session:
        x = il.arange(3)
        for _ in range(4):
            x = x * 2  # not come to by then
            session.restart("cpu:0")
        assert same(x, np.arange(3) * 16)


def test_without_memory_for_checkpoints_it_ends_and_says_so(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "INSTRUCTIONS", 20)
    monkeypatch.setattr(recovery, "PUT_OFF", 2)
    monkeypatch.setattr(recovery.Recovery, "_land", refuse)
    with il.connect(devices=DEVICES[:2], recover=True) as session:
        x = il.ones(10_000, device=DEVICES[1])
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            deadline = time.monotonic() + 60
            while session.recovery is not None and time.monotonic() < deadline:
                x = x + 1
        assert session.recovery is None
        words = [str(each.message) for each in told]
        assert "all is kept" in words[0]
        assert "recover=True has ended" in words[1]
        y = il.ones(3, device=DEVICES[0])
        kill(session.pids[DEVICES[1]])
        with pytest.raises(il.WorkerLost):
            x.numpy(timeout=60)
        assert y.tolist() == [1.0] * 3


def refuse(*_: Any) -> None:
    raise MemoryError("no memory")
