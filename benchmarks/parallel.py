"""Whether independent work runs at once: on two workers, and computing with copying."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import overlap as example
from budgets import MATMUL
from cores import connect_single
from finishing import done
from floors import Multiplier, memcpy
from measuring import Plan, rounds, seconds
from rows import Row, held_to, timed

import interlock as il

WARM: Final = 3  # rounds until memory is reused


def matmul(plan: Plan) -> list[Row]:
    """Equal products on worker A, on B, and on both at once; and in two bare processes."""
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

        on_a, on_b, both, bare_a, bare_b, bare = rounds(
            plan.rounds,
            lambda: done(lambda: products(x)),
            lambda: done(lambda: products(y)),
            lambda: done(lambda: [products(x), products(y)]),
            lambda: seconds(a.run),
            lambda: seconds(b.run),
            lambda: seconds(bare_both),
        )
    turns, bare_turns = sums(on_a, on_b), sums(bare_a, bare_b)
    return [
        timed("matrix products on worker A", "ms", on_a, "a bare process", bare_a),
        timed("matrix products on worker B", "ms", on_b, "another", bare_b),
        timed("matrix products on A and on B at once", "ms", both, "the longer of both", longer(on_a, on_b)),
        held_to(MATMUL, "ms", both, "one after the other", turns),
        timed("equal matrix products in two bare processes", "ms", bare, "one after the other", bare_turns, gain=True),
    ]


def overlap(plan: Plan) -> list[Row]:
    """Products on one worker, copies of them to another, both at once: one of each, and as many as take as long."""
    size, repeats = 500, plan.of(12, 6)
    with connect_single(["cpu:0", "cpu:1"]) as session, Multiplier(size, repeats) as process:
        home, device = session.devices
        x = il.random.default_rng(0, device=device).random((size, size))
        made = example.run(x, repeats)
        for _ in range(WARM):
            run_s = done(lambda: example.run(x, repeats))
            copy_s = done(lambda: [example.copy(made, home) for _ in range(WARM)]) / WARM
        times = max(round(run_s / copy_s), 1)

        def copies() -> None:
            for y in made:
                example.copy([y] * times, home)

        def run_and_copies() -> None:
            # In turn: a send leaves its worker in the order of issue, so behind all products it would wait for them.
            for _ in range(repeats):
                example.copy([x @ x] * times, home)

        run, copy, both, many, both_many, bare_run, bare_copy = rounds(
            plan.rounds,
            lambda: done(lambda: example.run(x, repeats)),
            lambda: done(lambda: example.copy(made, home)),
            lambda: done(lambda: example.run_and_copy(x, repeats, home)),
            lambda: done(copies),
            lambda: done(run_and_copies),
            lambda: seconds(process.run),
            memcpy(repeats * 8 * size * size),
        )
    return [
        timed("products on a worker", "ms", run, "a bare process", bare_run),
        timed("copies of the products to another", "ms", copy, "warm memcpy", bare_copy),
        timed("products and their copies at once", "ms", both, "the longer of both", longer(run, copy)),
        timed("products and their copies, the gain", "ms", both, "one after the other", sums(run, copy), gain=True),
        timed("products, and copies as long, at once", "ms", both_many, "the longer of both", longer(run, many)),
        timed(
            "products, and copies as long, the gain", "ms", both_many, "one after the other", sums(run, many), gain=True
        ),
    ]


def longer(one: Sequence[float], other: Sequence[float]) -> list[float]:
    """Round by round, the longer of two times: what doing both takes at the least."""
    return [max(pair) for pair in zip(one, other, strict=True)]


def sums(one: Sequence[float], other: Sequence[float]) -> list[float]:
    """Round by round, both times: what doing one after the other takes."""
    return [sum(pair) for pair in zip(one, other, strict=True)]
