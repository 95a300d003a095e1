"""Keys of arguments tell apart all that makes another recording necessary, and nothing else."""

from __future__ import annotations

import dataclasses
import enum
import functools
import math
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.coordinator.structure import Refused, Walk, with_numbers


def walked(value: Any, slots: bool = True) -> Walk:
    walk = Walk()
    walk.take(value, slots)
    return walk


def key(value: Any, slots: bool = True) -> tuple[Any, ...]:
    made = tuple(walked(value, slots).key)
    hash(made)
    return made


class Plain:
    def __init__(self, **fields: Any) -> None:
        self.__dict__.update(fields)


class Slotted:
    __slots__ = ("a", "b")

    def __init__(self, a: Any) -> None:
        self.a = a


class Listed(list[Any]):
    pass


class Named(dict[str, Any]):
    pass


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclasses.dataclass
class Record:
    rate: Any
    more: Any = None

    def __post_init__(self) -> None:
        self.derived = self.more


class Color(enum.Enum):
    RED = 1
    BLUE = 2


def first(x: Any) -> Any:
    return x


def second(x: Any) -> Any:
    return x


def itself() -> list[Any]:
    made: list[Any] = [[]]
    made[0].append(made)
    return made


def inner_itself() -> list[Any]:
    made: list[Any] = [[]]
    made[0].append(made[0])
    return made


DIFFERENT: list[Callable[[], Any]] = [
    lambda: True, lambda: 1, lambda: 1.0, lambda: np.float32(1), lambda: np.float64(1), lambda: np.int64(1),
    lambda: np.bool_(True), lambda: 2, lambda: None, lambda: ..., lambda: "1", lambda: b"1", lambda: bytearray(b"1"),
    lambda: 1j, lambda: complex(0.0, -0.0), lambda: complex(0.0, 0.0), lambda: complex(-0.0, 0.0),
    lambda: complex(0, math.nan),
    lambda: (), lambda: [], lambda: {}, lambda: set(), lambda: frozenset(), lambda: deque(),
    lambda: (1,), lambda: [1], lambda: ((1,),), lambda: [[1]], lambda: [1, [2]], lambda: [[1], 2], lambda: [1, 2],
    lambda: {1: 0}, lambda: {True: 0}, lambda: {1.0: 0}, lambda: {"1": 0}, lambda: {0.0: 0}, lambda: {-0.0: 0},
    lambda: {"a": 1, "b": 2}, lambda: {"b": 2, "a": 1}, lambda: {(1, 2): 0}, lambda: {(1.0, 2): 0},
    lambda: {1}, lambda: {1.0}, lambda: {True}, lambda: frozenset((1,)), lambda: {"x"},
    lambda: OrderedDict(a=1), lambda: {"a": 1}, lambda: defaultdict(int, a=1), lambda: OrderedDict(a=2),
    lambda: Named(a=1),
    lambda: Listed([1]), lambda: Listed([2]), lambda: deque([1]),
    lambda: range(3), lambda: range(4), lambda: slice(1, 2), lambda: slice(1, 3), lambda: slice(True, 2),
    lambda: np.zeros, lambda: np.dtype("f4"), lambda: np.dtype("f8"), lambda: np.float32, lambda: float, lambda: np.add,
    lambda: first, lambda: second, lambda: functools.partial(first, 1), lambda: functools.partial(first, 2),
    lambda: functools.partial(second, 1), lambda: Plain(a=1).__init__,
    lambda: Plain(), lambda: Plain(a=1), lambda: Plain(a=2), lambda: Plain(b=1), lambda: Plain(a=True),
    lambda: Plain(a=1.5),
    lambda: Slotted(1), lambda: Slotted(2), lambda: SimpleNamespace(a=1), lambda: SimpleNamespace(a=2),
    lambda: Pair(1, 2), lambda: (1, 2), lambda: Record(1, 2), lambda: Record(1, 3), lambda: Record(1.0, 2),
    lambda: Color.RED, lambda: Color.BLUE, itself, inner_itself, lambda: [itself()],
]  # fmt: skip


def test_keys_tell_apart_what_must_be_told_apart_and_are_the_same_for_what_is_alike() -> None:
    keys = [key(make()) for make in DIFFERENT]
    again = [key(make()) for make in DIFFERENT]
    for place, (one, two) in enumerate(zip(keys, again, strict=True)):
        assert one == two, place
        assert [n for n, other in enumerate(keys) if other == one] == [place]
    assert len(set(keys)) == len(keys)


VALUES = [
    0.0,
    -0.0,
    0.5,
    math.inf,
    math.nan,
    np.float32(0.5),
    np.float64(0.5),
    np.float64(math.nan),
    np.int8(5),
    np.int8(6),
]


def test_numbers_that_may_change_are_in_the_key_by_their_type_alone() -> None:
    kinds = {key(value) for value in VALUES}
    assert len(kinds) == 4
    assert key([0.5, {"a": 2.0}]) == key([-0.0, {"a": math.nan}])
    assert key([np.float32(1)]) != key([1.0])


def test_numbers_that_may_not_change_are_in_it_by_their_bits() -> None:
    assert len({key(value, slots=False) for value in VALUES}) == len(VALUES)
    assert key(math.nan, slots=False) == key(float("nan"), slots=False)
    assert key([Plain(a=0.5)]) != key([Plain(a=0.25)])  # such an object is not made anew for a recording
    assert key({"o": OrderedDict(a=0.5)}) != key({"o": OrderedDict(a=0.25)})
    assert key(Record(0.5)) == key(Record(0.25))


def test_numpy_arrays_are_told_apart_by_what_they_hold_and_refused_among_arguments() -> None:
    x = np.arange(6.0)
    assert key(x, slots=False) == key(x.copy(), slots=False)
    for other in (x + 1, x.reshape(2, 3), x.astype("f4")):
        assert key(x, slots=False) != key(other, slots=False)
    with pytest.raises(Refused, match=r"shape \(6,\)"):
        key([{"a": x}])


def test_what_is_changed_in_place_has_another_key() -> None:
    for make, change in (
        (lambda: [1], lambda x: x.append(2)),
        (lambda: {"a": 1}, lambda x: x.update(a=2)),
        (lambda: {1}, lambda x: x.add(2)),
        (lambda: Listed([1]), lambda x: x.append(2)),
        (lambda: deque([1]), lambda x: x.append(2)),
        (lambda: defaultdict(list), lambda x: x["a"].append(1)),
        (lambda: Plain(a=[1]), lambda x: x.a.append(2)),
        (lambda: Plain(a=1), lambda x: setattr(x, "b", 1)),
        (lambda: Slotted(1), lambda x: setattr(x, "b", 1)),
        (lambda: Record(1, [2]), lambda x: x.derived.append(3)),
        (lambda: Record(1), lambda x: setattr(x, "derived", 3)),
        (lambda: bytearray(b"1"), lambda x: x.append(2)),
        (lambda: np.zeros(3), lambda x: x.fill(1)),
    ):  # fmt: skip
        value = make()
        before = key(value, slots=False)
        assert key(value, slots=False) == before
        change(value)  # type: ignore[no-untyped-call]
        assert key(value, slots=False) != before


class Metres(int):
    pass


def test_an_object_that_is_more_than_its_attributes_is_like_no_other() -> None:
    three, other = Metres(3), Metres(3)
    assert key(three) == key(three)
    assert key(three) != key(other)
    three.unit = other.unit = "m"  # type: ignore[attr-defined]
    assert key(three) == key(three)
    assert key(three) != key(other)
    assert key(object()) != key(object())


def test_attributes_and_methods_of_classes_count() -> None:
    class Holder:
        scale = 2
        shared = [1]

        def used(self) -> int:
            return 1

        def other(self) -> int:
            return 1

        def __call__(self) -> int:
            return 2

    def of(*named: str) -> tuple[Any, ...]:
        walk = Walk(named)
        walk.take([Holder(), Holder], False)
        return tuple(walk.key)

    seen = [of("used")]
    assert of("used") == seen[0]
    Holder.scale = 3
    seen.append(of("used"))
    Holder.shared.append(2)
    seen.append(of("used"))
    Holder.used = lambda self: 5  # type: ignore[method-assign]
    seen.append(of("used"))
    Holder.__call__ = lambda self: 5  # type: ignore[method-assign]
    seen.append(of("used"))
    assert len(set(seen)) == len(seen)
    Holder.other = lambda self: 5  # type: ignore[method-assign]
    assert of("used") == seen[-1]  # nothing names it


def test_functions_that_are_met_are_told() -> None:
    class Holder:
        def used(self) -> int:
            return 1

        @property
        def seen(self) -> int:
            return 1

        @staticmethod
        def still() -> int:
            return 1

    walk = Walk(("used", "seen", "still"))
    walk.take([first, {"a": functools.partial(second, 1)}, Holder(), np.zeros, len], True)
    wanted = [first, second, Holder.used, vars(Holder)["seen"].fget, Holder.still]
    assert [each for each in walk.functions if each in wanted] == wanted


# -- other numbers in their places


nestings = st.recursive(
    st.sampled_from([1, "a", None, True, 0.5, 0.25, np.float32(2), np.int64(3), 1j]),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.tuples(inner, inner).map(lambda pair: Pair(*pair)),
        st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
        st.tuples(inner, inner).map(lambda pair: Record(*pair)),
        st.lists(inner, max_size=2).map(Listed),
        st.lists(inner, max_size=2).map(deque),
        st.dictionaries(st.sampled_from("abc"), inner, max_size=2).map(OrderedDict),
        inner.map(lambda value: Plain(a=value)),
    ),
    max_leaves=8,
)


@given(nestings)
def test_the_numbers_that_a_walk_finds_are_those_that_can_be_replaced_in_that_order(value: Any) -> None:
    walk = walked(value)
    marks = [type(number)(7 + place) for place, number in enumerate(walk.numbers)]
    given_numbers = iter(marks)
    made = with_numbers(value, given_numbers)
    assert next(given_numbers, None) is None
    again = walked(made)
    assert [id(each) for each in again.numbers] == [id(each) for each in marks]
    assert again.key == walk.key
    same = with_numbers(value, iter(walk.numbers))
    assert walked(same).numbers == walk.numbers
    assert same is value or walk.numbers  # what needs no other is not copied


def test_what_holds_itself_is_walked_once() -> None:
    made: Any = [0.5]
    made.append(made)
    assert with_numbers(made, iter([2.0]))[0] == 2.0
    assert len(walked(made).numbers) == 1
