"""Whether independent work runs at once: on two workers, and computing with copying."""

from __future__ import annotations

from typing import Any

import overlap as example
from budgets import MATMUL
from cores import connect_single
from finishing import done
from floors import Multiplier
from measuring import Plan, rounds, seconds
from rows import Row, held_to, timed

import interlock as il


def matmul(plan: Plan) -> list[Row]:
    """Equal products on two workers, one after the other and at once; and in two bare processes."""
    size, repeats = plan.of(800, 500), plan.of(4, 12)
    with (
        connect_single(["cpu:0", "cpu:1"]) as session,
        Multiplier(size, repeats) as a,
        Multiplier(size, repeats) as b,
    ):
        x, y = (il.random.default_rng(0, device=device).random((size, size)) for device in session.devices)

        def products(z: Any) -> list[Any]:
            return [z @ z for _ in range(repeats)]

        def bare_both() -> None:
            a.start()
            b.start()
            a.wait()
            b.wait()

        turns, both, bare_turns, bare = rounds(
            plan.rounds,
            lambda: done(lambda: products(x)) + done(lambda: products(y)),
            lambda: done(lambda: [products(x), products(y)]),
            lambda: seconds(a.run) + seconds(b.run),
            lambda: seconds(bare_both),
        )
    return [
        held_to(MATMUL, "ms", both, "one after the other", turns),
        timed("equal matrix products in two bare processes", "ms", bare, "one after the other", bare_turns, gain=True),
    ]


def overlap(plan: Plan) -> list[Row]:
    """Products on one worker and copies of them to another: alone, and at once."""
    size, repeats = plan.of(800, 500), plan.of(6, 4)
    with connect_single(["cpu:0", "cpu:1"]) as session:
        home, device = session.devices
        x = il.random.default_rng(0, device=device).random((size, size))
        made = example.run(x, repeats)
        run, copy, both = rounds(
            plan.rounds,
            lambda: done(lambda: example.run(x, repeats)),
            lambda: done(lambda: example.copy(made, home)),
            lambda: done(lambda: example.run_and_copy(x, repeats, home)),
        )
    longer = [max(times) for times in zip(run, copy, strict=True)]
    in_turn = [sum(times) for times in zip(run, copy, strict=True)]
    return [
        timed("products and their copies at once", "ms", both, "the longer of both", longer),
        timed("products and their copies, against in turn", "ms", both, "one after the other", in_turn, gain=True),
    ]
