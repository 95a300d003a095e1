"""PyTorch: two ranks that run the same program, autograd, one gloo all-reduce of all gradients, its own SGD."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from problem import CHECKED, LR, MOMENTUM, first, halves, way
from serving import Measured, Trial, follow, issued, lead, plainly, serve, timed
from torch.nn.functional import cross_entropy, linear, relu
from workloads import BATCHES, MIB64, NUMBERS

RANK = int(os.environ.get("PEERS_RANK", "0"))
torch.set_num_threads(1)
torch.set_num_interop_threads(1)


def together(work: Any) -> Any:
    """`work` timed from when both ranks are there until both have done it."""

    def run(n: int) -> float:
        dist.barrier()
        return timed(work, lambda _: dist.barrier())(n)

    return run


def sums(n: int) -> None:
    x, y = torch.ones(NUMBERS, dtype=torch.float64), torch.ones(NUMBERS, dtype=torch.float64)
    for _ in range(n):
        x + y


def reads(n: int) -> None:
    x, y = torch.ones(NUMBERS, dtype=torch.float64), torch.ones(NUMBERS, dtype=torch.float64)
    for _ in range(n):
        (x + y).numpy()


@contextmanager
def move() -> Iterator[Trial]:
    x = torch.ones(MIB64 // 8, dtype=torch.float64)

    def copies(n: int) -> None:
        for _ in range(n):
            if RANK == 0:
                dist.send(x, 1)
            else:
                dist.recv(x, 0)

    yield Trial(together(copies))


@contextmanager
def mlp(batch: int) -> Iterator[Trial]:
    data = [(torch.from_numpy(x), torch.from_numpy(hot).argmax(1)) for x, hot in halves(batch, RANK)]
    arrays = [part for layer in first() for part in (layer[:-1].T.copy(), layer[-1].copy())]
    parameters = [torch.from_numpy(each).requires_grad_() for each in arrays]
    gradient = torch.zeros(sum(each.numel() for each in parameters))
    for each, part in zip(parameters, gradient.split([each.numel() for each in parameters]), strict=True):
        each.grad = part.view_as(each)  # autograd adds to it in place
    optimizer = torch.optim.SGD(parameters, lr=LR, momentum=MOMENTUM, fused=True)
    hidden, hidden_bias, output, output_bias = parameters

    def steps(n: int) -> None:
        for number in range(n):
            x, y = data[number % len(data)]
            gradient.zero_()
            scores = linear(relu(linear(x, hidden, hidden_bias)), output, output_bias)
            loss = cross_entropy(scores, y, reduction="sum") / batch
            loss.backward()
            dist.all_reduce(gradient)
            optimizer.step()

    steps(CHECKED)
    layers = (np.concatenate([w.T, b[None]]) for w, b in (arrays[:2], arrays[2:]))
    yield Trial(together(steps), way(*layers))


ALONE: dict[str, Measured] = {
    "issue": plainly(issued(sums, lambda _: None)),
    "done": plainly(timed(sums)),
    "throughput": plainly(timed(sums)),
    "read": plainly(timed(reads)),
}
BOTH: dict[str, Measured] = {"move": move, **{f"mlp{batch}": partial(mlp, batch) for batch in BATCHES}}


def meet(file: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=RANK, world_size=2)


def first_rank() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        command = [sys.executable, __file__, f"{folder}/meeting"]
        child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=2, text=True, env={**os.environ, "PEERS_RANK": "1"}
        )
        line = child.stdin
        assert line is not None

        def tell(what: Any) -> None:
            print(json.dumps(what), file=line, flush=True)

        meet(command[-1])
        rows = {**ALONE, **{name: lead(name, each, tell) for name, each in BOTH.items()}}
        serve({"PyTorch": torch.__version__, "NumPy": np.__version__}, {"PyTorch, gloo all-reduce": rows})
        tell(None)
        dist.destroy_process_group()
        child.wait()


if __name__ == "__main__":
    if RANK == 0:
        first_rank()
    else:
        meet(sys.argv[1])
        follow(BOTH, lambda: json.loads(sys.stdin.readline() or "null"))
        dist.destroy_process_group()
