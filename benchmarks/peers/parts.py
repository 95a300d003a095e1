"""One worker's half of a step in NumPy, as a careful hand writes it: everything in place, nothing allocated.

Parameters, their speeds and their gradients are each one flat array, so that one message carries them.
"""

from __future__ import annotations

import numpy as np
from problem import CLASSES, FEATURES, HIDDEN, LR, MOMENTUM, Array, first, halves

SIZES = (FEATURES + 1) * HIDDEN, (HIDDEN + 1) * CLASSES


def layers(flat: Array) -> tuple[Array, Array]:
    """Views of both layers in a flat array; the last row is the bias."""
    return flat[: SIZES[0]].reshape(-1, HIDDEN), flat[SIZES[0] :].reshape(-1, CLASSES)


class Parameters:
    """Parameters that move by gradients."""

    def __init__(self) -> None:
        self.flat = np.concatenate([layer.ravel() for layer in first()])
        self._speed, self._scratch = np.zeros_like(self.flat), np.empty_like(self.flat)

    def move(self, gradient: Array) -> None:
        self._speed *= MOMENTUM
        self._speed += gradient
        np.multiply(self._speed, LR, out=self._scratch)
        self.flat -= self._scratch


class Part:
    """Half of every batch, and the memory for a step on it."""

    def __init__(self, batch: int, place: int) -> None:
        self.batches = halves(batch, place)
        self.gradient = np.empty(sum(SIZES), np.float32)
        self._whole = batch
        half = len(self.batches[0][0])
        self._active, self._back = (np.empty((half, HIDDEN), np.float32) for _ in range(2))
        self._live = np.empty((half, HIDDEN), bool)
        self._scores, self._error, self._products = (np.empty((half, CLASSES), np.float32) for _ in range(3))
        self._column = np.empty((half, 1), np.float32)

    def work(self, number: int, parameters: Array) -> float:
        """The gradient of this half, in `gradient`, and its share of the loss."""
        x, hot = self.batches[number % len(self.batches)]
        (hidden, output), (to_hidden, to_output) = layers(parameters), layers(self.gradient)
        active, scores, error, column = self._active, self._scores, self._error, self._column
        np.matmul(x, hidden[:-1], out=active)
        active += hidden[-1]
        np.maximum(active, 0, out=active)
        np.matmul(active, output[:-1], out=scores)
        scores += output[-1]
        np.max(scores, axis=1, keepdims=True, out=column)
        scores -= column
        np.exp(scores, out=error)
        np.sum(error, axis=1, keepdims=True, out=column)
        error /= column
        error -= hot
        error /= self._whole
        np.multiply(scores, hot, out=self._products)
        loss = (np.log(column, out=column).sum() - self._products.sum()) / self._whole
        np.matmul(active.T, error, out=to_output[:-1])
        np.sum(error, axis=0, out=to_output[-1])
        np.matmul(error, output[:-1].T, out=self._back)
        np.greater(active, 0, out=self._live)
        self._back *= self._live
        np.matmul(x.T, self._back, out=to_hidden[:-1])
        np.sum(self._back, axis=0, out=to_hidden[-1])
        return float(loss)
