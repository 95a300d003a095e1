"""How long it takes until a small value is in the program, next to bare messages between bare processes."""

from __future__ import annotations

from budgets import READ
from floors import Ring
from measuring import Plan, repeat, rounds, seconds
from rows import Row, held_to, timed

import interlock as il


def read(plan: Plan) -> list[Row]:
    """Read ten numbers from an idle worker."""
    n = plan.of(300, 100)
    with il.connect(devices=["cpu:0"]), Ring(1, 80) as pingpong:
        x = il.ones(10)
        il.synchronize()
        ours, floor = rounds(
            plan.rounds,
            lambda: seconds(lambda: repeat(x.numpy, n)) / n,
            lambda: seconds(lambda: repeat(pingpong.go, n)) / n,
        )
    return [held_to(READ, "us", ours, "zmq ipc ping-pong", floor)]


def latency(plan: Plan) -> list[Row]:
    """Send 4 KiB from one worker to another and read it there."""
    n = plan.of(200, 60)
    with il.connect(devices=["cpu:0", "cpu:1"]) as session, Ring(2, 4096) as ring:
        first, second = session.devices
        x = il.ones(512, device=first)
        il.synchronize()
        ours, floor = rounds(
            plan.rounds,
            lambda: seconds(lambda: repeat(lambda: x.to(second).numpy(), n)) / n,
            lambda: seconds(lambda: repeat(ring.go, n)) / n,
        )
    return [timed("4 KiB worker -> worker -> frontend", "us", ours, "zmq ipc through two", floor)]
