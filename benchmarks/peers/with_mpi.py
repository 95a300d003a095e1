"""mpi4py: two ranks that run the same program, NumPy in place, and one all-reduce of all gradients in place."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import mpi4py
import numpy as np
from mpi4py import MPI
from parts import Parameters, Part, layers
from problem import CHECKED, way
from serving import Measured, Trial, follow, lead, serve, timed
from workloads import BATCHES, MIB64, NUMBERS

COMM = MPI.COMM_WORLD
RANK = COMM.Get_rank()
IDLE_S = 0.001  # a rank that waits in MPI uses a whole core: between rounds it sleeps instead


def tell(what: Any) -> None:
    COMM.send(what, dest=1)


def listen() -> Any:
    while not COMM.Iprobe(source=0):
        time.sleep(IDLE_S)
    return COMM.recv(source=0)


def together(work: Any) -> Any:
    """`work` timed from when both ranks are there until both have done it."""

    def run(n: int) -> float:
        COMM.Barrier()
        return timed(work, lambda _: COMM.Barrier())(n)

    return run


@contextmanager
def read() -> Iterator[Trial]:
    """The second rank adds when asked, and sends the sum."""
    x, y, z, question = np.ones(NUMBERS), np.ones(NUMBERS), np.empty(NUMBERS), np.zeros(1)

    def sums(n: int) -> None:
        for _ in range(n):
            if RANK == 0:
                COMM.Send(question, dest=1)
                COMM.Recv(z, source=1)
            else:
                COMM.Recv(question, source=0)
                np.add(x, y, out=z)
                COMM.Send(z, dest=0)

    yield Trial(together(sums))


@contextmanager
def move() -> Iterator[Trial]:
    x = np.ones(MIB64 // 8)

    def copies(n: int) -> None:
        for _ in range(n):
            if RANK == 0:
                COMM.Send(x, dest=1)
            else:
                COMM.Recv(x, source=0)

    yield Trial(together(copies))


@contextmanager
def mlp(batch: int) -> Iterator[Trial]:
    parameters, part = Parameters(), Part(batch, RANK)

    def steps(n: int) -> None:
        for number in range(n):
            part.work(number, parameters.flat)
            COMM.Allreduce(MPI.IN_PLACE, part.gradient)
            parameters.move(part.gradient)

    steps(CHECKED)
    yield Trial(together(steps), way(*layers(parameters.flat)))


WORKLOADS: dict[str, Measured] = {
    "read": read,
    "move": move,
    **{f"mlp{batch}": partial(mlp, batch) for batch in BATCHES},
}

if __name__ == "__main__":
    if RANK == 0:
        library = MPI.Get_library_version().splitlines()[0].split(",")[0].replace("Version:", "")
        versions = {"mpi4py": mpi4py.__version__, "MPI": " ".join(library.split()), "NumPy": np.__version__}
        serve(versions, {"mpi4py, all-reduce": {n: lead(n, each, tell) for n, each in WORKLOADS.items()}})
        tell(None)
    else:
        follow(WORKLOADS, listen)
