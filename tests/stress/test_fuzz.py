"""Workers, their launcher and other sessions go on whatever is thrown at their ports, and their memory stays bounded.

INTERLOCK_FUZZ_SECONDS says for how long, INTERLOCK_FUZZ_SEED with which seed; both are printed at the end.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zmq

import interlock as il
from interlock.protocol import keys, tcp
from interlock.protocol import messages as m
from interlock.protocol.codec import decode, encode
from interlock.protocol.letters import Letters
from interlock.protocol.operations import table_hash
from interlock.protocol.sockets import Events, context, ipc

from ..process.conftest import runtime as runtime
from ..process.far import listening, own_keys
from ..process.programs import address_of, interlock
from .fuzzer import Fuzzer, zmtp_noise

SECONDS = float(os.environ.get("INTERLOCK_FUZZ_SECONDS", "8"))
SEED = int(os.environ.get("INTERLOCK_FUZZ_SEED", "1"))
BURST = 400  # messages to each port between two looks
GROWTH = 200 << 20  # bytes that a process may grow by; a thousand leaked messages of a kind would be more


def resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Stranger:
    """Somebody at a port of ZeroMQ, with a listed key where one is needed."""

    def __init__(self, where: str, pair: keys.Pair | None, kind: int = zmq.DEALER, name: bytes | None = None) -> None:
        self.where = where
        self._pair = pair
        self._kind = kind
        self._name = name
        self._open()

    def _open(self) -> None:
        self._socket = context().socket(self._kind)
        self._socket.linger = 0
        self._socket.sndhwm = 0
        plain, server = keys.split(self.where)
        if server is not None and self._pair is not None:
            self._socket.curve_serverkey = server
            self._socket.curve_publickey, self._socket.curve_secretkey = self._pair.public, self._pair.secret
        if self._name is not None:
            self._socket.routing_id = self._name
        self._socket.connect(plain)

    def throw(self, frames: list[bytes]) -> None:
        self._socket.send_multipart(frames, zmq.NOBLOCK)

    def close(self, linger_ms: int = 0) -> None:
        self._socket.close(linger=linger_ms)


class RawSession:
    """A session that is let in, and then sends what it likes."""

    def __init__(self, where: str, pair: keys.Pair | None, folder: Path, fuzzer: Fuzzer, number: int) -> None:
        self.id = fuzzer.random.randbytes(16)
        self._fuzzer = fuzzer
        self._events = Events(ipc(folder, f"e{number}"), f"inproc://fuzz-{number}")
        endpoint = self._events.endpoint
        if where.startswith("tcp://"):
            endpoint = self._events.listen(tcp.Listening("tcp://127.0.0.1:0", tcp.new_pair(), lambda public: True))
        self._stranger = Stranger(where, pair, name=b"s" + self.id)
        me, options = tuple(fuzzer.me), {"memory": 1 << 24}
        hello = m.Hello(m.PROTOCOL_VERSION, table_hash(), self.id, me, 0, endpoint, options)
        self._stranger.throw([encode(hello)])
        answer = self._events.receive(90.0)
        assert answer is not None, "the worker does not answer a session"
        assert type(decode(answer)) is m.Welcome, decode(answer)
        self._next = 1

    def burst(self, count: int) -> None:
        """Batches with the right numbers and anything in them, tickets with its own id, and other messages."""
        fuzzer = self._fuzzer
        specs = tuple((i, (2, 3)[: i % 3], "<f8", (24, 8)[2 - i % 3 :]) for i in range(8))
        for turn in range(count):
            which = fuzzer.random.random()
            if which < 0.6:
                instructions = tuple(fuzzer.instruction() for _ in range(fuzzer.number(8)))
                message: Any = m.Batch(self._next, specs if turn == 0 else (), instructions)
                self._next += len(instructions)
            elif which < 0.8:
                message = fuzzer.fill(fuzzer.random.choice((m.Ticket, m.Taken)))._replace(session=self.id)
            else:
                message = fuzzer.fill(fuzzer.random.choice((m.Returned, m.Peers, m.PeerGone, m.Trace, m.Inspect)))
            with contextlib.suppress(ValueError, OverflowError):  # an int beyond 64 bits
                self._stranger.throw([encode(message)])

    def close(self) -> None:
        self._stranger.throw([encode(m.Goodbye())])
        self._stranger.close(linger_ms=1000)
        while self._events.poll() is not None:
            pass
        self._events.close()


def works(session: il.Session, n: float) -> None:
    """A program of the session's own still computes what it should, small and large, here and there."""
    first, *others = session.devices
    for size in (3, 9_000):
        x = il.full(size, n, device=first)
        for device in others:
            y = (x.to(device) * 2 + 1).to(first)
            np.testing.assert_array_equal(y.numpy(timeout=60.0), np.full(size, 2 * n + 1))


@pytest.fixture
def own(runtime: Path, tmp_path: Path) -> Path:
    return own_keys(tmp_path)


@pytest.mark.timeout(SECONDS * 3 + 120)
def test_whatever_is_thrown_the_workers_serve_on(own: Path, runtime: Path, tmp_path: Path) -> None:
    bomb = tmp_path / "made"
    fuzzer = Fuzzer(SEED, str(bomb))
    pair = keys.load(own).client
    thrown, rounds = 0, 0
    with listening("cpu:0,sim:0", own) as up:
        address = address_of(up)
        near_folder = next((runtime / "interlock").glob(f"p{up.pid}.*"))
        with il.connect(address=address, keys=own) as session:
            pids = {"launcher": up.pid, **session.pids}
            works(session, 1.0)
            far = [lane.worker.endpoint for lane in session.lanes]
            near = [ipc(near_folder, name) for name in ("w0.1", "w1.1")]
            record(session, fuzzer)
            ports = [Stranger(where, pair) for where in (*near, *far, ipc(near_folder, "launcher"), address)]
            begun, before = time.monotonic(), {}
            deadline = begun + SECONDS
            while time.monotonic() < deadline or rounds < 2:
                for port in ports:
                    for _ in range(BURST):
                        frames = fuzzer.frames()
                        if frames == [b"down"]:
                            continue
                        port.throw(frames)
                        thrown += 1
                thrown += to_boxes(near, fuzzer) + without_key([*far, address], fuzzer)
                for number, where in enumerate((*near * 5, *far)):  # short ones: most end by what they send
                    raw = RawSession(where, pair, tmp_path, fuzzer, 100 * rounds + number)
                    raw.burst(40)
                    raw.close()
                    thrown += 40
                works(session, float(rounds))
                if rounds % 5 == 0:
                    with il.connect(address=address, keys=own) as another:
                        works(another, -1.0)
                rounds += 1
                if rounds == 2:  # by then each kind has been met
                    before = {name: resident(pid) for name, pid in pids.items()}
                if rounds % 50 == 0:
                    grown = {name: (resident(pid) - before[name]) >> 10 for name, pid in pids.items()}
                    print(f"{time.monotonic() - begun:.0f} s: {thrown} thrown, grown by {grown} KiB", flush=True)
            rate = thrown / (time.monotonic() - begun)
            for port in ports:
                port.close()
            grown = {name: resident(pid) - before[name] for name, pid in pids.items()}
            print(f"seed {SEED}: {thrown} messages in {rounds} rounds, {rate:.0f}/s; grown by {grown}")
        workers = json.loads(interlock("status", "--json").out)["launchers"][0]["workers"]
        assert [(worker["state"], worker["restarts"]) for worker in workers] == [("serving", 0)] * 2
        up.signal(signal.SIGTERM)
        assert up.ended() == 0
    fuzzer.close()
    assert not bomb.exists()
    assert max(grown.values()) < GROWTH, grown


def record(session: il.Session, fuzzer: Fuzzer) -> None:
    """Take down what an honest program sends, to be replayed and mutated."""
    for lane in session.lanes:
        send = lane._outlet._send

        def sending(data: bytes, flags: int, send: Any = send) -> None:
            fuzzer.seen.append(data)
            send(data, flags)

        lane._outlet._send = sending
    works(session, 2.0)
    for lane in session.lanes:
        del lane._outlet._send
        lane._outlet._send = lane._outlet._send_if_connected


def to_boxes(near: list[str], fuzzer: Fuzzer) -> int:
    """To the boxes of datagrams beside the local endpoints."""
    sent = 0
    for where in near:
        letters = Letters(where)
        for _ in range(BURST):
            sent += letters.send(fuzzer.message())
        letters.close()
    return sent


def without_key(far: list[str], fuzzer: Fuzzer) -> int:
    """To the tcp ports, by somebody who has no key: bytes that are not ZeroMQ's, and its greeting with nonsense."""
    for where in far:
        host, _, port = keys.split(where)[0].removeprefix("tcp://").rpartition(":")
        for _ in range(5):
            with socket.create_connection((host, int(port)), 5.0) as stranger, contextlib.suppress(OSError):
                stranger.sendall(zmtp_noise(fuzzer) if fuzzer.random.random() < 0.7 else fuzzer.message())
    return 5 * len(far)


@pytest.mark.timeout(120)
def test_events_that_are_forged_end_waits_and_nothing_else(runtime: Path, tmp_path: Path) -> None:
    """Whoever can write into the session's own folder can end its lanes; each wait ends, and other sessions go on."""
    fuzzer = Fuzzer(SEED, str(tmp_path / "made"))
    with il.connect(devices=["cpu:0"]) as other:
        for _ in range(8):
            with il.connect(devices=["cpu:0", "cpu:1"]) as victim:
                stranger = Stranger(ipc(Path(victim._folder), "events"), None, kind=zmq.PUSH)
                for turn in range(60):
                    for _ in range(10):
                        stranger.throw([fuzzer.message()])
                    try:
                        x = il.full(5, float(turn), device=victim.devices[turn % 2])
                        found = (x + 1).to(victim.devices[0]).numpy(timeout=60.0)
                    except il.InterlockError:
                        break
                    np.testing.assert_array_equal(found, np.full(5, turn + 1.0))
                stranger.close()
        np.testing.assert_array_equal((il.ones(3, device=other.devices[0]) + 1).numpy(timeout=60.0), np.full(3, 2.0))
    fuzzer.close()
    assert not (tmp_path / "made").exists()
