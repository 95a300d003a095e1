"""NumPy in this process: what the peers are compared with."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
from problem import CHECKED, HIDDEN, LR, MOMENTUM, way
from serving import Trial, plainly, serve, timed
from workloads import BATCHES, MIB64, NUMBERS

sys.path.append(str(Path(__file__).parents[2] / "examples"))
from mlp_model import Samples, Settings, Task, undivided
from problem import CLASSES, samples


def task(batch: int) -> Task:
    x, y = samples(batch)
    return Task(Samples(x, y), Samples(x[:64], y[:64]), CLASSES)


def settings(batch: int) -> Settings:
    return Settings(HIDDEN, batch, LR, MOMENTUM, "float32")


@contextmanager
def mlp(batch: int) -> Iterator[Trial]:
    trainer = undivided(task(batch), settings(batch))
    trainer.shuffle()

    def steps(n: int) -> None:
        for number in range(n):
            trainer.step(number % trainer.batches)

    steps(CHECKED)
    yield Trial(timed(steps), way(*trainer.learned.parameters))


@contextmanager
def move() -> Iterator[Trial]:
    source, target = np.ones(MIB64 // 8), np.ones(MIB64 // 8)

    def copies(n: int) -> None:
        for _ in range(n):
            np.copyto(target, source)

    yield Trial(timed(copies))


def sums(n: int) -> None:
    x = y = np.ones(NUMBERS)
    for _ in range(n):
        x + y


WORKLOADS = {
    **dict.fromkeys(("issue", "done", "throughput"), plainly(timed(sums))),
    "move": move,
    **{f"mlp{batch}": partial(mlp, batch) for batch in BATCHES},
}

if __name__ == "__main__":
    serve({"NumPy": np.__version__}, {"NumPy, one process": WORKLOADS})
