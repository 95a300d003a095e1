"""Gradients against finite differences in float64, and against what mathematics says."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest

import interlock as il
from interlock.coordinator.gradients import RULES
from interlock.protocol.operations import BY_NUMBER

STEP = 1e-6
Function = Callable[..., Any]


@pytest.fixture(scope="module", params=["worker", "coordinator"])
def session(request: pytest.FixtureRequest) -> Iterator[il.Session]:
    with il.connect(devices="cpu:0,sim:0", gate=request.param) as session:
        yield session


def random(*shape: int, low: float = -2.0, high: float = 2.0, seed: int = 0) -> np.ndarray:
    return np.random.default_rng((seed, *shape)).uniform(low, high, shape)


def differences(function: Function, arrays: list[np.ndarray]) -> list[np.ndarray]:
    """The gradient by each array, by differences in NumPy."""
    found = []
    for place, array in enumerate(arrays):
        gradient = np.zeros_like(array)
        for index in np.ndindex(array.shape):
            moved = [each.copy() for each in arrays]
            moved[place][index] += STEP
            above = function(*moved)
            moved[place][index] -= 2 * STEP
            gradient[index] = (above - function(*moved)) / (2 * STEP)
        found.append(gradient)
    return found


def check(function: Function, *arrays: np.ndarray, tolerance: float = 1e-5) -> None:
    """The gradient of a function that is written for NumPy's arrays, by all of its arguments."""
    gradients = il.grad(function, tuple(range(len(arrays))))(*map(il.asarray, arrays))
    for found, wanted in zip(gradients, differences(function, list(arrays)), strict=True):
        np.testing.assert_allclose(np.asarray(found), wanted, rtol=tolerance, atol=tolerance)


POSITIVE = {"log", "log2", "log10", "sqrt", "cbrt", "reciprocal"}
INSIDE = {"arcsin", "arccos", "arctanh", "log1p"}
_UNARY = """negative positive absolute fabs exp exp2 expm1 log log2 log10 log1p sqrt cbrt square reciprocal sin cos tan
    sinh cosh tanh arcsin arccos arctan arcsinh arccosh arctanh degrees radians rad2deg deg2rad conjugate"""
_BINARY = """add subtract multiply divide remainder fmod power float_power arctan2 hypot logaddexp logaddexp2 maximum
    minimum fmax fmin copysign"""
UNARY, BINARY = _UNARY.split(), _BINARY.split()
FLAT = ("sign", "floor", "ceil", "trunc", "rint", "floor_divide", "heaviside")


@pytest.mark.parametrize("name", UNARY)
def test_of_elementwise_functions(session: il.Session, name: str) -> None:
    low, high = (0.3, 2.0) if name in POSITIVE else (-0.7, 0.7) if name in INSIDE else (-1.2, 1.2)
    if name == "arccosh":
        low, high = 1.3, 3.0
    ufunc = getattr(np, name)
    weights = random(3, 4, seed=1)
    check(lambda x: (ufunc(x) * weights_like(x, weights)).sum(), random(3, 4, low=low, high=high))


def weights_like(x: Any, weights: np.ndarray) -> Any:
    return weights if isinstance(x, np.ndarray) else il.asarray(weights, device=x.device)


@pytest.mark.parametrize("name", BINARY)
@pytest.mark.parametrize("shapes", [((3, 4), (3, 4)), ((3, 4), (4,)), ((1,), (3, 4)), ((), (2, 1))], ids=str)
def test_of_functions_of_two_arrays_that_are_broadcast(session: il.Session, name: str, shapes: Any) -> None:
    ufunc = getattr(np, name)
    one, other = (random(*shape, low=0.5, high=2.0, seed=seed) for seed, shape in enumerate(shapes))
    check(lambda x, y: (ufunc(x, y) * ufunc(x, y)).sum(), one, other, tolerance=1e-4)


@pytest.mark.parametrize(
    "expression",
    [
        lambda x: (x**3).sum(), lambda x: (2.0**x).sum(), lambda x: (x**2.5).sum(), lambda x: (1 / x).sum(),
        lambda x: (3 - x).sum(), lambda x: (x - 1.5).prod(), lambda x: (x * x**0).sum(), lambda x: (-x // 1 + x).sum(),
        lambda x: (x % 0.7).sum(), lambda x: np.divide(2, x).sum(), lambda x: np.maximum(x, 1.0).sum(),
    ],
)  # fmt: skip
def test_of_an_array_and_a_number(session: il.Session, expression: Function) -> None:
    check(expression, random(2, 3, low=0.55, high=2.45))


REDUCTIONS: dict[str, Function] = {
    "sum": lambda x, **how: x.sum(**how), "mean": lambda x, **how: x.mean(**how), "var": lambda x, **how: x.var(**how),
    "std": lambda x, **how: x.std(**how), "prod": lambda x, **how: x.prod(**how), "max": lambda x, **how: x.max(**how),
    "min": lambda x, **how: x.min(**how),
}  # fmt: skip


@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("axis", [None, 0, -1, (0, 2), (1, 2)], ids=str)
@pytest.mark.parametrize("keepdims", [False, True])
def test_of_reductions(session: il.Session, name: str, axis: Any, keepdims: bool) -> None:
    reduce = REDUCTIONS[name]
    check(lambda x: np.sin(reduce(x, axis=axis, keepdims=keepdims)).sum(), random(2, 3, 2))


def test_of_products_with_zeros_and_of_accumulations(session: il.Session) -> None:
    x = random(3, 4)
    x[0, 1] = x[2, 2] = x[2, 3] = 0.0
    check(lambda x: np.sin(x.prod(axis=1)).sum() + x.prod(axis=0).sum(), x)
    for axis in (None, 0, 1):
        check(lambda x, axis=axis: np.sin(x.cumsum(axis=axis)).sum(), x)
        check(lambda x, axis=axis: np.sin(x.cumprod(axis=axis)).sum(), random(3, 4, low=0.5))
    check(lambda x: np.sin(x.var(axis=0, ddof=1)).sum() + x.std(ddof=1), random(4, 2))


@pytest.mark.parametrize(
    "shapes",
    [((3, 4), (4, 5)), ((4,), (4, 5)), ((3, 4), (4,)), ((4,), (4,)), ((2, 3, 4), (4, 5)), ((2, 3, 4), (2, 4, 5)),
     ((3, 4), (2, 4, 5)), ((2, 1, 3, 4), (5, 4, 2)), ((4,), (2, 4, 5)), ((2, 3, 4), (4,))], ids=str,
)  # fmt: skip
def test_of_products_of_matrices(session: il.Session, shapes: Any) -> None:
    check(lambda x, y: np.sin(x @ y).sum(), random(*shapes[0]), random(*shapes[1]))


def test_of_what_selects_and_joins(session: il.Session) -> None:
    check(lambda x: np.sin(np.where(x > 0, x * x, -x)).sum(), random(3, 4))
    check(lambda x: np.sin(np.clip(x, -0.5, 0.9)).sum() + np.clip(x, 0.1, None).sum(), random(3, 4))
    check(lambda x, y: np.sin(np.concatenate([x, y, x * y], axis=1)).sum(), random(2, 3), random(2, 3, seed=1))
    check(lambda x, y: np.sin(np.concatenate([x, y], axis=None)).sum(), random(2, 3), random(4))
    check(lambda x, y: np.sin(np.stack([x, y, x], axis=-1)).std(), random(2, 3), random(2, 3, seed=1))
    check(lambda x: np.sin(np.tril(x) + 2 * np.triu(x, 1)).sum(), random(3, 3))
    check(lambda x: np.sin(x.astype("f8") + x.copy()).sum(), random(3))


VIEWS: dict[str, Function] = {
    "slices": lambda x: np.sin(x[1:, ::2]).sum() + x[0, 1] * x[-1, -1],
    "transposed": lambda x: np.sin(x.T @ x).sum(),
    "reshaped": lambda x: np.sin(x.reshape(-1)[::5]).sum(),
    "reshaped after transposing": lambda x: (np.sin(x.T.reshape(2, -1))[1] * 3).sum(),
    "new axes": lambda x: np.sin(x[:, None, :] * x[None, :, :]).sum(),
    "broadcast": lambda x: np.sin(np.broadcast_to(x[0], (5, 4)) * 2).sum(),
    "raveled, squeezed, moved": lambda x: np.sin(x[:1].squeeze() * np.moveaxis(x, 0, 1)[:, 2]).sum() + x.ravel()[3],
    "backwards": lambda x: (x[::-1, ::-1] * x).sum(),
}


@pytest.mark.parametrize("name", VIEWS)
def test_through_views(session: il.Session, name: str) -> None:
    check(VIEWS[name], random(3, 4))


def _assigned(x: Any) -> Any:
    y = x * 0
    y[0] = x[1] * 2
    y[1:, 1] = x[0, 0]
    y[:, 2:] = 7.0
    y[2] += x[2] * x[1]
    return (y * y).sum()


def _in_place(x: Any) -> Any:
    y = x + 0.0
    y += x * 2
    y *= 3.0
    y[1] -= x[0]
    y[:, 1:3] /= 4.0
    return np.sin(y).sum()


def _filled_row_by_row(x: Any) -> Any:
    rows = x * 1.0
    for i in range(1, 3):
        rows[i] = np.sin(rows[i - 1]) * x[i]
    return rows.sum()


@pytest.mark.parametrize("function", [_assigned, _in_place, _filled_row_by_row])
def test_through_writes_in_place(session: il.Session, function: Function) -> None:
    check(function, random(3, 4))


def test_what_was_overwritten_and_is_needed_is_refused_with_its_line(session: il.Session) -> None:
    def overwrites(x: Any) -> Any:
        y = np.exp(x)
        y += 1  # exp's gradient is its result
        return y.sum()

    with pytest.raises(RuntimeError, match=r"overwritten at .*test_autograd\.py:\d+ `y \+= 1"):
        il.grad(overwrites)(il.asarray(random(3)))

    def written_whole(x: Any) -> Any:
        y = x * 1.0
        z = y * y
        y[...] = 5.0
        return z.sum()

    with pytest.raises(RuntimeError, match="overwritten"):
        il.grad(written_whole)(il.asarray(random(3)))


def test_gradients_travel_back_with_transfers(session: il.Session) -> None:
    here, there = session.devices

    def function(x: Any, w: Any) -> Any:
        if isinstance(x, np.ndarray):
            return (np.tanh(x @ w) ** 2).sum() + (x * x).sum()
        moved = np.tanh(x.to(there) @ w)
        return (moved**2).sum().to(here) + (x * x).sum()

    x, w = random(3, 4), random(4, 2)
    mine = il.asarray(x, device=here), il.asarray(w, device=there)
    gradients = il.grad(function, (0, 1))(*mine)
    assert [g.device for g in gradients] == [here, there]
    for found, wanted in zip(gradients, differences(function, [x, w]), strict=True):
        np.testing.assert_allclose(np.asarray(found), wanted, rtol=1e-5, atol=1e-6)


@dataclasses.dataclass
class Layer:
    weights: Any
    bias: Any
    name: str = "first"


class Pair(NamedTuple):
    one: Any
    other: Any


def test_the_gradients_are_nested_as_the_arguments(session: il.Session) -> None:
    def function(p: Any, scale: float) -> Any:
        return scale * (p["layer"].weights.sum() + 2 * p["layer"].bias * p["pair"].one.sum() + p["list"][1]).sum()

    p = {
        "layer": Layer(il.ones((2, 2)), il.ones(())),
        "pair": Pair(il.ones(3), il.ones(2)),
        "list": [None, il.ones(()), "text", 3],
    }
    value, g = il.value_and_grad(function)(p, 2.0)
    assert float(value) == 2 * (4 + 6 + 1)
    assert isinstance(g["layer"], Layer)
    assert np.asarray(g["layer"].weights).tolist() == [[2.0, 2.0], [2.0, 2.0]]
    assert float(g["layer"].bias) == 12.0
    assert isinstance(g["pair"], Pair)
    assert np.asarray(g["pair"].one).tolist() == [4.0] * 3
    assert np.asarray(g["pair"].other).tolist() == [0.0, 0.0]  # nothing depends on it
    assert g["list"][0] is None
    assert float(g["list"][1]) == 2.0
    assert g["list"][2:] == [None, None]


def test_an_argument_given_twice_counts_once_for_each_place(session: il.Session) -> None:
    x = il.asarray([2.0, 3.0])
    one, other = il.grad(lambda a, b: (a * a * b).sum(), (0, 1))(x, x)
    assert np.asarray(one).tolist() == [8.0, 18.0]
    assert np.asarray(other).tolist() == [4.0, 9.0]
    assert float(il.grad(lambda a: a * a)(3.0)) == 6.0


def test_gradients_are_arrays_of_their_own(session: il.Session) -> None:
    x, y = il.ones(3), il.ones(3)
    one, other = il.grad(lambda a, b: (a + b).sum(), (0, 1))(x, y)
    one += 5
    assert np.asarray(other).tolist() == [1.0] * 3
    same = il.grad(lambda a: a)(il.asarray(2.0))
    same += 1
    assert float(same) == 2.0


def test_a_gradient_has_a_gradient(session: il.Session) -> None:
    x = il.asarray([1.0, 2.0, -0.5])
    third = il.grad(lambda a: il.grad(lambda b: il.grad(lambda c: (c**5).sum())(b).sum())(a).sum())(x)
    np.testing.assert_allclose(np.asarray(third), 60 * np.asarray(x) ** 2)


def test_no_gradient_goes_through_stop_gradient(session: il.Session) -> None:
    x = il.asarray([2.0, 3.0])
    assert il.stop_gradient(x) is x
    assert np.asarray(il.grad(lambda a: (il.stop_gradient(a) * a).sum())(x)).tolist() == [2.0, 3.0]


def test_vjp_is_called_again_and_holds_what_it_needs(session: il.Session) -> None:
    x = random(3, 2)
    value, pullback = il.vjp(lambda a: np.sin(a * 2) * a, il.asarray(x))
    np.testing.assert_allclose(np.asarray(value), np.sin(x * 2) * x)
    for factor in (1.0, -3.0):
        found = pullback(np.full((3, 2), factor))
        np.testing.assert_allclose(np.asarray(found), factor * (2 * np.cos(2 * x) * x + np.sin(2 * x)), rtol=1e-12)
    with pytest.raises(ValueError, match="shape"):
        pullback(np.ones(3))


def test_vjp_notices_that_an_argument_was_overwritten_since(session: il.Session) -> None:
    x = il.asarray(random(3))
    _, pullback = il.vjp(lambda a: (a * a).sum(), x)
    x += 1
    with pytest.raises(RuntimeError, match=r"overwritten at .*`x \+= 1`"):
        pullback(1.0)


def test_a_captured_step_gives_the_same_bits(session: il.Session) -> None:
    x, y = il.asarray(random(8, 4)), il.asarray(random(8, 2, seed=3))

    def loss(p: Any, x: Any, y: Any) -> Any:
        hidden = np.maximum(x @ p["w"] + p["b"], 0)
        return ((hidden @ p["v"] - y) ** 2).mean()

    def step(p: Any, x: Any, y: Any, lr: float) -> Any:
        value, g = il.value_and_grad(loss)(p, x, y)
        return value, {name: p[name] - lr * g[name] for name in p}

    start = {"w": il.asarray(random(4, 5)), "b": il.zeros(5), "v": il.asarray(random(5, 2))}
    captured, plain, replayed = il.capture(step), dict(start), dict(start)
    for turn in range(4):
        one, plain = step(plain, x, y, 0.1 / (turn + 1))
        other, replayed = captured(replayed, x, y, 0.1 / (turn + 1))
        assert float(one) == float(other)
    for name in start:
        assert np.asarray(plain[name]).tobytes() == np.asarray(replayed[name]).tobytes()
    assert "1 recordings" in captured.report()


def test_a_captured_function_is_differentiated_like_any_other(session: il.Session) -> None:
    square = il.capture(lambda a: a * a)
    x = il.asarray(random(3))
    for _ in range(2):
        np.testing.assert_allclose(np.asarray(il.grad(lambda a: square(a).sum())(x)), 2 * random(3))
        np.testing.assert_allclose(np.asarray(square(x)), random(3) ** 2)


def test_what_has_no_gradient_is_refused_with_its_line(session: il.Session) -> None:
    x = il.asarray(random(3))
    with pytest.raises(TypeError, match=r"no gradient of `frexp`.*test_autograd\.py"):
        il.grad(lambda a: np.frexp(a)[0].sum())(x)
    with pytest.raises(TypeError, match="int64"):
        il.grad(lambda a: a.sum())(il.arange(3))
    with pytest.raises(TypeError, match="shape"):
        il.grad(lambda a: a)(x)
    with pytest.raises(TypeError, match="must return"):
        il.grad(lambda a: 3.0)(x)
    with pytest.raises(TypeError, match="2 arguments"):
        il.grad(lambda a, b: a.sum(), 2)(x, x)
    for name in FLAT:
        ufunc = getattr(np, name)
        operands = 1 if ufunc.nin == 1 else 2
        g = il.grad(lambda a, u=ufunc, n=operands: (u(a) if n == 1 else u(a, 2.0)).sum() + a.sum())(x)
        assert np.asarray(g).tolist() == [1.0] * 3


def test_nothing_is_kept_for_longer_than_needed(session: il.Session) -> None:
    x = il.asarray(random(64, 64))
    for _ in range(3):
        g = il.grad(lambda a: np.sin(np.exp(a * 2) + np.tanh(a)).sum())(x)
    with pytest.raises(ZeroDivisionError):
        il.grad(lambda a: (np.exp(a) * a).sum() * (1 // 0))(x)
    session.synchronize()
    assert session.trails == ()
    held = session.inspect()["cpu:0"]
    assert held["arrays"] + held["memory"] <= 4, held  # x and g
    del g


def test_closed_over_arrays_are_constants(session: il.Session) -> None:
    data, scale = il.asarray(random(4, 3)), il.asarray(2.0)
    found = il.grad(lambda w: ((data @ w) * scale).sum())(il.ones(3))
    np.testing.assert_allclose(np.asarray(found), 2 * random(4, 3).sum(axis=0))


def _softmax(xp: Any, x: Any, w: Any) -> Any:
    scores = xp.maximum(x @ w[:-1] + w[-1], 0)
    scores = scores - xp.max(scores, axis=1, keepdims=True)
    return xp.mean(xp.log(xp.sum(xp.exp(scores), axis=1)) - scores[:, 0])


def _statistics(xp: Any, x: Any, w: Any) -> Any:
    return xp.sum(xp.std(x, axis=0) * xp.var(x @ w[1:], axis=0, ddof=1)[0]) + xp.prod(xp.mean(x, axis=1))


def _picked(xp: Any, x: Any, w: Any) -> Any:
    return xp.sum(xp.where(x > 0.5, x**3, xp.sin(x))) + xp.sum(xp.clip(w, 0.1, 0.8) ** 2) + xp.min(x) * xp.max(w)


def _recurrent(xp: Any, x: Any, w: Any) -> Any:
    state = w[0]
    for row in range(x.shape[0]):
        state = xp.tanh(state * xp.sum(x[row]) + w[2])
    return xp.sum(xp.concatenate([state, state * 2]) ** 2)


@pytest.mark.parametrize("function", [_softmax, _statistics, _picked, _recurrent])
def test_as_another_library_gives_them(session: il.Session, function: Function) -> None:
    other = pytest.importorskip("autograd")
    x, w = random(6, 3, low=-1, high=1.5), random(4, 3, low=0.05, high=1, seed=5)
    ours = il.grad(lambda x, w: function(il, x, w), (0, 1))(il.asarray(x), il.asarray(w))
    theirs = other.grad(lambda x, w: function(other.numpy, x, w), (0, 1))(x, w)
    for found, wanted in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(np.asarray(found), wanted, rtol=1e-10, atol=1e-12)


def test_every_rule_is_tested_here() -> None:
    tested = {*UNARY, *BINARY, *REDUCTIONS, "cumsum", "cumprod", "matmul", "where", "clip", "tril", "triu"}
    tested |= {"concatenate", "stack", "astype", "copy", "assign", "full", "ldexp"}
    assert {BY_NUMBER[number].name for number in RULES} == tested


def test_of_full_and_ldexp(session: il.Session) -> None:
    check(lambda x: (x * 2).sum() + (np.full_like(x, 1.0) * x).sum(), random(3))
    x = il.asarray(1.5)
    assert float(il.grad(lambda a: (il.full((3,), a) * 2).sum())(x)) == 6.0
    assert float(il.grad(lambda a: np.ldexp(a, 3))(x)) == 8.0
