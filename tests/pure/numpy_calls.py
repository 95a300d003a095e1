"""Random calls of every operation of the table, each with the plain NumPy call that a user would have written.

A row without a strategy here makes the tests that are driven by the table fail.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from hypothesis import strategies as st

from interlock.coordinator.infer import GENERATOR, scalar_ref
from interlock.coordinator.views import encode_key
from interlock.protocol.functions import function
from interlock.protocol.operations import BY_NAME, Operation
from interlock.protocol.specs import Spec, spec
from interlock.protocol.trees import encode

DTYPES = "?bhilBHILefdFD"
EXTENTS = (1, 2, 2, 3, 3, 5, 0)
INTS = (0, 1, 2, 5, -1, -3, 127, 128, -128, -129, 255, 256, 300, 2**31, -(2**31), 2**32, 2**63 - 1, -(2**63))
HUGE_INTS = (2**63, -(2**63) - 1, 2**64 - 1, 2**64, 10**30, -(10**30), 10**400)


@dataclass(frozen=True)
class Call:
    """Operands (arrays, scalars, a function that makes a generator), static values, and what NumPy makes of them."""

    operation: Operation
    operands: tuple[Any, ...]
    static: tuple[Any, ...]
    direct: Callable[..., Any]  # takes operands

    def __repr__(self) -> str:
        return f"{self.operation.name}{tuple(map(_shown, self.operands))} {self.static}"


def _shown(operand: Any) -> str:
    if isinstance(operand, np.ndarray):
        return f"<{operand.dtype} {operand.shape} {operand.strides}>"
    return f"{type(operand).__name__}({operand})" if isinstance(operand, np.generic) else repr(operand)


class NewGenerator:
    """A generator operand: the same stream for each side that asks."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def __call__(self) -> np.random.Generator:
        return np.random.default_rng(self.seed)

    def __repr__(self) -> str:
        return f"default_rng({self.seed})"


def specs_of(operands: tuple[Any, ...]) -> tuple[Any, ...]:
    """The operands as `infer` takes them."""
    return tuple([_spec_of(each) for each in operands])


def _spec_of(operand: Any) -> Any:
    if isinstance(operand, np.ndarray):
        return spec(operand.shape, operand.dtype, operand.strides)
    return GENERATOR if isinstance(operand, (NewGenerator, np.random.Generator)) else operand


def fresh(operands: tuple[Any, ...]) -> tuple[Any, ...]:
    """The operands for one side: what it writes, the other does not see."""
    return tuple([clone(x) if isinstance(x, np.ndarray) else x() if callable(x) else x for x in operands])


def clone(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """A copy of the array and of the memory around it, in the same layout."""
    base = array
    while isinstance(base.base, np.ndarray):
        base = base.base
    assert base.flags.forc
    offset = array.__array_interface__["data"][0] - base.__array_interface__["data"][0] if array.size else 0
    strides = array.strides
    return np.ndarray(array.shape, array.dtype, base.ravel("K").view(np.uint8).copy().data, offset, strides)


def same_layout(found: tuple[int, ...], wanted: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    """Whether strides agree, as far as they mean anything."""
    return 0 in shape or all(f == w for f, w, extent in zip(found, wanted, shape, strict=True) if extent != 1)


def same_bits(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> bool:
    """Whether two arrays hold the same elements, bit for bit."""
    return (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())


# -- arrays and scalars -----------------------------------------------------------------------------------------------

shapes = st.lists(st.sampled_from(EXTENTS), max_size=4).map(tuple)


@st.composite
def arrays(draw: Any, shape: tuple[int, ...], dtypes: str = DTYPES, writable: bool = False) -> np.ndarray[Any, Any]:
    """An array of this shape in any layout: axes permuted, with steps, backwards, broadcast."""
    dtype = np.dtype(draw(st.sampled_from(dtypes)))
    order = draw(st.permutations(range(len(shape))))
    steps = [draw(st.sampled_from((1, 1, 1, 2, -1, -2))) for _ in shape]
    zeros = [not writable and draw(st.integers(0, 6)) == 6 for _ in shape]
    whole = [1 if zero else extent * abs(step) for extent, step, zero in zip(shape, steps, zeros, strict=True)]
    base = _filled([whole[axis] for axis in order], dtype, draw(st.integers(0, 99)))
    stepped: Any = (..., *[slice(None, None, step) for step in steps])
    array = base.transpose(np.argsort(order).tolist())[stepped]
    return np.broadcast_to(array, shape) if array.shape != shape else array


def _filled(shape: list[int], dtype: np.dtype[Any], seed: int) -> np.ndarray[Any, Any]:
    rng = np.random.default_rng(seed)
    if dtype.kind in "fc":
        values = rng.choice([-2.5, -1.0, -0.0, 0.5, 1.0, 1.7, 2.0, 3.3, np.inf, np.nan], shape)
        with np.errstate(all="ignore"):
            return np.asarray(values + (1j * values[..., ::-1] if dtype.kind == "c" and shape else 0)).astype(dtype)
    return rng.integers(0, 6, shape).astype(dtype)  # not negative: powers of ints


scalars = st.one_of(
    st.booleans(),
    st.sampled_from(INTS),
    st.sampled_from(HUGE_INTS),
    st.sampled_from((0.0, -1.5, 2.0, 0.5, 1e300, float("inf"))),
    st.sampled_from((1j, 2.0 - 1j)),
    st.builds(lambda char, value: np.dtype(char).type(value), st.sampled_from(DTYPES), st.sampled_from((0, 1, 3))),
    st.sampled_from((np.int8(-2), np.int64(-3), np.float32(-1.5), np.float64(1e300))),
)


@st.composite
def fitting_shapes(draw: Any, whole: tuple[int, ...]) -> tuple[int, ...]:
    """A shape that broadcasts to this one, but for now and then."""
    shape = list(whole[draw(st.integers(0, len(whole))) if draw(st.booleans()) else 0 :])
    for axis in range(len(shape)):
        if draw(st.integers(0, 3)) == 3:
            shape[axis] = 1
        elif draw(st.integers(0, 24)) == 24:
            shape[axis] += 1
    return tuple(shape)


@st.composite
def elementwise(draw: Any, count: int, may_be_scalar: bool = True) -> tuple[Any, ...]:
    """Operands of which at least one is an array."""
    whole = draw(shapes)
    array_at = draw(st.integers(0, count - 1))
    return tuple(
        [
            draw(arrays(draw(fitting_shapes(whole))))
            if place == array_at or not may_be_scalar or draw(st.integers(0, 2))
            else draw(scalars)
            for place in range(count)
        ]
    )


# -- one strategy for each kind or name -------------------------------------------------------------------------------


def calls(operation: Operation) -> st.SearchStrategy[Call]:
    """Random calls of this operation; KeyError for a row that nobody thought of."""
    if operation.name in _BY_NAME:
        return _BY_NAME[operation.name]()
    return _BY_KIND[operation.kind](operation)


@st.composite
def _ufunc(draw: Any, operation: Operation) -> Call:
    operands = draw(elementwise(operation.inputs))
    return Call(operation, operands, (), getattr(np, operation.name))


@st.composite
def _matmul(draw: Any) -> Call:
    batch = tuple(draw(st.lists(st.sampled_from((1, 2, 3, 0)), max_size=2)))
    n, k, m = (draw(st.sampled_from(EXTENTS)) for _ in range(3))
    left = draw(st.sampled_from(((k,), (n, k), (*draw(fitting_shapes(batch)), n, k))))
    right = draw(st.sampled_from(((k,), (k, m), (*draw(fitting_shapes(batch)), k, m), (k + 1, m), ())))
    dtypes = "?ibefdFD"
    return Call(BY_NAME["matmul"], (draw(arrays(left, dtypes)), draw(arrays(right, dtypes))), (), np.matmul)


axes = st.one_of(st.none(), st.integers(-4, 3), st.integers(-1, 0))
axis_tuples = st.one_of(axes, st.lists(st.integers(-2, 2), max_size=3).map(tuple))
dtypes_or_none = st.one_of(st.none(), st.none(), st.sampled_from(DTYPES).map(lambda char: np.dtype(char).str))


@st.composite
def _call(draw: Any, operation: Operation) -> Call:
    name = operation.name
    one_axis = name in ("argmax", "argmin", "cumsum", "cumprod", "sort", "argsort")
    values = {
        "axis": lambda: draw(axes if one_axis else axis_tuples),
        "dtype": lambda: draw(dtypes_or_none),
        "keepdims": lambda: draw(st.booleans()),
        "ddof": lambda: draw(st.integers(0, 2)),
        "decimals": lambda: draw(st.integers(-1, 2)),
        "k": lambda: draw(st.integers(-2, 2)),
    }
    static = tuple([values[each]() for each in operation.static])
    named = dict(zip(operation.static, static, strict=True))
    operands = (draw(arrays(draw(shapes))),)
    return Call(operation, operands, static, lambda array: getattr(np, name)(array, **named))


@st.composite
def _where(draw: Any) -> Call:
    return Call(BY_NAME["where"], draw(elementwise(3)), (), np.where)


@st.composite
def _clip(draw: Any) -> Call:
    low, high = draw(st.sampled_from(((True, True), (True, False), (False, True))))
    array = draw(arrays(draw(shapes)))
    bounds = tuple([draw(st.one_of(scalars, arrays(draw(fitting_shapes(array.shape))))) for _ in range(low + high)])

    def direct(array: Any, *bounds: Any) -> Any:
        return np.clip(array, *(bounds if low and high else (bounds[0], None) if low else (None, bounds[0])))

    return Call(BY_NAME["clip"], (array, *bounds), (low, high), direct)


@st.composite
def _astype(draw: Any) -> Call:
    dtype, order = np.dtype(draw(st.sampled_from(DTYPES))).str, draw(st.sampled_from("KCFA"))
    array = draw(arrays(draw(shapes)))
    return Call(BY_NAME["astype"], (array,), (dtype, order), lambda array: array.astype(dtype, order=order))


@st.composite
def _copy(draw: Any) -> Call:
    order = draw(st.sampled_from("KCFA"))
    return Call(BY_NAME["copy"], (draw(arrays(draw(shapes))),), (order,), lambda array: np.array(array, order=order))


@st.composite
def _assign(draw: Any) -> Call:
    target = draw(arrays(draw(shapes), writable=True))
    shape = draw(fitting_shapes(target.shape))
    value = draw(st.one_of(scalars, arrays(shape), arrays((1, *shape))))

    def direct(target: Any, value: Any) -> None:
        target[...] = value

    return Call(BY_NAME["assign"], (target, value), (), direct)


class Handle:
    """Stands for an array of the frontend inside a key."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self.array = array


@st.composite
def _keys(draw: Any, shape: tuple[int, ...]) -> tuple[Any, ...]:
    """A key of ints, slices, None, an ellipsis, and at least one index array, list or handle."""
    index_shape = draw(st.lists(st.sampled_from((1, 2, 4)), min_size=1, max_size=2).map(tuple))
    consumed = draw(st.integers(1, max(len(shape), 1)))
    kinds = [draw(st.sampled_from(("int", "slice", "slice", "array", "list", "handle"))) for _ in range(consumed)]
    kinds[draw(st.integers(0, consumed - 1))] = draw(st.sampled_from(("array", "list", "handle")))
    key: list[Any] = []
    extents = [*shape, 2]
    gap = draw(st.one_of(st.none(), st.integers(0, consumed)))
    for place, kind in enumerate(kinds):
        if gap == place:
            extents = extents[:place] + extents[place + len(shape) - consumed :]
            key.append(Ellipsis)
        if not draw(st.integers(0, 7)):
            key.append(None)
        extent = extents[place] if place < len(extents) else 2
        inside = st.integers(-extent, extent - 1) if extent else st.integers(-1, 0)
        if kind == "int":
            key.append(draw(inside))
        elif kind == "slice":
            start, stop = (draw(st.one_of(st.none(), st.integers(-3, 3))) for _ in range(2))
            key.append(slice(start, stop, draw(st.sampled_from((None, 1, 2, -1)))))
        else:
            part = draw(fitting_shapes(index_shape))
            values = np.array(draw(st.lists(inside, min_size=16, max_size=16)), np.intp)[: int(np.prod(part))]
            values = np.resize(values, part)
            if kind == "list":
                key.append(values.tolist() if part else values)
            elif kind == "array":
                key.append(values.astype(draw(st.sampled_from("lih"))))
            else:
                key.append(Handle(np.asfortranarray(values.astype(draw(st.sampled_from("li"))))))
    return tuple(key)


@st.composite
def _getitem(draw: Any) -> Call:
    array = draw(arrays(draw(shapes.filter(bool))))
    key = draw(_keys(array.shape))
    static, handles = encode_key(key, Handle)

    def direct(array: Any, *indices: Any) -> Any:
        return array[_with(key, indices)]

    return Call(BY_NAME["getitem_advanced"], (array, *[each.array for each in handles]), (static,), direct)


@st.composite
def _setitem(draw: Any) -> Call:
    target = draw(arrays(draw(shapes.filter(bool)), writable=True))
    key = draw(_keys(target.shape))
    static, handles = encode_key(key, Handle)
    try:
        shape = target[_with(key, [each.array for each in handles])].shape
    except IndexError:
        shape = ()
    value = draw(st.one_of(scalars, arrays(draw(fitting_shapes(shape)))))

    def direct(target: Any, value: Any, *indices: Any) -> None:
        target[_with(key, indices)] = value

    operands = (target, value, *[each.array for each in handles])
    return Call(BY_NAME["setitem_advanced"], operands, (static,), direct)


def _with(key: tuple[Any, ...], indices: Any) -> tuple[Any, ...]:
    given = iter(indices)
    return tuple([next(given) if isinstance(item, Handle) else item for item in key])


@st.composite
def _join(draw: Any, operation: Operation) -> Call:
    shape = draw(shapes)
    axis = draw(axes if operation.name == "concatenate" else st.integers(-2, 2))
    parts = []
    for _ in range(draw(st.integers(1, 3))):
        part = list(shape)
        if operation.name == "concatenate" and part and axis is not None:
            part[axis % len(part)] = draw(st.sampled_from(EXTENTS))
        if part and not draw(st.integers(0, 20)):
            part[0] += 1
        parts.append(draw(arrays(tuple(part))))
    dtype = draw(dtypes_or_none)
    join = getattr(np, operation.name)
    return Call(operation, tuple(parts), (axis, dtype), lambda *parts: join(parts, axis=axis, dtype=dtype))


@st.composite
def _create(draw: Any, operation: Operation) -> Call:
    shape = draw(st.lists(st.sampled_from((*EXTENTS, *EXTENTS, *EXTENTS, -1)), max_size=4).map(tuple))
    dtype, order = np.dtype(draw(st.sampled_from(DTYPES))).str, draw(st.sampled_from("CF"))
    make = getattr(np, operation.name)
    if operation.name == "full":
        value = draw(st.one_of(scalars, arrays(draw(fitting_shapes(tuple(map(abs, shape)))))))
        dtype = draw(st.sampled_from((dtype, dtype, None)))
        return Call(operation, (value,), (shape, dtype, order), lambda value: make(shape, value, dtype, order=order))
    return Call(operation, (), (shape, dtype, order), lambda: make(shape, dtype, order=order))


@st.composite
def _eye(draw: Any) -> Call:
    n, m, k = draw(st.integers(-1, 5)), draw(st.one_of(st.none(), st.integers(0, 5))), draw(st.integers(-3, 3))
    dtype = draw(dtypes_or_none)
    return Call(BY_NAME["eye"], (), (n, m, k, dtype), lambda: np.eye(n, m, k, **_given(dtype=dtype)))


def _given(**named: Any) -> dict[str, Any]:
    return {name: value for name, value in named.items() if value is not None}


ends = st.one_of(
    st.integers(-5, 9),
    st.sampled_from((0.5, -2.25, 3.3, float("nan"), float("inf"))),
    st.sampled_from((np.float32(3.3), np.int8(4), np.uint64(5), np.float64(1.1), True, 2**63)),
)


@st.composite
def _arange(draw: Any) -> Call:
    start, stop = draw(ends), draw(st.one_of(st.none(), ends))
    step = draw(st.sampled_from((None, 1, 2, -1, 0.3, 0, np.float32(0.3), np.int16(2))))
    if step is not None and stop is None:
        step = None
    if any(isinstance(each, int) and each > 2**62 for each in (start, stop)):
        start, stop, step = 2**63 - 3, 2**63, None
    dtype = draw(dtypes_or_none)
    static = (scalar_ref(start), scalar_ref(stop), scalar_ref(step), dtype)
    return Call(BY_NAME["arange"], (), static, lambda: np.arange(start, stop, step, dtype=dtype))


@st.composite
def _linspace(draw: Any) -> Call:
    start, stop = (draw(st.sampled_from((0, 5, -1.5, 2.0, np.float32(0.1), np.int8(3)))) for _ in range(2))
    num, endpoint, dtype = draw(st.integers(-1, 7)), draw(st.booleans()), draw(dtypes_or_none)
    static = (scalar_ref(start), scalar_ref(stop), num, endpoint, dtype)
    return Call(BY_NAME["linspace"], (), static, lambda: np.linspace(start, stop, num, endpoint, dtype=dtype))


generators = st.integers(0, 9).map(NewGenerator)
sizes = st.one_of(st.none(), st.integers(0, 5), st.lists(st.integers(0, 4), max_size=3).map(tuple), st.just((2, -1)))


@st.composite
def _random(draw: Any, operation: Operation) -> Call:
    reals = st.sampled_from((0.0, 1.0, -0.5, 2, np.float32(1.3), 3.5))
    values = {
        "size": lambda: draw(sizes),
        "dtype": lambda: draw(st.sampled_from(("<f4", "<f8", None, "<i4"))),
        "loc": lambda: draw(reals),
        "scale": lambda: draw(reals),
        "low": lambda: draw(reals),
        "high": lambda: draw(reals),
        "lam": lambda: draw(reals),
    }
    given = {each: values[each]() for each in operation.static}
    static = tuple([scalar_ref(v) if k not in ("size", "dtype") else v for k, v in given.items()])
    if given.get("dtype", "") is None:
        del given["dtype"]
    name = operation.name.removeprefix("rng_")
    if given["size"] is None:
        given["size"] = ()  # NumPy gives a Python float, which does not say its dtype
    return Call(operation, (draw(generators),), static, lambda rng: getattr(rng, name)(**given))


@st.composite
def _rng_new(draw: Any) -> Call:
    words, spawn = draw(st.lists(st.integers(0, 2**32 - 1), min_size=1).map(tuple)), draw(st.sampled_from(((), (3,))))
    sequence = np.random.SeedSequence(words, spawn_key=spawn)
    return Call(BY_NAME["rng_new"], (), (words, spawn), lambda: np.random.default_rng(sequence))


@st.composite
def _rng_integers(draw: Any) -> Call:
    low, high = draw(st.sampled_from(((5, None), (0, 10), (-3, 3), (3, 3), (0, 256), (0, 2**64 - 1), (-1, 1))))
    dtype = draw(st.sampled_from((None, "<i8", "|u1", "<u8", "|i1", "|b1", "<f4")))
    size, endpoint = draw(sizes), draw(st.booleans())
    static = (scalar_ref(low), scalar_ref(high), size, dtype, endpoint)
    named = _given(dtype=dtype) | {"endpoint": endpoint}
    return Call(
        BY_NAME["rng_integers"], (draw(generators),), static, lambda rng: rng.integers(low, high, size, **named)
    )


@st.composite
def _rng_permutation(draw: Any) -> Call:
    operation, rng = BY_NAME["rng_permutation"], draw(generators)
    if draw(st.booleans()):
        x = draw(st.integers(0, 6))
        return Call(operation, (rng,), (x, 0), lambda rng: rng.permutation(x))
    axis, array = draw(st.integers(-2, 2)), draw(arrays(draw(shapes)))
    return Call(operation, (rng, array), (None, axis), lambda rng, array: rng.permutation(array, axis=axis))


@st.composite
def _rng_choice(draw: Any) -> Call:
    operation, rng = BY_NAME["rng_choice"], draw(generators)
    size, replace, shuffle = draw(sizes), draw(st.booleans()), draw(st.booleans())
    if draw(st.booleans()):
        a = draw(st.integers(0, 9))
        static = (a, size, replace, 0, shuffle)
        return Call(operation, (rng,), static, lambda rng: rng.choice(a, size, replace, shuffle=shuffle))
    axis, array = draw(st.integers(-2, 2)), draw(arrays(draw(shapes.filter(bool))))

    def direct(rng: Any, array: Any) -> Any:
        return rng.choice(array, size, replace, axis=axis, shuffle=shuffle)

    return Call(operation, (rng, array), (None, size, replace, axis, shuffle), direct)


@st.composite
def _rng_shuffle(draw: Any) -> Call:
    axis, array = draw(st.integers(-2, 2)), draw(arrays(draw(shapes), writable=True))

    def direct(rng: Any, array: Any) -> None:
        rng.shuffle(array, axis=axis)

    return Call(BY_NAME["rng_shuffle"], (draw(generators), array), (axis,), direct)


# By name, what to try on one array of any shape; what is written, is its first.
_NAMED_CALLS: tuple[Callable[..., Any], ...] = (
    lambda: ("roll", (2,), {"axis": -1}),
    lambda: ("pad", (1,), {}),
    lambda: ("repeat", (3,), {"axis": 0}),
    lambda: ("nancumsum", (), {}),
    lambda: ("median", (), {"axis": -1}),
    lambda: ("add.accumulate", (), {}),
    lambda: ("take", ([0, 0, 0],), {"axis": 0}),
    lambda: ("diff", (), {"n": 2}),
    lambda: ("fft.rfft", (), {"axis": 0}),
    lambda: ("linalg.vector_norm", (), {"keepdims": True}),
    lambda: ("isclose", (1.0,), {}),
    lambda: ("searchsorted", (2,), {}),
    lambda: ("tile", ((2, 1),), {}),
)
_NAMED_WRITES: tuple[Callable[..., Any], ...] = (
    lambda: ("put", ([0], 1), {}),
    lambda: ("ndarray.sort", (), {"axis": -1}),
    lambda: ("copyto", (1,), {}),
    lambda: ("add.at", (0, 1), {}),
)


def _tree(count: int, rest: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    given = [("@", place) for place in range(count)]
    more = [encode(each, lambda _: None) for each in rest]
    return ("(", ("(", *given, *more), encode(kwargs, lambda _: None))


@st.composite
def _named(draw: Any) -> Call:
    name, rest, kwargs = draw(st.sampled_from(_NAMED_CALLS))()
    array = draw(arrays(draw(shapes)))
    direct = function(name, np)
    return Call(
        BY_NAME["named"], (array,), (name, _tree(1, rest, kwargs)), lambda array: direct(array, *rest, **kwargs)
    )


@st.composite
def _named_write(draw: Any) -> Call:
    name, rest, kwargs = draw(st.sampled_from(_NAMED_WRITES))()
    array = draw(arrays(draw(shapes), writable=True))
    direct = function(name, np)

    def change(array: Any) -> None:
        direct(array, *rest, **kwargs)

    return Call(BY_NAME["named_write"], (array,), (name, _tree(1, rest, kwargs)), change)


@st.composite
def _named_write_two(draw: Any) -> Call:
    shape = draw(shapes)
    operands = tuple([draw(arrays(shape, "fd", writable=True)) for _ in range(2)])
    tree = ("(", ("(", 7.5, 2.0), ("{", "out", ("(", ("@", 0), ("@", 1))))

    def change(*out: Any) -> None:
        np.divmod(7.5, 2.0, out=out)

    return Call(BY_NAME["named_write_two"], operands, ("divmod", tree), change)


@st.composite
def _asked(draw: Any) -> Call:
    name = draw(st.sampled_from(("flatnonzero", "unique_values", "unique_counts", "union1d")))
    operands = tuple([draw(arrays(draw(shapes), "?bild")) for _ in range(1 + (name == "union1d"))])
    direct = function(name, np)
    made = 2 if name == "unique_counts" else 1
    tree = ("(", ("(", *[("@", place) for place in range(len(operands))]), ("{",))
    return Call(BY_NAME["asked"], operands, (name, tree, made, 1), lambda *arrays: direct(*arrays))


_BY_NAME: dict[str, Callable[[], st.SearchStrategy[Call]]] = {
    "named": _named,
    "named_write": _named_write,
    "named_write_two": _named_write_two,
    "asked": _asked,
    "matmul": _matmul,
    "where": _where,
    "astype": _astype,
    "copy": _copy,
    "getitem_advanced": _getitem,
    "setitem_advanced": _setitem,
    "eye": _eye,
    "arange": _arange,
    "linspace": _linspace,
    "rng_named": lambda: _rng_named(),
    "rng_new": _rng_new,
    "rng_integers": _rng_integers,
    "rng_permutation": _rng_permutation,
    "rng_choice": _rng_choice,
    "rng_shuffle": _rng_shuffle,
}


@st.composite
def _rng_named(draw: Any) -> Call:
    method, args = draw(
        st.sampled_from(
            (
                ("beta", (2.0, 3.0)), ("gamma", (2.5,)), ("binomial", (9, 0.3)), ("lognormal", ()), ("zipf", (2.0,)),
                ("dirichlet", ([1.0, 2.0, 3.0],)), ("multinomial", (5, [0.5, 0.25, 0.25])), ("triangular", (0, 1, 4)),
                ("multivariate_normal", ([0.0, 1.0], [[1.0, 0.0], [0.0, 2.0]])), ("standard_cauchy", ()),
                ("hypergeometric", (5, 3, 4)), ("vonmises", (0.0, 1.0)), ("beta", (-1.0, 2.0)),
            )
        )
    )  # fmt: skip
    size = draw(sizes)
    tree = ("(", ("(", *[encode(each, lambda _: None) for each in args]), ("{",))
    operands: tuple[Any, ...] = (draw(generators),)
    if draw(st.booleans()):
        method, scale = "rayleigh", np.array(np.abs(draw(arrays(draw(shapes), "fd"))), order="C")
        operands, tree = (*operands, scale), ("(", ("(", ("@", 1)), ("{",))
        size = draw(st.sampled_from((None, scale.shape, (2, *scale.shape))))
        return Call(
            BY_NAME["rng_named"], operands, (method, tree, size), lambda rng, scale: rng.rayleigh(scale, size=size)
        )
    return Call(
        BY_NAME["rng_named"], operands, (method, tree, size), lambda rng: getattr(rng, method)(*args, size=size)
    )


_NAMES_OF_RANDOM = "random standard_normal standard_exponential normal uniform exponential poisson"
_BY_NAME |= {f"rng_{name}": partial(_random, BY_NAME[f"rng_{name}"]) for name in _NAMES_OF_RANDOM.split()}
_BY_KIND: dict[str, Callable[[Operation], st.SearchStrategy[Call]]] = {
    "ufunc": _ufunc,
    "call": _call,
    "clip": lambda operation: _clip(),
    "assign": lambda operation: _assign(),
    "join": _join,
    "create": _create,
}


def promised(operand: Any) -> Spec:
    """The spec of an array."""
    made = _spec_of(operand)
    assert isinstance(made, Spec)
    return made
