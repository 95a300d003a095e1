"""Faults that other systems had in the field: memory, back-pressure, limits of the machine, what workers print.

The names begin with the number of the case in the collection that they come from; the docstring names the report.
Tests without a number hold what belongs to the same promises.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import inspect
import itertools
import operator
import os
import resource
import shutil
import signal
import sys
import tempfile
import threading
from pathlib import Path

import numpy as np
import pytest

import interlock as il
from interlock.protocol import logs

from .programs import becomes, run, run_python
from .test_worker_life import customize

MIB = 1 << 20
HANG_S = 60.0  # generous: a deadline for a hang, not a measurement


def read(x: il.Array) -> np.ndarray:
    return x.numpy(timeout=HANG_S)


def resident(pid: int) -> int:
    """Bytes of memory that a process takes up, shared memory included."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def line_of(text: str) -> str:
    """`file:line` of the only line of the calling test that contains this."""
    frame = inspect.currentframe()
    assert frame is not None
    assert frame.f_back is not None
    lines, first = inspect.getsourcelines(frame.f_back.f_code)
    (at,) = [n for n, line in enumerate(lines, first) if text in line and "line_of(" not in line]
    return f"{__file__}:{at} "


def shortage(x: il.Array) -> str:
    """What the error of an array says for which there was no memory; the same at each read."""
    with pytest.raises(il.OutOfDeviceMemory) as first:
        read(x)
    with pytest.raises(il.OutOfDeviceMemory) as second:
        read(x + 1)
    assert str(first.value) == str(second.value)
    return str(first.value)


# -- who has the memory -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("device", "gate"), [("cpu:0", "worker"), ("sim:0", "worker"), ("cpu:0", "coordinator")])
def test_no_memory_names_the_largest_owners_by_line_and_size_and_is_over_when_one_is_dropped(
    device: str, gate: str
) -> None:
    with il.connect(device, memory=64 * MIB, gate=gate):
        big = il.ones((2000, 2000))  # owner A
        many = [il.full(2**17, float(i)) for i in range(12)]  # owner B
        wrong = big + 1  # does not fit
        text = shortage(wrong)
        assert text.startswith(f"{device} has no room for 30.5 MiB (float64[2000,2000]) issued at")
        assert line_of("# does not fit") in text
        assert "limit 64.0 MiB" in text
        told = text.partition("largest: ")[2].split("; ")
        assert told[0].startswith(f"30.5 MiB float64[2000,2000] made at {line_of('# owner A')}")
        assert told[1].startswith(f"12.0 MiB in 12 float64[131072] made at {line_of('# owner B')}")
        smaller = big[:500] + 1  # at once
        assert read(smaller)[-1, -1] == 2
        del big
        assert read(il.ones((2000, 2000))).sum() == 4e6
        assert [int(read(x)[-1]) for x in many] == list(range(12))
        del wrong


def test_views_lent_memory_transfers_and_recordings_are_told_of_by_the_line_that_made_them() -> None:
    with il.connect("cpu:0,cpu:1", memory=32 * MIB) as session:

        @il.capture
        def squares(x):  # type: ignore[no-untyped-def]
            twice = x @ x  # planned
            return twice @ twice  # kept

        there = il.ones((1000, 1000)).to("cpu:1")  # read in place
        row = il.ones((1000, 1000))[0]  # a view keeps all of it
        x = il.ones((1000, 1000))  # given
        kept = [squares(x) for _ in range(3)]
        text = shortage(kept[-1])
        assert "7.6 MiB array, dropped here and read in place by cpu:1 as the array made at " in text
        assert line_of("# read in place") in text
        assert line_of("# a view keeps all of it") in text
        assert f"made at {line_of('# given')}" in text
        assert read(row)[0] == 1
        del kept, row
        assert read(squares(x))[0, 0] == 1e9
        fill = [il.ones((1000, 1000), device="cpu:1") for _ in range(4)]  # fills the other
        assert read(il.ones((1000, 1000)).to("cpu:1"))[0, 0] == 1  # in place: it takes no room there
        text = shortage(fill[-1] + 1)
        assert text.startswith("cpu:1 has no room")
        assert f"30.5 MiB in 4 float64[1000,1000] made at {line_of('# fills the other')}" in text
        del fill, there
        with pytest.raises(il.OutOfDeviceMemory):
            session.synchronize()  # of those that nobody read


def test_uploads_that_find_no_room_say_which_are_held_on_to() -> None:
    with il.connect("cpu:0", memory=16 * MIB) as session:
        held: list[il.Array] = []
        with pytest.raises(il.OutOfDeviceMemory) as raised:
            held.extend(il.asarray(np.full(1 << 18, float(i))) for i in range(100))  # uploaded
        text = str(raised.value)
        assert text.startswith("the memory for uploads has no room for 2.0 MiB (float64[262144]) issued at")
        assert f"16.0 MiB in 8 data on cpu:0 made at {line_of('# uploaded')}" in text
        assert [int(read(x)[-1]) for x in held] == list(range(8))
        held.clear()
        assert read(il.asarray(np.ones(1 << 18)))[-1] == 1
        session.synchronize()


def test_a_loan_that_ends_in_a_move_and_an_array_that_is_taken_over_leave_no_line_behind() -> None:
    with il.connect("cpu:0,cpu:1") as session:
        for _ in range(30):
            x = il.ones(10_000)
            y = x.to("cpu:1")
            x += 1
            first, second = divmod(y, 2)
            assert read(second)[0] == 1
        del x, y, first, second
        read(il.ones(3, device="cpu:0"))
        read(il.ones(3, device="cpu:1"))
        assert [lane.owners for lane in session.lanes] == [{}, {}]


# -- small arrays -----------------------------------------------------------------------------------------------------


def test_very_many_small_arrays_stay_within_the_memory_too() -> None:
    with il.connect("cpu:0", memory=32 * MIB) as session:
        pid = session.pids["cpu:0"]
        x = il.arange(512.0)
        before = resident(pid)
        many = [x + i for i in range(12_000)]  # 48 MiB
        text = shortage(many[-1])
        assert "small arrays of 3" in text
        assert "in use by this session" in text
        assert resident(pid) - before < 48 * MIB  # what failed takes a little, too
        good = next(i for i in itertools.count(11_999, -1000) if _holds(many[i]))
        assert 6_000 < good < 8_500
        for i in (0, 500, 5_000, good):
            assert read(many[i]).tolist() == (np.arange(512.0) + i).tolist()
        uploaded = [il.asarray(np.full(1000, float(i))) for i in range(10)]
        assert isinstance(_error(uploaded[-1]), il.OutOfDeviceMemory)
        big = il.ones(4 * MIB // 8)
        assert isinstance(_error(big), il.OutOfDeviceMemory)
        del many
        assert read(il.ones(4 * MIB // 8)).sum() == 4 * MIB // 8
        again = [x * i for i in range(1_000)]
        assert read(again[-1])[-1] == 999 * 511
        del again, uploaded, big, x
        gc.collect()  # errors keep the frames in which they were raised
        with pytest.raises(il.OutOfDeviceMemory):
            session.synchronize()
        session.synchronize()
        counts = session.inspect()["cpu:0"]
        assert not any(counts.values()), counts


def _error(x: il.Array) -> Exception | None:
    try:
        read(x)
    except il.InterlockError as error:
        return error
    return None


def _holds(x: il.Array) -> bool:
    return _error(x) is None


# FL-63: google/turbinia#945; zephyrproject-rtos/zephyr#17287 --------------------------------------------------------

PRINTS = """
    import os
    import interlock.worker.kernels as kernels
    quiet = kernels.kernel
    def kernel(operation, xp):
        run = quiet(operation, xp)
        def shouting(*operands):
            for _ in range(int(os.environ["TIMES"])):
                print(("o" * 99 + "\\n") * 10_000)
                os.write(2, (b"e" * 99 + b"\\n") * 10_000)  # as foreign code does, past Python
            print("the last words of", os.environ["DEVICE"], flush=True)
            return run(*operands)
        return shouting if operation.name == "negative" else run
    kernels.kernel = kernel
    os.environ["DEVICE"] = sys.orig_argv[sys.orig_argv.index("--device") + 1]
"""
AT_THE_START = """
    print("s" * 1_000_000, flush=True)
    print("s" * 1_000_000, file=sys.stderr, flush=True)
"""


@pytest.mark.parametrize("device", ["cpu:0", "sim:0"])
def test_fl63_a_worker_that_prints_does_not_stall_and_its_last_words_are_told(
    runtime: Path, tmp_path: Path, device: str
) -> None:
    """A worker blocked in `print` because nobody read its output pipe."""
    script = f"""
import os, signal
import interlock as il
with il.connect({device!r}) as session:
    print((-il.ones(3)).tolist())
    log = session.logs[{device!r}].read_text()
    print(log.count("s" * 1_000_000), log.count("o" * 99), log.count("e" * 99))
    os.kill(session.pids[{device!r}], signal.SIGKILL)
    try:
        il.ones(3).numpy()
    except il.WorkerLost as error:
        print("the last words of {device}" in str(error), "oooo" in str(error) or "eeee" in str(error))
        print(len(str(error)) < 8000)
"""
    done = run_python(script, env={**customize(tmp_path, PRINTS + AT_THE_START), "TIMES": "1"})
    assert done.out.splitlines() == ["[-1.0, -1.0, -1.0]", "2 10000 10000", "True True", "True"], done.err


def test_fl63_what_a_worker_prints_is_bounded_and_the_end_of_it_is_kept(
    runtime: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {**customize(tmp_path, PRINTS), "TIMES": "20"}.items():
        monkeypatch.setenv(name, value)
    with il.connect("cpu:0") as session:
        log = session.logs["cpu:0"]
        for _ in range(3):  # 40 MB each
            assert read(-il.ones(3)).tolist() == [-1, -1, -1]
        becomes(lambda: log.stat().st_size <= logs.LONGEST)
        text = log.read_text()
        assert "bytes were left out here]" in text.splitlines()[0]
        assert text.endswith("the last words of cpu:0\n")
        assert "\0" not in text
        assert len(text) >= logs.KEPT // 2
        os.kill(session.pids["cpu:0"], signal.SIGKILL)
        with pytest.raises(il.WorkerLost, match="the last words of cpu:0"):
            read(il.ones(3))


# -- open files -------------------------------------------------------------------------------------------------------

FILES = """
import os, resource, sys
import numpy as np
import interlock as il
limit = int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, int(sys.argv[2])))
held = []
try:
    for n in range(40):
        held.append(il.connect("cpu:0"))
except il.InterlockError as error:
    print("refused after", len(held), error)
for session in held:
    with session:
        device = session.devices[0]
        x = [il.ones(1 << k, device=device) for k in (3, 16, 20)]
        y = il.asarray(np.ones(100_000), device=device)
        assert float((y + 1).sum()) == 200_000
        assert [float(each.sum()) for each in x] == [8, 65536, 1 << 20]
    print("worked")
left = sorted(os.listdir(os.environ["XDG_RUNTIME_DIR"] + "/interlock")) if held else []
print("left", left)
"""


@pytest.mark.parametrize(("limit", "hard", "least", "most"), [(6, 6, 0, 0), (32, 32, 0, 0), (64, 4096, 1, 3)])
def test_too_few_open_files_are_refused_before_anything_is_started(
    runtime: Path, limit: int, hard: int, least: int, most: int
) -> None:
    done = run_python(FILES, str(limit), str(hard))
    first, *others = done.out.splitlines()
    assert first.startswith("refused after "), done.err
    held = int(first.split()[2])
    assert least <= held <= most
    assert "open files" in first
    assert "ulimit -n" in first or "ulimit -Hn" in first
    assert others == ["worked"] * held + ["left []"], done.err
    assert done.code == 0


def test_segments_that_need_more_files_than_there_may_be_are_no_memory(runtime: Path) -> None:
    script = """
import resource
import interlock as il
with il.connect("cpu:0", memory=4 << 30) as session:
    hard = resource.prlimit(session.pids["cpu:0"], resource.RLIMIT_NOFILE)[1]
    resource.prlimit(session.pids["cpu:0"], resource.RLIMIT_NOFILE, (40, hard))
    many = [il.empty(5 << 20) for _ in range(60)]  # a segment each
    try:
        many[-1].numpy()
    except il.OutOfDeviceMemory as error:
        print("Too many open files (ulimit -n is 40)" in str(error), "40.0 MiB" in str(error))
    del many
    print(float(il.ones(5 << 20).sum()), float(il.ones(8).sum()))
    try:
        session.synchronize()
    except il.OutOfDeviceMemory:
        print("others failed, too")
    print(il.connect(address=None, devices="cpu:0").devices)
"""
    done = run_python(script)
    assert done.out.splitlines() == [
        "True True", "5242880.0 8.0", "others failed, too", "[<interlock device cpu:0>]"
    ], done.err  # fmt: skip


# FL-26: pytorch/pytorch#5040; ray-project/ray#4878, #7802 -----------------------------------------------------------

SHARED_MEMORY_FULL = """
import os, sys
import numpy as np
import interlock as il
devices = sys.argv[1]
with il.connect(devices, options={"arena": "shm"}) as session:
    first, second = session.devices
    def error_of(make):
        try:
            make().numpy()
        except il.OutOfDeviceMemory as error:
            return str(error)
    for kind, make in {
        "made": lambda: il.ones(100 * 2**17, device=first),
        "sent": lambda: il.ones(40 * 2**17, device=first).to(second) + 0,
        "uploaded": lambda: il.asarray(np.ones(100 * 2**17), device=first),
    }.items():
        text = error_of(make)
        size = "40.0 MiB" if kind == "sent" else "100.0 MiB"
        told = size in text and "/dev/shm holds 64.0 MiB" in text and "No space left on device" in text
        print(kind, told or text)
        small = il.ones(2**17, device=first)
        print(float(small.to(second).sum()), float(il.asarray(np.ones(2**17), device=second).to(first).sum()))
        del small
    try:
        session.synchronize()
    except il.OutOfDeviceMemory:
        pass
    print(len(session.pids), all(os.path.exists(f"/proc/{pid}") for pid in session.pids.values()))
print("left", os.listdir("/dev/shm"))
"""


@pytest.mark.parametrize("devices", ["cpu:0,cpu:1", "sim:0,cpu:0"])
def test_fl26_shared_memory_that_is_full_is_an_error_and_what_fits_works_at_once(runtime: Path, devices: str) -> None:
    """Shared memory full: the worker dies of a bus error, or the caller hangs."""
    if shutil.which("unshare") is None:
        pytest.skip("there is no unshare command here")
    mount = 'mount -t tmpfs -o size=64m tmpfs /dev/shm && echo mounted && exec "$0" -c "$1" "$2"'
    names = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
    done = run([*names, mount, sys.executable, SHARED_MEMORY_FULL, devices])
    if not done.out.startswith("mounted"):
        pytest.skip(f"a file system cannot be mounted here: {done.err}")
    works = "131072.0 131072.0"
    assert done.out.splitlines()[1:] == [
        "made True", works, "sent True", works, "uploaded True", works, "2 True", "left []"
    ], done.err  # fmt: skip
    assert done.code == 0, done.err


def test_fl26_memory_that_the_system_refuses_is_an_error_that_names_its_limit() -> None:
    with il.connect("cpu:0,cpu:1,sim:0") as session:
        for pid in session.pids.values():
            mapped = int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
            resource.prlimit(pid, resource.RLIMIT_AS, (mapped + 160 * MIB, resource.RLIM_INFINITY))
        for device, other in itertools.permutations(session.devices, 2):
            held = il.ones(60 * MIB // 8, device=device)  # held
            text = shortage(il.ones(120 * MIB // 8, device=device))
            assert "Cannot allocate memory (ulimit -v is " in text
            assert "has no room for 120.0 MiB (float64[15728640])" in text
            assert f"60.0 MiB float64[7864320] made at {line_of('# held')}" in text
            assert read(held[:8]).sum() == 8
            del held
            assert read(il.ones(MIB // 8, device=device).to(other)).sum() == MIB // 8
        gc.collect()
        with contextlib.suppress(il.OutOfDeviceMemory):
            session.synchronize()


# FL-08: apache/mxnet#8747, #8011 ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("device", "gate"), [("cpu:0", "worker"), ("sim:0", "worker"), ("cpu:0", "coordinator")])
def test_fl08_a_loop_that_never_reads_waits_for_a_worker_that_is_behind(device: str, gate: str) -> None:
    """A loop that never reads a value queued work without limit until memory ran out."""
    with il.connect(device, gate=gate, memory=256 * MIB) as session:
        pid = session.pids[device]
        x = il.ones(MIB)  # 8 MiB
        expected = np.float64(1)
        read(x[:1])
        before = resident(os.getpid())
        os.kill(pid, signal.SIGSTOP)
        going_on = threading.Timer(0.5, os.kill, (pid, signal.SIGCONT))
        going_on.start()
        blocked = 0
        for _ in range(300):
            x = x * 1.0001
            expected = expected * 1.0001
            if going_on.is_alive():
                blocked += 1
        assert blocked < 100  # the loop waited, after as much as the window takes
        going_on.join()
        counts = session.inspect()[device]
        assert counts["bytes"] <= 256 * MIB
        assert read(x[-1:]) == expected
        assert resident(os.getpid()) - before < 200 * MIB
        assert session.inspect()[device]["memory"] <= 2


MUCH = {
    "uploads": lambda session, host: il.asarray(host),
    "transfers": lambda session, host: session.made.to("cpu:1"),
    "there and back": lambda session, host: session.made.to("cpu:1").to("cpu:0"),
    "runs of a recording": lambda session, host: session.step(session.made),
    "reads into the program that are dropped": lambda session, host: session.made + 1,
}


@pytest.mark.parametrize("what", MUCH)
def test_fl08_nothing_grows_with_how_much_is_issued_and_never_read(what: str) -> None:
    with il.connect("cpu:0,cpu:1", memory=64 * MIB) as session:
        session.step = il.capture(lambda x: x * 1.5 + 0.5)  # type: ignore[attr-defined]
        session.made = il.ones(MIB // 8)  # type: ignore[attr-defined]
        host = np.ones(MIB // 8)
        last = MUCH[what](session, host)
        expected = read(last)[-1]
        before = [resident(pid) for pid in (os.getpid(), *session.pids.values())]
        for _ in range(700):
            last = MUCH[what](session, host)
        assert read(last)[-1] == expected
        after = [resident(pid) for pid in (os.getpid(), *session.pids.values())]
        assert all(now - then < 72 * MIB for now, then in zip(after, before, strict=True)), (before, after)
        del session.made, last  # type: ignore[attr-defined]
        session.synchronize()


# FL-52: zeromq/pyzmq#1899; gnuradio/gnuradio#6192 -------------------------------------------------------------------


@pytest.mark.parametrize(("device", "gate"), [("cpu:0", "worker"), ("sim:0", "worker"), ("cpu:0", "coordinator")])
def test_fl52_a_stopped_worker_runs_everything_once_and_in_order_when_it_goes_on(device: str, gate: str) -> None:
    """Queue limits drop messages in silence on some socket types; an unknown receiver is dropped in silence too."""
    with il.connect(device, gate=gate) as session:
        x = il.asarray([0.0, 1.0])
        read(x)
        pid = session.pids[device]
        os.kill(pid, signal.SIGSTOP)
        going_on = threading.Timer(0.5, os.kill, (pid, signal.SIGCONT))
        going_on.start()
        expected = np.asarray([0.0, 1.0])
        for i in range(4000):
            x *= 1.0 + (i % 3)  # neither order nor number may change
            x += i % 7
            x %= 1009.0
            expected = (expected * (1.0 + (i % 3)) + i % 7) % 1009.0
        assert read(x).tolist() == expected.tolist()
        going_on.join()


def test_fl52_what_is_issued_to_a_worker_that_has_left_is_an_error_and_not_silence() -> None:
    with il.connect("cpu:0,cpu:1") as session:
        x, y = il.ones(3, device="cpu:0"), il.ones(3, device="cpu:1")
        session.synchronize()
        os.kill(session.pids["cpu:1"], signal.SIGKILL)
        with pytest.raises(il.WorkerLost):
            functools.reduce(operator.iadd, itertools.repeat(1, 100_000), y)
        for lost in (lambda: read(y), lambda: read(x.to("cpu:1")), lambda: read(il.ones(3, device="cpu:1"))):
            with pytest.raises(il.WorkerLost):
                lost()
        assert read(x).tolist() == [1, 1, 1]


# -- a full disk ------------------------------------------------------------------------------------------------------

FULL_DISK = """
import errno, os, signal, subprocess, sys
import interlock as il
full = os.environ["XDG_RUNTIME_DIR"]
filling = os.open(full + "/fill", os.O_WRONLY | os.O_CREAT)
try:
    while True:
        os.write(filling, bytes(4096))
except OSError:
    pass
os.environ["TIMES"] = "1"
os.environ["AT_THE_START"] = "1"
try:
    il.connect("cpu:0")
except il.InterlockError as error:
    print(str(error).endswith("the log could not be written, as the disk is full"))
del os.environ["AT_THE_START"]
with il.connect("cpu:0,cpu:1") as session:
    x = il.ones(100_000, device="cpu:0")
    with il.trace() as traced:
        y = (x + 1).to("cpu:1")
        print(float(y.sum()))
    for write in (traced.write_timeline, traced.write_graph):
        try:
            write(full + "/drawn")
        except OSError as error:
            print(error.errno == errno.ENOSPC, error.filename == full + "/drawn", os.path.exists(full + "/drawn"))
    traced.write_timeline("/dev/shm/drawn")
    print(os.path.getsize("/dev/shm/drawn") > 1000)
    try:
        print(-x[:3])  # it prints, and its log cannot be written
    except OSError as error:
        print("the operation's own", error.errno in (None, errno.ENOSPC))
    print((x[:3] * 3).tolist())
up = [sys.executable, "-P", "-m", "interlock.deploy", "up", "--devices", "cpu:0", "--detach"]
done = subprocess.run([*up, "--address-file", full + "/address"], capture_output=True, text=True)
print(done.returncode, "No space left on device" in done.stdout + done.stderr)
print(sorted(os.listdir(full)), os.listdir(full + "/interlock"))
"""


def test_a_full_disk_is_an_error_where_something_is_written_and_no_trouble_besides(tmp_path: Path) -> None:
    if shutil.which("unshare") is None:
        pytest.skip("there is no unshare command here")
    mount = (
        "mount -t tmpfs -o size=256k,mode=700 tmpfs $XDG_RUNTIME_DIR && mount -t tmpfs -o size=8m tmpfs /dev/shm && "
        'echo mounted && exec "$0" -c "$1"'
    )
    names = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
    with tempfile.TemporaryDirectory(prefix="il-", dir="/tmp") as folder:  # short: it holds sockets
        at_the_start = "    if 'AT_THE_START' in os.environ: print('s' * 10_000, flush=True)\n"
        env = {**customize(tmp_path, PRINTS + at_the_start), "XDG_RUNTIME_DIR": folder, "TIMES": "1"}
        done = run([*names, mount, sys.executable, FULL_DISK], env=env)
    if not done.out.startswith("mounted"):
        pytest.skip(f"a file system cannot be mounted here: {done.err}")
    assert done.out.splitlines()[1:] == [
        "True", "200000.0", "True True False", "True True False", "True", "the operation's own True", "[3.0, 3.0, 3.0]",
        "1 True", "['fill', 'interlock'] []",
    ], done.err  # fmt: skip
