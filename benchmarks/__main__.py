"""What Interlock costs, next to NumPy or to what the machine allows, measured in turn in one run; and the budgets.

Prints a table, the budgets that were not measured and why, how noisy the machine was, and how many budgets were met.
Figures are medians of several rounds. `ratio` is figure / floor; with a ^ it is floor / figure, where more is better.
`spread` is the slowest round over the fastest, ours and the floor's. Where workers outnumber cores, the name says so.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

# One BLAS thread for NumPy in this process; workers are told their own number. Read when NumPy is imported.
os.environ.update(dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1"))
sys.path.append(str(Path(__file__).parent.parent / "examples"))

import bulk
import floors
import growth
import issue
import parallel
import reading
import replaying
import starting
import training
from budgets import BUDGETS
from measuring import Plan
from rows import Row, noise, not_measured, table, verdict

Benchmark = Callable[[Plan], list[Row]]
BENCHMARKS: Final[Mapping[str, Benchmark]] = {
    "issue": issue.issue,
    "toy": issue.toy,
    "throughput": issue.throughput,
    "chains": issue.dependent,
    "read": reading.read,
    "latency": reading.latency,
    "million": growth.million,  # early: memory that others have left unused would hide what this one takes
    "transfer": bulk.transfer,
    "host": bulk.host,
    "matmul": parallel.matmul,
    "overlap": parallel.overlap,
    "replay": replaying.replay,
    "mlp": training.mlp,
    "import": starting.importing,
    "start": starting.start,
    "idle": starting.idle,
    "workers": growth.workers,
    "live": growth.live,
}
EXAMPLES: Final = """examples:
  python benchmarks                               # everything, about two minutes
  python benchmarks --quick                       # fewer rounds, less of everything
  python benchmarks --only issue --only read      # after a change of the hot path
  make bench BENCH="--quick --only mlp"           # the same from make

benchmarks:
"""


def options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    listed = "\n".join(f"  {name:11} {(each.__doc__ or '').splitlines()[0]}" for name, each in BENCHMARKS.items())
    parser = argparse.ArgumentParser(
        prog="benchmarks",
        description=__doc__,
        epilog=EXAMPLES + listed,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--only", action="append", metavar="NAME", choices=BENCHMARKS, help="only this one; again for more"
    )
    parser.add_argument("--quick", action="store_true", help="less than 40 s; figures are rougher")
    parser.add_argument("--json", metavar="FILE", default="bench.json", help="where figures go; default: %(default)s")
    args = parser.parse_args(arguments)
    if not Path(args.json).absolute().parent.is_dir():
        parser.error(f"--json {args.json}: there is no such folder")
    return args


def measure(names: Sequence[str], plan: Plan) -> tuple[list[Row], dict[str, str]]:
    """The rows of some benchmarks, and the reasons of those that failed, by name."""
    rows: list[Row] = []
    failed: dict[str, str] = {}
    for place, name in enumerate(names, 1):
        print(f"{place}/{len(names)} {name}", end=" ", file=sys.stderr, flush=True)
        started = time.perf_counter()
        try:
            rows += BENCHMARKS[name](plan)
        except Exception as error:  # the others are worth their figures
            failed[name] = f"failed: {type(error).__name__}: {error}"
        print(failed.get(name, f"{time.perf_counter() - started:.1f} s"), file=sys.stderr)
    return rows, failed


def main(arguments: Sequence[str] | None = None) -> int:
    args = options(arguments)
    plan = Plan(args.quick)
    names = [name for name in BENCHMARKS if not args.only or name in args.only]
    before = floors.numpy_loop(), floors.memcpy_time()
    rows, failed = measure(names, plan)
    after = floors.numpy_loop(), floors.memcpy_time()
    machine = [f"{b / a:.2f} x" for a, b in zip(before, after, strict=True)]
    unmeasured = not_measured(rows, {**dict.fromkeys(names, "--quick does less than this needs"), **failed})
    Path(args.json).write_text(json.dumps(report(rows, unmeasured, before, after), indent=2) + "\n")
    print(table(rows))
    print("\nnot measured:")
    for budget, why in unmeasured:
        print(f"  {budget.what} ({budget}): {why.splitlines()[0]}")  # all of it is above, and in the file
    for name in set(failed) - {budget.benchmark for budget in BUDGETS}:
        print(f"  {name}: {failed[name].splitlines()[0]}")
    print(f"noise: {noise(rows) or 'no floors'}; NumPy's loop {machine[0]} and a memcpy {machine[1]} of before the run")
    print(verdict(rows))
    return 1 if failed else 0


def report(rows: Sequence[Row], unmeasured: Sequence[Any], before: Sequence[float], after: Sequence[float]) -> Any:
    """All of it in plain values."""
    held = [row.met for row in rows if row.budget is not None]
    found = noise(rows)
    return {
        "rows": [row.plain() for row in rows],
        "not_measured": [{"what": b.what, "budget": str(b), "why": why} for b, why in unmeasured],
        "budgets": {"met": held.count(True), "missed": held.count(False), "not_measured": len(unmeasured)},
        "noise": None if found is None else found._asdict(),
        "machine": {
            "cores": len(os.sched_getaffinity(0)),
            "numpy_loop_s": [before[0], after[0]],
            "memcpy_s": [before[1], after[1]],
        },
    }


def _run() -> int:
    try:
        code = main()
        print(end="", flush=True)
        return code
    except BrokenPipeError:  # the reader of our output has gone, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


if __name__ == "__main__":
    sys.exit(_run())
