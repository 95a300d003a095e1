"""Shared memory between real processes: what a reader sees, and what is left however a process ends."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import msgpack
import pytest

from interlock.protocol.arena import Arena, Mappings, sweep
from interlock.protocol.errors import PeerGone
from interlock.protocol.identity import Identity, alive, own_identity

MIB = 1 << 20

CHILD = """
import os, struct, sys
import msgpack
import numpy as np
from interlock.protocol.arena import Arena, Mappings
from interlock.protocol.errors import InterlockError
from interlock.protocol.identity import Identity, own_identity
from interlock.worker.devices import open_device
from interlock.worker.devices.base import COMPUTE, D2H, PEER

U1 = np.dtype("u1")
mappings = Mappings()

def identity():
    return list(own_identity())

def make_arena(kind):
    global arena
    arena = Arena(256 << 20, own_identity(), kind=kind)

def allocate(nbytes, value):
    block = arena.allocate(nbytes)
    block.bytes[:] = value
    return list(arena.ticket(block))

def attach(owner, ticket):
    global memory
    memory = mappings.attach(Identity(*owner), ticket)
    return look()

def look():
    return [memory.nbytes, memory[0], memory[-1]]

def open_(kind, options):
    global device
    device = open_device(kind, 0, limit_bytes=64 << 20, identity=own_identity(), options=options)

def export(nbytes, value):
    buffer = device.alloc(nbytes)
    device.launch(COMPUTE, device.view(buffer, (nbytes,), U1).fill, value)
    device.fence(10)
    return list(device.export(buffer))

def host_share(nbytes, value):
    buffer = device.host_alloc(nbytes)
    device.host_array(buffer, (nbytes,), U1).fill(value)
    return list(device.host_ticket(buffer))

def read_import(owner, ticket):
    imported = device.import_(Identity(*owner), ticket)
    local, host = device.alloc(imported.nbytes), device.host_alloc(imported.nbytes)
    device.wait(PEER, device.record(COMPUTE))
    device.copy(PEER, local, imported, imported.nbytes)
    copied = device.record(PEER)
    device.release_import(imported, after=[copied])
    device.wait(D2H, copied)
    device.copy(D2H, host, local, imported.nbytes)
    read = device.record(D2H)
    device.retire(local, after=[read])
    device.fence(10)
    found = np.unique(device.host_array(host, (imported.nbytes,), U1)).tolist()
    device.host_retire(host)
    return found

def read_host(owner, ticket):
    attached = device.host_attach(Identity(*owner), ticket)
    found = np.unique(device.host_array(attached, (attached.nbytes,), U1)).tolist()
    device.host_detach(attached)
    return found

def probe_ticket():
    return list(device.probe_ticket())

def probe(owner, ticket):
    return device.probe(Identity(*owner), ticket)

def forget(owner):
    device.forget(Identity(*owner))
    return device.idle

def fork_a_child_that_exits():
    child = os.fork()
    if child == 0:
        for fd in (0, 1):
            os.close(fd)
        raise SystemExit(0)  # with everything that Python does at the end of a process
    return os.waitpid(child, 0)[1]

while header := sys.stdin.buffer.read(4):
    name, arguments = msgpack.unpackb(sys.stdin.buffer.read(struct.unpack("<I", header)[0]))
    try:
        answer = ["ok", globals()[name](*arguments)]
    except InterlockError as error:
        answer = [type(error).__name__, str(error)]
    message = msgpack.packb(answer)
    sys.stdout.buffer.write(struct.pack("<I", len(message)) + message)
    sys.stdout.buffer.flush()
"""


class Child:
    """Another Python process that does what it is told, one call at a time."""

    def __init__(self) -> None:
        pipe = subprocess.PIPE
        self._process = subprocess.Popen([sys.executable, "-c", CHILD], stdin=pipe, stdout=pipe, stderr=pipe)
        self.identity = Identity(*self.call("identity"))

    def ask(self, name: str, *arguments: object) -> tuple[str, Any]:
        """('ok', what the call returned) or (the name of the error, its text)."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        message = msgpack.packb([name, arguments])
        self._process.stdin.write(struct.pack("<I", len(message)) + message)
        self._process.stdin.flush()
        header = self._process.stdout.read(4)
        assert len(header) == 4, self._process.communicate()[1].decode()
        outcome, answer = msgpack.unpackb(self._process.stdout.read(struct.unpack("<I", header)[0]))
        return outcome, answer

    def call(self, name: str, *arguments: object) -> Any:
        outcome, answer = self.ask(name, *arguments)
        assert outcome == "ok", f"{outcome}: {answer}"
        return answer

    def end(self) -> str:
        """Lets it end by itself; returns what it wrote to stderr."""
        _, errors = self._process.communicate(timeout=20)
        assert self._process.returncode == 0, errors.decode()
        return errors.decode()

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.communicate(timeout=20)

    def names(self) -> list[str]:
        return [name for name in os.listdir("/dev/shm") if f"-{self.identity.pid}-" in name]


@pytest.fixture
def children() -> Iterator[list[Child]]:
    """Makes children on demand, and leaves none."""
    made: list[Child] = []
    yield made
    for child in made:
        with contextlib.suppress(ProcessLookupError, ValueError):
            child.kill()
    sweep()  # the names of those that were killed just now


def start(children: list[Child], count: int) -> list[Child]:
    started = [Child() for _ in range(count)]
    children += started
    return started


@pytest.mark.parametrize("kind", ["memfd", "shm"])
def test_a_reader_that_exits_takes_nothing_with_it(children: list[Child], kind: str) -> None:
    owner, first, second = start(children, 3)
    owner.call("make_arena", kind)
    ticket = owner.call("allocate", 65_536, 7)
    assert first.call("attach", owner.identity, ticket) == [65_536, 7, 7]
    assert first.end() == ""
    assert second.call("attach", owner.identity, ticket) == [65_536, 7, 7]
    assert second.end() == ""
    assert owner.call("allocate", 65_536, 8)
    assert owner.end() == ""
    assert owner.names() == []


@pytest.mark.parametrize("kind", ["memfd", "shm"])
def test_a_killed_reader_leaves_its_owner_and_other_readers_working(children: list[Child], kind: str) -> None:
    owner, killed, other = start(children, 3)
    owner.call("make_arena", kind)
    ticket = owner.call("allocate", 65_536, 7)
    killed.call("attach", owner.identity, ticket)
    killed.kill()
    assert other.call("attach", owner.identity, ticket) == [65_536, 7, 7]


def test_a_killed_owner_of_a_memfd_leaves_nothing_and_its_readers_keep_what_they_mapped(children: list[Child]) -> None:
    owner, reader = start(children, 2)
    owner.call("make_arena", "memfd")
    ticket = owner.call("allocate", 65_536, 7)
    reader.call("attach", owner.identity, ticket)
    owner.kill()
    assert owner.names() == []
    assert reader.call("look") == [65_536, 7, 7]
    assert not alive(owner.identity)
    with pytest.raises(PeerGone):
        Mappings().attach(owner.identity, ticket)
    assert reader.call("attach", owner.identity, ticket) == [65_536, 7, 7]  # it is mapped, and stays


def test_names_of_a_killed_owner_are_swept_at_the_next_start_and_those_of_a_living_one_are_not(
    children: list[Child],
) -> None:
    killed, living, reader = start(children, 3)
    for owner in (killed, living):
        owner.call("make_arena", "shm")
    ticket = killed.call("allocate", 65_536, 7)
    living.call("allocate", 65_536, 8)
    reader.call("attach", killed.identity, ticket)
    killed.kill()
    assert len(killed.names()) == 1
    Arena(MIB, own_identity(), kind="shm").close()
    assert killed.names() == []
    assert len(living.names()) == 1
    assert reader.call("look") == [65_536, 7, 7]


@pytest.mark.parametrize("kind", ["memfd", "shm"])
def test_a_forked_child_that_exits_takes_nothing_with_it(children: list[Child], kind: str) -> None:
    owner, reader = start(children, 2)
    owner.call("make_arena", kind)
    ticket = owner.call("allocate", 65_536, 7)
    assert owner.call("fork_a_child_that_exits") == 0
    assert reader.call("attach", owner.identity, ticket) == [65_536, 7, 7]
    assert owner.end() == ""
    assert owner.names() == []


DEVICES = [("cpu", {}), ("cpu", {"arena": "shm"}), ("sim", {}), ("sim", {"seed": 1})]


@pytest.mark.parametrize(("kind", "options"), DEVICES)
def test_device_memory_crosses_between_processes(children: list[Child], kind: str, options: dict[str, object]) -> None:
    owner, importer = start(children, 2)
    for child in (owner, importer):
        child.call("open_", kind, options)
    assert importer.call("probe", owner.identity, owner.call("probe_ticket")) is True
    for value in (3, 4):
        assert importer.call("read_import", owner.identity, owner.call("export", 100_000, value)) == [value]
        assert importer.call("read_host", owner.identity, owner.call("host_share", 50_000, value)) == [value]
    old = owner.call("export", 64, 1)
    wrong = owner.identity._replace(incarnation=owner.identity.incarnation ^ 1)
    assert importer.ask("read_import", wrong, old)[0] == "Stale"


def test_host_memory_of_a_device_with_queues_is_read_in_place_by_a_cpu_worker(children: list[Child]) -> None:
    owner, reader = start(children, 2)
    owner.call("open_", "sim", {})
    reader.call("open_", "cpu", {})
    assert reader.call("read_host", owner.identity, owner.call("host_share", 1 * MIB, 9)) == [9]


@pytest.mark.parametrize("kind", ["cpu", "sim"])
def test_an_exporter_that_was_killed_is_a_lost_peer(children: list[Child], kind: str) -> None:
    owner, importer = start(children, 2)
    for child in (owner, importer):
        child.call("open_", kind, {})
    ticket, host_ticket = owner.call("export", 100_000, 3), owner.call("host_share", 100_000, 3)
    owner.kill()
    assert importer.ask("read_import", owner.identity, ticket)[0] == "PeerGone"
    assert importer.ask("read_host", owner.identity, host_ticket)[0] == "PeerGone"
    assert importer.call("forget", owner.identity) is True
    assert importer.call("export", 64, 1)


SMALL_SHM = """
import os
from interlock.protocol.arena import Arena
from interlock.protocol.errors import OutOfDeviceMemory
from interlock.protocol.identity import own_identity
named, hidden = (Arena(1 << 30, own_identity(), kind=kind) for kind in ("shm", "memfd"))
try:
    named.allocate(100 << 20)
except OutOfDeviceMemory as error:
    print("refused:", str(100 << 20) in str(error))
named.allocate(1 << 20).bytes[:] = 1
hidden.allocate(100 << 20).bytes[:] = 1
print("works:", len(os.listdir("/dev/shm")))
"""


def test_a_small_dev_shm_is_an_error_for_named_memory_and_no_matter_for_memfd() -> None:
    if shutil.which("unshare") is None:
        pytest.skip("there is no unshare command here")
    command = 'mount -t tmpfs -o size=64m tmpfs /dev/shm && echo mounted && exec "$0" -c "$1"'
    done = subprocess.run(
        ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", command, sys.executable, SMALL_SHM],
        capture_output=True,
        text=True,
        timeout=60,
    )
    if not done.stdout.startswith("mounted"):
        pytest.skip(f"a file system cannot be mounted here: {done.stderr}")
    assert done.stdout.splitlines() == ["mounted", "refused: True", "works: 1"]
    assert (done.returncode, done.stderr) == (0, "")
