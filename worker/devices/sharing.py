"""Memory of a NumPy device that other processes may map: tickets out, tickets in, and who still holds what.

Both NumPy devices keep their memory in arenas, so what they share works the same way. A slab is a segment of the
arena; its generation counts how many segments have had its number. Knows nothing of streams.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ...protocol.arena import NOTHING, Arena, Block, Bytes, Mappings, SegmentGone
from ...protocol.errors import ImportFailed, InterlockError, OutOfDeviceMemory, PeerGone, Stale
from ...protocol.identity import Identity
from .base import PROBE_NBYTES, Ticket, probe_pattern


class Borrowed:
    """Memory of another process, mapped here to be read."""

    __slots__ = ("bytes", "gone", "key", "nbytes", "owner")

    arena = None  # it is no block of an arena here

    def __init__(self, owner: Identity, nonce: bytes, memory: Bytes) -> None:
        self.owner = owner
        self.key = (owner.incarnation, nonce)
        self.nbytes = len(memory)
        self.bytes = memory
        self.gone = False

    def __repr__(self) -> str:
        return f"Borrowed({self.nbytes} bytes of process {self.owner.pid}{', which is gone' if self.gone else ''})"


class Loans:
    """What is borrowed from other processes: by mapping, each opened once, with the borrowed buffers that keep it."""

    def __init__(self) -> None:
        self._mappings = Mappings()
        self._out: dict[tuple[int, bytes], set[Borrowed]] = {}  # every open mapping, and who uses it
        self._owners: dict[tuple[int, bytes], Identity] = {}
        self._forgotten: set[int] = set()  # incarnations; one number for each peer that ever died

    def attach(self, owner: Identity, ticket: Sequence[object], numbers: tuple[int, int] | None = None) -> Borrowed:
        """Maps what a ticket names; `numbers`: the slab and generation that its owner must have given to it."""
        if owner.incarnation in self._forgotten:
            raise PeerGone(f"process {owner.pid}, which owned the memory, has ended")
        try:
            memory = self._mappings.array(owner, ticket)
        except OutOfDeviceMemory:
            self.trim()  # what nobody uses any more may be in its way
            memory = self._mappings.array(owner, ticket)
        nonce = ticket[3]
        assert isinstance(nonce, bytes)
        if numbers is not None and self._mappings.numbers(owner, nonce) != numbers:
            raise ImportFailed(f"slab and generation {numbers} are not those of the memory that the ticket names")
        borrowed = Borrowed(owner, nonce, memory)
        self._out.setdefault(borrowed.key, set()).add(borrowed)
        self._owners[borrowed.key] = owner
        return borrowed

    def release(self, borrowed: Borrowed) -> None:
        """Ends a loan. Its mapping stays open for the next one, until `trim` or `forget`."""
        if borrowed.gone:
            return  # it ended when its owner did
        users = self._out.get(borrowed.key)
        if users is None or borrowed not in users:
            raise InterlockError(f"{borrowed} was released before")
        users.remove(borrowed)
        borrowed.bytes = NOTHING

    def forget(self, owner: Identity) -> None:
        self._forgotten.add(owner.incarnation)
        for key in [key for key in self._out if key[0] == owner.incarnation]:
            for borrowed in self._out.pop(key):
                borrowed.gone, borrowed.bytes = True, NOTHING
            del self._owners[key]
        self._mappings.forget(owner)

    def trim(self) -> None:
        """Closes the mappings that nobody uses."""
        for key in [key for key, users in self._out.items() if not users]:
            del self._out[key]
            self._mappings.drop(self._owners.pop(key), key[1])
        self._mappings.trim()

    def close(self) -> None:
        self._mappings.close()
        self._out, self._owners = {}, {}

    @property
    def mapped(self) -> int:
        return len(self._mappings)

    @property
    def idle(self) -> bool:
        return not any(self._out.values())


class Exports:
    """The device memory of one process as others may import it, and what it imports from them."""

    def __init__(self, arena: Arena, identity: Identity, loans: Loans) -> None:
        self._arena: Final = arena
        self._identity: Final = identity
        self._loans: Final = loans
        self._exported: dict[tuple[int, int], Block] = {}  # by segment and offset, until retired
        self._own: dict[Block, int] = {}  # a local block -> how often it is imported here
        self._probe: Block | None = None

    def export(self, block: Block) -> Ticket:
        where = self._arena.ticket(block)
        self._arena.held.add(block.segment)
        self._exported[block.segment, block.offset] = block
        generation = self._arena.generation(block.segment)
        return ("slab", self._identity.incarnation, block.segment, generation, *where)

    def release_export(self, ticket: Sequence[object]) -> None:
        incarnation, slab, generation = _slab(ticket)
        if incarnation == self._identity.incarnation and generation == self._generation(slab):
            self._arena.held.discard(slab)

    def retired(self, block: Block) -> None:
        """The block was freed: from here on nobody may import it."""
        if self._exported and self._exported.get((block.segment, block.offset)) is block:
            del self._exported[block.segment, block.offset]

    def import_(self, owner: Identity, ticket: Sequence[object]) -> Block | Borrowed:
        incarnation, slab, generation = _slab(ticket)
        if incarnation != owner.incarnation:
            raise Stale(f"the ticket is of incarnation {incarnation} of process {owner.pid}, not {owner.incarnation}")
        if incarnation == self._identity.incarnation:
            return self._import_own(slab, generation, ticket)
        try:
            return self._loans.attach(owner, ticket[4:], (slab, generation))
        except SegmentGone as error:
            raise Stale(f"slab {slab} of process {owner.pid}, generation {generation}: {error}") from error

    def _import_own(self, slab: int, generation: int, ticket: Sequence[object]) -> Block:
        offset, nbytes = ticket[8:10]
        block = self._exported.get((slab, offset)) if isinstance(offset, int) else None
        if generation != self._generation(slab) or block is None or block.nbytes != nbytes:
            raise Stale(f"nothing is exported at {offset!r} of slab {slab}, generation {generation}, of this process")
        self._own[block] = self._own.get(block, 0) + 1
        return block

    def release_import(self, buffer: Block | Borrowed) -> None:
        if isinstance(buffer, Borrowed):
            self._loans.release(buffer)
            return
        count = self._own.pop(buffer, 0)
        if count == 0:
            raise InterlockError(f"{buffer} is not imported, or was released before")
        if count > 1:
            self._own[buffer] = count - 1

    def export_slot(self, slot: int, slots: int, kind: str) -> Ticket:
        if not 0 <= slot < slots:
            raise InterlockError(f"there are {slots} slots, and no slot {slot}")
        return (kind, self._identity.incarnation, slot)

    def probe_block(self) -> tuple[Block, bool]:
        """The block that peers probe, and whether it still has to be filled."""
        fresh = self._probe is None
        block = self._probe = self._probe or self._arena.allocate(PROBE_NBYTES)
        return block, fresh

    def probe(self, owner: Identity, ticket: Sequence[object]) -> bool:
        try:
            buffer = self.import_(owner, ticket)
        except (ImportFailed, Stale):
            return False
        good = buffer.bytes.tobytes() == probe_pattern(owner)
        self.release_import(buffer)
        return good

    def _generation(self, slab: int) -> int:
        try:
            return self._arena.generation(slab) if slab >= 0 else 0
        except IndexError:
            return 0

    @property
    def idle(self) -> bool:
        probe = self._probe.capacity if self._probe else 0
        return self._arena.used_bytes == probe and not self._own


def _slab(ticket: Sequence[object]) -> tuple[int, int, int]:
    """Incarnation, slab and generation of a ticket; what follows them is the arena's to check."""
    if len(ticket) == 10:
        kind, incarnation, slab, generation = ticket[:4]
        if kind == "slab" and type(incarnation) is int and type(slab) is int and type(generation) is int:
            return incarnation, slab, generation
    raise ImportFailed(f"not a ticket for device memory: {str(ticket)[:200]}")


def slot_of(owner: Identity, ticket: Sequence[object], kind: str) -> int | None:
    """The slot of `owner` that a ticket of this kind names; None if it is of another kind."""
    match ticket:
        case (str(found), int(incarnation), int(slot)) if 0 <= slot < 1 << 31:
            if incarnation != owner.incarnation:
                raise Stale(f"the slot is of incarnation {incarnation} of process {owner.pid}")
            return slot if found == kind else None
    raise ImportFailed(f"not a ticket for a slot: {str(ticket)[:200]}")


def array_in(
    buffer: Block | Borrowed,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    offset: int = 0,
    strides: tuple[int, ...] | None = None,
) -> npt.NDArray[Any]:
    """An array inside a buffer; refused if it does not fit, or if the buffer was freed, released or lost."""
    try:
        return np.ndarray(shape, dtype, buffer.bytes, offset, strides)
    except (TypeError, ValueError) as error:
        raise _misuse(buffer, f"an array of shape {shape}, dtype {dtype} at offset {offset}") from error


def stretch(buffer: Block | Borrowed, offset: int, nbytes: int) -> Bytes:
    """`nbytes` bytes of a buffer from `offset` on; refused if they are not all inside."""
    found = buffer.bytes[offset : offset + nbytes]
    if len(found) != nbytes or offset < 0:
        raise _misuse(buffer, f"{nbytes} bytes at offset {offset}")
    return found


def _misuse(buffer: Block | Borrowed, wanted: str) -> InterlockError:
    if isinstance(buffer, Borrowed) and buffer.gone:
        return PeerGone(f"process {buffer.owner.pid}, which owned the memory, has ended")
    if buffer.bytes is NOTHING:
        return InterlockError(f"{buffer} was freed or released: {wanted} cannot be had")
    return InterlockError(f"{wanted} do not lie inside {buffer}")
