"""Costs that may not grow unnoticed: those of `guarded_costs.py`, as ratios to NumPy's own small add.

Not timed by the wall: processor time of one thread, the best of many short rounds over the best of NumPy's in between,
so that a busy machine delays the test and does not fail it.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from .guarded_costs import COSTS, UNITS, Cost, Round, clocked, issue

ROUNDS = 40  # in a go
GOES = 5  # until a cost counts as grown

pytestmark = [
    pytest.mark.usefixtures("runtime"),
    pytest.mark.skipif(sys.gettrace() is not None, reason="a tracer runs in all of Python and in nothing of NumPy"),
]


def measured(cost: Cost) -> float:
    """The best ratio; more rounds are made as long as it is above what the cost may be, since they may be better."""
    a = b = np.ones(10)

    def sums(n: int) -> None:
        for _ in range(n):
            a + b

    ours: list[float] = []
    numpys: list[float] = []
    gc.collect()
    gc.freeze()  # collections during the rounds walk what the rounds made, not what earlier tests left
    try:
        with cost.stage() as round_s:
            round_s()
            for _ in range(GOES):
                for _ in range(ROUNDS):
                    ours.append(round_s())
                    numpys.append(clocked(sums, 4 * UNITS))
                ratio = min(ours) / min(numpys)
                if ratio <= cost.ratio * cost.margin:
                    break
    finally:
        gc.unfreeze()
    print(f"{cost.name}: {min(ours) * 1e6:.2f} us, {min(numpys) * 1e6:.3f} us of NumPy: {ratio:.2f} x")
    return ratio


def dearer(cost: Cost) -> str:
    """What to tell about a cost that has grown; empty if it has not."""
    ratio = measured(cost)
    if ratio <= cost.ratio * cost.margin:
        return ""
    return (
        f"{cost.name} costs {ratio:.2f} x NumPy's small add; it was {cost.ratio:g} x, and {cost.margin:g} times that "
        f"is let pass. {cost.why} If the new cost is worth what it buys, change its entry in guarded_costs.py"
    )


@pytest.mark.parametrize("cost", COSTS, ids=lambda cost: cost.name)
def test_it_costs_no_more_than_it_did(cost: Cost) -> None:
    told = dearer(cost)
    assert not told, told


def test_a_loop_beside_each_operation_would_be_noticed() -> None:
    @contextmanager
    def with_a_loop() -> Iterator[Round]:
        def loops(n: int) -> None:
            for _ in range(n):
                for _ in range(200):
                    pass

        with issue() as round_s:
            yield lambda: round_s() + clocked(loops)

    assert "change its entry" in dearer(COSTS[0]._replace(stage=with_a_loop))
