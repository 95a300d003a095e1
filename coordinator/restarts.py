"""How often a worker that keeps ending is started again, by a launcher or by a session.

Pure: knows no processes and no clock; it is told how long each life lasted.
"""

from __future__ import annotations

from typing import Final

PROVEN_S: Final = 10.0  # a worker that lived so long is no part of a row of failures
ENDS: Final = 4  # so many short lives in a row, and no other worker is started
FIRST_WAIT_S: Final = 0.5  # before the second start in a row; doubled for each further one


class Restarts:
    """The lives of the workers of one device, one after the other."""

    def __init__(self) -> None:
        self.count = 0  # all starts but the first
        self._in_a_row = 0

    def ended(self, lived_s: float) -> float | None:
        """A life ended that served for `lived_s` (0 if it never served): seconds to wait before the next start.

        None: no other one is to be started.
        """
        self._in_a_row = 1 if lived_s >= PROVEN_S else self._in_a_row + 1
        if self._in_a_row >= ENDS:
            return None
        self.count += 1
        return 0.0 if self._in_a_row == 1 else FIRST_WAIT_S * 2.0 ** (self._in_a_row - 2)
