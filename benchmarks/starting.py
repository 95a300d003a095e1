"""What it costs to begin, and to be there with nothing to do."""

from __future__ import annotations

import os
import time
from tempfile import TemporaryDirectory

from budgets import IDLE, IMPORT, START
from finishing import done
from floors import WORKER_IMPORTS, answer, interpreters
from issue import chain
from measuring import Plan, cpu_seconds, rounds, seconds
from rows import Row, held_to, timed

import interlock as il

IMPORTS = """
import time
started = time.perf_counter()
import numpy
there = time.perf_counter()
import interlock as il
il.connect, il.synchronize, il.Array, il.ones
begun = time.perf_counter()
for name in dir(il):
    getattr(il, name)
print(begun - there, time.perf_counter() - there, there - started)
"""
IDLE_WORKERS = ["cpu:0", "cpu:1", "cpu:2"]


def importing(plan: Plan) -> list[Row]:
    """Interlock's modules loaded in a fresh interpreter that has NumPy; the floor is NumPy itself."""
    with TemporaryDirectory() as folder:  # bytecode is written, as on a user's machine; some environments forbid it
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": folder}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        answer(IMPORTS, environment=environment)  # and it is there from here on
        takes = [map(float, answer(IMPORTS, environment=environment)) for _ in range(plan.of(9, 5))]
    begun, everything, numpys = zip(*takes, strict=True)
    return [
        held_to(IMPORT, "ms", begun, "import numpy", numpys),
        timed("import interlock and load all public names", "ms", everything, "import numpy", numpys),
    ]


def start(plan: Plan) -> list[Row]:
    """`connect` with three CPU workers; the floor is three interpreters that import what a worker must."""

    def ours() -> float:
        started = time.perf_counter()
        with il.connect(devices=IDLE_WORKERS):
            return time.perf_counter() - started

    connected, floor = rounds(plan.of(7, 3), ours, lambda: seconds(lambda: interpreters(3, WORKER_IMPORTS)))
    return [held_to(START, "s", connected, "3 x import numpy, zmq", floor)]


def idle(plan: Plan) -> list[Row]:
    """Processor time that three workers and the frontend use when their work is done, in per cent of a core."""
    span = 1.0 if plan.quick else 3.0
    with il.connect(devices=IDLE_WORKERS) as session:
        arrays = [il.ones(10, device=device) for device in session.devices]
        done(lambda: [chain(x, 1000).to(session.devices[0]) for x in arrays])
        time.sleep(0.1)  # what follows work is not idleness
        pids = [os.getpid(), *session.pids.values()]
        started, before = time.perf_counter(), [cpu_seconds(pid) for pid in pids]
        time.sleep(span)
        after, took = [cpu_seconds(pid) for pid in pids], time.perf_counter() - started
    used = [100 * (b - a) / took for a, b in zip(before, after, strict=True)]
    return [
        Row(IDLE.what, "%", [sum(used)], budget=IDLE),
        Row("idle: the frontend alone", "%", used[:1]),
        Row("idle: each worker", "%", used[1:]),
    ]
