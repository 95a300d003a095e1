"""What a function reads besides its arguments is found, and rebinding it is noticed."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from interlock.coordinator.reach import Reach, function_of, of_library
from interlock.coordinator.structure import Walk


def key(function: Any, *arguments: Any) -> tuple[Any, ...]:
    """What `Captured` makes of the arguments and of all that the function reads."""
    reach = Reach(function)
    while True:
        walk = Walk(reach.names)
        walk.take(arguments, True)
        for name, value in reach.values():
            walk.key.append(name)
            walk.take(value, False)
        if walk.functions.keys() == reach.met:
            return tuple(walk.key)
        reach = Reach(function, walk.functions)


def names(function: Any) -> list[str]:
    return [name for name, _ in Reach(function).values()]


def changes(function: Any, change: Callable[[], Any], *arguments: Any) -> bool:
    before = key(function, *arguments)
    assert key(function, *arguments) == before
    change()
    return key(function, *arguments) != before


SCALE: Any = 2.0
TABLE: Any = {"a": [1]}
UNREAD: Any = 1


def helper(x: Any) -> Any:
    return x * SCALE


def user(x: Any) -> Any:
    return helper(x)


def decorated(function: Any) -> Any:
    @functools.wraps(function)
    def wrapper(*args: Any) -> Any:
        return function(*args) * TABLE["a"][0]

    return wrapper


@decorated
def wrapped(x: Any) -> Any:
    return x * SCALE


class Model:
    rate = 1.0

    def __init__(self, size: int) -> None:
        self.size = size

    def forward(self, x: Any) -> Any:
        return helper(x) * self.size

    def unused(self) -> Any:
        return UNREAD

    def __call__(self, x: Any) -> Any:
        return self.forward(x)


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Any], Callable[[], None]]:
    """Rebind a global of this module, when called."""
    return lambda name, value: lambda: monkeypatch.setitem(globals(), name, value)


Here = Callable[[str, Any], Callable[[], None]]


def test_globals_of_a_function_and_of_its_callees(here: Here) -> None:
    assert names(helper) == ["SCALE"]
    for value in (3.0, 2, np.float64(2.0), -2.0):
        assert changes(helper, here("SCALE", value))
        assert not changes(user, here("UNREAD", value))
    assert changes(user, here("SCALE", 7.0))


def test_a_callee_that_is_rebound_is_followed_anew(here: Here) -> None:
    assert changes(user, here("helper", lambda x: x * UNREAD))
    assert changes(user, here("UNREAD", 5))
    assert not changes(user, here("SCALE", 5.5))
    assert changes(user, here("helper", np.negative))


def test_containers_are_looked_into(here: Here) -> None:
    table: dict[str, Any] = {"f": [helper], "n": 1}
    reads = lambda x: table["f"][0](x)  # noqa: E731
    assert changes(reads, here("SCALE", 9.0))
    assert changes(reads, lambda: table.update(n=2))
    assert changes(reads, lambda: table["f"].append(3))
    assert changes(reads, lambda: table["f"].__setitem__(0, abs))
    assert not changes(reads, here("SCALE", 10.0))


def test_closure_cells_are_looked_at_each_time() -> None:
    count = 1

    def inner(x: Any) -> Any:
        return x * count

    def outer(x: Any) -> Any:
        return inner(x)

    def next_one() -> None:
        nonlocal count
        count += 1

    assert changes(outer, next_one)
    assert changes(inner, next_one)


def test_what_does_not_exist_yet_is_noticed_when_it_does() -> None:
    module: dict[str, Any] = {"__name__": "made"}
    exec("def f(x):\n    return later(x) * LATER if x else [(lambda: DEEP)() for _ in x]", module)
    f = module["f"]
    assert changes(f, lambda: module.update(LATER=1))
    assert changes(f, lambda: module.update(later=helper))
    assert changes(f, lambda: module.update(DEEP=1))
    assert changes(f, lambda: module.update(DEEP=2))
    assert changes(f, lambda: module.pop("LATER"))

    def recursive(x: Any) -> Any:
        return recursive(x) + cell

    before = key(recursive)
    cell = 1
    assert key(recursive) != before


def test_defaults_and_what_is_bound() -> None:
    shared = [1]

    def f(x: Any, y: Any = shared, *, z: Any = 2) -> Any:
        return x

    assert changes(f, lambda: shared.append(2))
    assert changes(f, lambda: f.__kwdefaults__.update(z=3))
    assert changes(f, lambda: setattr(f, "__defaults__", (5,)))
    model = Model(3)
    for function in (model.forward, model, functools.partial(model), functools.partial(f, model)):
        assert changes(function, lambda: setattr(model, "size", model.size + 1))
    assert changes(lambda x: model(x), lambda: setattr(model, "size", 0))


def test_methods_that_the_code_names_are_followed(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    model = Model(3)
    given: Any = lambda model, x: model.forward(x)  # noqa: E731
    called: Any = lambda model, x: model(x)  # noqa: E731
    for number, function in enumerate((given, called)):
        assert changes(function, here("SCALE", 20.0 + number), model, 1)
        assert changes(function, lambda: monkeypatch.setattr(Model, "rate", Model.rate + 1), model, 1)
        assert not changes(function, here("UNREAD", 20.0 + number), model, 1)
    assert changes(model.forward, here("SCALE", 30.0))
    assert changes(given, lambda: monkeypatch.setattr(Model, "forward", lambda self, x: x * UNREAD), model, 1)
    assert changes(given, here("UNREAD", 40.0), model, 1)


def test_wrappers_are_followed_as_well_as_what_they_wrap(here: Here) -> None:
    assert changes(wrapped, here("SCALE", 50.0))
    assert changes(wrapped, lambda: TABLE["a"].__setitem__(0, TABLE["a"][0] + 1))
    cached = functools.lru_cache(helper)
    assert changes(lambda x: cached(x), here("SCALE", 51.0))


def test_modules_of_the_user_are_read_by_the_names_in_the_code(monkeypatch: pytest.MonkeyPatch) -> None:
    outer, inner = ModuleType("outer_settings"), ModuleType("outer_settings.inner")
    outer.__file__ = inner.__file__ = __file__
    outer.RATE, outer.OTHER, inner.SIZE, outer.inner = 1.0, 1.0, 3, inner  # type: ignore[attr-defined]
    monkeypatch.setitem(globals(), "settings", outer)
    exec("def reads(x):\n    return x * settings.RATE * settings.inner.SIZE", globals())
    reads = globals().pop("reads")
    assert changes(reads, lambda: setattr(outer, "RATE", 2.0))
    assert changes(reads, lambda: setattr(inner, "SIZE", 4))
    assert not changes(reads, lambda: setattr(outer, "OTHER", 2.0))


def test_libraries_are_not_looked_into() -> None:
    assert of_library(functools.__file__)
    assert of_library(np.__file__)
    assert of_library(None)
    assert not of_library(__file__)
    assert function_of(np.mean) is None
    assert function_of(len) is None
    assert function_of(Model) is None
    assert function_of(functools.partial(Model(1).forward)) is Model.forward
    assert names(lambda x: np.mean(x) + len(x)) == []
    assert "interlock" in sys.modules
