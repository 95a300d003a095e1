"""What a replayed recording costs: an operation on a worker above the same in NumPy, and a step for each worker."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from budgets import REPLAY, REPLAY_STEP
from cores import connect_single
from measuring import Plan, cpu_seconds, rounds, seconds
from rows import Row, held_to

import interlock as il

OPERATIONS = 400  # in a recording


def replay(plan: Plan) -> list[Row]:
    """Processor time: of a worker, for each operation, and of the frontend and a worker, for each step."""
    with connect_single(["cpu:0", "cpu:1", "cpu:2"]) as session:
        return [operation(plan, session), step(plan, session)]


def operation(plan: Plan, session: il.Session) -> Row:
    """A chain of additions of small arrays in one recording; NumPy does the same with `out=` in this process."""
    worker, steps = session.pids["cpu:0"], plan.of(60, 20)
    x = il.ones(100, device="cpu:0")
    a, out = np.ones(100), np.empty(100)

    @il.capture
    def chain(x: Any) -> Any:
        y = x
        for _ in range(OPERATIONS):
            y = y + x
        return y

    @il.capture
    def empty(x: Any) -> Any:
        return x + x

    def numpys() -> None:
        y = a
        for _ in range(OPERATIONS):
            np.add(y, a, out)
            y = out

    def run(function: Any) -> float:
        """Processor seconds of the worker for a step."""
        function(x)
        il.synchronize()
        before = cpu_seconds(worker)
        for _ in range(steps):
            function(x)
        il.synchronize()
        return (cpu_seconds(worker) - before) / steps

    ours, least, floor = rounds(plan.rounds, lambda: run(chain), lambda: run(empty), lambda: seconds(numpys))
    above = [max(mine - once - theirs, 0.0) / OPERATIONS for mine, once, theirs in zip(ours, least, floor, strict=True)]
    return held_to(REPLAY, "us", above, "numpy's own", [each / OPERATIONS for each in floor])


def step(plan: Plan, session: il.Session) -> Row:
    """A recording that takes part in all three workers and does next to nothing there."""
    pids, steps = [*session.pids.values()], plan.of(400, 100)
    arrays = [il.ones(10, device=device) for device in session.devices]

    @il.capture
    def touch(arrays: list[Any]) -> list[Any]:
        return [x + 1.0 for x in arrays]

    def run() -> float:
        """Processor seconds of the frontend and the workers, for each step and worker."""
        touch(arrays)
        il.synchronize()
        everyone = [os.getpid(), *pids]
        before = sum(map(cpu_seconds, everyone))
        for _ in range(steps):
            touch(arrays)
        il.synchronize()
        return (sum(map(cpu_seconds, everyone)) - before) / steps / len(pids)

    (figures,) = rounds(plan.rounds, run)
    return held_to(REPLAY_STEP, "us", figures)
