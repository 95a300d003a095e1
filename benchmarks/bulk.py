"""Large arrays on the move: between CPU workers, from the program, to the program; next to one warm memcpy."""

from __future__ import annotations

import numpy as np
from budgets import IN_PLACE, TRANSFER
from finishing import done
from floors import MIB64, memcpy
from measuring import Plan, rounds, seconds
from rows import Row, held_to, timed

import interlock as il

N = MIB64 // 8
WARM = 3  # rounds until memory is reused


def transfer(plan: Plan) -> list[Row]:
    """64 MiB to another CPU worker: read in place, and as a copy of its own."""
    with il.connect(devices=["cpu:0", "cpu:1"]) as session:
        source, target = session.devices
        x = il.ones(N, device=source)
        copied, in_place, floor = rounds(
            plan.rounds,
            lambda: done(lambda: x.to(target).copy()),
            lambda: done(lambda: x.to(target)[-1:] + 1),
            memcpy(),
            warm=WARM,
        )
        il.synchronize()
        before = session.inspect()[str(target)]["bytes"]
        y = x.to(target)
        if float(y[-1]) != 1:
            raise AssertionError("the other worker reads something else")
        taken = session.inspect()[str(target)]["bytes"] - before
        del y
    return [
        held_to(TRANSFER, "ms", copied, "warm memcpy", floor),
        Row(IN_PLACE.what, "MiB", [max(taken, 0) / 2**20], "the array", [MIB64 / 2**20], IN_PLACE),
        timed("64 MiB between CPU workers in place: until used", "ms", in_place, "warm memcpy", floor),
    ]


def host(plan: Plan) -> list[Row]:
    """64 MiB from the program to a worker, and back."""
    data = np.ones(N)
    with il.connect(devices=["cpu:0"]):
        uploaded = il.asarray(data)
        made = uploaded + 0
        up, down, back, floor, fresh = rounds(
            plan.rounds,
            lambda: done(lambda: il.asarray(data)),
            lambda: done(made.numpy),
            lambda: done(uploaded.numpy),
            memcpy(),
            lambda: seconds(data.copy),
            warm=WARM,
        )
    return [
        timed("upload 64 MiB", "ms", up, "warm memcpy", floor),
        timed("read 64 MiB", "ms", down, "warm memcpy", floor),
        timed("read 64 MiB, against new memory", "ms", down, "copy to new memory", fresh),
        timed("read 64 MiB that were uploaded", "ms", back, "warm memcpy", floor),
    ]
