"""A number that may differ from run to run of a captured function, such as a learning rate.

While the function is recorded, each float and NumPy scalar among its arguments is a `Number`. Arithmetic on it gives
another Number, computed anew for each run; used with an array it is an operand whose value each run brings along.
Where the function needs the value itself (comparing it, `int()`, `bool()`, `float()`, an index, printing), the
argument is *pinned*: its value becomes part of what the recording is good for.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any, Final

import numpy as np

PLAIN: Final = (bool, int, float, complex, np.generic)


class Number:
    """An argument, or what was computed from arguments. `value` is what it is in the run that is recorded."""

    __slots__ = ("_function", "_operands", "pins", "place", "value")

    def __init__(
        self, value: Any, pins: set[int], place: int, function: Callable[..., Any] | None = None, operands: Any = ()
    ) -> None:
        """`place` is the argument's number; what is computed has -1, and a function of operands."""
        self.value = value
        self.pins = pins  # of the recording: arguments whose value was asked for
        self.place = place
        self._function = function
        self._operands = operands

    def evaluate(self, arguments: list[Any]) -> Any:
        """What it is in a run with these arguments."""
        if self._function is None:
            return arguments[self.place]
        return self._function(*[each.evaluate(arguments) if type(each) is Number else each for each in self._operands])

    def expression(self) -> tuple[Any, ...]:
        """How it is computed, to compare."""
        if self._function is None:
            return ("argument", self.place)
        return (
            self._function,
            *[each.expression() if type(each) is Number else (type(each), repr(each)) for each in self._operands],
        )

    def pinned(self) -> Any:
        """The value itself: what follows from it holds for this value alone."""
        if self._function is None:
            self.pins.add(self.place)
        for each in self._operands:
            if type(each) is Number:
                each.pinned()
        return self.value

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        """So that isinstance says of it what it says of the number."""
        return type(self.value)

    @property
    def ndim(self) -> int:
        return 0

    @property
    def shape(self) -> tuple[()]:
        return ()

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        if method == "__call__" and not options and all(isinstance(each, PLAIN) for each in inputs):
            return _computed(ufunc, inputs)
        if any(not isinstance(each, (*PLAIN, np.ndarray)) for each in inputs):
            return NotImplemented
        return getattr(ufunc, method)(*[each.pinned() if type(each) is Number else each for each in inputs], **options)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return np.asarray(self.pinned(), dtype)

    def __getattr__(self, name: str) -> Any:
        """Anything else that numbers have needs the value."""
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.pinned(), name)


def _computed(function: Callable[..., Any], operands: tuple[Any, ...]) -> Any:
    """The number that a function gives; a plain value where the result is not one that runs can bring along."""
    first = next(each for each in operands if type(each) is Number)
    try:
        value = function(*[each.value if type(each) is Number else each for each in operands])
    except Exception:  # whoever catches this goes another way than with other numbers
        for each in operands:
            if type(each) is Number:
                each.pinned()
        raise
    made = Number(value, first.pins, -1, function, operands)
    return made if type(value) is float or isinstance(value, np.generic) else made.pinned()


def _binary(name: str, reflected: bool = False) -> Callable[[Any, Any], Any]:
    function = getattr(operator, name)

    def method(self: Number, other: Any) -> Any:
        if not isinstance(other, PLAIN):
            return NotImplemented
        return _computed(function, (other, self) if reflected else (self, other))

    return method


def _unary(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda self: _computed(function, (self,))


def _asking(function: Callable[..., Any]) -> Callable[..., Any]:
    def method(self: Number, *others: Any) -> Any:
        return function(self.pinned(), *[each.pinned() if type(each) is Number else each for each in others])

    return method


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and_", "or_", "xor", "lshift", "rshift"):
    setattr(Number, f"__{_name.rstrip('_')}__", _binary(_name))
    setattr(Number, f"__r{_name.rstrip('_')}__", _binary(_name, reflected=True))
for _name in ("neg", "pos", "abs", "invert"):
    setattr(Number, f"__{_name}__", _unary(getattr(operator, _name)))
for _name in ("eq", "ne", "lt", "le", "gt", "ge", "index"):
    setattr(Number, f"__{_name}__", _asking(getattr(operator, _name)))
_ASKING: dict[str, Callable[..., Any]] = {
    "bool": bool, "int": int, "float": float, "complex": complex, "hash": hash, "repr": repr, "str": str,
    "format": format, "round": round, "divmod": divmod, "rdivmod": lambda x, other: divmod(other, x),
    "trunc": math.trunc, "floor": math.floor, "ceil": math.ceil,
}  # fmt: skip
for _name, _function in _ASKING.items():
    setattr(Number, f"__{_name}__", _asking(_function))
