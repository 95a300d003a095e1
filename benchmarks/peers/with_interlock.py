"""Interlock: one program, a worker process for each device."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from problem import CHECKED, way
from serving import Measured, Trial, issued, serve, timed
from with_numpy import settings, task
from workloads import BATCHES, MIB64, NUMBERS

import interlock as il

sys.path.append(str(Path(__file__).parents[1]))
from cores import connect_single
from mlp_model import Trainer


def synchronize(held: object) -> None:
    il.synchronize()


@contextmanager
def small(kind: str) -> Iterator[Trial]:
    with il.connect(devices=["cpu:0"]):
        x, y = il.ones(NUMBERS), il.ones(NUMBERS)

        def sums(n: int) -> None:
            for _ in range(n):
                x + y

        def reads(n: int) -> None:
            for _ in range(n):
                (x + y).numpy()

        match kind:
            case "issue":
                yield Trial(issued(sums, synchronize))
            case "done":
                yield Trial(timed(sums, synchronize))
            case "read":
                yield Trial(timed(reads))


@contextmanager
def large(copied: bool) -> Iterator[Trial]:
    with il.connect(devices=["cpu:0", "cpu:1"]) as session:
        source, target = session.devices
        x = il.ones(MIB64 // 8, device=source)
        il.synchronize()

        def there(n: int) -> None:
            for _ in range(n):
                moved = x.to(target)
                _ = moved.copy() if copied else moved[-1:] + 1
                il.synchronize()

        yield Trial(timed(there))


@contextmanager
def mlp(batch: int, capture: bool) -> Iterator[Trial]:
    """The parameters on cpu:0, half of each batch on the others, one BLAS thread each."""
    with connect_single(["cpu:0", "cpu:1", "cpu:2"]) as session:
        trainer = Trainer(il, session.devices, task(batch), settings(batch), capture=capture)
        trainer.shuffle()

        def steps(n: int) -> Any:
            losses: Any = None
            for number in range(n):
                losses = trainer.step(number % trainer.batches)
            return losses

        steps(CHECKED)
        yield Trial(timed(steps, synchronize), way(*[layer.numpy() for layer in trainer.learned.parameters]))


EAGER: dict[str, Measured] = {
    "issue": partial(small, "issue"),
    "done": partial(small, "done"),
    "throughput": partial(small, "done"),
    "read": partial(small, "read"),
    "move": partial(large, True),
    "share": partial(large, False),
    **{f"mlp{batch}": partial(mlp, batch, False) for batch in BATCHES},
}
CAPTURED: dict[str, Measured] = {f"mlp{batch}": partial(mlp, batch, True) for batch in BATCHES}
ROWS = {"Interlock": EAGER, "Interlock, captured": CAPTURED}

if __name__ == "__main__":
    import numpy as np

    serve({"Interlock": version("interlock"), "NumPy": np.__version__}, ROWS)
