"""What the gradient of each operation is: a rule for each operand, by the operation's name.

A rule is given a `Step`, one operation of the differentiated function, and makes of the gradient of its result that
of one operand. It may leave broadcasting and dtypes as they come: `autograd.py` brings them into the operand's form.
Which operands and results the rules of an operation look at stands beside it, so that nothing else is kept for them.

Sources: the derivatives are those of NumPy's own functions; where an extremum is shared, its gradient is, too.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, Final, NamedTuple, Protocol

import numpy as np

from ..protocol.operations import BY_NAME
from . import functions

f: Any = functions  # its ufuncs are made, which a type checker does not see


class Step(Protocol):
    """One operation, as a rule sees it."""

    @property
    def g(self) -> Any:
        """The gradient of the result: an array of its shape."""

    @property
    def y(self) -> Any:
        """The result."""

    def x(self, place: int) -> Any:
        """An operand: an array, or the scalar that stood there."""

    def shape(self, place: int) -> tuple[int, ...]:
        """An operand's shape; () for a scalar."""

    def dtype(self, place: int) -> Any:
        """An operand's dtype."""

    @property
    def static(self) -> dict[str, Any]:
        """The static values by name."""

    @property
    def count(self) -> int:
        """How many operands there are."""


Partial = Callable[[Step], Any]


class Rule(NamedTuple):
    """How an operation's gradient is made."""

    partial: Callable[[Step, int], Any]  # for the operand at that place
    operands: bool  # the partials look at operands
    result: bool  # the partials look at the result


# Constant, but for jumps: nothing goes back.
FLAT: Final = frozenset(("sign", "floor", "ceil", "trunc", "rint", "round", "floor_divide", "spacing", "heaviside"))


def _nothing(s: Step) -> Any:
    return s.g


def _spread(s: Step, g: Any) -> Any:
    """A reduction's gradient, in every place that was reduced."""
    axis, shape = s.static["axis"], s.shape(0)
    if axis is None:
        g = g.reshape((1,) * len(shape))
    elif not s.static["keepdims"]:
        g = f.expand_dims(g, axis)
    return f.broadcast_to(g, shape)


def _kept(s: Step, y: Any) -> Any:
    """A reduction's result as keepdims gives it."""
    axis = s.static["axis"]
    if axis is None:
        return y.reshape((1,) * len(s.shape(0)))
    return y if s.static["keepdims"] else f.expand_dims(y, axis)


def _reduced(s: Step) -> int:
    """How many elements went into one of the result."""
    axis, shape = s.static["axis"], s.shape(0)
    axes = range(len(shape)) if axis is None else (axis,) if isinstance(axis, int) else axis
    return math.prod(shape[each] for each in axes)


def _variance(s: Step) -> Any:
    axis = s.static["axis"]
    count = _reduced(s) - s.static["ddof"]
    away = s.x(0) - s.x(0).mean(axis=axis, keepdims=True)
    return _spread(s, s.g) * away * (2.0 / count)


def _deviation(s: Step) -> Any:
    axis = s.static["axis"]
    count = _reduced(s) - s.static["ddof"]
    away = s.x(0) - s.x(0).mean(axis=axis, keepdims=True)
    return _spread(s, s.g) * away / (_kept(s, s.y) * count)


def _extremum(s: Step) -> Any:
    shares = f.astype(s.x(0) == _kept(s, s.y), s.dtype(0))
    total = shares.sum(axis=s.static["axis"], keepdims=True)
    return _spread(s, s.g) * shares / total


def _either(s: Step, place: int) -> Any:
    """Of two elements the larger or smaller one: it has the gradient, or half of it where they are equal."""
    mine, other = s.x(place), s.x(1 - place)
    chosen = f.astype(s.y == mine, s.g.dtype)
    return s.g * chosen * (1 - 0.5 * f.astype(_equal(mine, other), s.g.dtype))


def _equal(one: Any, other: Any) -> Any:
    return one == other if hasattr(one, "_spec") else other == one


def _backwards(x: Any, axis: int) -> Any:
    return x[(*[slice(None)] * (axis % x.ndim), slice(None, None, -1))]


def _accumulated(s: Step, g: Any) -> Any:
    """The sums of what comes from each place on: the transposed of cumsum."""
    axis = s.static["axis"]
    if axis is None:
        return _backwards(_backwards(g, 0).cumsum(axis=0), 0).reshape(s.shape(0))
    return _backwards(_backwards(g, axis).cumsum(axis=axis), axis)


def _cumulative_product(s: Step) -> Any:
    x = s.x(0)
    return _accumulated(s, s.g * s.y) / x


def _product(s: Step) -> Any:
    """The product of all others: from the left times from the right, so that zeros do no harm."""
    axis, x = s.static["axis"], s.x(0)
    axes = tuple(range(x.ndim)) if axis is None else (axis,) if isinstance(axis, int) else tuple(axis)
    axes = tuple([each % x.ndim for each in axes])
    last = tuple(range(x.ndim - len(axes), x.ndim))
    moved = f.moveaxis(x, axes, last)
    rows = moved.reshape((*moved.shape[: x.ndim - len(axes)], -1))
    one = f.ones_like(rows[..., :1])
    left = f.concatenate([one, rows[..., :-1].cumprod(axis=-1)], axis=-1)
    right = f.concatenate([one, rows[..., :0:-1].cumprod(axis=-1)], axis=-1)[..., ::-1]
    others = f.moveaxis((left * right).reshape(moved.shape), last, axes)
    return _spread(s, s.g) * others


_NUMBERS: Any = (int, float, np.generic)


def _power_base(s: Step) -> Any:
    x, n = s.x(0), s.x(1)
    if isinstance(n, _NUMBERS):
        return s.g * n * x ** (n - 1) if n != 0 else s.g * 0
    none = n == 0
    return s.g * n * x ** f.where(none, 1, n - 1)


def _power_exponent(s: Step) -> Any:
    x = s.x(0)
    if isinstance(x, _NUMBERS):
        return s.g * s.y * math.log(x) if x > 0 else s.g * 0
    positive = x > 0
    return f.where(positive, s.g * s.y * f.log(f.where(positive, x, 1)), 0)


def _matmul_left(s: Step) -> Any:
    left, right, g = s.shape(0), s.x(1), s.g
    if len(right.shape) == 1:
        return f.expand_dims(g, -1) * right
    if len(left) == 1:
        made = (right @ f.expand_dims(g, -1))[..., 0]
        return made.reshape((-1, made.shape[-1])).sum(axis=0) if made.ndim > 1 else made
    return g @ right.mT


def _matmul_right(s: Step) -> Any:
    left, right, g = s.x(0), s.shape(1), s.g
    if len(right) == 1:
        if left.ndim == 1:
            return g * left
        made = (left.mT @ f.expand_dims(g, -1))[..., 0]
        return made.reshape((-1, made.shape[-1])).sum(axis=0) if made.ndim > 1 else made
    if left.ndim == 1:
        return f.expand_dims(left, -1) * f.expand_dims(g, -2)
    if len(right) == 2 and left.ndim > 2:
        return left.reshape((-1, left.shape[-1])).T @ g.reshape((-1, g.shape[-1]))
    return left.mT @ g


def _clip_array(s: Step) -> Any:
    g, x, bounds = s.g, s.x(0), [s.x(place) for place in range(1, s.count)]
    if s.static["min"]:
        g = g * f.astype(x >= bounds[0], g.dtype)
    return g * f.astype(x <= bounds[-1], g.dtype) if s.static["max"] else g


def _clip(s: Step, place: int) -> Any:
    if place == 0:
        return _clip_array(s)
    lower = place == 1 and s.static["min"]
    beyond = s.x(0) < s.x(place) if lower else s.x(0) > s.x(place)
    return s.g * f.astype(beyond, s.g.dtype)


def _part(s: Step, place: int) -> Any:
    """What of a concatenation's gradient belongs to one part."""
    axis, g = s.static["axis"], s.g
    if axis is None:
        sizes = [math.prod(s.shape(each)) for each in range(s.count)]
        return g[sum(sizes[:place]) : sum(sizes[: place + 1])].reshape(s.shape(place))
    extents = [s.shape(each)[axis] for each in range(s.count)]
    key = (*[slice(None)] * (axis % g.ndim), slice(sum(extents[:place]), sum(extents[: place + 1])))
    return g[key]


def _layer(s: Step, place: int) -> Any:
    """The same of a stack."""
    return s.g[(*[slice(None)] * (s.static["axis"] % s.g.ndim), place)]


def _of_row(row: tuple[Partial, ...], s: Step, place: int) -> Any:
    return row[place](s)


_LN2: Final = math.log(2)
_LN10: Final = math.log(10)

# name: (a partial for each operand, or one for all of them that is given the place; what they look at: "x" the
# operands, "y" the result)
_ROWS: Final[dict[str, tuple[tuple[Partial, ...] | Callable[[Step, int], Any], str]]] = {
    "negative": ((lambda s: -s.g,), ""),
    "positive": ((_nothing,), ""),
    "conjugate": ((_nothing,), ""),
    "absolute": ((lambda s: s.g * f.sign(s.x(0)),), "x"),
    "fabs": ((lambda s: s.g * f.sign(s.x(0)),), "x"),
    "exp": ((lambda s: s.g * s.y,), "y"),
    "exp2": ((lambda s: s.g * s.y * _LN2,), "y"),
    "expm1": ((lambda s: s.g * (s.y + 1),), "y"),
    "log": ((lambda s: s.g / s.x(0),), "x"),
    "log2": ((lambda s: s.g / (s.x(0) * _LN2),), "x"),
    "log10": ((lambda s: s.g / (s.x(0) * _LN10),), "x"),
    "log1p": ((lambda s: s.g / (s.x(0) + 1),), "x"),
    "sqrt": ((lambda s: s.g * 0.5 / s.y,), "y"),
    "cbrt": ((lambda s: s.g / (3 * f.square(s.y)),), "y"),
    "square": ((lambda s: s.g * 2 * s.x(0),), "x"),
    "reciprocal": ((lambda s: -s.g * f.square(s.y),), "y"),
    "sin": ((lambda s: s.g * f.cos(s.x(0)),), "x"),
    "cos": ((lambda s: -s.g * f.sin(s.x(0)),), "x"),
    "tan": ((lambda s: s.g * (f.square(s.y) + 1),), "y"),
    "sinh": ((lambda s: s.g * f.cosh(s.x(0)),), "x"),
    "cosh": ((lambda s: s.g * f.sinh(s.x(0)),), "x"),
    "tanh": ((lambda s: s.g * (1 - f.square(s.y)),), "y"),
    "arcsin": ((lambda s: s.g / f.sqrt(1 - f.square(s.x(0))),), "x"),
    "arccos": ((lambda s: -s.g / f.sqrt(1 - f.square(s.x(0))),), "x"),
    "arctan": ((lambda s: s.g / (f.square(s.x(0)) + 1),), "x"),
    "arcsinh": ((lambda s: s.g / f.sqrt(f.square(s.x(0)) + 1),), "x"),
    "arccosh": ((lambda s: s.g / f.sqrt(f.square(s.x(0)) - 1),), "x"),
    "arctanh": ((lambda s: s.g / (1 - f.square(s.x(0))),), "x"),
    "degrees": ((lambda s: s.g * (180 / math.pi),), ""),
    "rad2deg": ((lambda s: s.g * (180 / math.pi),), ""),
    "radians": ((lambda s: s.g * (math.pi / 180),), ""),
    "deg2rad": ((lambda s: s.g * (math.pi / 180),), ""),
    "add": ((_nothing, _nothing), ""),
    "subtract": ((_nothing, lambda s: -s.g), ""),
    "multiply": ((lambda s: s.g * s.x(1), lambda s: s.g * s.x(0)), "x"),
    "divide": ((lambda s: s.g / s.x(1), lambda s: -s.g * s.y / s.x(1)), "xy"),
    "remainder": ((_nothing, lambda s: -s.g * f.floor_divide(s.x(0), s.x(1))), "x"),
    "fmod": ((_nothing, lambda s: -s.g * f.trunc(s.x(0) / s.x(1))), "x"),
    "power": ((_power_base, _power_exponent), "xy"),
    "float_power": ((_power_base, _power_exponent), "xy"),
    "arctan2": (
        (
            lambda s: s.g * s.x(1) / (f.square(s.x(0)) + f.square(s.x(1))),
            lambda s: -s.g * s.x(0) / (f.square(s.x(0)) + f.square(s.x(1))),
        ),
        "x",
    ),
    "hypot": ((lambda s: s.g * s.x(0) / s.y, lambda s: s.g * s.x(1) / s.y), "xy"),
    "logaddexp": ((lambda s: s.g * f.exp(s.x(0) - s.y), lambda s: s.g * f.exp(s.x(1) - s.y)), "xy"),
    "logaddexp2": ((lambda s: s.g * f.exp2(s.x(0) - s.y), lambda s: s.g * f.exp2(s.x(1) - s.y)), "xy"),
    "maximum": (_either, "xy"),
    "minimum": (_either, "xy"),
    "fmax": (_either, "xy"),
    "fmin": (_either, "xy"),
    "copysign": ((lambda s: s.g * f.sign(s.x(0)) * f.copysign(1.0, s.x(1)), lambda s: s.g * 0), "x"),
    "ldexp": ((lambda s: s.g * f.exp2(s.x(1)),), "x"),
    "matmul": ((_matmul_left, _matmul_right), "x"),
    "sum": ((lambda s: _spread(s, s.g),), ""),
    "prod": ((_product,), "x"),
    "mean": ((lambda s: _spread(s, s.g) / _reduced(s),), ""),
    "var": ((_variance,), "x"),
    "std": ((_deviation,), "xy"),
    "max": ((_extremum,), "xy"),
    "min": ((_extremum,), "xy"),
    "cumsum": ((lambda s: _accumulated(s, s.g),), ""),
    "cumprod": ((_cumulative_product,), "xy"),
    "tril": ((lambda s: f.tril(s.g, s.static["k"]),), ""),
    "triu": ((lambda s: f.triu(s.g, s.static["k"]),), ""),
    "where": (
        (lambda s: s.g * 0, lambda s: f.where(s.x(0), s.g, 0), lambda s: f.where(s.x(0), 0, s.g)),
        "x",
    ),
    "clip": (_clip, "x"),
    "astype": ((_nothing,), ""),
    "copy": ((_nothing,), ""),
    "assign": ((_nothing, _nothing), ""),
    "concatenate": (_part, ""),
    "stack": (_layer, ""),
    "full": ((_nothing,), ""),
}

RULES: Final[dict[int, Rule]] = {
    BY_NAME[name].number: Rule(
        functools.partial(_of_row, partials) if isinstance(partials, tuple) else partials, "x" in looks, "y" in looks
    )
    for name, (partials, looks) in _ROWS.items()
}
