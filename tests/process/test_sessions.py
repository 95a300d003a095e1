"""Sessions with real workers: what is refused, what is lost with whom, and who goes on."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import random
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import interlock as il
from interlock.coordinator import answers
from interlock.protocol import messages
from interlock.protocol.codec import encode
from interlock.protocol.sockets import Answers, Outlet, ipc

from .programs import address_of, becomes, gone, interlock, kill, launcher, program, run_python

SOON_S = 5.0  # a loss is known within a second; this is for a busy machine


@pytest.fixture
def session(runtime: Path) -> Iterator[il.Session]:
    with il.connect(devices=["cpu:0", "cpu:1", "cpu:2"]) as session:
        yield session


@pytest.fixture
def address(runtime: Path) -> Iterator[str]:
    """Of a launcher with two workers."""
    with launcher("--devices", "cpu:0,cpu:1") as up:
        yield address_of(up)
        up.signal(signal.SIGTERM)
        up.ended()


def values(x: il.Array) -> Any:
    return x.numpy(timeout=60.0).tolist()


# -- connecting -------------------------------------------------------------------------------------------------------


def test_an_address_where_nobody_listens_is_a_clear_error_at_once(runtime: Path) -> None:
    begun = time.monotonic()
    with pytest.raises(il.InterlockError, match="nobody listens at ipc:///nowhere/launcher: start workers with"):
        il.connect(address="ipc:///nowhere/launcher")
    assert time.monotonic() - begun < 2.0


def test_a_socket_that_a_dead_launcher_left_is_an_error_at_once(runtime: Path) -> None:
    endpoint = ipc(runtime, "launcher")
    Answers(endpoint).close()
    begun = time.monotonic()
    with pytest.raises(il.InterlockError, match="nobody listens"):
        il.connect(address=endpoint)
    assert time.monotonic() - begun < 2.0


def test_a_launcher_without_workers_is_a_clear_error(runtime: Path) -> None:
    with launcher("--devices", "none") as up:
        address = address_of(up)
        with pytest.raises(il.InterlockError, match=r"the launcher at ipc://.* has no workers"):
            il.connect(address=address)
        with pytest.raises(ValueError, match="has no worker for cpu:0: it has none at all"):
            il.connect(address=address, devices="cpu:0")
        up.signal(signal.SIGTERM)
        up.ended()


def test_what_is_no_address_is_refused(runtime: Path) -> None:
    with pytest.raises(ValueError, match="'nonsense' is not an address"):
        il.connect(address="nonsense")


@pytest.mark.parametrize("devices", [["tpu:0"], "tpu:0", ["cpu:x"], ["cpu:-1"], ["cpu:0:1"], [""], ["cpu:0", "cpu:²"]])
def test_a_name_that_is_no_device_is_refused(devices: Any, runtime: Path) -> None:
    with pytest.raises(ValueError, match="is not a device: use one of cpu, cuda, sim with a number, such as 'cpu:0'"):
        il.connect(devices=devices)


@pytest.mark.parametrize("devices", [[], ""])
def test_no_devices_at_all_are_refused(devices: Any, runtime: Path) -> None:
    with pytest.raises(ValueError, match="no devices: name at least one"):
        il.connect(devices=devices)


def test_a_device_named_twice_is_refused(runtime: Path) -> None:
    with pytest.raises(ValueError, match="cpu:0 is named twice"):
        il.connect(devices=["cpu:0", "cpu:1", "cpu"])


@pytest.mark.parametrize("wrong", [{"gate": "nowhere"}, {"window": 0}])
def test_a_wrong_option_leaves_no_workers(wrong: dict[str, Any], runtime: Path) -> None:
    with pytest.raises(ValueError, match="must be"):
        il.connect(devices=["cpu:0"], **wrong)
    assert Path(f"/proc/self/task/{os.getpid()}/children").read_text() == ""


def test_a_gpu_that_is_not_there_is_a_clear_error_and_leaves_nothing(
    runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(ValueError, match="cuda:0 cannot be used: this version of interlock drives no GPU"):
        il.connect(devices=["cpu:0", "cuda:0"])
    assert Path(f"/proc/self/task/{os.getpid()}/children").read_text() == ""


def test_a_device_that_the_session_lacks_is_a_clear_error(session: il.Session) -> None:
    refused: list[Callable[[], object]] = [
        lambda: il.ones(3, device="cpu:9"),
        lambda: il.ones(3).to("cpu:9"),
        lambda: session.device("cpu:9"),
    ]
    for make in refused:
        with pytest.raises(ValueError, match="no device 'cpu:9' in this session: it has cpu:0, cpu:1, cpu:2"):
            make()
    assert str(il.ones(3, device="cpu").device) == "cpu:0"


def test_a_device_that_the_launcher_lacks_is_a_clear_error(address: str) -> None:
    with pytest.raises(ValueError, match="has no worker for cpu:7: it has cpu:0, cpu:1"):
        il.connect(address=address, devices=["cpu:1", "cpu:7"])
    with il.connect(address=address, devices=["cpu:1"]) as chosen:
        assert list(map(str, chosen.devices)) == ["cpu:1"]
        assert values(il.ones(2) + 1) == [2.0, 2.0]


def test_operands_on_two_devices_are_refused_with_what_to_do(session: il.Session) -> None:
    x, y = il.ones(3, device="cpu:0"), il.ones(3, device="cpu:1")
    refused: list[Callable[[], object]] = [
        lambda: x + y,
        lambda: x @ y,
        lambda: il.concatenate([x, y]),
        lambda: np.add(x, y),
    ]
    for make in refused:
        with pytest.raises(ValueError, match=r"on different devices, cpu:0 and cpu:1: move one with .to\(\)"):
            make()
    with pytest.raises(ValueError, match="different devices"):
        x += y
    assert values(x + y.to("cpu:0")) == [2.0, 2.0, 2.0]


@pytest.mark.parametrize(
    ("patch", "words"),
    [
        ("m.PROTOCOL_VERSION = 99", "the program speaks protocol version 99, the worker of cpu:0 speaks {version}"),
        ("s.table_hash = lambda: b'other'", "the program and the worker of cpu:0 have different tables of operations"),
    ],
)
def test_a_program_of_another_version_is_refused_and_the_workers_serve_on(patch: str, words: str, address: str) -> None:
    script = f"""
import sys
import interlock as il
import interlock.coordinator.greetings as s
from interlock.protocol import messages as m
{patch}
try:
    il.connect(address=sys.argv[1])
except il.ProtocolError as error:
    print(error)
"""
    with il.connect(address=address) as before:
        x = il.ones(3, device="cpu:0")
        refused = run_python(script, address)
        assert refused.out.startswith(words.format(version=messages.PROTOCOL_VERSION))
        assert "install the same version of interlock on both sides" in refused.out
        assert refused.err == ""
        assert values(x + 1) == [2.0, 2.0, 2.0]
        with il.connect(address=address):
            assert values(il.ones(3, device="cpu:1") + 1) == [2.0, 2.0, 2.0]
        assert before.inspect()["cpu:0"]["arrays"] >= 1


def test_answers_that_are_no_launchers_are_a_clear_error(runtime: Path) -> None:
    endpoint = ipc(runtime, "impostor")
    answers = Answers(endpoint)

    def answer() -> None:
        answers.wait(30.0)
        asked = answers.poll()
        assert asked is not None
        answers.answer(asked[0], b"\xff hello")

    thread = threading.Thread(target=answer)
    thread.start()
    with pytest.raises(il.ProtocolError, match="not a launcher's answer"):
        il.connect(address=endpoint)
    thread.join()
    answers.close()


# -- a worker that dies -----------------------------------------------------------------------------------------------


def test_arrays_of_a_killed_worker_are_lost_and_the_others_are_not(session: il.Session) -> None:
    kept = il.arange(3, device="cpu:0")
    copied = il.arange(4, device="cpu:1").to("cpu:2")
    assert values(copied) == [0, 1, 2, 3]
    lost = il.ones(3, device="cpu:1")
    big = il.ones(100_000, device="cpu:1")
    borrowed = big.to("cpu:0")
    assert float(borrowed.sum()) == 100_000.0
    kill(session.pids["cpu:1"])
    begun = time.monotonic()
    with pytest.raises(il.WorkerLost, match=r"of cpu:1 was ended by SIGKILL.*; the arrays that it held are lost"):
        lost.numpy()
    assert time.monotonic() - begun < SOON_S
    assert values(kept + 1) == [1, 2, 3]
    assert values(copied) == [0, 1, 2, 3]
    assert float((borrowed + 1).sum()) == 200_000.0  # what a living worker had taken in is good
    with pytest.raises(il.WorkerLost, match="cpu:1 was ended by SIGKILL"):
        lost + 1
    with pytest.raises(il.WorkerLost, match="cpu:1 was ended by SIGKILL"):
        il.ones(3, device="cpu:1")
    with pytest.raises(il.WorkerLost, match="cpu:1 was ended by SIGKILL"):
        kept.to("cpu:1")
    with pytest.raises(il.WorkerLost, match="cpu:1 was ended by SIGKILL"):
        lost.to("cpu:0")
    with pytest.raises(il.WorkerLost, match="cpu:1 was ended by SIGKILL"):
        lost.numpy()
    assert values(kept.to("cpu:2") * 2) == [0, 2, 4]


def test_what_depends_on_a_stopped_worker_that_is_killed_is_lost(session: il.Session) -> None:
    """The transfer was issued and never came: its dependents on living workers are lost too, and nothing else."""
    os.kill(session.pids["cpu:1"], signal.SIGSTOP)
    x = il.ones(3, device="cpu:1") + 1
    y = x.to("cpu:0")
    dependent = (y * 2).to("cpu:2") + 1
    other = il.ones(3, device="cpu:0") + 5
    assert values(other) == [6.0, 6.0, 6.0]
    kill(session.pids["cpu:1"])
    begun = time.monotonic()
    for array in (dependent, y, x):
        with pytest.raises(il.WorkerLost, match="cpu:1 was ended by SIGKILL"):
            array.numpy()
    assert time.monotonic() - begun < SOON_S
    dependent[...] = 7  # written over in full, it is good again
    assert values(dependent) == [7.0, 7.0, 7.0]
    with pytest.raises(il.WorkerLost):
        session.synchronize()


def test_a_read_that_waits_for_a_worker_ends_when_the_worker_is_killed(session: il.Session) -> None:
    os.kill(session.pids["cpu:2"], signal.SIGSTOP)
    x = il.ones(3, device="cpu:2").to("cpu:0")
    found: list[BaseException] = []

    def wait() -> None:
        try:
            x.numpy()
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    with pytest.raises(TimeoutError):
        x.numpy(timeout=0.2)
    kill(session.pids["cpu:2"])
    thread.join(SOON_S)
    assert [type(error) for error in found] == [il.WorkerLost]


def test_a_value_in_memory_of_a_worker_that_died_meanwhile_is_lost(session: il.Session) -> None:
    x = il.ones(100_000, device="cpu:1")
    pending = session.ask(x._lane, x._ref, None)
    assert session.receiver.wait(pending, 60.0)
    kill(session.pids["cpu:1"])
    assert gone([session.pids["cpu:1"]], SOON_S)
    with pytest.raises(il.WorkerLost, match="the worker of cpu:1 was ended by SIGKILL"):
        answers.value(session, pending, x._spec)


def test_a_ticket_for_memory_of_a_worker_that_died_meanwhile_is_lost(session: il.Session) -> None:
    """The consumer finds out by itself, before the program has told it."""
    assert values(il.ones(3, device="cpu:1").to("cpu:0")) == [1.0, 1.0, 1.0]  # the way from one to the other is open
    os.kill(session.pids["cpu:0"], signal.SIGSTOP)
    y = il.ones(100_000, device="cpu:1").to("cpu:0") + 1
    assert values(il.ones(3, device="cpu:1")) == [1.0, 1.0, 1.0]  # the ticket has left
    lane = session.lanes[0]
    with session.lock:  # nobody can tell cpu:0
        lane.flush()
        kill(session.pids["cpu:1"])
        assert gone([session.pids["cpu:1"]], SOON_S)
        os.kill(session.pids["cpu:0"], signal.SIGCONT)
        becomes(lambda: lane.through() == lane.first - 1)
    with pytest.raises(il.WorkerLost, match="the worker of cpu:1 was ended by SIGKILL"):
        y.numpy()


@pytest.mark.parametrize("gate", ["worker", "coordinator"])
@pytest.mark.parametrize("n", [3, 100_000])
def test_a_worker_killed_at_any_moment_costs_what_lived_there_and_nothing_else(
    gate: str, n: int, runtime: Path
) -> None:
    chance = random.Random(n)
    for _ in range(3):
        with il.connect(devices=["cpu:0", "cpu:1"], gate=gate) as session:
            chain, apart = il.ones(n, device="cpu:0"), il.ones(5, device="cpu:0")
            threading.Timer(chance.random() * 0.05, kill, (session.pids["cpu:1"],)).start()
            try:
                for _ in range(300):
                    chain = (chain + 1).to("cpu:1").to("cpu:0")
                    apart = apart * 1
                assert float(chain.sum()) == n * 301.0
            except il.WorkerLost as error:
                assert "cpu:1 was ended by SIGKILL" in str(error)  # noqa: PT017
            assert values(apart) == [1.0] * 5
            assert gone([session.pids["cpu:1"]], 60.0)
            with pytest.raises(il.WorkerLost):
                session.synchronize(timeout=60.0)


def test_a_death_is_seen_where_the_kernel_gives_no_descriptor_for_it(
    runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(pid: int) -> int:
        raise PermissionError("as some containers do")

    monkeypatch.setattr(os, "pidfd_open", refuse)
    with il.connect(devices=["cpu:0", "cpu:1"]) as session:
        x = il.ones(3, device="cpu:1")
        assert values(x + 1) == [2.0, 2.0, 2.0]
        kill(session.pids["cpu:1"])
        with pytest.raises(il.WorkerLost, match="the worker of cpu:1 was ended by SIGKILL"):
            x.numpy()
        assert values(il.ones(3, device="cpu:0") + 1) == [2.0, 2.0, 2.0]


def test_a_program_whose_worker_was_killed_ends_soon(runtime: Path) -> None:
    script = """
import os, signal
import interlock as il
session = il.connect(devices=["cpu:0", "cpu:1"])
x = il.ones(3, device="cpu:1")
os.kill(session.pids["cpu:1"], signal.SIGKILL)
try:
    for _ in range(100):
        x = x + 1
    print(x)
except il.WorkerLost as error:
    print("lost:", error)
print(session.pids["cpu:0"], flush=True)
"""
    with program(script) as running:
        assert running.line().startswith("lost: the worker of cpu:1 was ended by SIGKILL")
        other = int(running.line())
        begun = time.monotonic()
        assert running.ended() == 0
        assert time.monotonic() - begun < SOON_S
        assert gone([other], 0.0)


def test_the_last_lines_of_a_killed_worker_are_in_the_error(session: il.Session) -> None:
    with (session._folder / "w1.log").open("a") as log:  # as an operation of the worker would write
        log.write("words before the end\n")
    kill(session.pids["cpu:1"])
    with pytest.raises(il.WorkerLost, match="its last lines:\n  words before the end"):
        il.ones(3, device="cpu:1").numpy()


def test_a_worker_that_the_launcher_replaced_is_there_for_the_next_session_only(runtime: Path) -> None:
    with launcher("--devices", "cpu:0,cpu:1") as up:
        address = address_of(up)
        with il.connect(address=address) as old:
            x, y = il.ones(3, device="cpu:0"), il.ones(3, device="cpu:1")
            assert values(y) == [1.0, 1.0, 1.0]
            kill(old.pids["cpu:1"])
            up.line("cpu:1 serves")
            with pytest.raises(il.WorkerLost, match="the worker of cpu:1 has ended"):
                y.numpy()
            with il.connect(address=address) as new:
                assert new.pids["cpu:1"] != old.pids["cpu:1"]
                assert values(il.ones(3, device="cpu:1") + 1) == [2.0, 2.0, 2.0]
            with pytest.raises(il.WorkerLost):
                y + 1
            assert values(x + 1) == [2.0, 2.0, 2.0]
        up.signal(signal.SIGTERM)
        up.ended()


# -- a ticket that does not come --------------------------------------------------------------------------------------


def test_a_read_of_what_does_not_come_says_what_it_waits_for_and_can_be_repeated(session: il.Session) -> None:
    x = il.ones(3, device="cpu:1")
    assert values(x) == [1.0, 1.0, 1.0]
    os.kill(session.pids["cpu:1"], signal.SIGSTOP)
    try:
        y = (x + 1).to("cpu:0") * 2
        with pytest.raises(TimeoutError, match=r"not ready after 0.3 s on cpu:0") as told:
            y.numpy(timeout=0.3)
        assert re.search(r"waits for cpu:1 \w+ at ", str(told.value))
        assert "y = (x + 1).to(" in str(told.value)  # the line that everything waits for
        assert values(il.ones(3, device="cpu:0") + 2) == [3.0, 3.0, 3.0]  # what does not depend on it goes on
        assert values(il.ones(3, device="cpu:2") + 3) == [4.0, 4.0, 4.0]
    finally:
        os.kill(session.pids["cpu:1"], signal.SIGCONT)
    assert values(y) == [4.0, 4.0, 4.0]


# -- several sessions and programs ------------------------------------------------------------------------------------


def test_two_sessions_in_one_program_have_arrays_of_their_own(runtime: Path) -> None:
    with il.connect(devices=["cpu:0", "cpu:1"]) as first:
        x = il.ones(3)
        with il.connect(devices=["cpu:0", "cpu:1"]) as second:
            y = il.ones(3) + 1
            assert (x.device.lane.session, y.device.lane.session) == (first, second)
            assert not set(first.pids.values()) & set(second.pids.values())
            assert values(x + 4) == [5.0, 5.0, 5.0]
            with pytest.raises(ValueError, match="operands belong to different sessions"):
                x + y
            with pytest.raises(ValueError, match="another session"):
                x.to(y.device)
        with pytest.raises(il.InterlockError, match="the session is closed"):
            y.numpy()
        with pytest.raises(il.InterlockError, match="the session is closed"):
            y + 1
        assert il.default_session() is first
        assert values((x + 1).to("cpu:1")) == [2.0, 2.0, 2.0]


SHARING = """
import sys
import interlock as il
with il.connect(address=sys.argv[1]) as session:
    total = il.zeros(1000, device="cpu:0")
    big = il.full(200_000, float(sys.argv[2]), device="cpu:1")
    print("connected", flush=True)
    sys.stdin.readline()
    for i in range(300):
        total += (il.full(1000, float(sys.argv[2]), device="cpu:1") + i).to("cpu:0")
        moved = big.to("cpu:0")
    print(float(total.sum()), float(moved.sum()), session.pids, flush=True)
    sys.stdin.readline()
"""


def test_programs_that_share_workers_have_arrays_of_their_own(address: str) -> None:
    with program(SHARING, address, "1") as first, program(SHARING, address, "2") as second:
        for running in (first, second):
            running.line("connected")
        for running in (first, second):
            running.tell()
        said = [running.line().split(maxsplit=2) for running in (first, second)]
        expected = [1000.0 * sum(number + i for i in range(300)) for number in (1, 2)]
        assert [float(words[0]) for words in said] == expected
        assert [float(words[1]) for words in said] == [200_000.0, 400_000.0]
        assert said[0][2] == said[1][2]  # the very same workers
        for running in (first, second):
            running.tell()
            assert (running.ended(), running.errors()) == (0, "")


def resident(address: str) -> list[int]:
    told = json.loads(interlock("status", "--address", address, "--json").out)
    return [worker["resident"] for worker in told["launchers"][0]["workers"]]


def test_the_arrays_of_a_killed_program_go_and_the_other_program_goes_on(address: str, runtime: Path) -> None:
    script = """
import sys
import interlock as il
session = il.connect(address=sys.argv[1])
held = [il.full(8_000_000, 1.0, device=device) for device in session.devices]
held += [x.to(session.devices[1 - i]) for i, x in enumerate(held)]
x = il.ones((1500, 1500))
print(held[0][0], held[1][0], held[2][0], held[3][0], flush=True)
for _ in range(20):
    x = x @ x
session.flush()
print("working", flush=True)
sys.stdin.read()
"""
    mib = 1 << 20
    with il.connect(address=address) as session:
        mine = il.arange(100_000, device="cpu:0")
        copy = mine.to("cpu:1")
        assert float(copy.sum()) == 4_999_950_000.0
        before, counted = resident(address), session.inspect()
        with program(script, address) as doomed:
            doomed.line("working")
            assert all(now > then + 60 * mib for now, then in zip(resident(address), before, strict=True))
            doomed.signal(signal.SIGKILL)
            doomed.ended()
        becomes(lambda: all(now < then + 30 * mib for now, then in zip(resident(address), before, strict=True)))
        assert session.inspect() == counted
        assert float((mine + 1).to("cpu:1").sum()) == 5_000_050_000.0
        assert float((copy + 1).sum()) == 5_000_050_000.0
        assert len(list((runtime / "interlock").iterdir())) == 2  # the launcher's and ours: the other's is swept


def test_a_killed_program_frees_a_worker_that_waits_for_it(address: str) -> None:
    """Its parked work goes with it: the worker is idle again for the others, and can be ended at once."""
    script = """
import os, signal, sys
import interlock as il
session = il.connect(address=sys.argv[1])
os.kill(session.pids["cpu:1"], signal.SIGSTOP)
x = il.ones(3, device="cpu:1").to("cpu:0")
for _ in range(50):
    x = x + 1
session.flush()
print(il.ones(3, device="cpu:0"), flush=True)
sys.stdin.read()
"""
    with program(script, address) as doomed:
        doomed.line("[1. 1. 1.]")
        doomed.signal(signal.SIGKILL)
        doomed.ended()
    told = json.loads(interlock("status", "--address", address, "--json").out)
    os.kill(told["launchers"][0]["workers"][1]["pid"], signal.SIGCONT)
    with il.connect(address=address):
        assert values((il.ones(3, device="cpu:1") + 1).to("cpu:0")) == [2.0, 2.0, 2.0]


def test_a_launcher_that_ends_loses_the_arrays_and_not_the_program(runtime: Path) -> None:
    with launcher("--devices", "cpu:0,cpu:1") as up:
        address = address_of(up)
        with il.connect(address=address):
            x = il.ones(3, device="cpu:0") + 1
            assert values(x) == [2.0, 2.0, 2.0]
            assert interlock("down").code == 0
            with pytest.raises(il.WorkerLost, match="the worker of cpu:0 has ended"):
                x.numpy()
        up.ended()
    with il.connect(devices=["cpu:0"]):
        assert values(il.ones(3) + 1) == [2.0, 2.0, 2.0]


def test_a_session_that_sends_nonsense_ends_alone(address: str) -> None:
    with il.connect(address=address) as good:
        x = il.ones(3, device="cpu:0") + 1
        assert values(x) == [2.0, 2.0, 2.0]
        for data in (b"", b"\xff", os.urandom(100), encode(messages.Hello(1, b"", b"", (), 0, "nonsense", {}))):
            stranger = Outlet(good.lanes[0].worker.endpoint)
            stranger.send(data)
            stranger.close()
        bad = il.connect(address=address)
        y = il.ones(3, device=bad.devices[1])
        assert values(y) == [1.0, 1.0, 1.0]
        bad.lanes[0].send(messages.Peers((True,)))  # type: ignore[arg-type]
        with pytest.raises(il.WorkerLost, match="what the session sent makes no sense here: TypeError"):
            il.ones(3, device=bad.devices[0]).numpy()
        z = y + 1  # held on to: with its FREE the lane would go on by itself
        assert values(z) == [2.0, 2.0, 2.0]
        bad.lanes[1].send(messages.Batch(bad.lanes[1].first, (), (7,)))  # type: ignore[arg-type]
        with pytest.raises(il.WorkerLost, match="what the session sent makes no sense here: TypeError"):
            y.numpy()
        bad.close()
        assert values((x + 1).to("cpu:1")) == [3.0, 3.0, 3.0]


def test_a_worker_keeps_nothing_of_the_programs_that_have_ended(address: str) -> None:
    script = """
import os, sys
import numpy as np
import interlock as il
session = il.connect(address=sys.argv[1])
x = il.asarray(np.ones(1_000_000), device="cpu:0")
print(float((x.to("cpu:1") + 1).sum()), flush=True)
if sys.argv[2] == "killed":
    os._exit(0)
"""

    def held() -> list[int]:
        return [Path(f"/proc/{pid}/maps").read_text().count("memfd:") for pid in pids]

    with il.connect(address=address) as session:
        pids = list(session.pids.values())
    for how in ("killed", "closed", "killed", "closed"):
        assert run_python(script, address, how).out == "2000000.0\n"
        becomes(lambda: held() == [0, 0])


# -- threads ----------------------------------------------------------------------------------------------------------


def test_threads_make_and_drop_arrays_while_another_reads(session: il.Session) -> None:
    before = {name: counts["arrays"] for name, counts in session.inspect().items()}
    failures: list[BaseException] = []

    def churn(number: int) -> None:
        try:
            device = session.devices[number % 3]
            kept = []
            for i in range(1500):
                x = il.full(4, float(number), device=device) + i
                kept.append([x])
                kept[-1].append(kept[-1])  # a cycle: only the collector drops it
                if len(kept) == 100:
                    assert float(kept[50][0][0]) == number + i - 49
                    kept.clear()
                    gc.collect(0)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=churn, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    rounds = 0
    while any(thread.is_alive() for thread in threads):
        rounds += 1
        assert values(il.full(3, float(rounds), device="cpu:1").to("cpu:2") * 2) == [2.0 * rounds] * 3
    for thread in threads:
        thread.join()
    assert failures == []
    assert rounds > 5
    gc.collect()
    becomes(lambda: {name: counts["arrays"] for name, counts in session.inspect().items()} == before)


def test_threads_that_wait_at_once_each_get_their_own(session: il.Session) -> None:
    arrays = [il.full(2, float(i), device=session.devices[i % 3]) for i in range(24)]
    found: list[Any] = [None] * len(arrays)

    def read(i: int) -> None:
        found[i] = [values(arrays[i] + j)[0] for j in range(20)]

    threads = [threading.Thread(target=read, args=(i,)) for i in range(len(arrays))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
    assert found == [[float(i + j) for j in range(20)] for i in range(len(arrays))]


# -- asyncio ----------------------------------------------------------------------------------------------------------


def test_many_arrays_are_awaited_at_once(session: il.Session) -> None:
    async def one(i: int) -> float:
        x = il.full((100, 100), float(i), device=session.devices[i % 3])
        for _ in range(5):
            x = (x + 1).to(session.devices[(i + 1) % 3])
        return float((await x)[0, 0])

    async def main() -> list[float]:
        return await asyncio.gather(*(one(i) for i in range(200)))

    assert asyncio.run(asyncio.wait_for(main(), 60.0)) == [i + 5.0 for i in range(200)]


def test_the_loop_runs_on_while_an_array_is_awaited(session: il.Session) -> None:
    async def main() -> tuple[int, list[float]]:
        os.kill(session.pids["cpu:1"], signal.SIGSTOP)
        x = il.ones(3, device="cpu:1").to("cpu:0") + 1

        async def read() -> list[float]:
            return (await x).tolist()  # type: ignore[no-any-return]

        reading = asyncio.create_task(read())
        ticks = 0
        while ticks < 100 and not reading.done():
            await asyncio.sleep(0)
            ticks += 1
        os.kill(session.pids["cpu:1"], signal.SIGCONT)
        return ticks, await reading

    assert asyncio.run(asyncio.wait_for(main(), 60.0)) == (100, [2.0, 2.0, 2.0])


def test_an_awaited_answer_is_taken_in_though_the_work_is_done(session: il.Session) -> None:
    async def main() -> list[float]:
        x = il.ones(3, device="cpu:1").to("cpu:0") + 1
        il.synchronize()
        reading = asyncio.ensure_future(_read(x))
        await asyncio.sleep(0)  # it has asked
        until = time.monotonic() + 0.02
        while time.monotonic() < until:  # the worker answers, and whoever looks how far it is finds it done
            pass
        return await reading

    for _ in range(30):
        assert asyncio.run(asyncio.wait_for(main(), 30.0)) == [2.0, 2.0, 2.0]


async def _read(x: il.Array) -> list[float]:
    return (await x).tolist()  # type: ignore[no-any-return]


def test_awaiting_a_failed_array_raises_its_error_and_the_others_arrive(session: il.Session) -> None:
    async def main() -> list[Any]:
        good = [il.ones(3, device=device) + 1 for device in session.devices]
        bad = [il.arange(5, device=d)[il.asarray([1, 7], device=d)].to("cpu:0") for d in session.devices]

        async def one(x: il.Array) -> Any:
            return await x

        return await asyncio.gather(*map(one, [*good, *bad]), return_exceptions=True)

    found = asyncio.run(asyncio.wait_for(main(), 60.0))
    assert [x.tolist() for x in found[:3]] == [[2.0, 2.0, 2.0]] * 3
    assert [type(error) for error in found[3:]] == [IndexError] * 3


def test_an_awaited_array_of_a_killed_worker_is_lost(session: il.Session) -> None:
    async def main() -> None:
        os.kill(session.pids["cpu:1"], signal.SIGSTOP)
        x = il.ones(3, device="cpu:1").to("cpu:2")
        waiting = asyncio.ensure_future(x._read_in_loop())
        await asyncio.sleep(0)
        kill(session.pids["cpu:1"])
        with pytest.raises(il.WorkerLost, match="SIGKILL"):
            await waiting

    asyncio.run(asyncio.wait_for(main(), 60.0))


def test_an_await_that_is_cancelled_leaves_the_session_usable(session: il.Session) -> None:
    async def main() -> list[float]:
        os.kill(session.pids["cpu:1"], signal.SIGSTOP)
        x = il.ones(100_000, device="cpu:1") + 1
        try:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(x._read_in_loop(), 0.2)
        finally:
            os.kill(session.pids["cpu:1"], signal.SIGCONT)
        return (await x)[:2].tolist()  # type: ignore[no-any-return]

    assert asyncio.run(asyncio.wait_for(main(), 60.0)) == [2.0, 2.0]
    becomes(lambda: session.inspect()["cpu:1"]["lent"] == 0)


def test_a_read_that_timed_out_gives_back_what_comes_for_it_later(session: il.Session) -> None:
    x = il.ones(100_000, device="cpu:1")
    os.kill(session.pids["cpu:1"], signal.SIGSTOP)
    try:
        for _ in range(3):
            with pytest.raises(TimeoutError):
                x.numpy(timeout=0.01)
    finally:
        os.kill(session.pids["cpu:1"], signal.SIGCONT)
    assert float(x.numpy().sum()) == 100_000.0
    becomes(lambda: session.inspect()["cpu:1"]["lent"] == 0)
