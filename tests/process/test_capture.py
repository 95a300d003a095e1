"""A captured function gives what it gives without capture, and what NumPy gives, bit for bit, at every call.

Real workers, under both gates, on inline devices and on simulated ones with queues. `agree` plays a function three
ways on the same arguments and compares what is returned and what has become of the arguments.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
import json
import math
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest

import interlock as il

pytestmark = [pytest.mark.timeout(60), pytest.mark.filterwarnings("ignore::RuntimeWarning")]

HOST, SIMS = "cpu:0,cpu:1,cpu:2", "cpu:0,sim:0,sim:1"
SETTINGS = [(HOST, "worker"), (HOST, "coordinator"), (SIMS, "worker"), (SIMS, "coordinator")]
PATIENCE_S = 20.0
BIG = 5000  # float64s that fill more than what travels inside a message
Up = Callable[..., Any]


@pytest.fixture(scope="module", params=SETTINGS, ids=[f"{devices[-5:-2]}-{gate}" for devices, gate in SETTINGS])
def shared(request: pytest.FixtureRequest) -> Iterator[il.Session]:
    devices, gate = request.param
    with il.connect(devices, gate=gate, options={"seed": 1} if devices == SIMS else None) as session:
        yield session


@pytest.fixture
def session(shared: il.Session, request: pytest.FixtureRequest) -> Iterator[il.Session]:
    """A session in which every test leaves nothing behind."""
    yield shared
    if request.session.testsfailed:
        return  # the traceback of a test that failed holds what it had
    gc.collect()
    with contextlib.suppress(Exception):  # failures are some tests' business
        shared.synchronize()
    emptied(shared)


def emptied(session: il.Session) -> None:
    """Wait until the workers hold nothing: what they no longer read they tell one another at their leisure."""
    deadline = time.monotonic() + PATIENCE_S
    while left := {
        name: {k: v for k, v in each.items() if v} for name, each in session.inspect().items() if any(each.values())
    }:
        assert time.monotonic() < deadline, left
        session.synchronize()


# -- three ways ---------------------------------------------------------------------------------------------------


def numpy_of(value: Any) -> Any:
    """The value with NumPy's arrays in the place of arrays on devices."""
    if isinstance(value, il.Array):
        return value.numpy()
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, tuple):
        return tuple.__new__(type(value), [numpy_of(each) for each in value])
    if isinstance(value, list):
        return [numpy_of(each) for each in value]
    if isinstance(value, dict):
        return {name: numpy_of(each) for name, each in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {name: numpy_of(getattr(value, name)) for name in vars(value)}
    return value


def same(one: Any, other: Any) -> bool:
    """Alike to the last bit, dtypes and types included."""
    if isinstance(one, (np.ndarray, np.generic)) and isinstance(other, (np.ndarray, np.generic)):
        # A reduction of NumPy's is a scalar, ours an array without axes.
        return bool((one.dtype, one.shape) == (other.dtype, other.shape) and one.tobytes() == other.tobytes())
    if type(one) is not type(other):
        return False
    if isinstance(one, (tuple, list)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return list(one) == list(other) and all(map(same, one.values(), other.values()))
    return bool(one == other)


def on(session: il.Session, place: int) -> Up:
    """What makes an array on a device of this session, the first time it meets an array of NumPy's."""
    return lambda data, at=place: il.asarray(data, device=session.devices[at])


def in_numpy(data: Any, at: int = 0) -> Any:
    return np.array(data, order="K")


def agree(session: il.Session, function: Any, *calls: Callable[[Up], tuple[Any, ...]], rounds: int = 2) -> Any:
    """Play all calls eagerly, captured and in NumPy, `rounds` times; the captured function.

    A call makes its arguments by what it is given: that makes an array of NumPy's data.
    """
    step = il.capture(function)
    for turn in range(rounds):
        for number, call in enumerate(calls):
            found = []
            for play, up in ((function, in_numpy), (function, on(session, 1)), (step, on(session, 1))):
                arguments = call(up)
                results = play(*arguments)
                found.append((numpy_of(results), numpy_of(arguments)))
            assert same(found[0], found[1]), f"eager, call {number}: {found[1]} is not {found[0]}"
            assert same(found[0], found[2]), f"captured, call {number} of round {turn}: {found[2]} is not {found[0]}"
    return step


def recordings(step: Any) -> int:
    return int(step.report().split(": ")[1].split(" ")[0])


def to(x: Any, device: Any) -> Any:
    return x.to(device) if isinstance(x, il.Array) else np.array(x, order="K")


def floats(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape)


# -- operations ---------------------------------------------------------------------------------------------------


def test_arithmetic(session: il.Session) -> None:
    def step(x: Any, y: Any) -> Any:
        z = x * y + 2
        return z - x / (1 + y * y), (z @ y.T).sum(axis=0), -(abs(z) ** 2)

    calls = [lambda up, seed=seed: (up(floats(7, 5, seed=seed)), up(floats(7, 5, seed=seed + 9))) for seed in range(3)]
    assert recordings(agree(session, step, *calls)) == 1


def test_large_arrays(session: il.Session) -> None:
    def step(x: Any, y: Any) -> Any:
        z = (x + y) * (x - y)
        z += x
        w = z / (1 + z * z)
        w[1:] += z[:-1]
        return w, z.sum(), (w * z)[::2]

    agree(session, step, *[lambda up, s=s: (up(floats(BIG, seed=s)), up(floats(BIG, seed=s + 5))) for s in range(3)])


def test_operations_in_place_on_arguments_temporaries_and_results(session: il.Session) -> None:
    def step(x: Any, y: Any) -> Any:
        x += y  # an argument
        t = x * 2
        t -= 1  # a temporary
        t[1] = 7
        u = t + x
        u *= 3  # a result
        u[2:4] -= t[:2]
        x[...] = x[::-1]
        return u

    agree(session, step, *[lambda up, s=s: (up(floats(6, seed=s)), up(floats(6, seed=s + 5))) for s in range(3)])


def test_only_effects_and_no_results(session: il.Session) -> None:
    def step(x: Any, y: Any) -> None:
        x -= 0.5 * y
        y[...] = 0

    agree(session, step, *[lambda up, s=s: (up(floats(BIG, seed=s)), up(floats(BIG, seed=s + 5))) for s in range(3)])


def test_indexing_of_all_kinds(session: il.Session) -> None:
    def step(x: Any, places: Any) -> Any:
        a = x[places]
        b = x[[2, 0, 1]] * 2
        x[places] = 5
        x[1, ..., None] += 1
        b[1:3] = a[0]
        b[0] = b[1]
        return a, b[::-1, 1], x.T[2], x[..., ::2]

    calls = [lambda up, s=s: (up(floats(4, 3, seed=s)), up(np.array([[s, 3], [1, -1]]))) for s in range(3)]
    agree(session, step, *[lambda up, c=c: (c(up)[0][:, :], c(up)[1]) for c in calls])


def test_functions_with_numpys_names(session: il.Session) -> None:
    def step(x: Any, y: Any) -> Any:
        chosen = np.where(x > y, x, 0)
        joined = np.concatenate([x, y, chosen], axis=1)
        return (
            np.clip(x, -0.5, 0.5), joined, np.stack([x, y]).mean(axis=0), x.var(axis=1), x.argmax(axis=0), np.sort(y),
            np.cumsum(x, axis=1), x.astype("f4") * 2, (x > 0).any(), np.maximum(x, y).max(), np.round(x, 2), x.std(),
        )  # fmt: skip

    agree(session, step, *[lambda up, s=s: (up(floats(4, 6, seed=s)), up(floats(4, 6, seed=s + 5))) for s in range(3)])


def test_results_of_which_an_operation_makes_two(session: il.Session) -> None:
    def step(x: Any, y: Any) -> Any:
        whole, rest = divmod(x, y)
        only, _ = divmod(x + 1, y)
        _, other = divmod(x + 2, y)
        return whole, rest * 2, only, other + whole

    agree(session, step, *[lambda up, s=s: (up(floats(9, seed=s)), up(floats(9, seed=s + 5))) for s in range(3)])


def test_empty_arrays_and_arrays_without_axes(session: il.Session) -> None:
    def step(x: Any, s: Any) -> Any:
        e = x[:0] * 2
        return e, e.sum(), s + 1, s * x, np.concatenate([e, x]), s[...], (s + 2)[None]

    agree(session, step, *[lambda up, s=s: (up(floats(3, seed=s)), up(np.float64(s))) for s in range(3)])
    agree(session, lambda x: (x + 1, x.T), lambda up: (up(np.empty((0, 3))),))


def test_layouts_of_arguments_and_of_what_is_made(session: il.Session) -> None:
    def step(x: Any, y: Any) -> Any:
        z = x * y
        t = z.T + x.T
        return z, t, np.exp(t).reshape(-1), t.ravel(), z.copy()

    plain = [lambda up, s=s: (up(floats(4, 6, seed=s)), up(floats(4, 6, seed=s + 5))) for s in range(2)]
    columns = [lambda up, s=s: (up(np.asfortranarray(floats(4, 6, seed=s))), up(floats(4, 6))) for s in range(2)]
    turned = [lambda up, s=s: (up(floats(6, 4, seed=s)).T, up(floats(4, 6))) for s in range(2)]
    gaps = [lambda up, s=s: (up(floats(8, 12, seed=s))[::2, ::2], up(floats(4, 6))) for s in range(2)]
    back = [lambda up, s=s: (up(floats(4, 6, seed=s))[::-1], up(floats(4, 6))[:, ::-1]) for s in range(2)]
    wide = [lambda up, s=s: (np.broadcast_to(up(floats(6, seed=s)), (4, 6)), up(floats(4, 6))) for s in range(2)]
    step = agree(session, step, *plain, *columns, *turned, *gaps, *back, *wide)
    assert recordings(step) == 6


def test_another_offset_of_a_slice_needs_no_new_recording(session: il.Session) -> None:
    def step(part: Any, x: Any) -> Any:
        part += x
        return part[1:] * 2, part

    calls = [lambda up, s=s: (up(np.arange(40.0))[s : s + 5], up(floats(5, seed=s))) for s in range(0, 30, 7)]
    assert recordings(agree(session, step, *calls)) == 1
    rows = [lambda up, s=s: (up(floats(8, BIG))[s], up(floats(BIG, seed=s))) for s in (3, 0, 5)]
    assert recordings(agree(session, step, *rows)) == 1


def test_changed_shapes_and_dtypes_make_new_recordings_and_the_old_ones_stay(session: il.Session) -> None:
    def step(x: Any) -> Any:
        return x * 2 + x.sum(), x.shape[0]

    shapes = [lambda up, n=n: (up(np.arange(float(n))),) for n in (3, 4, 3, 1, 4)]
    dtypes = [lambda up, d=d: (up(np.arange(3, dtype=d)),) for d in "fdiqB"]
    assert recordings(agree(session, step, *shapes, *dtypes)) == 3 + 4


def test_other_devices_make_new_recordings(session: il.Session) -> None:
    @il.capture
    def step(x: il.Array) -> Any:
        return x * 2, x.device

    for turn in range(2):
        for device in session.devices:
            doubled, where = step(il.full(3, turn, device=device))
            assert doubled.device == where == device
            assert doubled.tolist() == [2 * turn] * 3
    assert recordings(step) == 3


# -- aliasing -----------------------------------------------------------------------------------------------------


def test_arguments_that_share_memory(session: il.Session) -> None:
    def step(x: Any, y: Any) -> Any:
        before = y * 1
        x += 1
        return before, x * y, x

    def twice(up: Up, size: int) -> tuple[Any, Any]:
        x = up(floats(size))
        return x, x

    def overlapping(up: Up, size: int, a: int, b: int) -> tuple[Any, Any]:
        x = up(floats(size + 5))
        return x[a : a + size], x[b : b + size]

    def whole_and_part(up: Up, size: int, swap: bool) -> tuple[Any, Any]:
        x = up(floats(size))
        return (x[:1], x) if swap else (x, x[-1:])

    for size in (6, BIG):
        step = agree(
            session,
            step if not hasattr(step, "__wrapped__") else step.__wrapped__,
            lambda up, n=size: (up(floats(n)), up(floats(n, seed=1))),
            functools.partial(twice, size=size),
            functools.partial(overlapping, size=size, a=0, b=1),
            functools.partial(overlapping, size=size, a=2, b=0),
            functools.partial(overlapping, size=size, a=1, b=2),
            functools.partial(whole_and_part, size=size, swap=False),
            functools.partial(whole_and_part, size=size, swap=True),
        )
        # Two that overlap alike, at whatever offset, are one key.
        assert recordings(step) == 6


def test_an_argument_is_written_whose_memory_is_lent(session: il.Session) -> None:
    def step(x: Any, y: Any) -> Any:
        x *= 2
        x[1:3] = y[1:3]
        return x + y

    captured = il.capture(step)
    for turn in range(4):
        x, y = floats(BIG, seed=turn), floats(BIG, seed=turn + 9)
        wanted = x.copy()
        a, b = (il.asarray(each, device=session.devices[0]) for each in (x, y))  # borrowed from the frontend
        lent = a.to(session.devices[2])  # and lent on
        result = captured(a, b)
        assert same(result.numpy(), step(wanted, y))
        assert same(lent.numpy(), x)
        assert same(a.numpy(), wanted)
        assert same(b.numpy(), y)


def test_what_is_sent_in_a_run_is_as_it_was_when_it_was_sent(session: il.Session) -> None:
    def step(x: Any, here: Any, there: Any) -> Any:
        t = x + 1
        first = to(t, there)
        t *= 2
        second = to(t, there)
        t[...] = 0
        x[...] = 5
        back = to(first * second, here)
        return back + x, t, second

    here, there = session.devices[1], session.devices[2]
    for size in (5, BIG):
        agree(session, step, *[lambda up, s=s, n=size: (up(floats(n, seed=s)), here, there) for s in range(4)])


# -- devices ------------------------------------------------------------------------------------------------------


def test_chains_through_three_devices(session: il.Session) -> None:
    def step(x: Any, devices: Any) -> Any:
        found = []
        for turn in range(6):
            x = to(x * 2 - turn, devices[turn % 3])
            x[turn] += 1
            found.append(to(x.sum(), devices[0]))
        return x, sum(found[1:], found[0])

    for size in (8, BIG):
        calls = [lambda up, s=s, n=size: (up(floats(n, seed=s)), tuple(session.devices)) for s in range(4)]
        assert recordings(agree(session, step, *calls, rounds=3)) == 1


def test_data_parallel_steps_fed_back(session: il.Session) -> None:
    """Results become the next arguments, on several devices, for many steps with nothing read between."""
    cpu, *rest = session.devices

    def step(weights: Any, parts: Any, lr: float) -> Any:
        gradients = [to(part.T @ (part @ to(weights, device)), cpu) for part, device in zip(parts, rest, strict=True)]
        return weights - lr * (gradients[0] + gradients[1])

    captured = il.capture(step)
    data = [np.round(floats(30, 6, seed=s), 2) for s in range(2)]
    wanted = eager = weights = np.ones((6, 2))
    eager = weights = il.asarray(wanted, device=cpu)
    parts = [il.asarray(each, device=device) for each, device in zip(data, rest, strict=True)]
    for turn in range(30):
        lr = 0.01 / (1 + turn)
        wanted = step(wanted, data, lr)
        eager = step(eager, parts, lr)
        weights = captured(weights, parts, lr)
    assert same(weights.numpy(), eager.numpy())
    assert np.allclose(weights.numpy(), wanted)
    assert recordings(captured) == 1


def test_the_current_gradient_is_read_at_each_of_many_steps(session: il.Session) -> None:
    """One buffer, filled with the number of the step behind a slow kernel, shared, and read by a consumer."""
    _, owner, consumer = session.devices
    gradient = il.zeros(BIG, device=owner)
    slow = il.ones((60, 60), dtype="i8", device=owner)

    @il.capture
    def share(gradient: il.Array, slow: il.Array, number: float) -> il.Array:
        product = slow @ slow @ slow
        gradient[...] = product[0, 0] * 0 + number
        return gradient.to(consumer)[::1000] * 1

    seen = [share(gradient, slow, float(number)) for number in range(320)]
    assert [set(each.tolist()) for each in seen] == [{float(number)} for number in range(320)]
    assert recordings(share) == 1


# -- results ------------------------------------------------------------------------------------------------------


def test_results_of_many_runs_are_held_at_once_and_read_late(session: il.Session) -> None:
    step = il.capture(lambda x: x * 10)
    for size in (1, BIG):
        held = [step(il.full(size, float(number), device=session.devices[1])) for number in range(60)]
        for number in reversed(range(60)):
            assert held[number][-1:].tolist() == [10.0 * number]
        assert [float(each[0]) for each in held] == [10.0 * number for number in range(60)]
        parts = [each[size // 2 :] for each in held]
        del held
        assert [float(each.sum()) for each in parts] == [10.0 * n * (size - size // 2) for n in range(60)]


def test_results_are_fed_back_and_written_in_place(session: il.Session) -> None:
    def step(x: Any, y: Any) -> Any:
        return y + x, x * 0.5

    captured = il.capture(step)
    for size in (4, BIG):
        a, b = floats(size), floats(size, seed=1)
        x, y = (il.asarray(each, device=session.devices[1]) for each in (a, b))
        kept = []
        for turn in range(12):
            (a, b), (x, y) = step(a, b), captured(x, y)
            if turn % 3 == 1:
                a[1:] += 1
                x[1:] += 1
            kept.append((x, a.copy()))
            if turn % 4 == 2:
                x, a = x * 1, a * 1
        assert all(same(found.numpy(), wanted) for found, wanted in kept[::4])
        assert same((x.numpy(), y.numpy()), (a, b))


def test_views_of_results_and_of_arguments_are_returned(session: il.Session) -> None:
    def step(x: Any) -> Any:
        t = x * 2
        return t[1:], t.T, t, x[::2], x.T, np.broadcast_to(t[0], (3, 4))

    calls = [lambda up, s=s: (up(floats(5, 4, seed=s)),) for s in range(3)]
    slices = [lambda up, s=s: (up(floats(9, 4))[s : s + 5],) for s in range(3)]
    agree(session, step, *calls, *slices)
    x = il.ones((5, 4), device=session.devices[1])
    captured = il.capture(step)
    for _ in range(3):
        part, _, whole, mine, _, wide = captured(x)
        whole[...] = 7
        x += 1
        assert float(part.sum()) == 7 * 16
        assert same(mine.numpy(), x.numpy()[::2])
        assert float(wide.sum()) == 7 * 12
        with pytest.raises(ValueError, match="read-only"):
            wide += 1
        mine[...] = 0
        assert float(x.sum()) == float(x[1::2].sum())


def test_an_argument_returned_is_the_same_object(session: il.Session) -> None:
    @il.capture
    def step(x: il.Array, more: Any) -> Any:
        x += 1
        return x, more[0], more

    for _ in range(3):
        x, y = il.ones(3, device=session.devices[1]), il.ones(3, device=session.devices[2])
        found = step(x, [y])
        assert found[0] is x
        assert found[1] is y
        assert found[2][0] is y
        assert x.tolist() == [2, 2, 2]


def test_a_function_that_makes_everything_inside(session: il.Session) -> None:
    device = str(session.devices[2])

    def step(size: int, fill: float) -> Any:
        x = il.arange(size, device=device) * fill
        y = il.full((2, size), fill, device=device)
        return x, y + x, il.zeros(size, device=device), il.eye(2, device=device)

    captured = il.capture(step)
    for size, fill in ((3, 0.5), (3, 0.25), (4, 2.0), (3, 3.0)):
        assert same(numpy_of(captured(size, fill)), numpy_of(step(size, fill)))
    assert recordings(captured) == 2


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclasses.dataclass
class Layer:
    weights: Any
    bias: Any = None
    rate: float = 0.5
    name: str = "layer"


@dataclasses.dataclass(frozen=True)
class Fixed:
    values: Any
    rate: float


def test_arrays_in_any_nesting(session: il.Session) -> None:
    step = il.capture(lambda xs, named: xs[0] + named["b"])
    y = il.full(1, 10, device=session.devices[1])
    found = [step([il.full(1, x, device=session.devices[1])], {"b": y}) for x in range(5)]
    assert [int(each[0]) for each in found] == [10, 11, 12, 13, 14]
    assert recordings(step) == 1

    def nested(first: Any, second: Any, third: Any, fourth: Any) -> Any:
        total = first[0][1]["x"] + first[1].left * second.rate
        return {
            "pair": Pair(total, [first[1].right]),
            "layer": Layer(second.weights - total, third.values[0] * third.rate, second.rate * 2),
            "fixed": Fixed((total * 2, ()), third.rate),
            "others": [fourth["n"] + total, {"deep": [((total,),)]}],
        }

    def call(up: Up, seed: int) -> tuple[Any, ...]:
        a, b, c, d, e = (floats(3, seed=seed + n) for n in range(5))
        first = [("q", {"x": up(a)}), Pair(up(b), up(c))]
        return first, Layer(up(d), rate=seed / 3), Fixed([up(e)], seed / 7), {"n": 4, "m": None}

    assert recordings(agree(session, nested, *[functools.partial(call, seed=s) for s in range(4)])) == 1


# -- arrays and numbers that are not arguments ------------------------------------------------------------------


def test_a_closed_over_array_that_is_rebound(session: il.Session) -> None:
    device = session.devices[1]
    weights = il.ones(3, device=device)

    @il.capture
    def step(x: il.Array) -> il.Array:
        return x * weights

    x = il.full(3, 2.0, device=device)
    found = []
    for turn in range(5):
        found.append(step(x))
        weights = il.full(3, float(turn), device=device)
    weights += 1
    found.append(step(x))
    assert [float(each[0]) for each in found] == [2, 0, 2, 4, 6, 10]
    assert recordings(step) == 1


GLOBAL: Any = None
SCALE: Any = 1.0
LISTED: Any = []


def uses_globals(x: Any) -> Any:
    return deeper(x) + GLOBAL


def deeper(x: Any) -> Any:
    return x * SCALE


def test_global_arrays_and_numbers_of_callees(session: il.Session, monkeypatch: pytest.MonkeyPatch) -> None:
    here = globals()
    x = il.ones(2, device=session.devices[1])
    monkeypatch.setitem(here, "GLOBAL", x * 0)
    step = il.capture(uses_globals)
    for scale, add in ((1.0, 0), (2.0, 0), (2.0, 5), (1.0, 7), (np.float32(3), 1), (2, 1)):
        monkeypatch.setitem(here, "SCALE", scale)
        monkeypatch.setitem(here, "GLOBAL", x * add)
        assert step(x).tolist() == [scale + add] * 2
    monkeypatch.setitem(here, "deeper", lambda x: x * 100)
    assert step(x).tolist() == [101, 101]
    monkeypatch.setitem(here, "deeper", np.negative)
    assert step(x).tolist() == [0, 0]


def test_arrays_in_closed_over_containers(session: il.Session) -> None:
    device = session.devices[1]
    state = {"w": [il.ones(2, device=device)], "rate": 1.0, "inner": SimpleNamespace(b=il.zeros(2, device=device))}
    step = il.capture(lambda x: x * state["w"][0] * state["rate"] + state["inner"].b)
    x = il.ones(2, device=device)
    assert step(x).tolist() == [1, 1]
    state["w"][0] = x * 3
    assert step(x).tolist() == [3, 3]
    state["rate"] = 2.0
    assert step(x).tolist() == [6, 6]
    state["inner"].b = x * 10
    assert step(x).tolist() == [16, 16]
    state["w"].append(x)
    assert step(x).tolist() == [16, 16]


def test_numbers_that_change_are_not_baked_in(session: il.Session) -> None:
    def step(w: Any, g: Any, lr: float) -> Any:
        w -= lr * g

    captured = il.capture(step)
    w, g = il.ones(1, device=session.devices[1]), il.ones(1, device=session.devices[1])
    captured(w, g, 0.1)
    captured(w, g, 0.01)
    assert w.tolist() == [1 - 0.1 - 0.01]
    assert recordings(captured) == 1
    rates = (0.1, 0.01, -0.0, math.inf, 1e-300)
    for kind, dtype in ((float, "d"), (np.float32, "d"), (np.float64, "f"), (np.float32, "f"), (np.float16, "i")):
        calls = [lambda up, r=r, k=kind, d=dtype: (up(np.ones(3, "d")), up(np.ones(3, d)), k(r)) for r in rates]
        assert recordings(agree(session, step, *calls)) == 1
    calls = [lambda up, n=n: (up(np.ones(3)), up(np.ones(3, "i")), np.int64(n)) for n in (1, -3, 1 << 40)]
    assert recordings(agree(session, step, *calls)) == 1


def test_arithmetic_on_numbers_before_use(session: il.Session) -> None:
    def step(x: Any, lr: Any, other: Any) -> Any:
        decayed = (1 - lr) ** 3 / (1 + other) + lr // 2 - -lr % 3 + abs(other) + 2**lr
        return x * decayed, x + np.sqrt(abs(lr)) * np.exp(other), x - (lr + other), decayed * x, decayed

    for kind in (float, np.float32, np.float64):
        calls = [lambda up, a=a, b=b, k=kind: (up(floats(3)), k(a), k(b)) for a, b in ((0.1, 2), (0.5, -3), (2, 0.3))]
        assert recordings(agree(session, step, *calls)) == 1
    mixed = [lambda up, a=a, b=b: (up(floats(3)), a, np.float32(b)) for a, b in ((0.1, 2), (0.5, -3), (2.0, 0.3))]
    assert recordings(agree(session, step, *mixed)) == 1


def test_numbers_of_which_the_value_is_asked_for(session: il.Session) -> None:
    def compared(x: Any, lr: float) -> Any:
        return x * lr if lr > 0.1 else x - lr

    def cast(x: Any, lr: float) -> Any:
        return x * float(lr), x + int(lr * 10), x - math.sqrt(lr), math.floor(lr), round(lr, 1)

    def printed(x: Any, lr: float) -> Any:
        return x * lr, f"{lr:.3f} {lr}"

    def shaped(x: Any, n: Any) -> Any:
        return x[: int(n)] * 2, np.broadcast_to(x[0], (int(n), 2)), max(n, 2), divmod(7, n)

    rates = (0.5, 0.25, 0.05, 0.5)
    for function in (compared, cast, printed):
        for kind in (float, np.float64, np.float32):
            step = agree(session, function, *[lambda up, r=r, k=kind: (up(np.ones(2)), k(r)) for r in rates])
            assert recordings(step) == 3
            assert "its value is asked for" in step.report()
    agree(session, shaped, *[lambda up, n=n: (up(floats(5)), np.int64(n)) for n in (3, 1, 4, 3)])

    def unused_then(x: Any, lr: float, flag: bool) -> Any:
        return x * (lr if flag else 1)

    step = agree(
        session, unused_then, *[lambda up, f=f, r=r: (up(np.ones(2)), r, f) for f in (True, False) for r in rates]
    )
    assert recordings(step) == 2


def test_operators_of_integers_and_of_truth_values(session: il.Session) -> None:
    def step(x: Any, n: Any, flag: Any) -> Any:
        return x & n, x | (n ^ 3), x << (n & 1), ~n * x, x * flag, np.where(flag, x, n), (n >> 1) + x, flag | False

    calls = [
        lambda up, n=n, f=f: (up(np.arange(4)), np.int64(n), np.bool_(f)) for n, f in ((5, True), (2, False), (7, True))
    ]
    agree(session, step, *calls)


def test_a_number_is_what_it_was(session: il.Session) -> None:
    def step(x: Any, lr: Any) -> Any:
        kind = "float" if isinstance(lr, float) else "number" if isinstance(lr, np.floating) else "other"
        return x * lr, kind, lr, [lr * 2]

    for kind in (float, np.float32):
        agree(session, step, *[lambda up, r=r, k=kind: (up(np.ones(2)), k(r)) for r in (0.5, 0.25, 0.5)])


def test_numbers_in_every_place_that_takes_one(session: il.Session) -> None:
    def step(x: Any, v: Any) -> Any:
        x[1] = v
        x[2:] += v
        y = np.where(x > v, v, x)
        return y, np.clip(x, v, 3), np.maximum(v, x), x**v, v / x, x // v, np.full_like(x, v), x > v

    agree(session, step, *[lambda up, v=v: (up(floats(5)), v) for v in (0.5, 2.0, 0.25, -1.5)])
    agree(session, step, *[lambda up, v=v: (up(floats(5)), np.float32(v)) for v in (0.5, 2.0, 0.25)])
    device = session.devices[1]

    def makes(v: float) -> Any:
        rng = il.random.default_rng(3, device=device)
        spread = il.linspace(0, v, 5, device=device)
        return (
            spread,
            rng.normal(v, 2 * v, 3),
            rng.uniform(-v, v, 3),
            il.full(3, v, device=device),
            il.arange(v, device=device),
        )

    captured = il.capture(makes)
    for v in (3.0, 2.0, 5.0, 3.0):
        assert same(numpy_of(captured(v)), numpy_of(makes(v)))


def test_a_root_of_a_number_that_becomes_negative(session: il.Session) -> None:
    def step(x: Any, lr: float) -> Any:
        return x * lr**0.5

    step = agree(session, step, *[lambda up, r=r: (up(np.ones(2)), r) for r in (4.0, 9.0, -4.0, 4.0, -9.0)])
    assert recordings(step) == 3


def test_what_python_refuses_of_a_number_is_refused_where_it_is_written(session: il.Session) -> None:
    step = il.capture(lambda x, lr: x * (1 / lr))
    x = il.ones(2, device=session.devices[1])
    assert step(x, 4.0).tolist() == [0.25, 0.25]
    with pytest.raises(ZeroDivisionError) as raised:
        step(x, 0.0)
    assert any(entry.name == "<lambda>" for entry in raised.traceback)
    assert step(x, 2.0).tolist() == [0.5, 0.5]
    assert recordings(step) == 1


def test_numbers_that_are_closed_over_global_or_attributes(
    session: il.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    rate: Any = 0.5
    holder = SimpleNamespace(rate=0.5, inner=Layer(None, rate=0.25))
    monkeypatch.setitem(globals(), "SCALE", 2.0)

    @il.capture
    def step(x: il.Array, layer: Layer, thing: Any) -> il.Array:
        return x * rate * holder.rate * holder.inner.rate * SCALE * layer.rate * thing.rate

    x = il.ones(1, device=session.devices[1])
    layer, thing = Layer(None, rate=1.0), SimpleNamespace(rate=1.0)
    values = []
    for turn in range(8):
        wanted = rate * holder.rate * holder.inner.rate * SCALE * layer.rate * thing.rate
        values.append((step(x, layer, thing), wanted))
        if turn == 1:
            rate = 0.125
        if turn == 2:
            holder.rate = 3.0
        if turn == 3:
            holder.inner.rate = np.float32(7)
        if turn == 4:
            monkeypatch.setitem(globals(), "SCALE", -1.5)
        if turn == 5:
            layer.rate = 5.0
        if turn == 6:
            thing.rate = 11
    assert [float(found[0]) for found, _ in values] == [float(wanted) for _, wanted in values]


class Model:
    """What a user's class may hold: attributes, class attributes, methods that read globals."""

    factor = 2.0
    biases: Any = []

    def __init__(self, weights: Any) -> None:
        self.weights = weights
        self.rate = 1.0

    def forward(self, x: Any) -> Any:
        return x * self.weights * self.factor * self.rate * SCALE

    @property
    def twice(self) -> float:
        return self.rate * SCALE * 2

    def __call__(self, x: Any) -> Any:
        return self.forward(x)


class Config:
    rate: Any = 1.0
    shape = [1, 2]


def test_methods_attributes_of_classes_and_their_globals(session: il.Session, monkeypatch: pytest.MonkeyPatch) -> None:
    device = session.devices[1]
    x = il.ones(1, device=device)
    model = Model(il.ones(1, device=device))
    given = il.capture(lambda model, x: model.forward(x) * model.twice * Config.rate)
    closed = il.capture(lambda x: model(x) * Config.shape[0])
    bound = il.capture(model.forward)
    itself = il.capture(model)

    def check() -> None:
        value = model.factor * model.rate * SCALE
        assert float(bound(x)[0]) == value
        assert float(itself(x)[0]) == value
        assert float(closed(x)[0]) == value * Config.shape[0]
        assert float(given(model, x)[0]) == value * model.twice * Config.rate

    check()
    check()
    monkeypatch.setitem(globals(), "SCALE", 3.0)
    check()
    model.rate = 0.5
    check()
    monkeypatch.setattr(Model, "factor", 5.0)
    check()
    monkeypatch.setattr(Config, "rate", 7.0)
    check()
    Config.shape[0] = 11
    check()
    monkeypatch.setattr(Model, "forward", lambda self, x: x * 4 * self.factor * self.rate * SCALE / 4)
    check()
    Config.shape[0] = 1


def test_captured_methods_keywords_and_defaults(session: il.Session) -> None:
    device = session.devices[1]
    x = il.ones(2, device=device)

    class Stepping(Model):
        @il.capture
        def step(self, x: Any, *, times: int = 1) -> Any:
            self.weights -= 0.5
            return self.forward(x) * times

    one, two = Stepping(x * 4), Stepping(x * 8)
    assert one.step(x).tolist() == [7, 7]
    assert two.step(x).tolist() == [15, 15]
    assert one.step(x, times=2).tolist() == [12, 12]
    assert one.step(x=x, times=1).tolist() == [5, 5]
    assert Stepping.step(two, x).tolist() == [14, 14]
    assert one.step.report() == Stepping.step.report()
    given = il.full(2, 3.0, device=device)

    def step(x: Any, y: Any = given, *more: Any, scale: float = 2.0, **named: Any) -> Any:
        for each in more:
            x = x + each
        for name in sorted(named):
            x = x * named[name]
        return (x + y) * scale

    captured = il.capture(step)
    for _ in range(2):
        for args, kwargs in (
            ((x,), {}), ((x, x), {}), ((x, x, x, 2), {}), ((x,), {"scale": 3.0}), ((x,), {"y": x, "a": x, "b": 4}),
            ((x,), {"b": x, "a": 3}), ((), {"x": x}),
        ):  # fmt: skip
            assert same(captured(*args, **kwargs).numpy(), step(*args, **kwargs).numpy())


def test_what_is_defined_after_a_function_was_captured(session: il.Session) -> None:
    source = """
import interlock as il

@il.capture
def step(x):
    return later(x) * RATE

RATE = 2.0

def later(x):
    return x * INNER

INNER = 3.0
"""
    module: dict[str, Any] = {"__name__": "later_module"}
    exec(compile(source, __file__, "exec"), module)
    x = il.ones(1, device=session.devices[1])
    assert float(module["step"](x)[0]) == 6
    module["RATE"] = 5.0
    assert float(module["step"](x)[0]) == 15
    module["INNER"] = 1.0
    assert float(module["step"](x)[0]) == 5
    module["later"] = lambda x: x * module["INNER"] * 10
    assert float(module["step"](x)[0]) == 50
    module["INNER"] = 2.0
    assert float(module["step"](x)[0]) == 100


def test_containers_of_a_librarys_classes(session: il.Session) -> None:
    from collections import OrderedDict, defaultdict, deque

    device = session.devices[1]
    x = il.ones(1, device=device)
    step = il.capture(lambda settings, x: x * settings["n"] * settings.get("rate", 1.0) + settings["b"])
    for make in (dict, OrderedDict, lambda given: defaultdict(int, given)):
        settings = make({"n": 2, "rate": 0.5, "b": x})
        assert float(step(settings, x)[0]) == 2
        settings["n"] = 4
        assert float(step(settings, x)[0]) == 3
        settings["rate"] = 2.0
        assert float(step(settings, x)[0]) == 9
        settings["b"] = x * 10
        assert float(step(settings, x)[0]) == 18
    summed = il.capture(lambda things, x: sum((each * x for each in things), x * 0))

    class Listed(list[Any]):
        pass

    for kind in (list, tuple, deque, Listed):
        assert float(summed(kind([1, 2.0, x]), x)[0]) == 4
        assert float(summed(kind([1, 3.0, x * 5]), x)[0]) == 9
        assert float(summed(kind([2, 3.0, x * 5]), x)[0]) == 10
    things = Listed([1])
    assert float(summed(things, x)[0]) == 1
    things.append(5)
    assert float(summed(things, x)[0]) == 6


def test_keys_of_dicts_and_elements_of_sets(session: il.Session) -> None:
    step = il.capture(lambda things, x: [x * each for each in things])
    x = il.ones(1, device=session.devices[1])
    for things in (
        {1: 0},
        {True: 0},
        {1.0: 0},
        {0.0: 0},
        {-0.0: 0},
        {1},
        {1.0},
        {True},
        frozenset({3}),
        {(1, 2)[0]: 1},
    ):
        for _ in range(2):
            wanted = [np.ones(1) * each for each in things]
            assert same(numpy_of(step(things, x)), wanted)
    assert [each.dtype for each in step({np.float32(2): 0}, x.astype("f2"))] == ["f4"]
    scaled = il.capture(lambda z, x: x * z)
    for z in (1j, complex(0.0, -0.0), complex(0.0, 0.0), complex(-0.0, 0.0), complex(math.nan, 1)):
        assert same(scaled(z, x).numpy(), np.ones(1) * z)


# -- random numbers -----------------------------------------------------------------------------------------------


def test_draws_go_on_in_the_same_stream_as_eager_ones(session: il.Session) -> None:
    device = session.devices[1]

    def step(rng: Any, x: Any) -> Any:
        a = rng.standard_normal((3,))
        b = rng.random(5)[1:] * 2
        c = rng.integers(0, 100, (4,))
        rng.shuffle(x)
        return a + 1, b, c, x * 1, rng.permutation(6), rng.uniform(-1.0, 1.0, BIG)

    captured = il.capture(step)
    ours, eager, numpys = (
        il.random.default_rng(5, device=device), il.random.default_rng(5, device=device), np.random.default_rng(5),
    )  # fmt: skip
    for turn in range(4):
        x = np.arange(7.0)
        wanted = step(numpys, x)
        assert same(numpy_of(step(eager, il.arange(7.0, device=device))), wanted)
        assert same(numpy_of(captured(ours, il.arange(7.0, device=device))), wanted)
        if turn == 1:  # and eager draws in between
            assert same(numpy_of(ours.random(3)), numpys.random(3))
            eager.random(3)
    assert recordings(captured) == 1


def test_a_generator_made_inside_begins_anew_at_each_run(session: il.Session) -> None:
    device = session.devices[1]

    @il.capture
    def step(seed: int) -> Any:
        rng = il.random.default_rng(seed, device=device)
        x = il.arange(20, device=device)
        rng.shuffle(x)
        return rng.random(4), x

    @il.capture
    def maker(x: Any) -> Any:
        rng = il.random.default_rng(7, device=device)
        return rng, rng.random(2) + x

    for seed in (1, 2, 1):
        rng, x = np.random.default_rng(seed), np.arange(20)
        rng.shuffle(x)
        assert same(numpy_of(step(seed)), (rng.random(4), x))
    for _ in range(2):
        rng, drawn = maker(il.zeros(2, device=device))
        wanted = np.random.default_rng(7)
        assert same(drawn.numpy(), wanted.random(2))
        assert same(rng.random(3).numpy(), wanted.random(3))


# -- functions that call others -----------------------------------------------------------------------------------


def test_captured_functions_call_captured_functions(session: il.Session) -> None:
    inner = il.capture(lambda x, k: (x * k, x + k))

    def outer(x: Any, k: float) -> Any:
        a, b = inner(x, k)
        c, _ = inner(b, 2.0)
        return a + c

    captured = il.capture(outer)
    x = il.arange(3.0, device=session.devices[1])
    for k in (1.0, 3.0, 5.0):
        wanted = np.arange(3.0) * k + (np.arange(3.0) + k) * 2
        assert same(captured(x, k).numpy(), wanted)
        assert same(outer(x, k).numpy(), wanted)
    assert recordings(captured) == recordings(inner) == 1


def test_two_captured_functions_take_turns(session: il.Session) -> None:
    device, other = session.devices[1:]

    def forward(x: Any, w: Any, other: Any) -> Any:
        t = x * w
        return to(t, other), t.sum()

    def backward(t: Any, w: Any, device: Any) -> None:
        w -= 0.125 * to(t * 2, device)

    captured, updating = il.capture(forward), il.capture(backward)
    for size in (3, BIG):
        a, b = np.full(size, 0.5), np.full(size, 1.0)
        x, w = (il.asarray(each, device=device) for each in (a, b))
        sums, wanted = [], []
        for _ in range(20):
            t, total = forward(a, b, None)
            backward(t, b, None)
            wanted.append(total)
            t, total = captured(x, w, other)
            updating(t, w, device)
            sums.append(total)
        assert [float(each) for each in sums] == [float(each) for each in wanted]
        assert same(w.numpy(), b)


# -- what is refused ----------------------------------------------------------------------------------------------


HIDDEN: Any = SimpleNamespace()


class Library:
    """Stands for an object of a class that a library defines: what it holds is not looked for."""


Library.__module__ = "json"


def test_what_cannot_be_replayed_is_refused_at_its_line_and_nothing_is_left_broken(session: il.Session) -> None:
    device = session.devices[1]
    x = il.ones(3, device=device)
    outer: list[Any] = []
    library = Library()
    library.array = x * 2  # type: ignore[attr-defined]

    def reads(x: Any) -> Any:
        y = x * 2
        return y * float(y.sum())

    def branches(x: Any) -> Any:
        return x * 2 if x[0] > 0 else x

    def prints(x: Any) -> Any:
        return f"{x * 2}"

    def uploads(x: Any) -> Any:
        return x + np.ones(3)

    def lists(x: Any) -> Any:
        return x + il.asarray([1, 2, 3], device=device)

    def reaches(x: Any) -> Any:
        return x + library.array  # type: ignore[attr-defined]

    def keeps(x: Any) -> Any:
        outer.append(x * 2)
        return x

    def changes(x: Any, given: Any) -> Any:
        given.append(x + 1)
        return x

    def returns(x: Any) -> Any:
        return np.ones(3)

    def raises(x: Any) -> Any:
        y = x * 2
        raise KeyError("the function's own")
        return y

    def catches(x: Any) -> Any:
        try:
            return x * float(x.sum())
        except Exception:
            return x

    def generates(x: Any) -> Any:
        yield x * 2

    def waits(x: Any) -> Any:
        il.synchronize()
        return x

    good = il.capture(lambda x: x * 3)
    for function, error, text in (
        (reads, il.CaptureError, "a value is read"),
        (branches, il.CaptureError, "a value is read"),
        (prints, il.CaptureError, "a value is read"),
        (uploads, il.CaptureError, "NumPy array"),
        (lists, il.CaptureError, "NumPy array"),
        (reaches, il.CaptureError, "not given"),
        (keeps, il.CaptureError, "keeps|changes"),
        (returns, il.CaptureError, "ndarray"),
        (catches, il.CaptureError, "a value is read"),
        (generates, il.CaptureError, "generator"),
        (raises, KeyError, "own"),
        (waits, il.CaptureError, "read"),
    ):
        step = il.capture(function)
        for _ in range(2):
            with pytest.raises(error, match=text) as raised:
                step(x)
            if function not in (keeps, returns, generates):
                assert any(entry.name == function.__name__ for entry in raised.traceback)
            del raised
            assert good(x).tolist() == [3, 3, 3]
            assert (x + 1).tolist() == [2, 2, 2]
        assert recordings(step) == 0
    step = il.capture(changes)
    with pytest.raises(il.CaptureError, match="changes what it is given"):
        step(x, [])
    with pytest.raises(TypeError, match="NumPy array of shape"):
        good(np.ones(3))
    with pytest.raises(TypeError, match="iterator"):
        good(iter([x]))
    drawing = il.capture(lambda x, rng: x * rng.random())
    for rng in (np.random.default_rng(1), random.Random(1)):
        with pytest.raises(il.CaptureError, match="changes what it is given"):
            drawing(x, rng)
    outer.clear()
    session.synchronize()


def test_an_array_that_is_returned_and_kept_elsewhere_is_refused(session: il.Session) -> None:
    library = Library()
    library.kept = []  # type: ignore[attr-defined]

    @il.capture
    def step(x: Any) -> Any:
        y = x * 2
        library.kept.append(y)  # type: ignore[attr-defined]
        return y

    with pytest.raises(il.CaptureError, match="keeps an array"):
        step(il.ones(3, device=session.devices[1]))


def test_an_error_that_numpy_would_raise_is_raised_where_it_is_written(session: il.Session) -> None:
    step = il.capture(lambda x, y: (x * 2) @ y)
    x, y = il.ones((2, 3), device=session.devices[1]), il.ones((4, 2), device=session.devices[1])
    for _ in range(2):
        with pytest.raises(ValueError, match="matmul") as raised:
            step(x, y)
        assert any(entry.name == "<lambda>" for entry in raised.traceback)
        assert step(x, x[:1].T).tolist() == [[6], [6]]


# -- verifying ----------------------------------------------------------------------------------------------------


def test_verifying_finds_hidden_state_and_effects_happen_once(session: il.Session) -> None:
    device = session.devices[1]
    library = Library()
    library.turn = 0  # type: ignore[attr-defined]

    @functools.partial(il.capture, verify=True)
    def good(x: Any, rate: float) -> Any:
        x += rate
        return x * 2

    x = il.zeros(2, device=device)
    for turn in range(1, 5):
        assert good(x, 1.0).tolist() == [2 * turn] * 2
    assert x.tolist() == [4, 4]

    def operation(x: Any, rate: float) -> Any:
        return x + 1 if library.turn else x * 1  # type: ignore[attr-defined]

    def number(x: Any, rate: float) -> Any:
        return x * (rate * (1 + library.turn))  # type: ignore[attr-defined]

    def constant(x: Any, rate: float) -> Any:
        return x * (1 + library.turn)  # type: ignore[attr-defined]

    def more(x: Any, rate: float) -> Any:
        for _ in range(1 + library.turn):  # type: ignore[attr-defined]
            x = x + 1
        return x

    def result(x: Any, rate: float) -> Any:
        a, b = x + 1, x + 2
        return b if library.turn else a  # type: ignore[attr-defined]

    def value(x: Any, rate: float) -> Any:
        return x + 1, library.turn  # type: ignore[attr-defined]

    for function in (operation, number, constant, more, result, value):
        library.turn = 0  # type: ignore[attr-defined]
        step = il.capture(function, verify=True)
        for _ in range(3):
            step(x, 2.0)
        library.turn = 1  # type: ignore[attr-defined]
        with pytest.raises(il.CaptureError, match="did something else"):
            step(x, 2.0)
        library.turn = 0  # type: ignore[attr-defined]
        step(x, 3.0)


# -- threads ------------------------------------------------------------------------------------------------------


def test_another_thread_goes_on_while_one_is_recorded(session: il.Session) -> None:
    """What it issues is neither lost nor recorded."""
    device = session.devices[1]
    inside, done = threading.Event(), threading.Event()
    found: list[Any] = []

    def other() -> None:
        y = il.zeros(3, device=device)
        inside.wait(30)
        for _ in range(200):
            y += 1
            y = y.to(session.devices[2]).to(device)
        found.append(y.tolist())
        done.set()

    @il.capture
    def step(x: Any) -> Any:
        y = x * 2
        inside.set()
        assert done.wait(30)
        return y + 1

    thread = threading.Thread(target=other)
    thread.start()
    x = il.ones(3, device=device)
    try:
        assert step(x).tolist() == [3, 3, 3]
    finally:
        thread.join()
    assert found == [[200, 200, 200]]
    assert (x * 0).tolist() == [0, 0, 0]
    assert step(x).tolist() == [3, 3, 3]
    assert "2 instructions" in step.report()


def test_what_is_dropped_while_something_is_recorded_is_freed(session: il.Session) -> None:
    """Finalisers put numbers on a lane's list at any moment, so it is the same list all the time."""
    device = session.devices[1]
    hidden: Any = Library()
    hidden.lists = [lane.dropped for lane in session.lanes]
    hidden.arrays = [il.ones(3, device=device) for _ in range(20)]

    def same_lists() -> bool:
        return all(lane.dropped is each for lane, each in zip(session.lanes, hidden.lists, strict=True))

    @il.capture
    def step(x: Any) -> Any:
        for _ in range(10):
            hidden.arrays.pop()
            x = x + 1
            session._tick()  # what lies unsent leaves, and what was dropped with it
        assert same_lists()
        return x

    assert step(il.zeros(3, device=device)).tolist() == [10, 10, 10]
    hidden.arrays.clear()
    assert same_lists()


def test_two_threads_call_the_same_captured_function(session: il.Session) -> None:
    cpu, one, two = session.devices

    @il.capture
    def step(x: Any, k: float) -> Any:
        y = (x * k).to(cpu)
        y += 1
        return y.to(one) * 2

    found: dict[int, list[float]] = {}

    def work(who: int) -> None:
        made = [step(il.full(4, float(who), device=one), float(turn)) for turn in range(40)]
        found[who] = [float(each[0]) for each in made]

    threads = [threading.Thread(target=work, args=(who,)) for who in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {who: [(who * turn + 1) * 2.0 for turn in range(40)] for who in (1, 2)}
    assert recordings(step) == 1
    del two


# -- failures -----------------------------------------------------------------------------------------------------


def test_a_failure_inside_a_run_is_that_of_its_dependents_alone(session: il.Session) -> None:
    device, other = session.devices[1:]

    @il.capture
    def step(x: Any, places: Any) -> Any:
        good = x + 1
        taken = x[places] * 2  # the failing line
        far = taken.to(other) + 1
        x += 1
        return good, taken, far, good * 3, (good.to(other) * 2).to(device)

    x = il.arange(5.0, device=device)
    for turn in range(6):
        bad = turn in (1, 2, 4)
        good, taken, far, more, back = step(x, il.asarray([0, 9 if bad else 1], device=device))
        value = np.arange(5.0) + turn
        assert same(good.numpy(), value + 1)
        assert same(more.numpy(), (value + 1) * 3)
        assert same(back.numpy(), (value + 1) * 2)
        for array, wanted in ((taken, value[:2] * 2), (far, value[:2] * 2 + 1)):
            if bad:
                for _ in range(2):
                    with pytest.raises(IndexError) as raised:
                        array.numpy()
                    assert "the failing line" in raised.value.__notes__[0]
                    assert __file__ in raised.value.__notes__[0]
                    del raised
            else:
                assert same(array.numpy(), wanted)
    assert recordings(step) == 1
    del taken, far, array
    session.synchronize()


def test_a_failed_argument_fails_what_needs_it_and_an_overwrite_cures_it(session: il.Session) -> None:
    device = session.devices[1]

    @il.capture
    def step(x: Any, y: Any) -> Any:
        t = x * 2
        x[...] = y
        y += 1
        return t + 1, x + 1, y * 2

    for turn in range(4):
        x = il.arange(3.0, device=device)
        if turn in (1, 2):
            x = x[il.asarray([0, 1, 7], device=device)]
        a, b, c = step(x, il.ones(3, device=device))
        if turn in (1, 2):
            with pytest.raises(IndexError):
                a.numpy()
        else:
            assert a.tolist() == [1, 3, 5]
        assert b.tolist() == [2, 2, 2]
        assert c.tolist() == [4, 4, 4]
        assert x.tolist() == [1, 1, 1]


def test_the_earliest_failure_is_told_first(session: il.Session) -> None:
    device = session.devices[1]
    x, bad = il.arange(3.0, device=device), il.asarray([7], device=device)

    @il.capture
    def step(x: Any, bad: Any) -> Any:
        return x[bad] * 1, x[bad + 1]  # in a run

    kept = [step(x, bad * 0)]
    session.synchronize()
    kept.append(step(x, bad))
    kept.append(x[bad + 10])
    with pytest.raises(IndexError, match="index 7 ") as raised:
        session.synchronize()
    text = "\n".join(raised.value.__notes__)
    assert text.index("index 8 ") < text.index("index 17 ")


def test_what_was_dropped_or_failed_leaves_nothing_behind(session: il.Session) -> None:
    """A captured function that goes takes along what it held on the workers."""
    cpu, device, other = session.devices

    def run() -> dict[str, dict[str, int]]:
        @il.capture
        def step(x: Any, places: Any) -> Any:
            t = (x + 1) * (x - 1)
            u = t.to(other) * t.to(cpu).to(other)
            return u.to(device)[places], t.sum()

        for turn in range(4):
            places = il.asarray([turn, 9 * BIG if turn == 2 else 1], device=device)
            found = step(il.full(BIG, float(turn), device=device), places)
            if turn != 2:
                assert float(found[0][0]) == (turn**2 - 1) ** 2
        with pytest.raises(IndexError):
            session.synchronize()
        return session.inspect()

    counts = run()
    held = [each["recordings"] for each in counts.values()]
    assert held == ([0, 0, 0] if session.gated else [1, 1, 1])
    gc.collect()
    session.synchronize()
    emptied(session)
    assert [each["recordings"] for each in session.inspect().values()] == [0, 0, 0]


def test_more_recordings_than_are_kept(session: il.Session) -> None:
    @il.capture
    def step(x: Any, n: int) -> Any:
        return (x + n) * 2

    x = il.zeros(2, device=session.devices[1])
    for _ in range(2):
        found = [step(x, n) for n in range(70)]
        assert [int(each[0]) for each in found] == [2 * n for n in range(70)]
    assert "70 recordings" not in step.report()
    assert "64 recordings, " in step.report()
    assert "recordings forgotten" in step.report()
    session.synchronize()
    assert max(each["recordings"] for each in session.inspect().values()) <= 64


def test_a_long_recording(session: il.Session) -> None:
    def step(x: Any, y: Any, devices: Any) -> Any:
        for turn in range(160):
            x = x * 0.5 + y
            if turn % 40 == 39:
                x = to(to(x, devices[2]) + 1, devices[1])
        return x

    calls = [
        lambda up, s=s: (up(floats(7, seed=s)), up(floats(7, seed=s + 9)), tuple(session.devices)) for s in range(3)
    ]
    assert recordings(agree(session, step, *calls)) == 1


# -- telling what happened ----------------------------------------------------------------------------------------


def test_the_report_says_what_was_recorded_and_why(session: il.Session) -> None:
    device = session.devices[1]

    @il.capture
    def step(x: Any, n: int, lr: float, named: Any = None) -> Any:
        return x * n * lr + 1

    assert step.report().endswith("step: 0 recordings, 0 runs")
    step(il.ones(3, device=device), 1, 0.5)
    step(il.ones(3, device=device), 1, 0.7)
    assert "recorded at the first call" in step.report()
    step(il.ones(4, device=device), 1, 0.5)
    assert "argument 0 was float64 (3,)" in step.report()
    step(il.ones(4, device=device), 2, 0.5)
    assert "argument 1 was 1" in step.report()
    step(il.ones(4, device=device), 2, 0.5, named={"k": 3})
    report = step.report()
    assert "named" in report
    assert f"{device}: 3 instructions; given 1 arrays, 1 numbers; " in report
    assert "2 temporaries" in report
    assert "1 results" in report
    assert "argument 2: any float" in report
    assert ("gate='coordinator'" in report) == session.gated
    assert "4 recordings, 5 runs" in report


def test_a_trace_has_every_instruction_of_a_run_with_its_line(session: il.Session, tmp_path: Path) -> None:
    device, other = session.devices[1:]

    @il.capture
    def step(x: Any) -> Any:
        y = x * 2  # here it is multiplied
        return (y + 1).to(other) - 3

    x = il.ones(3, device=device)
    step(x)
    with il.trace(tmp_path / "trace.json", session=session) as trace:
        results = [step(x).tolist() for _ in range(3)]
    assert results == [[0, 0, 0]] * 3
    trace.write_graph(tmp_path / "graph.svg")
    graph = (tmp_path / "graph.svg").read_text()
    assert [graph.count(f">{name}<") for name in ("multiply", "add", "subtract")] == [3, 3, 3]
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    names = [each["name"] for each in events if each.get("ph") == "X"]
    for name in ("multiply", "add", "subtract"):
        assert sum(name in each for each in names) >= 3, names
    multiplied = [each for each in events if each.get("ph") == "X" and "multiply" in each["name"]]
    line = next(
        n for n, text in enumerate(Path(__file__).read_text().splitlines(), 1) if "here it is" + " multiplied" in text
    )
    assert all(f"test_capture.py:{line}" in json.dumps(each) for each in multiplied)


# -- sessions of their own ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("devices", "gate"), SETTINGS)
def test_a_tiny_window_holds_up_nothing(devices: str, gate: str) -> None:
    with il.connect(devices, gate=gate, window=8) as session:
        places = tuple(session.devices)

        def step(x: Any, places: Any) -> Any:
            total = x * 0
            for turn in range(12):
                x = to(x + turn, places[turn % 3])
                total = total + to(x, places[1])
            return total, to(x, places[1])

        calls = [lambda up, s=s: (up(floats(BIG, seed=s)), places) for s in range(4)]
        agree(session, step, *calls)
        captured, x, y = il.capture(step), il.ones(3, device=places[1]), np.ones(3)
        for _ in range(10):  # nothing is read between
            x, y = captured(x, places)[1], step(y, places)[1]
        assert same(x.numpy(), y)
        del x


@pytest.mark.parametrize("devices", [HOST, SIMS])
def test_what_does_not_fit_fails_alone_and_later_runs_are_good(devices: str) -> None:
    with il.connect(devices, memory=(8 << 20) if devices == HOST else (32 << 20)) as session:
        device, other = session.devices[1:]

        @il.capture
        def step(x: Any, places: Any) -> Any:
            little = x + 1
            much = np.broadcast_to(x, (900, 5000)) * 2  # too much
            return little, much.sum(axis=0) + 1, little.to(other) * 2, x[places]

        @il.capture
        def temporary(x: Any) -> Any:
            return (x * 2 + 1) * x

        x = il.asarray(np.arange(5000.0), device=device)
        for turn in range(3):
            little, much, sent, taken = step(x, il.asarray([turn], device=device))
            assert float(little[7]) == 8
            assert float(sent[7]) == 16
            assert taken.tolist() == [turn]
            with pytest.raises(il.OutOfDeviceMemory) as raised:
                much.numpy()
            assert "# too much" in raised.value.__notes__[0]
            del raised, much
        assert float(temporary(x)[2]) == 10
        with contextlib.suppress(il.OutOfDeviceMemory):
            session.synchronize()


@pytest.mark.parametrize(("devices", "gate"), SETTINGS)
def test_a_worker_that_is_killed_fails_what_needs_it_and_hangs_nothing(devices: str, gate: str) -> None:
    with il.connect(devices, gate=gate) as session:
        cpu, device, other = session.devices

        @il.capture
        def step(x: Any, slow: Any) -> Any:
            y = x + 1
            far = (slow @ slow)[0, :3].to(other) * 2
            return y, far.to(device) + x, far, (y * 2).to(cpu)

        x, slow = il.ones(3, device=device), il.ones((200, 200), dtype="i8", device=device)
        first = step(x, slow)
        assert first[1].tolist() == [401, 401, 401]
        runs = [step(x, slow) for _ in range(5)]
        os.kill(session.pids[str(other)], signal.SIGKILL)
        for y, back, far, sent in runs:
            assert y.tolist() == [2, 2, 2]
            assert sent.tolist() == [4, 4, 4]
            for array in (back, far):
                with contextlib.suppress(il.WorkerLost):
                    assert array.tolist()[0] in (401, 400)

        def until_it_is_known() -> None:
            for _ in range(200):
                step(x, slow)[1].numpy()

        with pytest.raises(il.WorkerLost):
            until_it_is_known()
        assert (x + 1).tolist() == [2, 2, 2]
        alone = il.capture(lambda x: (x * 3).to(cpu))
        assert alone(x).tolist() == [3, 3, 3]
        assert alone(x).tolist() == [3, 3, 3]
        del runs, first, y, back, far, sent, array
        with contextlib.suppress(il.WorkerLost):
            session.synchronize()


# -- memory of what is dropped ----------------------------------------------------------------------------------------


def test_a_dropped_argument_gives_its_memory_to_a_result_unless_something_before_still_reads_it() -> None:
    with il.connect("cpu:0,cpu:1") as session:
        slow, device = session.devices

        @il.capture
        def decay(x: Any) -> Any:
            return x * 0.5 + 1.0

        def addresses(x: Any) -> Any:
            for _ in range(40):
                x = decay(x)
            return x

        start = np.arange(1e5)
        x = addresses(il.asarray(start, device=device))
        wanted = start
        for _ in range(40):
            wanted = wanted * 0.5 + 1.0
        assert x.numpy().tobytes() == wanted.tobytes()

        m = il.ones((500, 500), device=slow)
        late = (m @ m @ m).sum().to(device)  # parked there till the products are done, so that runs leave together
        sums, results = [], []
        for n in range(12):
            a = il.full(len(start), float(n), device=device)  # memory of its own
            sums.append(late + a)
            results.append(decay(a))
            del a
        for n, (total, result) in enumerate(zip(sums, results, strict=True)):
            assert (total.numpy() == 500.0**4 + n).all()
            assert (result.numpy() == n * 0.5 + 1.0).all()

        held = decay(x)
        old = x.numpy()
        again = decay(held)  # `held` and `x` live on
        assert (x.numpy() == old).all()
        assert held.numpy().tobytes() == (old * 0.5 + 1.0).tobytes()
        assert again.numpy().tobytes() == ((old * 0.5 + 1.0) * 0.5 + 1.0).tobytes()


def test_memory_planned_for_recordings_makes_room_for_what_needs_it() -> None:
    with il.connect("cpu:0", memory=64 << 20) as session:

        @il.capture
        def body(a: Any) -> Any:
            t = a @ a
            return (t.T @ a).sum() + t.sum()

        for n in range(700, 724):  # 8 MB planned for each
            assert float(body(il.ones((n, n)))) == float(n * n * n * n + n * n * n)
        big = il.ones((40 << 20) // 8)
        assert float(big.sum()) == (40 << 20) // 8
        assert session.inspect()["cpu:0"]["recordings"] == 24


def test_an_array_of_another_session_is_refused_as_a_result() -> None:
    with il.connect("cpu:0") as one, il.connect("cpu:0") as other:
        x, there = il.ones(3, device=one.devices[0]), other.devices[0]
        step = il.capture(lambda x: (x + 1.0, il.full(3, 7.0, device=there)))
        with pytest.raises(il.CaptureError, match="another session"):
            step(x)
        assert (x + 1.0).tolist() == [2.0] * 3


def test_ctrl_c_while_a_replay_waits_for_room_leaves_no_results_behind() -> None:
    with il.connect("cpu:0", window=16) as session:
        step, x = il.capture(lambda a: a @ a), il.ones((400, 400))
        y = step(x)
        for _ in range(3):
            timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
            timer.start()
            with contextlib.suppress(KeyboardInterrupt):
                while True:
                    y = step(x)
            timer.join()
        y = step(x)  # what Ctrl-C came upon may have been dropped
        assert (y.numpy() == 400.0).all()
        del y
        session.synchronize()
        assert session.inspect()["cpu:0"]["arrays"] <= 2  # x, and what was under way between two statements


def test_a_forked_child_is_not_held_up_by_a_recording_of_its_parent() -> None:
    inside, go_on = threading.Event(), threading.Event()

    def slow(x: Any) -> Any:
        if threading.current_thread() is not threading.main_thread():
            inside.set()
            go_on.wait(PATIENCE_S)
        return x + 1.0

    with il.connect("cpu:0"):
        step, x = il.capture(slow), il.ones(3)
        thread = threading.Thread(target=step, args=(x,))
        thread.start()
        assert inside.wait(PATIENCE_S)
        pid = os.fork()
        if not pid:
            signal.alarm(int(PATIENCE_S))
            with il.connect("cpu:0"):
                os._exit(0 if step(il.ones(3)).tolist() == [2.0] * 3 else 1)
        go_on.set()
        thread.join()
        assert os.waitpid(pid, 0)[1] == 0


def test_what_a_refused_function_kept_says_so() -> None:
    kept: list[Any] = []

    def keeping(x: Any) -> Any:
        kept.append(x + 1.0)
        return x * 2.0

    with il.connect("cpu:0"):
        x = il.ones(3)
        with pytest.raises(il.CaptureError):
            il.capture(keeping)(x)
        with pytest.raises(LookupError, match="captured function that failed or was refused"):
            kept.pop().numpy()
        assert (x + 1.0).tolist() == [2.0] * 3


def test_a_trace_has_every_instruction_of_a_chain_that_goes_by_rows() -> None:
    with il.connect("cpu:0"):
        step = il.capture(lambda a, b: ((a + b) * 2.0 - a) * b)
        a, b = il.ones((1000, 400)), il.ones((1000, 400))
        step(a, b)
        with il.trace() as trace:
            y = step(a, b)
        issued = {each.n for each in trace.records.issued() if each.kind == "compute"}
        assert len(issued) == 4
        assert issued <= {each.n for each in trace.records.ran}
        assert (y.numpy() == 3.0).all()
