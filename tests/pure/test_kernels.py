"""A kernel gives bit for bit what the NumPy call gives, in the promised layout; into `out` as well."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from interlock.coordinator.infer import Inferred, encode_scalar, infer, infer_into
from interlock.protocol.operations import BY_NAME, OPERATIONS, Operation
from interlock.protocol.specs import Spec, spec
from interlock.worker.kernels import conform, decode_operand, kernel

from .numpy_calls import Call, arrays, calls, fresh, same_bits, same_layout, shapes, specs_of

pytestmark = pytest.mark.filterwarnings("ignore")  # NumPy's own, about values
few = settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True)


@pytest.fixture(autouse=True)
def _quiet() -> Any:
    with np.errstate(all="ignore"):
        yield


def accepted(call: Call) -> Any:
    """What infer promises; None where it refuses."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if call.operation.kind == "asked":
                return Inferred(tuple([spec_of(each) for each in _results(call.direct(*fresh(call.operands)))]))
            return infer(call.operation, specs_of(call.operands), call.static)
    except Exception:
        return None


def _results(direct: Any) -> tuple[Any, ...]:
    return direct if isinstance(direct, tuple) else () if direct is None else (direct,)


def spec_of(array: Any) -> Spec:
    """The spec of a result that nobody could promise: the layout that it has."""
    found: Spec = specs_of((np.array(array, order="C"),))[0]
    return found


def sent(call: Call, operands: tuple[Any, ...], specs: tuple[Spec, ...]) -> tuple[Any, ...]:
    """The operands as they are on the worker: arrays, generators, and scalars that went over the wire."""
    known = specs_of(call.operands)
    result = specs[0] if specs else known[0]
    return tuple(
        [
            each
            if isinstance(each, (np.ndarray, np.random.Generator))
            else decode_operand(encode_scalar(call.operation, known, place, result))
            for place, each in enumerate(operands)
        ]
    )


def run(operation: Operation, out: Any, operands: tuple[Any, ...], static: tuple[Any, ...]) -> tuple[Any, ...]:
    """The results of a kernel, called as the executor does."""
    function = kernel(operation, np)
    if operation.plain:
        result = function(*operands, out)
        return (result if isinstance(result, np.ndarray) else np.asarray(result),)
    result = function(out, operands, static)
    return result if isinstance(result, tuple) else () if result is None else (result,)


def memory(operand: Any) -> bytes:
    """All that an operation could have written of an operand."""
    if isinstance(operand, np.random.Generator):
        return repr(operand.bit_generator.state).encode()
    base = operand
    while isinstance(base.base, np.ndarray):
        base = base.base
    return bytes(base.base) if base.base is not None else base.tobytes()


def room(promised: Spec) -> np.ndarray[Any, Any]:
    """Memory full of rubbish, in the promised layout."""
    rubbish = bytearray(b"\x55" * max(promised.nbytes, 1))
    return np.ndarray(promised.shape, promised.dtype, rubbish, 0, promised.strides)


rows = pytest.mark.parametrize("operation", OPERATIONS, ids=lambda row: row.name)


@rows
@given(data=st.data())
@few
def test_a_kernel_gives_what_numpy_gives_bit_for_bit(operation: Operation, data: st.DataObject) -> None:
    call: Call = data.draw(calls(operation))
    inferred = accepted(call)
    if inferred is None:
        return
    mine, theirs = fresh(call.operands), fresh(call.operands)
    direct = call.direct(*theirs)
    results = run(operation, None, sent(call, mine, inferred.specs), call.static)
    wanted = _results(direct)
    assert len(results) == len(wanted)
    for promised, result, want in zip(inferred.specs, results, wanted, strict=True):
        if isinstance(want, np.random.Generator):
            assert memory(result) == memory(want)
            continue
        assert type(result) is np.ndarray
        assert result.base is None or operation.kind not in ("named", "asked")
        assert result.dtype == promised.dtype
        if operation.plain:  # nobody conforms these
            assert same_layout(result.strides, promised.strides, promised.shape)
        result = conform(result, promised)
        assert same_layout(result.strides, promised.strides, promised.shape)
        assert operation.name == "empty" or same_bits(result, np.asarray(want))
        assert not any(np.may_share_memory(result, each) for each in mine if isinstance(each, np.ndarray))
    for place in operation.writes:
        assert memory(mine[place]) == memory(theirs[place])


@pytest.mark.parametrize(
    "operation", [row for row in OPERATIONS if row.outputs and row.name != "rng_new"], ids=lambda row: row.name
)
@given(data=st.data())
@few
def test_a_kernel_writes_the_same_into_memory_allocated_as_promised(operation: Operation, data: st.DataObject) -> None:
    call: Call = data.draw(calls(operation))
    inferred = accepted(call)
    if inferred is None:
        return
    mine, theirs = fresh(call.operands), fresh(call.operands)
    direct = call.direct(*theirs)
    outs = tuple([room(each) for each in inferred.specs])
    run(operation, outs[0] if len(outs) == 1 else outs, sent(call, mine, inferred.specs), call.static)
    if operation.name == "empty":
        return
    for out, want in zip(outs, direct if isinstance(direct, tuple) else (direct,), strict=True):
        assert same_bits(out, np.asarray(want))


@pytest.mark.parametrize("operation", [row for row in OPERATIONS if row.plain], ids=lambda row: row.name)
@given(data=st.data())
@few
def test_a_ufunc_writes_into_a_target_of_another_layout_and_dtype(operation: Operation, data: st.DataObject) -> None:
    call: Call = data.draw(calls(operation))
    inferred = accepted(call)
    if inferred is None:
        return
    target = data.draw(arrays(inferred.specs[0].shape, "dDi", writable=True))
    try:
        infer_into(operation, specs_of(call.operands), (), specs_of((target,))[0])
    except Exception:
        return
    (mine,), (theirs,) = fresh((target,)), fresh((target,))
    call.direct(*call.operands, out=theirs)
    run(operation, mine, sent(call, call.operands, inferred.specs), ())
    assert memory(mine) == memory(theirs)


@pytest.mark.parametrize("n", [8, 10_000, 20_000, 1_000_000])
def test_an_update_from_an_overlapping_slice_is_as_if_the_slice_had_been_copied(n: int) -> None:
    d = np.ones(n)
    kernel(BY_NAME["add"], np)(d[1:], d[:-1], d[1:])
    kernel(BY_NAME["multiply"], np)(d[1:], 0.5, d[1:])
    assert (d == 1).all()


def test_an_array_divided_by_its_own_row_is_as_in_numpy() -> None:
    b = np.array([[1.0, 2.0], [3.0, 4.0]])
    kernel(BY_NAME["divide"], np)(b, b[0], b)
    assert b.tolist() == [[1, 1], [3, 2]]


@pytest.mark.parametrize("name", ["mean", "var", "std"])
def test_half_precision_is_rounded_once_into_memory_allocated_before(name: str) -> None:
    operation = BY_NAME[name]
    array = np.random.default_rng(0).random((50, 999)).astype("f2")
    static = tuple([{"axis": 1, "dtype": None, "ddof": 0, "keepdims": False}[each] for each in operation.static])
    out = np.empty(50, "f2")
    run(operation, out, (array,), static)
    assert same_bits(out, getattr(np, name)(array, axis=1))


def test_a_plain_kernel_is_the_ufunc_itself() -> None:
    assert kernel(BY_NAME["add"], np) is np.add
    assert not BY_NAME["divmod"].plain


@given(array=st.deferred(lambda: shapes.flatmap(arrays)), other=st.data())
@few
def test_conform_copies_only_another_layout(array: Any, other: st.DataObject) -> None:
    (promised,) = specs_of((array,))
    assert conform(array, promised) is array
    order: Any = other.draw(st.sampled_from("CF"))
    wanted = np.empty(array.shape, array.dtype, order)
    result = conform(array, specs_of((wanted,))[0])
    assert same_bits(result, array)
    assert same_layout(result.strides, wanted.strides, array.shape)
    assert (result is array) == same_layout(array.strides, wanted.strides, array.shape)


def test_conform_refuses_another_shape() -> None:
    with pytest.raises(AssertionError, match="promised"):
        conform(np.ones(3), spec((4,), np.dtype("f8")))


def test_references_are_told_apart() -> None:
    assert decode_operand((True,)) is True
    assert type(decode_operand(("<f4", np.float32(1.5).tobytes()))) is np.float32
