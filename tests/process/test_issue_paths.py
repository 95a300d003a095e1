"""The short ways by which the commonest operations are issued: what holds for one operand need not for another."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

import interlock as il
from interlock.coordinator.session import Session


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with il.connect(devices=["cpu:0"]) as session:
        yield session


def raises_as_numpy(ours: Any, numpys: Any) -> None:
    with pytest.raises(Exception) as expected:  # noqa: PT011
        numpys()
    with pytest.raises(expected.type) as found:
        ours()
    assert str(found.value) == str(expected.value)


def test_an_int_out_of_range_is_refused_in_place_after_one_in_range(session: Session) -> None:
    a, x = np.zeros(3, "u1"), il.zeros(3, "u1")
    for _ in range(2):
        a += 7
        x += 7
        raises_as_numpy(partial(operator.iadd, x, 300), partial(operator.iadd, a, 300))
    assert x.tolist() == a.tolist()


def test_a_read_only_view_is_refused_in_place_though_an_array_of_its_spec_was_written(session: Session) -> None:
    x = il.zeros(3)
    for _ in range(2):
        x += 1
        x[...] = 2.0
    frozen = il.broadcast_to(x, (3,))
    for write in (lambda: frozen.__iadd__(1), lambda: frozen.__iadd__(x), lambda: frozen.__setitem__(..., 2.0)):
        with pytest.raises(ValueError, match="read-only"):
            write()
    with pytest.raises(ValueError, match="read-only"):
        frozen[1:].__iadd__(1)
    assert x.tolist() == [2, 2, 2]


def test_a_nan_is_refused_for_ints_after_a_number_was_taken(session: Session) -> None:
    a, x = np.zeros((2, 2), int), il.zeros((2, 2), int)
    for number in (1.0, 2.0):
        a[0] = number
        x[0] = number
        raises_as_numpy(lambda: x.__setitem__(0, math.nan), lambda: a.__setitem__(0, math.nan))
    assert x.tolist() == a.tolist()


def test_static_values_that_are_equal_and_of_other_types_are_told_apart(session: Session) -> None:
    a, x = np.ones((2, 3)), il.ones((2, 3))
    for _ in range(2):
        assert x.sum(1).shape == x.sum(np.int64(1)).shape == a.sum(1).shape
        assert x.sum((0, 1)).shape == ()
        raises_as_numpy(lambda: x.sum(1.0), lambda: a.sum(1.0))
        raises_as_numpy(lambda: x.sum((0, 1.0)), lambda: a.sum((0, 1.0)))
        assert x.reshape(6, 1).shape == (6, 1)
        raises_as_numpy(lambda: x.reshape(6, 1.0), lambda: a.reshape(6, 1.0))
        raises_as_numpy(lambda: x.reshape(6, True), lambda: a.reshape(6, True))


def test_power_in_place_does_what_its_exponent_says(session: Session) -> None:
    a, x = np.full(3, 3.0), il.full(3, 3.0)
    for exponent in (2, 3, 0.5, -1, 2.0):
        a **= exponent
        x **= exponent
        assert x.numpy().tobytes() == a.tobytes()


def test_functions_take_a_number_on_either_side(session: Session) -> None:
    a, x = np.arange(4.0), il.arange(4.0)
    for function in (np.subtract, np.maximum, np.arctan2):
        for ours in (function, getattr(il, function.__name__)):
            for number in (2, 2.5, np.float32(2)):
                assert ours(x, number).numpy().tobytes() == function(a, number).tobytes()
                assert ours(number, x).numpy().tobytes() == function(number, a).tobytes()


def test_the_short_ways_refuse_a_session_that_is_closed() -> None:
    with il.connect(devices=["cpu:0"]) as session:
        x, device = il.zeros(3), session.devices[0]
        x += 1
        x.sum()
    calls = (
        lambda: x.__iadd__(1),
        lambda: x.__setitem__(0, 1.0),
        lambda: x.sum(),
        lambda: il.exp(x),
        lambda: il.zeros(3, device=device),
    )
    for call in calls:
        with pytest.raises(il.InterlockError, match="closed"):
            call()
