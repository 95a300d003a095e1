"""How long small values are on their way, into the program and between workers, next to bare messages."""

from __future__ import annotations

from typing import Any

from budgets import READ
from finishing import done, settled
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
    """4 KiB from worker to worker to and fro, each hop waiting for the one before; and one hop and a read."""
    n, hops = plan.of(200, 60), plan.of(400, 200)
    with il.connect(devices=["cpu:0", "cpu:1"]) as session, Ring(1, 4096) as pingpong, Ring(2, 4096) as ring:
        first, second = session.devices
        x = il.ones(512, device=first)

        def to_and_fro() -> Any:
            y = x
            for _ in range(hops // 2):
                y = y.to(second).to(first)
            return y

        hop, bare_hop, read, bare_read = rounds(
            plan.rounds,
            lambda: done(to_and_fro) / hops,
            lambda: seconds(lambda: repeat(pingpong.go, hops // 2)) / hops,
            lambda: settled(seconds(lambda: repeat(lambda: x.to(second).numpy(), n)) / n),
            lambda: seconds(lambda: repeat(ring.go, n)) / n,
        )
    return [
        timed("4 KiB from worker to worker, a hop", "us", hop, "zmq ipc, a hop", bare_hop),
        timed("4 KiB worker -> worker -> frontend", "us", read, "zmq ipc through two", bare_read),
    ]
