"""The peer's side: a script answers, line by line, what the runner asks; between questions it sleeps.

What is on standard output is JSON and nothing else: whatever a library prints there goes to standard error.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, NamedTuple


class Trial(NamedTuple):
    """A workload that is set up."""

    run: Callable[[int], float]  # does it so many times: seconds for each
    check: float | None = None  # what was computed, for comparison with NumPy


Measured = Callable[[], AbstractContextManager[Trial]]
Rows = Mapping[str, Mapping[str, Measured]]  # by the row of the table, by the workload


def serve(versions: Mapping[str, str], rows: Rows) -> None:
    """Answer until the runner hangs up."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(**what: Any) -> None:
        print(json.dumps(what), file=answers, flush=True)

    able = {row: list(workloads) for row, workloads in rows.items()}
    answer(versions={"Python": sys.version.split()[0], **versions}, rows=able)
    with ExitStack() as stack:
        trial: Trial
        for line in sys.stdin:
            asked = json.loads(line)
            try:
                if "open" in asked:
                    row, workload = asked["open"]
                    trial = stack.enter_context(rows[row][workload]())
                    answer(check=trial.check)
                elif "run" in asked:
                    answer(seconds=trial.run(asked["run"]))
                else:
                    stack.pop_all().close()
                    answer(closed=True)
            except Exception as error:
                traceback.print_exc()
                answer(error=f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}")


def plainly(run: Callable[[int], float]) -> Measured:
    """A workload with nothing to set up or to check."""

    @contextmanager
    def measured() -> Iterator[Trial]:
        yield Trial(run)

    return measured


def timed(work: Callable[[int], object], wait: Callable[[Any], object] | None = None) -> Callable[[int], float]:
    """Seconds for each of `n` times, until `wait` has waited for what they gave."""

    def run(n: int) -> float:
        started = time.perf_counter()
        held = work(n)
        if wait:
            wait(held)
        return (time.perf_counter() - started) / n

    return run


def issued(work: Callable[[int], object], wait: Callable[[Any], object]) -> Callable[[int], float]:
    """Seconds for each of `n` times until the calls have returned; then, off the clock, until they are done."""

    def run(n: int) -> float:
        started = time.perf_counter()
        held = work(n)
        taken = (time.perf_counter() - started) / n
        wait(held)
        return taken

    return run


def lead(name: str, measured: Measured, tell: Callable[[Any], None]) -> Measured:
    """The workload `name`, done here and at the other rank, which is told what to do (`follow`)."""

    @contextmanager
    def both() -> Iterator[Trial]:
        tell(name)
        with measured() as trial:

            def run(n: int) -> float:
                tell(n)
                return trial.run(n)

            yield Trial(run, trial.check)
            tell(0)

    return both


def follow(workloads: Mapping[str, Measured], listen: Callable[[], Any]) -> None:
    """Do at this rank what the first one does, until it says no more (None)."""
    while (name := listen()) is not None:
        with workloads[name]() as trial:
            while n := listen():
                trial.run(n)
