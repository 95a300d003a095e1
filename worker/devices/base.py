"""The device interface: all that the rest of the worker knows of the device it drives.

It says what a device must do and promises in which order; it does not know how. A device file implements it, and
one conformance suite holds every device to the laws below.

A device has four **streams**, queues of work that run side by side: COMPUTE, H2D (host to device), D2H (device to
host) and PEER (from another device). A **mark** is a point in a stream that others can wait for. A **buffer** is a
stretch of memory without shape or dtype: of the device, of the host (shared, so that other processes can map it),
attached (another process's host memory) or imported (another process's device memory). An *inline* device has no
queues: what it is told to do is done when the call returns, and the laws about order hold by themselves.

The laws
 1. Work of one stream runs in the order issued. Nothing orders two streams but marks and waits.
 2. `launch`, `copy`, `record`, `wait`, `notify` and `retire` return without waiting for the device (an inline device
    has done the work instead).
 3. A `wait` means the record that its mark stands at when `wait` is called, not a later one; a slot that was never
    recorded counts as done.
 4. The caller allocates results: a launch makes no device memory that outlives it.
 5. Memory belongs to the compute stream's order: `alloc` may hand out at once what `retire` took back, and only work
    that comes after the retire on COMPUTE may touch it, or work ordered behind that by a mark.
 6. Importing one's own export gives the local buffer.
 7. Two imports out of one slab share one mapping. It stays open while any import of it is held and until the work
    that the last release was told to wait for is done; then `trim`, `forget` or `close` may close it.
 8. A slab out of which something was exported is not given back to the system before `release_export`.
 9. A ticket of an earlier incarnation or generation raises Stale.
10. A lost device stays lost: every call but `drain`, `memory`, `idle` and `close` raises DeviceLost, and each
    pending notification arrives exactly once, with the error.
11. An allocation that fails changes nothing.
12. Notifications asked for in the order of one stream's marks arrive in that order.
13. Device calls come from the thread that opened the device, and from no other.
14. Nothing is pickled: a ticket is a tuple of ints, strings and bytes, and its types, lengths and bounds are checked
    before it is used.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, NoReturn, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from ...protocol.errors import DeviceLost
from ...protocol.identity import Identity

COMPUTE: Final = 0
H2D: Final = 1
D2H: Final = 2
PEER: Final = 3
STREAMS: Final = ("compute", "h2d", "d2h", "peer")

PROBE_NBYTES: Final = 4096
REACHED_SLOT: Final = "reached"  # the kind of slot that an inline device exports: nobody has to wait for it

Ticket: TypeAlias = tuple[int | str | bytes, ...]
Completion: TypeAlias = tuple[Any, BaseException | None]
"""(the token given to `notify`, None or what went wrong)."""


class DeviceInfo(NamedTuple):
    """What others must know of a device to choose a path to it. Plain values: it travels as it stands."""

    kind: str  # cpu, sim, cuda
    ordinal: int  # which of its kind
    uuid: str  # names the device across processes, where an ordinal may not
    memory_bytes: int
    exports_memory: bool  # does export/import work between processes
    exports_events: bool  # and do slots


class Buffer(Protocol):
    """A stretch of memory. Opaque but for its size."""

    @property
    def nbytes(self) -> int: ...


class Mark:
    """A point in a stream, or a slot that such points are recorded into. Each device has its own."""

    __slots__ = ()


class Device(Protocol):
    """One device. The laws are at the top of this file."""

    info: DeviceInfo
    inline: bool  # True: a launch has finished when it returns
    xp: Any  # the array module of this device; used only inside what is launched
    completion_fd: int | None  # readable when `drain` has something; None: it has it as soon as `notify` returns

    # memory of the device
    def alloc(self, nbytes: int, /) -> Buffer:
        """Memory, valid in compute order. Raises OutOfDeviceMemory."""
        ...

    def view(
        self,
        buffer: Buffer,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        offset: int = 0,
        strides: tuple[int, ...] | None = None,
    ) -> Any:
        """An array of this device in a buffer of it (an inline device: in any buffer, read-only if it is another's)."""
        ...

    def retire(self, buffer: Buffer, after: Sequence[Mark] = ()) -> None:
        """Takes memory back once the compute stream has reached this point and, before it, the given marks."""
        ...

    # work
    def launch(self, stream: int, fn: Callable[..., object], *args: Any) -> None:
        """Runs fn(*args) in stream order. fn deals with its own errors; if it raises, the device is lost."""
        ...

    def copy(
        self, stream: int, dst: Buffer, src: Buffer, nbytes: int, dst_offset: int = 0, src_offset: int = 0
    ) -> None:
        """Copies bytes in stream order, between any two kinds of buffers; dst must be this process's own."""
        ...

    # order
    def record(self, stream: int, slot: int | None = None) -> Mark:
        """A mark for all that the stream has been given so far; `slot`: in that slot of the fixed ring."""
        ...

    def wait(self, stream: int, mark: Mark) -> None:
        """What the stream is given from here on runs after the mark is reached."""
        ...

    def query(self, mark: Mark) -> bool:
        """Has the mark been reached?"""
        ...

    def notify(self, mark: Mark, token: Any) -> None:
        """Makes `drain` return the token once the mark is reached."""
        ...

    def drain(self) -> list[Completion]:
        """The tokens that have arrived since the last call."""
        ...

    def fence(self, timeout: float) -> None:
        """Waits until all work given so far is done; TimeoutError after so many seconds. For start, end and tests."""
        ...

    # host memory that other processes can map
    def host_alloc(self, nbytes: int, /) -> Buffer: ...

    def host_retire(self, buffer: Buffer) -> None:
        """Takes host memory back at once: the caller knows that no work is under way in it."""
        ...

    def host_array(
        self,
        buffer: Buffer,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        offset: int = 0,
        strides: tuple[int, ...] | None = None,
    ) -> npt.NDArray[Any]: ...

    def host_ticket(self, buffer: Buffer) -> Ticket: ...

    def host_attach(self, owner: Identity, ticket: Sequence[object]) -> Buffer:
        """Another process's host memory, read-only. Raises ImportFailed or PeerGone."""
        ...

    def host_detach(self, buffer: Buffer) -> None: ...

    # memory and slots between processes
    def export(self, buffer: Buffer) -> Ticket: ...

    def release_export(self, ticket: Sequence[object]) -> None:
        """Every importer has closed the slab that this ticket lies in, or is gone: the slab may be given back."""
        ...

    def import_(self, owner: Identity, ticket: Sequence[object]) -> Buffer:
        """Another process's device memory, read-only. Raises ImportFailed, PeerGone or Stale."""
        ...

    def release_import(self, buffer: Buffer, after: Sequence[Mark] = ()) -> None:
        """Lets an import go once the marks are reached."""
        ...

    def forget(self, owner: Identity) -> None:
        """That process is gone: what is imported or attached from it ends, and using it raises PeerGone."""
        ...

    def export_slot(self, slot: int) -> Ticket: ...

    def import_slot(self, owner: Identity, ticket: Sequence[object]) -> Mark:
        """Another process's slot, to wait for. Raises ImportFailed where slots are not shared."""
        ...

    def probe_ticket(self) -> Ticket:
        """A ticket for memory that holds `probe_pattern` of this process; may wait for the device."""
        ...

    def probe(self, owner: Identity, ticket: Sequence[object]) -> bool:
        """Does importing from that process really give its bytes? Reads and compares; never raises ImportFailed."""
        ...

    # housekeeping
    def memory(self) -> dict[str, int]:
        """Bytes used, cached and limit; number of slabs exported and imported."""
        ...

    def trim(self) -> None:
        """Gives memory that nobody uses back to the system, and closes mappings that nobody holds."""
        ...

    @property
    def idle(self) -> bool:
        """Is nothing allocated, attached or imported, and no notification on its way?"""
        ...

    def close(self) -> None:
        """Drops what was not begun, ends the threads and gives everything back."""
        ...


SURVIVING_CALLS: Final = ("drain", "memory", "close")


def refuse_calls(device: object, text: str) -> None:
    """From now on each call of a lost device raises DeviceLost. Costs nothing as long as no device is lost."""

    def refuse(*args: object, **options: object) -> NoReturn:
        raise DeviceLost(text)

    for name, member in vars(Device).items():
        if callable(member) and not name.startswith("_") and name not in SURVIVING_CALLS:
            setattr(device, name, refuse)


def probe_pattern(owner: Identity) -> bytes:
    """What a probe of that process's memory must find: nothing that could lie there by chance."""
    return hashlib.shake_128(f"interlock probe {owner.pid} {owner.incarnation}".encode()).digest(PROBE_NBYTES)
