"""Numbers of captured functions: what is computed from them is what Python computes, and pins say what was asked."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from interlock.coordinator.numbers import Number

KINDS: dict[str, Callable[[float], Any]] = {
    "float": float, "float32": np.float32, "float64": np.float64, "float16": np.float16,
    "int64": lambda value: np.int64(int(value * 4)), "int8": lambda value: np.int8(int(value)),
}  # fmt: skip
BINARY: tuple[Callable[[Any, Any], Any], ...] = (
    operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod, operator.pow,
    np.add, np.maximum, np.arctan2,
)  # fmt: skip
UNARY: tuple[Callable[[Any], Any], ...] = (operator.neg, operator.pos, abs, np.sqrt, np.exp, np.sign)
values = st.floats(-9, 9, width=16) | st.sampled_from([0.0, -0.0, 0.5, 2.0])
# ("a", which argument), ("c", constant), (unary, expression) or (binary, expression, expression)
leaves = st.tuples(st.just("a"), st.integers(0, 2)) | st.tuples(st.just("c"), st.sampled_from([2, 0.5, np.float32(3)]))
expressions = st.recursive(
    leaves,
    lambda inner: st.tuples(st.sampled_from(UNARY), inner) | st.tuples(st.sampled_from(BINARY), inner, inner),
    max_leaves=6,
)


def computed(expression: Any, arguments: list[Any]) -> Any:
    what, *operands = expression
    if what == "a":
        return arguments[operands[0]]
    if what == "c":
        return operands[0]
    return what(*[computed(each, arguments) for each in operands])


def alike(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    return repr(one) == repr(other) if isinstance(one, (float, complex, int)) else one.tobytes() == other.tobytes()


def outcome(call: Callable[[], Any]) -> Any:
    with np.errstate(all="ignore"):
        try:
            return call()
        except Exception as error:
            return type(error)


@settings(max_examples=300)
@given(expressions, st.lists(st.sampled_from(sorted(KINDS)), min_size=3, max_size=3), st.data())
def test_an_expression_is_what_python_makes_of_it_with_any_arguments(
    expression: Any, kinds: list[str], data: st.DataObject
) -> None:
    def drawn() -> list[Any]:
        return [KINDS[kind](data.draw(values)) for kind in kinds]

    before, after = drawn(), drawn()
    pins: set[int] = set()
    numbers = [Number(value, pins, place) for place, value in enumerate(before)]
    made = outcome(lambda: computed(expression, numbers))
    wanted = outcome(lambda: computed(expression, before))
    again = [new if place not in pins else old for place, (old, new) in enumerate(zip(before, after, strict=True))]
    anew = outcome(lambda: computed(expression, again))
    if type(made) is Number:
        assert alike(made.value, wanted)
        found = outcome(lambda: made.evaluate(again))
    else:  # what it is holds for all that agree in what is pinned
        assert made is wanted or alike(made, wanted)
        found = made
    assert found is anew or alike(found, anew)


def number(value: Any) -> tuple[Any, set[int]]:
    pins: set[int] = set()
    return Number(value, pins, 5), pins


@pytest.mark.parametrize(
    "ask",
    [
        bool, int, float, complex, hash, repr, str, round, math.floor, math.ceil, math.trunc, math.sqrt,
        lambda x: x > 1, lambda x: x >= 1, lambda x: x == 2.5, lambda x: x != 2, lambda x: f"{x:.2f}",
        lambda x: divmod(x, 2), lambda x: divmod(7, x), lambda x: x.is_integer(), lambda x: round(x, 1),
        lambda x: np.asarray(x), lambda x: np.float32(x), lambda x: math.isclose(x, 2.5), lambda x: max(x, 1) > 0,
        lambda x: np.arange(3) * x, lambda x: np.add.outer(np.arange(3), x), lambda x: sorted([x, 1.0]),
    ],
)  # fmt: skip
def test_what_asks_for_the_value_pins_it(ask: Callable[[Any], Any]) -> None:
    asked, pins = number(2.5)
    assert np.array_equal(ask(asked), ask(2.5))
    assert pins == {5}


@pytest.mark.parametrize(
    "use", [lambda x: x + 1, lambda x: -x * 2 / 3, lambda x: np.sqrt(x), lambda x: np.float32(2) * x]
)
def test_arithmetic_pins_nothing(use: Callable[[Any], Any]) -> None:
    asked, pins = number(2.5)
    assert type(use(asked)) is Number
    assert not pins


def test_what_is_computed_pins_what_it_is_computed_from() -> None:
    pins: set[int] = set()
    a, b, c = (Number(value, pins, place) for place, value in enumerate((1.0, 2.0, 3.0)))
    assert ((a + 1) * c).pinned() == 6.0
    assert pins == {0, 2}
    assert b.value == 2.0


@pytest.mark.parametrize(
    ("value", "use"), [(0.0, lambda x: 1 / x), (1e308, lambda x: x**2), (np.int64(-1), lambda x: 2**x)]
)
def test_an_error_pins_what_caused_it_and_is_pythons(value: Any, use: Callable[[Any], Any]) -> None:
    asked, pins = number(value)
    if isinstance(value, float):
        with pytest.raises(ArithmeticError):
            use(asked)
        assert pins == {5}
    else:
        assert outcome(lambda: use(asked)) is outcome(lambda: use(value))


def test_what_is_no_longer_a_float_is_pinned() -> None:
    asked, pins = number(-4.0)
    root = asked**0.5
    assert type(root) is complex
    assert pins == {5}


def test_it_says_of_itself_what_the_number_says() -> None:
    for value in (0.5, np.float32(0.5), np.int64(3), np.bool_(True)):
        asked, pins = number(value)
        for kind in (float, int, np.generic, np.floating, np.integer, np.bool_, str):
            assert isinstance(asked, kind) == isinstance(value, kind)
        assert (asked.ndim, asked.shape) == (0, ())
        assert not pins


def test_integers_and_truth_values_have_their_operators() -> None:
    for value in (np.int64(13), np.bool_(True)):
        for use in (
            lambda x: x & 6,
            lambda x: 6 | x,
            lambda x: x ^ 3,
            lambda x: ~x,
            lambda x: x >> 1,
            lambda x: 1 << x,
        ):
            asked, pins = number(value)
            made = use(asked)
            assert alike(made.value, use(value))
            assert alike(made.evaluate([None] * 5 + [value]), use(value))
            assert not pins


def test_expressions_tell_apart_what_is_computed_otherwise() -> None:
    a, _ = number(2.0)
    ways = [a, a + 1, a + 1.0, 1 + a, a - 1, a + True, a * 2, (a + 1) * 2, -a, a + np.float32(1), np.add(a, 1)]
    said = [each.expression() for each in ways]
    assert all(said[i] != said[j] for i in range(len(said)) for j in range(i))
    assert (a + 1).expression() == (number(3.0)[0] + 1).expression()
