"""Dask's distributed scheduler on three worker processes: a future for every operation, and actors.

One worker holds the parameters, two compute, as Interlock's workers do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import dask
import distributed
import numpy as np
from parts import Parameters, Part, layers
from problem import CHECKED, way
from serving import Measured, Rows, Trial, issued, serve, timed
from workloads import BATCHES, MIB64, NUMBERS


class Small:
    def __init__(self) -> None:
        self._x = self._y = np.ones(NUMBERS)

    def add(self) -> None:
        """The sum stays here."""
        self._z = self._x + self._y

    def sum(self) -> Any:
        return self._x + self._y


class Large:
    def __init__(self) -> None:
        self._x = np.ones(MIB64 // 8)

    def give(self) -> Any:
        return self._x

    def take_from(self, other: Any) -> float:
        """Asks the other worker itself: nothing goes through the program."""
        return float(other.give().result()[-1])


class Worker:
    """Half of every batch."""

    def __init__(self, batch: int, place: int) -> None:
        self._part = Part(batch, place)

    def gradient(self, number: int, parameters: Any) -> Any:
        self._loss = self._part.work(number, parameters)
        return self._part.gradient


class Home:
    """The parameters; asks the workers for gradients itself, so that nothing goes through the program."""

    def __init__(self) -> None:
        self._parameters = Parameters()

    def parameters(self) -> Any:
        return self._parameters.flat

    def step(self, number: int, workers: Sequence[Any]) -> None:
        asked = [worker.gradient(number, self._parameters.flat) for worker in workers]
        one, *others = (each.result() for each in asked)
        self._parameters.move(sum(others, one))


def add(x: Any, y: Any) -> Any:
    return x + y


def large(_: int) -> Any:
    return np.ones(MIB64 // 8)


def last(x: Any) -> float:
    return float(x[-1])


def gradient(part: Part, number: int, parameters: Any) -> Any:
    part.work(number, parameters)
    return part.gradient


def moved(state: tuple[Any, Parameters], *gradients: Any) -> tuple[Any, Parameters]:
    parameters = state[1]
    parameters.move(sum(gradients[1:], gradients[0]))
    return parameters.flat.copy(), parameters


def flat(state: tuple[Any, Parameters]) -> Any:
    return state[0]


def begin() -> tuple[Any, Parameters]:
    parameters = Parameters()
    return parameters.flat.copy(), parameters


class Futures:
    """Every operation a task, on the worker that it names."""

    def __init__(self, client: Any) -> None:
        self._submit = partial(client.submit, pure=False)
        self._client = client
        self._home, *self._others = client.scheduler_info(n_workers=-1)["workers"]

    @contextmanager
    def small(self, kind: str) -> Iterator[Trial]:
        here = partial(self._submit, workers=[self._home])
        x, y = here(np.ones, NUMBERS), here(np.ones, NUMBERS)

        def sums(n: int) -> Any:
            return [here(add, x, y) for _ in range(n)]

        def reads(n: int) -> None:
            for _ in range(n):
                here(add, x, y).result()

        match kind:
            case "issue":
                yield Trial(issued(sums, distributed.wait))
            case "done":
                yield Trial(timed(sums, distributed.wait))
            case "read":
                yield Trial(timed(reads))

    @contextmanager
    def move(self) -> Iterator[Trial]:
        source, target = self._others

        def run(n: int) -> float:
            taken = 0.0
            for number in range(n):  # a new array each time: what a worker has got, it keeps
                x = self._submit(large, number, workers=[source])
                distributed.wait(x)
                taken += timed(lambda _, x=x: self._submit(last, x, workers=[target]).result())(1)
            return taken / n

        yield Trial(run)

    @contextmanager
    def mlp(self, batch: int) -> Iterator[Trial]:
        parts = [self._submit(Part, batch, place, workers=[other]) for place, other in enumerate(self._others)]
        at_home = partial(self._submit, workers=[self._home])
        state = at_home(begin)

        def steps(n: int) -> Any:
            nonlocal state
            for number in range(n):
                parameters = at_home(flat, state)
                gradients = [
                    self._submit(gradient, part, number, parameters, workers=[other])
                    for part, other in zip(parts, self._others, strict=True)
                ]
                state = at_home(moved, state, *gradients)
            return state

        distributed.wait(steps(CHECKED))
        yield Trial(timed(steps, distributed.wait), way(*layers(at_home(flat, state).result())))


class Actors:
    """Objects that stay on their workers; calls go to these directly."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._home, *self._others = client.scheduler_info(n_workers=-1)["workers"]

    def _actor(self, worker: str, kind: Any, *operands: Any) -> Any:
        return self._client.submit(kind, *operands, actor=True, workers=[worker], pure=False).result()

    @contextmanager
    def small(self, kind: str) -> Iterator[Trial]:
        actor = self._actor(self._home, Small)

        def sums(n: int) -> Any:
            return [actor.add() for _ in range(n)]

        def reads(n: int) -> None:
            for _ in range(n):
                actor.sum().result()

        def wait(asked: Any) -> None:
            for each in asked:
                each.result()

        match kind:
            case "issue":
                yield Trial(issued(sums, wait))
            case "done":
                yield Trial(timed(sums, wait))
            case "read":
                yield Trial(timed(reads))

    @contextmanager
    def move(self) -> Iterator[Trial]:
        source, target = (self._actor(other, Large) for other in self._others)

        def copies(n: int) -> None:
            for _ in range(n):
                target.take_from(source).result()

        yield Trial(timed(copies))

    @contextmanager
    def mlp(self, batch: int) -> Iterator[Trial]:
        home = self._actor(self._home, Home)
        workers = [self._actor(other, Worker, batch, place) for place, other in enumerate(self._others)]

        def steps(n: int) -> None:
            for number in range(n):
                home.step(number, workers).result()

        steps(CHECKED)
        yield Trial(timed(steps), way(*layers(home.parameters().result())))


def workloads(kind: Futures | Actors) -> dict[str, Measured]:
    return {
        "issue": partial(kind.small, "issue"),
        "done": partial(kind.small, "done"),
        "throughput": partial(kind.small, "done"),
        "read": partial(kind.small, "read"),
        "move": kind.move,
        **{f"mlp{batch}": partial(kind.mlp, batch) for batch in BATCHES},
    }


def main() -> None:
    with (
        distributed.LocalCluster(n_workers=3, threads_per_worker=1, dashboard_address=None) as cluster,
        distributed.Client(cluster) as client,
    ):
        rows: Rows = {"Dask, futures": workloads(Futures(client)), "Dask, actors": workloads(Actors(client))}
        serve({"Dask": dask.__version__, "NumPy": np.__version__}, rows)


if __name__ == "__main__":
    main()
