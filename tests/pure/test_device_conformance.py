"""The laws of the device interface, one suite for every device.

A law is a plain function of a bench, so that the last part of this file can plant a fault in a device and see the law
that forbids it fail. An inline device is held to what the law means for it, not excused.
"""

from __future__ import annotations

import contextlib
import os
import random
import select
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgpack
import numpy as np
import numpy.typing as npt
import pytest

from interlock.protocol.arena import Block
from interlock.protocol.errors import DeviceLost, ImportFailed, InterlockError, OutOfDeviceMemory, PeerGone, Stale
from interlock.protocol.identity import Identity, own_identity
from interlock.worker.devices import open_device
from interlock.worker.devices.base import (
    COMPUTE,
    D2H,
    H2D,
    PEER,
    STREAMS,
    SURVIVING_CALLS,
    Buffer,
    Completion,
    Device,
    Mark,
    Ticket,
)
from interlock.worker.devices.host import HostDevice
from interlock.worker.devices.sharing import Borrowed
from interlock.worker.devices.sim import SimDevice, _Point, _point

MIB = 1 << 20
LIMIT = 64 * MIB
U1, F8 = np.dtype("u1"), np.dtype("f8")
SEEDS = (1, 2, 3, 4)
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "cpu": ("cpu", {}),
    "cpu-named-memory": ("cpu", {"arena": "shm"}),
    "sim": ("sim", {}),
    "sim-lazy": ("sim", {"seed": 0, "lazy": True}),
    **{f"sim-seed-{seed}": ("sim", {"seed": seed}) for seed in SEEDS},
}


class Bench:
    """A device under test, and the means to hold its streams, wait for it and give it a peer."""

    def __init__(
        self, device: Device, make_peer: Callable[[Identity], Device], patience_s: float, moment_s: float
    ) -> None:
        self.device = device
        self.patience_s = patience_s  # for what must come
        self.moment_s = moment_s  # for what must not
        self._make_peer = make_peer
        self._peers: list[Device] = []
        self._gates: list[Gate] = []

    def peer(self) -> tuple[Device, Identity]:
        """A device of another incarnation, as another process would have it."""
        identity = own_identity()._replace(incarnation=own_identity().incarnation ^ (len(self._peers) + 1))
        self._peers.append(self._make_peer(identity))
        return self._peers[-1], identity

    def hold(self, *streams: int, device: Device | None = None) -> Gate:
        """Stops streams until the gate is opened. An inline device has nothing to stop."""
        gate = Gate(2 * self.patience_s)
        self._gates.append(gate)
        device = device or self.device
        if not device.inline:
            for stream in streams:
                device.launch(stream, gate.pass_through)
        return gate

    def reached(self, mark: Mark, within_s: float | None = None, device: Device | None = None) -> bool:
        """Waits for a mark by notification; False if it does not come in time."""
        device, token = device or self.device, object()
        device.notify(mark, token)
        deadline = time.monotonic() + (self.patience_s if within_s is None else within_s)
        while True:
            for arrived, error in device.drain():
                assert error is None, error
                if arrived is token:
                    return True
            if device.completion_fd is None or time.monotonic() > deadline:
                return False
            select.select([device.completion_fd], [], [], max(0.0, deadline - time.monotonic()))

    def write(self, buffer: Buffer, value: int) -> None:
        """Fills a buffer with one byte, on the compute stream."""
        array = self.device.view(buffer, (buffer.nbytes,), U1)
        self.device.launch(COMPUTE, array.fill, value)

    def read(self, buffer: Buffer, after: int = COMPUTE, device: Device | None = None) -> npt.NDArray[np.uint8]:
        """The bytes of a buffer as they are when that stream has done what it was given."""
        device = device or self.device
        host = device.host_alloc(buffer.nbytes)
        device.wait(D2H, device.record(after))
        device.copy(D2H, host, buffer, buffer.nbytes)
        assert self.reached(device.record(D2H), device=device), "a copy to the host did not finish"
        result = device.host_array(host, (buffer.nbytes,), U1).copy()
        device.host_retire(host)
        return result

    def close(self) -> None:
        for gate in self._gates:
            gate.open()
        for device in (*self._peers, self.device):
            device.close()


class Gate:
    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._event = threading.Event()
        self.expired = False

    def pass_through(self) -> None:
        if not self._event.wait(self._patience_s):
            self.expired = True

    def open(self) -> None:
        self._event.set()


def bench_of(kind: str, options: Mapping[str, Any], patience_s: float = 5.0, moment_s: float = 0.05) -> Bench:
    def make(identity: Identity) -> Device:
        return open_device(kind, 0, limit_bytes=LIMIT, identity=identity, options=options)

    return Bench(make(own_identity()), make, patience_s, moment_s)


@pytest.fixture(params=list(KINDS))
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    made = bench_of(*KINDS[request.param])
    yield made
    made.close()


# --- law 1


def law_one_stream_runs_in_order(bench: Bench) -> None:
    seen: list[int] = []
    for number in range(200):
        bench.device.launch(PEER, seen.append, number)
    assert bench.reached(bench.device.record(PEER))
    assert seen == list(range(200))


def law_streams_do_not_wait_for_each_other(bench: Bench) -> None:
    seen: list[str] = []
    gate = bench.hold(COMPUTE)
    bench.device.launch(COMPUTE, seen.append, "compute")
    for stream in (H2D, D2H, PEER):
        bench.device.launch(stream, seen.append, "other")
        assert bench.reached(bench.device.record(stream)), "a stream waited for another without a mark"
    assert ("compute" in seen) is bench.device.inline
    gate.open()
    assert bench.reached(bench.device.record(COMPUTE))
    assert seen.count("other") == 3


def law_a_wait_orders_two_streams(bench: Bench) -> None:
    device, seen = bench.device, list[str]()
    gate = bench.hold(H2D)
    device.launch(H2D, seen.append, "first")
    device.wait(COMPUTE, device.record(H2D))
    device.launch(COMPUTE, seen.append, "second")
    assert bench.reached(device.record(COMPUTE), bench.moment_s) is device.inline
    gate.open()
    assert bench.reached(device.record(COMPUTE))
    assert seen == ["first", "second"]


# --- law 2


def law_calls_return_without_waiting(bench: Bench) -> None:
    device, seen = bench.device, list[int]()
    a, b, host = device.alloc(64), device.alloc(64), device.host_alloc(64)
    gate = bench.hold(COMPUTE, H2D, D2H, PEER)
    for stream in range(len(STREAMS)):
        device.launch(stream, seen.append, stream)
        device.copy(stream, b, a, 64)
        device.copy(stream, host, b, 64)
        mark = device.record(stream, slot=0)
        device.wait((stream + 1) % len(STREAMS), mark)
        device.notify(mark, stream)
        assert device.query(mark) is device.inline
    device.retire(a, after=[mark])
    device.retire(b)
    assert seen == (list(range(len(STREAMS))) if device.inline else [])
    gate.open()
    assert bench.reached(device.record(COMPUTE)) or device.inline
    device.fence(bench.patience_s)
    assert not gate.expired, "a call waited for the device"
    device.host_retire(host)


# --- law 3


def law_a_slot_never_recorded_counts_as_done(bench: Bench) -> None:
    device = bench.device
    slot = device.import_slot(own_identity(), device.export_slot(1))
    assert device.query(slot)
    device.wait(COMPUTE, slot)
    assert bench.reached(slot)
    assert bench.reached(device.record(COMPUTE))


def law_a_wait_means_the_record_at_its_call(bench: Bench) -> None:
    device = bench.device
    compute = bench.hold(COMPUTE)
    mark = device.record(H2D, slot=0)
    device.wait(COMPUTE, mark)
    later = bench.hold(H2D)
    device.record(H2D, slot=0)
    compute.open()
    assert bench.reached(device.record(COMPUTE)), "a wait was bound to a later record"
    assert device.query(device.import_slot(own_identity(), device.export_slot(0))) is device.inline
    later.open()


def law_a_mark_is_not_bound_to_later_work(bench: Bench) -> None:
    mark = bench.device.record(PEER)
    gate = bench.hold(PEER)
    assert bench.reached(mark)
    assert bench.reached(mark), "a mark that was reached before was not notified"
    assert not gate.expired
    gate.open()


# --- law 4


def law_a_launch_makes_no_device_memory(bench: Bench) -> None:
    device = bench.device
    a, b = device.alloc(8000), device.alloc(8000)
    arrays = [device.view(buffer, (1000,), F8) for buffer in (a, b)]
    before = device.memory()["used"]
    device.launch(COMPUTE, arrays[0].fill, 3.0)
    device.launch(COMPUTE, lambda: device.xp.multiply(arrays[0], 2.0, out=arrays[1]))
    assert np.all(bench.read(b).view(F8) == 6.0)
    assert device.memory()["used"] == before


# --- law 5


def law_memory_taken_back_is_not_touched_before_its_readers_are_done(bench: Bench) -> None:
    device = bench.device
    host, old = device.host_alloc(1000), device.alloc(1000)
    bench.write(old, 1)
    device.wait(D2H, device.record(COMPUTE))
    gate = bench.hold(D2H)
    device.copy(D2H, host, old, 1000)
    read = device.record(D2H)
    device.retire(old, after=[read])
    new = device.alloc(1000)
    bench.write(new, 2)
    assert bench.reached(device.record(COMPUTE), bench.moment_s) is device.inline, (
        "memory was handed on while it was read"
    )
    gate.open()
    assert bench.reached(read)
    assert set(device.host_array(host, (1000,), U1).tolist()) == {1}
    assert set(bench.read(new).tolist()) == {2}


def law_work_after_a_retire_owns_the_memory(bench: Bench) -> None:
    for value in range(100):
        buffer = bench.device.alloc(5000)
        bench.write(buffer, value)
        if value % 10 == 0:
            assert set(bench.read(buffer).tolist()) == {value}
        bench.device.retire(buffer)
    assert bench.device.memory()["used"] == 0


# --- law 6


def law_importing_ones_own_export_gives_the_local_buffer(bench: Bench) -> None:
    device = bench.device
    buffer = device.alloc(100)
    ticket = device.export(buffer)
    imported = device.import_(own_identity(), ticket)
    assert imported is buffer
    assert device.memory()["imported"] == 0
    assert not device.idle
    assert device.import_(own_identity(), ticket) is buffer
    for _ in range(2):
        device.release_import(imported)
    with pytest.raises(InterlockError):
        device.release_import(imported)
    device.retire(buffer)
    assert device.idle


# --- law 7


def law_imports_out_of_one_slab_share_a_mapping_until_the_last_is_released(bench: Bench) -> None:
    device, (peer, owner) = bench.device, bench.peer()
    theirs = [peer.alloc(1000), peer.alloc(1000)]
    for number, buffer in enumerate(theirs):
        peer.launch(COMPUTE, peer.view(buffer, (1000,), U1).fill, number + 1)
    peer.fence(bench.patience_s)
    tickets = [peer.export(buffer) for buffer in theirs]
    first, second = (device.import_(owner, ticket) for ticket in tickets)
    again = device.import_(owner, tickets[0])
    assert device.memory()["imported"] == 1, "a slab was opened more than once"
    device.release_import(first)
    device.release_import(second)
    device.trim()
    assert device.memory()["imported"] == 1, "a mapping was closed while an import of it is held"
    mine = device.alloc(1000)
    device.wait(PEER, device.record(COMPUTE))
    gate = bench.hold(PEER)
    device.copy(PEER, mine, again, 1000)
    device.release_import(again, after=[device.record(PEER)])
    device.trim()
    gate.open()
    assert set(bench.read(mine, after=PEER).tolist()) == {1}, "a mapping was closed while a copy from it was queued"
    device.trim()
    assert device.memory()["imported"] == 0
    with pytest.raises(InterlockError):
        device.release_import(first)


# --- law 8


def law_an_exported_slab_stays_until_it_is_released(bench: Bench) -> None:
    device, (peer, owner) = bench.device, bench.peer()
    theirs = peer.alloc(100)
    ticket = peer.export(theirs)
    peer.retire(theirs)
    peer.trim()
    assert peer.memory()["cached"] > 0, "an exported slab was given back"
    device.release_import(device.import_(owner, ticket))
    device.trim()
    peer.release_export(ticket)
    peer.trim()
    assert peer.memory() == {"used": 0, "cached": 0, "limit": LIMIT, "exported": 0, "imported": 0}


# --- law 9


def law_a_ticket_of_an_earlier_generation_or_incarnation_is_stale(bench: Bench) -> None:
    device, (peer, owner) = bench.device, bench.peer()
    old = peer.alloc(40 * MIB)
    old_ticket = peer.export(old)
    device.release_import(device.import_(owner, old_ticket))
    peer.retire(old)
    peer.release_export(old_ticket)
    peer.trim()
    with pytest.raises(Stale):
        device.import_(owner, old_ticket)
    new_ticket = peer.export(peer.alloc(40 * MIB))
    assert new_ticket[2] == old_ticket[2], "this is about a slab number that is used again"
    for importer in (device, peer):
        with pytest.raises(Stale):
            importer.import_(owner, old_ticket)
        importer.release_import(importer.import_(owner, new_ticket))
        with pytest.raises(Stale):
            importer.import_(owner, old_ticket)
    with pytest.raises(Stale):
        device.import_(owner._replace(incarnation=owner.incarnation + 100), new_ticket)
    with pytest.raises(Stale):
        peer.import_slot(owner._replace(incarnation=owner.incarnation + 100), peer.export_slot(0))


# --- law 10


def law_a_lost_device_stays_lost_and_every_notification_arrives_once(bench: Bench) -> None:
    device = bench.device
    gate = bench.hold(COMPUTE)
    tokens = []
    if not device.inline:
        for number in range(5):
            device.notify(device.record(COMPUTE), number)
            tokens.append(number)
        device.launch(COMPUTE, divide_by_zero)
        for stream in (COMPUTE, H2D, COMPUTE):
            device.wait(stream, device.record(COMPUTE))
            device.notify(device.record(stream), len(tokens))
            tokens.append(len(tokens))
    else:
        with pytest.raises(DeviceLost, match="divide_by_zero"):
            device.launch(COMPUTE, divide_by_zero)
    gate.open()
    arrived = collect(bench, len(tokens))
    assert sorted(token for token, _ in arrived) == tokens
    after = [error for token, error in arrived if token >= 5]
    assert all(isinstance(error, DeviceLost) and "divide_by_zero" in str(error) for error in after)
    for name, member in vars(Device).items():
        if callable(member) and not name.startswith("_") and name not in SURVIVING_CALLS:
            with pytest.raises(DeviceLost, match="divide_by_zero"):
                getattr(device, name)()
    assert device.drain() == []
    assert device.memory()["used"] == 0
    assert device.idle


def divide_by_zero() -> None:
    raise ZeroDivisionError("1/0")


def collect(bench: Bench, count: int) -> list[Completion]:
    """Completions until `count` have come, and what comes with them."""
    arrived: list[Completion] = []
    while len(arrived) < count:
        fd = bench.device.completion_fd
        assert fd is None or select.select([fd], [], [], bench.patience_s)[0], f"only {len(arrived)} of {count} came"
        found = bench.device.drain()
        assert found, "nothing came although the descriptor was readable"
        arrived += found
    return arrived


# --- law 11


def law_a_failed_allocation_changes_nothing(bench: Bench) -> None:
    device = bench.device
    kept = device.alloc(10 * MIB)
    bench.write(kept, 9)
    before = device.memory()
    for _ in range(3):
        with pytest.raises(OutOfDeviceMemory, match=str(LIMIT)):
            device.alloc(LIMIT)
    assert device.memory() == before
    assert set(bench.read(kept).tolist()) == {9}
    device.retire(kept)
    device.retire(device.alloc(LIMIT))


# --- law 12


def law_notifications_of_one_stream_arrive_in_order(bench: Bench) -> None:
    tokens = {stream: [(stream, number) for number in range(50)] for stream in (COMPUTE, PEER)}
    for number in range(50):
        for stream in tokens:
            bench.device.launch(stream, int)
            bench.device.notify(bench.device.record(stream), (stream, number))
    arrived = [token for token, error in collect(bench, 100) if error is None]
    for stream, sent in tokens.items():
        assert [token for token in arrived if token[0] == stream] == sent
    assert bench.device.drain() == []


# --- law 13


def law_a_device_is_driven_from_one_thread(bench: Bench) -> None:
    device = bench.device
    if device.inline:
        threads: list[int] = []
        device.launch(COMPUTE, lambda: threads.append(threading.get_ident()))
        assert threads == [threading.get_ident()]
        return
    buffer, mark = device.alloc(64), device.record(COMPUTE)
    calls: list[Callable[[], object]] = [
        lambda: device.alloc(64),
        lambda: device.retire(buffer),
        lambda: device.launch(COMPUTE, int),
        lambda: device.copy(COMPUTE, buffer, buffer, 0),
        lambda: device.record(COMPUTE),
        lambda: device.wait(H2D, mark),
        lambda: device.query(mark),
        lambda: device.notify(mark, 1),
        lambda: device.fence(1.0),
        device.drain,
    ]
    refused: list[InterlockError] = []

    def call_all() -> None:
        for call in calls:
            try:
                call()
            except InterlockError as error:
                refused.append(error)

    thread = threading.Thread(target=call_all)
    thread.start()
    thread.join()
    assert len(refused) == len(calls)
    device.retire(buffer)


# --- law 14

NONSENSE: tuple[object, ...] = (None, True, -1, 1 << 70, 1.5, "", "x" * 40, b"", b"x" * 16, [], {})


def law_tickets_are_plain_and_checked(bench: Bench) -> None:
    device, (peer, owner) = bench.device, bench.peer()
    memory, host, slot = peer.export(peer.alloc(64)), peer.host_ticket(peer.host_alloc(64)), peer.export_slot(0)
    uses: list[tuple[Ticket, Callable[[Identity, Sequence[object]], object]]] = [
        (memory, device.import_),
        (host, device.host_attach),
        (slot, device.import_slot),
    ]
    for ticket, use in uses:
        assert all(type(value) in (int, str, bytes) for value in ticket)
        assert tuple(msgpack.unpackb(msgpack.packb(ticket))) == ticket
        with pytest.raises(ImportFailed):
            use(owner, ticket[:-1])
        for at in range(len(ticket)):
            for value in NONSENSE:
                if value != ticket[at] and not (at == 2 and ticket is slot):
                    with pytest.raises((ImportFailed, Stale)):
                        use(owner, (*ticket[:at], value, *ticket[at + 1 :]))


LAWS = [law for name, law in list(globals().items()) if name.startswith("law_")]


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__.removeprefix("law_"))
def test_the_device_keeps_the_law(bench: Bench, law: Callable[[Bench], None]) -> None:
    law(bench)


# --- beyond the laws


def test_copies_reach_between_every_two_kinds_of_memory(bench: Bench) -> None:
    device, (peer, owner) = bench.device, bench.peer()
    data = np.arange(256, dtype=U1)
    theirs, their_host = peer.alloc(256), peer.host_alloc(256)
    peer.host_array(their_host, (256,), U1)[:] = data
    peer.copy(H2D, theirs, their_host, 256)
    peer.fence(bench.patience_s)
    attached, imported = (
        device.host_attach(owner, peer.host_ticket(their_host)),
        device.import_(owner, peer.export(theirs)),
    )
    mine = device.alloc(512)
    device.copy(COMPUTE, mine, attached, 256)
    device.copy(COMPUTE, mine, imported, 200, dst_offset=256, src_offset=56)
    device.copy(COMPUTE, mine, mine, 16, dst_offset=456, src_offset=0)
    expected = np.concatenate([data, data[56:], data[:16]])
    assert np.array_equal(bench.read(mine)[:472], expected)
    device.host_detach(attached)
    device.release_import(imported)


@pytest.mark.parametrize(
    ("nbytes", "dst_offset", "src_offset"),
    [(65, 0, 0), (64, 1, 0), (64, 0, 1), (-1, 0, 0), (4, -4, 0), (4, 0, -4), (4, -8, 0)],
)
def test_a_copy_that_leaves_a_buffer_is_refused_at_the_call(
    bench: Bench, nbytes: int, dst_offset: int, src_offset: int
) -> None:
    a, b = bench.device.alloc(64), bench.device.alloc(64)
    with pytest.raises(InterlockError, match="inside"):
        bench.device.copy(COMPUTE, a, b, nbytes, dst_offset, src_offset)


def test_what_belongs_to_another_process_is_never_written(bench: Bench) -> None:
    device, (peer, owner) = bench.device, bench.peer()
    attached = device.host_attach(owner, peer.host_ticket(peer.host_alloc(64)))
    imported = device.import_(owner, peer.export(peer.alloc(64)))
    for theirs in (attached, imported):
        with pytest.raises(InterlockError, match="only that may be written"):
            device.copy(COMPUTE, theirs, device.alloc(64), 64)
    assert not device.host_array(attached, (64,), U1).flags.writeable


def test_views_take_offsets_and_strides_and_must_fit(bench: Bench) -> None:
    device = bench.device
    buffer = device.alloc(64)
    bench.write(buffer, 0)
    column = device.view(buffer, (2,), U1, 3, (8,))
    device.launch(COMPUTE, column.fill, 7)
    assert np.flatnonzero(bench.read(buffer)).tolist() == [3, 11]
    for shape, offset, strides in (((65,), 0, None), ((64,), 1, None), ((9,), 0, (8,)), ((2,), 0, (-1,))):
        with pytest.raises(InterlockError, match="inside"):
            device.view(buffer, shape, U1, offset, strides)


def test_a_retired_buffer_cannot_be_used_or_retired_again(bench: Bench) -> None:
    device = bench.device
    buffer, other = device.alloc(64), device.alloc(64)
    ticket = device.export(buffer)
    device.retire(buffer)
    with pytest.raises(Stale):
        device.import_(own_identity(), ticket)
    for use in (
        lambda: device.view(buffer, (1,), U1),
        lambda: device.copy(COMPUTE, other, buffer, 1),
        lambda: device.export(buffer),
        lambda: device.retire(buffer),
    ):
        with pytest.raises(InterlockError):
            use()


def test_forgetting_a_peer_ends_what_was_taken_from_it(bench: Bench) -> None:
    device, (peer, owner) = bench.device, bench.peer()
    host_ticket, ticket = peer.host_ticket(peer.host_alloc(64)), peer.export(peer.alloc(64))
    attached, imported, mine = device.host_attach(owner, host_ticket), device.import_(owner, ticket), device.alloc(64)
    device.forget(owner)
    assert device.memory()["imported"] == 0
    for theirs in (attached, imported):
        with pytest.raises(PeerGone):
            device.copy(PEER, mine, theirs, 64)
    for take, what in ((device.import_, ticket), (device.host_attach, host_ticket)):
        with pytest.raises(PeerGone):
            take(owner, what)
    device.release_import(imported)
    device.host_detach(attached)
    device.retire(mine)
    assert device.idle


def test_a_dead_peer_is_told_apart_from_a_failed_import(bench: Bench) -> None:
    peer, owner = bench.peer()
    dead = owner._replace(start_time=owner.start_time + 1)
    with pytest.raises(PeerGone):
        bench.device.import_(dead, peer.export(peer.alloc(64)))
    with pytest.raises(ImportFailed):
        bench.device.import_(owner._replace(boot_id="elsewhere"), peer.export(peer.alloc(64)))


def test_a_probe_compares_real_bytes(bench: Bench) -> None:
    device, (peer, owner) = bench.device, bench.peer()
    ticket = peer.probe_ticket()
    assert device.probe(owner, ticket)
    assert device.probe(owner, peer.probe_ticket())
    assert not device.probe(owner, peer.export(peer.alloc(4096)))
    assert not device.probe(owner._replace(boot_id="elsewhere"), peer.export(peer.alloc(4096)))
    assert not device.probe(owner, ("nonsense",))
    assert device.idle


def test_memory_shared_and_dropped_again_and_again_returns_to_the_baseline(bench: Bench) -> None:
    device, (peer, owner) = bench.device, bench.peer()
    cached = set()
    for _ in range(50):
        theirs = peer.alloc(8 * MIB)
        imported = device.import_(owner, peer.export(theirs))
        device.release_import(imported)
        peer.retire(theirs)
        assert (peer.memory()["used"], peer.idle, device.idle) == (0, True, True)
        cached.add(peer.memory()["cached"])
    assert len(cached) == 1


def test_memory_that_a_killed_importer_held_returns_to_the_baseline(bench: Bench) -> None:
    device = bench.device
    _, importer = bench.peer()
    for _ in range(50):
        buffer = device.alloc(8 * MIB)
        ticket = device.export(buffer)
        device.forget(importer)  # it was told of the ticket, and will never answer
        device.retire(buffer)
        device.release_export(ticket)
        assert (device.memory()["used"], device.idle) == (0, True)
    device.trim()
    assert device.memory()["cached"] == 0


def test_host_memory_is_shared_and_taken_back(bench: Bench) -> None:
    device, (peer, owner) = bench.device, bench.peer()
    buffer = peer.host_alloc(100_000)
    peer.host_array(buffer, (100_000,), U1)[:] = 6
    attached = device.host_attach(owner, peer.host_ticket(buffer))
    shown = device.host_array(attached, (50_000,), U1, 50_000)
    assert (shown.min(), shown.max()) == (6, 6)
    device.host_detach(attached)
    with pytest.raises(InterlockError):
        device.host_detach(attached)
    with pytest.raises(InterlockError):
        device.host_array(attached, (1,), U1)
    peer.host_retire(buffer)
    assert peer.idle
    assert device.idle


def test_the_completion_descriptor_is_readable_exactly_while_something_waits(bench: Bench) -> None:
    device = bench.device
    fd = device.completion_fd
    if device.inline:
        assert fd is None
        device.notify(device.record(COMPUTE), "now")
        assert device.drain() == [("now", None)]
        return
    assert fd is not None
    assert select.select([fd], [], [], 0) == ([], [], [])
    for _ in range(2):
        device.notify(device.record(COMPUTE), "token")
        assert not device.idle
        assert select.select([fd], [], [], bench.patience_s)[0]
        assert device.drain() == [("token", None)]
        assert select.select([fd], [], [], 0) == ([], [], [])
    assert device.idle


def test_a_closed_device_leaves_no_thread_no_descriptor_and_no_name() -> None:
    def held() -> tuple[int, int, list[str]]:
        names = [name for name in os.listdir("/dev/shm") if f"-{os.getpid()}-" in name]
        return threading.active_count(), len(os.listdir("/proc/self/fd")), names

    for kind, options in KINDS.values():
        before = held()
        bench = bench_of(kind, options)
        bench.read(bench.device.alloc(100))
        for number in range(100):
            bench.device.launch(COMPUTE, abs, number)
        bench.close()
        bench.close()
        assert held() == before


def test_a_sleeping_stream_keeps_nothing_alive_of_what_it_ran() -> None:
    class Large:
        gone = threading.Event()

        def __del__(self) -> None:
            self.gone.set()

    bench = bench_of("sim", {})
    bench.device.launch(COMPUTE, id, Large())
    assert Large.gone.wait(bench.patience_s)
    bench.close()


def test_a_fence_that_takes_too_long_says_which_stream() -> None:
    bench = bench_of("sim", {})
    gate = bench.hold(D2H)
    with pytest.raises(TimeoutError, match="d2h stream of sim:0"):
        bench.device.fence(0.05)
    gate.open()
    bench.device.fence(5.0)
    bench.close()


def test_unknown_kinds_and_options_are_refused() -> None:
    for kind, options, text in (
        ("tpu", {}, "no device kind 'tpu'"),
        ("cpu", {"sede": 1}, r"no options \['sede'\]"),
        ("sim", {"sede": 1}, r"no options \['sede'\]"),
    ):
        with pytest.raises(InterlockError, match=text):
            open_device(kind, 0, limit_bytes=LIMIT, identity=own_identity(), options=options)


# --- whole programs


def run_program(bench: Bench, seed: int, forget_waits: bool = False) -> tuple[list[float], list[float]]:
    """A random program with copies, transfers and reuse of memory, and what plain NumPy makes of it."""
    device, chance = bench.device, random.Random(seed)
    size, nbytes = 64, 64 * 8
    buffers = [device.alloc(nbytes) for _ in range(5)]
    truth = [np.full(size, float(i)) for i in range(5)]
    for i, buffer in enumerate(buffers):
        device.launch(COMPUTE, device.view(buffer, (size,), F8).fill, float(i))

    def wait(stream: int, mark: Mark) -> None:
        if not forget_waits:
            device.wait(stream, mark)

    for _ in range(60):
        i, j, k = (chance.randrange(5) for _ in range(3))
        match chance.randrange(3):
            case 0:  # compute into new memory, drop the old
                new = device.alloc(nbytes)
                out, x, y = (device.view(b, (size,), F8) for b in (new, buffers[j], buffers[k]))
                device.launch(COMPUTE, lambda out=out, x=x, y=y: np.add(np.multiply(x, 0.5, out=out), y, out=out))
                truth[i] = truth[j] * 0.5 + truth[k]
                device.retire(buffers[i])
                buffers[i] = new
            case 1:  # in place
                x = device.view(buffers[i], (size,), F8)
                device.launch(COMPUTE, lambda x=x: np.add(x, 1.0, out=x))
                truth[i] = truth[i] + 1.0
            case 2:  # out to the host and back, into new memory
                host, new = device.host_alloc(nbytes), device.alloc(nbytes)
                wait(D2H, device.record(COMPUTE))
                device.copy(D2H, host, buffers[j], nbytes)
                out_mark = device.record(D2H)
                wait(H2D, device.record(COMPUTE))
                wait(H2D, out_mark)
                device.copy(H2D, new, host, nbytes)
                wait(COMPUTE, device.record(H2D))
                truth[i] = truth[j].copy()
                device.retire(buffers[i], after=() if forget_waits else [out_mark])
                buffers[i] = new
    return [float(bench.read(buffer).view(F8).sum()) for buffer in buffers], [float(t.sum()) for t in truth]


@pytest.mark.parametrize("seed", range(5))
def test_a_program_with_all_its_waits_equals_numpy(bench: Bench, seed: int) -> None:
    got, expected = run_program(bench, seed)
    assert got == expected


def test_a_program_that_forgets_its_waits_is_found_out() -> None:
    wrong = 0
    for seed in range(5):
        bench = bench_of("sim", {"seed": seed})
        got, expected = run_program(bench, seed, forget_waits=True)
        wrong += got != expected
        bench.close()
    assert wrong >= 3


# --- chaos


def test_chaos_refuses_the_allocation_it_was_asked_to_refuse() -> None:
    bench = bench_of("sim", {"oom_at": 3})
    for _ in range(2):
        bench.device.alloc(64)
    before = bench.device.memory()
    with pytest.raises(OutOfDeviceMemory):
        bench.device.alloc(64)
    assert bench.device.memory() == before
    bench.device.alloc(64)
    bench.close()


def test_chaos_breaks_the_device_at_the_work_it_was_asked_to_break() -> None:
    bench = bench_of("sim", {"fault_at": 3})
    ran: list[int] = []
    for number in range(5):
        bench.device.launch(COMPUTE, ran.append, number)
    bench.device.notify(bench.device.record(COMPUTE), "token")
    [(token, error)] = collect(bench, 1)
    assert (token, ran) == ("token", [0, 1])
    assert isinstance(error, DeviceLost)
    bench.close()


def test_chaos_poisons_what_was_retired() -> None:
    bench = bench_of("sim", {"seed": 1})
    buffer = bench.device.alloc(1000)
    bench.write(buffer, 1)
    bench.device.retire(buffer)
    assert set(bench.read(bench.device.alloc(1000)).tolist()) == {0xA5}
    host = bench.device.host_alloc(1000)
    shown = bench.device.host_array(host, (1000,), U1)
    bench.device.host_retire(host)
    assert set(shown.tolist()) == {0xA5}
    bench.close()


def test_a_lazy_stream_does_nothing_until_somebody_asks() -> None:
    bench = bench_of("sim", {"lazy": True})
    device, ran = bench.device, list[str]()
    device.launch(H2D, ran.append, "needed")
    first = device.record(H2D)
    device.launch(H2D, ran.append, "not needed")
    device.record(H2D)
    device.wait(COMPUTE, first)
    device.launch(COMPUTE, ran.append, "asked for")
    asked = device.record(COMPUTE)
    device.launch(PEER, ran.append, "unrelated")
    assert ran == []
    assert bench.reached(asked)
    assert ran == ["needed", "asked for"]
    device.fence(5.0)
    assert sorted(ran) == ["asked for", "needed", "not needed", "unrelated"]
    bench.close()


def test_a_question_makes_a_lazy_stream_go_on() -> None:
    bench = bench_of("sim", {"lazy": True})
    ran = threading.Event()
    bench.device.launch(COMPUTE, ran.set)
    mark = bench.device.record(COMPUTE)
    assert not bench.device.query(mark)
    assert ran.wait(bench.patience_s)
    bench.close()


def test_a_probe_can_be_made_to_fail() -> None:
    bench = bench_of("sim", {"probe": False})
    peer, owner = bench.peer()
    assert not bench.device.probe(owner, peer.probe_ticket())
    bench.close()


def test_a_device_with_queues_gives_its_memory_to_no_numpy_code_outside_a_launch() -> None:
    bench = bench_of("sim", {})
    peer, owner = bench.peer()
    with pytest.raises(InterlockError, match="copy it to host memory"):
        bench.device.host_array(bench.device.alloc(64), (1,), U1)
    for other in (bench.device.host_alloc(64), bench.device.import_(owner, peer.export(peer.alloc(64)))):
        with pytest.raises(InterlockError, match="copy it there"):
            bench.device.view(other, (1,), U1)
    bench.close()


def test_slots_are_not_shared_between_devices_with_queues_but_those_of_an_inline_one_are_always_reached() -> None:
    sim, host = bench_of("sim", {}), bench_of("cpu", {})
    sim_peer, sim_owner = sim.peer()
    host_peer, host_owner = host.peer()
    for device in (sim.device, host.device):
        assert device.query(device.import_slot(host_owner, host_peer.export_slot(0)))
        with pytest.raises(ImportFailed):
            device.import_slot(sim_owner, sim_peer.export_slot(0))
        with pytest.raises(InterlockError, match="no slot 32"):
            device.export_slot(32)
    assert (sim.device.info.exports_events, host.device.info.exports_events) == (False, True)
    sim.close()
    host.close()


# --- planted faults: each breaks one law, and that law must see it


class SwapsWork(SimDevice):
    kept: tuple[Any, ...] | None = None

    def launch(self, stream: int, fn: Callable[..., object], *args: Any) -> None:
        if self.kept is None:
            self.kept = stream, fn, *args
            return
        kept, self.kept = self.kept, None
        super().launch(stream, fn, *args)
        super().launch(*kept)


class HasOneStream(SimDevice):
    def launch(self, stream: int, fn: Callable[..., object], *args: Any) -> None:
        super().launch(COMPUTE, fn, *args)

    def record(self, stream: int, slot: int | None = None) -> Any:
        return super().record(COMPUTE, slot)


class DoesNotWait(SimDevice):
    def wait(self, stream: int, mark: Mark) -> None:
        pass


class BlocksInRecord(SimDevice):
    def record(self, stream: int, slot: int | None = None) -> Any:
        mark = super().record(stream, slot)
        point = _point(mark)
        assert point is not None
        lock = self._sleep_until(point)
        if lock is not None:
            lock.acquire(timeout=10)
        return mark


class HasUnreachedSlots(SimDevice):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        for slot in self._slots:
            slot.point = _Point(self._streams[COMPUTE], 1)


class BindsWaitsLate(SimDevice):
    def wait(self, stream: int, mark: Mark) -> None:
        def wait_for_the_latest() -> None:
            point = _point(mark)
            lock = self._sleep_until(point) if point else None
            if lock is not None:
                lock.acquire(timeout=10)

        self._streams[stream].put((wait_for_the_latest, ()))


class BindsMarksLate(SimDevice):
    """Records where the stream is when somebody asks, not when `record` was called."""

    def notify(self, mark: Mark, token: Any) -> None:
        point = _point(mark)
        assert point is not None
        super().notify(super().record(STREAMS.index(point.stream.name)), token)


class KeepsScratchMemory(SimDevice):
    def launch(self, stream: int, fn: Callable[..., object], *args: Any) -> None:
        self.alloc(64)
        super().launch(stream, fn, *args)


class FreesAtOnce(SimDevice):
    def retire(self, buffer: Any, after: Sequence[Mark] = ()) -> None:
        super().retire(buffer)


class FreesNothing(SimDevice):
    def retire(self, buffer: Any, after: Sequence[Mark] = ()) -> None:
        pass


class CopiesItsOwnExports(SimDevice):
    def import_(self, owner: Identity, ticket: Sequence[object]) -> Any:
        found = super().import_(owner, ticket)
        return Borrowed(owner, bytes(16), found.bytes) if isinstance(found, Block) else found


class OpensEachTime(SimDevice):
    opened = 0

    def import_(self, owner: Identity, ticket: Sequence[object]) -> Any:
        self.opened += 1
        return super().import_(owner, ticket)

    def memory(self) -> dict[str, int]:
        return {**super().memory(), "imported": self.opened}


class ClosesAtTheFirstRelease(SimDevice):
    def release_import(self, buffer: Any, after: Sequence[Mark] = ()) -> None:
        super().release_import(buffer, after)
        if isinstance(buffer, Borrowed):
            self._loans._out.clear()


class GivesExportsBack(SimDevice):
    def trim(self) -> None:
        self._memory.held.clear()
        super().trim()


class TakesAnyGeneration(SimDevice):
    def import_(self, owner: Identity, ticket: Sequence[object]) -> Any:
        if owner == self._identity:
            number = ticket[2]
            assert isinstance(number, int)
            ticket = (*ticket[:3], self._memory.generation(number), *ticket[4:])
        return super().import_(owner, ticket)


class SwallowsFaults(SimDevice):
    def _run(self, fn: Callable[..., object], args: tuple[Any, ...]) -> None:
        with contextlib.suppress(ZeroDivisionError):
            fn(*args)


class NotifiesTwice(SimDevice):
    def _arrive(self, token: Any) -> None:
        super()._arrive(token)
        if self._fault:
            super()._arrive(token)


class ForgetsNotificationsWhenLost(SimDevice):
    def _arrive(self, token: Any) -> None:
        if not self._fault:
            super()._arrive(token)


class LeaksOnFailure(SimDevice):
    def alloc(self, nbytes: int, /) -> Block:
        scratch = self._memory.allocate(1000)
        block = super().alloc(nbytes)
        self._memory.free(scratch)
        return block


class NotifiesInReverse(SimDevice):
    def drain(self) -> list[Completion]:
        return super().drain()[::-1]


class TakesAnyThread(SimDevice):
    def _check_thread(self) -> None:
        pass


class TakesAnyTicket(SimDevice):
    def import_(self, owner: Identity, ticket: Sequence[object]) -> Any:
        try:
            return super().import_(owner, ticket)
        except (ImportFailed, Stale):
            return self.alloc(64)


class RunsNothing(HostDevice):
    def launch(self, stream: int, fn: Callable[..., object], *args: Any) -> None:
        pass


class LosesNothing(HostDevice):
    def launch(self, stream: int, fn: Callable[..., object], *args: Any) -> None:
        fn(*args)


FAULTS: list[tuple[Any, Callable[[Bench], None]]] = [
    (SwapsWork, law_one_stream_runs_in_order),
    (HasOneStream, law_streams_do_not_wait_for_each_other),
    (DoesNotWait, law_a_wait_orders_two_streams),
    (BlocksInRecord, law_calls_return_without_waiting),
    (HasUnreachedSlots, law_a_slot_never_recorded_counts_as_done),
    (BindsWaitsLate, law_a_wait_means_the_record_at_its_call),
    (BindsMarksLate, law_a_mark_is_not_bound_to_later_work),
    (KeepsScratchMemory, law_a_launch_makes_no_device_memory),
    (FreesAtOnce, law_memory_taken_back_is_not_touched_before_its_readers_are_done),
    (DoesNotWait, law_memory_taken_back_is_not_touched_before_its_readers_are_done),
    (FreesNothing, law_work_after_a_retire_owns_the_memory),
    (CopiesItsOwnExports, law_importing_ones_own_export_gives_the_local_buffer),
    (OpensEachTime, law_imports_out_of_one_slab_share_a_mapping_until_the_last_is_released),
    (ClosesAtTheFirstRelease, law_imports_out_of_one_slab_share_a_mapping_until_the_last_is_released),
    (GivesExportsBack, law_an_exported_slab_stays_until_it_is_released),
    (TakesAnyGeneration, law_a_ticket_of_an_earlier_generation_or_incarnation_is_stale),
    (SwallowsFaults, law_a_lost_device_stays_lost_and_every_notification_arrives_once),
    (NotifiesTwice, law_a_lost_device_stays_lost_and_every_notification_arrives_once),
    (ForgetsNotificationsWhenLost, law_a_lost_device_stays_lost_and_every_notification_arrives_once),
    (LeaksOnFailure, law_a_failed_allocation_changes_nothing),
    (NotifiesInReverse, law_notifications_of_one_stream_arrive_in_order),
    (TakesAnyThread, law_a_device_is_driven_from_one_thread),
    (TakesAnyTicket, law_tickets_are_plain_and_checked),
    (RunsNothing, law_one_stream_runs_in_order),
    (LosesNothing, law_a_lost_device_stays_lost_and_every_notification_arrives_once),
]


@pytest.mark.parametrize(("faulty", "law"), FAULTS, ids=lambda x: x.__name__.removeprefix("law_"))
def test_a_planted_fault_is_seen_by_the_law_it_breaks(
    faulty: Any, law: Callable[[Bench], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = "cpu" if issubclass(faulty, HostDevice) else "sim"
    monkeypatch.setattr(f"interlock.worker.devices.{'host' if kind == 'cpu' else 'sim'}.open_device", faulty)
    bench = bench_of(kind, {}, patience_s=0.5, moment_s=0.5)
    try:
        with pytest.raises((AssertionError, pytest.fail.Exception, ZeroDivisionError, InterlockError)):
            law(bench)
    finally:
        bench.close()


def test_every_law_has_a_planted_fault() -> None:
    assert {law for _, law in FAULTS} == set(LAWS)
