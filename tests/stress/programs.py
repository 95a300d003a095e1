"""Random programs over several devices, and what NumPy makes of them.

A program is a list of steps; `builder.py` makes one from a seed. `Model` interprets it on NumPy, in program order, with
errors as values: a buffer either holds an array or the kinds of error that a read of it may raise. `plan` says for
each step what must come of it; `player.py` plays the plan on a session.
Every step is one function that is run on both sides (`KINDS`): Interlock has NumPy's names.

Where NumPy itself promises nothing, a step is left out of the plan: a float too large for the integer that it is cast
to, sums in BLAS that rounding could make depend on threads or alignment, writes through a view to every element of a
failed array. Then a program from which steps were taken out (`smaller` in the player) is still a program.
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, Any]

DTYPES = "?bhiqBHIQefdFD"
EXACT = 1 << 20  # matmul of whole numbers below it is exact in double precision


class Step(NamedTuple):
    """One line of a program. A variable has one number all its life, and is never used again for another."""

    kind: str
    out: tuple[int, ...]  # the variables that it makes
    args: tuple[int, ...]  # the variables that it uses
    given: tuple[Any, ...] = ()  # plain values

    def __repr__(self) -> str:
        made = f"{', '.join(f'v{v}' for v in self.out)} = " if self.out else ""
        return f"{made}{self.kind}({', '.join([*(f'v{v}' for v in self.args), *map(repr, self.given)])})"


class Upload(NamedTuple):
    """NumPy data, by what makes it."""

    shape: tuple[int, ...]
    dtype: str
    layout: str
    seed: int

    def array(self) -> Array:
        return LAYOUTS[self.layout](self.shape, np.dtype(self.dtype), np.random.default_rng(self.seed))


def _values(shape: tuple[int, ...], dtype: np.dtype[Any], rng: np.random.Generator) -> Array:
    if dtype.kind in "fc":
        made = rng.integers(-9, 9, shape) + rng.choice([0.0, 0.0, 0.5, 1e-3, 1e3], shape)
        special = rng.random(shape) < 0.01
        made = np.where(special, rng.choice([np.nan, np.inf, -np.inf, -0.0], shape), made)
        return np.asarray(made + 1j * rng.integers(-3, 3, shape) if dtype.kind == "c" else made).astype(dtype)
    return np.asarray(rng.integers(0 if dtype.kind in "u?b" else -9, 9, shape)).astype(dtype)


def _steps(shape: tuple[int, ...], step: int) -> Any:
    return (..., *[slice(None, None, step) for _ in shape])


def _permuted(shape: tuple[int, ...], dtype: np.dtype[Any], rng: np.random.Generator) -> Array:
    axes = rng.permutation(len(shape)).tolist()
    return _values(tuple(shape[axis] for axis in axes), dtype, rng).transpose(np.argsort(axes).tolist())


def _strided(shape: tuple[int, ...], dtype: np.dtype[Any], rng: np.random.Generator) -> Array:
    made: Array = _values(tuple(2 * extent for extent in shape), dtype, rng)[_steps(shape, 2)]
    return made


def _backwards(shape: tuple[int, ...], dtype: np.dtype[Any], rng: np.random.Generator) -> Array:
    made: Array = _values(shape, dtype, rng)[_steps(shape, -1)]
    return made


LAYOUTS: dict[str, Callable[[tuple[int, ...], np.dtype[Any], np.random.Generator], Array]] = {
    "C": _values,
    "F": lambda shape, dtype, rng: np.asfortranarray(_values(shape, dtype, rng)),
    "permuted": _permuted,
    "strided": _strided,
    "backwards": _backwards,
    "repeated": lambda shape, dtype, rng: np.broadcast_to(_values(shape[1:], dtype, rng), shape),
    "swapped": lambda shape, dtype, rng: _values(shape, dtype, rng).astype(dtype.newbyteorder(">")),
}


# -- what a step does, on either side ---------------------------------------------------------------------------------


class Side(NamedTuple):
    """NumPy, or Interlock with its devices."""

    xp: ModuleType
    devices: tuple[Any, ...] = ()  # none on NumPy's side

    def at(self, device: int) -> dict[str, Any]:
        return {"device": self.devices[device]} if self.devices else {}


class Kind(NamedTuple):
    """What is known of all steps of a kind. `run` takes the side, the variables' values and the given ones."""

    run: Callable[..., Any]
    effect: str = "new"  # new, view (new or a view, as NumPy decides), write, none
    writes: tuple[int, ...] = ()  # places among the arguments
    whole: bool = False  # the first argument is overwritten as a whole, its old value does not matter
    tame: Callable[..., Any] | None = None  # the same without the errors that only values cause; gives the same layout
    reads: bool = True  # the elements of its arguments, not only their geometry
    spares: tuple[int, ...] = ()  # of the written arguments, those that stay good if it fails


Operand = tuple[str, Any]  # ("v", place among the arguments), ("s", scalar) or ("n", Upload)


def _operand(given: Operand, values: tuple[Any, ...]) -> Any:
    how, what = given
    return values[what] if how == "v" else what.array() if how == "n" else what


def _make(side: Side, values: Any, name: str, device: int, *given: Any) -> Any:
    return getattr(side.xp, name)(*given, **side.at(device))


def _upload(side: Side, values: Any, device: int, upload: Upload) -> Any:
    data = upload.array()
    if not side.devices:
        return np.array(data.astype(data.dtype.newbyteorder("=")), order="K")
    made = side.xp.asarray(data, **side.at(device))
    if data.flags.writeable:
        data[...] = 0  # the elements were copied at the call
    return made


def _empty(side: Side, values: Any, device: int, shape: Any, dtype: str, order: str, value: Any) -> Any:
    made = side.xp.empty(shape, dtype, order=order, **side.at(device))
    made[...] = value
    return made


def _ordered(side: Side, values: Any, name: str, device: int, shape: Any, dtype: str, order: str) -> Any:
    return getattr(side.xp, name)(shape, dtype, order=order, **side.at(device))


def _binary(side: Side, values: tuple[Any, ...], name: str, left: Operand, right: Operand) -> Any:
    function = OPERATORS.get(name) or getattr(side.xp, name)
    return function(_operand(left, values), _operand(right, values))


def _power(side: Side, values: tuple[Any, ...]) -> Any:
    return values[0] ** values[1]


def _tame_power(side: Side, values: tuple[Any, ...]) -> Any:
    return values[0] ** abs(values[1])


def _inplace(side: Side, values: tuple[Any, ...], name: str, right: Operand) -> None:
    result = INPLACE[name](values[0], _operand(right, values))
    assert result is values[0]


def _reduce(side: Side, values: tuple[Any, ...], name: str, axis: Any, keepdims: bool) -> Any:
    return getattr(values[0], name)(axis=axis, keepdims=keepdims)


def _out(side: Side, values: tuple[Any, ...], name: str, right: Operand) -> None:
    getattr(side.xp, name)(values[1], _operand(right, values), out=values[0])


def _take(side: Side, values: tuple[Any, ...], before: Any) -> Any:
    return values[0][(*before, values[1])]


def _tame_take(side: Side, values: tuple[Any, ...], before: Any) -> Any:
    return values[0][(*before, values[1] * 0)]


def _put(side: Side, values: tuple[Any, ...], value: Operand) -> None:
    values[0][values[1]] = _operand(value, values)


def _tame_put(side: Side, values: tuple[Any, ...], value: Operand) -> None:
    values[0][values[1] * 0] = _operand(value, values)


def key_of(parts: tuple[Any, ...]) -> Any:
    """A key in brackets, from plain values: slices are ("s", start, stop, step), lists of indices ("l", [...])."""
    return tuple(
        slice(*part[1:])
        if isinstance(part, tuple) and part[0] == "s"
        else list(part[1])
        if isinstance(part, tuple)
        else part
        for part in parts
    )


def _assign(side: Side, values: tuple[Any, ...], key: tuple[Any, ...], value: Operand) -> None:
    values[0][key_of(key)] = _operand(value, values)


def _update(side: Side, values: tuple[Any, ...], name: str, key: tuple[Any, ...], right: Operand) -> None:
    """x[key] += y, as Python spells it out."""
    target = values[0]
    target[key_of(key)] = INPLACE[name](target[key_of(key)], _operand(right, values))


def _to(side: Side, values: tuple[Any, ...], device: int) -> Any:
    return values[0].to(side.devices[device]) if side.devices else values[0].copy(order="K")


def _new_rng(side: Side, values: Any, device: int, seed: int) -> Any:
    return side.xp.random.default_rng(seed, **side.at(device))


def _draw(side: Side, values: tuple[Any, ...], name: str, *given: Any) -> Any:
    return getattr(values[0], name)(*given)


OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "add": operator.add, "subtract": operator.sub, "multiply": operator.mul, "divide": operator.truediv,
    "floor_divide": operator.floordiv, "remainder": operator.mod, "bitwise_and": operator.and_,
    "bitwise_or": operator.or_, "bitwise_xor": operator.xor, "less": operator.lt, "equal": operator.eq,
    "greater_equal": operator.ge, "not_equal": operator.ne, "matmul": operator.matmul,
}  # fmt: skip
INPLACE: dict[str, Callable[[Any, Any], Any]] = {
    "add": operator.iadd, "subtract": operator.isub, "multiply": operator.imul, "divide": operator.itruediv,
    "floor_divide": operator.ifloordiv, "remainder": operator.imod, "bitwise_and": operator.iand,
    "bitwise_xor": operator.ixor,
}  # fmt: skip

KINDS: dict[str, Kind] = {
    "make": Kind(_make),
    "ordered": Kind(_ordered),
    "empty": Kind(_empty),
    "upload": Kind(_upload),
    "like": Kind(lambda side, values, name, *given: getattr(side.xp, name)(values[0], *given), reads=False),
    "unary": Kind(lambda side, values, name: getattr(side.xp, name)(values[0])),
    "binary": Kind(_binary),
    "matmul": Kind(lambda side, values: values[0] @ values[1]),
    "power": Kind(_power, tame=_tame_power),
    "divmod": Kind(lambda side, values: divmod(values[0], values[1])),
    "reduce": Kind(_reduce),
    "cumsum": Kind(lambda side, values, axis: values[0].cumsum(axis)),
    "sort": Kind(lambda side, values, axis: side.xp.sort(values[0], axis)),
    "argsort": Kind(lambda side, values, axis: side.xp.argsort(values[0], axis, stable=True)),
    "where": Kind(lambda side, values, x, y: side.xp.where(values[0], _operand(x, values), _operand(y, values))),
    "clip": Kind(
        lambda side, values, low, high: side.xp.clip(values[0], _operand(low, values), _operand(high, values))
    ),
    "concatenate": Kind(lambda side, values, axis: side.xp.concatenate(values, axis)),
    "stack": Kind(lambda side, values, axis: side.xp.stack(values, axis)),
    "astype": Kind(lambda side, values, dtype: values[0].astype(dtype)),
    "copy": Kind(lambda side, values, order: values[0].copy(order)),
    "to": Kind(_to),
    "take": Kind(_take, tame=_tame_take),
    "take_list": Kind(lambda side, values, key: values[0][key_of(key)]),
    "basic": Kind(lambda side, values, key: values[0][key_of(key)], "view"),
    "transpose": Kind(lambda side, values, axes: values[0].transpose(*axes), "view"),
    "swapaxes": Kind(lambda side, values, a, b: values[0].swapaxes(a, b), "view"),
    "reshape": Kind(lambda side, values, shape: values[0].reshape(shape), "view"),
    "ravel": Kind(lambda side, values, order: values[0].ravel(order), "view"),
    "squeeze": Kind(lambda side, values: values[0].squeeze(), "view"),
    "expand": Kind(lambda side, values, axis: side.xp.expand_dims(values[0], axis), "view"),
    "broadcast": Kind(lambda side, values, shape: side.xp.broadcast_to(values[0], shape), "view"),
    "inplace": Kind(_inplace, "write", (0,)),
    "out": Kind(_out, "write", (0,), whole=True),
    "assign": Kind(_assign, "write", (0,)),
    "overwrite": Kind(_assign, "write", (0,), whole=True),
    "update": Kind(_update, "write", (0,)),
    "put": Kind(_put, "write", (0,), tame=_tame_put),
    "put_list": Kind(_assign, "write", (0,)),
    "rng": Kind(_new_rng),
    "draw": Kind(_draw, writes=(0,)),
    "shuffle": Kind(
        lambda side, values: values[0].shuffle(values[1]), "write", (0, 1), tame=lambda side, values: None, spares=(0,)
    ),
    "permuted": Kind(
        lambda side, values: values[0].permutation(values[1]),
        writes=(0,),
        tame=lambda side, values: np.random.default_rng(0).permutation(values[1]),
        spares=(0,),
    ),
    "read": Kind(lambda side, values: None, "none"),
    "free": Kind(lambda side, values: None, "none"),
    "synchronize": Kind(lambda side, values: None, "none"),
}


def run(step: Step, side: Side, values: tuple[Any, ...]) -> Any:
    """The step, on NumPy or on Interlock."""
    return KINDS[step.kind].run(side, values, *step.given)


# -- the model --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Expected:
    """What a read must find: an array with its layout, or one of these kinds of error."""

    array: Array | None
    errors: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Line:
    """A step of a plan, and what must come of it."""

    step: Step
    refused: str | None = None  # the error that the call itself raises
    made: tuple[
        tuple[tuple[int, ...], str, tuple[int, ...]] | None, ...
    ] = ()  # shape, dtype, strides of each new array
    read: Expected | None = None
    failed: bool = False  # some buffer may have failed by now


_NUMPY = Side(np)


@dataclass
class Model:
    """The state of a program, on NumPy."""

    values: dict[int, Any] = field(default_factory=dict)
    buffer: dict[int, int] = field(default_factory=dict)  # of each variable
    base: dict[int, Any] = field(default_factory=dict)  # by buffer: its array
    device: dict[int, int] = field(default_factory=dict)
    failed: dict[int, frozenset[str]] = field(default_factory=dict)
    ever_failed: bool = False

    def step(self, step: Step) -> Line | None:
        """Do it. None if it cannot be done (something it uses was taken out), or NumPy promises nothing."""
        if not all(arg in self.values for arg in step.args):
            return None
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if not self._promised(step):
                return None
            return self._do(step)

    def expected(self, variable: int) -> Expected:
        errors = self.failed.get(self.buffer[variable])
        return Expected(None, errors) if errors else Expected(self.values[variable].copy(order="K"))

    def whole(self, variable: int) -> bool:
        """The variable is its buffer's own name, not a view of it (nor a copy that was reshaped)."""
        return self.base[self.buffer[variable]] is self.values[variable]

    def _do(self, step: Step) -> Line:
        if step.kind == "free":
            (gone,) = step.args
            for table in (self.values, self.buffer, self.device):
                del table[gone]
            return Line(step, failed=self.ever_failed)
        if step.kind == "read":
            return Line(step, read=self.expected(step.args[0]), failed=self.ever_failed)
        if step.kind == "synchronize":
            return Line(step, failed=self.ever_failed)
        return self._operate(step)

    def _operate(self, step: Step) -> Line:
        kind = KINDS[step.kind]
        values = tuple(self.values[arg] for arg in step.args)
        reads = step.args[1:] if kind.whole and self.whole(step.args[0]) else step.args
        if kind.effect == "view" or not kind.reads:
            reads = ()
        errors: frozenset[str] = frozenset().union(*[self.failed.get(self.buffer[arg], frozenset()) for arg in reads])
        try:
            if errors and kind.tame is not None:
                results = kind.tame(_NUMPY, values, *step.given)
            else:
                results = kind.run(_NUMPY, values, *step.given)
        except Exception as error:
            if kind.tame is None:
                return Line(step, refused=type(error).__name__, failed=self.ever_failed)
            errors = frozenset({type(error).__name__})
            results = kind.tame(_NUMPY, values, *step.given)
        if errors:
            self.ever_failed = True
        for place in kind.writes:
            if not (errors and place in kind.spares):
                self._settle(self.buffer[step.args[place]], errors)
        return Line(step, made=self._name(step, kind, results, errors), failed=self.ever_failed)

    def _settle(self, buffer: int, errors: frozenset[str]) -> None:
        if errors:
            self.failed[buffer] = errors
        else:
            self.failed.pop(buffer, None)

    def _name(self, step: Step, kind: Kind, results: Any, errors: frozenset[str]) -> Any:
        made: list[Any] = []
        if not step.out:
            return ()
        for variable, result in zip(step.out, results if type(results) is tuple else (results,), strict=True):
            if isinstance(result, np.random.Generator):
                made.append(None)
            else:
                result = np.asarray(result)
                made.append((result.shape, result.dtype.str, result.strides))
            self._add(variable, step, kind, result, errors)
        return tuple(made)

    def _add(self, variable: int, step: Step, kind: Kind, result: Any, errors: frozenset[str]) -> None:
        if kind.effect == "view" and _is_view(step, result, self.values[step.args[0]]):
            result = result.view()  # NumPy's squeeze may give the array itself
            self.buffer[variable] = self.buffer[step.args[0]]
        else:
            if kind.effect == "view":  # a copy after all, and so what was failed is read
                errors = self.failed.get(self.buffer[step.args[0]], frozenset())
            self.buffer[variable] = variable
            self.base[variable] = result[...] if kind.effect == "view" else result
            self._settle(variable, errors)
        self.values[variable] = result
        given = step.given
        if step.args and step.kind != "to":
            self.device[variable] = self.device[step.args[0]]
        else:
            self.device[variable] = given[1] if step.kind in ("make", "ordered") else given[0]

    # what NumPy promises

    def _promised(self, step: Step) -> bool:
        values = [self.values[arg] for arg in step.args]
        if step.kind == "astype" and values[0].dtype.kind == "c" and np.dtype(step.given[0]).kind != "c":
            return False
        if step.kind == "matmul":
            return all(exact(value) or self._has_failed(arg) for value, arg in zip(values, step.args, strict=True))
        if step.kind == "astype":
            return _fits(values[0], np.dtype(step.given[0])) or self._has_failed(step.args[0])
        if step.kind in ("assign", "overwrite", "put_list", "put", "update", "inplace", "out"):
            return self._write_promised(step, values)
        return True

    def _has_failed(self, variable: int) -> bool:
        return self.buffer[variable] in self.failed

    def _write_promised(self, step: Step, values: list[Any]) -> bool:
        target = values[0]
        if not target.flags.writeable:
            return False
        if step.kind in ("assign", "overwrite", "put", "put_list"):
            value = np.asarray(_operand(step.given[-1], tuple(values)))
            if not _fits(value, target.dtype):
                return False
        if step.kind == "overwrite":
            return self.whole(step.args[0])
        if step.kind == "assign" and self._has_failed(step.args[0]):
            return bool(target[key_of(step.given[0])].size < self.base[self.buffer[step.args[0]]].size)
        if step.kind in ("inplace", "out", "update"):
            return target.dtype.kind != "b" or step.kind != "out"
        return True


def _is_view(step: Step, result: Any, source: Any) -> bool:
    if step.kind == "reshape":
        try:
            np.reshape(source, step.given[0], copy=False)
        except ValueError:
            return False
        return True
    if step.kind == "ravel":
        if source.size:
            return bool(np.may_share_memory(result, source))
        return bool(source.flags.c_contiguous)
    return True


def exact(array: Array) -> bool:
    if array.dtype.kind in "?biu":
        return array.dtype.kind != "?" or True
    if array.dtype.char == "e" or not np.isfinite(array).all():
        return False
    most = EXACT if array.dtype.char in "dD" else 1 << 8
    parts = (array.real, array.imag) if array.dtype.kind == "c" else (array,)
    return all(bool((part == np.rint(part)).all() and (np.abs(part) < most).all()) for part in parts)


def _fits(value: Array, dtype: np.dtype[Any]) -> bool:
    """Whether a cast of these elements means the same everywhere."""
    if value.dtype.kind == "c" and dtype.kind != "c":
        return False
    if value.dtype.kind not in "fc" or dtype.kind not in "iu":
        return True
    return bool(
        np.isfinite(value).all() and (value >= (0 if dtype.kind == "u" else -100)).all() and (value < 100).all()
    )


def plan(steps: list[Step]) -> tuple[list[Line], dict[int, Expected]]:
    """What must come of each step that can be done, and of each variable that is there at the end."""
    model = Model()
    lines = [line for step in steps if (line := model.step(step)) is not None]
    left = {v: model.expected(v) for v, value in model.values.items() if isinstance(value, np.ndarray)}
    return lines, left
