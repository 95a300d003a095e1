"""A program with so many live arrays, in a process of its own, which says when asked what operations cost it.

Several are asked in turn: they are compared at the same time, and each has memory and garbage of its own.
"""

from __future__ import annotations

import subprocess
import sys
import time

from finishing import done, settled
from issue import sums
from measuring import seconds

import interlock as il


class Crowd:
    """The process, as its parent sees it."""

    def __init__(self, live: int, operations: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, str(live), str(operations)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def issue(self) -> float:
        """Its own processor time to issue one operation."""
        return self._ask("issue")

    def until_done(self) -> float:
        """Seconds for an operation, until all are done."""
        return self._ask("until done")

    def _ask(self, what: str) -> float:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(what, file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the process with many live arrays ended with {self._process.wait()}")
        return float(answer)

    def __enter__(self) -> Crowd:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()


def main(live: int, n: int) -> None:
    """Be such a process, until nobody asks any more."""
    with il.connect(devices=["cpu:0"]):
        x, y = il.ones(10), il.ones(10)
        held = [x + y for _ in range(live)]
        il.synchronize()
        for line in sys.stdin:
            if line.strip() == "issue":
                figure = settled(seconds(lambda: sums(x, y, n), time.thread_time))
            else:
                figure = done(lambda: sums(x, y, n))
            print(figure / n, flush=True)
        del held


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
