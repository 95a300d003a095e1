"""What a review of the whole found wrong, each as the behaviour that it broke."""

from __future__ import annotations

import asyncio
import enum
import gc
import os
import random
import re
import resource
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import interlock as il


def interrupting(send: Callable[[bytes], None], when: str) -> Callable[[bytes], None]:
    """`send`, with a Ctrl-C in its third call: before or after the message is on its way."""
    calls = iter(range(1000))

    def interrupted(data: bytes) -> None:
        third = next(calls) == 2
        if third and when == "before":
            raise KeyboardInterrupt
        send(data)
        if third:
            raise KeyboardInterrupt

    return interrupted


@pytest.mark.parametrize("when", ["before", "after"])
def test_ctrl_c_while_a_batch_is_sent_loses_nothing_and_repeats_nothing(
    when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with il.connect("cpu:0") as session:
        x = il.zeros(3)
        done = 0

        def train() -> None:
            nonlocal x, done
            while True:
                x += 1
                done += 1

        outlet = session.lanes[0]._outlet
        monkeypatch.setattr(outlet, "send", interrupting(outlet.send, when))
        with pytest.raises(KeyboardInterrupt):
            train()
        assert x.tolist() == [done + 1.0] * 3  # the one that was interrupted had been issued
        assert il.full(7, 2.5).tolist() == [2.5] * 7


def test_ctrl_c_at_any_moment_leaves_a_session_whose_values_are_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)  # it may come as a handle goes

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    generator = random.Random(1)
    before = signal.signal(signal.SIGVTALRM, interrupt)
    try:
        with il.connect("cpu:0,cpu:1") as session:
            ends = time.monotonic() + 2
            while time.monotonic() < ends:
                x, issued = il.zeros(4), 0
                signal.setitimer(signal.ITIMER_VIRTUAL, generator.uniform(0.0005, 0.01))
                try:
                    while issued < 2000:  # where an object's end takes the signal, it is lost
                        y = x + 1
                        x = y
                        issued += 1
                        if issued % 100 == 0:
                            x.to("cpu:1").numpy()
                except KeyboardInterrupt:
                    pass
                finally:
                    signal.setitimer(signal.ITIMER_VIRTUAL, 0)
                assert x.numpy(timeout=30)[0] - issued in (0, 1)
                session.synchronize(timeout=30)
    finally:
        signal.signal(signal.SIGVTALRM, before)


def test_numpy_integers_are_taken_where_python_integers_are() -> None:
    with il.connect("cpu:0"):
        data = np.arange(6.0).reshape(2, 3)
        x = il.asarray(data)
        zero, one = np.int64(0), np.int64(1)
        assert x.sum(axis=zero, keepdims=np.bool_(True)).tolist() == [[3.0, 5.0, 7.0]]  # type: ignore[arg-type]
        assert x.sum(axis=(zero, one)).tolist() == 15.0  # type: ignore[arg-type]
        assert x.std(ddof=one).tolist() == data.std(ddof=1)  # type: ignore[arg-type]
        assert (x / 7).round(one).tolist() == (data / 7).round(1).tolist()  # type: ignore[arg-type]
        assert il.sort(x, zero).tolist() == data.tolist()  # type: ignore[arg-type]
        assert il.concatenate([x, x], axis=one).shape == (2, 6)  # type: ignore[arg-type]
        rng, theirs = il.random.default_rng(1), np.random.default_rng(1)
        assert rng.random(np.int64(2)).tolist() == theirs.random(2).tolist()  # type: ignore[arg-type]
        assert rng.permutation(np.int64(4)).tolist() == theirs.permutation(4).tolist()
        assert rng.choice(np.int64(4), size=np.array([2, 2])).tolist() == theirs.choice(4, (2, 2)).tolist()  # type: ignore[arg-type]


def test_numbers_too_large_for_any_array_are_refused_and_spoil_nothing() -> None:
    with il.connect("cpu:0"):
        x = il.arange(6.0).reshape(2, 3)
        endless = il.broadcast_to(il.ones(1), (1 << 40,))
        with pytest.raises(OverflowError):
            x.std(ddof=10**20)
        for refused in (
            lambda: il.eye(10**20),
            lambda: il.linspace(0, 1, 10**20),
            lambda: il.random.default_rng(1).random(10**20),
            lambda: il.random.default_rng(1).permutation(10**20),
            lambda: il.zeros((0, 10**20)),
            lambda: endless[:, None] + endless,
        ):
            with pytest.raises((ValueError, OverflowError)):
                refused()
        assert x[[0], : 10**30].tolist() == [[0.0, 1.0, 2.0]]
        assert (x + 1).tolist() == [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]


def test_what_was_lent_to_a_worker_that_is_lost_is_free_again() -> None:
    data = np.ones(100_000)
    with il.connect("cpu:0,cpu:1") as session:
        kept = il.asarray(data, device="cpu:1")
        session.synchronize()
        used = session._arena.used_bytes
        os.kill(session.pids["cpu:1"], signal.SIGKILL)
        with pytest.raises(il.WorkerLost):
            kept.numpy()
        assert session._arena.used_bytes <= used - data.nbytes
        for _ in range(3):
            with pytest.raises(il.WorkerLost):
                il.asarray(data, device="cpu:1")
        assert session._arena.used_bytes <= used - data.nbytes


def test_an_answer_for_an_event_loop_that_is_closed_disturbs_nobody() -> None:
    async def wait_for(x: il.Array) -> None:
        await x

    with il.connect("cpu:0") as session:
        x = il.ones((500, 500))
        loop = asyncio.new_event_loop()
        task = loop.create_task(wait_for(x @ x))
        loop.call_soon(loop.stop)
        loop.run_forever()
        loop.close()
        session.synchronize()
        assert (x + 1).numpy()[0, 0] == 2.0
        assert "interlock-events" in [thread.name for thread in threading.enumerate()]
        del task


def test_what_is_no_number_is_in_no_array() -> None:
    with il.connect("cpu:0"):
        x = il.arange(3)
        assert None not in x
        assert "1" not in x
        assert 2 in x
        assert 3 not in x


def test_array_copies_and_asarray_does_not() -> None:
    with il.connect("cpu:0,cpu:1"):
        x = il.arange(3)
        assert il.asarray(x) is x
        assert il.array(x, copy=None) is x
        y = il.array(x)
        y += 1
        assert x.tolist() == [0, 1, 2]
        assert il.array(x, device="cpu:1").tolist() == [0, 1, 2]
        assert il.array([1, 2]).tolist() == [1, 2]
        with pytest.raises(ValueError, match="copy"):
            il.array([1, 2], copy=False)


def test_a_number_that_ints_cannot_hold_is_refused_at_its_line_whatever_came_before() -> None:
    with il.connect("cpu:0"):
        x = il.arange(4)
        for key in (0, [0]):
            x[key] = 1.5
            for value, error in ((float("nan"), ValueError), (1e30, OverflowError)):
                with pytest.raises(error):
                    x[key] = value
            assert x.tolist() == [1, 1, 2, 3]


def test_no_memory_for_what_numpy_needs_on_the_way_is_a_memory_error() -> None:
    with il.connect("cpu:0") as session:
        x = il.ones((1 << 22,))
        assert float(x.std()) == 0.0
        session.synchronize()
        pid = session.pids["cpu:0"]
        status = Path(f"/proc/{pid}/status").read_text()
        mapped = int(re.findall(r"VmSize:\s+(\d+) kB", status)[0]) << 10
        resource.prlimit(pid, resource.RLIMIT_AS, (mapped + (1 << 20), resource.RLIM_INFINITY))
        with pytest.raises(MemoryError) as raised:
            x.std().numpy()
        assert raised.type is MemoryError  # not of the device's memory, of which there is enough


class Level(enum.IntEnum):
    HIGH = 2


def test_numbers_of_derived_classes_have_the_dtype_that_numpy_gives_them() -> None:
    with il.connect("cpu:0"):
        x = il.ones(3, dtype="i1")
        for function, theirs in ((il.multiply, np.multiply), (il.add, np.add)):
            assert function(x, 2).dtype == np.int8
            assert function(x, Level.HIGH).dtype == theirs(np.ones(3, "i1"), Level.HIGH).dtype
            assert function(x, Level.HIGH).tolist() == theirs(np.ones(3, "i1"), Level.HIGH).tolist()
        with pytest.raises(TypeError, match="dtype object is not supported"):
            x[0] = None
        x[0] = Level.HIGH
        assert x.tolist() == [2, 1, 1]


@pytest.mark.parametrize("devices", ["cpu:0", "sim:0"])
def test_a_draw_that_fails_leaves_its_generator_as_it_was(devices: str) -> None:
    with il.connect(devices, memory=64 << 20):
        ours, numpys = il.random.default_rng(3), np.random.default_rng(3)
        of_a_failure = ours.permutation(il.arange(3)[il.asarray([9])])
        assert ours.random(3).tolist() == numpys.random(3).tolist()
        with pytest.raises(IndexError):
            of_a_failure.numpy()
        assert ours.integers(9, size=3).tolist() == numpys.integers(9, size=3).tolist()
        ours.random(50_000_000)  # with more memory this would have drawn: what is drawn now would be other numbers
        for draw in (ours.random(3), ours.permutation(4)):
            with pytest.raises(il.OutOfDeviceMemory, match=r"no room for 381\.5 MiB"):
                draw.numpy()


def test_ravel_walks_as_numpys_does_in_every_order() -> None:
    host = np.arange(24).reshape(2, 3, 4)
    views: list[Callable[[np.ndarray], np.ndarray]] = [
        lambda a: a,
        lambda a: a.T,
        lambda a: a[::-1],
        lambda a: a.transpose(1, 2, 0)[:, ::-1],
        lambda a: a[:, ::2].T,
        lambda a: a[:, ::-1].swapaxes(0, 1),
    ]
    with il.connect("cpu:0"):
        x = il.asarray(host)
        for view in views:
            for order in "CFAK":
                assert view(x).ravel(order).tolist() == view(host).ravel(order).tolist()  # type: ignore[arg-type]
                assert view(x).flatten(order).tolist() == view(host).flatten(order).tolist()  # type: ignore[arg-type]


def test_out_that_cannot_be_written_is_refused_in_words() -> None:
    with il.connect("cpu:0"):
        x = il.ones(3)
        with pytest.raises(TypeError, match=r"add\(\) takes an array on a device as out=, not a ndarray"):
            il.add(x, x, out=np.zeros(3))
        with pytest.raises(TypeError, match=r"divmod\(\) takes no out="):
            il.divmod(x, 2, out=x)
        with pytest.raises(TypeError, match=r"sum cannot write the elements of an array on a device into a NumPy"):
            np.sum(x, out=np.zeros(()))
        assert float(np.sum(x, out=None)) == 3.0


def test_numpys_defaults_of_copy_and_transpose_hold() -> None:
    host = np.arange(6.0).reshape(2, 3)
    with il.connect("cpu:0"):
        x = il.asarray(host)
        assert np.copy(x.T).strides == np.copy(host.T).strides
        assert np.transpose(x, axes=(1, 0)).tolist() == np.transpose(host, axes=(1, 0)).tolist()


def test_a_view_that_numpy_would_not_write_is_not_written_through_its_own_views() -> None:
    with il.connect("cpu:0"):
        x = il.asarray(np.arange(3.0))
        y = np.broadcast_to(x, (2, 3))
        writes: list[Callable[[], object]] = [
            lambda: y.__setitem__((0, 0), 5),
            lambda: y[0].__setitem__(0, 5),
            lambda: y.T.__iadd__(1),
            lambda: np.add(y[0], 1, out=y[0]),
            lambda: y[0].fill(2),
            lambda: y.__setitem__([0], 1),
        ]
        for write in writes:
            with pytest.raises(ValueError, match="is read-only"):
                write()
        assert x.tolist() == [0.0, 1.0, 2.0]
        z = y.copy()
        z[0, 0] = 5
        assert z[0].tolist() == [5.0, 1.0, 2.0]


def test_memory_that_only_a_dropped_copy_still_borrows_is_waited_for() -> None:
    with il.connect("cpu:0,cpu:1", memory=200 << 20):
        for _ in range(6):
            x = il.ones(15 << 20, device="cpu:0")  # 120 MiB of 200
            assert float(x.to("cpu:1")[0]) == 1.0  # dropped at once, but its FREE is not sent yet
            del x


def test_an_upload_may_take_nearly_all_of_the_memory() -> None:
    with il.connect("cpu:0", memory=200 << 20):
        for mib in (160, 190):
            assert float(il.asarray(np.ones(mib << 17)).sum()) == mib << 17


def test_a_trace_in_a_trace_is_refused_and_the_outer_one_goes_on(tmp_path: Path) -> None:
    with il.connect("cpu:0"):
        with il.trace(tmp_path / "outer.json"):
            x = il.ones(3) + 1
            with pytest.raises(il.InterlockError, match="being recorded already"), il.trace(tmp_path / "inner.json"):
                pass
            assert x.tolist() == [2.0, 2.0, 2.0]
        assert (tmp_path / "outer.json").exists()
        assert not (tmp_path / "inner.json").exists()


def test_closed_sessions_are_forgotten() -> None:
    sessions = []
    for _ in range(4):
        with il.connect("cpu:0") as session:
            sessions.append(weakref.ref(session))
        del session
    gc.collect()
    assert sum(session() is not None for session in sessions) <= 1  # the default one, till another is asked for


@pytest.mark.parametrize(
    ("timeout", "error"), [(-1, ValueError), (float("nan"), ValueError), ("1", TypeError), (None, None), (1e12, None)]
)
def test_a_timeout_is_a_number_of_seconds(timeout: object, error: type[Exception] | None) -> None:
    with il.connect("cpu:0"):
        x = il.ones(3)
        if error is None:
            assert x.numpy(timeout=timeout).tolist() == [1.0, 1.0, 1.0]  # type: ignore[arg-type]
        else:
            with pytest.raises(error, match="timeout must"):
                x.numpy(timeout=timeout)  # type: ignore[arg-type]


@pytest.mark.parametrize("closed", [0, 1, 2])
def test_a_program_without_a_standard_stream_has_workers_all_the_same(closed: int, tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(
        "import os, sys, interlock as il\n"
        "with il.connect('cpu:0'):\n"
        "    open(sys.argv[1], 'w').write(str(float(il.ones(3).sum())))\n"
    )
    result = tmp_path / "result"
    command = f'exec "$0" "$1" "$2" {closed}{"<" if closed == 0 else ">"}&-'
    done = subprocess.run(["bash", "-c", command, sys.executable, script, result], timeout=60)
    assert done.returncode == 0
    assert result.read_text() == "3.0"


def test_what_ndarray_has_and_arrays_lack_is_said_so() -> None:
    with il.connect("cpu:0"):
        x = il.ones(3)
        with pytest.raises(AttributeError, match=r"ndarray's is not supported on a device yet; .*x\.numpy\(\)\.ctypes"):
            _ = x.ctypes  # type: ignore[attr-defined]
        with pytest.raises(AttributeError, match=r"object has no attribute 'nonsense'$"):
            _ = x.nonsense  # type: ignore[attr-defined]
        assert not hasattr(x, "__cuda_array_interface__")
