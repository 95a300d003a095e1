"""What becomes of the cost when there is much of something: live arrays, operations, workers."""

from __future__ import annotations

import os
import time
from contextlib import ExitStack

import numpy as np
from budgets import FRONTEND_MEMORY, LIVE, LIVE_DONE, WORKER_MEMORY
from crowd import Crowd
from finishing import done, settled
from floors import WORKER_IMPORTS, interpreters
from issue import sums
from measuring import Plan, resident_mib, rounds, seconds
from rows import Row, timed

import interlock as il

MILLION = 1_000_000


def million(plan: Plan) -> list[Row]:
    """A million operations issued without a look back: what the frontend and the worker grow by, at the most."""
    total = plan.of(MILLION, MILLION // 20)
    a = b = np.ones(10)
    with il.connect(devices=["cpu:0"]) as session:
        pids = {"frontend": os.getpid(), "worker": session.pids["cpu:0"]}
        x, y = il.ones(10), il.ones(10)
        done(lambda: sums(x, y, 10_000))
        before = {who: resident_mib(pid) for who, pid in pids.items()}
        most = dict(before)
        numpys = [seconds(lambda: sums(a, b, total // 10)) / (total // 10)]
        started = time.perf_counter()
        for _ in range(50):
            sums(x, y, total // 50)
            most = {who: max(most[who], resident_mib(pid)) for who, pid in pids.items()}
        il.synchronize()
        taken = time.perf_counter() - started
        numpys.append(seconds(lambda: sums(a, b, total // 10)) / (total // 10))
    rows = [timed(f"{total} operations, per operation", "us", [taken / total], "numpy, before and after", numpys)]
    for who, budget in ("frontend", FRONTEND_MEMORY), ("worker", WORKER_MEMORY):
        what = budget.what if total == MILLION else f"{total} operations: growth of the {who}"
        held = budget if total == MILLION else None
        rows.append(Row(what, "MiB", [most[who] - before[who]], "before", [before[who]], held))
    return rows


def live(plan: Plan) -> list[Row]:
    """Issue `x + y` in programs with ever more other arrays; the floor is what it costs one with a thousand."""
    n = plan.of(10_000, 3_000)
    counts = (1_000, 10_000, 100_000, *(() if plan.quick else (MILLION,)))
    a = b = np.ones(10)
    with ExitStack() as stack:
        crowds = [stack.enter_context(Crowd(count, n)) for count in counts]
        sides = [side for crowd in crowds for side in (crowd.issue, crowd.until_done)]
        numpys, first, first_done, *others = rounds(plan.rounds, lambda: seconds(lambda: sums(a, b, n)) / n, *sides)
    rows = [
        timed("issue with 1000 live arrays", "us", first, "numpy a + b", numpys),
        timed("until all is done with 1000 live arrays", "us", first_done, "numpy a + b", numpys),
    ]
    for count, own, ended in zip(counts[1:], others[::2], others[1::2], strict=True):
        last = count == MILLION
        what = LIVE.what if last else f"issue with {count} live arrays"
        until = LIVE_DONE.what if last else f"until all is done with {count} live arrays"
        rows += [
            timed(what, "us", own, "with 1000", first, LIVE if last else None),
            timed(until, "us", ended, "with 1000", first_done, LIVE_DONE if last else None),
        ]
    return rows


def workers(plan: Plan) -> list[Row]:
    """More and more workers: how long they take to start, and what operations on each in turn cost."""
    return [row for count in (1, 2, 4, *(() if plan.quick else (8, 16, 32))) for row in so_many(count, plan)]


def so_many(count: int, plan: Plan) -> list[Row]:
    n = plan.of(16_000, 4_000)
    a = b = np.ones(10)
    bare_s = seconds(lambda: interpreters(count, WORKER_IMPORTS))
    started = time.perf_counter()
    with il.connect(devices=[f"cpu:{i}" for i in range(count)]) as session:
        start_s = time.perf_counter() - started
        arrays = [il.ones(10, device=device) for device in session.devices]

        def in_turn() -> None:
            for _ in range(n // count):
                for x in arrays:
                    x + x

        own, ended, numpys = rounds(
            plan.of(7, 3),
            lambda: settled(seconds(in_turn, time.thread_time) / n),
            lambda: done(in_turn) / n,
            lambda: seconds(lambda: sums(a, b, n)) / n,
        )
    cores = len(os.sched_getaffinity(0))
    who = f"{count} worker{'s' * (count > 1)}{f', on {cores} cores' if count > cores else ''}"
    return [
        timed(f"{who}: start", "s", [start_s], f"{count} x import numpy, zmq", [bare_s]),
        timed(f"{who}: issue to each in turn", "us", own, "numpy a + b", numpys),
        timed(f"{who}: until all is done", "us", ended, "numpy a + b", numpys),
    ]
