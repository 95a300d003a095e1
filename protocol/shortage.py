"""What an operation lacked when there was no memory for it, and who has the memory: told by a worker, or found here.

A worker knows buffers and bytes, the frontend knows the user's lines; so a shortage travels as plain numbers and each
side makes the text of what it knows. Pure.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

LARGEST: Final = 40  # owners that are told of
NAMED: Final = 5  # those of one line and kind are named together, so many of these

OWN: Final = -1  # an owner that the session's own program holds
READ: Final = -2  # one that the program has dropped, and is reading
PLANNED: Final = -3  # the memory for the temporaries of a captured function


class Owner(NamedTuple):
    """One array that takes up memory."""

    buffer: int  # its number; of PLANNED the recording's
    holder: int  # OWN, READ, PLANNED, or the lane of the worker that reads it in place, and keeps it alive so
    nbytes: int
    array: str  # what it is, such as float64[1000,1000]


class Shortage(NamedTuple):
    """An allocation that was refused."""

    place: str  # whose memory, such as "cpu:0"
    wanted: int  # bytes; 0 where it is not known how many
    array: str  # what was to be made, as far as it is known
    limit: int  # bytes that the session may use there
    used: int  # bytes that it uses
    refusal: str  # the system's own words, where it was the system that refused, not the limit
    largest: tuple[tuple[Any, ...], ...] = ()  # Owners, the largest first
    others: int = 0  # how many more arrays there are
    small: int = 0  # how many arrays too small to be named
    small_bytes: int = 0  # what these take together


def amount(nbytes: int) -> str:
    """A number of bytes, for people."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if nbytes >= unit:
            return f"{nbytes / unit:.1f} {name}"
    return f"{nbytes} bytes"


def tell(shortage: Shortage, issued: str = "", line: Callable[[Owner], str] = lambda _: "") -> str:
    """The shortage in words.

    Args:
        shortage: what is known.
        issued: the user's line of the operation; "" where it is not known.
        line: of an owner, what is to be said of where it comes from.
    """
    what = amount(shortage.wanted) if shortage.wanted else "what it needs on the way"
    text = f"{shortage.place} has no room for {what}"
    text += f" ({shortage.array})" if shortage.array else ""
    text += f" issued at {issued}" if issued else ""
    text += f": {shortage.refusal};" if shortage.refusal else ":"
    text += f" limit {amount(shortage.limit)}, {amount(shortage.used)} in use by this session"
    together: dict[str, list[int]] = {}
    for fields in shortage.largest:
        owner = Owner(*fields)
        together.setdefault(owner.array + line(owner), []).append(owner.nbytes)
    chosen = sorted(together.items(), key=lambda each: -sum(each[1]))[:NAMED]
    parts = [f"{amount(sum(each))}{f' in {len(each)}' if len(each) > 1 else ''} {what}" for what, each in chosen]
    others = len(shortage.largest) - sum(len(each) for _, each in chosen) + shortage.others
    if others:
        parts.append(f"{others} more")
    if shortage.small:
        parts.append(f"{shortage.small} small arrays of {amount(shortage.small_bytes)} together")
    text += f"; largest: {'; '.join(parts)}" if parts else ""
    return text + (". Drop arrays" if shortage.refusal else ". Drop arrays, or connect(memory=...) with more")


def largest(owners: list[Owner]) -> tuple[tuple[Owner, ...], int]:
    """(the largest of them, how many more there are)."""
    chosen = sorted(owners, key=lambda owner: -owner.nbytes)[:LARGEST]
    return tuple(chosen), len(owners) - len(chosen)
