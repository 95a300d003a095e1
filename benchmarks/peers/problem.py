"""The network that every peer trains, in NumPy arrays: data, first parameters, and how far some steps move these.

The same as examples/mlp_model.py makes for NumPy and for Interlock; the runner compares how far they all come.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

FEATURES, HIDDEN, CLASSES = 784, 256, 10
LR: Final = 1e-3  # with 0.2, gradients become so small in a thousand steps that arithmetic takes 3 x as long
MOMENTUM: Final = 0.9
PARTS: Final = 2  # workers that compute
CHECKED: Final = 6  # steps, after which the parameters are compared

Array = np.ndarray[Any, Any]


def samples(batch: int) -> tuple[Array, Array]:
    """Noise that looks like handwritten digits, and the class of each; at least two batches."""
    count = 2 * max(batch, 1024)
    rng = np.random.default_rng(0)
    return rng.random((count, FEATURES)), rng.integers(0, CLASSES, count)


def halves(batch: int, place: int) -> list[tuple[Array, Array]]:
    """One worker's half of every batch: inputs, and a one for the right class."""
    x, y = samples(batch)
    order = np.random.default_rng(0).permutation(len(x)).reshape(-1, PARTS, batch // PARTS)[:, place]
    hot = np.eye(CLASSES, dtype=np.float32)[y]
    return [(x[mine].astype(np.float32), hot[mine]) for mine in order]


def first() -> tuple[Array, Array]:
    """The parameters of both layers before the first step; the last row is the bias."""
    rng = np.random.default_rng(0)
    layers = []
    for inputs, outputs in (FEATURES, HIDDEN), (HIDDEN, CLASSES):
        layer = (rng.standard_normal((inputs + 1, outputs)) * (2 / inputs) ** 0.5).astype(np.float32)
        layer[-1] = 0
        layers.append(layer)
    return layers[0], layers[1]


def way(hidden: Any, output: Any) -> float:
    """How far the parameters are from where they began."""
    ways = (np.asarray(now) - then for now, then in zip((hidden, output), first(), strict=True))
    return float(sum(np.abs(each).sum(dtype=float) for each in ways))
