"""What a worker lends for a read: given back when nobody looks at it any more.

Also where Ctrl-C came between an answer's coming and its use: the last reference to it goes, and its number joins a
list, which the next that is sent takes along.
"""

from __future__ import annotations

from collections import deque


class Loan:
    """A worker's memory that a read may look into, for as long as this object is kept."""

    __slots__ = ("_number", "_over")

    def __init__(self, number: int, over: deque[int]) -> None:
        """`over` gets the number when the loan ends."""
        self._number = number
        self._over = over

    def __del__(self) -> None:
        self._over.append(self._number)
