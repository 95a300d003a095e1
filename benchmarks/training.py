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
from rows import Row, held_to, timed

import interlock as il

FEATURES, HIDDEN, CLASSES = 784, 256, 10
DTYPE = "float32"
RATE = 1e-3  # with 0.2, gradients become so small in a thousand steps that arithmetic takes 3 x as long
STEPS = {64: 60, 512: 16, 4096: 3}  # in a round


def task(samples: int) -> Task:
    """Noise that looks like handwritten digits."""
    rng = np.random.default_rng(0)
    train = Samples(rng.random((samples, FEATURES)), rng.integers(0, CLASSES, samples))
    return Task(train, Samples(train.x[:64], train.y[:64]), CLASSES)


def mlp(plan: Plan) -> list[Row]:
    """Steps on one CPU worker and two device workers, all with one BLAS thread; NumPy takes each batch in one piece."""
    with connect_single(["cpu:0", "cpu:1", "cpu:2"]) as session:
        return [row for batch in MLP for row in step(plan, session, batch)]


def step(plan: Plan, session: il.Session, batch: int) -> list[Row]:
    """A captured step and an eager one, beside NumPy's of the whole batch; NumPy's of half the batch for comparison."""
    job, settings = task(2 * max(batch, 1024)), Settings(hidden=HIDDEN, batch=batch, lr=RATE, dtype=DTYPE)
    half = settings._replace(batch=batch // 2)
    captured, eager, numpys, halves = (
        Trainer(il, session.devices, job, settings, capture=True),
        Trainer(il, session.devices, job, settings),
        undivided(job, settings),
        undivided(job, half),
    )
    steps = STEPS[batch] if not plan.quick else max(STEPS[batch] // 3, 1)

    def run(trainer: Trainer) -> Any:
        losses: Any = None
        for number in itertools.islice(itertools.cycle(range(trainer.batches)), steps):
            losses = trainer.step(number)
        return losses

    for trainer in (captured, eager, numpys, halves):
        trainer.shuffle()
    figures = rounds(
        plan.of(13, 3),
        lambda: done(lambda: run(captured)) / steps,
        lambda: seconds(lambda: run(numpys)) / steps,
        lambda: done(lambda: run(eager)) / steps,
        lambda: seconds(lambda: run(halves)) / steps,
    )
    replayed, whole, issued, part = figures
    return [
        held_to(MLP[batch], "ms", replayed, "numpy, undivided", whole),
        timed(f"  the same, eager, batch {batch}", "ms", issued, "numpy, undivided", whole, gain=True),
        timed(f"  the same, captured, batch {batch}", "ms", replayed, "numpy, half a batch", part),
    ]
