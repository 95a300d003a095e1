"""Specs are one object for one shape, dtype and layout, and know their layout as NumPy does."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.protocol import specs
from interlock.protocol.specs import c_strides, packed_strides, spec

SHAPES = st.lists(st.integers(0, 4), max_size=4).map(tuple)
F8 = np.dtype("f8")


@given(SHAPES)
def test_c_order_is_numpys(shape: tuple[int, ...]) -> None:
    if 0 not in shape:
        assert c_strides(shape, 8) == np.empty(shape).strides
    made = spec(shape, F8)
    assert (made.size, made.nbytes, made.ndim) == (np.empty(shape).size, np.empty(shape).nbytes, len(shape))
    assert made.contiguous


@given(SHAPES.filter(lambda shape: 0 not in shape), st.randoms())
def test_packed_strides_keep_the_order_of_the_axes(shape: tuple[int, ...], random: object) -> None:
    axes = list(range(len(shape)))
    random.shuffle(axes)  # type: ignore[attr-defined]
    array = np.empty([2 * extent for extent in shape]).transpose(axes)[tuple(slice(None, None, 2) for _ in axes)]
    copy = array.copy(order="K")
    strides = packed_strides(array.shape, 8, array.strides)
    for axis, extent in enumerate(array.shape):
        assert extent == 1 or strides[axis] == copy.strides[axis]
    assert spec(array.shape, F8, strides).contiguous


def test_gaps_and_steps_are_not_contiguous() -> None:
    base = np.empty((4, 6))
    for array in (base[:, ::2], base[:, :3], base[::-1], np.broadcast_to(base[0], (3, 6))):
        assert not spec(array.shape, F8, array.strides).contiguous
    for array in (base, base.T, base[1:3], base[:, None]):
        assert spec(array.shape, F8, array.strides).contiguous


def test_equal_specs_are_one_object_with_one_number() -> None:
    a = spec((2, 3), F8)
    assert spec((2, 3), np.dtype("f8"), (24, 8)) is a
    assert spec((2, 3), F8, (8, 16)) is not a
    assert spec((2, 3), np.dtype("f4")).id != a.id


def test_numbers_are_unique_across_threads() -> None:
    ids: list[int] = []

    def make(seed: int) -> None:
        ids.extend(spec((seed, i), F8).id for i in range(1000))

    threads = [threading.Thread(target=make, args=(seed,)) for seed in range(101, 105)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(ids)) == 4000


def test_the_table_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(specs, "LIMIT", len(specs._table) + 10)
    kept = spec((7, 7, 7), F8)
    for i in range(50):
        spec((8, i), F8)
    assert len(specs._table) <= specs.LIMIT
    assert kept.shape == (7, 7, 7)
