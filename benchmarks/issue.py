"""What small operations cost: to issue, until they are done, in chains; next to NumPy in one process."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from budgets import ISSUE, TOY
from finishing import done, settled
from measuring import Plan, rounds, seconds
from rows import Row, held_to, timed

import interlock as il


def sums(x: Any, y: Any, n: int) -> None:
    for _ in range(n):
        x + y


def toys(x: Any, y: Any, n: int) -> None:
    for _ in range(n):
        x * y + 2


def chain(x: Any, n: int) -> Any:
    for _ in range(n):
        x = x + 1
    return x


def chains(x: Any, y: Any, n: int) -> Any:
    for _ in range(n):
        x = x + 1
        y = y + 1
    return x, y


def issue(plan: Plan) -> list[Row]:
    """Issue `x + y` on ten numbers: the frontend's own processor time, and by the wall."""
    n = plan.of(20_000, 5_000)
    a = b = np.ones(10)
    with il.connect(devices=["cpu:0"]):
        x, y = il.ones(10), il.ones(10)
        own, wall, numpys = rounds(
            plan.rounds,
            lambda: settled(seconds(lambda: sums(x, y, n), time.thread_time) / n),
            lambda: settled(seconds(lambda: sums(x, y, n)) / n),
            lambda: seconds(lambda: sums(a, b, n)) / n,
        )
    return [
        held_to(ISSUE, "us", own, "numpy a + b", numpys),
        timed("issue one small operation: by the wall", "us", wall, "numpy a + b", numpys),
    ]


def toy(plan: Plan) -> list[Row]:
    """`z = x*y + 2` in a loop, until everything is done."""
    n = plan.of(10_000, 3_000)
    a = b = np.ones(10)
    with il.connect(devices=["cpu:0"]):
        x, y = il.ones(10), il.ones(10)
        ours, numpys = rounds(
            plan.rounds,
            lambda: done(lambda: toys(x, y, n)) / n,
            lambda: seconds(lambda: toys(a, b, n)) / n,
        )
    return [held_to(TOY, "us", ours, "numpy", numpys)]


def throughput(plan: Plan) -> list[Row]:
    """Independent small operations, until all are done: on one worker, and by turns on two."""
    n = plan.of(20_000, 5_000)
    a = b = np.ones(10)

    def by_turns(x: Any, y: Any, n: int) -> None:
        for _ in range(n // 2):
            x + x
            y + y

    with il.connect(devices=["cpu:0", "cpu:1"]) as session:
        x, y = (il.ones(10, device=device) for device in session.devices)
        one, two, numpys = rounds(
            plan.rounds,
            lambda: done(lambda: sums(x, x, n)) / n,
            lambda: done(lambda: by_turns(x, y, n)) / n,
            lambda: seconds(lambda: sums(a, b, n)) / n,
        )
    return [
        timed("x + y until all are done, per operation", "us", one, "numpy", numpys),
        timed("x + y by turns on two workers, per operation", "us", two, "numpy", numpys),
    ]


def dependent(plan: Plan) -> list[Row]:
    """`x = x + 1` again and again: one chain on one worker, two chains on two workers."""
    n = plan.of(10_000, 3_000)
    a = np.ones(10)
    with il.connect(devices=["cpu:0", "cpu:1"]) as session:
        x, y = (il.ones(10, device=device) for device in session.devices)

        first, second, both, numpys, numpys2 = rounds(
            plan.rounds,
            lambda: done(lambda: chain(x, n)) / n,
            lambda: done(lambda: chain(y, n)) / n,
            lambda: done(lambda: chains(x, y, n)) / (2 * n),
            lambda: seconds(lambda: chain(a, n)) / n,
            lambda: seconds(lambda: chains(a, a, n)) / (2 * n),
        )
    in_turn = [(one + other) / 2 for one, other in zip(first, second, strict=True)]
    return [
        timed("chain x = x + 1 on one worker, per operation", "us", first, "numpy", numpys),
        timed("two such chains on two workers, per operation", "us", both, "numpy", numpys2),
        timed("two such chains at once, the gain", "us", both, "one after the other", in_turn, gain=True),
    ]
