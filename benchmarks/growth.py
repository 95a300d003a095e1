"""What becomes of the cost when there is much of something: live arrays, operations, workers."""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np
from budgets import FRONTEND_MEMORY, LIVE, LIVE_DONE, WORKER_MEMORY
from finishing import done, settled
from issue import sums
from measuring import Plan, resident_mib, rounds, seconds
from rows import Row, timed

import interlock as il

MILLION = 1_000_000


def million(plan: Plan) -> list[Row]:
    """A million operations issued without a look back: what the frontend and the worker grow by, at the most."""
    total = plan.of(MILLION, MILLION // 20)
    with il.connect(devices=["cpu:0"]) as session:
        pids = {"frontend": os.getpid(), "worker": session.pids["cpu:0"]}
        x, y = il.ones(10), il.ones(10)
        done(lambda: sums(x, y, 10_000))
        before = {who: resident_mib(pid) for who, pid in pids.items()}
        most = dict(before)
        started = time.perf_counter()
        for _ in range(50):
            sums(x, y, total // 50)
            most = {who: max(most[who], resident_mib(pid)) for who, pid in pids.items()}
        il.synchronize()
        taken = time.perf_counter() - started
    rows = [timed(f"{total} operations, per operation", "us", [taken / total])]
    for who, budget in ("frontend", FRONTEND_MEMORY), ("worker", WORKER_MEMORY):
        what = budget.what if total == MILLION else f"{total} operations: growth of the {who}"
        held = budget if total == MILLION else None
        rows.append(Row(what, "MiB", [most[who] - before[who]], "before", [before[who]], held))
    return rows


def live(plan: Plan) -> list[Row]:
    """Issue `x + y` while more and more other arrays live; the floor is what it costs with a thousand."""
    n = plan.of(10_000, 3_000)
    rows: list[Row] = []
    first: tuple[list[float], list[float]] | None = None
    held: list[Any] = []
    a = b = np.ones(10)
    with il.connect(devices=["cpu:0"]):
        x, y = il.ones(10), il.ones(10)
        for count in (1_000, 10_000, 100_000, *(() if plan.quick else (MILLION,))):
            held.extend(x + y for _ in range(count - len(held)))
            il.synchronize()
            own, ended, numpys = rounds(
                plan.rounds,
                lambda: settled(seconds(lambda: sums(x, y, n), time.thread_time) / n),
                lambda: done(lambda: sums(x, y, n)) / n,
                lambda: seconds(lambda: sums(a, b, n)) / n,
            )
            if first is None:
                first = own, ended
                rows += [
                    timed("issue with 1000 live arrays", "us", own, "numpy a + b", numpys),
                    timed("until all is done with 1000 live arrays", "us", ended, "numpy a + b", numpys),
                ]
                continue
            last = count == MILLION
            what = LIVE.what if last else f"issue with {count} live arrays"
            until = LIVE_DONE.what if last else f"until all is done with {count} live arrays"
            rows += [
                timed(what, "us", own, "with 1000", first[0], LIVE if last else None),
                timed(until, "us", ended, "with 1000", first[1], LIVE_DONE if last else None),
            ]
    return rows


def workers(plan: Plan) -> list[Row]:
    """More and more workers: how long they take to start, and what issuing to them in turn costs."""
    cores = len(os.sched_getaffinity(0))
    n = plan.of(16_000, 4_000)
    rows = []
    for count in (1, 2, 4, *(() if plan.quick else (8, 16)), *((32,) if plan.full else ())):
        started = time.perf_counter()
        with il.connect(devices=[f"cpu:{i}" for i in range(count)]) as session:
            start_s = time.perf_counter() - started
            arrays = [il.ones(10, device=device) for device in session.devices]
            il.synchronize()

            def issue(arrays: list[Any] = arrays) -> None:
                for _ in range(n // len(arrays)):
                    for x in arrays:
                        x + x

            (own,) = rounds(plan.of(5, 3), lambda: settled(seconds(issue, time.thread_time) / n))
        who = f"{count} worker{'s' * (count > 1)}{f', on {cores} cores' if count > cores else ''}"
        rows += [
            timed(f"{who}: start", "s", [start_s]),
            timed(f"{who}: issue to each in turn", "us", own),
        ]
    return rows
