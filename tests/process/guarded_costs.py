"""Which costs of the frontend are guarded, what each was when it was last looked at, and how much more is let pass.

A cost is the processor time of the program's own thread for one unit of work, over that of NumPy adding two arrays of
ten numbers. This is the only place with these figures; how they are compared is `test_costs.py`'s.

To guard another one: a function that sets the stage and yields `round_s`, which does one short round (a millisecond or
so, to fit between two interruptions) and says what a unit of it took, in seconds; and an entry in COSTS. To change a
figure: run `test_costs.py -s`, which prints what it measures, and say in the commit why it became dearer.
"""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final, NamedTuple

import numpy as np

import interlock as il
from interlock.protocol.identity import own_identity
from interlock.protocol.messages import Batch, Control
from interlock.protocol.recordings import made
from interlock.protocol.specs import spec
from interlock.worker.devices import open_device
from interlock.worker.executor import Executor

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


REPLAYED: Final = 100  # operations in the recording


def chain(x: Any) -> Any:
    y = x
    for _ in range(REPLAYED):
        y = y + x
    return y


@contextmanager
def replay() -> Iterator[Round]:
    """An operation on ten numbers in a replayed recording: what a worker does for it, done in this process."""
    with il.connect(devices=["cpu:0"]):
        step = il.capture(chain)
        step(il.ones(10))
        (recording,) = [entry.recording for entries in step._entries.values() for entry in entries]
        (part,) = recording.parts
        il.synchronize()
    own = own_identity()
    device = open_device("cpu", 0, limit_bytes=1 << 20, identity=own)
    executor = Executor(device, 0, b"session", lambda message: None, lambda lane, message: None, window=1 << 40)
    ones = spec((10,), np.dtype(float))
    upload = (Control.UPLOAD, 1, ones.id, np.ones(10).tobytes())
    define = (Control.DEFINE, 1, *part.template)
    known = ((ones.id, ones.shape, "<f8", ones.strides),)
    executor.batch(Batch(1, known, (upload, define)), lambda: None)
    (kept,) = part.template.kept
    bases = itertools.count(10)

    def runs(n: int) -> None:
        for _ in range(n):
            base = next(bases)
            run = (Control.RUN, 1, base, (1,), (), len(part.template.instructions))
            executor.batch(Batch(executor.executed + 1, (), (run,)), lambda: None)
            executor.batch(Batch(executor.executed + 1, (), ((Control.FREE, made(base, kept)),)), lambda: None)

    yield lambda: clocked(runs, 10) / REPLAYED
    executor.close()
    device.close()


@contextmanager
def call_captured() -> Iterator[Round]:
    """A call of a captured function of one array and one number: what the program itself does for it."""
    with il.connect(devices=["cpu:0"], window=64 * UNITS) as session:
        step = il.capture(lambda x, rate: x * rate)
        x = il.ones(10)

        def calls(n: int) -> None:
            for _ in range(n):
                step(x, 0.5)

        def round_s() -> float:
            il.synchronize()
            with halted(session):
                return clocked(calls, 50)

        step(x, 0.5)
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
    Cost(
        "replay one operation on a worker",
        replay,
        ratio=1.75,
        margin=1.4,
        why="NumPy's own add is 1 of it; what a run costs as a whole is spread over its operations.",
    ),
    Cost(
        "call a captured function",
        call_captured,
        ratio=47,
        margin=1.5,
        why="Most of it is one message by ZeroMQ, whose cost depends on how busy its threads find the machine.",
    ),
)
