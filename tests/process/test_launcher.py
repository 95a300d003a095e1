"""The `interlock` command, with real launchers, workers and programs."""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from interlock.coordinator.restarts import ENDS, PROVEN_S, Restarts
from interlock.deploy.cli import parse_bytes, show_bytes
from interlock.protocol.identity import own_identity

from .programs import (
    Program,
    address_of,
    becomes,
    gone,
    interlock,
    kill,
    launcher,
    program,
    run,
    run_python,
    runs,
)

USE = """
import sys
import interlock as il
with il.connect(address=sys.argv[1], devices=sys.argv[2] if len(sys.argv) > 2 else None) as session:
    for device in session.devices:
        x = il.ones((20_000,), device=device)
        print(device, session.pids[str(device)], float((x + 1).sum()))
"""


@pytest.fixture
def up(runtime: Path) -> Iterator[Program]:
    """A launcher of two workers that is starting."""
    with launcher("--devices", "cpu:0,cpu:1") as running:
        yield running
        running.signal(signal.SIGTERM)
        running.ended()


def status(address: str) -> dict[str, Any]:
    told = interlock("status", "--address", address, "--json")
    assert told.code == 0, told.err
    found: dict[str, Any] = json.loads(told.out)["launchers"][0]
    return found


def pids_of(address: str) -> list[int]:
    return [worker["pid"] for worker in status(address)["workers"]]


# -- up, status, down -------------------------------------------------------------------------------------------------


def test_up_serves_programs_until_down_and_leaves_nothing(runtime: Path) -> None:
    with launcher("--devices", "cpu:0,cpu:1", "--memory", "64MiB") as up:
        address = address_of(up)
        assert f"export INTERLOCK_ADDRESS={address}" in up.said
        found = status(address)
        assert [(w["device"], w["state"], w["memory"]) for w in found["workers"]] == [
            ("cpu:0", "serving", 64 << 20),
            ("cpu:1", "serving", 64 << 20),
        ]
        used = run_python(USE, address)
        assert used.out.splitlines() == [f"{w['device']} {w['pid']} 40000.0" for w in found["workers"]]
        down = interlock("down")
        assert (down.code, down.out) == (0, f"ended {address}\n")
        assert up.ended(1.0) == 0
        assert not any(runs(worker["pid"]) for worker in found["workers"])


def test_the_address_may_come_from_the_environment(up: Program) -> None:
    script = "import interlock as il; print((il.ones(3) + 1).tolist(), il.default_session())"
    used = run_python(script, env={"INTERLOCK_ADDRESS": address_of(up)})
    assert used.out == "[2.0, 2.0, 2.0] <interlock session: cpu:0, cpu:1>\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_launcher_and_its_workers(number: int, runtime: Path) -> None:
    with launcher("--devices", "cpu:0") as up:
        pids = pids_of(address_of(up))
        up.signal(number)
        assert up.ended() == 0
        assert up.errors() == ""
        assert not any(map(runs, pids))


def test_a_signal_during_start_up_leaves_nothing(runtime: Path) -> None:
    with launcher("--devices", "cpu:0,cpu:1") as up:
        becomes(lambda: list((runtime / "interlock").glob("*/w*.log")))
        up.signal(signal.SIGINT)
        assert up.ended() == 130
        assert up.errors() == ""


def test_the_workers_of_a_killed_launcher_end_and_take_its_folder_along(runtime: Path) -> None:
    with launcher("--devices", "cpu:0,cpu:1") as up:
        pids = pids_of(address_of(up))
        up.signal(signal.SIGKILL)
        assert gone(pids, 5.0)
        assert list((runtime / "interlock").iterdir()) == []


def test_a_busy_worker_does_not_delay_the_end_for_long(runtime: Path) -> None:
    script = """
import sys
import interlock as il
x = il.connect(address=sys.argv[1]).devices and il.ones((3000, 3000))
for _ in range(20):
    x = x @ x
il.default_session().lanes[0].flush()
print("issued", flush=True)
sys.stdin.read()
"""
    with launcher("--devices", "cpu:0") as up:
        address = address_of(up)
        with program(script, address) as busy:
            busy.line("issued")
            ended = interlock("down")
            assert (ended.code, ended.err) == (0, "")
            assert ended.seconds < 10
            assert busy.process.stdin is not None
            busy.process.stdin.close()
            busy.ended()
        assert up.ended() == 0


# -- supervision ------------------------------------------------------------------------------------------------------


def test_a_worker_that_dies_is_reported_and_replaced(up: Program) -> None:
    address = address_of(up)
    before = {worker["device"]: worker for worker in status(address)["workers"]}
    kill(before["cpu:1"]["pid"])
    assert up.line("the worker of cpu:1") == "the worker of cpu:1 was ended by SIGKILL"
    assert up.line() == "cpu:1: another one is started"
    up.line("cpu:1 serves")
    after = {worker["device"]: worker for worker in status(address)["workers"]}
    assert after["cpu:0"]["pid"] == before["cpu:0"]["pid"]
    assert after["cpu:1"]["restarts"] == 1
    assert after["cpu:1"]["pid"] != before["cpu:1"]["pid"]
    assert after["cpu:1"]["endpoint"] != before["cpu:1"]["endpoint"]
    assert not os.path.exists(before["cpu:1"]["endpoint"].removeprefix("ipc://"))
    assert run_python(USE, address).out.splitlines()[1] == f"cpu:1 {after['cpu:1']['pid']} 40000.0"


def test_the_last_lines_of_a_worker_that_dies_are_shown(up: Program) -> None:
    address = address_of(up)
    worker = status(address)["workers"][0]
    log = Path(worker["endpoint"].removeprefix("ipc://") + ".log")
    with log.open("a") as written:  # as an operation of the worker would write
        written.write("early words\n" * 1000 + "last words\n")
    kill(worker["pid"])
    assert up.line("ended by SIGKILL") == "the worker of cpu:0 was ended by SIGKILL; its last lines:"
    assert up.line("last words") == "  last words"
    up.line("cpu:0 serves")


def test_a_worker_that_ends_again_and_again_is_given_up_and_the_launcher_with_the_last(runtime: Path) -> None:
    with launcher("--devices", "cpu:0") as up:
        address = address_of(up)
        for _ in range(ENDS - 1):
            kill(pids_of(address)[0])
            up.line("cpu:0 serves")
        kill(pids_of(address)[0])
        up.line("it is not started again")
        assert up.ended() == 1
        assert up.errors() == "interlock: no worker is left: each ended again and again\n"


def test_a_worker_that_cannot_start_ends_the_launcher_with_the_reason(runtime: Path) -> None:
    done = interlock("up", "--devices", "sim:0,sim:1", "--options", '{"nonsense": 1}')
    assert done.code == 1
    assert re.match(r"interlock: the worker of sim:\d ended with exit code 1 at its start; its last lines:", done.err)
    assert re.search(r"sim:\d has no options \['nonsense'\]", done.err)


def test_short_lives_in_a_row_are_restarted_ever_later_and_then_no_more() -> None:
    restarts = Restarts()
    assert [restarts.ended(0.1) for _ in range(ENDS)] == [0.0, 0.5, 1.0, None]
    assert restarts.count == ENDS - 1


def test_a_long_life_starts_the_row_afresh() -> None:
    restarts = Restarts()
    for _ in range(10):
        assert [restarts.ended(PROVEN_S), restarts.ended(0.1)] == [0.0, 0.5]


# -- in the background ------------------------------------------------------------------------------------------------


def test_detach_returns_with_the_address_and_the_launcher_lives_on_alone(runtime: Path, tmp_path: Path) -> None:
    file = tmp_path / "address"
    started = interlock("up", "--devices", "cpu:0", "--detach", "--address-file", str(file))
    assert started.code == 0, started.err
    address = started.out.splitlines()[-1].removeprefix("address ")
    assert file.read_text() == address + "\n"
    found = status(address)
    assert os.getsid(found["pid"]) == found["pid"]  # no terminal's group reaches it
    log = Path(address.removeprefix("ipc://")).parent / "launcher.log"
    assert log.read_text().splitlines() == started.out.splitlines()
    assert run_python(USE, address).out == f"cpu:0 {found['workers'][0]['pid']} 40000.0\n"
    assert interlock("down").code == 0
    assert not file.exists()
    assert not runs(found["pid"])


def test_a_detached_launcher_that_cannot_start_tells_why(runtime: Path) -> None:
    started = interlock("up", "--devices", "sim:0", "--options", '{"nonsense": 1}', "--detach")
    assert started.code == 1
    assert "the launcher ended with exit code 1 at its start" in started.err
    assert "sim:0 has no options ['nonsense']" in started.err


def test_a_launcher_can_be_detached_by_a_program_without_standard_descriptors(runtime: Path, tmp_path: Path) -> None:
    file = tmp_path / "address"
    words = f"{sys.executable} -P -m interlock.deploy up --devices cpu:0 --detach --address-file {file}"
    assert run(["bash", "-c", f"exec {words} <&- >&- 2>&-"]).code == 0
    assert [worker["state"] for worker in status(file.read_text().strip())["workers"]] == ["serving"]
    assert interlock("down").code == 0


def test_a_log_file_of_ones_own_outlives_the_launcher(runtime: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert interlock("up", "--devices", "none", "--detach", "--log-file", str(log)).code == 0
    assert interlock("down").code == 0
    assert "address ipc://" in log.read_text()


# -- several launchers ------------------------------------------------------------------------------------------------


def test_all_launchers_are_found_and_the_dead_are_not(runtime: Path) -> None:
    none = ("--devices", "none")
    with launcher(*none) as first, launcher(*none) as second, launcher(*none) as dead:
        addresses = [address_of(first), address_of(second)]
        address_of(dead)
        dead.signal(signal.SIGKILL)
        dead.ended()
        found = json.loads(interlock("status", "--json").out)["launchers"]
        assert sorted(each["address"] for each in found) == sorted(addresses)
        assert len(list((runtime / "interlock").iterdir())) == 2
        ambiguous = interlock("down")
        assert ambiguous.code == 2
        assert all(address in ambiguous.err for address in addresses)
        assert interlock("down", "--address", addresses[0]).code == 0
        assert first.ended() == 0
        assert interlock("down", "--all").out == f"ended {addresses[1]}\n"
        assert second.ended() == 0


def test_a_note_of_a_process_id_that_is_anothers_now_is_no_launcher(runtime: Path) -> None:
    stale = runtime / "interlock" / f"p{os.getpid()}.{own_identity().start_time}.{own_identity().pid_namespace}-x"
    stale.mkdir(parents=True, mode=0o700)
    stale.parent.chmod(0o700)
    before = own_identity()._replace(start_time=own_identity().start_time - 1)
    (stale / "launcher.json").write_text(json.dumps({"address": f"ipc://{stale}/launcher", "identity": before}))
    assert interlock("status").code == 3


# -- mistakes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("status",), 3, "no launcher of this user runs here"),
        (("status", "--json"), 3, ""),
        (("down",), 3, "no launcher of this user runs here"),
        (("down", "--all"), 3, "no launcher of this user runs here"),
        (("status", "--address", "ipc:///nowhere/launcher"), 3, "no launcher answers at ipc:///nowhere/launcher"),
        (("down", "--address", "ipc:///nowhere/launcher"), 3, "no launcher answers at ipc:///nowhere/launcher"),
        (("status", "--address", "nonsense"), 1, "'nonsense' is not an address"),
        (("worker", "--device", "cpu:0"), 3, "no launcher of this user runs here"),
        (("worker", "--device", "cpu:0", "--address", "ipc:///nowhere/launcher"), 3, "no launcher answers at"),
        (("worker", "--device", "tpu:0"), 2, "'tpu:0' is not a device"),
        (("up", "--devices", "tpu:0"), 2, "'tpu:0' is not a device: use one of cpu, cuda, sim with a number"),
        (("up", "--devices", "cpu:x"), 2, "'cpu:x' is not a device"),
        (("up", "--devices", ""), 2, "'' is not a device"),
        (("up", "--devices", "cpu:0,cpu:0"), 2, "cpu:0 is named twice"),
        (("up", "--devices", "cpu:0", "--log-file", "x"), 2, "--log-file goes with --detach"),
    ],
)
def test_a_mistake_is_one_readable_line_with_its_exit_code(
    arguments: tuple[str, ...], code: int, words: str, runtime: Path
) -> None:
    done = interlock(*arguments)
    assert done.code == code
    assert words in done.err
    assert done.err.count("\n") == bool(words)
    assert done.seconds < 5


@pytest.mark.parametrize(
    "arguments",
    [(), ("nonsense",), ("up", "--memory", "lots"), ("up", "--options", "[1]"), ("down", "--all", "--address", "a")],
)
def test_words_that_are_not_understood_have_exit_code_2(arguments: tuple[str, ...]) -> None:
    done = interlock(*arguments)
    assert done.code == 2
    assert done.err.splitlines()[-1].startswith("interlock")


def test_all_gpus_of_a_machine_without_any_is_a_clear_error(runtime: Path) -> None:
    done = interlock("up", "--devices", "cuda:all", env={"CUDA_VISIBLE_DEVICES": ""})
    assert done.code == 2
    assert re.match(r"interlock: cuda:all: no GPU can be used here: \w+", done.err)


@pytest.mark.parametrize("command", ["up", "status", "down", "worker", "info", "keys"])
def test_the_help_of_every_command_has_examples_and_exit_codes(command: str) -> None:
    done = interlock(command, "--help")
    assert done.code == 0
    assert f"\n  interlock {command}" in done.out
    assert "exit codes:" in done.out


@pytest.mark.parametrize(
    ("command", "memory"),
    [
        ("up", "for each worker, such as 2GiB; default: together half of the machine's memory"),
        ("worker", "such as 2GiB; default: half of the machine's memory"),
    ],
)
def test_the_help_tells_how_much_memory_workers_get_and_that_no_gpu_can_be_driven(command: str, memory: str) -> None:
    words = " ".join(interlock(command, "--help").out.split())
    assert f"--memory N {memory} --options" in words
    assert "cuda:N is for GPUs, which this version cannot drive yet" in words


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [("2GiB", 2 << 30), ("500MB", 500_000_000), ("1.5g", 1_500_000_000), ("64 kib", 65536), ("4096", 4096)],
)
def test_sizes_are_read_as_people_write_them(text: str, nbytes: int) -> None:
    assert parse_bytes(text) == nbytes


@pytest.mark.parametrize("text", ["", "GiB", "-1", "1XiB", "2 G i B"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        parse_bytes(text)


def test_sizes_are_shown_as_people_read_them() -> None:
    assert [show_bytes(n) for n in (None, 0, 1023, 1536, 150 << 20, 3 << 40)] == [
        "-", "0 B", "1023 B", "1.5 KiB", "150 MiB", "3.0 TiB",
    ]  # fmt: skip


# -- workers of other supervisors -------------------------------------------------------------------------------------


def joining(*arguments: str) -> Program:
    return Program([sys.executable, "-P", "-m", "interlock.deploy", "worker", *arguments])


def test_a_worker_joins_a_launcher_for_as_long_as_it_lives(runtime: Path) -> None:
    with launcher("--devices", "none") as up:
        address = address_of(up)
        with joining("--device", "cpu:3") as worker:
            worker.line("cpu:3 serves at ipc://")
            assert up.line("joined") == f"cpu:3 has joined, pid {worker.pid}"
            assert run_python(USE, address).out == f"cpu:3 {worker.pid} 40000.0\n"
            assert "serving (joined)" in interlock("status").out
            worker.signal(signal.SIGTERM)
            assert worker.ended() == 0
        assert up.line("left") == f"cpu:3 has left, pid {worker.pid}"
        assert status(address)["workers"] == []
        interlock("down")
        up.ended()


def test_a_joined_worker_ends_when_its_launcher_does(runtime: Path) -> None:
    with launcher("--devices", "none") as up:
        address_of(up)
        with joining("--device", "cpu:0") as worker:
            worker.line("serves")
            up.signal(signal.SIGKILL)
            assert worker.ended() == 3
            assert re.match("interlock: the launcher at .* has ended, and so does the worker of cpu:0", worker.errors())
    interlock("status")  # sweeps what the killed launcher left


def test_a_worker_of_a_device_that_is_served_already_is_refused(up: Program) -> None:
    address = address_of(up)
    with joining("--device", "cpu:1", "--address", address) as worker:
        assert worker.ended() == 1
        assert worker.errors() == (
            f"interlock: the worker was refused: the launcher at {address} has a worker for cpu:1 already\n"
        )


def test_a_worker_may_have_a_folder_of_its_own(up: Program) -> None:
    address, folder = address_of(up), Path("/tmp") / f"il-worker-{up.pid}"
    try:
        with joining("--device", "cpu:2", "--address", address, "--folder", str(folder)) as worker:
            worker.line(f"cpu:2 serves at ipc://{folder}/cpu-2 for {address}")
            with joining("--device", "cpu:2", "--address", address, "--folder", str(folder)) as other:
                assert other.ended() == 1
                assert "another worker listens at" in other.errors()
            assert run_python(USE, address, "cpu:2").out == f"cpu:2 {worker.pid} 40000.0\n"
            worker.signal(signal.SIGINT)
            assert worker.ended() == 0
        assert list(folder.iterdir()) == []
        folder.chmod(0o755)
        with joining("--device", "cpu:2", "--address", address, "--folder", str(folder)) as open_to_all:
            assert open_to_all.ended() == 1
            assert "must belong to user" in open_to_all.errors()
    finally:
        folder.rmdir()


# -- info -------------------------------------------------------------------------------------------------------------


def test_info_tells_what_the_machine_has_and_why_something_is_missing() -> None:
    done = interlock("info", "--json")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert found["cpu"]["cores"] == len(os.sched_getaffinity(0))
    assert {"interlock", "python", "numpy", "pyzmq", "libzmq", "msgpack"} <= found["versions"].keys()
    assert bool(found["gpu"]["usable"]) != bool(found["gpu"]["why_none"])
    assert all(bool(way["how"]) != bool(way["why_not"]) for way in found["paths"])
    words = interlock("info").out
    expected = (found["versions"]["libzmq"], found["gpu"]["why_none"], "cpu to cpu", "/dev/shm")
    assert all(text in words for text in expected)


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_goes_away_is_no_error(unbuffered: str) -> None:
    line = f"set -o pipefail; {sys.executable} -m interlock.deploy info --json | true"
    done = run(["bash", "-c", line], env={"PYTHONUNBUFFERED": unbuffered})
    assert (done.code, done.err) == (0, "")
