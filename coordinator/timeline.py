"""What happened when: a timeline for Perfetto, and how much of the transfers was hidden behind computing.

Pure: records go in (what the frontend issued, what each worker ran, what moved, where the frontend waited), plain
values come out. Knows no session, worker or clock: every time is nanoseconds on one clock, aligned by the caller.
"""

from __future__ import annotations

from typing import NamedTuple


class Issued(NamedTuple):
    """The frontend issued instruction `n` of `lane`, at the user's line."""

    lane: int  # index into the list of devices
    n: int
    name: str
    kind: str  # create, compute, send, recv, read, free, upload
    file: str
    line: int
    function: str
    issued_ns: int
    reads: tuple[int, ...]  # buffer ids, unique in the session
    writes: tuple[int, ...]
    ticket: int | None  # the same on a send and its recv
    detail: str  # such as "float64 (128, 256)"


class Ran(NamedTuple):
    """A worker spent this time on instruction `n` of its lane."""

    lane: int
    n: int
    stream: str  # compute, h2d, d2h, peer
    start_ns: int
    end_ns: int


class Moved(NamedTuple):
    """A transfer: from the moment the producer sent the ticket until the consumer had the array."""

    ticket: int
    source: int
    target: int
    nbytes: int
    sent_ns: int
    taken_ns: int
    in_place: bool  # the consumer reads the producer's memory: nothing was copied


class Blocked(NamedTuple):
    """The frontend waited."""

    what: str  # read, credit, synchronize
    file: str
    line: int
    start_ns: int
    end_ns: int
