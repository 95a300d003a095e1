"""The main job: a step of the two-layer perceptron over three workers, next to the same maths in one NumPy process."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from budgets import MLP
from cores import connect_single
from finishing import done
from measuring import Plan, rounds, seconds
from mlp_model import Samples, Settings, Task, Trainer, undivided
from rows import Row, held_to

import interlock as il

FEATURES, HIDDEN, CLASSES = 784, 256, 10
STEPS = {64: 40, 512: 8, 4096: 2}  # in a round


def task(samples: int) -> Task:
    """Noise that looks like handwritten digits."""
    rng = np.random.default_rng(0)
    train = Samples(rng.random((samples, FEATURES)), rng.integers(0, CLASSES, samples))
    return Task(train, Samples(train.x[:64], train.y[:64]), CLASSES)


def mlp(plan: Plan) -> list[Row]:
    """Steps on one CPU worker and two device workers, all with one BLAS thread; NumPy takes each batch in one piece."""
    with connect_single(["cpu:0", "cpu:1", "cpu:2"]) as session:
        return [step(plan, session, batch) for batch in MLP]


def step(plan: Plan, session: il.Session, batch: int) -> Row:
    job, settings = task(2 * max(batch, 1024)), Settings(hidden=HIDDEN, batch=batch)
    ours, numpys = Trainer(il, session.devices, job, settings), undivided(job, settings)
    steps = STEPS[batch] if not plan.quick else max(STEPS[batch] // 2, 1)

    def run(trainer: Trainer) -> Any:
        losses: Any = None
        for number in itertools.islice(itertools.cycle(range(trainer.batches)), steps):
            losses = trainer.step(number)
        return losses

    ours.shuffle()
    numpys.shuffle()
    divided, whole = rounds(
        plan.of(13, 3),
        lambda: done(lambda: run(ours)) / steps,
        lambda: seconds(lambda: run(numpys)) / steps,
    )
    return held_to(MLP[batch], "ms", divided, "numpy, undivided", whole)
