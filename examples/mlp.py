"""Train a small network on handwritten digits, over several devices, driven from this one program.

The first device (`cpu:0`) holds the parameters and sums gradients; every other device takes an equal part of each
batch. A layer's gradient leaves for the CPU as soon as it is computed, while the backward pass goes on. What the
network is, and in which order it computes, is in `mlp_model.py`; this file reads options and data, shows progress, and
measures.

In the current folder it leaves `mlp-timeline.json`, to be opened at ui.perfetto.dev, and `mlp-graph.svg`, the
computational graph of one step. The last line that it prints is the accuracy on samples it has not trained with.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn, TypeVar

import mlp_autograd
import numpy as np
from mlp_model import Samples, Settings, Task, Trainer, make_step, undivided
from progress import Progress

import interlock as il

TIMELINE: Final = "mlp-timeline.json"
GRAPH: Final = "mlp-graph.svg"
TRACED_STEPS: Final = 5
REPEATS: Final = 7
STEPS: Final = 30  # of each repeat
THREE_ON_THE_CPU: Final = "cpu:0,cpu:1,cpu:2"
EXAMPLES: Final = """examples:
  python examples/mlp.py                               three workers on the CPU
  python examples/mlp.py --devices cpu:0,sim:0,sim:1   two simulated GPUs
  python examples/mlp.py --autograd                    the forward pass alone is written by hand
  python examples/mlp.py --devices cpu:0,cpu:1 --dtype float32 --hidden 1024
  python examples/mlp.py --gate coordinator            hold instructions here instead of at the workers
  python examples/mlp.py --eager                       issue each step anew instead of replaying a recording
  python examples/mlp.py --address ipc:///run/...       the workers of `interlock up`, which prints its address
  python examples/mlp.py --data mine.npz --batch 64    arrays x (samples, features) and y (samples, as ints from 0)
"""


N = TypeVar("N", int, float)


class Refused(Exception):
    """What the user asked for cannot be done; the text says why, and what would do."""


# -- options and data


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        raise Refused(message)


def options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """What the command line asks for."""
    parser = Parser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    default = Settings()
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--devices", help=f"the first one sums; no cuda:N yet; default: {THREE_ON_THE_CPU}")
    where.add_argument("--address", help="of workers that `interlock up` started")
    parser.add_argument("--gate", choices=["worker", "coordinator"], default="worker", help="where instructions wait")
    parser.add_argument("--eager", action="store_true", help="issue each step anew instead of replaying a recording")
    parser.add_argument("--autograd", action="store_true", help="write the forward pass only: il.grad does the rest")
    parser.add_argument("--dtype", choices=["float64", "float32"], default=default.dtype)
    parser.add_argument("--hidden", type=_count, default=default.hidden, help="units of the hidden layer; %(default)s")
    parser.add_argument("--batch", type=_count, default=default.batch, help="samples of a step; %(default)s")
    parser.add_argument("--epochs", type=_count, default=60, help="%(default)s")
    parser.add_argument("--lr", type=_positive, default=default.lr, help="learning rate; %(default)s")
    parser.add_argument("--momentum", type=_momentum, default=default.momentum, help="%(default)s")
    parser.add_argument("--seed", type=_seed, default=default.seed, help="of split, first guess and order; %(default)s")
    parser.add_argument("--data", metavar="FILE.npz", help="train with these arrays x and y instead of the digits")
    return parser.parse_args(arguments)


def _count(text: str) -> int:
    return _number(text, int, lambda value: value >= 1, "a whole number from 1")


def _seed(text: str) -> int:
    return _number(text, int, lambda value: value >= 0, "a whole number from 0")


def _positive(text: str) -> float:
    return _number(text, float, lambda value: 0 < value < math.inf, "a number above 0")


def _momentum(text: str) -> float:
    return _number(text, float, lambda value: 0 <= value < 1, "a number from 0 to below 1")


def _number(text: str, kind: Callable[[str], N], good: Callable[[N], bool], wanted: str) -> N:
    value: N | None
    try:
        value = kind(text)
    except ValueError:
        value = None
    if value is None or not good(value):
        raise argparse.ArgumentTypeError(f"{text!r} is not {wanted}")
    return value


def digits() -> Samples:
    """1,797 handwritten digits of 8 x 8 pixels."""
    try:
        from sklearn.datasets import load_digits  # type: ignore[import-untyped]
    except ImportError:
        raise Refused(
            "the digits come with scikit-learn: pip install 'interlock[examples]', or give your own with --data"
        ) from None
    x, y = load_digits(return_X_y=True)
    return Samples(x, y)


def load(path: str) -> Samples:
    """The arrays x and y of an .npz file, checked."""
    try:
        with open(path, "rb") as file:
            if not zipfile.is_zipfile(file):
                raise Refused(f"{path} is not an .npz file: write one with numpy.savez(path, x=x, y=y)")
        with np.load(path, allow_pickle=False) as held:
            if missing := {"x", "y"} - set(held.files):
                has = ", ".join(held.files) or "nothing"
                raise Refused(f"{path} has no array {' and no array '.join(sorted(missing))}: it has {has}")
            x, y = held["x"], held["y"]
    except OSError as error:
        raise Refused(f"{path} cannot be read: {error.strerror or error}") from None
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        raise Refused(f"{path} holds no plain arrays x and y: {error}") from None
    if x.dtype.kind not in "biuf":
        raise Refused(f"x of {path} must hold real numbers, not {x.dtype}")
    if x.ndim != 2 or 0 in x.shape:
        raise Refused(f"x of {path} must have the shape (samples, features), not {x.shape}")
    if y.dtype.kind not in "iu":
        raise Refused(f"y of {path} must hold ints, the class of each sample, not {y.dtype}")
    if y.shape != x.shape[:1]:
        raise Refused(f"y of {path} must have the shape ({x.shape[0]},), one class for each row of x, not {y.shape}")
    if not np.isfinite(x).all():
        row, column = np.argwhere(~np.isfinite(x))[0]
        raise Refused(f"x of {path} holds {x[row, column]} at [{row}, {column}]: every element must be finite")
    if y.min() < 0:
        raise Refused(f"y of {path} holds {y.min()} at [{y.argmin()}]: classes count from 0")
    if y.max() >= len(y):
        raise Refused(f"y of {path} holds {y.max()} at [{y.argmax()}], but there are only {len(y)} samples")
    if y.max() == 0:
        raise Refused(f"y of {path} holds a single class: there is nothing to tell apart")
    return Samples(x.astype(np.float64), y.astype(np.int64))


def split(samples: Samples, batch: int, seed: int) -> Task:
    """A fifth of the samples, drawn with the seed, for testing; all scaled to -1..1 by those to train with."""
    order = np.random.default_rng(seed).permutation(len(samples.x))
    held_back = max(len(order) // 5, 1)
    test, train = order[:held_back], order[held_back:]
    if len(train) < batch:
        raise Refused(f"{len(train)} samples to train with are too few for a batch of {batch}: use --batch")
    scale = np.abs(samples.x[train]).max() or 1.0
    x, y = samples.x / scale, samples.y
    return Task(Samples(x[train], y[train]), Samples(x[test], y[test]), int(y.max()) + 1)


def connect(args: argparse.Namespace) -> il.Session:
    """A session with at least two devices, whose parts of a batch are equal."""
    devices = args.devices
    if devices is None and not (args.address or os.environ.get("INTERLOCK_ADDRESS")):
        found = il.default_devices()
        devices = found if len(found) > 1 or os.environ.get("INTERLOCK_DEVICES") else THREE_ON_THE_CPU
    try:
        session = il.connect(devices=devices, address=args.address, gate=args.gate)
    except (ValueError, il.InterlockError) as error:
        raise Refused(str(error)) from None
    parts = len(session.devices) - 1
    if parts < 1 or args.batch % parts:
        session.close()
        if parts < 1:
            raise Refused("one device sums and the others compute: name at least two, such as --devices cpu:0,cpu:1")
        above = -(-args.batch // parts) * parts
        raise Refused(f"a batch of {args.batch} has no {parts} equal parts: use --batch {above}")
    return session


# -- training and measuring


def train(trainer: Trainer, epochs: int, samples: int, progress: Progress) -> tuple[list[float], float]:
    """The loss of each epoch, and the accuracy after the last.

    What an epoch has come to is read while the next one is under way, so that no device waits for it.
    """
    curve: list[float] = []
    accuracy = 0.0
    issued: list[tuple[list[Any], Any]] = []
    for epoch in range(epochs + 1):
        if epoch < epochs:
            issued.append((trainer.epoch(), trainer.right()))
        if epoch > 0:
            losses, right = issued.pop(0)
            loss, accuracy = sum(float(part) for part in losses), float(right) / samples
            if not math.isfinite(loss):
                raise Refused(f"the loss became {loss} in epoch {epoch}: use a smaller --lr than {trainer.settings.lr}")
            curve.append(loss)
            progress.step(f"loss {loss:.4f}, accuracy {accuracy:.3f}")
    return curve, accuracy


def run_steps(trainer: Trainer, steps: int) -> None:
    for step in range(steps):
        trainer.step(step % trainer.batches)


def measure(trainer: Trainer, whole: Trainer, progress: Progress) -> tuple[float, float]:
    """Milliseconds of a step on the workers, and in one NumPy process; medians of turns taken one after the other."""
    taken: tuple[list[float], list[float]] = ([], [])
    for _ in range(REPEATS + 1):
        for one, times in zip((trainer, whole), taken, strict=True):
            started = time.perf_counter()
            run_steps(one, STEPS)
            il.synchronize()
            times.append((time.perf_counter() - started) / STEPS * 1e3)
        progress.step(f"{taken[0][-1]:.2f} ms on the workers, {taken[1][-1]:.2f} ms in NumPy")
    ours, theirs = (float(np.median(times[1:])) for times in taken)  # the first turn warms up
    return ours, theirs


def trace_steps(trainer: Trainer) -> tuple[float, list[str]]:
    """The share of transfer time hidden behind computing; and the files left, a timeline and the graph of a step."""
    with il.trace() as one:
        trainer.step(0)
    with il.trace() as few:
        run_steps(trainer, TRACED_STEPS)
    files = [name for name, write in ((TIMELINE, few.write_timeline), (GRAPH, one.write_graph)) if written(name, write)]
    return few.overlap().share, files


def written(name: str, write: Callable[[str], None]) -> bool:
    """Whether the file could be written. If not, that is told, and no reason to lose what the training came to."""
    try:
        write(name)
    except OSError as error:
        print(f"mlp.py: {name} could not be written: {error.strerror or error}", file=sys.stderr)
        return False
    return True


def blas_threads(devices: Sequence[Any]) -> int:
    """How many BLAS threads a worker on the CPU has: they share the cores."""
    workers = sum(device.kind in ("cpu", "sim") for device in devices)
    return max(len(os.sched_getaffinity(0)) // max(workers, 1), 1)


def table(rows: Sequence[tuple[str, str]]) -> str:
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)


def difference(curve: list[float], reference: list[float]) -> str:
    furthest = max(abs(a - b) / abs(b) for a, b in zip(curve, reference, strict=True))
    return "equal bit for bit" if curve == reference else f"differs by {furthest:.1e} of the loss at the most"


def run(args: argparse.Namespace) -> None:
    try:
        from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]
    except ImportError:
        raise Refused("to compare fairly this needs threadpoolctl: pip install 'interlock[examples]'") from None
    if not os.access(Path.cwd(), os.W_OK):
        raise Refused(f"{TIMELINE} and {GRAPH} are written to the current folder, but {Path.cwd()} is read-only")
    settings = Settings(args.hidden, args.batch, args.lr, args.momentum, args.dtype, args.seed)
    task = split(load(args.data) if args.data else digits(), args.batch, args.seed)
    tested = len(task.test.x)
    with connect(args) as session:
        home, *others = session.devices
        threads = blas_threads(session.devices)
        computing = " ".join(map(str, others))
        layers = f"{task.train.x.shape[1]}-{args.hidden}-{task.classes}"
        print(f"a network of {layers}: {home} sums, {computing} compute", flush=True)
        make = mlp_autograd.make_step if args.autograd else make_step
        trainer = Trainer(il, session.devices, task, settings, capture=not args.eager, make=make)
        with Progress("epoch", args.epochs) as progress:
            curve, accuracy = train(trainer, args.epochs, tested, progress)
        with threadpool_limits(threads):
            same = Trainer(np, ["cpu"] * len(session.devices), task, settings)
            with Progress("NumPy epoch", args.epochs) as progress:
                reference, _ = train(same, args.epochs, tested, progress)
            whole = undivided(task, settings)
            whole.shuffle()
            with Progress("measurement", REPEATS + 1) as progress:
                ours, theirs = measure(trainer, whole, progress)
        hidden, files = trace_steps(trainer)
    process = f"one NumPy process, undivided, {threads} BLAS thread{'s' if threads > 1 else ''}"
    rows = [
        (f"a step on {home} {computing}, {'eager' if args.eager else 'replayed'}", f"{ours:.2f} ms"),
        (f"a step in {process}", f"{theirs:.2f} ms, {theirs / ours:.2f} x as long"),
        ("transfer time hidden behind computing", f"{hidden:.0%}"),
        ("loss curve, beside the same program's in NumPy", difference(curve, reference)),
        ("timeline and graph", ", ".join(files) or "not written"),
    ]
    print(table(rows))
    print(f"test accuracy {accuracy:.3f}")


def main(arguments: Sequence[str] | None = None) -> int:
    try:
        run(options(arguments))
    except Refused as refused:
        print(f"mlp.py: error: {refused}", file=sys.stderr)
        return 2
    except il.InterlockError as error:
        print(f"mlp.py: error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("mlp.py: stopped", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
