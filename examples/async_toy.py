"""The program does not wait for its own arithmetic: `z = x * y + 2` a thousand times, next to NumPy.

NumPy returns from each line when it is done. Interlock's program has issued everything long before that, and waits
only where it reads a value. For arrays of a few elements issuing costs more than computing does, and NumPy wins; the
larger the arrays, the more of the time is free for something else. (The experiment of "Asynchronous Computation" in
*Dive into Deep Learning*.)
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from progress import Progress

import interlock as il

ROUNDS: Final = 5
EXAMPLES: Final = """examples:
  python examples/async_toy.py
  python examples/async_toy.py --devices sim:0 --size 64 --repeats 200
"""


class Taken(NamedTuple):
    """Milliseconds until the last line returned, and until its value was read."""

    issued: float
    read: float


def options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--devices", default="cpu:0", help="the first one computes; default: %(default)s")
    parser.add_argument(
        "--size", type=int, default=256, help="of the largest arrays, size x size; default: %(default)s"
    )
    parser.add_argument("--repeats", type=int, default=1000, help="how often z is computed; default: %(default)s")
    args = parser.parse_args(arguments)
    if args.size < 2 or args.repeats < 1:
        parser.error("--size must be at least 2, and --repeats at least 1")
    return args


def toy(ones: Callable[[tuple[int, int]], Any], shape: tuple[int, int], repeats: int) -> Taken:
    """The same lines for NumPy and Interlock."""
    x, y = ones(shape), ones(shape)
    float((x * y)[0, 0])  # x and y are there now
    started = time.perf_counter()
    for _ in range(repeats):
        z = x * y + 2
    issued = time.perf_counter()
    assert float(z[0, 0]) == 3
    return Taken((issued - started) * 1e3, (time.perf_counter() - started) * 1e3)


def median(rounds: list[Taken]) -> Taken:
    return Taken(*(statistics.median(column) for column in zip(*rounds, strict=True)))


def main(arguments: Sequence[str] | None = None) -> int:
    args = options(arguments)
    shapes = [(1, 2), (args.size // 2, args.size // 2), (args.size, args.size)]
    try:
        # The window is how many instructions may be on the way; beyond it issuing waits for the worker.
        session = il.connect(devices=args.devices, window=4 * args.repeats)
    except (ValueError, il.InterlockError) as error:
        print(f"async_toy.py: error: {error}", file=sys.stderr)
        return 2
    rows = []
    with session, Progress("round", ROUNDS * len(shapes)) as progress:
        for shape in shapes:
            ours, theirs = [], []
            for _ in range(ROUNDS):
                ours.append(toy(il.ones, shape, args.repeats))
                theirs.append(toy(np.ones, shape, args.repeats))
                progress.step()
            rows.append((shape, median(ours), median(theirs)))
        device = session.devices[0]
    print(f"z = x * y + 2, {args.repeats} times on {device}; milliseconds")
    print(f"{'shape':>12} {'all issued':>12} {'z read':>12} {'NumPy':>12}")
    for (height, width), issued, numpy in rows:
        print(f"{f'{height} x {width}':>12} {issued.issued:12.2f} {issued.read:12.2f} {numpy.read:12.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
