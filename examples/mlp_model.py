"""A two-layer perceptron trained data-parallel with SGD and momentum, written once for NumPy and for Interlock.

The first device holds the parameters and sums gradients; each of the others takes an equal part of every batch. The
namespace and the devices are passed in: `Trainer(interlock, session.devices, ...)` runs on workers, and
`Trainer(numpy, ["cpu", "cpu", "cpu"], ...)` is the same program, the same parts in the same order, in one process.

A step is a function of what was learned so far and of a batch. Nothing in it reads a value, so on workers nothing in
it waits; and as it changes nothing, it can be captured (`capture=True`): from the second step on, each worker then
gets one message a step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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


class Layers(NamedTuple):
    """An array for each of the two layers: parameters, or their gradients. The last row is the bias."""

    hidden: Array  # (features + 1, hidden)
    output: Array  # (hidden + 1, classes)


class Learned(NamedTuple):
    """What a step starts from, and what it leaves."""

    parameters: Layers  # on the first device, like their speeds
    speeds: Layers
    copies: list[Layers]  # the parameters on each of the other devices


Batch = list[tuple[Array, Array]]  # of each of the other devices: samples, and their classes as rows of 0 and 1


def make_step(xp: Any, home: Any, devices: Sequence[Any], size: int, momentum: float) -> Callable[..., Any]:
    """The function that learns from one batch of `size` samples.

    Returns:
        A function of what was learned, the batch and the learning rate: what is learned then, and each part's share
        of the batch's mean loss, on the part's device.
    """

    def forward(part: tuple[Array, Array], layers: Layers) -> tuple[Array, Array, Array]:
        """The part's share of the loss, the hidden layer's activity, and the error of the output."""
        x, hot = part
        active = xp.maximum(affine(x, layers.hidden), 0)
        scores = affine(active, layers.output)
        scores = scores - scores.max(axis=1, keepdims=True)
        powers = xp.exp(scores)
        total = powers.sum(axis=1, keepdims=True)
        return (xp.log(total).sum() - (scores * hot).sum()) / size, active, (powers / total - hot) / size

    def gradient(inputs: Array, error: Array) -> Array:
        return xp.concatenate([inputs.T @ error, error.sum(axis=0, keepdims=True)])

    def backward_output(active: Array, error: Array) -> Array:
        """The output layer's gradient. It leaves for home now, while `backward_hidden` goes on here."""
        return gradient(active, error).to_device(home)

    def backward_hidden(part: tuple[Array, Array], layers: Layers, active: Array, error: Array) -> Array:
        """The hidden layer's gradient, on its way home."""
        error = (error @ layers.output[:-1].T) * (active > 0)
        return gradient(part[0], error).to_device(home)

    def moved(parameters: Array, speed: Array, gradients: list[Array], lr: float) -> tuple[Array, Array, list[Array]]:
        """A layer after the step: SGD with momentum, the gradients summed in the parts' order; and its copies."""
        total = gradients[0]
        for other in gradients[1:]:
            total = total + other
        speed = speed * momentum + total
        parameters = parameters - speed * lr
        return parameters, speed, [parameters.to_device(device) for device in devices]

    def step(learned: Learned, batch: Batch, lr: float) -> tuple[Learned, list[Array]]:
        parts = list(zip(batch, learned.copies, strict=True))
        losses, active, errors = zip(*[forward(part, layers) for part, layers in parts], strict=True)
        for_output = [backward_output(*each) for each in zip(active, errors, strict=True)]
        for_hidden = [backward_hidden(*part, *each) for part, *each in zip(parts, active, errors, strict=True)]
        output, output_speed, outputs = moved(learned.parameters.output, learned.speeds.output, for_output, lr)
        hidden, hidden_speed, hiddens = moved(learned.parameters.hidden, learned.speeds.hidden, for_hidden, lr)
        copies = [Layers(*each) for each in zip(hiddens, outputs, strict=True)]
        return Learned(Layers(hidden, output), Layers(hidden_speed, output_speed), copies), list(losses)

    return step


class Part:
    """One device's part of every batch."""

    def __init__(self, xp: Any, device: Any, task: Task, settings: Settings, place: int, parts: int) -> None:
        """The part is number `place` of `parts`."""
        self._x = xp.asarray(task.train.x, dtype=settings.dtype, device=device)  # uploaded once
        self._hot = xp.asarray(np.eye(task.classes)[task.train.y], dtype=settings.dtype, device=device)
        self._rng = generator(xp, settings.seed, device)  # each device draws the same permutations for itself
        self._batch, self._place, self._parts = settings.batch, place, parts

    def shuffle(self) -> None:
        """Put this part of every batch of a new epoch in place; what is left over after the last whole batch rests."""
        samples = len(self._x)
        batches = samples // self._batch
        order = self._rng.permutation(samples)[: batches * self._batch]
        mine = order.reshape(batches, self._parts, self._batch // self._parts)[:, self._place]
        self._batches = self._x[mine], self._hot[mine]

    def batch(self, number: int) -> tuple[Array, Array]:
        """Samples and classes of a batch of this epoch."""
        return self._batches[0][number], self._batches[1][number]


class Trainer:
    """The parts, on their devices, and what was learned so far."""

    def __init__(
        self,
        xp: Any,
        devices: Sequence[Any],
        task: Task,
        settings: Settings,
        capture: bool = False,
        make: Callable[..., Callable[..., Any]] = make_step,
    ) -> None:
        """`capture`: have Interlock record a step and replay it; `make`: makes the step."""
        home, *others = devices
        self.settings = settings
        self.batches = len(task.train.x) // settings.batch  # in an epoch
        self._xp = xp
        rng = generator(xp, settings.seed, home)
        features = task.train.x.shape[1]
        parameters = Layers(
            first_guess(rng, features, settings.hidden, settings.dtype),
            first_guess(rng, settings.hidden, task.classes, settings.dtype),
        )
        self.learned = Learned(
            parameters,
            Layers(*[xp.zeros_like(each) for each in parameters]),
            [Layers(*[each.to_device(device) for each in parameters]) for device in others],
        )
        self._test = [xp.asarray(part, device=home) for part in (task.test.x.astype(settings.dtype), task.test.y)]
        self._parts = [Part(xp, device, task, settings, place, len(others)) for place, device in enumerate(others)]
        step = make(xp, home, others, settings.batch, settings.momentum)
        self._step = xp.capture(step) if capture else step

    def shuffle(self) -> None:
        """Begin a new epoch."""
        for part in self._parts:
            part.shuffle()

    def batch(self, number: int) -> Batch:
        """All parts of a batch of the epoch."""
        return [part.batch(number) for part in self._parts]

    def step(self, batch: int) -> list[Array]:
        """Learn from one batch of the epoch; each part's share of its loss, on the part's device."""
        losses: list[Array]
        self.learned, losses = self._step(self.learned, self.batch(batch), self.settings.lr)
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
        layers = self.learned.parameters
        scores = affine(self._xp.maximum(affine(x, layers.hidden), 0), layers.output)
        return (scores.argmax(axis=1) == y).sum()

    def report(self) -> str:
        """What was captured."""
        text: str = self._step.report()
        return text


def affine(x: Array, layer: Array) -> Array:
    """A layer's answer."""
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
