"""What infer promises is what NumPy gives; what it refuses, NumPy refuses with the same words."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from interlock.coordinator import infer as module
from interlock.coordinator.infer import (
    GENERATOR,
    encode_scalar,
    fast_power,
    infer,
    infer_into,
    like_order,
    scalar_ref,
    seed_words,
    weak_key,
)
from interlock.coordinator.views import encode_key
from interlock.protocol.operations import BY_NAME, OPERATIONS, Operation
from interlock.protocol.specs import spec
from interlock.worker.kernels import decode_operand

from .numpy_calls import DTYPES, HUGE_INTS, INTS, Call, arrays, calls, elementwise, fresh, same_layout, shapes, specs_of

pytestmark = pytest.mark.filterwarnings("ignore")  # NumPy warns about values; infer promises nothing about them
few = settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True)
rows = pytest.mark.parametrize("operation", OPERATIONS, ids=lambda row: row.name)


def outcome(function: Any, *arguments: Any) -> Any:
    """What a function returns, or the exception."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            return function(*arguments)
        except Exception as error:
            return error


@rows
@given(data=st.data())
@few
def test_the_promised_specs_are_those_that_numpy_gives(operation: Operation, data: st.DataObject) -> None:
    call: Call = data.draw(calls(operation))
    direct = outcome(call.direct, *fresh(call.operands))
    inferred = outcome(infer, operation, specs_of(call.operands), call.static)
    if isinstance(direct, Exception):
        assert type(inferred) is type(direct), (inferred, direct)
        return
    if isinstance(inferred, Exception):
        assert operation.kind == "asked" or _holds_objects(direct), inferred
        return
    results = direct if isinstance(direct, tuple) else () if direct is None else (direct,)
    assert len(inferred.specs) == len(results)
    assert operation.outputs in (-1, len(results))
    for promised, result in zip(inferred.specs, results, strict=True):
        if promised is GENERATOR:
            continue
        array = np.asarray(result)
        assert (promised.shape, promised.dtype) == (array.shape, array.dtype)
        if operation.name in ("mean", "var", "std") and call.operands[0].size == 0:
            continue  # what NumPy makes of no samples is all alike; workers lay it out as was promised
        if operation.kind == "named" or operation.name == "rng_named":
            continue  # some give views; workers make arrays of their own
        assert same_layout(promised.strides, array.strides, array.shape), (promised, array.strides)


def _holds_objects(result: Any) -> bool:
    """Whether NumPy left the numbers: an int beyond 64 bits as an array."""
    return np.asarray(result).dtype == object


@pytest.mark.parametrize("operation", [row for row in OPERATIONS if row.plain], ids=lambda row: row.name)
@given(data=st.data())
@few
def test_writing_into_a_target_is_refused_exactly_where_numpy_refuses_it(
    operation: Operation, data: st.DataObject
) -> None:
    call: Call = data.draw(calls(operation))
    target = data.draw(arrays(data.draw(shapes), writable=True))
    plain = outcome(call.direct, *fresh(call.operands))
    if isinstance(plain, np.ndarray) and data.draw(st.booleans()):
        target = data.draw(arrays(plain.shape, writable=True))
    (out,) = fresh((target,))
    direct = outcome(lambda *operands: call.direct(*operands, out=out), *fresh(call.operands))
    inferred = outcome(infer_into, operation, specs_of(call.operands), call.static, *specs_of((target,)))
    if isinstance(direct, Exception):
        assert type(inferred) is type(direct)
        assert str(inferred) == str(direct)
    else:
        assert inferred.specs == specs_of((target,))


@pytest.mark.parametrize("name", ["sum", "mean", "std", "max", "argmax", "any", "cumsum", "round", "clip", "where"])
@given(data=st.data())
@few
def test_a_result_of_another_kind_goes_into_a_target_as_numpy_lets_it(name: str, data: st.DataObject) -> None:
    call: Call = data.draw(calls(BY_NAME[name]))
    plain = outcome(call.direct, *fresh(call.operands))
    if isinstance(plain, Exception):
        return
    target = np.empty(np.shape(plain), data.draw(st.sampled_from(DTYPES)))
    if name == "where":
        direct = outcome(lambda: np.copyto(target, plain, casting="same_kind"))
    else:
        direct = outcome(lambda *operands: call.direct(*operands), *fresh(call.operands))
        named = dict(zip(call.operation.static, call.static, strict=True))
        if name == "clip":
            direct = outcome(lambda a, *b: np.clip(a, *_both(named, b), out=target), *fresh(call.operands))
        else:
            direct = outcome(lambda a: getattr(np, name)(a, **named, out=target), *fresh(call.operands))
    inferred = outcome(infer_into, call.operation, specs_of(call.operands), call.static, *specs_of((target,)))
    if isinstance(direct, Exception):
        assert type(inferred) is type(direct), (inferred, direct)
    else:
        assert inferred.specs == specs_of((target,)), (inferred, call)


def _both(named: dict[str, Any], bounds: tuple[Any, ...]) -> tuple[Any, Any]:
    return bounds[0] if named["min"] else None, bounds[-1] if named["max"] else None


RANGED = ["add", "multiply", "power", "less", "left_shift", "arctan2", "assign", "full", "where"]
ENCODED = ["add", "power", "less_equal", "maximum", "divide", "copysign"]


@pytest.mark.parametrize("name", RANGED)
@given(data=st.data(), first=st.sampled_from(INTS), second=st.sampled_from((*INTS, *HUGE_INTS)))
@few
def test_an_int_inside_the_range_has_the_same_specs_and_one_that_numpy_refuses_lies_outside(
    name: str, data: st.DataObject, first: int, second: int
) -> None:
    array = data.draw(arrays((2, 3), writable=True))
    operation = BY_NAME[name]
    static = ((2, 3), array.dtype.str, "C") if name == "full" else ()

    def ask(value: int) -> Any:
        operands = (value,) if name == "full" else (array, value) if name != "where" else (array, array, value)
        return outcome(infer, operation, specs_of(operands), static)

    one, other = ask(first), ask(second)
    if not isinstance(one, Exception) and one.low <= second <= one.high:
        assert one == other
    if not isinstance(one, Exception):
        assert one.low <= first <= one.high
        for edge in (one.low, one.high):
            assert ask(edge) == one


@given(operands=elementwise(2), name=st.sampled_from(ENCODED))
@settings(few, max_examples=200)
def test_an_encoded_scalar_computes_what_the_scalar_itself_does(operands: tuple[Any, ...], name: str) -> None:
    operation = BY_NAME[name]
    inferred = outcome(infer, operation, specs_of(operands), ())
    if isinstance(inferred, Exception):
        return
    result = inferred.specs[0]
    sent = [
        each
        if isinstance(each, np.ndarray)
        else decode_operand(encode_scalar(operation, specs_of(operands), place, result))
        for place, each in enumerate(operands)
    ]
    with np.errstate(all="ignore"):
        one, other = getattr(np, name)(*operands), getattr(np, name)(*sent)
    assert (one.dtype, one.tobytes()) == (other.dtype, other.tobytes())


A = spec((3,), np.dtype("f4"))
BYTES = spec((1,), np.dtype("u1"))
LONGS = spec((3,), np.dtype("i8"))
DOUBLES = spec((3,), np.dtype("f8"))


@pytest.mark.parametrize(
    "bounds", [(0.0, 10**400), (0.0, 2**1024), (np.float32(0), 10**400), (0, 10**400), (0j, 10**400), (-(10**400), 1j)]
)
def test_a_bound_beyond_all_floats_is_no_bound_for_ints(bounds: tuple[Any, Any]) -> None:
    operands = (np.array([-5, 5], np.int8), *bounds)
    (result,) = infer(BY_NAME["clip"], specs_of(operands), (True, True)).specs
    sent = [decode_operand(encode_scalar(BY_NAME["clip"], specs_of(operands), place, result)) for place in (1, 2)]
    want = np.clip(*operands)
    assert result.dtype == want.dtype
    assert (np.clip(operands[0], *sent) == want).all()


@pytest.mark.parametrize(
    ("name", "array", "value", "dtype", "ref"),
    [
        ("multiply", A, np.float64(2), "f8", ("<f8", np.float64(2).tobytes())),
        ("multiply", A, 2.0, "f4", (2.0,)),
        ("add", BYTES, 200, "u1", (200,)),
        ("multiply", A, 1j, "c8", ("<c8", np.complex64(1j).tobytes())),
        ("multiply", DOUBLES, 10**30, "f8", ("<f8", np.float64(1e30).tobytes())),
        ("add", LONGS, True, "i8", (True,)),
        ("add", LONGS, np.bool_(True), "i8", ("|b1", b"\1")),
        ("less", LONGS, 10**30, "?", ("<f8", np.float64("inf").tobytes())),
        ("add", spec((3,), np.dtype("u8")), 2**63, "u8", ("<u8", np.uint64(2**63).tobytes())),
    ],
)
def test_scalars_keep_their_meaning_on_the_wire(name: str, array: Any, value: Any, dtype: str, ref: Any) -> None:
    operation = BY_NAME[name]
    result = infer(operation, (array, value), ()).specs[0]
    assert result.dtype == np.dtype(dtype)
    encoded = encode_scalar(operation, (array, value), 1, result)
    assert encoded == ref
    assert [type(part) for part in encoded] == [type(part) for part in ref]


def test_an_int_that_does_not_fit_is_refused_with_its_range() -> None:
    with pytest.raises(OverflowError, match="Python integer 300 out of bounds for uint8"):
        infer(BY_NAME["add"], (BYTES, 300), ())
    inferred = infer(BY_NAME["add"], (BYTES, 200), ())
    assert (inferred.low, inferred.high) == (0, 255)


def test_a_huge_int_never_hits_the_cache() -> None:
    inferred = infer(BY_NAME["multiply"], (DOUBLES, 10**30), ())
    assert inferred.low > inferred.high


@pytest.mark.parametrize(
    ("name", "operands", "static", "error"),
    [
        ("add", (A, spec((4,), np.dtype("f4"))), (), r"shapes \(3,\) \(4,\)"),
        ("matmul", (spec((2, 300), np.dtype("f4")), A), (), "size 3 is different from 300"),
        ("max", (spec((0, 7), np.dtype("f4")),), (0, False), "zero-size array to reduction operation maximum"),
        ("sum", (A,), (1, None, False), "axis 1 is out of bounds for array of dimension 1"),
        ("concatenate", (spec((700, 3), A.dtype), spec((5, 4), A.dtype)), (0, None), "size 3 and .* size 4"),
        ("assign", (A, spec((700,), A.dtype)), (), r"from shape \(700,\) into shape \(3,\)"),
        ("assign", (spec((3,), A.dtype, (0,)), 1.0), (), "assignment destination is read-only"),
        ("power", (LONGS, -1), (), "Integers to negative integer powers"),
        ("getitem_advanced", (A,), (encode_key([7], Call)[0],), "index 7 is out of bounds for axis 0 with size 3"),
        ("getitem_advanced", (A, spec((3,), np.dtype("?"))), (("@",),), "must be of integer"),
        ("arange", (), ((0,), (3,), (0,), None), "division by zero"),
        ("zeros", (), ((-1,), "<f8", "C"), "negative dimensions are not allowed"),
    ],
)
def test_a_refusal_has_the_words_for_the_real_shapes(name: str, operands: Any, static: Any, error: str) -> None:
    with pytest.raises((ValueError, IndexError, ZeroDivisionError), match=error):
        infer(BY_NAME[name], operands, static)


def test_in_place_refusals_have_numpys_words() -> None:
    with pytest.raises(
        TypeError, match=r"Cannot cast ufunc 'divide' output from dtype\('float64'\) to dtype\('int64'\)"
    ):
        infer_into(BY_NAME["divide"], (LONGS, 2), (), LONGS)
    with pytest.raises(ValueError, match=r"non-broadcastable output operand with shape \(3,\) .* shape \(2,3\)"):
        infer_into(BY_NAME["add"], (DOUBLES, spec((2, 3), DOUBLES.dtype)), (), DOUBLES)
    with pytest.raises(ValueError, match="output array is read-only"):
        infer_into(BY_NAME["add"], (A, 1), (), spec((3,), A.dtype, (0,)))


@pytest.mark.parametrize("dtype", ["O", "U3", "S3", "M8[s]", "m8[s]", [("a", "f4")], ">f4"])
def test_a_dtype_that_no_device_holds_is_refused_by_name(dtype: Any) -> None:
    named = np.dtype(dtype)
    with pytest.raises(TypeError, match="is not supported") as caught:
        infer(BY_NAME["add"], (spec((2,), named), A), ())
    assert str(named) in str(caught.value)
    with pytest.raises(TypeError, match="is not supported"):
        infer(BY_NAME["astype"], (A,), (named.str if named.fields is None else "V4", "K"))


def test_what_is_no_number_is_refused() -> None:
    for value in ("text", None, object(), np.datetime64("2020-01-01"), b"bytes"):
        with pytest.raises(TypeError, match="is not supported"):
            infer(BY_NAME["add"], (A, value), ())  # type: ignore[arg-type]


def test_a_generator_is_no_array() -> None:
    with pytest.raises(TypeError, match="is not supported"):
        infer(BY_NAME["add"], (GENERATOR, A), ())
    with pytest.raises(TypeError, match="needs a random generator"):
        infer(BY_NAME["rng_random"], (A,), ((3,), "<f8"))


def test_huge_arrays_cost_nothing_to_infer() -> None:
    huge = spec((1 << 20, 1 << 15), np.dtype("f4"))
    wide = spec((1 << 15, 1 << 20), np.dtype("f4"))
    assert infer(BY_NAME["matmul"], (huge, wide), ()).specs[0].shape == (1 << 20, 1 << 20)
    assert infer(BY_NAME["sum"], (huge,), (0, None, False)).specs[0].shape == (1 << 15,)
    assert infer(BY_NAME["zeros"], (), (huge.shape, "<f4", "C")).specs == (huge,)
    assert infer(BY_NAME["arange"], (), ((0,), (10**15,), (1,), None)).specs[0].shape == (10**15,)
    assert infer(BY_NAME["rng_random"], (GENERATOR,), (huge.shape, "<f4")).specs == (huge,)


def test_the_extents_of_the_sample_are_small_and_equal_where_the_real_ones_are() -> None:
    extents = module._Extents([(7, 1, 0, 900), (900, 7, 3)])
    assert extents.shrink((7, 1, 0, 900)) == (3, 1, 0, 4)
    assert extents.shrink((900, 7, 3)) == (4, 3, 2)


def test_keys_of_scalars_tell_apart_what_numpy_tells_apart() -> None:
    keys = [weak_key(x) for x in (True, 1, 1.0, 1j, np.int8(1), np.int16(1), np.int8(-1), np.bool_(1), np.float64(1))]
    assert len(set(keys)) == len(keys)
    assert weak_key(1) == weak_key(10**30)
    assert weak_key(np.float64(3)) == weak_key(np.float64(-2))
    with pytest.raises(TypeError, match="str is not supported"):
        weak_key("x")  # type: ignore[arg-type]


@given(array=arrays((3,), "fdFDiq"), exponent=st.sampled_from((2, -1, 0.5, 3, 2.0, 1, 0, np.float64(0.5))))
@settings(few, max_examples=60)
def test_the_operator_of_powers_takes_numpys_short_cuts(array: Any, exponent: Any) -> None:
    operation = fast_power(array.dtype, exponent)
    with np.errstate(all="ignore"):
        direct = outcome(lambda: array**exponent)
        made = getattr(np, operation.name)(array) if operation else outcome(np.power, array, exponent)
    if isinstance(direct, Exception):
        assert type(made) is type(direct)
    else:
        assert (made.dtype, made.tobytes()) == (direct.dtype, direct.tobytes())


@pytest.mark.parametrize("seed", [0, 5, 2**70 + 5, (3, 2**40), np.int64(7)])
def test_the_words_of_a_seed_give_its_stream(seed: Any) -> None:
    assert np.random.default_rng(seed).random() == np.random.default_rng(seed_words(seed)).random()


def test_a_negative_seed_is_refused() -> None:
    with pytest.raises(ValueError, match="non-negative"):
        seed_words(-1)


@given(array=arrays((2, 3, 5)))
@few
def test_like_order_makes_arrays_as_empty_like_does(array: Any) -> None:
    order = like_order(*specs_of((array,)))
    (made,) = infer(BY_NAME["empty"], (), (array.shape, array.dtype.str, order)).specs
    assert made.strides == np.empty_like(array).strides


def test_scalars_among_static_values_keep_their_dtype() -> None:
    assert scalar_ref(None) is None
    assert scalar_ref(3) == (3,)
    assert scalar_ref(np.float32(3)) == ("<f4", np.float32(3).tobytes())
    assert scalar_ref(2**64 - 1) == ("<u8", b"\xff" * 8)
