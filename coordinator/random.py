"""Random numbers on a device: NumPy's Generator over PCG64, the same stream bit for bit for the same seed.

The state is a buffer on the worker that each draw writes, so that draws keep their order like any other operation.
"""

from __future__ import annotations

import inspect
import operator
import secrets
from typing import Any

import numpy as np

from ..protocol import trees
from ..protocol.functions import DRAWS
from ..protocol.operations import BY_NAME
from . import named
from .array import Array, _dtype
from .client import lane_of
from .infer import GENERATOR, scalar_ref, seed_words
from .issue import Handle, call
from .lane import Device
from .sites import user_site

Size = int | tuple[int, ...] | None


class _State(Handle):
    """The handle of a generator's state."""

    __slots__ = ()


def default_rng(seed: Any = None, *, device: Device | str | None = None) -> Generator:
    """A generator on a device, with the stream of `numpy.random.default_rng(seed)`.

    Args:
        seed: an int or a sequence of them; None for one that nobody knows.
        device: where the numbers are drawn; None for the first device of the default session.
    """
    words = seed_words(secrets.randbits(128) if seed is None else seed)
    lane = lane_of(device)
    lane.session.check_open()
    return Generator(call(BY_NAME["rng_new"], (), (words, ()), lane=lane, cls=_State))


class Generator:
    """Draws random arrays on one device. The methods are those of `numpy.random.Generator`."""

    def __init__(self, state: Handle) -> None:
        assert state._spec is GENERATOR
        self._state = state

    @property
    def device(self) -> Device:
        return self._state._lane.device

    def _draw(self, name: str, operands: tuple[Any, ...], *static: Any) -> Array:
        made: Array = call(BY_NAME[f"rng_{name}"], (self._state, *operands), static, cls=Array)
        return made

    def random(self, size: Size = None, dtype: Any = float) -> Array:
        """Uniform floats in [0, 1)."""
        return self._draw("random", (), _size(size), _dtype(dtype))

    def standard_normal(self, size: Size = None, dtype: Any = float) -> Array:
        """Normally distributed floats of mean 0 and deviation 1."""
        return self._draw("standard_normal", (), _size(size), _dtype(dtype))

    def standard_exponential(self, size: Size = None, dtype: Any = float) -> Array:
        """Exponentially distributed floats of scale 1."""
        return self._draw("standard_exponential", (), _size(size), _dtype(dtype))

    def normal(self, loc: Any = 0.0, scale: Any = 1.0, size: Size = None) -> Array:
        """Normally distributed float64."""
        if _plain(loc, scale):
            return self._draw("normal", (), scalar_ref(loc), scalar_ref(scale), _size(size))
        return self._named("normal", (loc, scale), {}, size)

    def uniform(self, low: Any = 0.0, high: Any = 1.0, size: Size = None) -> Array:
        """Uniform float64 in [low, high)."""
        if _plain(low, high):
            return self._draw("uniform", (), scalar_ref(low), scalar_ref(high), _size(size))
        return self._named("uniform", (low, high), {}, size)

    def exponential(self, scale: Any = 1.0, size: Size = None) -> Array:
        """Exponentially distributed float64."""
        if _plain(scale):
            return self._draw("exponential", (), scalar_ref(scale), _size(size))
        return self._named("exponential", (scale,), {}, size)

    def poisson(self, lam: Any = 1.0, size: Size = None) -> Array:
        """Poisson-distributed int64."""
        if _plain(lam):
            return self._draw("poisson", (), scalar_ref(lam), _size(size))
        return self._named("poisson", (lam,), {}, size)

    def permuted(self, x: Any, *, axis: int | None = None) -> Array:
        """A copy of the array, shuffled along an axis independently of the others."""
        return self._named("permuted", (x,), {"axis": axis}, None)

    def _named(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any], size: Any) -> Array:
        """Draw by the method of this name of NumPy's generators."""
        noted = named.Operands([self._state], self._state._lane, Array, user_site(2))
        tree = ("(", ("(", *[trees.encode(each, noted.note) for each in args]), trees.encode(kwargs, noted.note))
        return self._draw("named", tuple(noted.operands[1:]), method, tree, _size(size))

    def integers(
        self, low: int, high: int | None = None, size: Size = None, dtype: Any = "int64", endpoint: bool = False
    ) -> Array:
        """Uniform integers in [low, high), or in [0, low) if `high` is None; `endpoint` includes the upper end."""
        high_ref = None if high is None else scalar_ref(high)
        return self._draw("integers", (), scalar_ref(low), high_ref, _size(size), _dtype(dtype), bool(endpoint))

    def permutation(self, x: Any, axis: int = 0) -> Array:
        """The numbers below x in random order, if x is an int; else a shuffled copy of the array x."""
        if isinstance(x, (int, np.integer)):
            return self._draw("permutation", (), x, axis)
        return self._draw("permutation", (x,), None, axis)

    def choice(self, a: Any, size: Size = None, replace: bool = True, axis: int = 0, shuffle: bool = True) -> Array:
        """Elements of `a` (or of the numbers below the int `a`), all equally likely."""
        if isinstance(a, (int, np.integer)):
            return self._draw("choice", (), a, _size(size), replace, axis, shuffle)
        return self._draw("choice", (a,), None, _size(size), replace, axis, shuffle)

    def shuffle(self, x: Array, axis: int = 0) -> None:
        """Put the array in random order, in place."""
        call(BY_NAME["rng_shuffle"], (self._state, x), (axis,), cls=Array)


def _plain(*parameters: Any) -> bool:
    """Whether all are numbers."""
    return not any(isinstance(each, (Handle, np.ndarray, list, tuple)) for each in parameters)


def _method(name: str) -> Any:
    parameters = list(inspect.signature(getattr(np.random.Generator, name)).parameters)[1:]
    at = parameters.index("size")

    def method(self: Generator, *args: Any, size: Size = None, **kwargs: Any) -> Array:
        if len(args) > at:
            kwargs.update(zip(parameters[at:], args[at:], strict=False))
            args, size = args[:at], kwargs.pop("size")
        return self._named(name, args, kwargs, size)

    method.__name__ = name
    method.__qualname__ = f"Generator.{name}"
    method.__doc__ = f"As `numpy.random.Generator.{name}`; parameters may be arrays of the device."
    return method


for _name in DRAWS.split():
    if not hasattr(Generator, _name):
        setattr(Generator, _name, _method(_name))


def _size(size: Any) -> Any:
    if size is None:
        return None
    try:
        return operator.index(size)
    except TypeError:
        return tuple(operator.index(extent) for extent in size)
