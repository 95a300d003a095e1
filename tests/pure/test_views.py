"""The geometry of views is NumPy's own, with NumPy's own errors."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from interlock.coordinator import views
from interlock.coordinator.infer import ravel_axes
from interlock.coordinator.views import AdvancedKey, encode_key, without_masks
from interlock.protocol.specs import Spec, spec

from .numpy_calls import Handle, arrays, shapes

many = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True)
OFFSET = 1 << 12  # of the array in its buffer: geometry must only add to it


def address(array: np.ndarray[Any, Any]) -> int:
    return int(array.__array_interface__["data"][0])


def agrees(found: Any, array: np.ndarray[Any, Any], wanted: np.ndarray[Any, Any]) -> bool:
    """Whether a derived (spec, offset) is where NumPy's view of the real array is."""
    derived, offset = found
    return (derived.shape, derived.dtype, derived.strides) == (wanted.shape, wanted.dtype, wanted.strides) and (
        not wanted.size or offset - OFFSET == address(wanted) - address(array)
    )


def refusal(function: Callable[..., Any], *arguments: Any) -> Any:
    """What it returns, or its error as (type, words)."""
    try:
        return function(*arguments)
    except (IndexError, ValueError, TypeError) as error:
        return type(error), str(error)


def compare(array: np.ndarray[Any, Any], ours: Callable[[Spec, int], Any], numpys: Callable[[Any], Any]) -> None:
    """Ours gives NumPy's geometry, or NumPy's error with its words."""
    found = refusal(ours, spec(array.shape, array.dtype, array.strides), OFFSET)
    wanted = refusal(numpys, array)
    if isinstance(wanted, np.ndarray):
        assert agrees(found, array, wanted)
    else:
        assert found == wanted


any_array = shapes.flatmap(arrays)
bounds = st.one_of(st.none(), st.integers(-6, 6))
slices = st.builds(slice, bounds, bounds, st.one_of(st.none(), st.integers(-3, 3)))
items = st.one_of(
    slices, slices, st.integers(-5, 5), st.none(), st.just(Ellipsis), st.integers(0, 1).map(np.int32), st.just(10**30)
)
odd_items = st.sampled_from((1.5, "name", b"name", slice("a"), slice(1.5), np.float32(1)))


@given(array=any_array, key=st.one_of(items, st.lists(items, max_size=5).map(tuple)))
@settings(many, max_examples=500)
def test_a_basic_key_gives_the_view_that_numpy_gives(array: Any, key: Any) -> None:
    whole = key if isinstance(key, tuple) else (key,)
    viewed = whole if any(item is Ellipsis for item in whole) else (*whole, Ellipsis)
    for _ in range(2):  # the second answer is remembered
        compare(array, lambda spec, offset: views.index(spec, offset, key), lambda array: array[viewed])


@given(array=any_array, key=odd_items)
@many
def test_what_is_no_index_is_refused_in_numpys_words(array: Any, key: Any) -> None:
    if isinstance(key, np.float32):
        with pytest.raises(AdvancedKey):
            views.index(spec(array.shape, array.dtype), 0, key)
        with pytest.raises(IndexError, match="must be of integer"):
            encode_key(key, Handle)
    elif isinstance(key, (str, bytes)):
        with pytest.raises(IndexError, match="only integers, slices"):
            views.index(spec(array.shape, array.dtype), 0, key)
    elif array.ndim:
        compare(array, lambda spec, offset: views.index(spec, offset, key), lambda array: array[key, ...])


@pytest.mark.parametrize("key", [True, [0], [[0, 1]], np.array([1]), (0, [1]), (0, (1,)), np.bool_(True), range(2)])
def test_an_advanced_key_is_told_apart(key: Any) -> None:
    with pytest.raises(AdvancedKey):
        views.index(spec((3, 4), np.dtype("f4")), 0, key)


def test_true_is_not_taken_for_a_remembered_one() -> None:
    known = spec((3, 4), np.dtype("f4"))
    views.index(known, 0, 1)
    views.index(known, 0, (1,))
    for key in (True, (True,)):
        with pytest.raises(AdvancedKey):
            views.index(known, 0, key)


@given(array=any_array, shape=st.lists(st.sampled_from((-1, 0, 1, 2, 3, 4, 5, 6, 9, 10)), max_size=4), data=st.data())
@settings(many, max_examples=500)
def test_a_reshape_is_a_view_exactly_where_numpy_needs_no_copy(array: Any, shape: Any, data: st.DataObject) -> None:
    order = data.draw(st.sampled_from("CFA"))
    if data.draw(st.booleans()) and array.size:
        factor = data.draw(st.sampled_from([n for n in range(1, array.size + 1) if array.size % n == 0]))
        shape = [factor, data.draw(st.sampled_from((-1, array.size // factor)))]
    view = refusal(lambda: array.reshape(shape, order=order, copy=False))
    if not isinstance(view, np.ndarray) and isinstance(refusal(lambda: array.reshape(shape, order=order)), np.ndarray):
        assert views.reshape(spec(array.shape, array.dtype, array.strides), OFFSET, shape, order) is None
        return
    compare(array, lambda s, o: views.reshape(s, o, shape, order), lambda a: a.reshape(shape, order=order, copy=None))


@given(array=any_array, order=st.sampled_from("CFAK"))
@settings(many, max_examples=400)
def test_ravel_is_a_view_where_numpys_is_and_has_numpys_order(array: Any, order: Any) -> None:
    known = spec(array.shape, array.dtype, array.strides)
    wanted = array.ravel(order)
    found = views.ravel(known, OFFSET, order)
    if found is None:
        plain = "C" if order == "K" else views.ravel_order(known, order)
        turned = array.transpose(ravel_axes(known)) if order == "K" else array
        copied = turned.copy(plain)
        assert views.reshape(spec(copied.shape, copied.dtype, copied.strides), 0, -1, plain) is not None
        assert copied.reshape(-1, order=plain).tobytes() == wanted.tobytes()
    else:
        assert np.ndarray(found[0].shape, found[0].dtype, _around(array), *_place(found, array)).tobytes() == (
            wanted.tobytes()
        )
    if array.size > 1:
        assert (found is not None) == np.may_share_memory(array, wanted)


def _around(array: Any) -> Any:
    base = array
    while isinstance(base.base, np.ndarray):
        base = base.base
    return base.ravel("K").view(np.uint8)


def _place(found: Any, array: Any) -> tuple[int, Any]:
    start = address(array) - address(_around(array)) if array.size else 0
    return start + (found[1] - OFFSET), found[0].strides


axis = st.integers(-4, 4)


@given(array=any_array, axes=st.one_of(st.none(), st.lists(axis, max_size=4)), data=st.data())
@settings(many, max_examples=300)
def test_transpositions_are_numpys(array: Any, axes: Any, data: st.DataObject) -> None:
    if data.draw(st.booleans()):
        axes = data.draw(st.permutations(range(array.ndim)))
    compare(array, lambda s, o: views.transpose(s, o, axes), lambda a: a.transpose(axes))
    first, second = data.draw(axis), data.draw(axis)
    compare(array, lambda s, o: views.swapaxes(s, o, first, second), lambda a: a.swapaxes(first, second))
    compare(array, lambda s, o: views.moveaxis(s, o, first, second), lambda a: np.moveaxis(a, first, second))
    compare(array, lambda s, o: views.squeeze(s, o, first), lambda a: a.squeeze(first))
    compare(array, lambda s, o: views.squeeze(s, o), lambda a: a.squeeze())
    compare(array, lambda s, o: views.expand_dims(s, o, first), lambda a: np.expand_dims(a, first))


@given(array=any_array, lead=st.lists(st.integers(0, 3), max_size=2), data=st.data())
@many
def test_broadcasting_is_numpys(array: Any, lead: list[int], data: st.DataObject) -> None:
    shape = (*lead, *[data.draw(st.sampled_from((extent, 2))) if extent == 1 else extent for extent in array.shape])
    compare(array, lambda s, o: views.broadcast_to(s, o, shape), lambda a: np.broadcast_to(a, shape))


@given(array=any_array)
@many
def test_parts_and_diagonals_are_derived_and_what_is_no_view_is_told(array: Any) -> None:
    known = spec(array.shape, array.dtype, array.strides)
    compare(array, lambda s, o: views.derive(s, o, lambda a: a.real), lambda a: a.real)
    if array.dtype.kind == "c":
        compare(array, lambda s, o: views.derive(s, o, lambda a: a.imag), lambda a: a.imag)
    elif array.size:
        assert views.derive(known, OFFSET, lambda a: a.imag) is None
    if array.ndim >= 2:
        compare(array, lambda s, o: views.derive(s, o, lambda a: a.diagonal(1)), lambda a: a.diagonal(1))


@given(array=any_array, keys=st.lists(st.lists(slices, max_size=3).map(tuple), max_size=3))
@many
def test_views_of_views_add_up(array: Any, keys: list[Any]) -> None:
    known, offset, wanted = spec(array.shape, array.dtype, array.strides), OFFSET, array
    for key in keys:
        try:
            wanted = wanted[(*key, ...)]
        except (IndexError, ValueError):
            return
        known, offset = views.index(known, offset, key)
    assert agrees((known, offset), array, wanted)


def test_terabytes_cost_nothing() -> None:
    huge = spec((1 << 20, 1 << 18), np.dtype("f4"))
    derived, offset = views.index(huge, 0, (slice(None, None, -1), -1))
    assert (derived.shape, derived.strides, offset) == ((1 << 20,), (-(1 << 20),), (1 << 40) - 4)


@pytest.mark.parametrize(
    "key",
    [
        np.eye(3, 4) > 0,
        (np.array([True, False, True]), 1),
        (..., [True, False, False, True]),
        (None, [False, False, True], None),
        (np.array([True, False, True]), [0, 3]),
        np.zeros((3, 4), bool),
        np.array([True, False]),
        np.ones((3, 4, 1), bool),
        (slice(None), [True, True, True, True, False]),
    ],
    ids=str,
)
def test_a_known_mask_is_the_index_arrays_that_numpy_makes_of_it(key: Any) -> None:
    array = np.arange(12).reshape(3, 4)
    try:
        wanted = array[key]
    except IndexError as error:
        with pytest.raises(IndexError, match=re.escape(str(error))):
            without_masks(spec((3, 4), array.dtype), key)
        return
    plain, left = without_masks(spec((3, 4), array.dtype), key)
    assert not left
    assert array[plain].tolist() == wanted.tolist()


def test_a_bool_that_takes_no_axis_is_left() -> None:
    assert without_masks(spec((3,), np.dtype("f8")), True) == (True, True)


def test_a_key_becomes_plain_values_and_index_arrays_on_devices() -> None:
    handle = Handle(np.arange(3))
    static, given_arrays = encode_key((1, slice(None, 5), None, ..., handle, [2, 3]), Handle)
    assert given_arrays == [handle]
    assert static[:5] == (1, ("s", None, 5, None), None, "...", "@")
    assert static[5] == ("c", "<i8", (2,), np.array([2, 3]).tobytes())
    assert hash(static)
    assert encode_key([], Handle)[0] == (("c", "<i8", (0,), b""),)
