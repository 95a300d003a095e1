"""The training step of `mlp_model.py` with its gradients taken by Interlock: only the forward pass is written.

The parameters go from the first device to each of the others, which compute a part of the loss each; the parts come
home and are summed. Going back, every gradient takes the way that its array came, as soon as it is there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mlp_model import Array, Batch, Layers, Learned, affine

import interlock as il


def loss_of_part(layers: Layers, x: Array, hot: Array) -> Array:
    """The sum of the softmax cross-entropy over some samples; `hot` has their classes as rows of 0 and 1."""
    scores = affine(il.maximum(affine(x, layers.hidden), 0), layers.output)
    scores = scores - il.stop_gradient(scores.max(axis=1, keepdims=True))
    return il.log(il.exp(scores).sum(axis=1)).sum() - (scores * hot).sum()


def make_step(xp: Any, home: Any, devices: Sequence[Any], size: int, momentum: float) -> Callable[..., Any]:
    """As `mlp_model.make_step`; `xp` is Interlock."""

    def loss_of(parameters: Layers, batch: Batch) -> tuple[Array, list[Array]]:
        """The mean loss of a batch, on the first device; and each part's share of it, on the part's device."""
        losses = []
        for device, (x, hot) in zip(devices, batch, strict=True):
            losses.append(loss_of_part(Layers(*[each.to(device) for each in parameters]), x, hot) / size)
        total = losses[0].to(home)
        for loss in losses[1:]:
            total = total + loss.to(home)
        return total, losses

    gradient_of = il.grad(loss_of, has_aux=True)

    def step(learned: Learned, batch: Batch, lr: float) -> tuple[Learned, list[Array]]:
        gradients, losses = gradient_of(learned.parameters, batch)
        speeds = Layers(*[v * momentum + g for v, g in zip(learned.speeds, gradients, strict=True)])
        parameters = Layers(*[p - v * lr for p, v in zip(learned.parameters, speeds, strict=True)])
        return Learned(parameters, speeds, learned.copies), losses

    return step
