"""What one small operation costs the frontend, next to the same operation in NumPy, measured in turn in one run.

Prints a table: the figure, NumPy's or the physical floor's figure, their ratio, and the budget. Medians of several
rounds; the spread says how noisy the machine was. `--json FILE` keeps the figures.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

import interlock as il


class Row(NamedTuple):
    """One figure: microseconds an operation, of ours and of the floor; `budget` bounds `us` or `ratio`."""

    what: str
    us: float
    floor: str
    floor_us: float
    budget: str
    met: bool
    spread: float  # of our rounds: slowest over fastest

    @property
    def ratio(self) -> float:
        return self.us / self.floor_us


def rounds(count: int, *sides: Callable[[], float]) -> list[list[float]]:
    """Each side's figures, the sides taken in turn."""
    figures: list[list[float]] = [[] for _ in sides]
    for i in range(count):
        for side, figure in zip(sides, figures, strict=True):
            figure.append(side())
        if sys.stderr.isatty():
            print(f"\r  round {i + 1}/{count}", end="", file=sys.stderr)
    if sys.stderr.isatty():
        print("\r" + " " * 20 + "\r", end="", file=sys.stderr)
    return figures


def per_op(body: Callable[[int], None], n: int, clock: Callable[[], float] = time.perf_counter) -> float:
    """Microseconds an iteration of `body(n)`."""
    started = clock()
    body(n)
    return (clock() - started) / n * 1e6


def issue(n: int, count: int) -> list[Row]:
    """Issue `x + y` on small arrays: the frontend's own processor time, then the wall's, then until all is done."""
    x, y = il.ones(10), il.ones(10)
    a, b = np.ones(10), np.ones(10)

    def ours(n: int) -> None:
        for _ in range(n):
            x + y

    def numpys(n: int) -> None:
        for _ in range(n):
            a + b

    def toy(n: int) -> None:
        for _ in range(n):
            x * y + 2
        il.synchronize()

    def numpy_toy(n: int) -> None:
        for _ in range(n):
            a * b + 2

    def settled(figure: float) -> float:
        il.synchronize()
        return figure

    own, wall, floor = rounds(
        count,
        lambda: settled(per_op(ours, n, time.thread_time)),
        lambda: settled(per_op(ours, n)),
        lambda: per_op(numpys, n),
    )
    done, toy_floor = rounds(count, lambda: per_op(toy, n), lambda: per_op(numpy_toy, n))
    median = statistics.median
    numpy_us = median(floor)
    return [
        _row("issue one small operation, frontend's time", own, "numpy a + b", numpy_us, 3.0, None),
        _row("the same, wall time", wall, "numpy a + b", numpy_us, None, None),
        _row("z = x*y + 2 until all is done", done, "numpy", median(toy_floor), None, 6.0),
    ]


def reading(n: int, count: int) -> list[Row]:
    """Read a small result from an idle worker, next to a bare ZeroMQ ping-pong between two processes."""
    x = il.ones(10)
    il.synchronize()
    with PingPong() as pingpong:
        ours, floor = rounds(count, lambda: per_op(lambda n: _repeat(x.numpy, n), n), lambda: per_op(pingpong.run, n))
    return [_row("read a small result, idle", ours, "zmq ipc ping-pong", statistics.median(floor), None, 3.0)]


def _repeat(call: Callable[[], object], n: int) -> None:
    for _ in range(n):
        call()


class PingPong:
    """A process that sends back what it gets, over a ZeroMQ ipc socket."""

    CHILD = """
import sys, zmq
socket = zmq.Context().socket(zmq.PAIR)
socket.connect(sys.argv[1])
while (message := socket.recv()):
    socket.send(message)
"""

    def __enter__(self) -> PingPong:
        import subprocess
        import tempfile

        import zmq

        self._folder = tempfile.TemporaryDirectory()
        address = f"ipc://{self._folder.name}/pingpong"
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.PAIR)
        self._socket.bind(address)
        self._child = subprocess.Popen([sys.executable, "-c", self.CHILD, address])
        self.run(10)
        return self

    def run(self, n: int) -> None:
        for _ in range(n):
            self._socket.send(b"ping")
            self._socket.recv()

    def __exit__(self, *_: object) -> None:
        self._socket.send(b"")
        self._child.wait()
        self._socket.close()
        self._context.term()
        self._folder.cleanup()


def _row(what: str, ours: list[float], floor: str, floor_us: float, most_us: float | None, most: float | None) -> Row:
    us = statistics.median(ours)
    met = us <= most_us if most_us is not None else us / floor_us <= most if most is not None else True
    budget = f"<= {most_us} us" if most_us is not None else f"<= {most} x" if most is not None else "-"
    return Row(what, us, floor, floor_us, budget, met, max(ours) / min(ours))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog="example: python benchmarks/issue.py --rounds 9 --json issue.json",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--operations", type=int, default=20_000, help="operations a round (default 20000)")
    parser.add_argument("--rounds", type=int, default=7, help="rounds, of which the median counts (default 7)")
    parser.add_argument("--json", metavar="FILE", help="write the figures there as well")
    chosen = parser.parse_args()
    with il.connect(devices=["cpu:0"]):
        rows = issue(chosen.operations, chosen.rounds) + reading(max(chosen.operations // 100, 50), chosen.rounds)
    print(f"{'what':44} {'us':>8} {'floor':>18} {'us':>7} {'ratio':>6}  {'budget':9} {'met':4} spread")
    for row in rows:
        met = "-" if row.budget == "-" else "yes" if row.met else "no"
        print(
            f"{row.what:44} {row.us:8.2f} {row.floor:>18} {row.floor_us:7.2f} {row.ratio:6.1f}  "
            f"{row.budget:9} {met:4} {row.spread:.2f}"
        )
    if chosen.json:
        with open(chosen.json, "w") as file:
            json.dump([{**row._asdict(), "ratio": row.ratio} for row in rows], file, indent=2)
    return 0


if __name__ == "__main__":
    sys.exit(main())
