"""JAX on CPU devices of one process, with a thread for each: operation by operation, and compiled.

Eager, the MLP is divided as Interlock's: one device holds the parameters, two compute. Compiled, it is one function
over arrays that lie on two devices; XLA puts the all-reduce in. Each compiled step is waited for: the devices share a
pool of threads, and with several steps under way those that wait for the all-reduce can keep out the others for ever.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=3"
os.environ["NPROC"] = "1"  # threads, at least; there are as many as devices
os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from problem import CHECKED, LR, MOMENTUM, PARTS, first, halves, way
from serving import Measured, Trial, issued, serve, timed
from workloads import BATCHES, MIB64, NUMBERS

jax.config.update("jax_enable_x64", True)
HOME, *OTHERS = jax.devices()
Layers = tuple[Any, Any]


@contextmanager
def small(kind: str, compiled: bool) -> Iterator[Trial]:
    x, y = jnp.ones(NUMBERS), jnp.ones(NUMBERS)
    add = jax.jit(jnp.add) if compiled else lambda x, y: x + y

    def sums(n: int) -> Any:
        for _ in range(n):
            z = add(x, y)
        return z  # one device does one after the other: with the last, all are done

    def reads(n: int) -> None:
        for _ in range(n):
            np.asarray(add(x, y))

    match kind:
        case "issue":
            yield Trial(issued(sums, jax.block_until_ready))
        case "done":
            yield Trial(timed(sums, jax.block_until_ready))
        case "read":
            yield Trial(timed(reads))


@contextmanager
def move() -> Iterator[Trial]:
    x = jax.block_until_ready(jax.device_put(jnp.ones(MIB64 // 8), OTHERS[0]))

    def copies(n: int) -> None:
        for _ in range(n):
            jax.block_until_ready(jax.device_put(x, OTHERS[1], may_alias=False))

    yield Trial(timed(copies))


def affine(x: Any, layer: Any) -> Any:
    return x @ layer[:-1] + layer[-1]


def learned(layers: Layers, x: Any, hot: Any, whole: int) -> tuple[Layers, Any]:
    """The gradients of a batch, or of a part of one, and its loss."""
    active = jnp.maximum(affine(x, layers[0]), 0)
    scores = affine(active, layers[1])
    scores = scores - scores.max(axis=1, keepdims=True)
    powers = jnp.exp(scores)
    total = powers.sum(axis=1, keepdims=True)
    error = (powers / total - hot) / whole
    back = (error @ layers[1][:-1].T) * (active > 0)
    gradients = tuple(
        jnp.concatenate([inputs.T @ error, error.sum(axis=0, keepdims=True)])
        for inputs, error in ((x, back), (active, error))
    )
    return (gradients[0], gradients[1]), (jnp.log(total).sum() - (scores * hot).sum()) / whole


def moved(layers: Layers, speeds: Layers, gradients: Layers) -> tuple[Layers, Layers]:
    faster = tuple(speed * np.float32(MOMENTUM) + gradient for speed, gradient in zip(speeds, gradients, strict=True))
    after = tuple(layer - speed * np.float32(LR) for layer, speed in zip(layers, faster, strict=True))
    return (after[0], after[1]), (faster[0], faster[1])


@contextmanager
def eager(batch: int) -> Iterator[Trial]:
    data = [[jax.device_put(each, other) for each in halves(batch, place)] for place, other in enumerate(OTHERS)]
    layers = jax.device_put(first(), HOME)
    speeds = jax.device_put(tuple(map(np.zeros_like, first())), HOME)
    copies = [jax.device_put(layers, other) for other in OTHERS]

    def steps(n: int) -> Any:
        nonlocal layers, speeds, copies
        for number in range(n):
            both = [learned(copy, *part[number % len(part)], batch) for copy, part in zip(copies, data, strict=True)]
            one, two = (jax.device_put(gradients, HOME) for gradients, _ in both)
            layers, speeds = moved(layers, speeds, (one[0] + two[0], one[1] + two[1]))
            copies = [jax.device_put(layers, other) for other in OTHERS]
        return copies, speeds, both

    steps(CHECKED)
    yield Trial(timed(steps, jax.block_until_ready), way(*layers))


@contextmanager
def compiled(batch: int) -> Iterator[Trial]:
    mesh = Mesh(np.array(OTHERS), ("part",))
    divided, everywhere = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in (("part",), ()))
    parts = [halves(batch, place) for place in range(PARTS)]
    data = [
        tuple(jax.device_put(np.concatenate(same), divided) for same in zip(*each, strict=True))
        for each in zip(*parts, strict=True)
    ]
    layers = jax.device_put(first(), everywhere)
    speeds = jax.device_put(tuple(map(np.zeros_like, first())), everywhere)

    @partial(jax.jit, donate_argnums=(0, 1), out_shardings=everywhere)
    def step(layers: Layers, speeds: Layers, x: Any, hot: Any) -> tuple[Layers, Layers, Any]:
        gradients, loss = learned(layers, x, hot, batch)
        return *moved(layers, speeds, gradients), loss

    def steps(n: int) -> Any:
        nonlocal layers, speeds
        for number in range(n):
            layers, speeds, loss = step(layers, speeds, *data[number % len(data)])
            jax.block_until_ready(loss)
        return layers, speeds

    steps(CHECKED)
    yield Trial(timed(steps, jax.block_until_ready), way(*layers))


def workloads(whole: bool) -> dict[str, Measured]:
    return {
        "issue": partial(small, "issue", whole),
        "done": partial(small, "done", whole),
        "throughput": partial(small, "done", whole),
        "read": partial(small, "read", whole),
        **({} if whole else {"move": move}),
        **{f"mlp{batch}": partial(compiled if whole else eager, batch) for batch in BATCHES},
    }


if __name__ == "__main__":
    versions = {"JAX": jax.__version__, "NumPy": np.__version__}
    serve(versions, {"JAX, eager": workloads(False), "JAX, jitted": workloads(True)})
