"""How anything is measured: the sides of a comparison in turn, round by round, after rounds that warm up.

Knows clocks, not what is measured.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

Side = Callable[[], float]


class Plan(NamedTuple):
    """How long the run may take."""

    quick: bool

    @property
    def rounds(self) -> int:
        return self.of(15, 5)

    def of(self, normally: int, quickly: int) -> int:
        return quickly if self.quick else normally


def rounds(count: int, *sides: Side, warm: int = 1) -> list[list[float]]:
    """Each side's figures, the sides taken in turn."""
    figures: list[list[float]] = [[] for _ in sides]
    for i in range(warm + count):
        for side, taken in zip(sides, figures, strict=True):
            figure = side()
            if i >= warm:
                taken.append(figure)
    return figures


def seconds(work: Callable[[], Any], clock: Callable[[], float] = time.perf_counter) -> float:
    """How long `work` takes. What it returns is dropped after the clock has stopped."""
    started = clock()
    held = work()
    taken = clock() - started
    del held
    return taken


def repeat(call: Callable[[], object], n: int) -> None:
    for _ in range(n):
        call()


def resident_mib(pid: int) -> float:
    """Memory that a process has in RAM."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def cpu_seconds(pid: int) -> float:
    """Processor time of all threads of a process. In nanoseconds where the kernel tells them, else in its ticks."""
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9
    except OSError:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
