"""Faults that other systems had in the field with NumPy's rules: promotion, copies, gradients of what is broadcast.

Named as those of `test_field_cases.py`; each is the kind that it is, over dtypes, shapes and forms, not the one input.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import interlock as il

HANG_S = 60.0
DTYPES = ("?", "i1", "u1", "i2", "u4", "i8", "u8", "f2", "f4", "f8", "c8", "c16")
pytestmark = pytest.mark.filterwarnings("ignore")  # NumPy's own, about values


@pytest.fixture(scope="module", params=["cpu:0", "sim:0"])
def session(request: pytest.FixtureRequest) -> Iterator[il.Session]:
    with il.connect(devices=[request.param]) as session:
        yield session


def outcome(function: Callable[..., Any], *arguments: Any) -> Any:
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            return function(*arguments)
        except Exception as error:
            return error


def agree(ours: Any, theirs: Any) -> bool:
    """The same exception, or the same elements in the dtype that was promised."""
    if isinstance(theirs, Exception):
        return type(ours) is type(theirs) and str(ours) == str(theirs)
    if not isinstance(ours, il.Array):
        return False
    promised = ours.dtype, ours.shape
    found = ours.numpy(timeout=HANG_S)
    wanted = np.asarray(theirs)
    return (
        promised == (found.dtype, found.shape) == (wanted.dtype, wanted.shape) and found.tobytes() == wanted.tobytes()
    )


# FL-02: numpy/numpy#21103, msgpack/msgpack-python#150 ---------------------------------------------------------------

SCALARS = (
    2, 2.0, True, 0, -1, 200, 300, 2**40, 2**63, -(2**63), 2**64, 1.5, 1e300, 1j, np.float64(2), np.float32(2),
    np.float16(3), np.int8(2), np.uint8(200), np.int64(2), np.uint64(3), np.bool_(True), np.complex64(1j),
)  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
def test_fl02_numbers_promote_as_what_they_are(session: il.Session, dtype: str) -> None:
    """NumPy's numbers arrived as Python's, and the worker promoted otherwise than NumPy."""
    if session.devices[0].kind == "sim" and dtype not in ("f4", "u1"):
        pytest.skip("two dtypes tell what queues change")
    host = np.arange(4).astype(dtype)
    x = il.asarray(host, device=session.devices[0])
    wrong = []
    # Each number after each other, so that what is remembered of 2 would be used for 2.0 and True if they were one key.
    for operation in (np.add, np.multiply, np.divide, np.less, np.power, np.floor_divide, np.maximum):
        for scalar in SCALARS:
            for order in (lambda a, s: (a, s), lambda a, s: (s, a)):
                ours, theirs = outcome(operation, *order(x, scalar)), outcome(operation, *order(host, scalar))
                if isinstance(theirs, np.ndarray) and theirs.dtype == object:
                    theirs = TypeError()  # an int that NumPy has no dtype for
                    good = isinstance(ours, (TypeError, OverflowError))
                else:
                    good = agree(ours, theirs)
                if not good:
                    wrong.append(f"{operation.__name__}{order(dtype, repr(scalar))}: {ours!r}, not {theirs!r}")
    assert not wrong, "\n".join(wrong[:10])


@pytest.mark.parametrize("dtype", DTYPES)
def test_fl02_arrays_promote_in_place_as_numpy_lets_them(session: il.Session, dtype: str) -> None:
    if session.devices[0].kind == "sim" and dtype not in ("f4", "u1"):
        pytest.skip("two dtypes tell what queues change")
    wrong = []
    for other in DTYPES:
        for name in ("__iadd__", "__imul__", "__itruediv__", "__ipow__"):
            host, more = np.arange(1, 4).astype(dtype), np.arange(1, 4).astype(other)
            x, y = (il.asarray(each, device=session.devices[0]) for each in (host, more))
            ours, theirs = outcome(getattr(x, name), y), outcome(getattr(host, name), more)
            if not agree(ours, theirs) or not agree(x, host):
                wrong.append(f"{dtype} {name} {other}: {ours!r}, not {theirs!r}")
    assert not wrong, "\n".join(wrong[:10])


def test_fl02_the_cases_of_the_report(session: il.Session) -> None:
    a = il.ones(3, "f4", device=session.devices[0])
    assert (a * np.float64(2)).dtype == "f8"
    assert (a * 2.0).dtype == "f4"
    byte = il.asarray(np.array([100], "u1"), device=session.devices[0])
    with pytest.raises(OverflowError, match="300"):
        byte + 300
    assert agree(byte + 200, np.array([100], "u1") + 200)


# FL-56: numpy/numpy#28070, jax-ml/jax#899 ----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["f4", "i8", "c16", "?"])
def test_fl56_every_way_to_a_numpy_array_copies_once(session: il.Session, dtype: str) -> None:
    """`np.asarray`, `np.array` and assignment into NumPy's arrays ask for copies in different ways."""
    for shape in ((), (0,), (3,), (2, 3), (300, 200)):
        host = np.arange(int(np.prod(shape))).reshape(shape).astype(dtype)
        x = il.asarray(host, device=session.devices[0])
        into = np.zeros(shape, dtype)
        into[...] = x
        row = np.zeros((2, *shape), "c16")
        row[1] = x
        found = [
            np.asarray(x), np.array(x), np.array(x, copy=True), np.asarray(x, copy=None), np.from_dlpack(x), into,
            x.numpy(), np.asarray(x, dtype=dtype), np.array(x, ndmin=3).reshape(shape),
        ]  # fmt: skip
        for each in found:
            assert each.dtype == host.dtype
            assert np.array_equal(each, host)
        assert np.asarray(x, dtype="c16").dtype == "c16"
        assert np.array_equal(row[1], host)
        for each in found:
            if each.flags.writeable and each.size:
                each[...] = 0
        assert np.array_equal(x.numpy(), host)  # changing the results has changed nothing
        with pytest.raises(ValueError, match="copy"):
            np.asarray(x, copy=False)
        with pytest.raises(ValueError, match="copy"):
            np.array(x, copy=False)
        with pytest.raises(BufferError, match="copy"):
            np.from_dlpack(x, copy=False)


def test_fl56_each_of_them_is_one_read(session: il.Session, monkeypatch: pytest.MonkeyPatch) -> None:
    x = il.ones((40, 50), device=session.devices[0])
    reads: list[Any] = []
    ask = session._ask
    monkeypatch.setattr(session, "_ask", lambda lane, ref, *rest: (reads.append(ref), ask(lane, ref, *rest))[1])
    target = np.zeros((40, 50))
    ways: list[Callable[[], Any]] = [
        lambda: np.asarray(x), lambda: np.array(x), lambda: np.asarray(x, dtype="f4"), lambda: x.tolist(),
        lambda: np.from_dlpack(x), lambda: np.copyto(target, x.numpy()), lambda: target.__setitem__(..., x),
        lambda: str(x),
    ]  # fmt: skip
    for way in ways:
        reads.clear()
        way()
        assert len(reads) == 1


# FL-38: pytorch/pytorch#24413, #197887; FL-59: pytorch/pytorch#1787, HIPS/autograd#384 -------------------------------


def test_fl38_a_change_through_a_view_is_not_lost_on_gradients(session: il.Session) -> None:
    """What was written through a view after its use was taken by the gradient for what had been used."""
    device = session.devices[0]
    host = np.arange(6.0).reshape(2, 3)
    views: dict[str, Callable[[Any], Any]] = {
        "transpose": lambda w: w.T,
        "slice": lambda w: w[:, ::-1].T,
        "reshape": lambda w: w.reshape(3, 1),
        "diagonal of itself": lambda w: np.swapaxes(w, 0, 1),
    }
    for view, write_the_view in itertools.product(views.values(), (False, True)):

        def loss(x: il.Array, view: Any = view, write_the_view: bool = write_the_view) -> Any:
            w = il.full((1, 3), 2.0, device=device)
            v = view(w)
            made = (x @ v).sum()
            (v if write_the_view else w)[...] = 0
            return made

        gradient = outcome(il.grad(loss), il.asarray(host, device=device))
        if isinstance(gradient, Exception):
            assert "test_field_cases_surface.py" in str(gradient)  # refused, with the line that wrote
        else:
            assert np.array_equal(gradient.numpy(timeout=HANG_S), np.full((2, 3), 2.0))


@pytest.mark.parametrize("dtype", ["f4", "f8", "c16"])
def test_fl59_gradients_have_the_shape_and_the_dtype_of_what_they_are_taken_by(session: il.Session, dtype: str) -> None:
    """Gradients of what had been broadcast had the shape of what it was broadcast to."""
    device = session.devices[0]
    rng = np.random.default_rng(0)
    for shape in ((), (1,), (4,), (5, 1), (1, 4), (5, 4), (1, 1)):
        a, b = rng.random(shape).astype(dtype), rng.random((5, 4)).astype(dtype)
        x, y = il.asarray(a, device=device), il.asarray(b, device=device)
        for forward, wanted in (
            (lambda x, y: (x * y).sum(), np.conj(b)), (lambda x, y: (y + x).sum(), np.ones((5, 4))),
            (lambda x, y: (y - x).sum(), -np.ones((5, 4))), (lambda x, y: il.where(True, y * x, y).sum(), np.conj(b)),
        ):  # fmt: skip
            scalar = (lambda x, y, f=forward: il.real(f(x, y))) if dtype == "c16" else forward
            found = outcome(il.grad(scalar), x, y)
            if dtype == "c16" and isinstance(found, TypeError):
                continue  # gradients by complex numbers are refused, in words
            assert (found.shape, found.dtype) == (a.shape, a.dtype)
            axes = tuple(
                [axis for axis in range(2) if axis < 2 - a.ndim or a.shape[axis - 2 + a.ndim] == 1 != (5, 4)[axis]]
            )
            summed = wanted.sum(axis=axes).reshape(a.shape)
            assert np.allclose(found.numpy(timeout=HANG_S), summed, rtol=1e-5)


# FL-61, what of it is not a GPU's: cupy/cupy#3652, #9049, #9015, #3836, #7737 -----------------------------------------


def test_fl61_byte_order_is_the_machines_on_every_device(session: il.Session) -> None:
    """The byte order of what was sent was ignored."""
    device = session.devices[0]
    for dtype in ("i2", "u4", "i8", "f2", "f4", "f8", "c8", "c16"):
        swapped = np.arange(6).reshape(2, 3).astype(np.dtype(dtype).newbyteorder(">"))
        native = swapped.astype(dtype)
        for made in (il.asarray(swapped, device=device), il.asarray(swapped.T, device=device).T):
            assert made.dtype == np.dtype(dtype)
            assert agree(made, native)
        x = il.ones((2, 3), dtype, device=device)
        assert agree(x + swapped, np.ones((2, 3), dtype) + native)
        assert agree(
            np.concatenate([x, il.asarray(swapped, device=device)]), np.concatenate([np.ones((2, 3), dtype), native])
        )
        x[...] = swapped
        assert agree(x, native)
        assert agree(x.astype(np.dtype(dtype).newbyteorder(">")), native)
        assert agree(x * swapped[0, 1], native * native[0, 1])


def test_fl61_of_repeated_indices_the_last_value_stays_and_ufunc_at_takes_all(session: il.Session) -> None:
    device = session.devices[0]
    host = np.arange(5)
    a = il.asarray(host, device=device)
    a[[0, 1, 0, 1, 0, 1]] = [2, 3, 4, 5, 6, 7]
    assert a.tolist() == [6, 7, 2, 3, 4]
    a[il.asarray([0, 1, 0, 1], device=device)] = il.asarray([1, 2, 3, 4], device=device)
    assert a.tolist() == [3, 4, 2, 3, 4]
    a[[0, 0, 1]] += 1
    assert a.tolist() == [4, 5, 2, 3, 4]
    np.add.at(a, [0, 0, 1], 1)
    assert a.tolist() == [6, 6, 2, 3, 4]
    np.subtract.at(a, (il.asarray([4, 4], device=device),), 2)
    assert a.tolist() == [6, 6, 2, 3, 0]


def test_fl61_division_rounds_as_numpys(session: il.Session) -> None:
    host = np.array([5.6650004, -5.6650004, 0.3, 1e30, np.inf, np.nan, -0.0, 7], "f4")
    x = il.asarray(host, device=session.devices[0])
    with np.errstate(all="ignore"):
        for divisor in (0.1, np.float32(0.1), -0.1, 3, 0.0, np.inf):
            for operation in (np.floor_divide, np.remainder, np.fmod, np.divide):
                assert agree(operation(x, divisor), operation(host, divisor))
            assert all(map(agree, divmod(x, divisor), divmod(host, divisor)))


@pytest.mark.parametrize(
    "value",
    [
        np.array([None, 1], object), np.array([(1, 2.0)], "i4,f8"), np.array(["2020-01-01"], "M8[D]"),
        np.array([3], "m8[s]"), np.array(["a"]), np.array([b"a"]), np.array([b"a"], "V3"), ["a", "b"], [None], [{}],
    ],
    ids=repr,
)  # fmt: skip
def test_fl61_what_is_no_number_is_refused_at_the_call(session: il.Session, value: Any) -> None:
    """Object and record dtypes went to the device, and failed there, or did not."""
    device = session.devices[0]
    x = il.ones(1, device=device)
    calls: list[Callable[[], Any]] = [
        lambda: il.asarray(value, device=device), lambda: x + np.asarray(value), lambda: np.concatenate([x, value]),
        lambda: x.__setitem__(0, np.asarray(value)),
        lambda: x.astype(np.asarray(value).dtype), lambda: np.full_like(x, np.asarray(value)),
        lambda: il.zeros(3, np.asarray(value).dtype, device=device),
    ]  # fmt: skip
    for n, call in enumerate(calls):
        refusal = outcome(call)
        assert isinstance(refusal, (TypeError, ValueError)), (n, refusal)
    assert x.tolist() == [1.0]  # and the session goes on


# Of the kind of these -----------------------------------------------------------------------------------------------


def test_overlapping_writes_are_as_if_the_source_had_been_copied(session: il.Session) -> None:
    changes: list[Callable[[Any], Any]] = [
        lambda a: a.__setitem__(slice(1, None), a[:-1]),
        lambda a: a.__setitem__(slice(None, -1), a[1:]),
        lambda a: a.__setitem__(slice(None), a[::-1]),
        lambda a: a[1:].__iadd__(a[:-1]),
        lambda a: np.add(a[:-1], a[1:], out=a[1:]),
        lambda a: np.multiply(a[::-1], 2, out=a),
        lambda a: np.cumsum(a[::-1], out=a),
        lambda a: np.copyto(a[2:], a[:-2]),
        lambda a: a.__setitem__([0, 1, 2], a[[2, 1, 0]]),
        lambda a: np.add(a, a[::-1], out=a, where=a > 3),
        lambda a: np.put(a, [0, 1], a[2:4]),
    ]
    for n, dtype in ((7, "f8"), (1000, "i4"), (50_000, "f4")):
        for change in changes:
            host = np.arange(n).astype(dtype)
            a = il.asarray(host, device=session.devices[0])
            change(host)
            change(a)
            assert agree(a, host)


def test_broadcast_views_are_not_written(session: il.Session) -> None:
    x = il.ones(3, device=session.devices[0])
    wide = np.broadcast_to(x, (2, 3))
    first, _ = np.broadcast_arrays(x, il.ones((2, 3), device=session.devices[0]))
    for view in (wide, wide[0], first, np.diagonal(il.ones((3, 3), device=session.devices[0]))):
        for write in (
            lambda v: v.__setitem__(0, 1),
            lambda v: v.__iadd__(1),
            lambda v: np.add(v, 1, out=v),
            lambda v: v.sort(),
        ):
            with pytest.raises(ValueError, match="read-only"):
                write(view)
    assert x.tolist() == [1.0] * 3


def test_arrays_without_axes_and_without_elements_are_arrays(session: il.Session) -> None:
    device = session.devices[0]
    for shape in ((), (0,), (0, 3), (2, 0, 4)):
        host = np.ones(shape)
        x = il.asarray(host, device=device)
        for ask in (
            lambda a: a + 1, lambda a: a.sum(), lambda a: a.sum(axis=0), lambda a: a.max(),
            lambda a: np.sort(a, axis=None), lambda a: np.prod(a),
            lambda a: a.T, lambda a: a.reshape(-1), lambda a: a[...], lambda a: np.concatenate([a, a]), lambda a: a @ a,
            lambda a: np.unique(a), lambda a: a[a > 0], lambda a: np.argmax(a), lambda a: np.linalg.norm(a),
            lambda a: np.roll(a, 1), lambda a: a.astype("i4"), lambda a: np.stack([a, a]), lambda a: a[0],
        ):  # fmt: skip
            ours, theirs = outcome(ask, x), outcome(ask, host)
            if isinstance(theirs, Exception):
                assert type(ours) is type(theirs), (shape, ours, theirs)
            else:
                assert agree(ours, theirs), (shape, ours, theirs)
