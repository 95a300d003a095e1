"""A two-layer perceptron trained data-parallel with SGD and momentum, written once for NumPy and for Interlock.

The first device holds the parameters and sums gradients; each of the others takes an equal part of every batch. The
namespace and the devices are passed in: `Trainer(interlock, session.devices, ...)` runs on workers, and
`Trainer(numpy, ["cpu", "cpu", "cpu"], ...)` is the same program, the same parts in the same order, in one process.

Nothing here reads a value, so on workers nothing here waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

Array = Any  # NumPy's, or Interlock's


class Samples(NamedTuple):
    """Samples and what they are, on the host."""

    x: np.ndarray[Any, Any]  # (samples, features)
    y: np.ndarray[Any, Any]  # (samples,), the class of each as an int


class Task(NamedTuple):
    """What is to be learned from what."""

    train: Samples
    test: Samples
    classes: int


class Settings(NamedTuple):
    """How to train."""

    hidden: int = 256
    batch: int = 512
    lr: float = 0.2
    momentum: float = 0.9
    dtype: str = "float64"
    seed: int = 0


class Part:
    """One device's part of every batch: its data, its copy of the parameters, its forward and backward pass."""

    def __init__(self, xp: Any, device: Any, home: Any, task: Task, settings: Settings, place: int, parts: int) -> None:
        """`home` is the device that sums gradients; the part is number `place` of `parts`."""
        self.device = device
        self._xp = xp
        self._home = home
        self._x = xp.asarray(task.train.x, dtype=settings.dtype, device=device)  # uploaded once
        self._hot = xp.asarray(np.eye(task.classes)[task.train.y], dtype=settings.dtype, device=device)
        self._rng = generator(xp, settings.seed, device)  # each device draws the same permutations for itself
        self._batch, self._place, self._parts = settings.batch, place, parts
        self.hidden: Array = None  # parameters of the two layers, as they last came from home
        self.output: Array = None

    def shuffle(self) -> None:
        """Put this part of every batch of a new epoch in place; what is left over after the last whole batch rests."""
        samples = len(self._x)
        batches = samples // self._batch
        order = self._rng.permutation(samples)[: batches * self._batch]
        mine = order.reshape(batches, self._parts, self._batch // self._parts)[:, self._place]
        self._batches = self._x[mine], self._hot[mine]

    def forward(self, batch: int) -> Array:
        """This part's share of the batch's mean loss."""
        xp = self._xp
        self._input, hot = self._batches[0][batch], self._batches[1][batch]
        self._active = xp.maximum(affine(self._input, self.hidden), 0)
        scores = affine(self._active, self.output)
        scores = scores - scores.max(axis=1, keepdims=True)
        powers = xp.exp(scores)
        total = powers.sum(axis=1, keepdims=True)
        self._error = (powers / total - hot) / self._batch
        return (xp.log(total).sum() - (scores * hot).sum()) / self._batch

    def backward_output(self) -> Array:
        """The output layer's gradient. It leaves for home now, while `backward_hidden` goes on here."""
        return self._gradient(self._active, self._error).to_device(self._home)

    def backward_hidden(self) -> Array:
        """The hidden layer's gradient, on its way home."""
        error = (self._error @ self.output[:-1].T) * (self._active > 0)
        return self._gradient(self._input, error).to_device(self._home)

    def _gradient(self, inputs: Array, error: Array) -> Array:
        return self._xp.concatenate([inputs.T @ error, error.sum(axis=0, keepdims=True)])


class Trainer:
    """The parameters and their updates, on the first device; the parts, on the others."""

    def __init__(self, xp: Any, devices: Sequence[Any], task: Task, settings: Settings) -> None:
        home, *others = devices
        self.settings = settings
        self.batches = len(task.train.x) // settings.batch  # in an epoch
        self._xp = xp
        rng = generator(xp, settings.seed, home)
        features = task.train.x.shape[1]
        self.hidden = first_guess(rng, features, settings.hidden, settings.dtype)
        self.output = first_guess(rng, settings.hidden, task.classes, settings.dtype)
        self._speeds = [xp.zeros_like(self.hidden), xp.zeros_like(self.output)]
        self._test = [xp.asarray(part, device=home) for part in (task.test.x.astype(settings.dtype), task.test.y)]
        self.parts = [Part(xp, device, home, task, settings, place, len(others)) for place, device in enumerate(others)]
        self._send_back()

    def shuffle(self) -> None:
        """Begin a new epoch."""
        for part in self.parts:
            part.shuffle()

    def step(self, batch: int) -> list[Array]:
        """Learn from one batch of the epoch; each part's share of its loss, on the part's device."""
        losses = [part.forward(batch) for part in self.parts]
        for_output = [part.backward_output() for part in self.parts]  # travel while the next line computes
        for_hidden = [part.backward_hidden() for part in self.parts]
        self._update_output(for_output)
        self._update_hidden(for_hidden)
        return losses

    def epoch(self) -> list[Array]:
        """All batches in a new order; each part's share of their mean loss, on the part's device."""
        self.shuffle()
        sums = self.step(0)
        for batch in range(1, self.batches):
            sums = [total + loss for total, loss in zip(sums, self.step(batch), strict=True)]
        return [total / self.batches for total in sums]

    def right(self) -> Array:
        """How many of the test samples the parameters, as they are now, get right; on the first device."""
        x, y = self._test
        scores = affine(self._xp.maximum(affine(x, self.hidden), 0), self.output)
        return (scores.argmax(axis=1) == y).sum()

    def _update_output(self, gradients: list[Array]) -> None:
        self.output, self._speeds[1] = self._moved(self.output, self._speeds[1], gradients)
        for part in self.parts:
            part.output = self.output.to_device(part.device)

    def _update_hidden(self, gradients: list[Array]) -> None:
        self.hidden, self._speeds[0] = self._moved(self.hidden, self._speeds[0], gradients)
        for part in self.parts:
            part.hidden = self.hidden.to_device(part.device)

    def _moved(self, parameters: Array, speed: Array, gradients: list[Array]) -> tuple[Array, Array]:
        """Parameters and their speed after a step of SGD with momentum; gradients are summed in the parts' order."""
        gradient = gradients[0]
        for other in gradients[1:]:
            gradient = gradient + other
        speed = speed * self.settings.momentum + gradient
        return parameters - speed * self.settings.lr, speed

    def _send_back(self) -> None:
        for part in self.parts:
            part.hidden = self.hidden.to_device(part.device)
            part.output = self.output.to_device(part.device)


def affine(x: Array, layer: Array) -> Array:
    """A layer's answer. The last row of its parameters is the bias."""
    return x @ layer[:-1] + layer[-1]


def first_guess(rng: Any, inputs: int, outputs: int, dtype: str) -> Array:
    """Parameters of a layer before it has learned anything: He's weights, and zeros for the bias."""
    layer = (rng.standard_normal((inputs + 1, outputs)) * (2 / inputs) ** 0.5).astype(dtype)
    layer[-1] = 0
    return layer


def generator(xp: Any, seed: int, device: Any) -> Any:
    """Random numbers where they are used: the same on every device, and the same as NumPy's."""
    return xp.random.default_rng(seed) if xp is np else xp.random.default_rng(seed, device=device)


def undivided(task: Task, settings: Settings) -> Trainer:
    """The same maths in one NumPy process: every batch in one piece."""
    return Trainer(np, ["cpu", "cpu"], task, settings)
