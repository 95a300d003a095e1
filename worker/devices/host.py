"""The CPU as a device: NumPy, run inline, on memory that other processes can map.

A launch has finished when it returns, so marks are always reached and streams need no threads. All memory is of one
arena: what is allocated can be handed to another process as it lies. Knows nothing of instructions or sessions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NoReturn

import numpy as np
import numpy.typing as npt

from ...protocol.arena import Arena, Block
from ...protocol.errors import DeviceLost, ImportFailed, InterlockError
from ...protocol.identity import Identity
from .base import REACHED_SLOT, Completion, Device, DeviceInfo, Mark, Ticket, probe_pattern, refuse_calls
from .sharing import Borrowed, Exports, Loans, array_in, slot_of, stretch

SLOTS: Final = 32
OPTIONS: Final = frozenset({"arena", "minimum_segment"})
_REACHED: Final = Mark()


class HostDevice:
    """NumPy in the lane. Options: `arena` ('memfd' or 'shm'), `minimum_segment`."""

    inline = True
    xp: Any = np
    completion_fd: int | None = None
    alloc: Callable[[int], Block]
    host_alloc: Callable[[int], Block]

    def __init__(self, index: int, limit_bytes: int, identity: Identity, options: Mapping[str, Any]) -> None:
        if unknown := options.keys() - OPTIONS:
            raise InterlockError(f"cpu:{index} has no options {sorted(unknown)}; it has {sorted(OPTIONS)}")
        self.info = DeviceInfo("cpu", index, f"cpu-{identity.boot_id}-{index}", limit_bytes, True, True)
        self._name = f"cpu:{index}"
        self._arena = Arena(
            limit_bytes,
            identity,
            options.get("minimum_segment"),
            kind=options.get("arena"),
            label=f"memory of {self._name}",
        )
        self._loans = Loans()
        self._exports = Exports(self._arena, identity, self._loans)
        self._identity = identity
        self._arrived: list[Completion] = []
        self.alloc = self.host_alloc = self._arena.allocate

    def view(
        self,
        buffer: Any,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        offset: int = 0,
        strides: tuple[int, ...] | None = None,
    ) -> npt.NDArray[Any]:
        try:
            return np.ndarray(shape, dtype, buffer.bytes, offset, strides)
        except (TypeError, ValueError):
            return array_in(buffer, shape, dtype, offset, strides)  # says what is wrong

    host_array = view

    def retire(self, buffer: Any, after: Sequence[Mark] = ()) -> None:
        self._arena.free(buffer)
        self._exports.retired(buffer)

    def host_retire(self, buffer: Any) -> None:
        self.retire(buffer)

    def launch(self, stream: int, fn: Callable[..., object], *args: Any) -> None:
        try:
            fn(*args)
        except Exception as error:
            self._lose(fn, error)

    def copy(self, stream: int, dst: Any, src: Any, nbytes: int, dst_offset: int = 0, src_offset: int = 0) -> None:
        if dst.arena is not self._arena:
            raise InterlockError(f"{dst} is not memory of {self._name}, and only that may be written")
        stretch(dst, dst_offset, nbytes)[:] = stretch(src, src_offset, nbytes)

    def record(self, stream: int, slot: int | None = None) -> Mark:
        return _REACHED

    def wait(self, stream: int, mark: Mark) -> None:
        pass

    def query(self, mark: Mark) -> bool:
        return True

    def notify(self, mark: Mark, token: Any) -> None:
        self._arrived.append((token, None))

    def drain(self) -> list[Completion]:
        arrived, self._arrived = self._arrived, []
        return arrived

    def fence(self, timeout: float) -> None:
        pass

    def host_ticket(self, buffer: Any) -> Ticket:
        return self._arena.ticket(buffer)

    def host_attach(self, owner: Identity, ticket: Sequence[object]) -> Borrowed:
        return self._loans.attach(owner, ticket)

    def host_detach(self, buffer: Any) -> None:
        self._loans.release(buffer)

    def export(self, buffer: Any) -> Ticket:
        return self._exports.export(buffer)

    def release_export(self, ticket: Sequence[object]) -> None:
        self._exports.release_export(ticket)

    def import_(self, owner: Identity, ticket: Sequence[object]) -> Block | Borrowed:
        return self._exports.import_(owner, ticket)

    def release_import(self, buffer: Any, after: Sequence[Mark] = ()) -> None:
        self._exports.release_import(buffer)

    def forget(self, owner: Identity) -> None:
        self._loans.forget(owner)

    def export_slot(self, slot: int) -> Ticket:
        return self._exports.export_slot(slot, SLOTS, REACHED_SLOT)

    def import_slot(self, owner: Identity, ticket: Sequence[object]) -> Mark:
        """A slot of an inline device is reached before anybody can have been told of it."""
        if slot_of(owner, ticket, REACHED_SLOT) is None:
            raise ImportFailed(f"{self._name} cannot wait for slots of a device with queues; wait at its worker")
        return _REACHED

    def probe_ticket(self) -> Ticket:
        block, _ = self._exports.probe_block()
        block.bytes[:] = np.frombuffer(probe_pattern(self._identity), np.uint8)
        return self._exports.export(block)

    def probe(self, owner: Identity, ticket: Sequence[object]) -> bool:
        return self._exports.probe(owner, ticket)

    def memory(self) -> dict[str, int]:
        used, reserved = self._arena.used_bytes, self._arena.reserved_bytes
        return {
            "used": used,
            "cached": reserved - used,
            "limit": self._arena.limit_bytes,
            "exported": len(self._arena.held),
            "imported": self._loans.mapped,
        }

    def trim(self) -> None:
        self._loans.trim()
        self._arena.trim()

    @property
    def idle(self) -> bool:
        return self._exports.idle and self._loans.idle and not self._arrived

    def close(self) -> None:
        self._loans.close()
        self._arena.close()

    def _lose(self, fn: Callable[..., object], error: Exception) -> NoReturn:
        text = f"{self._name} is lost: {getattr(fn, '__qualname__', fn)} raised {type(error).__name__}: {error}"
        refuse_calls(self, text)
        raise DeviceLost(text) from None


def open_device(index: int, limit_bytes: int, identity: Identity, options: Mapping[str, Any]) -> Device:
    return HostDevice(index, limit_bytes, identity, options)
