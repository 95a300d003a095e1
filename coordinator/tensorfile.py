"""Safetensors files, written tensor after tensor, in any order: a draft beside its place, put there when it is whole.

Decides the layout of the file and the order of the steps that make it last. Knows no session, worker or thread.

The format is small: eight bytes of length, a header in JSON, the elements. The package `safetensors` writes it only
from all the data at once, so that a big model would need its memory twice. It is written here, and read by the package.

A reader finds the file that was there before, or the new one, whole: the draft is synced before it takes the file's
place, and the folder after that. A draft is locked by its writer for as long as he lives: one that can be locked is a
dead writer's, and the next writer in that folder removes it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import secrets
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple

import numpy as np

NAMES: Final[dict[np.dtype[Any], str]] = {
    np.dtype(code): name
    for code, name in (
        ("?", "BOOL"), ("i1", "I8"), ("i2", "I16"), ("i4", "I32"), ("i8", "I64"),
        ("u1", "U8"), ("u2", "U16"), ("u4", "U32"), ("u8", "U64"),
        ("f2", "F16"), ("f4", "F32"), ("f8", "F64"), ("c8", "C64"),
    )
}  # fmt: skip
METADATA: Final = "__metadata__"  # of the header; no array can have this name
PIECE: Final = 4 << 20  # bytes that are written at once
_DRAFT: Final = re.compile(r"\..+\.[0-9a-f]{16}\.interlock-draft")


class Entry(NamedTuple):
    """One array of a file."""

    name: str
    dtype: np.dtype[Any]  # in native byte order
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        count = 1
        for extent in self.shape:
            count *= extent
        return count * self.dtype.itemsize


def laid_out(entries: Iterable[Entry]) -> list[Entry]:
    """In the order in which they lie in the file: the widest dtypes first, so that each is aligned."""
    return sorted(entries, key=lambda entry: (-entry.dtype.itemsize, entry.name))


def header(entries: Iterable[Entry], metadata: Mapping[str, str] | None) -> bytes:
    """What stands before the elements; the entries are in the order of the file."""
    table: dict[str, Any] = {} if metadata is None else {METADATA: dict(metadata)}
    begin = 0
    for entry in entries:
        end = begin + entry.nbytes
        table[entry.name] = {"dtype": NAMES[entry.dtype], "shape": entry.shape, "data_offsets": (begin, end)}
        begin = end
    text = json.dumps(table, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


class Draft:
    """A file under construction. A context: what has not been put in place when it ends is removed.

    Raises:
        OSError: from every method: there is no such folder, no room, no permission.
    """

    def __init__(self, place: Path) -> None:
        self.written = 0  # bytes
        self._place = place
        sweep(place.parent)
        while True:
            self._path = place.with_name(f".{place.name}.{secrets.token_hex(8)}.interlock-draft")
            self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
            if self._locked():
                return
            os.close(self._fd)

    def _locked(self) -> bool:
        """Lock it; False if somebody swept it in the moment before."""
        with contextlib.suppress(BlockingIOError, FileNotFoundError):
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return os.path.samestat(os.fstat(self._fd), os.stat(self._path))
        return False

    def go_to(self, offset: int) -> None:
        """What is written next begins there; what was left out may be written later."""
        os.lseek(self._fd, offset, os.SEEK_SET)

    def write(self, data: Any) -> None:
        """Write bytes, or anything that has the buffer protocol and is C-contiguous."""
        rest = memoryview(data).cast("B") if memoryview(data).nbytes else memoryview(b"")
        while rest:
            count = os.write(self._fd, rest[:PIECE])
            self.written += count
            rest = rest[count:]

    def write_array(self, array: np.ndarray[Any, Any]) -> None:
        """Write the elements in C order, little-endian; what has to be rearranged, a piece at a time."""
        little = array.dtype.newbyteorder("<")
        if array.flags.c_contiguous and array.dtype == little:
            self.write(array.reshape(-1).view(np.uint8))  # the buffer protocol does not know every dtype
        elif array.nbytes <= PIECE or not array.ndim:
            self.write(np.ascontiguousarray(array, little).reshape(-1).view(np.uint8))
        else:
            rows = max(PIECE * len(array) // array.nbytes, 1)
            for begin in range(0, len(array), rows):
                self.write_array(array[begin] if rows == 1 else np.ascontiguousarray(array[begin : begin + rows]))

    def put_in_place(self) -> None:
        """Make it last, and let it be the file of that name."""
        os.fsync(self._fd)
        os.replace(self._path, self._place)
        folder = os.open(self._place.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def __enter__(self) -> Draft:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with contextlib.suppress(OSError):  # it has its place
            os.unlink(self._path)
        os.close(self._fd)


def sweep(folder: Path) -> None:
    """Remove the drafts whose writers have ended."""
    for name in os.listdir(folder):
        if _DRAFT.fullmatch(name):
            with contextlib.suppress(OSError):  # it is being written, or its writer was faster
                fd = os.open(folder / name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    os.unlink(folder / name)
                finally:
                    os.close(fd)
