"""Where large arrays lie: a few long-lived segments of shared memory, cut into blocks that are used again.

An `Arena` is the owner's side: it hands out blocks by size class and keeps what is freed for the next block of that
class. A `Mappings` is a reader's side: it maps another process's segments, each once, after checking that they are
what the ticket says. Knows nothing of arrays' meaning, of devices, or of who waits for whom: when a block may be
freed is the caller's to decide. Neither class has a lock; each belongs to one thread at a time.

A segment is a memfd, which peers open through the owner's file descriptor and which the kernel takes back however
the owner dies; where that is refused, it is a named file in /dev/shm, which the owner unlinks and `sweep` removes
after a crash. `multiprocessing.shared_memory` is not used: before Python 3.13 its tracker deletes a segment when a
mere reader exits.

Pages: a memfd is left sparse, so a segment costs memory only where it was written, and a large one costs nothing to
make; only a machine out of memory can fault there, as with any memory. A named segment is allocated in full when it
is made, because /dev/shm may be small (64 MiB in many containers) and a write beyond it would be a bus error.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import re
import resource
import stat
import struct
import weakref
from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import numpy as np

from . import files
from .errors import ImportFailed, InterlockError, OutOfDeviceMemory, PeerGone
from .identity import Identity, alive, own_identity, start_time
from .shortage import Shortage, amount

Ticket: TypeAlias = tuple[int | str | bytes, ...]
"""(kind 'memfd' or 'shm', file descriptor or name, segment size, nonce, offset, nbytes)."""
Bytes: TypeAlias = np.ndarray[Any, np.dtype[np.uint8]]

PAGE: Final = mmap.PAGESIZE
LARGE: Final = 32 << 20  # from here on a block gets a segment of its own
PAGE_ALIGNED: Final = 1 << 20  # from here on a block starts on a page
LARGEST_GROWTH: Final = 1 << 30  # segments grow with the arena, up to this
CLASSES_KEPT: Final = 4096  # sizes whose class is remembered
SHARED_DIRECTORY: Final = "/dev/shm"
NAME: Final = re.compile(r"interlock-(\d{1,20})-(\d{1,10})-(\d{1,20})-[0-9a-f]{32}")  # pid namespace, pid, start, nonce

_HEADER: Final = struct.Struct("<8s16sQQQB")  # magic, nonce, size, segment number, generation, given back
_NUMBERS: Final = struct.Struct("<QQ")  # of those, segment number and generation, which lie at:
_NUMBERS_AT: Final = 32
_GIVEN_BACK: Final = _HEADER.size - 1
_MAGIC: Final = b"ILARENA1"
_SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
NOTHING: Final[Bytes] = np.empty(0, np.uint8)  # what a freed block looks at: NumPy refuses any view of it

_Place: TypeAlias = tuple[int, int]  # segment, offset


class SegmentGone(ImportFailed):
    """The owner lives, but what the ticket names was given back, and may be something else by now."""


class Block:
    """A stretch of an arena. `bytes` is its memory, exactly `nbytes` long; `capacity` is what it takes up."""

    __slots__ = ("_place", "arena", "bytes", "capacity", "nbytes")

    def __init__(self, arena: Arena, place: _Place, nbytes: int, capacity: int, memory: Bytes) -> None:
        self.arena = arena
        self._place = place
        self.nbytes = nbytes
        self.capacity = capacity
        self.bytes = memory

    @property
    def segment(self) -> int:
        return self._place[0]

    @property
    def offset(self) -> int:
        """From the start of the segment, its header included."""
        return self._place[1]

    @property
    def live(self) -> bool:
        return self.bytes is not NOTHING

    def __repr__(self) -> str:
        state = "" if self.live else ", freed"
        return f"Block({self.nbytes} bytes at {self.offset} of segment {self.segment}{state})"


class _Segment:
    """One stretch of shared memory: its descriptor, its name if it has one, and the whole of it as bytes."""

    __slots__ = ("fd", "name", "nonce", "root", "size")

    def __init__(self, fd: int, name: str | None, size: int, nonce: bytes, root: Bytes) -> None:
        self.fd = fd
        self.name = name
        self.size = size  # the header page included
        self.nonce = nonce
        self.root = root


class Arena:
    """The shared memory that one process owns.

    Args:
        limit_bytes: segments may take up this much together, their header pages not counted.
        identity: of this process; it goes into the names of named segments.
        minimum_segment: the size of the first segments; None for a sensible one.
        kind: 'memfd' or 'shm' (named); None for memfd where it works.
        label: whose memory this is, for error texts.
        alignment: of every block, a power of two.
        granularity: segments are multiples of this, a multiple of the page.

    Whoever writes through an arena inherited by `fork` writes the parent's memory; such an arena refuses to allocate,
    and never unlinks what the parent owns.
    """

    def __init__(
        self,
        limit_bytes: int,
        identity: Identity,
        minimum_segment: int | None = None,
        *,
        kind: str | None = None,
        label: str = "shared memory",
        alignment: int = 64,
        granularity: int = PAGE,
    ) -> None:
        if kind not in (None, "memfd", "shm"):
            raise ValueError(f"an arena is made of memfd or shm, not of {kind!r}")
        self.kind: Final[str] = kind or ("memfd" if _memfd_works() else "shm")
        self.limit_bytes: Final = limit_bytes
        self.label: Final = label
        self.identity: Final = identity
        self.used_bytes = 0  # capacity of the blocks that are out
        self.reserved_bytes = 0  # of the segments, without their header pages
        self.held: set[int] = set()  # segments that must not be given back
        self._alignment = alignment
        self._granularity = granularity
        self._minimum = minimum_segment or ((64 << 20) if self.kind == "memfd" else (8 << 20))
        self._segments: dict[int, _Segment] = {}
        self._roots: list[Bytes] = []  # by segment; a segment that was given back leaves NOTHING and its number
        self._generations: list[int] = []
        self._classes: dict[int, tuple[int, list[_Place]]] = {}  # asked size -> its class and that class's free places
        self._free: dict[int, list[_Place]] = {}  # capacity -> places, the last freed first
        self._extents: list[tuple[int, int, int]] = []  # (segment, offset, length) that belong to no class
        self._refused: str | None = None  # why this arena hands out nothing (any more)
        self._refusal = ""  # what the system said when it refused memory, in the last allocation
        if self.kind == "shm":
            sweep()
        self._discard = weakref.finalize(self, _discard, os.getpid(), self._segments)
        _arenas.add(self)

    def allocate(self, nbytes: int) -> Block:
        """A block of at least `nbytes`, its contents undefined. Raises OutOfDeviceMemory, and then changed nothing."""
        try:
            capacity, free = self._classes[nbytes]
        except KeyError:
            capacity, free = self._classify(nbytes)
        if free:
            place = free.pop()
        else:
            place, capacity = self._find(nbytes, capacity)
        self.used_bytes += capacity
        offset = place[1]
        return Block(self, place, nbytes, capacity, self._roots[place[0]][offset : offset + nbytes])

    def free(self, block: Block) -> None:
        """Takes a block back. Arrays made from it stay readable memory, but what they show is anyone's."""
        if block.arena is not self or block.bytes is NOTHING:
            raise InterlockError(f"{block} does not belong to {self.label} now: it was freed, or is another arena's")
        block.bytes = NOTHING
        self.used_bytes -= block.capacity
        self._free[block.capacity].append(block._place)

    def memory(self, block: Block) -> memoryview:
        """The bytes of a block, writable, exactly as many as were asked for."""
        self._check_live(block)
        return block.bytes.data

    def array(
        self,
        block: Block,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        strides: tuple[int, ...] | None = None,
        offset: int = 0,
    ) -> np.ndarray[Any, Any]:
        """An array inside a block; NumPy itself refuses one that does not fit (or any, once the block is freed)."""
        return np.ndarray(shape, dtype, block.bytes, offset, strides)

    def ticket(self, block: Block) -> Ticket:
        """What another process needs to find a block: plain values for `Mappings.attach`."""
        self._check_live(block)
        segment = self._segments[block.segment]
        where = segment.fd if segment.name is None else segment.name
        return (self.kind, where, segment.size, segment.nonce, block.offset, block.nbytes)

    def generation(self, segment: int) -> int:
        """How many segments have had this number, this one included."""
        return self._generations[segment]

    @property
    def idle(self) -> bool:
        """Is no block out?"""
        return self.used_bytes == 0

    def trim(self) -> int:
        """Gives wholly free segments back to the system, except those held; says how many bytes."""
        if self._refused:
            return 0
        self._merge()
        return self._give_back(self._whole_segments())

    def close(self) -> None:
        """Gives everything back. Arrays that still look into a block keep its segment mapped until they go."""
        self._refused = self._refused or f"{self.label} is closed"
        self._classes, self._extents = {}, []
        self._roots = [NOTHING] * len(self._roots)
        self._discard()
        self.reserved_bytes = 0

    def _check_live(self, block: Block) -> None:
        if block.bytes is NOTHING or block.arena is not self:
            raise InterlockError(f"{block} does not belong to {self.label} now: it was freed, or is another arena's")

    def _classify(self, nbytes: int) -> tuple[int, list[_Place]]:
        if self._refused:
            raise InterlockError(self._refused)
        if nbytes < 0:
            raise ValueError(f"a block of {nbytes} bytes cannot be")
        if len(self._classes) >= CLASSES_KEPT:
            self._classes.clear()
        capacity = size_class(nbytes, self._alignment)
        self._classes[nbytes] = found = capacity, self._free.setdefault(capacity, [])
        return found

    def _find(self, nbytes: int, capacity: int) -> tuple[_Place, int]:
        """A place for a block of a class that has none free, with the capacity that it got."""
        exact = _round_up(max(nbytes, 1), self._alignment)
        self._refusal = ""
        if exact > self.limit_bytes - self.used_bytes:
            raise self._out_of_memory(nbytes)
        place = self._without_pressure(capacity)
        for size in (capacity, exact):  # a class is up to a quarter larger than what was asked for
            place = place or self._under_pressure(size)
            if not place and self._refusal and self.trim():  # what the system has back, it may give again
                place = self._grow(size)
            if place:
                self._free.setdefault(size, [])
                return place, size
        raise self._out_of_memory(nbytes)

    def _without_pressure(self, capacity: int) -> _Place | None:
        """A place that costs no other class its free blocks, unless those have become a quarter of the arena."""
        if capacity < LARGE and (place := self._take(capacity)):
            return place
        loose = sum(length for _, _, length in self._extents)
        if self.reserved_bytes - self.used_bytes - loose >= max(capacity, self.reserved_bytes // 4):
            self._merge()
            if place := self._take(capacity, whole=capacity >= LARGE):
                return place
        return self._grow(capacity)

    def _under_pressure(self, capacity: int) -> _Place | None:
        """A place made by joining what is free, or by giving free segments back for a fitting one."""
        self._merge()
        if place := self._take(capacity) or self._grow(capacity):
            return place
        whole, room = self._whole_segments(), self.limit_bytes - self.reserved_bytes
        needed = _round_up(capacity, self._granularity)
        if room + sum(self._data_bytes(segment) for segment in whole) < needed:
            return None
        while whole and self.limit_bytes - self.reserved_bytes < needed:
            self._give_back([whole.pop()])
        return self._grow(capacity)

    def _take(self, capacity: int, whole: bool = False) -> _Place | None:
        """Cuts a place from the first extent that fits; `whole`: only from a whole segment not much larger."""
        for at, (segment, start, length) in enumerate(self._extents):
            if length < capacity or (whole and (length != self._data_bytes(segment) or length > 2 * capacity)):
                continue
            offset = _round_up(start, PAGE) if capacity >= PAGE_ALIGNED else start
            after = start + length - (offset + capacity)
            if after < 0:
                continue
            rest = [(segment, start, offset - start), (segment, offset + capacity, after)]
            self._extents[at : at + 1] = [extent for extent in rest if extent[2]]
            return segment, offset
        return None

    def _merge(self) -> None:
        """Takes the free places from their classes and joins neighbours."""
        pieces = self._extents
        for capacity, places in self._free.items():
            pieces += [(segment, offset, capacity) for segment, offset in places]
            places.clear()
        pieces.sort()
        joined: list[tuple[int, int, int]] = []
        for segment, offset, length in pieces:
            if joined and joined[-1][0] == segment and joined[-1][1] + joined[-1][2] == offset:
                joined[-1] = (segment, joined[-1][1], joined[-1][2] + length)
            else:
                joined.append((segment, offset, length))
        self._extents = joined

    def _data_bytes(self, segment: int) -> int:
        return self._segments[segment].size - PAGE

    def _whole_segments(self) -> list[int]:
        """The segments that are wholly free and not held; asked after `_merge`."""
        extents = ((segment, length) for segment, _, length in self._extents)
        return [s for s, length in extents if length == self._data_bytes(s) and s not in self.held]

    def _give_back(self, segments: list[int]) -> int:
        before = self.reserved_bytes
        self._extents = [extent for extent in self._extents if extent[0] not in segments]
        for number in segments:
            self.reserved_bytes -= self._data_bytes(number)
            self._roots[number] = NOTHING
            _release(self._segments.pop(number))
        return before - self.reserved_bytes

    def _grow(self, capacity: int) -> _Place | None:
        """Makes a segment and cuts a block from it; None if the limit or the system does not allow one."""
        room = (self.limit_bytes - self.reserved_bytes) // self._granularity * self._granularity
        needed = _round_up(capacity, self._granularity)
        if needed > room:
            return None
        wished = needed
        if capacity < LARGE:
            wished = max(needed, self._minimum, min(self.reserved_bytes // 2, LARGEST_GROWTH))
        for size in dict.fromkeys((min(_round_up(wished, self._granularity), room), needed)):
            number = next((n for n, root in enumerate(self._roots) if root is NOTHING), len(self._roots))
            generation = self._generations[number] + 1 if number < len(self._roots) else 1
            segment = self._make_segment(size + PAGE, number, generation)
            if segment is None:
                continue
            if number == len(self._roots):
                self._roots.append(NOTHING)
                self._generations.append(0)
            self._segments[number] = segment
            self._roots[number] = segment.root
            self._generations[number] = generation
            self.reserved_bytes += size
            self._extents.append((number, PAGE, size))
            return self._take_from(number, capacity)
        return None

    def _take_from(self, number: int, capacity: int) -> _Place:
        segment, start, length = self._extents.pop()
        if length > capacity:
            self._extents.append((segment, start + capacity, length - capacity))
        return number, start

    def _make_segment(self, size: int, number: int, generation: int) -> _Segment | None:
        nonce = os.urandom(16)
        if files.free() <= files.SPARE:
            self._refusal = _words(self.kind, size, OSError(errno.EMFILE, os.strerror(errno.EMFILE)))
            return None
        try:
            fd, name = _make_memfd(size) if self.kind == "memfd" else _make_named(size, self.identity, nonce)
        except OSError as error:
            self._refusal = _words(self.kind, size, error)
            return None
        try:
            root: Bytes = np.frombuffer(mmap.mmap(fd, size), np.uint8)
        except (OSError, ValueError) as error:
            _release(_Segment(fd, name, size, nonce, NOTHING))
            self._refusal = _words(self.kind, size, error)
            return None
        _HEADER.pack_into(root.data, 0, _MAGIC, nonce, size, number, generation, 0)
        return _Segment(fd, name, size, nonce, root)

    def _out_of_memory(self, nbytes: int) -> OutOfDeviceMemory:
        error = OutOfDeviceMemory(
            f"{self.label}: no room for {nbytes} bytes: {self.used_bytes} bytes of a limit of {self.limit_bytes} bytes "
            f"are in use; " + (self._refusal or "drop arrays, or raise the memory limit")
        )
        place = self.label.removeprefix("memory of ")
        error.shortage = Shortage(place, nbytes, "", self.limit_bytes, self.used_bytes, self._refusal)
        return error

    def _disown(self, pid: int) -> None:
        self._refused = f"{self.label} belongs to process {pid}; a forked child cannot allocate in it"
        self._classes = {}


def _words(kind: str, nbytes: int, error: Exception) -> str:
    """That the system refused a segment, and by which limit, as far as that can be seen."""
    why = getattr(error, "strerror", None) or str(error)
    text = f"the system refused {amount(nbytes)} of shared memory ({kind}): {why}"
    return text + describe_limits(getattr(error, "errno", 0) or 0, kind)


def describe_limits(number: int, kind: str = "memfd") -> str:
    """The limit behind a refusal with this errno, for people; "" if none is to be seen."""
    if number == errno.ENOSPC and kind == "shm":
        with contextlib.suppress(OSError):
            room = os.statvfs(SHARED_DIRECTORY)
            whole, free = room.f_blocks * room.f_frsize, room.f_bavail * room.f_frsize
            return f" ({SHARED_DIRECTORY} holds {amount(whole)}, of which {amount(free)} are free)"
    names = {errno.ENOMEM: (resource.RLIMIT_AS, "v"), errno.EMFILE: (resource.RLIMIT_NOFILE, "n")}
    if number in names:
        which, letter = names[number]
        limit = resource.getrlimit(which)[0]
        if limit != resource.RLIM_INFINITY:
            return f" (ulimit -{letter} is {limit if letter == 'n' else amount(limit)})"
    return ""


def size_class(nbytes: int, alignment: int = 64) -> int:
    """The capacity that a block of `nbytes` gets: powers of two with three sizes between each two."""
    nbytes = max(nbytes, 1)
    if nbytes <= 4 * alignment:
        return _round_up(nbytes, alignment)
    return _round_up(nbytes, 1 << ((nbytes - 1).bit_length() - 3))


def sweep() -> list[str]:
    """Removes named segments whose owner is dead, and says which. Leaves those of other users and pid namespaces."""
    own, removed = own_identity(), []
    with contextlib.suppress(OSError):
        for name in os.listdir(SHARED_DIRECTORY):
            parts = NAME.fullmatch(name)
            if parts is None or int(parts[1]) != own.pid_namespace or start_time(int(parts[2])) == int(parts[3]):
                continue
            with contextlib.suppress(OSError):  # gone already, or not ours to remove
                os.unlink(f"{SHARED_DIRECTORY}/{name}")
                removed.append(name)
    return removed


class Mappings:
    """The segments of other processes that this one has mapped, each once for as long as it is of use."""

    def __init__(self) -> None:
        self._open: dict[tuple[int, bytes, bool], Bytes] = {}  # (incarnation of the owner, nonce, writable)

    def __len__(self) -> int:
        return len(self._open)

    def attach(self, owner: Identity, ticket: Sequence[object], *, writable: bool = False) -> memoryview:
        """The memory that a ticket names.

        Raises ImportFailed if it cannot be opened or is not what the ticket says, OutOfDeviceMemory if the system has
        no room for it, PeerGone if the owner is dead and the segment was not mapped before. What is mapped stays valid
        memory when the owner dies.
        """
        return self.array(owner, ticket, writable=writable).data

    def array(self, owner: Identity, ticket: Sequence[object], *, writable: bool = False) -> Bytes:
        """The same as `attach`, as an array of bytes."""
        kind, where, size, nonce, offset, nbytes = _checked(ticket)
        root = self._open.get((owner.incarnation, nonce, writable))
        if root is None:
            self.trim()
            root = _map(owner, kind, where, size, nonce, writable)
            self._open[owner.incarnation, nonce, writable] = root
        elif root.size != size:
            raise ImportFailed(f"a ticket of process {owner.pid} gives {size} bytes for a segment of {root.size}")
        elif root[_GIVEN_BACK]:
            raise SegmentGone(f"process {owner.pid} has given the segment back")
        return root[offset : offset + nbytes]

    def numbers(self, owner: Identity, nonce: bytes) -> tuple[int, int]:
        """Number and generation that the owner gave to a segment that is mapped here for reading."""
        number, generation = _NUMBERS.unpack_from(self._open[owner.incarnation, nonce, False].data, _NUMBERS_AT)
        return number, generation

    def drop(self, owner: Identity, nonce: bytes) -> None:
        """Lets go of one segment."""
        for writable in (False, True):
            self._open.pop((owner.incarnation, nonce, writable), None)

    def trim(self) -> None:
        """Lets go of the segments that their owners have given back."""
        self._open = {key: root for key, root in self._open.items() if not root[_GIVEN_BACK]}

    def forget(self, owner: Identity) -> None:
        """Lets go of all that one owner's; views that are still out keep their memory."""
        self._open = {key: root for key, root in self._open.items() if key[0] != owner.incarnation}

    def close(self) -> None:
        self._open = {}


def _checked(ticket: Sequence[object]) -> tuple[str, int | str, int, bytes, int, int]:
    """The fields of a ticket, once each has the right type and they agree with one another."""
    if len(ticket) == 6:
        kind, where, size, nonce, offset, nbytes = ticket
        if type(size) is int and type(offset) is int and type(nbytes) is int and type(nonce) is bytes:
            fits = PAGE <= offset <= offset + nbytes <= size < 1 << 48 and len(nonce) == 16
            if fits and kind == "memfd" and type(where) is int and 0 <= where < 1 << 31:
                return kind, where, size, nonce, offset, nbytes
            if fits and kind == "shm" and type(where) is str and NAME.fullmatch(where):
                return kind, where, size, nonce, offset, nbytes
    raise ImportFailed(f"not a ticket for shared memory: {str(ticket)[:200]}")


def _map(owner: Identity, kind: str, where: int | str, size: int, nonce: bytes, writable: bool) -> Bytes:
    own = own_identity()
    if owner.boot_id != own.boot_id or owner.uid != own.uid:
        raise ImportFailed(f"process {owner.pid} runs on another host or as another user: its memory cannot be mapped")
    if owner.pid_namespace != own.pid_namespace:
        if kind == "memfd":
            raise ImportFailed(f"process {owner.pid} is in another pid namespace: its descriptors cannot be opened")
    elif not alive(owner):
        raise PeerGone(f"process {owner.pid}, which owned the memory, has ended")
    path = f"/proc/{owner.pid}/fd/{where}" if kind == "memfd" else f"{SHARED_DIRECTORY}/{where}"
    try:
        return _map_file(path, size, nonce, writable)
    except FileNotFoundError as error:
        if owner.pid_namespace == own.pid_namespace and not alive(owner):
            raise PeerGone(f"process {owner.pid}, which owned the memory, has ended") from error
        raise SegmentGone(f"process {owner.pid} has given the segment back ({path})") from error
    except (OSError, ValueError) as error:
        number = getattr(error, "errno", 0) or 0
        if number not in (errno.ENOMEM, errno.EMFILE, errno.ENFILE):
            raise ImportFailed(f"shared memory of process {owner.pid} cannot be opened: {error}") from error
        refusal = f"the system refused to map {amount(size)} of another process: {os.strerror(number)}"
        short = OutOfDeviceMemory(refusal + describe_limits(number))
        short.shortage = Shortage("this process", size, "", 0, 0, refusal + describe_limits(number))
        raise short from error


def _map_file(path: str, size: int, nonce: bytes, writable: bool) -> Bytes:
    if not stat.S_ISREG(os.stat(path).st_mode):  # opening a pipe or a terminal could block, or do something
        raise SegmentGone(f"{path} is not a segment (any more)")
    fd = os.open(path, (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        header = os.pread(fd, _HEADER.size, 0)
        if len(header) < _HEADER.size or not header.startswith(_MAGIC):
            raise SegmentGone(f"{path} is not a segment (any more)")
        _, found, told, _, _, given_back = _HEADER.unpack(header)
        if found != nonce or given_back:
            raise SegmentGone(f"{path} is another segment than the ticket names")
        if told != size or os.fstat(fd).st_size != size:
            raise ImportFailed(f"{path} has {told} bytes and {os.fstat(fd).st_size} on file, the ticket says {size}")
        mapped = mmap.mmap(fd, size, prot=mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0))
    finally:
        os.close(fd)
    return np.frombuffer(mapped, np.uint8)


def _memfd_works() -> bool:
    """Can this process make a sealed memfd and open it again through /proc, as its peers will?"""
    try:
        fd, _ = _make_memfd(PAGE)
    except OSError:
        return False
    try:
        os.close(os.open(f"/proc/{os.getpid()}/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC))
    except OSError:
        return False
    finally:
        os.close(fd)
    return True


def _make_memfd(size: int) -> tuple[int, None]:
    fd = os.memfd_create("interlock", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, size)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
    except OSError:
        os.close(fd)
        raise
    return fd, None


def _make_named(size: int, identity: Identity, nonce: bytes) -> tuple[int, str]:
    # The namespace is part of the name: /dev/shm may be shared with processes whose ids mean nothing here.
    name = f"interlock-{identity.pid_namespace}-{identity.pid}-{identity.start_time}-{nonce.hex()}"
    path = f"{SHARED_DIRECTORY}/{name}"
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(fd, 0, size)
    except OSError:
        os.close(fd)
        os.unlink(path)
        raise
    return fd, name


def _release(segment: _Segment) -> None:
    """Lets one segment go; only its owner does that. The mapping goes with the last array that looks into it."""
    if segment.root is not NOTHING:
        segment.root[_GIVEN_BACK] = 1
    segment.root = NOTHING
    os.close(segment.fd)
    if segment.name is not None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{SHARED_DIRECTORY}/{segment.name}")


def _discard(pid: int, segments: dict[int, _Segment]) -> None:
    if os.getpid() == pid:  # a forked child has only copies of the descriptors, which end with it
        for segment in segments.values():
            _release(segment)
    segments.clear()


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


_arenas: weakref.WeakSet[Arena] = weakref.WeakSet()


def _after_fork() -> None:
    for arena in _arenas:
        arena._disown(os.getppid())


os.register_at_fork(after_in_child=_after_fork)
