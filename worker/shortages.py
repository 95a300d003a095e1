"""Who has the memory that an operation lacked: everything a session holds on this worker, the largest by name.

Asked only when an allocation was refused. Knows buffers, loans and recordings, and nothing of the user's lines.
"""

from __future__ import annotations

import resource
from collections.abc import Iterable
from typing import Any

from ..protocol.errors import OutOfDeviceMemory
from ..protocol.shortage import OWN, PLANNED, READ, Owner, Shortage, amount, largest
from .buffers import Store
from .devices.base import Device
from .transfers import Transfers


def shortage_of(
    error: MemoryError,
    array: str,
    device: Device,
    store: Store,
    transfers: Transfers,
    planned: Iterable[tuple[int, int]],
) -> Shortage:
    """What is known of a refused allocation.

    Args:
        error: as the device, or NumPy for memory of its own, raised it.
        array: what the operation was to make.
        device: that of the worker.
        store: the session's arrays there.
        transfers: what it has lent.
        planned: (recording, bytes) of the memory kept for the temporaries of captured functions.
    """
    name = f"{device.info.kind}:{device.info.ordinal}"
    found = error.shortage if isinstance(error, OutOfDeviceMemory) else None
    used = device.memory()["used"] + store.small_bytes
    if found is None:  # NumPy's own memory: for what a kernel needs on the way
        refusal = f"{error}{address_space()}"
        found = Shortage(name, 0, "", device.info.memory_bytes, used, refusal)
    elif not found.limit:
        found = found._replace(limit=device.info.memory_bytes, used=used)
    holders = transfers.holders()
    held, small = store.owners()
    owners = [
        Owner(*_whose(buffer, loan, holders), nbytes, text) if loan else Owner(buffer, OWN, nbytes, text)
        for buffer, loan, nbytes, text in held
    ]
    owners += [Owner(recording, PLANNED, nbytes, "for temporaries") for recording, nbytes in planned]
    chosen, others = largest(owners)
    place = found.place if ":" in found.place else name
    return found._replace(
        place=place,
        array=array,
        largest=tuple(tuple(owner) for owner in chosen),
        others=others,
        small=small,
        small_bytes=store.small_bytes,
    )


def _whose(buffer: int, loan: int, holders: dict[int, int]) -> tuple[int, int]:
    """(buffer, holder) of memory that only its borrower keeps: the borrower's buffer, as the ticket names it."""
    return (loan, holders[loan]) if loan in holders else (buffer, READ)


def address_space() -> str:
    """The limit of this process's address space, for people; "" if it has none."""
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return "" if limit == resource.RLIM_INFINITY else f" (ulimit -v is {amount(limit)})"


def text_of(specs: Iterable[Any]) -> str:
    """Specs of arrays, for people."""
    return ", ".join(f"{spec.dtype}[{','.join(map(str, spec.shape))}]" for spec in specs)
