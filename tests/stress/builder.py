"""Random programs from a seed: what to do next, with an eye on what has been made so far.

Arrays are small or large (from 32 KiB on they lie in shared memory and are lent in place), in any layout. Hazards are
made on purpose: writes behind a transfer to what was sent and to what came, frees, sends onwards, overlapping
assignments, slow operations whose results are needed elsewhere, failures with dependents on other devices.
What the steps mean is in `programs.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .programs import DTYPES, INPLACE, KINDS, LAYOUTS, OPERATORS, Array, Model, Operand, Step, Upload, exact, key_of

SMALL_SHAPES: tuple[tuple[int, ...], ...] = (
    (), (1,), (3,), (7,), (2, 3), (3, 1), (3, 4), (4, 3), (8, 8), (2, 3, 4), (5, 1, 2), (1, 1), (0,), (0, 3), (24,),
    (80,), (64, 1),
)  # fmt: skip
LARGE_SHAPES: tuple[tuple[int, ...], ...] = (
    (64, 80), (80, 64), (16, 20, 24), (96, 96), (5000,), (20000,), (8192,), (2, 5000),
)  # fmt: skip
MOST_ELEMENTS = 60_000  # of a result
BINARY = (
    *[name for name in OPERATORS if name != "matmul"],
    *("maximum", "minimum", "fmax", "hypot", "logical_and", "copysign"),
)
UNARY = (
    "negative", "absolute", "square", "sqrt", "exp", "sin", "floor", "sign", "isnan", "logical_not", "invert",
    "conjugate", "tanh", "positive", "rint", "signbit",
)  # fmt: skip
REDUCTIONS = ("sum", "prod", "mean", "var", "max", "min", "argmax", "argmin", "any", "all")


class Builder:
    """Writes a program, step by step, with an eye on what the steps before have made."""

    def __init__(self, seed: int, devices: int = 3, failures: bool = True, live: int = 28) -> None:
        self.random = np.random.default_rng(seed)
        self.model = Model()
        self.steps: list[Step] = []
        self._devices = devices
        self._failures = failures
        self._live = live  # variables; beyond it some are dropped
        self._next = 0
        self._makers: list[tuple[Callable[[], object], float]] = [
            (self.create, 6), (self.send, 14), (self.binary, 14), (self.unary, 3), (self.inplace, 12),
            (self.assign, 10), (self.overwrite, 4), (self.update, 5), (self.view, 12), (self.reduce, 4),
            (self.matmul, 3), (self.copy, 2), (self.take, 4), (self.put, 4), (self.draw, 4),
            (self.join, 2), (self.choose, 2), (self.drop, 8), (self.read, 2), (self.slow, 2),
            (self.synchronize, 0.3), (self.fail, 1.5 if failures else 0),
        ]  # fmt: skip
        weights = np.array([weight for _, weight in self._makers])
        self._weights = weights / weights.sum()

    def build(self, length: int) -> list[Step]:
        for device in range(self._devices):
            self.create(device)
        while len(self.steps) < length:
            maker, _ = self._makers[self.random.choice(len(self._makers), p=self._weights)]
            maker()
            while len(self.model.values) > self._live:
                self.drop()
        return self.steps

    # choosing

    def _one(self, among: Any) -> Any:
        return among[int(self.random.integers(len(among)))]

    def _chance(self, share: float) -> bool:
        return bool(self.random.random() < share)

    def _emit(self, kind: str, args: tuple[int, ...], *given: Any) -> int | None:
        """Add the step if it can be done; the first variable that it made."""
        outs = 0 if KINDS[kind].effect in ("write", "none") else 2 if kind == "divmod" else 1
        out = tuple(range(self._next, self._next + outs))
        step = Step(kind, out, args, given)
        line = self.model.step(step)
        if line is None:
            return None
        self._next += outs
        self.steps.append(step)
        return out[0] if outs and line.refused is None else None

    def _arrays(self, device: int | None = None) -> list[int]:
        return [
            v
            for v, value in self.model.values.items()
            if isinstance(value, np.ndarray) and (device is None or self.model.device[v] == device)
        ]

    def _array(self, device: int | None = None, like: Callable[[Array], bool] = lambda array: True) -> int:
        found = [v for v in self._arrays(device) if like(self.model.values[v])]
        # The newest are those that are still under way: what uses them soon has to wait.
        if found:
            return int(self._one(found[-6:] if self._chance(0.6) else found))
        return self.create(device)

    def _shape(self) -> tuple[int, ...]:
        return tuple(self._one(LARGE_SHAPES if self._chance(0.4) else SMALL_SHAPES))

    def _dtype(self) -> str:
        return str(np.dtype(self._one("dddfqqiil" if self._chance(0.7) else DTYPES)).str)

    def _upload(self, shape: tuple[int, ...] | None = None, dtype: str | None = None) -> Upload:
        shape = self._shape() if shape is None else shape
        layouts = [name for name in LAYOUTS if name != "repeated" or shape]
        layout = "C" if self._chance(0.4) else self._one(layouts)
        return Upload(shape, dtype or self._dtype(), layout, int(self.random.integers(1 << 30)))

    def _scalar(self) -> Any:
        return self._one(
            (0, 1, 2, 3, 5, 1.5, -2.0, 0.25, True, np.float32(2.5), np.int8(3), np.int64(7), np.float64(-1.0))
        )

    def _partner(self, variable: int, device: int, into: bool = False) -> tuple[tuple[int, ...], Operand]:
        """Something that broadcasts with the variable (`into`: to its shape): (further arguments, operand)."""
        shape = self.model.values[variable].shape
        if self._chance(0.2):
            return (), ("s", self._scalar())
        if self._chance(0.1):
            return (), ("n", self._upload(shape, np.dtype(self._one("dfqi?")).str))

        def fits(array: Array) -> bool:
            try:
                found = np.broadcast_shapes(array.shape, shape)
            except ValueError:
                return False
            return found == shape if into else int(np.prod(found)) <= MOST_ELEMENTS

        found = [v for v in self._arrays() if fits(self.model.values[v])]
        other = self._one(found) if found else variable
        if self._chance(0.4):
            other = next((v for v in reversed(found) if self.model.device[v] != device), other)
        if self.model.device[other] != device:
            moved = self._emit("to", (other,), device)
            assert moved is not None
            other = moved
        return (other,), ("v", 1)

    def _key(self, shape: tuple[int, ...]) -> tuple[Any, ...]:
        """A basic key. Ends with an ellipsis, for NumPy would make a scalar of an element."""
        key: list[Any] = []
        for extent in shape:
            how = self.random.integers(6)
            if how == 0 and extent:
                key.append(int(self.random.integers(-extent, extent)))
            elif how == 1:
                key.append(("s", None, None, int(self._one((-1, 2, -2, 3)))))
            elif how == 2:
                key.append(None)
                key.append(("s", 1, None, None))
            elif how == 3 and extent > 2:
                key.append(("s", int(self.random.integers(extent)), None, int(self._one((1, -1, 2)))))
            elif how == 4:
                break
            else:
                key.append(("s", None, int(self._one((-1, 1, 2, extent))), None))
        return (*key, Ellipsis)

    # makers

    def create(self, device: int | None = None) -> int:
        if device is None:
            device = int(self.random.integers(self._devices))
        shape, dtype = self._shape(), self._dtype()
        how = self.random.integers(9)
        made: int | None
        if how < 4:
            made = self._emit("upload", (), device, self._upload())
        elif how == 4:
            made = self._emit("ordered", (), self._one(("zeros", "ones")), device, shape, dtype, self._one("CF"))
        elif how == 5:
            made = self._emit("empty", (), device, shape, dtype, self._one("CF"), self._one((0, 3, 7)))
        elif how == 6:
            made = self._emit("make", (), "full", device, shape, self._scalar())
        elif how == 7:
            name, given = self._one(
                (("arange", (9000,)), ("arange", (1, 8, 2)), ("linspace", (0, 5, 40)), ("eye", (8,)))
            )
            made = self._emit("make", (), name, device, *given)
        elif arrays := self._arrays(device):
            name = self._one(("zeros_like", "ones_like", "full_like"))
            made = self._emit("like", (self._one(arrays),), name, *((2,) if name == "full_like" else ()))
        else:
            made = self._emit("upload", (), device, self._upload())
        assert made is not None
        return made

    def send(self) -> None:
        """A transfer, and often what is a hazard with it."""
        source = self._array(like=lambda array: array.size > 1)
        here = self.model.device[source]
        there = int(self._one([d for d in range(self._devices) if d != here]))
        arrived = self._emit("to", (source,), there)
        assert arrived is not None
        what = self.random.integers(8)
        if what == 0:
            self._write(source)
        elif what == 1:
            self._write(arrived)
        elif what == 2:
            self._emit("free", (source,))
        elif what == 3:
            further = int(self._one([d for d in range(self._devices) if d != there]))
            self._emit("to", (arrived,), further)
        elif what == 4:
            self._emit("inplace", (arrived,), "add", ("v", 0))
        elif what == 5:
            self._write(source)
            self._write(arrived)

    def _write(self, variable: int) -> None:
        how = self.random.integers(3)
        if how == 0:
            self._emit("inplace", (variable,), "add", ("s", int(self.random.integers(1, 9))))
        elif how == 1:
            self._emit("overwrite", (variable,), (Ellipsis,), ("s", int(self.random.integers(1, 9))))
        else:
            self._emit("assign", (variable,), self._key(self.model.values[variable].shape), ("s", 4))

    def binary(self) -> None:
        left = self._array()
        more, right = self._partner(left, self.model.device[left])
        operands = (("v", 0), right)
        self._emit("binary", (left, *more), self._one(BINARY), *(operands if self._chance(0.7) else operands[::-1]))

    def unary(self) -> None:
        self._emit("unary", (self._array(),), self._one(UNARY))

    def inplace(self) -> None:
        target = self._array()
        more, right = self._partner(target, self.model.device[target], into=True)
        if self._chance(0.8):
            self._emit("inplace", (target, *more), self._one(tuple(INPLACE)), right)
        elif more and self.model.values[target].shape == self.model.values[more[0]].shape:
            self._emit("out", (target, more[0]), self._one(("add", "multiply", "maximum")), ("s", 2))

    def _source(self, target: int, shape: tuple[int, ...]) -> tuple[tuple[int, ...], Operand]:
        """A value to assign to a part of this shape: often another part of the same memory."""
        if self._chance(0.3):
            return (), ("s", self._one((0, 1, 5, 2.0)))
        device, buffer = self.model.device[target], self.model.buffer[target]
        found = [
            v
            for v in self._arrays(device)
            if _reaches(self.model.values[v].shape, shape) and (self.model.buffer[v] == buffer or self._chance(0.5))
        ]
        return ((self._one(found),), ("v", 1)) if found else ((), ("n", self._upload(shape, np.dtype("i").str)))

    def assign(self) -> None:
        target = self._array(like=lambda array: array.ndim > 0)
        values = self.model.values
        if self._chance(0.35) and values[target].ndim and values[target].shape[0] > 1:
            part = self._emit("basic", (target,), (("s", None, -1, None), Ellipsis))  # shifted within itself
            assert part is not None
            key = self._one(((("s", 1, None, None), Ellipsis), (("s", None, 0, -1), Ellipsis)))
            self._emit("assign", (target, part), key, ("v", 1))
            self._emit("free", (part,))
            return
        key = self._key(values[target].shape)
        more, value = self._source(target, values[target][key_of(key)].shape)
        self._emit("assign", (target, *more), key, value)

    def overwrite(self) -> None:
        wholes = [v for v in self._arrays() if self.model.whole(v)]
        failed = [v for v in wholes if self.model.buffer[v] in self.model.failed]
        if wholes:
            target = self._one(failed if failed and self._chance(0.7) else wholes)
            more, value = self._source(target, self.model.values[target].shape)
            self._emit("overwrite", (target, *more), (Ellipsis,), value)

    def update(self) -> None:
        target = self._array(like=lambda array: array.ndim > 0)
        key: tuple[Any, ...] = self._key(self.model.values[target].shape)
        extent = self.model.values[target].shape[:1]
        if extent and extent[0] and self._chance(0.3):
            key = (("l", self.random.integers(0, extent[0], 3).tolist()),)
        part = self.model.values[target][key_of(key)]
        more, value = self._source(target, part.shape)
        self._emit("update", (target, *more), self._one(("add", "subtract", "multiply", "bitwise_xor")), key, value)

    def view(self) -> None:
        of = self._array()
        array = self.model.values[of]
        how = self.random.integers(9)
        if how < 3:
            self._emit("basic", (of,), self._key(array.shape))
        elif how == 3:
            self._emit(
                "transpose", (of,), tuple(self.random.permutation(array.ndim).tolist()) if array.ndim > 1 else ()
            )
        elif how == 4 and array.ndim:
            self._emit("swapaxes", (of,), 0, -1)
        elif how == 5:
            shapes = [shape for shape in (-1, (array.size, 1), (2, -1), (-1, 4)) if _divides(array.size, shape)]
            self._emit("reshape", (of,), self._one(shapes))
        elif how == 6:
            self._emit("ravel", (of,), self._one("CFA"))
        elif how == 7:
            self._emit("squeeze", (of,)) if self._chance(0.5) else self._emit("expand", (of,), 0)
        elif array.size * 3 <= MOST_ELEMENTS:
            self._emit("broadcast", (of,), (3, *array.shape))

    def reduce(self) -> None:
        of = self._array(like=lambda array: array.size > 0)
        ndim = self.model.values[of].ndim
        axis = None if not ndim or self._chance(0.3) else int(self.random.integers(-ndim, ndim))
        how = self.random.integers(8)
        if how < 5:
            self._emit("reduce", (of,), self._one(REDUCTIONS), axis, self._chance(0.3))
        elif how == 5:
            self._emit("cumsum", (of,), axis)
        elif ndim:
            self._emit(self._one(("sort", "argsort")), (of,), -1 if axis is None else axis)

    def matmul(self) -> None:
        left = self._array(like=lambda array: 0 < array.ndim < 3 and exact(array) and 0 < array.shape[-1] < 100)
        array = self.model.values[left]
        if not 0 < array.ndim < 3 or not exact(array):
            return
        device, inner = self.model.device[left], array.shape[-1]
        fitting = [v for v in self._arrays(device) if _multiplies(self.model.values[v], inner)]
        if fitting and self._chance(0.7):
            right = self._one(fitting)
        else:
            shape = (inner, self._one((1, 3, 64, 80))) if self._chance(0.8) else (inner,)
            made = self._emit("upload", (), device, self._upload(shape, np.dtype(self._one("dfqi")).str))
            assert made is not None
            right = made
        self._emit("matmul", (left, right))

    def slow(self) -> None:
        """Something that takes its time, and is then needed elsewhere: what comes after it overtakes it, or may not."""
        device = int(self.random.integers(self._devices))
        wide = self._emit("upload", (), device, self._upload((96, 96), np.dtype("q").str))
        assert wide is not None
        made = self._emit("matmul", (wide, wide))
        assert made is not None
        self._emit("free", (wide,))
        there = int(self._one([d for d in range(self._devices) if d != device]))
        arrived = self._emit("to", (made,), there)
        local = self._array(there, lambda array: array.shape in ((96, 96), (), (1,)))
        if arrived is not None and local != arrived and self.model.values[local].shape in ((96, 96), (), (1,)):
            self._emit("binary", (local, arrived), "add", ("v", 0), ("v", 1))
            self._write(local)
            self._write(arrived)
        self._write(made)

    def copy(self) -> None:
        if self._chance(0.5):
            self._emit("copy", (self._array(),), self._one("CFKA"))
        else:
            self._emit("astype", (self._array(),), self._dtype())

    def _indices(self, extent: int, device: int) -> int:
        """An array of indices on the device; the bad ones are found out only there."""
        shape = self._one(((3,), (2, 2), (5000,), (1,)))
        maker = self._emit("rng", (), device, int(self.random.integers(1 << 30)))
        assert maker is not None
        made = self._emit("draw", (maker,), "integers", -extent, extent, shape)
        self._emit("free", (maker,))
        assert made is not None
        if self._failures and self._chance(0.2):
            self._emit("assign", (made,), (0, Ellipsis), ("s", extent + 3))
        return made

    def take(self) -> None:
        of = self._array(like=lambda array: array.ndim > 0 and array.shape[0] > 0)
        array = self.model.values[of]
        if not array.ndim or not array.shape[0]:
            return
        if self._chance(0.5):
            found = self.random.integers(-array.shape[0], array.shape[0], int(self._one((1, 3, 9)))).tolist()
            self._emit("take_list", (of,), (("l", found),))
        elif array.size // array.shape[0] * 5000 <= MOST_ELEMENTS:
            self._emit("take", (of, self._indices(array.shape[0], self.model.device[of])), ())

    def put(self) -> None:
        target = self._array(like=lambda array: array.ndim > 0 and array.shape[0] > 0)
        array = self.model.values[target]
        if not array.ndim or not array.shape[0]:
            return
        if self._chance(0.5):
            found = self.random.integers(-array.shape[0], array.shape[0], 3).tolist()
            more, value = self._source(target, (3, *array.shape[1:]))
            self._emit("put_list", (target, *more), (("l", found),), value)
        elif array.size // array.shape[0] * 5000 <= MOST_ELEMENTS:
            indices = self._indices(array.shape[0], self.model.device[target])
            self._emit("put", (target, indices), ("s", self._one((1, 6))))

    def draw(self) -> None:
        generators = [v for v, value in self.model.values.items() if isinstance(value, np.random.Generator)]
        if not generators or self._chance(0.3):
            device = int(self.random.integers(self._devices))
            made = self._emit("rng", (), device, int(self.random.integers(1 << 30)))
            assert made is not None
            generators.append(made)
        rng = self._one(generators)
        device = self.model.device[rng]
        how = self.random.integers(6)
        shape = self._shape()
        if how < 3:
            draws = (
                ("random", shape),
                ("standard_normal", shape),
                ("integers", 0, 9, shape),
                ("uniform", -1.0, 2.0, shape),
            )
            name, *given = self._one(draws)
            self._emit("draw", (rng,), name, *given)
        elif how == 3:
            self._emit("draw", (rng,), "permutation", int(self._one((5, 6000))))
        else:
            on = self._array(device, lambda array: array.ndim > 0 and array.flags.writeable)
            if self.model.values[on].ndim and self.model.values[on].flags.writeable:
                self._emit("shuffle", (rng, on)) if how == 4 else self._emit("permuted", (rng, on))

    def join(self) -> None:
        first = self._array(like=lambda array: array.ndim > 0)
        array, device = self.model.values[first], self.model.device[first]
        same = [v for v in self._arrays(device) if self.model.values[v].shape == array.shape]
        parts = tuple(self._one(same) for _ in range(3)) if same else (first, first)
        if array.ndim and array.size * 3 <= MOST_ELEMENTS:
            kind = self._one(("concatenate", "stack"))
            self._emit(kind, parts, int(self.random.integers(array.ndim)))

    def choose(self) -> None:
        condition = self._array()
        device = self.model.device[condition]
        shape = self.model.values[condition].shape
        others = [v for v in self._arrays(device) if _reaches(self.model.values[v].shape, shape)]
        other = self._one(others or [condition])
        if self._chance(0.5):
            self._emit("where", (condition, other), ("v", 1), ("s", 0))
        elif self.model.values[condition].dtype.kind in "fi":
            self._emit("clip", (condition,), ("s", -1), ("s", 4))

    def drop(self) -> None:
        if self.model.values:
            self._emit("free", (self._one(list(self.model.values)),))

    def read(self) -> None:
        self._emit("read", (self._array(),))

    def synchronize(self) -> None:
        self._emit("synchronize", ())

    def fail(self) -> None:
        """Something that only the worker can find wrong, with what depends on it elsewhere."""
        device = int(self.random.integers(self._devices))
        exponents = self._emit("upload", (), device, self._upload(self._one(((3,), (64, 80))), np.dtype("q").str))
        assert exponents is not None
        self._emit("assign", (exponents,), (0, Ellipsis), ("s", -2))
        powers = self._emit("power", (exponents, exponents))
        assert powers is not None
        there = int(self._one([d for d in range(self._devices) if d != device]))
        inherited = self._emit("to", (powers,), there)
        assert inherited is not None
        self._emit("binary", (inherited,), "add", ("v", 0), ("s", 1))
        targets = [
            v for v in self._arrays(there) if _reaches(self.model.values[inherited].shape, self.model.values[v].shape)
        ]
        if targets and self._chance(0.5):
            self._emit("inplace", (self._one(targets), inherited), "add", ("v", 1))
        if self._chance(0.7):
            self._emit("overwrite", (powers,), (Ellipsis,), ("s", 3))


def _reaches(shape: tuple[int, ...], target: tuple[int, ...]) -> bool:
    """Whether an array of this shape can be assigned to the target."""
    try:
        return np.broadcast_shapes(shape, target) == target
    except ValueError:
        return False


def _divides(size: int, shape: Any) -> bool:
    try:
        np.empty(size, np.bool_).reshape(shape)
    except ValueError:
        return False
    return True


def _multiplies(array: Array, inner: int) -> bool:
    return array.ndim in (1, 2) and array.shape[0] == inner and array.size <= 10_000 and exact(array)


def program(seed: int, length: int, devices: int = 3, failures: bool = True, live: int = 28) -> list[Step]:
    """The program of this seed."""
    return Builder(seed, devices, failures, live).build(length)
