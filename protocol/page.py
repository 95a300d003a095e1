"""The page of shared memory on which a session and its workers tell each other how far things are, without messages.

It has one 8-byte cell for each lane in each row. A cell has one writer; who reads it may find it a moment old.
"""

from __future__ import annotations

from typing import Final

DONE: Final = 0  # the worker: all instructions up to this one have finished
WANTED: Final = 1  # the session: tell at once when this one has finished (0: none)
RUNNING: Final = 2  # the worker, now and then: what runs, or will next; all before have finished, or wait for tickets
SINCE: Final = 3  # the worker, with RUNNING: since when it runs, at the latest, in monotonic ns; 0: it does not
CANCEL: Final = 4  # the session: what has not started up to this one is dropped...
CANCEL_AT: Final = 5  # ...from this moment on, in nanoseconds of the monotonic clock
FLAGGED: Final = 6  # the worker, under nan=: how many Flagged it has sent
ROWS: Final = 7


def cell(page: memoryview, row: int, lane: int) -> int:
    """Where the cell of a lane is on a page, by the number of 8-byte places."""
    return row * (len(page) // ROWS) + lane
