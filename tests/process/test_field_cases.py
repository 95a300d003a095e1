"""Faults that other systems had in the field, each as the kind that it is, against real worker processes.

The names begin with the number of the case in the collection that they come from; the docstring names the report.
"""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

import interlock as il

HANG_S = 60.0  # generous: a deadline for a hang, not a measurement
KINDS = ["cpu:0,cpu:1,cpu:2", "cpu:0,sim:0,sim:1"]


@pytest.fixture(scope="module", params=[*((d, "worker") for d in KINDS), (KINDS[0], "coordinator")], ids=str)
def session(request: pytest.FixtureRequest) -> Iterator[il.Session]:
    devices, gate = request.param
    with il.connect(devices=devices, gate=gate) as session:
        yield session


def read(x: il.Array) -> np.ndarray:
    return x.numpy(timeout=HANG_S)


def same(x: il.Array, expected: object) -> None:
    """Equal bit for bit, in value, dtype and shape."""
    array, expected = read(x), np.asarray(expected)
    assert array.dtype == expected.dtype
    assert array.shape == expected.shape
    assert array.tobytes() == expected.tobytes(), (array, expected)


# FL-03: vllm-project/vllm#50053 ------------------------------------------------------------------------------------


@pytest.mark.parametrize("nbytes", [1_000, 32 * 1024 - 8, 32 * 1024, 200_000, 1_000_000])
def test_fl03_memory_is_not_used_again_while_a_message_still_needs_it(session: il.Session, nbytes: int) -> None:
    """A buffer that looked sent was overwritten in flight: the receiver got the new bytes."""
    n = nbytes // 8
    _, d0, d1 = session.devices
    host = np.empty(n)
    received = []
    for i in range(60):
        host[:] = i
        x = il.asarray(host, device=d0)  # the user's buffer may be overwritten at once
        host[:] = -1
        received.append((i, x.to(d1), x.to(session.devices[0])))
        x[...] = -2  # and so may the worker's
        del x  # and its memory may be used again
        il.full(n, -3.0, device=d0)
    for i, y, z in received:
        same(y, np.full(n, float(i)))
        same(z, np.full(n, float(i)))


# FL-04: apache/mxnet#14522 -----------------------------------------------------------------------------------------


def failing(device: object) -> il.Array:
    """An operation that only the worker can see to be wrong."""
    return il.arange(5, device=device)[il.asarray([1, 7], device=device)]


def test_fl04_dependents_of_a_failure_finish_and_name_it(session: il.Session) -> None:
    """After an operation failed, its outputs were never marked finished, so every waiter downstream hung."""
    cpu, d0, d1 = session.devices
    good = il.ones(3, device=d0)
    c = failing(d0)
    d = c + 1
    e = (d.to(d1) * 2).to(cpu).sum()
    two = il.stack([e, il.ones((), device=cpu)])
    for _ in range(2):  # and once more
        for array in (e, d, two, c):
            with pytest.raises(IndexError, match="index 7 is out of bounds") as raised:
                read(array)
            notes = "\n".join(raised.value.__notes__)
            assert f"failed on {d0}" in notes
            assert "arange(5, device=device)[il.asarray([1, 7]" in notes
    same(good + 1, np.full(3, 2.0))
    same(il.ones(3, device=d1), np.ones(3))


def test_fl04_a_failure_before_any_wait_does_not_hold_later_work(session: il.Session) -> None:
    _, d0, d1 = session.devices
    bad = failing(d0)
    xs = [bad.to(d1) + i for i in range(50)]
    ys = [il.full(4, float(i), device=d1) + 1 for i in range(50)]
    for i, y in enumerate(ys):
        same(y, np.full(4, i + 1.0))
    for x in xs:
        with pytest.raises(IndexError):
            read(x)


def test_fl04_an_in_place_write_of_a_failure_spoils_the_target_and_a_full_overwrite_cures_it(
    session: il.Session,
) -> None:
    _, d0, _ = session.devices
    x = il.zeros(4, device=d0)
    x[:2] = failing(d0)[:2] * 1.0
    with pytest.raises(IndexError):
        read(x)
    x += 1
    with pytest.raises(IndexError):
        read(x)
    x[:2] = 5.0  # a part: still failed
    with pytest.raises(IndexError):
        read(x)
    x[...] = 3.0
    same(x, np.full(4, 3.0))
    x += 1
    same(x, np.full(4, 4.0))


# FL-05: numpy/numpy#27348, #3856 -----------------------------------------------------------------------------------


def test_fl05_a_numpy_value_on_the_left_hands_over_as_one_operation(session: il.Session) -> None:
    """NumPy looped over the other object element by element instead of handing over."""
    d0 = session.devices[1]
    host = np.arange(9, dtype="f4").reshape(3, 3)
    x = il.asarray(host, device=d0)
    lane = d0.lane
    cases = [
        lambda a: np.float64(2) * a,
        lambda a: np.ones(3) * a,
        lambda a: np.ones((3, 3)) @ a,
        lambda a: np.float32(1) - a,
        lambda a: np.int64(3) + a,
        lambda a: np.ones((3, 3), "f4") / (a + 1),
        lambda a: np.bool_(True) & (a > 2),
        lambda a: np.arange(3) < a,
        lambda a: np.float64(2) ** a,
        lambda a: np.maximum(np.ones(3), a),
        lambda a: divmod(np.float64(7), a + 1)[1],
    ]
    for case in cases:
        with session.lock:
            before = lane.first + len(lane.batch)
        made = case(x)
        assert type(made) is il.Array
        with session.lock:
            issued = lane.first + len(lane.batch) - before
        assert issued <= 6  # uploads, the operation, frees: never one for each element
        with np.errstate(all="ignore"):
            same(made, case(host))


# FL-07: pytorch/pytorch#127612 -------------------------------------------------------------------------------------


def test_fl07_the_users_data_may_change_on_the_next_line(session: il.Session) -> None:
    """The source was changed before an asynchronous copy had read it."""
    d0 = session.devices[1]
    h = np.ones(10**6, "f4")
    for _ in range(40):
        g = il.asarray(h, device=d0)
        h[-1] = -1
        last = g[-1]
        h[-1] = 1
        assert float(last) == 1
    key = [0, 1]
    x = il.arange(5, device=d0)
    y = x[key]
    key[0] = 4
    same(y, np.arange(5)[[0, 1]])
    shape = [2, 2]
    z = il.zeros(shape, device=d0)
    shape[0] = 7
    assert z.shape == (2, 2)


@pytest.mark.parametrize("n", [10, 10**5])
def test_fl07_an_array_may_change_on_the_line_after_its_transfer(session: il.Session, n: int) -> None:
    cpu, d0, d1 = session.devices
    for source, target in ((cpu, d0), (d0, d1), (d1, cpu)):
        h = il.ones(n, device=source)
        copies = []
        for i in range(40):
            copies.append(h.to(target))
            h[-1] = i
        for i, copy in enumerate(copies):
            assert float(copy[-1]) == max(i - 1, 0) + (i == 0)
            assert float(copy[0]) == 1


# FL-14: numpy/numpy#1683, #16749 -----------------------------------------------------------------------------------


def test_fl14_views_are_live(session: il.Session) -> None:
    """Code that looks like a swap is not one, and an asynchronous system must agree with NumPy."""

    def swap(a):  # type: ignore[no-untyped-def]
        a[0], a[1] = a[1], a[0]

    def rows(a):  # type: ignore[no-untyped-def]
        a[[0, 1]] = a[[1, 0]]

    def columns(a):  # type: ignore[no-untyped-def]
        a[:, 0], a[:, 1] = a[:, 1], a[:, 0]

    def divide(a):  # type: ignore[no-untyped-def]
        a /= a[0]

    def diagonal(a):  # type: ignore[no-untyped-def]
        t = a.T
        t[0] = 9
        a[1:] += t[:-1]

    def deep(a):  # type: ignore[no-untyped-def]
        v = a[::-1][:, ::-1]
        v[0, 0] = -1
        a *= 2
        v[1:] -= a[:1]

    for change in (swap, rows, columns, divide, diagonal, deep):
        for n in (2, 100):  # small, and large enough for shared memory
            host = np.arange(1.0, n * n + 1).reshape(n, n)
            for device in session.devices:
                x = il.asarray(host.copy(), device=device)
                expected = host.copy()
                change(x)
                change(expected)
                same(x, expected)


# FL-15: apache/mxnet#13234, #9681 ----------------------------------------------------------------------------------


def test_fl15_a_barrier_raises_what_failed_and_every_reader_sees_it(session: il.Session) -> None:
    """A barrier finished quietly although work had failed; of several outputs only the first reader saw the error."""
    cpu, d0, d1 = session.devices
    kept = [failing(d0), failing(d1)]
    with pytest.raises(IndexError, match="index 7") as raised:
        il.synchronize()
    assert any("also failed: IndexError" in note for note in raised.value.__notes__)
    il.synchronize()  # told once
    bad = failing(cpu) + 1
    first, second = divmod(bad, 2)
    for array in (first, second, first, second):
        with pytest.raises(IndexError, match="index 7"):
            read(array)
    il.synchronize()
    del kept


def test_fl15_closing_warns_once_of_what_nobody_read() -> None:
    script = """
        import warnings, interlock as il
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with il.connect(devices=["cpu:0"]):
                x = il.arange(5)[il.asarray([9])]
                y = [x + i for i in range(10)]
            il.connect(devices=["cpu:0"]).close()
        print([str(w.message) for w in caught])
    """
    done = run_script(script)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("failed operation whose error nobody read") == 1
    assert "index 9 is out of bounds" in done.stdout
    assert "x = il.arange(5)" in done.stdout


# FL-17: zeromq/pyzmq#102, #1002 ------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["", "raise SystemExit(3)", "raise RuntimeError('mine')"])
def test_fl17_a_program_with_unsent_messages_to_a_dead_worker_ends(ending: str) -> None:
    """With unsent messages and a dead peer, closing blocked for ever."""
    script = f"""
        import os, signal, interlock as il
        session = il.connect(devices=["cpu:0", "cpu:1"])
        x = il.ones(1000, device="cpu:1")
        il.synchronize()
        os.kill(session.pids["cpu:1"], signal.SIGKILL)
        try:
            for _ in range(100):
                x = x + 1
        except il.WorkerLost as error:
            print("issuing:", error)
        try:
            print(x)
        except il.WorkerLost as error:
            print("reading:", error)
        {ending}
    """
    done = run_script(script)
    assert "SIGKILL" in done.stdout
    assert "cpu:1" in done.stdout
    assert done.returncode == {"": 0, "raise SystemExit(3)": 3}.get(ending, 1)
    assert ("mine" in done.stderr) == ("mine" in ending)


# FL-18: zeromq/pyzmq#2043, #2094 -----------------------------------------------------------------------------------


def test_fl18_arrays_are_made_and_dropped_in_any_thread(session: il.Session) -> None:
    """A socket used from two threads aborted the process; finalizers run in any thread."""
    d0, d1 = session.devices[1:]
    errors: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            device = (d0, d1)[seed % 2]
            total = il.zeros(8, device=device)
            for i in range(800):
                x = il.full(8, float(i), device=device)
                ring = [x + 1]
                ring.append(ring)  # type: ignore[arg-type]  # a cycle: the garbage collector drops it, somewhere
                total += ring[0]
                if i % 100 == 0:
                    gc.collect()
            same(total, np.full(8, 800 * 801 / 2))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    x = il.ones(4, device=d0)
    while any(thread.is_alive() for thread in threads):
        x = x * 1.0
        same(x.to(d1), np.ones(4))
    for thread in threads:
        thread.join(HANG_S)
    assert not errors, errors


# FL-21: dask/distributed#3641 --------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [10, 5000])
def test_fl21_release_and_create_again_stay_in_order(session: il.Session, n: int) -> None:
    """Release and create again travelled on different paths and arrived in the wrong order."""
    device = session.devices[1]
    doomed: list[il.Array] = []
    stop = threading.Event()

    def drop() -> None:
        while not stop.is_set():
            if doomed:
                doomed.pop()

    dropper = threading.Thread(target=drop)
    dropper.start()
    checks = []
    for i in range(1500):
        a = il.ones(n, device=device)
        b = a + 1
        if i % 2:
            doomed.append(a)
        del a
        a = il.zeros(n, device=device)
        c = a + b
        if i % 50 == 0:
            checks.append(c)
    stop.set()
    dropper.join()
    for c in checks:
        same(c, np.full(n, 2.0))


# FL-23: nv-legate/cupynumeric#1110; numpy/numpy#6119 ---------------------------------------------------------------


@pytest.mark.parametrize("n", [8, 10_000, 20_000, 10**6])
def test_fl23_overlapping_slices_update_as_in_numpy(session: il.Session, n: int) -> None:
    """An in-place update from an overlapping slice was right for small arrays, wrong for large ones."""
    for device in session.devices:
        d = il.ones(n, device=device)
        d[1:] += d[:-1]
        d[1:] *= 0.5
        same(d, np.ones(n))
        e = il.arange(n, dtype="f8", device=device)
        e[2:] = e[:-2]
        e[:-1] = e[1:]
        expected = np.arange(n, dtype="f8")
        expected[2:] = expected[:-2].copy()
        expected[:-1] = expected[1:].copy()
        same(e, expected)


@pytest.mark.parametrize("n", [3, 100, 1000])
def test_fl23_adding_the_transpose_in_place_is_symmetric(session: il.Session, n: int) -> None:
    host = np.random.default_rng(n).random((n, n))
    for device in session.devices:
        h = il.asarray(host, device=device)
        h += h.T
        same(h, host + host.T)
        h[...] = h[::-1]
        same(h, (host + host.T)[::-1])


# FL-28: cupy/cupy#7820, #7938 --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "times"), [(1024, 300), (2 * 2**20, 12)])
def test_fl28_the_next_operation_does_not_overwrite_what_a_copy_still_reads(
    session: il.Session, n: int, times: int
) -> None:
    """A device-to-host copy ran on one stream while the next operation overwrote the source on another."""
    cpu, d0, _ = session.devices
    a = il.empty(n, dtype="f4", device=d0)
    copies = []
    for i in range(times):
        a[:] = i
        copies.append(a.to(cpu))
        a[:] = 0
        if len(copies) == 6:
            for k, y in enumerate(copies, i - 5):
                same(y, np.full(n, k, "f4"))
            copies.clear()


def test_fl28_a_read_behind_queued_in_place_operations_sees_exactly_those(session: il.Session) -> None:
    for device in session.devices:
        x = il.zeros(100_000, device=device)
        for round_ in range(1, 6):
            for _ in range(50):
                x += 1
            values = read(x)
            x += 1000
            assert (values == 50 * round_ + 1000 * (round_ - 1)).all()


# FL-32: numpy/numpy#6198 -------------------------------------------------------------------------------------------


def test_fl32_what_numpy_refuses_is_refused_at_the_line_and_nothing_is_sent(session: il.Session) -> None:
    """In-place operations that would lose the fraction must be refused, not cut off; and refused at the call."""
    device = session.devices[1]

    def host_and_ours(host: np.ndarray) -> tuple[np.ndarray, il.Array]:
        return host.copy(), il.asarray(host, device=device)

    def op(text: str, x: object) -> None:
        exec(text, {"x": x, "np": np})

    cases = [
        (np.arange(3), "x /= 2"),
        (np.arange(3), "x += 0.5"),
        (np.arange(3, dtype="u1"), "x += 300"),
        (np.arange(3, dtype="f4"), "x += 1j"),
        (np.zeros(3), "x += np.ones((2, 3))"),
        (np.zeros(3), "x[:2] = np.ones(3)"),
        (np.zeros((2, 3)), "x @ x"),
        (np.zeros(3), "x + np.ones(4)"),
        (np.zeros((2, 3)), "x.reshape(4)"),
        (np.zeros((2, 3)), "x[2]"),
        (np.zeros((2, 3)), "x[[0, 5]]"),
        (np.zeros((2, 3)), "x.sum(axis=2)"),
        (np.zeros(0), "x.max()"),
        (np.zeros(3), "x & 1"),
        (np.arange(3), "x ** -1"),
        (np.zeros((2, 3)), "x.transpose(0, 0)"),
        (np.ones(3, bool), "-x"),
    ]
    il.synchronize()
    for host, text in cases:
        expected, ours = host_and_ours(host)
        read(ours)
        with pytest.raises(Exception) as numpys:  # noqa: PT011
            op(text, expected)
        with session.lock:
            before = device.lane.first + len(device.lane.batch)
        with pytest.raises(type(numpys.value)):
            op(text, ours)
        with session.lock:
            sent = device.lane.first + len(device.lane.batch) - before
        assert sent <= 2, text  # a NumPy operand may have been uploaded, and dropped: no operation
        same(ours, expected)
    same(il.ones(3, device=device) + 1, np.full(3, 2.0))


# FL-57: ray-project/ray#369, #5592 ---------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [4, 100_000])
def test_fl57_what_a_read_gives_is_the_users_own(session: il.Session, n: int) -> None:
    """The value handed to the user was read-only."""
    for device in session.devices:
        a = il.arange(n, dtype="f8", device=device)
        for array in (a, a[1:], a.reshape(2, -1).T, a.reshape(2, -1)):
            x = read(array)
            kept = x.copy()
            assert x.flags.writeable
            x[0] = 7
            x += 1
            same(array, kept)
            assert np.asarray(array).flags.writeable


def run_script(script: str, timeout: float = HANG_S) -> subprocess.CompletedProcess[str]:
    """Run a program of its own, from a file so that its lines can be shown."""
    import tempfile

    with tempfile.NamedTemporaryFile("w", suffix=".py") as file:
        file.write(textwrap.dedent(script))
        file.flush()
        started = time.monotonic()
        process = subprocess.Popen(
            [sys.executable, file.name],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out, err = process.communicate()
            raise AssertionError(f"the program hung for {time.monotonic() - started:.0f} s\n{out}\n{err}") from None
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)
