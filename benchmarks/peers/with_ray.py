"""Ray: actors that hold arrays, driven call by call, and as a compiled graph of the same actors.

One actor holds the parameters, two compute, as Interlock's workers do. A compiled graph keeps its processes polling, so
one is made for each round and taken down before the round is over.
"""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

os.environ.update({"RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"})

import numpy as np
import ray
from parts import Parameters, Part, layers
from problem import CHECKED, PARTS, way
from ray.dag import InputNode, MultiOutputNode
from serving import Measured, Trial, issued, serve, timed
from workloads import BATCHES, MIB64, NUMBERS

AHEAD = 8  # runs of a compiled graph that are begun before the first result is read; it refuses more than ten


@ray.remote(num_cpus=0)
class Small:
    def __init__(self) -> None:
        self._x = self._y = np.ones(NUMBERS)

    def add(self, _: object = None) -> None:
        """The sum stays here."""
        self._z = self._x + self._y

    def sum(self, _: object = None) -> Any:
        return self._x + self._y


@ray.remote(num_cpus=0)
class Large:
    def __init__(self) -> None:
        self._x = np.ones(MIB64 // 8)

    def give(self) -> Any:
        return self._x

    def take(self, x: Any) -> float:
        return float(x[-1])


@ray.remote(num_cpus=0)
class Home:
    """The parameters."""

    def __init__(self) -> None:
        self._parameters = Parameters()

    def parameters(self) -> Any:
        return self._parameters.flat

    def move(self, *gradients: Any) -> Any:
        self._parameters.move(sum(gradients[1:], gradients[0]))
        return self._parameters.flat


@ray.remote(num_cpus=0)
class Worker:
    """Half of every batch."""

    def __init__(self, batch: int, place: int) -> None:
        self._part = Part(batch, place)

    def gradient(self, number: int, parameters: Any) -> Any:
        self._loss = self._part.work(number, parameters)
        return self._part.gradient

    def keep(self, parameters: Any) -> None:
        """For a compiled graph, in which what is sent back cannot be an operand of the next run."""
        self._parameters = parameters.copy()

    def gradient_here(self, number: int) -> Any:
        return self.gradient(number, self._parameters)


@contextmanager
def actors(*made: Any) -> Iterator[Sequence[Any]]:
    try:
        yield made
    finally:
        for each in made:
            ray.kill(each)


@contextmanager
def small(kind: str) -> Iterator[Trial]:
    with actors(Small.remote()) as (actor,):
        ray.get(actor.add.remote())

        def sums(n: int) -> Any:
            return [actor.add.remote() for _ in range(n)]

        def reads(n: int) -> None:
            for _ in range(n):
                ray.get(actor.sum.remote())

        match kind:
            case "issue":
                yield Trial(issued(sums, ray.get))
            case "done":
                yield Trial(timed(sums, ray.get))
            case "read":
                yield Trial(timed(reads))


@contextmanager
def move() -> Iterator[Trial]:
    """Through the object store; the other actor has it read-only."""
    with actors(Large.remote(), Large.remote()) as (source, target):

        def copies(n: int) -> None:
            for _ in range(n):
                ray.get(target.take.remote(source.give.remote()))

        copies(3)
        yield Trial(timed(copies))


@contextmanager
def share() -> Iterator[Trial]:
    """It is in the object store already."""
    with actors(Large.remote(), Large.remote()) as (source, target):
        x = source.give.remote()

        def uses(n: int) -> None:
            for _ in range(n):
                ray.get(target.take.remote(x))

        uses(1)
        yield Trial(timed(uses))


@contextmanager
def mlp(batch: int) -> Iterator[Trial]:
    with actors(Home.remote(), *(Worker.remote(batch, place) for place in range(PARTS))) as (home, *workers):
        parameters = home.parameters.remote()

        def steps(n: int) -> Any:
            nonlocal parameters
            for number in range(n):
                gradients = [worker.gradient.remote(number, parameters) for worker in workers]
                parameters = home.move.remote(*gradients)
            return parameters

        ray.wait([steps(CHECKED)])
        yield Trial(timed(steps, lambda last: ray.wait([last])), way(*layers(ray.get(parameters))))


def run_through(graph: Any, n: int) -> None:
    """So many runs of a compiled graph, a few at once."""
    begun = []
    for number in range(n):
        begun.append(graph.execute(number))
        if len(begun) == AHEAD:
            ray.get(begun.pop(0))
    for each in begun:
        ray.get(each)


def run_singly(graph: Any, n: int) -> None:
    for number in range(n):
        ray.get(graph.execute(number))


def once(make: Callable[[], Any], work: Callable[[Any, int], None], warm: int = 2) -> Callable[[int], float]:
    """Makes a graph, warms it, times `work` with it, takes it down."""

    def run(n: int) -> float:
        graph = make().experimental_compile()
        try:
            work(graph, warm)
            return timed(partial(work, graph))(n)
        finally:
            graph.teardown()

    return run


@contextmanager
def compiled_small(read: bool) -> Iterator[Trial]:
    with actors(Small.remote()) as (actor,):

        def graph() -> Any:
            with InputNode() as number:
                return (actor.sum if read else actor.add).bind(number)

        yield Trial(once(graph, run_singly if read else run_through))


@contextmanager
def compiled_mlp(batch: int) -> Iterator[Trial]:
    with actors(Home.remote(), *(Worker.remote(batch, place) for place in range(PARTS))) as (home, *workers):
        ray.get([worker.keep.remote(home.parameters.remote()) for worker in workers])

        def graph() -> Any:
            with InputNode() as number:
                moved = home.move.bind(*(worker.gradient_here.bind(number) for worker in workers))
                return MultiOutputNode([worker.keep.bind(moved) for worker in workers])

        once(graph, run_through, warm=0)(CHECKED)
        yield Trial(once(graph, run_through), way(*layers(ray.get(home.parameters.remote()))))


ACTORS: dict[str, Measured] = {
    "issue": partial(small, "issue"),
    "done": partial(small, "done"),
    "throughput": partial(small, "done"),
    "read": partial(small, "read"),
    "move": move,
    "share": share,
    **{f"mlp{batch}": partial(mlp, batch) for batch in BATCHES},
}
COMPILED: dict[str, Measured] = {
    "done": partial(compiled_small, False),
    "throughput": partial(compiled_small, False),
    "read": partial(compiled_small, True),
    **{f"mlp{batch}": partial(compiled_mlp, batch) for batch in BATCHES},
}

if __name__ == "__main__":
    warnings.simplefilter("ignore")
    quiet = logging.WARNING
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, logging_level=quiet, object_store_memory=2**30)
    serve({"Ray": ray.__version__, "NumPy": np.__version__}, {"Ray, actors": ACTORS, "Ray, compiled graph": COMPILED})
    ray.shutdown()
