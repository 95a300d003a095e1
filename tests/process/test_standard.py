"""The array API standard's functions give what array-api-strict gives: values, shapes, and the standard's dtypes.

Where that refuses, the standard leaves open what happens, and NumPy's own answer is as good.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import array_api_strict as strict
import numpy as np
import pytest

import interlock as il

REAL = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float32", "float64")
DTYPES = ("bool", *REAL, "complex64", "complex128")
UNARY = """
    abs acos acosh asin asinh atan atanh bitwise_invert ceil conj cos cosh exp expm1 floor imag isfinite isinf
    isnan log log10 log1p log2 logical_not negative positive real reciprocal round sign signbit sin sinh sqrt
    square tan tanh trunc
"""
BINARY = """
    add atan2 bitwise_and bitwise_left_shift bitwise_or bitwise_right_shift bitwise_xor copysign divide equal
    floor_divide greater greater_equal hypot less less_equal logaddexp logical_and logical_or logical_xor maximum
    minimum multiply nextafter not_equal pow remainder subtract
"""
# With x and y of one dtype and shape (3, 4), v a vector of four, i int64 of four in 0..2, s and p (3, 3).
OTHERS = """
xp.all(x, axis=1) | xp.any(x) | xp.argmax(x, axis=1, keepdims=True) | xp.argmin(x) | xp.argsort(x, axis=0)
xp.argsort(x, descending=True) | xp.sort(x, axis=0, descending=True) | xp.astype(x, xp.float32) | xp.clip(x, 1, 3)
xp.broadcast_to(v, (2, 4)) | xp.broadcast_shapes((2, 1), (1, 3)) | xp.concat([x, y], axis=None)
xp.count_nonzero(x) | xp.cumulative_sum(v, include_initial=True) | xp.cumulative_prod(v) | xp.diff(x, axis=0)
xp.expand_dims(x, axis=1) | xp.eye(3, 4, k=1) | xp.flip(x) | xp.full((2,), 3, dtype=xp.int8) | xp.full_like(x, 1)
xp.isin(x, v) | xp.linspace(0, 1, 5) | xp.matmul(x, xp.matrix_transpose(y)) | xp.max(x, axis=0) | xp.mean(x, axis=1)
xp.min(x) | xp.moveaxis(x, 0, 1) | xp.nonzero(x) | xp.ones_like(x) | xp.permute_dims(x, (1, 0)) | xp.prod(x, axis=0)
xp.repeat(x, 2, axis=1) | xp.reshape(x, (4, 3)) | xp.roll(x, 1, axis=0) | xp.searchsorted(v, v)
xp.squeeze(x[None, ...], 0) | xp.stack([x, y], axis=-1) | xp.std(x, correction=1) | xp.sum(x, axis=0)
xp.sum(x, dtype=xp.float64) | xp.take(x, i[:3], axis=1) | xp.take_along_axis(x, xp.argsort(x, axis=1), axis=1)
xp.tensordot(x, y, axes=([0], [0])) | xp.tile(x, (2, 1)) | xp.tril(x) | xp.triu(x, k=1) | xp.unique_counts(v)
xp.unique_inverse(v) | xp.unique_all(v) | xp.unstack(x) | xp.var(x, axis=1) | xp.vecdot(x, y)
xp.where(x > y, x, y) | xp.where(x != y, x, 1) | xp.zeros((0, 2), dtype=x.dtype) | xp.arange(1, 9, 3) | x[x > 1]
x[..., ::-1] | x[1, :] | x[None, ..., 0] | x + 1 | x * True | 1 - x | x / 2 | -x | x @ xp.matrix_transpose(y)
x ** 2 | xp.linalg.cholesky(p) | xp.linalg.det(s) | xp.linalg.diagonal(x) | xp.linalg.eigvalsh(p) | xp.linalg.inv(s)
xp.linalg.matrix_norm(x) | xp.linalg.matrix_power(s, 2) | xp.linalg.matrix_rank(s) | xp.linalg.outer(v, v)
xp.linalg.pinv(s) | xp.linalg.slogdet(s) | xp.linalg.solve(s, p) | xp.linalg.svdvals(x) | xp.linalg.trace(x)
xp.linalg.vector_norm(x, axis=1) | xp.linalg.cross(s, s + 1) | xp.linalg.qr(s) | xp.linalg.eigh(p)[0]
xp.fft.fft(x) | xp.fft.ifft(x) | xp.fft.rfft(x) | xp.fft.irfft(x) | xp.fft.fftn(x) | xp.fft.fftshift(x)
xp.fft.fftfreq(5, d=0.5) | xp.fft.rfftfreq(5) | xp.fft.hfft(x) | xp.result_type(x, y)
xp.isdtype(x.dtype, "real floating") | xp.finfo(xp.float32).bits
"""
pytestmark = pytest.mark.filterwarnings("ignore")  # NumPy's own, about values


@pytest.fixture(scope="module")
def session() -> Iterator[il.Session]:
    with il.connect(devices=["cpu:0"]) as session:
        yield session


def given(dtype: str, xp: Any) -> dict[str, Any]:
    rng = np.random.default_rng(3)

    def some(*shape: int) -> Any:
        values: Any = rng.integers(0, 6, shape)
        if dtype.startswith(("float", "complex")):
            values = values + rng.random(shape)
        return (values + 1j * rng.random(shape) if dtype.startswith("complex") else values).astype(dtype)

    s = (some(3, 3) + np.eye(3) * 20).astype(dtype)
    arrays = {
        "x": some(3, 4), "y": some(3, 4), "v": np.sort(some(4)), "s": s, "p": (s + s.conj().T).astype(dtype),
        "i": rng.integers(0, 3, 4),
    }  # fmt: skip
    return {"xp": xp, **{name: xp.asarray(each) for name, each in arrays.items()}}


def outcome(text: str, dtype: str, xp: Any) -> Any:
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            return plain(eval(text, given(dtype, xp)))
        except Exception as error:
            return error


def plain(result: Any) -> Any:
    if isinstance(result, il.Array):
        return result.numpy()
    if hasattr(result, "__dlpack__"):
        return np.asarray(result._array)
    if isinstance(result, (tuple, list)):
        return [plain(each) for each in result]
    return getattr(result, "_np_dtype", result)


def agree(ours: Any, theirs: Any) -> bool:
    if isinstance(theirs, list):
        return isinstance(ours, list) and len(ours) == len(theirs) and all(map(agree, ours, theirs))
    if not isinstance(theirs, np.ndarray):
        return bool(ours == theirs)
    if not isinstance(ours, np.ndarray) or (ours.dtype, ours.shape) != (theirs.dtype, theirs.shape):
        return False
    return np.array_equal(ours, theirs, equal_nan=True) or np.allclose(ours, theirs, rtol=1e-5, equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_standards_functions_give_what_it_says(session: il.Session, dtype: str) -> None:
    texts = [
        *[f"xp.{name}(x)" for name in UNARY.split()],
        *[f"xp.{name}({operands})" for name in BINARY.split() for operands in ("x, y", "x, v", "x[:, :1], y", "x, 2")],
        *[each.strip() for line in OTHERS.strip().splitlines() for each in line.split("|")],
    ]
    wrong, refused = [], 0
    for text in texts:
        theirs = outcome(text, dtype, strict)
        if isinstance(theirs, Exception):
            refused += 1
            continue
        ours = outcome(text, dtype, il)
        if not agree(ours, theirs):
            wrong.append(f"{text} of {dtype}: {ours!r}, not {theirs!r}")
    assert not wrong, "\n".join(wrong)
    assert refused < 0.8 * len(texts)


def test_arrays_of_two_dtypes_promote_as_the_standard_says(session: il.Session) -> None:
    for one in DTYPES:
        for other in DTYPES:
            try:
                wanted = strict.result_type(getattr(strict, one), getattr(strict, other))
            except TypeError:
                continue  # the standard leaves it open
            x, y = il.ones(2, dtype=one), il.ones(2, dtype=other)
            found = {il.result_type(x, y), il.concat([x, y]).dtype, il.where(x == y, x, y).dtype}
            assert found == {np.dtype(wanted._np_dtype)}, (one, other)


def test_every_name_of_the_standard_is_there() -> None:
    namespaces: list[tuple[Any, Any]] = [(strict, il), (strict.linalg, il.linalg), (strict.fft, il.fft)]
    for theirs, ours in namespaces:
        names = [
            name for name in theirs.__all__ if "flags" not in name.lower() and name not in ("Device", "annotations")
        ]
        assert [name for name in names if not hasattr(ours, name)] == []


def test_what_the_standard_lets_a_program_ask(session: il.Session) -> None:
    x = il.ones(3)
    assert x.__array_namespace__() is il
    assert x.__array_namespace__(api_version="2024.12") is il
    with pytest.raises(ValueError, match="unsupported version"):
        x.__array_namespace__(api_version="1999.01")
    info = il.__array_namespace_info__()
    assert info.default_device() in info.devices() == session.devices
    assert info.capabilities()["data-dependent shapes"]
    assert set(info.dtypes(kind="real floating")) == {"float32", "float64"}
    assert set(info.dtypes()) == set(DTYPES)
    assert info.default_dtypes()["integral"] == il.int64
    for make in (il.zeros, il.ones, il.empty):
        assert make(2, device=info.default_device()).device == "cpu:0"
    assert il.astype(x, il.int32, device="cpu:0").dtype == il.int32
    assert il.from_dlpack(np.arange(3)).tolist() == [0, 1, 2]
    assert il.from_dlpack(x, device="cpu:0").device == "cpu:0"
    with pytest.raises(ValueError, match="unsupported kind"):
        info.dtypes(kind="imaginary")
