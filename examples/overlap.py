"""Independent work overlaps with no word from the program: the experiment of "Automatic Parallelism" in *Dive into
Deep Learning*.

First matrix products on device A, on device B, and on both. Then products on A, copies of them to the first device,
and both at once: the copy of one product leaves while the next is computed. At best both take as long as the
longer part, the floor; without overlap, as long as their sum, in turn. These stand beside what was reached. Each is the
shortest of several rounds, and on a busy machine still noisy: what was reached may come out a little below its floor.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from progress import Progress

import interlock as il

ROUNDS: Final = 5
EXAMPLES: Final = """examples:
  python examples/overlap.py
  python examples/overlap.py --devices cpu:0,sim:0,sim:1 --size 500 --repeats 5
"""


def options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--devices", default="cpu:0,cpu:1,cpu:2", help="the one copied to, A and B; default: %(default)s"
    )
    parser.add_argument("--size", type=int, default=800, help="matrices are size x size; default: %(default)s")
    parser.add_argument("--repeats", type=int, default=8, help="products in a run; default: %(default)s")
    args = parser.parse_args(arguments)
    if args.size < 1 or args.repeats < 1:
        parser.error("--size and --repeats must be at least 1")
    return args


def run(x: Any, repeats: int) -> list[Any]:
    return [x @ x for _ in range(repeats)]


def copy(products: list[Any], home: il.Device) -> list[Any]:
    """Copies of their own on the first device. Between CPU workers `.to` alone reads in place, which costs nothing."""
    arrived = [y.to(home) for y in products]
    return [y.copy() for y in arrived] if products[0].device.kind == home.kind else arrived


def run_and_copy(x: Any, repeats: int, home: il.Device) -> list[Any]:
    return [one for _ in range(repeats) for one in copy([x @ x], home)]


def milliseconds(work: Callable[[], Any]) -> float:
    started = time.perf_counter()
    held = work()
    il.synchronize()
    taken = (time.perf_counter() - started) * 1e3
    del held
    return taken


def measure(session: il.Session, size: int, repeats: int) -> dict[str, float]:
    """The shortest of each experiment's times."""
    home, a, b = session.devices[:3]
    x, y = (il.random.default_rng(0, device=device).random((size, size)) for device in (a, b))
    made = run(x, repeats)
    experiments: dict[str, Callable[[], Any]] = {
        "a": lambda: run(x, repeats),
        "b": lambda: run(y, repeats),
        "both": lambda: [run(x, repeats), run(y, repeats)],
        "copy": lambda: copy(made, home),
        "overlapped": lambda: run_and_copy(x, repeats, home),
    }
    taken: dict[str, list[float]] = {name: [] for name in experiments}
    with Progress("round", ROUNDS + 1) as progress:
        for round in range(ROUNDS + 1):
            for name, work in experiments.items():
                time_ms = milliseconds(work)
                if round > 0:  # the first warms up
                    taken[name].append(time_ms)
            progress.step()
    return {name: min(times) for name, times in taken.items()}


def main(arguments: Sequence[str] | None = None) -> int:
    args = options(arguments)
    try:
        session = il.connect(devices=args.devices)
    except (ValueError, il.InterlockError) as error:
        print(f"overlap.py: error: {error}", file=sys.stderr)
        return 2
    with session:
        if len(session.devices) < 3:
            print("overlap.py: error: name three devices, such as --devices cpu:0,cpu:1,cpu:2", file=sys.stderr)
            return 2
        home, a, b = map(str, session.devices[:3])
        t = measure(session, args.size, args.repeats)
    print(f"{args.repeats} products of {args.size} x {args.size}; milliseconds")
    print(f"{'':34} {'reached':>9} {'floor':>9} {'in turn':>9}")
    rows = [
        (f"run on {a}", t["a"], None, None),
        (f"run on {b}", t["b"], None, None),
        (f"run on {a} and on {b}", t["both"], max(t["a"], t["b"]), t["a"] + t["b"]),
        (f"copy from {a} to {home}", t["copy"], None, None),
        (f"run on {a} and copy to {home}", t["overlapped"], max(t["a"], t["copy"]), t["a"] + t["copy"]),
    ]
    for name, *numbers in rows:
        print(f"{name:34}", *(f"{number:9.1f}" for number in numbers if number is not None))
    return 0


if __name__ == "__main__":
    sys.exit(main())
