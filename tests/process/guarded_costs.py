"""Which costs of the frontend are guarded, what each was when it was last looked at, and how much more is let pass.

A cost is the processor time of the program's own thread for one unit of work, over that of NumPy adding two arrays of
ten numbers. This is the only place with these figures; how they are compared is `test_costs.py`'s.

To guard another one: a function that sets the stage and yields `round_s`, which does one short round (a millisecond or
so, to fit between two interruptions) and says what a unit of it took, in seconds; and an entry in COSTS. To change a
figure: run `test_costs.py -s`, which prints what it measures, and say in the commit why it became dearer.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final, NamedTuple

import interlock as il

Round = Callable[[], float]
UNITS: Final = 500  # in a round


class Cost(NamedTuple):
    """One guarded cost; `ratio * margin` is the most that it may be."""

    name: str
    stage: Callable[[], AbstractContextManager[Round]]
    ratio: float  # over NumPy's own small add, as measured
    margin: float
    why: str  # why this ratio, and why this margin


def clocked(work: Callable[[int], object], units: int = UNITS) -> float:
    """Processor time of this thread for one unit: what other processes and threads do counts only by their caches."""
    started = time.thread_time()
    work(units)
    return (time.thread_time() - started) / units


@contextmanager
def halted(session: Any) -> Iterator[None]:
    """Workers stand still: how fast they are decides how often a batch leaves, and so the frontend's cost."""
    pids = session.pids.values()
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


@contextmanager
def issue() -> Iterator[Round]:
    """`x + y` on ten numbers; the sending of full batches and the freeing of dropped results included."""
    with il.connect(devices=["cpu:0"], window=64 * UNITS) as session:  # a round never waits for room
        x, y = il.ones(10), il.ones(10)

        def sums(n: int) -> None:
            for _ in range(n):
                x + y

        def round_s() -> float:
            il.synchronize()
            with halted(session):
                return clocked(sums)

        yield round_s


COSTS: Final = (
    Cost(
        "issue one small operation",
        issue,
        ratio=4.8,
        margin=1.3,
        why="On one machine, busy or idle, it came out between 4.5 and 5.5 in every run. The rest of the margin is for "
        "processors and versions of Python and NumPy that are not equally fast at Python and at NumPy's add.",
    ),
)
