"""Workers over tcp: on this machine, where memory is shared, and on another, where arrays travel inside messages."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import interlock as il
from interlock.protocol import keys
from interlock.protocol import messages as m
from interlock.protocol.codec import decode, encode
from interlock.protocol.identity import own_identity
from interlock.protocol.letters import Letters
from interlock.protocol.operations import BY_NAME, table_hash
from interlock.protocol.sockets import Events, Outlet, ipc
from interlock.protocol.tcp import Link, Listening, listening_endpoint, new_pair

from .far import far_worker, inner_pid, listening, own_keys
from .programs import Program, address_of, becomes, kill, program

SILENCE_S = 6.0  # within which a worker that says nothing any more is lost, on a machine that is not busy


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("keys")


@pytest.fixture
def own(runtime: Path, folder: Path) -> Path:
    return own_keys(folder)


@pytest.fixture
def up(own: Path) -> Iterator[Program]:
    """A launcher with two workers, reached over tcp."""
    with listening("cpu:0,cpu:1", own) as up:
        yield up
        up.signal(signal.SIGTERM)
        up.ended()


def exercise(session: il.Session) -> None:
    """A program over all devices: uploads, transfers, views, in-place writes, a capture, a failure; small and large."""
    first = session.devices[0]
    for size in (5, 50_000):
        host = np.arange(float(size))
        x = il.asarray(host, device=first)
        host[:] = -1
        for device in session.devices[1:]:
            y = x.to(device)
            y[::2] += 1
            z = (y.to(first) * 2)[1:]
            expected = np.arange(float(size))
            expected[::2] += 1
            np.testing.assert_array_equal(z.numpy(timeout=60.0), (expected * 2)[1:])
            np.testing.assert_array_equal(il.asarray(expected, device=device).numpy(timeout=60.0), expected)
            np.testing.assert_array_equal(x.numpy(timeout=60.0), np.arange(float(size)))
        step = il.capture(lambda a: (a.to(session.devices[-1]) * 3 + 1).to(first))
        for n in range(3):
            result = step(il.full(size, float(n), device=first))
            np.testing.assert_array_equal(result.numpy(timeout=60.0), np.full(size, 3.0 * n + 1))
    wrong = il.arange(5, device=session.devices[-1])[il.asarray([1, 7], device=session.devices[-1])]
    with pytest.raises(IndexError, match="out of bounds"):
        (wrong.to(first) + 1).numpy(timeout=60.0)


# -- on one machine ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gate", ["worker", "coordinator"])
def test_a_program_over_tcp_is_as_any_other_and_memory_is_shared(gate: str, up: Program, own: Path) -> None:
    with il.connect(address=address_of(up), keys=own, gate=gate) as session:
        assert all(lane.shares for lane in session.lanes)
        exercise(session)
        x = il.ones(100_000, device="cpu:0").to("cpu:1")
        il.synchronize()
        assert session.inspect()["cpu:1"]["borrowed"] == 1  # it lies in the other's memory
        del x


def test_a_worker_that_is_killed_costs_what_lived_there(up: Program, own: Path) -> None:
    with il.connect(address=address_of(up), keys=own) as session:
        x, y = (il.ones(50_000, device=device) for device in session.devices)
        z = y.to("cpu:0")
        assert float(z.sum()) == 50_000.0
        kill(session.pids["cpu:1"])
        with pytest.raises(il.WorkerLost, match="the worker of cpu:1"):
            (y + 1).numpy(timeout=60.0)
        assert float((x + z).sum()) == 100_000.0


def test_a_program_may_use_several_launchers_and_local_workers_at_once(up: Program, own: Path) -> None:
    address = address_of(up)
    with il.connect(address=address, keys=own) as far, il.connect(devices=["cpu:0"]) as near:
        with il.connect(address=address, keys=own, devices="cpu:1") as second:
            assert float(il.ones(3, device=second.devices[0]).sum()) == 3.0
        for session in (far, near, far):
            x = il.ones(40_000, device=session.devices[0])
            assert float((x + 1).sum()) == 80_000.0


def test_keys_may_come_from_the_environment(up: Program, own: Path) -> None:
    script = "import interlock as il; print((il.ones(2) + 1).tolist())"
    env = {"INTERLOCK_ADDRESS": address_of(up), "INTERLOCK_KEYS": str(own)}
    with program(script, env=env) as running:
        assert running.line() == "[2.0, 2.0]"
        assert running.ended() == 0


# -- on another -------------------------------------------------------------------------------------------------------


def test_arrays_travel_inside_messages_where_no_memory_is_shared(own: Path) -> None:
    with listening("cpu:0", own) as up:
        address = address_of(up)
        with far_worker("cpu:1", address, own) as one, far_worker("sim:0", address, own) as other:
            for each in (one, other):
                each.line("serves at tcp://")
            with il.connect(address=address, keys=own) as session:
                assert {str(lane.device): lane.shares for lane in session.lanes} == {
                    "cpu:0": True,
                    "cpu:1": False,
                    "sim:0": False,
                }
                exercise(session)
                for device in session.devices[1:]:  # more than a window of it: credit comes by messages alone
                    x = il.zeros(100, device=device)
                    for _ in range(3000):
                        x += 1
                    assert float(x[0]) == 3000.0
                x = il.ones(1 << 20, device="sim:0").to("cpu:1").to("cpu:0")
                assert float(x.sum()) == 1 << 20
                counts = session.inspect()
                assert [counts[name]["lent to workers"] for name in counts] == [0, 0, 0]
            with il.connect(address=address, keys=own, gate="coordinator") as session:
                exercise(session)
            _end(up, one, other)


def test_a_far_worker_that_falls_silent_or_ends_is_lost_and_the_others_go_on(own: Path) -> None:
    with listening("cpu:0", own) as up:
        address = address_of(up)
        with far_worker("cpu:1", address, own) as silent, far_worker("cpu:2", address, own) as killed:
            for each in (silent, killed):
                each.line("serves at tcp://")
            with il.connect(address=address, keys=own):
                x, y, z = (il.ones(5, device=f"cpu:{n}") for n in range(3))
                il.synchronize()
                os.kill(inner_pid(silent), signal.SIGSTOP)
                becomes(lambda: state(inner_pid(silent)) == "T")
                try:
                    with pytest.raises(il.WorkerLost, match=r"the worker of cpu:1 .*silent for 5 s"):
                        (y + 1).to("cpu:0").numpy(timeout=5 * SILENCE_S)
                    assert up.line("left").startswith("cpu:1 has left")
                finally:
                    os.kill(inner_pid(silent), signal.SIGCONT)
                assert (x + z.to("cpu:0")).tolist() == [2.0] * 5
                kill(inner_pid(killed))
                with pytest.raises(il.WorkerLost, match="the worker of cpu:2"):
                    (z + 1).numpy(timeout=5 * SILENCE_S)
                assert (x + 1).tolist() == [2.0] * 5
            _end(up, silent)


def test_ctrl_c_and_explain_need_no_shared_page(own: Path) -> None:
    with listening("cpu:0", own) as up:
        address = address_of(up)
        with far_worker("cpu:1", address, own) as far:
            far.line("serves at tcp://")
            with il.connect(address=address, keys=own):
                x = il.full((400, 400), 1 / 400, device="cpu:1")
                il.synchronize()
                kept = x + 1
                for _ in range(400):  # many batches: what is in the one that runs is not dropped
                    x = x @ x
                y = np.unique(x[0].to("cpu:0"))
                assert "waits for cpu:1" in str(il.explain(y))
                timer = threading.Timer(0.3, signal.pthread_kill, (threading.get_ident(), signal.SIGINT))
                timer.start()
                with pytest.raises(KeyboardInterrupt):
                    y.numpy()
                timer.join()
                for each in (x, y):
                    with pytest.raises(il.Cancelled):
                        each.numpy()
                assert kept.to("cpu:0")[0, 0].item() == 1 + 1 / 400
            _end(up, far)


def state(pid: int) -> str:
    """As the kernel names it: T for a process that is stopped."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_worker_lets_go_of_a_far_program_that_was_killed(up: Program, own: Path) -> None:
    script = """
import sys
import interlock.protocol.identity as identity
identity._boot_id = lambda: "another"  # as on another machine: the worker cannot see this process
import interlock as il
session = il.connect(address=sys.argv[1], keys=sys.argv[2])
x = il.ones(1_000_000, device="cpu:0")
print(float(x.sum()), flush=True)
sys.stdin.read()
"""
    address = address_of(up)
    with il.connect(address=address, keys=own) as session:
        pid = session.pids["cpu:0"]

        def held() -> int:
            return Path(f"/proc/{pid}/maps").read_text().count("memfd:")

        before = held()
        with program(script, address, str(own)) as far:
            assert far.line() == "1000000.0"
            assert held() > before
            far.signal(signal.SIGKILL)
            far.ended()
            becomes(lambda: held() == before)
        assert float((il.ones(3, device="cpu:0") + 1).sum()) == 6.0


def test_a_worker_that_cannot_reach_another_is_told_of_and_nobody_waits_for_ever(up: Program, own: Path) -> None:
    with il.connect(address=address_of(up), keys=own) as session:
        x = il.ones(3, device="cpu:0")
        il.synchronize()
        told = Outlet(session._events.inproc, events=True)
        told.send(encode(m.Unreachable(0, 1, "has closed its connection")))
        told.close()

        def goes_on_until_told() -> None:
            for _ in range(1000):
                il.ones(3, device="cpu:1").to("cpu:0").numpy(timeout=60.0)

        with pytest.raises(il.WorkerLost, match="cpu:1 cannot be reached from cpu:0: has closed its connection"):
            goes_on_until_told()
        assert (x + 1).tolist() == [2.0] * 3


def test_a_worker_without_keys_or_without_tcp_cannot_join(up: Program, own: Path, tmp_path: Path) -> None:
    address = address_of(up)
    with far_worker("cpu:7", address, own_keys(tmp_path / "others")) as stranger:
        assert stranger.ended() == 3
        assert "does not accept the key" in stranger.errors()


def _end(up: Program, *workers: Program) -> None:
    up.signal(signal.SIGTERM)
    assert up.ended() == 0
    for worker in workers:
        worker.ended()


# -- what may not be done with a key that is let in -------------------------------------------------------------------


class Raw:
    """Somebody who speaks the protocol by hand."""

    def __init__(self, where: str, own: Path, folder: Path, **changes: object) -> None:
        pair = keys.load(own).client
        assert pair is not None
        self.id = os.urandom(16)
        self.events = Events(ipc(folder, "events"), f"inproc://raw-{self.id.hex()}")
        self.outlet = Outlet(where, name=b"s" + self.id, link=Link(pair))
        me, heard_at = tuple(own_identity()), self.events.endpoint
        if where.startswith("tcp://"):
            heard_at = self.events.listen(Listening("tcp://127.0.0.1:0", new_pair(), lambda public: True))
        hello = m.Hello(m.PROTOCOL_VERSION, table_hash(), self.id, me, 0, heard_at, {})
        self.outlet.send(encode(hello._replace(**changes)))

    def hears(self) -> object:
        heard = self.events.receive(30.0)
        assert heard is not None
        return decode(heard)

    def close(self) -> None:
        self.outlet.close()
        self.events.close()


@pytest.fixture
def session(up: Program, own: Path) -> Iterator[il.Session]:
    with il.connect(address=address_of(up), keys=own) as session:
        yield session


def test_nobody_from_elsewhere_stops_a_worker_or_tells_it_that_a_program_has_ended(
    session: il.Session, own: Path, runtime: Path, tmp_path: Path
) -> None:
    x = il.ones(3, device="cpu:0")
    local = ipc(next((runtime / "interlock").glob("*/w0.1")).parent, "w0.1")
    letters = Letters(local)
    for message in (m.Stop(), m.Lost(session.id, "forged"), m.Goodbye()):
        assert letters.send(encode(message))
    letters.close()
    for where in (session.lanes[0].worker.endpoint, local):
        raw = Raw(where, own, tmp_path)
        assert type(raw.hears()) is m.Welcome
        if where != local:  # whoever may enter the folder may kill the worker as well
            raw.outlet.send(encode(m.Stop()))
        raw.outlet.send(encode(m.Lost(session.id, "forged")))
        raw.outlet.send(encode(m.Inspect(1)))
        assert type(raw.hears()) is m.Inspected  # so all before it has been heard
        raw.close()
        again = Raw(where, own, tmp_path)  # a worker that was told to stop would be gone before
        assert type(again.hears()) is m.Welcome
        again.close()
        assert (x + 1).to("cpu:1").tolist() == [2.0] * 3


def test_a_session_reaches_no_array_of_another(session: il.Session, own: Path, runtime: Path, tmp_path: Path) -> None:
    x = il.full(50_000, 7.0, device="cpu:0")
    y = x.to("cpu:1")
    assert float(y.sum()) == 350_000.0
    local = ipc(next((runtime / "interlock").glob("*/w0.1")).parent, "w0.1")
    raw = Raw(local, own, tmp_path)
    assert type(raw.hears()) is m.Welcome
    buffer = x._ref
    batch = m.Batch(1, (), ((m.Control.READ, buffer, 1), (m.Control.FREE, buffer), (m.Control.READ, buffer, 2)))
    raw.outlet.send(encode(batch))
    raw.outlet.send(encode(m.Returned(tuple(range(-50, 50)))))  # loans of the other session are not its to end
    raw.outlet.send(encode(m.Taken(raw.id, 1, (buffer, (1 << m.TICKET_BITS) | buffer))))
    answers = []
    while len(answers) < 2:
        heard = raw.hears()
        assert not isinstance(heard, m.Refused), heard
        if isinstance(heard, m.Value):
            answers.append(heard)
    assert all(answer.place is None and answer.failure is not None for answer in answers)
    raw.close()
    assert float((x + y.to("cpu:0")).sum()) == 700_000.0


@pytest.mark.parametrize("endpoint", ["inproc://x", "ipc:///tmp/x", "tcp://127.0.0.1:9", "pgm://x", "", "nonsense"])
def test_a_far_session_cannot_send_a_worker_anywhere(
    endpoint: str, session: il.Session, own: Path, tmp_path: Path
) -> None:
    raw = Raw(session.lanes[0].worker.endpoint, own, tmp_path, events=endpoint)
    assert (il.ones(3, device="cpu:0") + 1).tolist() == [2.0] * 3
    raw.close()


@pytest.mark.parametrize("lane", [-1, 256, 1 << 62])
def test_a_session_that_tells_nonsense_about_itself_is_refused(
    lane: int, session: il.Session, own: Path, runtime: Path, tmp_path: Path
) -> None:
    local = ipc(next((runtime / "interlock").glob("*/w0.1")).parent, "w0.1")
    raw = Raw(local, own, tmp_path, lane=lane)
    heard = raw.hears()
    assert isinstance(heard, m.Refused)
    assert "makes no sense" in heard.reason
    raw.close()
    assert (il.ones(3, device="cpu:0") + 1).tolist() == [2.0] * 3


@pytest.mark.parametrize("device", ["cpu:0", "sim:0"])
@pytest.mark.parametrize("dtype", ["O", "|O", "|V8", "<U4", ">f8", "<M8[s]", "O,O", "f8,f8", "x"])
def test_bytes_are_never_taken_for_objects(dtype: str, device: str, local: dict[str, str], tmp_path: Path) -> None:
    """NumPy would make an array of objects over anybody's bytes: pointers to anywhere."""
    forged = [
        (m.Control.UPLOAD, 1, 1, bytes(8)),
        (m.Control.UPLOAD, 2, 2, bytes(8)),
        (m.Control.READ, (2, 0, (1,), (8,), dtype), 1),
        (4 * 83 + m.GENERAL, 3, (2,), (2, (dtype, b"12345678")), (), None),
        (m.Control.FENCE, 2),
    ]
    raw = Raw(local[device], Path(local["keys"]), tmp_path)
    assert type(raw.hears()) is m.Welcome
    raw.outlet.send(encode(m.Batch(1, ((2, (1,), "<f8", (8,)),), tuple(forged[1:]))))
    heard = raw.hears()
    while not (isinstance(heard, m.Value) and heard.request == 1):
        heard = raw.hears()
    assert heard.place is None
    assert heard.failure is not None
    raw.outlet.send(encode(m.Batch(5, ((1, (1,), dtype, (8,)),), tuple(forged))))
    while not isinstance(heard, m.Refused):  # an array of that is no instruction's failure, it makes no sense
        heard = raw.hears()
    raw.close()


NAMED = 4 * BY_NAME["named"].number + m.GENERAL


@pytest.mark.parametrize(
    "forged",
    [
        (m.Control.FREE, {}),
        (m.Control.FREE, 2.5),
        (4 * 83 + m.SCALAR_RIGHT, 3, 2, 2, {}),
        (4 * 83 + m.SCALAR_RIGHT, "x", 2, 2, 1.0),
        (NAMED, 3, (2,), (2,), (), None),
        (NAMED, 3, (2,), (2,), ("negative", 7), None),
        (NAMED, 3, (2,), (2,), ("negative", (("(", ("@", 0)), ("{", "dtype", "O"))), None),
    ],
    ids=str,
)
@pytest.mark.parametrize("device", ["cpu:0", "sim:0"])
def test_an_instruction_that_makes_no_sense_is_not_the_end_of_a_device(
    forged: tuple[object, ...], device: str, local: dict[str, str], tmp_path: Path
) -> None:
    """What raised in a device's queue ended the device, for every session on it."""
    raw = Raw(local[device], Path(local["keys"]), tmp_path)
    assert type(raw.hears()) is m.Welcome
    make = (m.Control.UPLOAD, 2, 2, bytes(8))
    raw.outlet.send(encode(m.Batch(1, ((2, (1,), "<f8", (8,)),), (make, forged, (m.Control.FENCE, 1)))))
    heard = raw.hears()
    while not isinstance(heard, (m.Value, m.Refused)):
        heard = raw.hears()
    assert not (isinstance(heard, m.Refused) and "is broken" in heard.reason), heard
    raw.close()


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The endpoints of workers of this program."""
    with il.connect(devices=["cpu:0", "sim:0"]) as session:
        own = own_keys(tmp_path_factory.mktemp("keys"))
        yield {**{str(lane.device): lane.worker.endpoint for lane in session.lanes}, "keys": str(own)}
        assert [il.ones(3, device=device).tolist() for device in session.devices] == [[1.0] * 3] * 2


# -- what people write ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("tcp", "tcp://127.0.0.1:0"),
        ("tcp://", "tcp://127.0.0.1:0"),
        ("tcp://:5000", "tcp://127.0.0.1:5000"),
        ("tcp://10.0.0.5", "tcp://10.0.0.5:0"),
        ("tcp://*", "tcp://*:0"),
        ("tcp://host.example:80", "tcp://host.example:80"),
        ("tcp://[::1]:80", "tcp://[::1]:80"),
        ("tcp://[::1]", "tcp://[::1]:0"),
    ],
)
def test_where_to_listen_may_be_said_shortly(said: str, meant: str) -> None:
    assert listening_endpoint(said) == meant


@pytest.mark.parametrize("said", ["", "ipc:///x", "tcp://h:x", "tcp://h:70000", "127.0.0.1:80", "tcp://h?key=1"])
def test_what_is_no_place_to_listen_is_refused(said: str) -> None:
    with pytest.raises(ValueError, match="is no place to listen"):
        listening_endpoint(said)
