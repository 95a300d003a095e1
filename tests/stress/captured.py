"""Plays random programs of which the middle is a captured function, called for several inputs before any is read.

Each call has a program of its own: the same steps on other data. All must come out as NumPy has them. What such a
program leaves out besides: in the middle, what a captured function cannot do (read, upload) or what NumPy refuses.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np

import interlock as il

from .player import Player, Setting, Wrong
from .programs import Expected, Line, Model, Side, Step, Upload, run

RUNS = 3
SHAPES = ((40, 30), (5000,), (3, 700), (7,), ())
_NOT_INSIDE = ("upload", "read", "synchronize")


class Split:
    """The same program on several data: lines before the captured part, in it, and after it; what is left then."""

    def __init__(self, steps: list[Step], cuts: tuple[int, int] | None = None, runs: int = RUNS) -> None:
        """`cuts`: where the captured part begins and ends; None for the middle third."""
        start, stop = cuts or (len(steps) // 3, 2 * len(steps) // 3)
        out: set[int] = set()  # steps that NumPy promises nothing for in some run
        while True:
            models = [Model() for _ in range(runs)]
            self.parts: list[list[list[Line]]] = [[[], [], []] for _ in models]  # by run, then by part
            failed = None
            for at, step in enumerate(steps):
                part = 0 if at < start else 1 if at < stop else 2
                if at in out or (part == 1 and not _fits_inside(step)):
                    continue
                lines = [model.step(_other_data(step, k)) for k, model in enumerate(models)]
                if all(line is None for line in lines):
                    continue
                if not _alike(lines) or (part == 1 and lines[0] is not None and lines[0].refused is not None):
                    failed = at
                    break
                for line, parts in zip(lines, self.parts, strict=True):
                    assert line is not None
                    parts[part].append(line)
            if failed is None:
                break
            out.add(failed)
        if any(model.ever_failed for model in models):  # a synchronize is told of the failures of all runs
            self.parts = [[[replace(line, failed=True) for line in lines] for lines in parts] for parts in self.parts]
        self.left: list[dict[int, Expected]] = [
            {v: model.expected(v) for v, value in model.values.items() if isinstance(value, np.ndarray)}
            for model in models
        ]

    def inside(self) -> tuple[list[Step], list[int], list[int]]:
        """The steps of the captured part, the variables that it is given, and those that it returns."""
        steps = [line.step for line in self.parts[0][1]]
        made = {v for step in steps for v in step.out}
        given = dict.fromkeys(v for step in steps for v in step.args if v not in made)
        freed = {step.args[0] for step in steps if step.kind == "free"}
        return steps, list(given), sorted(made - freed)


def _fits_inside(step: Step) -> bool:
    return step.kind not in _NOT_INSIDE and not any(isinstance(each, Upload) for each in _flat(step.given))


def _flat(given: Any) -> list[Any]:
    if isinstance(given, tuple) and not isinstance(given, Upload):
        return [each for part in given for each in _flat(part)]
    return [given]


def _other_data(step: Step, number: int) -> Step:
    if step.kind != "upload" or not number:
        return step
    device, upload = step.given
    return step._replace(given=(device, upload._replace(seed=upload.seed + 7919 * number)))


def _alike(lines: list[Line | None]) -> bool:
    first = lines[0]
    return all(
        line is not None and first is not None and (line.refused, line.made) == (first.refused, first.made)
        for line in lines
    )


def function_of(steps: list[Step], devices: tuple[Any, ...], returned: list[int]) -> Any:
    """A function that does these steps on variables by number, and returns some by number."""
    side = Side(il, devices)
    dropped = {step.args[0] for step in steps if step.kind == "free"}

    def function(given: dict[int, Any]) -> dict[int, Any]:
        values = dict(given)
        for step in steps:
            if step.kind == "free":
                del values[step.args[0]]
                continue
            results = run(step, side, tuple(values[arg] for arg in step.args))
            made = results if type(results) is tuple else (results,)
            values.update(zip(step.out, made, strict=False))
        return {v: values[v] for v in returned if v not in dropped}

    return function


def chains(seed: int, length: int = 40) -> tuple[list[Step], tuple[int, int]]:
    """A program of elementwise operations, reductions and transfers, with many temporaries; and its cuts."""
    random = np.random.default_rng(seed)
    steps: list[Step] = []
    there: dict[int, int] = {}  # variable -> device
    shape, numbers = SHAPES[random.integers(len(SHAPES))], itertools.count(1)

    def add(kind: str, args: tuple[int, ...], device: int, *given: Any) -> None:
        made = next(numbers)
        steps.append(Step(kind, (made,), args, given))
        there[made] = device

    def one(device: int | None = None) -> int:
        fitting = [v for v, d in there.items() if device is None or d == device]
        return int(fitting[random.integers(len(fitting))])

    for device in (0, 0, 1, 1):
        add("upload", (), device, device, Upload(shape, str(random.choice(["<f8", "<f4"])), "C", seed + len(steps)))
    given = set(there)
    for _ in range(length):
        v = one()
        device = there[v]
        what = random.integers(10)
        if what < 5:
            name = str(random.choice(["add", "subtract", "multiply", "maximum"]))
            add("binary", (v, one(device)), device, name, ("v", 0), ("v", 1))
        elif what == 5:
            add("unary", (v,), device, str(random.choice(["negative", "absolute", "square", "exp"])))
        elif what == 6:
            steps.append(Step("inplace", (), (v, v), ("add", ("v", 1))))
        elif what == 7 and shape:
            add("reduce", (v,), device, "sum", 0, True)
        elif what == 8:
            add("to", (v,), 1 - device, 1 - device)
        made = [each for each in there if each not in given]
        if len(made) > 4:
            gone = int(made[random.integers(len(made))])
            steps.append(Step("free", (), (gone,)))
            del there[gone]
    return steps, (4, len(steps))


def play_captured(session: il.Session, setting: Setting, steps: list[Step], cuts: tuple[int, int] | None = None) -> int:
    """All runs of a program; how many recordings were made.

    Raises:
        Wrong: a run went otherwise than on NumPy, or something is left over.
    """
    split = Split(steps, cuts)
    inside, given, returned = split.inside()
    step = il.capture(function_of(inside, tuple(session.devices), returned))
    players = [Player(session, setting) for _ in split.parts]
    try:
        for player, (before, _, _) in zip(players, split.parts, strict=True):
            player.play(before, {})
        for number, player in enumerate(players):
            try:
                player.values.update(step({v: player.values[v] for v in given}))
            except Exception as error:
                raise Wrong(f"the captured part, run {number}: {type(error).__name__}: {error}") from error
            for freed in (each.args[0] for each in inside if each.kind == "free" and each.args[0] in player.values):
                del player.values[freed]
        for number, (player, parts, left) in enumerate(zip(players, split.parts, split.left, strict=True)):
            try:
                player.play(parts[2], left)
            except Wrong as wrong:
                raise Wrong(f"after the captured part of run {number}: {wrong}") from None
        recordings = len(step._order)
        del step
        for player in players:
            player.values.clear()
        players[0].finish()
    finally:
        for player in players:
            player.values.clear()
    return recordings
