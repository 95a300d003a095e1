"""The arena in one process: what it hands out, takes back, refuses and leaves behind."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.protocol import arena as arena_module
from interlock.protocol.arena import LARGE, PAGE, Arena, Block, Mappings, SegmentGone, size_class, sweep
from interlock.protocol.errors import ImportFailed, InterlockError, OutOfDeviceMemory, PeerGone
from interlock.protocol.identity import Identity, alive, own_identity, same_host

MIB = 1 << 20
F4 = np.dtype("f4")
FORKS = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # other tests may have left threads


@pytest.fixture(params=["memfd", "shm"])
def arena(request: pytest.FixtureRequest) -> Iterator[Arena]:
    made = Arena(64 * MIB, own_identity(), MIB, kind=request.param, label="memory of cpu:7")
    yield made
    made.close()


def dead_identity() -> Identity:
    return own_identity()._replace(start_time=1)


def named_segments() -> list[str]:
    return [name for name in os.listdir("/dev/shm") if f"-{os.getpid()}-" in name]


def in_a_forked_child(say: Callable[[], str]) -> str:
    """What a forked child has to say; it ends at once after that."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writer, say().encode())
        except BaseException as error:
            os.write(writer, repr(error).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as file:
        told = file.read()
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)  # it has ended, and stays a zombie until `collect`
    return told


def collect(pid: int) -> None:
    os.waitpid(pid, 0)


# --- identity


def test_this_process_is_alive_and_a_namesake_of_another_start_time_is_not() -> None:
    assert alive(own_identity())
    assert not alive(dead_identity())
    assert not alive(own_identity()._replace(pid=0))


@FORKS
def test_an_identity_is_the_same_at_each_asking_and_new_in_a_forked_child() -> None:
    first = own_identity()
    assert own_identity() is first

    def compare() -> str:
        own = own_identity()
        new = own.pid == os.getpid() and own.incarnation != first.incarnation
        return f"{own.pid} {new and alive(own) and same_host(own, first)}"

    pid, good = in_a_forked_child(compare).split()
    collect(int(pid))
    assert good == "True"


@FORKS
def test_a_zombie_is_not_alive() -> None:
    told = in_a_forked_child(lambda: f"{os.getpid()} {own_identity().start_time} {alive(own_identity())}")
    pid, start_time, was_alive = told.split()
    assert was_alive == "True"
    assert not alive(own_identity()._replace(pid=int(pid), start_time=int(start_time)))
    collect(int(pid))


def test_another_boot_namespace_or_user_is_another_host() -> None:
    own = own_identity()
    assert same_host(own, own._replace(pid=1, start_time=2, incarnation=3, ipc_namespace=4))
    for other in (own._replace(boot_id="x"), own._replace(pid_namespace=1), own._replace(uid=own.uid + 1)):
        assert not same_host(own, other)


# --- blocks


def test_a_block_is_exactly_as_long_as_asked_and_keeps_what_is_written(arena: Arena) -> None:
    block = arena.allocate(100_000)
    memory = arena.memory(block)
    assert (len(memory), memory.readonly) == (100_000, False)
    arena.array(block, (25_000,), F4)[:] = np.arange(25_000)
    assert np.array_equal(np.frombuffer(memory, F4), np.arange(25_000))


def test_arrays_of_a_block_take_strides_and_offsets(arena: Arena) -> None:
    block = arena.allocate(24)
    arena.array(block, (6,), F4)[:] = range(6)
    assert arena.array(block, (3, 2), F4, (4, 12)).tolist() == [[0, 3], [1, 4], [2, 5]]
    assert arena.array(block, (3,), F4, (-4,), 20).tolist() == [5, 4, 3]
    assert arena.array(block, (0, 3), F4, None, 24).shape == (0, 3)


@pytest.mark.parametrize(
    ("shape", "strides", "offset"), [((7,), None, 0), ((6,), None, 4), ((2,), (24,), 0), ((2,), (-4,), 0)]
)
def test_an_array_that_leaves_its_block_is_refused(
    arena: Arena, shape: tuple[int, ...], strides: tuple[int, ...] | None, offset: int
) -> None:
    block = arena.allocate(24)
    with pytest.raises((TypeError, ValueError)):
        arena.array(block, shape, F4, strides, offset)


def test_a_block_of_no_bytes_is_a_block(arena: Arena) -> None:
    block = arena.allocate(0)
    assert not arena.idle
    assert len(arena.memory(block)) == 0
    assert Mappings().attach(own_identity(), arena.ticket(block)).nbytes == 0
    arena.free(block)
    assert arena.idle


@pytest.mark.parametrize("nbytes", [1, 63, 64, 65, 257, 32_768, 100_001, MIB - 1, MIB, MIB + 1, LARGE + 1])
def test_blocks_are_aligned_and_waste_less_than_a_quarter(nbytes: int) -> None:
    arena = Arena(1 << 30, own_identity())
    filler, block = arena.allocate(64), arena.allocate(nbytes)
    assert nbytes <= block.capacity < max(1.25 * nbytes, 129)
    assert block.bytes.ctypes.data % (PAGE if nbytes >= MIB else 64) == 0
    arena.free(filler)
    arena.free(block)
    arena.close()


@given(st.integers(0, 1 << 45), st.sampled_from([64, 512]))
def test_a_size_class_holds_its_size_is_aligned_and_is_its_own_class(nbytes: int, alignment: int) -> None:
    capacity = size_class(nbytes, alignment)
    assert nbytes <= capacity
    assert capacity % alignment == 0
    assert size_class(capacity, alignment) == capacity
    assert capacity < 1.25 * nbytes or capacity <= 4 * alignment


def test_the_block_freed_last_is_handed_out_next(arena: Arena) -> None:
    first, second = arena.allocate(40_000), arena.allocate(40_000)
    places = first.offset, second.offset
    arena.free(first)
    arena.free(second)
    assert arena.allocate(39_000).offset == places[1]
    assert arena.allocate(40_000).offset == places[0]


def test_a_freed_block_gives_no_memory_and_cannot_be_freed_again(arena: Arena) -> None:
    block = arena.allocate(1000)
    arena.free(block)
    assert not block.live
    for use in (arena.free, arena.memory, arena.ticket):
        with pytest.raises(InterlockError, match="freed"):
            use(block)
    with pytest.raises(TypeError):
        arena.array(block, (1,), F4)
    arena.allocate(1000)
    with pytest.raises(InterlockError, match="freed"):
        arena.free(block)


def test_a_block_of_another_arena_is_refused(arena: Arena) -> None:
    other = Arena(MIB, own_identity())
    block = other.allocate(64)
    with pytest.raises(InterlockError, match="another arena"):
        arena.free(block)
    other.close()


def test_a_large_block_has_a_segment_of_its_own_which_is_used_again() -> None:
    arena = Arena(1 << 30, own_identity(), MIB)
    small, large = arena.allocate(64), arena.allocate(LARGE)
    assert small.segment != large.segment
    segment, reserved = large.segment, arena.reserved_bytes
    arena.free(large)
    again = arena.allocate(LARGE - 1000)
    assert (again.segment, arena.reserved_bytes) == (segment, reserved)
    arena.close()


# --- limits


def test_a_refused_allocation_names_size_use_and_limit_and_changes_nothing(arena: Arena) -> None:
    kept = arena.allocate(10 * MIB)
    kept.bytes[:] = 7
    before = arena.used_bytes, arena.reserved_bytes
    with pytest.raises(OutOfDeviceMemory, match=rf"cpu:7.*{60 * MIB} bytes.*{kept.capacity} bytes.*{64 * MIB} bytes"):
        arena.allocate(60 * MIB)
    assert (arena.used_bytes, arena.reserved_bytes) == before
    assert kept.bytes.min() == kept.bytes.max() == 7
    arena.free(arena.allocate(MIB))


def test_a_block_of_exactly_the_limit_fits_although_its_class_is_larger(arena: Arena) -> None:
    nbytes = 64 * MIB - 3 * PAGE
    assert size_class(nbytes) > nbytes
    arena.free(arena.allocate(nbytes))
    arena.free(arena.allocate(64 * MIB))
    assert arena.reserved_bytes <= arena.limit_bytes


def test_memory_freed_in_one_class_serves_another_at_the_limit(arena: Arena) -> None:
    for block in [arena.allocate(900_000) for _ in range(50)]:
        arena.free(block)
    arena.free(arena.allocate(50 * MIB))
    for block in [arena.allocate(33_000) for _ in range(1000)]:
        arena.free(block)
    arena.free(arena.allocate(40 * MIB))
    assert arena.reserved_bytes <= arena.limit_bytes


def test_a_free_segment_is_given_back_before_memory_is_refused() -> None:
    arena = Arena(100 * MIB, own_identity(), 30 * MIB)
    small = [arena.allocate(10 * MIB) for _ in range(9)]
    for block in small[:6]:
        arena.free(block)
    large = arena.allocate(55 * MIB)
    assert arena.reserved_bytes <= 100 * MIB
    assert large.nbytes == 55 * MIB
    arena.close()


def test_free_memory_of_two_segments_is_never_joined() -> None:
    arena = Arena(4 * MIB, own_identity(), MIB)
    first, second = arena.allocate(MIB), arena.allocate(3 * MIB)
    arena.free(second)
    kept = arena.allocate(MIB)  # what is free behind it starts at the offset at which the first segment ends
    assert (kept.segment, kept.offset + kept.capacity) == (second.segment, first.offset + MIB)
    arena.free(first)
    with pytest.raises(OutOfDeviceMemory):
        arena.allocate(5 * MIB // 2)
    assert arena.allocate(2 * MIB).segment == kept.segment
    arena.close()


def test_a_held_segment_is_never_given_back(arena: Arena) -> None:
    block = arena.allocate(LARGE)
    arena.held.add(block.segment)
    arena.free(block)
    arena.trim()
    with pytest.raises(OutOfDeviceMemory):
        arena.allocate(64 * MIB)
    arena.held.clear()
    arena.allocate(64 * MIB)


def test_trimming_gives_free_segments_back_and_bumps_the_generation(arena: Arena) -> None:
    block = arena.allocate(LARGE)
    number = block.segment
    assert arena.generation(number) == 1
    arena.free(block)
    assert arena.trim() >= LARGE
    assert arena.reserved_bytes == 0
    assert arena.allocate(LARGE).segment == number
    assert arena.generation(number) == 2


def test_a_full_shared_memory_file_system_is_an_error_and_not_a_bus_error(monkeypatch: pytest.MonkeyPatch) -> None:
    allocate, room = os.posix_fallocate, 4 * MIB

    def little_room(fd: int, offset: int, length: int) -> None:
        if length > room:
            raise OSError(errno.ENOSPC, "no space left on device")
        allocate(fd, offset, length)

    monkeypatch.setattr(os, "posix_fallocate", little_room)
    arena = Arena(1 << 30, own_identity(), kind="shm")
    with pytest.raises(OutOfDeviceMemory):
        arena.allocate(100 * MIB)
    arena.allocate(MIB).bytes[:] = 1
    assert len(named_segments()) == 1
    arena.close()
    assert named_segments() == []


class ArenaModel:
    """Random allocations and frees; every live block is filled with its number and must keep it."""

    def __init__(self, arena: Arena) -> None:
        self.arena = arena
        self.live: dict[int, Block] = {}
        self.count = 0

    def allocate(self, nbytes: int) -> None:
        before = self.arena.used_bytes
        try:
            block = self.arena.allocate(nbytes)
        except OutOfDeviceMemory:
            assert self.arena.used_bytes == before
            return
        self.count += 1
        block.bytes[:8] = np.frombuffer(self.count.to_bytes(8, "little"), np.uint8)[: block.nbytes]
        block.bytes[-8:] = block.bytes[:8]
        self.live[self.count] = block

    def free(self, which: int) -> None:
        number = list(self.live)[which % len(self.live)]
        self.check(number)
        self.arena.free(self.live.pop(number))

    def check(self, number: int) -> None:
        block = self.live[number]
        told = np.frombuffer(number.to_bytes(8, "little"), np.uint8)
        assert np.array_equal(block.bytes[:8], told)
        assert np.array_equal(block.bytes[-8:], told)


steps = st.lists(
    st.one_of(
        st.tuples(st.just("allocate"), st.integers(16, 200_000) | st.integers(16, 3_000_000)),
        st.tuples(st.just("free"), st.integers(0, 1000)),
        st.tuples(st.just("trim"), st.just(0)),
    ),
    max_size=60,
)


@given(steps)
def test_no_two_live_blocks_share_a_byte_whatever_was_freed(steps: list[tuple[str, int]]) -> None:
    model = ArenaModel(Arena(8 * MIB, own_identity(), MIB))
    for step, number in steps:
        if step == "allocate":
            model.allocate(number)
        elif step == "trim":
            model.arena.trim()
        elif model.live:
            model.free(number)
        assert model.arena.used_bytes == sum(block.capacity for block in model.live.values())
        assert model.arena.used_bytes <= model.arena.reserved_bytes <= model.arena.limit_bytes
    while model.live:
        model.free(0)
    assert model.arena.idle
    model.arena.trim()
    assert model.arena.reserved_bytes == 0
    model.arena.close()


def test_the_overlap_check_finds_a_planted_overlap() -> None:
    class Overlapping(Arena):
        def free(self, block: Block) -> None:
            super().free(block)
            self._free[block.capacity].append(block._place)

    model = ArenaModel(Overlapping(8 * MIB, own_identity(), MIB))
    model.allocate(1000)
    model.free(0)
    model.allocate(1000)
    model.allocate(1000)
    with pytest.raises(AssertionError):
        model.check(2)
    model.arena.close()


# --- reading side


def test_an_attached_block_shows_the_owners_bytes_and_refuses_writes(arena: Arena) -> None:
    block = arena.allocate(100_000)
    block.bytes[:] = 5
    mappings = Mappings()
    memory = mappings.attach(own_identity(), arena.ticket(block))
    assert (memory.nbytes, memory.readonly, memory[99_999]) == (100_000, True, 5)
    block.bytes[0] = 9
    assert memory[0] == 9
    with pytest.raises(TypeError):
        memory[0] = 1
    writable = mappings.attach(own_identity(), arena.ticket(block), writable=True)
    writable[1] = 8
    assert block.bytes[1] == 8


def test_a_segment_is_opened_once_however_many_blocks_are_attached(arena: Arena) -> None:
    blocks = [arena.allocate(40_000) for _ in range(10)]
    mappings = Mappings()
    views = [mappings.array(own_identity(), arena.ticket(block)) for block in blocks]
    assert len(mappings) == 1
    assert views[1].ctypes.data - views[0].ctypes.data == blocks[1].offset - blocks[0].offset
    mappings.forget(own_identity())
    assert len(mappings) == 0
    assert views[0][0] == blocks[0].bytes[0]


def test_mapped_memory_outlives_its_owners_arena(arena: Arena) -> None:
    block = arena.allocate(1000)
    block.bytes[:] = 3
    mappings = Mappings()
    memory = mappings.attach(own_identity(), arena.ticket(block))
    arena.close()
    assert bytes(memory) == bytes([3]) * 1000
    mappings.trim()
    assert len(mappings) == 0


def test_what_was_given_back_is_refused_and_let_go(arena: Arena) -> None:
    block = arena.allocate(LARGE)
    ticket = arena.ticket(block)
    mappings = Mappings()
    mappings.attach(own_identity(), ticket)
    arena.free(block)
    arena.trim()
    with pytest.raises(SegmentGone):
        Mappings().attach(own_identity(), ticket)
    mappings.trim()
    assert len(mappings) == 0
    arena.allocate(LARGE)  # the same descriptor number, another segment
    with pytest.raises(SegmentGone):
        mappings.attach(own_identity(), ticket)


def test_a_segment_given_back_between_the_ticket_and_the_opening_is_refused() -> None:
    arena = Arena(64 * MIB, own_identity(), MIB, kind="memfd")
    block = arena.allocate(64)
    kind, fd, *rest = arena.ticket(block)
    assert isinstance(fd, int)
    still_open = os.dup(fd)
    arena.free(block)
    arena.trim()
    with pytest.raises(SegmentGone):
        Mappings().attach(own_identity(), (kind, still_open, *rest))
    os.close(still_open)


def test_a_dead_owner_is_a_lost_peer(arena: Arena) -> None:
    with pytest.raises(PeerGone):
        Mappings().attach(dead_identity(), arena.ticket(arena.allocate(64)))


@pytest.mark.parametrize("change", [{"boot_id": "elsewhere"}, {"uid": 4242}])
def test_an_owner_elsewhere_is_an_import_that_failed(arena: Arena, change: dict[str, object]) -> None:
    with pytest.raises(ImportFailed, match="another host"):
        Mappings().attach(own_identity()._replace(**change), arena.ticket(arena.allocate(64)))  # type: ignore[arg-type]


def test_a_descriptor_means_nothing_in_another_pid_namespace_but_a_name_does(arena: Arena) -> None:
    other, ticket = own_identity()._replace(pid_namespace=1), arena.ticket(arena.allocate(64))
    if arena.kind == "shm":
        assert Mappings().attach(other, ticket).nbytes == 64
    else:
        with pytest.raises(ImportFailed, match="namespace"):
            Mappings().attach(other, ticket)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        (0, "file"),
        (0, "shm"),
        (1, -1),
        (1, True),
        (1, 1 << 40),
        (1, "../../etc/passwd"),
        (2, 1 << 60),
        (2, 4096.0),
        (3, b"short"),
        (3, "x" * 16),
        (4, 0),
        (4, -4096),
        (4, MIB * 100),
        (5, -1),
        (5, 1 << 40),
        (5, None),
    ],
)
def test_nonsense_in_a_ticket_is_refused_before_anything_is_opened(
    monkeypatch: pytest.MonkeyPatch, field: int, value: object
) -> None:
    arena = Arena(64 * MIB, own_identity(), MIB, kind="memfd")
    ticket: list[object] = list(arena.ticket(arena.allocate(64)))
    ticket[field] = value
    monkeypatch.setattr(arena_module, "_map", lambda *_: pytest.fail("was opened"))
    with pytest.raises(ImportFailed, match="not a ticket"):
        Mappings().attach(own_identity(), ticket)
    with pytest.raises(ImportFailed, match="not a ticket"):
        Mappings().attach(own_identity(), ticket[:5])
    arena.close()


def test_a_ticket_with_another_size_or_nonce_is_refused(arena: Arena) -> None:
    kind, where, size, nonce, offset, nbytes = arena.ticket(arena.allocate(64))
    assert isinstance(size, int)
    mappings = Mappings()
    with pytest.raises(SegmentGone):
        mappings.attach(own_identity(), (kind, where, size, bytes(16), offset, nbytes))
    for wrong in (size - PAGE, size + PAGE):
        with pytest.raises(ImportFailed):
            mappings.attach(own_identity(), (kind, where, wrong, nonce, offset, nbytes))
    mappings.attach(own_identity(), (kind, where, size, nonce, offset, nbytes))
    with pytest.raises(ImportFailed):
        mappings.attach(own_identity(), (kind, where, size + PAGE, nonce, size, PAGE))


def test_a_descriptor_that_is_a_pipe_or_another_file_is_refused(tmp_path: os.PathLike[str]) -> None:
    reader, writer = os.pipe()
    plain = os.open(os.path.join(tmp_path, "plain"), os.O_RDWR | os.O_CREAT)
    os.truncate(plain, 2 * PAGE)
    for fd in (reader, plain):
        with pytest.raises(SegmentGone, match="not a segment"):
            Mappings().attach(own_identity(), ("memfd", fd, 2 * PAGE, bytes(16), PAGE, 64))
    for fd in (reader, writer, plain):
        os.close(fd)


# --- what is left behind


def test_closing_leaves_neither_names_nor_descriptors(arena: Arena) -> None:
    before = len(os.listdir("/proc/self/fd"))
    arena.allocate(64)
    arena.allocate(LARGE)
    assert len(os.listdir("/proc/self/fd")) > before
    arena.close()
    assert len(os.listdir("/proc/self/fd")) == before
    assert named_segments() == []
    with pytest.raises(InterlockError, match="closed"):
        arena.allocate(64)


def test_an_arena_that_is_dropped_leaves_nothing(arena: Arena) -> None:
    dropped = Arena(MIB, own_identity(), kind=arena.kind)
    dropped.allocate(64)
    before = len(os.listdir("/proc/self/fd"))
    del dropped
    assert len(os.listdir("/proc/self/fd")) < before
    assert named_segments() == []


@FORKS
def test_a_forked_child_neither_allocates_nor_takes_anything_from_its_parent(arena: Arena) -> None:
    block = arena.allocate(1000)
    block.bytes[:] = 4
    ticket = arena.ticket(block)

    def try_everything() -> str:
        try:
            arena.allocate(1000)
        except InterlockError as error:
            arena.free(block)
            arena.trim()
            arena.close()
            return f"{os.getpid()} refused: {error}"
        return f"{os.getpid()} allowed"

    pid, outcome = in_a_forked_child(try_everything).split(maxsplit=1)
    collect(int(pid))
    assert outcome.startswith("refused")
    assert f"process {os.getpid()}" in outcome
    assert bytes(Mappings().attach(own_identity(), ticket)) == bytes([4]) * 1000
    arena.free(block)


def test_sweeping_removes_only_what_a_dead_owner_of_this_namespace_left() -> None:
    own = own_identity()
    nonce = "0123456789abcdef" * 2
    dead = f"interlock-{own.pid_namespace}-{own.pid}-1-{nonce}"
    foreign = f"interlock-{own.pid_namespace + 1}-{own.pid}-1-{nonce}"
    living = f"interlock-{own.pid_namespace}-{own.pid}-{own.start_time}-{nonce}"
    for name in (dead, foreign, living):
        os.close(os.open(f"/dev/shm/{name}", os.O_CREAT | os.O_EXCL, 0o600))
    try:
        removed = sweep()
        assert dead in removed
        assert foreign not in removed
        assert living not in removed
        assert sorted(named_segments()) == sorted([foreign, living])
    finally:
        for name in (foreign, living):
            os.unlink(f"/dev/shm/{name}")


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="memfd or shm"):
        Arena(MIB, own_identity(), kind="file")


def test_named_memory_is_used_where_descriptors_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(name: str, flags: int) -> int:
        raise PermissionError(errno.EPERM, "memfd_create is not allowed")

    monkeypatch.setattr(os, "memfd_create", refused)
    arena = Arena(MIB, own_identity())
    assert arena.kind == "shm"
    assert Mappings().attach(own_identity(), arena.ticket(arena.allocate(64))).nbytes == 64
    arena.close()
