"""Whatever a ticket for shared memory says: it gives what its owner has there, or an error of ours, nothing else."""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from interlock.protocol.arena import PAGE, Arena, Mappings
from interlock.protocol.errors import ImportFailed, PeerGone, Stale
from interlock.protocol.identity import own_identity, parse_identity
from interlock.worker.devices.host import HostDevice

SIZE = 1 << 20
ANYTHING = (
    st.none()
    | st.booleans()
    | st.integers(-(1 << 64), 1 << 64)
    | st.sampled_from([0, 1, 8, PAGE, PAGE - 1, SIZE, SIZE + PAGE, SIZE + 2 * PAGE, 1 << 31, 1 << 48, (1 << 63) - 1])
    | st.floats()
    | st.text(max_size=40)
    | st.binary(max_size=20)
    | st.sampled_from(["memfd", "shm", "slab", "/etc/passwd", "../../etc/passwd", b"\0" * 16])
    | st.lists(st.integers(), max_size=2).map(tuple)
)
CHANGES = st.dictionaries(st.integers(0, 5), ANYTHING, max_size=4)


@pytest.fixture(scope="module", params=["memfd", "shm"])
def arena(request: pytest.FixtureRequest) -> Iterator[Arena]:
    arena = Arena(SIZE, own_identity(), SIZE, kind=request.param)
    yield arena
    arena.close()


@given(changes=CHANGES, length=st.sampled_from([6, 6, 6, 0, 5, 7, 10]), writable=st.booleans())
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_forged_ticket_names_its_owners_memory_or_nothing(
    arena: Arena, changes: dict[int, object], length: int, writable: bool
) -> None:
    block = arena.allocate(4096)
    arena.memory(block)[:] = bytes([7]) * 4096
    mappings = Mappings()
    try:
        ticket = list(arena.ticket(block))
        for place, value in changes.items():
            ticket[place] = value  # type: ignore[call-overload]
        forged = (*ticket, *ticket)[:length]
        try:
            found = mappings.attach(own_identity(), forged, writable=writable)
        except (ImportFailed, PeerGone):
            return
        assert len(found) == forged[5]
        assert len(found) <= SIZE
        found.tobytes()  # every byte of it is there
        if not changes:
            assert found.tobytes() == bytes([7]) * 4096
    finally:
        mappings.close()
        arena.free(block)


@given(changes=st.dictionaries(st.integers(0, 9), ANYTHING, max_size=4))
@settings(max_examples=150, deadline=None)
def test_a_forged_ticket_for_device_memory_is_refused_in_words(changes: dict[int, object]) -> None:
    identity = own_identity()
    device = HostDevice(0, SIZE, identity, {})
    try:
        block = device.alloc(4096)
        ticket = list(device.export(block))
        for place, value in changes.items():
            ticket[place] = value  # type: ignore[call-overload]
        try:
            found = device.import_(identity, tuple(ticket))
        except (ImportFailed, PeerGone, Stale):
            return
        assert found.nbytes == 4096
    finally:
        device.close()


@given(
    shape=st.lists(st.integers(-2, 1 << 40), max_size=3).map(tuple),
    offset=st.integers(-(1 << 62), 1 << 62),
    strides=st.lists(st.integers(-(1 << 62), 1 << 62), max_size=3).map(tuple),
    dtype=st.sampled_from(["<f8", "|u1", "<c16"]),
)
@settings(max_examples=200, deadline=None)
def test_no_view_reaches_outside_of_its_memory(
    shape: tuple[int, ...], offset: int, strides: tuple[int, ...], dtype: str
) -> None:
    device = HostDevice(0, SIZE, own_identity(), {})
    try:
        block = device.alloc(4096)
        try:
            array = device.view(block, shape, np.dtype(dtype), offset, strides)
        except Exception:
            return
        low, high = np.lib.array_utils.byte_bounds(array)
        start = block.bytes.__array_interface__["data"][0]
        assert array.size == 0 or start <= low <= high <= start + 4096
    finally:
        device.close()


@given(st.lists(ANYTHING, max_size=8).map(tuple))
@settings(deadline=None)
def test_what_is_no_identity_is_refused(values: tuple[object, ...]) -> None:
    with pytest.raises(ValueError, match="is not the identity of a process"):
        parse_identity(values)


@pytest.mark.parametrize("change", [{"pid": 0}, {"pid": -1}, {"pid": 1 << 31}, {"uid": -1}, {"start_time": -5}])
def test_numbers_that_no_process_has_are_refused(change: dict[str, int]) -> None:
    assert parse_identity(tuple(own_identity())) == own_identity()
    with pytest.raises(ValueError, match="is not the identity of a process"):
        parse_identity(tuple(own_identity()._replace(**change)))
    assert own_identity().pid == os.getpid()
