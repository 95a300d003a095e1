"""NumPy's functions on Interlock's arrays give what they give on NumPy's, or say what to use instead."""

from __future__ import annotations

import ast
import gc
import inspect
import os
import signal
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import interlock as il
from interlock.coordinator import catalogue

from .surface_calls import CALLS, EXPRESSIONS, OTHERS, REFUSED

HANG_S = 60.0
pytestmark = pytest.mark.filterwarnings("ignore")  # NumPy's own, about values


@pytest.fixture(scope="module", params=["cpu:0", "sim:0"])
def session(request: pytest.FixtureRequest) -> Iterator[il.Session]:
    with il.connect(devices=[request.param]) as session:
        yield session


def made(dtype: str, large: bool = False) -> dict[str, np.ndarray[Any, Any]]:
    """The arrays that the calls name; `large`: with more elements than a sample of the real shapes has."""
    m, n, k = (30, 40, 400) if large else (3, 4, 4)
    rng = np.random.default_rng(1)

    def some(*shape: int) -> np.ndarray[Any, Any]:
        values: Any = rng.integers(0, 5, shape)
        if np.dtype(dtype).kind in "fc":
            values = values + rng.random(shape)
        if np.dtype(dtype).kind == "c":
            values = values + 1j * rng.random(shape)
        return np.asarray(values).astype(dtype)

    square = some(m, m)
    return {
        "a": some(m, n), "b": some(m, n), "v": some(k), "w": some(k), "c": some(2, m, n), "r": np.sort(some(k)),
        "s": (some(m, m) + np.eye(m) * 9 * m).astype(dtype), "k": rng.integers(0, 3, 12).astype(dtype),
        "p": (square @ square.conj().T + np.eye(m) * 20).astype(dtype), "u": rng.integers(0, 9, 2 * k).astype("u1"),
        "i": rng.integers(0, 3, k), "j": rng.integers(0, 3, k), "m": rng.random((m, n)) > 0.5,
        "n": rng.random(n) > 0.5, "z": some(m, n) + 1j * some(m, n), "o": np.zeros((m, n), dtype),
        "q": np.zeros((m, n), dtype),
    }  # fmt: skip


def outcome(text: str, arrays: dict[str, Any]) -> Any:
    """What an expression gives, read, or its exception."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            return read(eval(text, {"np": np, **arrays}))
        except Exception as error:
            return error


def read(result: Any) -> Any:
    if isinstance(result, il.Array):
        return result.numpy(timeout=HANG_S)
    if isinstance(result, (tuple, list)):
        return type(result), [read(each) for each in result]
    return result


def agree(one: Any, other: Any) -> bool:
    """Whether two outcomes are the same; a number may be an array without axes."""
    if isinstance(one, Exception):
        return type(one) is type(other)
    if isinstance(one, tuple):
        return (
            isinstance(other, tuple)
            and one[0] is other[0]
            and len(one[1]) == len(other[1])
            and all(map(agree, one[1], other[1]))
        )
    if not isinstance(one, (np.ndarray, np.generic, int, float, complex)):
        return bool(one == other)
    a, b = np.asarray(one), np.asarray(other)
    if (a.dtype, a.shape) != (b.dtype, b.shape):
        return False
    # What is laid out otherwise in memory may be added up in another order.
    return np.array_equal(a, b, equal_nan=True) or (a.dtype.kind in "fc" and np.allclose(a, b, 1e-5, equal_nan=True))


@pytest.mark.parametrize("dtype", ["f8", "f4", "i8", "c16", "?", "u1"])
def test_numpys_functions_give_what_they_give_on_numpys_arrays(session: il.Session, dtype: str) -> None:
    if session.devices[0].kind == "sim" and dtype != "f8":
        pytest.skip("one dtype tells what queues change")
    wrong = []
    for name, text in CALLS.items():
        if _there(name):  # else it is newer than this NumPy
            wrong += differences(session, text, dtype)
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("dtype", ["f8", "i4", "c8"])
def test_numpys_other_ways_give_what_they_give_on_numpys_arrays(session: il.Session, dtype: str) -> None:
    if session.devices[0].kind == "sim" and dtype != "f8":
        pytest.skip("one dtype tells what queues change")
    wrong = [each for text in EXPRESSIONS for each in differences(session, text, dtype)]
    assert not wrong, "\n".join(wrong)


def test_what_small_samples_tell_holds_for_large_arrays(session: il.Session) -> None:
    if session.devices[0].kind == "sim":
        pytest.skip("samples know no devices")
    texts = [*[text for name, text in CALLS.items() if _there(name)], *EXPRESSIONS]
    wrong = [each for text in texts for each in differences(session, text, "f8", large=True)]
    assert not wrong, "\n".join(wrong)


_IGNORING_OUT = ("fft.hfft", "fft.ifft2", "fft.fft2", "fft.irfftn", "fft.irfft2")


def _takes_out(name: str) -> bool:
    found: Any = np
    for part in name.split("."):
        found = getattr(found, part, None)
    try:
        return "out" in inspect.signature(found).parameters
    except (TypeError, ValueError):
        return False


def test_out_is_written_or_refused_as_numpy_does_it(session: il.Session) -> None:
    """With a target that fits, of another dtype, of another layout, and of another shape."""
    tried, wrong = 0, []
    for name, text in CALLS.items():
        wanted = outcome(text, made("f8"))
        if not _takes_out(name) or not isinstance(wanted, (np.ndarray, np.generic)) or not text.endswith(")"):
            continue
        tried += 1
        shape = np.shape(wanted)
        targets = [
            np.zeros(shape, wanted.dtype), np.zeros(shape, "f4"), np.zeros(shape, "i2"), np.zeros(shape[::-1]).T,
            np.zeros((*shape, 2)),
        ]  # fmt: skip
        for target in targets:
            theirs, ours = target.copy("K"), il.asarray(target.copy("K"), device=session.devices[0])
            arrays = made("f8")
            here = {key: il.asarray(arrays[key], device=session.devices[0]) for key in _names(text) & arrays.keys()}
            command = f"{text[:-1]}, out=target)"
            one = outcome(command, {**arrays, "target": theirs})
            other = outcome(command, {**here, "target": ours})
            if name in _IGNORING_OUT and not isinstance(other, Exception):
                theirs = one = np.asarray(one).astype(target.dtype)  # ours have it
            if isinstance(one, Exception):  # then some have written already
                ours, theirs = None, None
            if name in _IGNORING_OUT and isinstance(other, (TypeError, ValueError)):
                continue  # what does not fit is refused, which NumPy lets pass
            if not agree(one, other) or not agree(theirs, read(ours)):
                wrong.append(f"{command} {target.dtype} {target.shape}: {other!r}, {read(ours)}, not {one!r}, {theirs}")
    assert not wrong, "\n".join(wrong)
    assert tried > 40


def differences(session: il.Session, text: str, dtype: str, large: bool = False) -> list[str]:
    """In what an expression, and what it changes, differs from NumPy's."""
    theirs = made(dtype, large)
    ours = {key: il.asarray(each, device=session.devices[0]) for key, each in theirs.items() if key in _names(text)}
    theirs = {key: theirs[key] for key in ours}
    wanted, found = outcome(text, theirs), outcome(text, ours)
    wrong = [] if agree(wanted, found) else [f"{text}: {found!r}, not {wanted!r}"]
    for key, each in ours.items():
        if not agree(theirs[key], read(each)):
            wrong.append(f"{text} leaves {key} as {read(each)}, not {theirs[key]}")
    return wrong


def _names(text: str) -> set[str]:
    return {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}


def _there(name: str) -> bool:
    found: Any = np
    for part in name.split("."):
        found = getattr(found, part, None)
    return found is not None


def public() -> set[str]:
    """NumPy's public functions, but for ufuncs, which have tests of their own."""
    going = {"in1d", "trapz"}  # names of older NumPys
    return {
        prefix + name
        for prefix, module in (("", np), ("linalg.", np.linalg), ("fft.", np.fft))
        for name in {*module.__all__} - going
        if callable(each := getattr(module, name)) and not isinstance(each, (type, np.ufunc)) and name[0] != "_"
    }


def test_nearly_all_of_numpys_functions_that_take_arrays_are_among_those_tested() -> None:
    taking = public() - OTHERS
    assert taking - CALLS.keys() - REFUSED.keys() == set()
    assert len(taking & CALLS.keys()) >= 0.95 * len(taking)


@pytest.mark.parametrize("name", REFUSED)
def test_what_no_worker_can_do_is_refused_naming_what_can_be_done(session: il.Session, name: str) -> None:
    ours = {key: il.asarray(each, device=session.devices[0]) for key, each in made("f8").items()}
    refusal = outcome(REFUSED[name], ours)
    assert isinstance(refusal, TypeError), refusal
    assert f"numpy.{name} is not supported on Interlock's arrays" in str(refusal)
    assert "; use " in str(refusal)


# -- shapes that depend on values -------------------------------------------------------------------------------------


def test_a_call_whose_shape_depends_on_values_returns_before_the_values_are_there(session: il.Session) -> None:
    x = il.ones(1_000_000, device=session.devices[0])
    for _ in range(50):
        x = x * 1.0  # some work, so that what follows cannot be done yet
    found = np.flatnonzero(x)
    assert not _has(found, "_spec")
    assert found.shape == (1_000_000,)
    assert int(found[-1]) == 999_999


def _has(array: il.Array, name: str) -> bool:
    """Whether a slot is filled, without asking for it."""
    try:
        object.__getattribute__(array, name)
    except AttributeError:
        return False
    return True


def test_masks_select_and_assign(session: il.Session) -> None:
    host = np.random.default_rng(0).normal(size=(40, 30))
    x = il.asarray(host, device=session.devices[0])
    assert np.array_equal(x[x > 0].numpy(), host[host > 0])
    rows = x[:, 0] > 0
    assert np.array_equal(x[rows, 1].numpy(), host[host[:, 0] > 0, 1])
    assert np.array_equal(x[host > 1].numpy(), host[host > 1])
    x[x < 0] = 0
    x[rows] *= 2
    x[rows, 3] = il.arange(0.0, 1e9, 1e9 / int(np.count_nonzero(rows)), device=session.devices[0])
    wanted = np.where(host < 0, 0, host)
    chosen = host[:, 0] > 0
    wanted[chosen] *= 2
    wanted[chosen, 3] = np.arange(0.0, 1e9, 1e9 / np.count_nonzero(chosen))
    assert np.array_equal(x.numpy(), wanted)


def test_an_operation_on_what_has_no_shape_yet_waits_for_it_and_goes_on(session: il.Session) -> None:
    host = np.random.default_rng(0).integers(0, 9, 1000)
    x = il.asarray(host, device=session.devices[0])
    values, counts = np.unique_counts(x)
    assert np.array_equal((values * counts).numpy(), np.multiply(*np.unique_counts(host)))
    assert float(x[x > 4].mean()) == host[host > 4].mean()
    assert len(x[x == 7]) == np.count_nonzero(host == 7)


def test_a_failure_is_raised_wherever_the_shape_or_the_elements_are_asked_for(session: il.Session) -> None:
    x = il.arange(4, device=session.devices[0])
    broken = il.asarray([0, 9], device=session.devices[0])
    failed = x[broken]  # only the worker sees that 9 is outside
    chosen = np.flatnonzero(failed)
    for ask in (lambda: chosen.shape, lambda: chosen.numpy(), lambda: chosen + 1, lambda: len(chosen)):
        with pytest.raises(IndexError, match="index 9 is out of bounds"):
            ask()
    assert np.flatnonzero(x).tolist() == [1, 2, 3]


def test_while_recording_a_shape_that_depends_on_values_is_refused(session: il.Session) -> None:
    x = il.ones(5, device=session.devices[0])
    with pytest.raises(il.CaptureError, match=r"a shape that depends on values is needed while .* is captured"):
        il.capture(lambda x: x[x > 0] + 1)(x)
    step = il.capture(lambda x: np.roll(x, 1) + np.linalg.norm(x))
    for n in range(3):
        y = x * n
        assert np.array_equal(step(y).numpy(), np.roll(y.numpy(), 1) + np.linalg.norm(y.numpy()))


def test_nothing_is_left_of_calls_by_name(session: il.Session) -> None:
    gc.collect()  # what failed before holds arrays by its traceback
    session.synchronize()
    before = session.inspect()
    x = il.ones((50, 50), device=session.devices[0])
    for _ in range(20):
        np.unique(x), np.roll(x, 1), x[x > 3]
    del x
    session.synchronize()
    after = session.inspect()
    assert {device: counts["arrays"] for device, counts in after.items()} == {
        device: counts["arrays"] for device, counts in before.items()
    }
    assert not session._pending


# -- the table --------------------------------------------------------------------------------------------------------


def test_the_page_of_the_table_is_the_one_that_the_code_makes() -> None:
    page = Path(catalogue.__file__).parent.parent / "docs" / "functions.md"
    if f"with NumPy {'.'.join(np.__version__.split('.')[:2])};" not in page.read_text():
        pytest.skip("the page is another NumPy's")
    assert page.read_text() == catalogue.page(), "run: python -m interlock.coordinator.catalogue > docs/functions.md"


def test_the_table_has_every_function_that_takes_arrays() -> None:
    listed = {name for name in catalogue.names() if catalogue.kind_of(name) is not None}
    assert CALLS.keys() | REFUSED.keys() <= listed | {name for name in CALLS if not _there(name)}
    ufuncs = {name for name in np.__all__ if isinstance(getattr(np, name), np.ufunc)}
    assert listed - CALLS.keys() - REFUSED.keys() - ufuncs - OTHERS == set()


@pytest.mark.parametrize("kind", [catalogue.OWN, catalogue.BY_NAME_, catalogue.WAITS, catalogue.VIEW, catalogue.READS])
def test_the_table_says_what_the_functions_do(session: il.Session, kind: str) -> None:
    for name, text in CALLS.items():
        if catalogue.kind_of(name) != kind or name == "where":  # which stands for two
            continue
        ours = {key: il.asarray(each, device=session.devices[0]) for key, each in made("f8").items()}
        session.synchronize()
        issued = session.lanes[0].first + len(session.lanes[0].batch)
        result = eval(text, {"np": np, **ours})
        arrays = list(_arrays(result))
        waiting = [not _has(each, "_spec") for each in arrays]
        if kind == catalogue.WAITS:
            assert any(waiting) or name in ("unique_values", "trim_zeros"), text  # which are used at once
        elif kind == catalogue.READS:
            assert not arrays, text
        else:
            assert not any(waiting), text
        if kind == catalogue.VIEW and name not in ("diag", "imag"):
            assert session.lanes[0].first + len(session.lanes[0].batch) == issued, text


def _arrays(result: Any) -> Iterator[il.Array]:
    if isinstance(result, il.Array):
        yield result
    elif isinstance(result, (tuple, list)):
        for each in result:
            yield from _arrays(each)


# -- reads that are not spelt out -------------------------------------------------------------------------------------

READS: list[Callable[[il.Array], Any]] = [
    np.asarray, np.array, lambda x: float(x[0]), lambda x: int(x[0]), lambda x: complex(x[0]), lambda x: bool(x[0] > 0),
    lambda x: [1, 2][x[0].astype(int)], np.from_dlpack, lambda x: np.zeros(3).__setitem__(..., x), lambda x: 1.0 in x,
]  # fmt: skip


def test_reads_that_are_not_spelt_out_can_be_found() -> None:
    with il.connect("cpu:0") as session:
        x = il.ones(3)
        assert [read_(x) is not NotImplemented for read_ in READS] == [True] * len(READS)  # allowed
        session.implicit_reads = "warn"
        for n, read_ in enumerate(READS):
            with pytest.warns(il.ImplicitReadWarning, match=r"waits for cpu:0 and reads \d+ bytes") as told:
                read_(x)
            assert told[0].filename == __file__, n
    with il.connect("cpu:0", implicit_reads="raise"):
        x = il.ones(3)
        for read_ in READS:
            with pytest.raises(il.ImplicitRead, match=r"write x\.numpy\(\) where that is meant"):
                read_(x)
        assert (x + 1).sum().item() == 6.0
        assert x.tolist() == x.numpy().tolist() == [1.0] * 3
        assert "1." in repr(x)
        assert np.unique(x).shape == (1,)
    with pytest.raises(ValueError, match="implicit_reads must be 'warn' or 'raise'"):
        il.connect("cpu:0", implicit_reads="shout")


# -- calls by name in recordings, and over several workers -------------------------------------------------------------


def _step(x: Any, m: Any, i: Any) -> tuple[Any, ...]:
    """Calls by name that make, that write, and whose results go on."""
    y = x * 2
    y[m] = 0
    np.add.at(y, i, 1.0)
    z = np.sort(y, axis=0)
    y.sort(axis=1)
    np.add(y, 1, out=y, where=m)
    singular = np.linalg.svd(y, full_matrices=False)[1]
    rolled = np.roll(z, 1, axis=0)
    a, b = np.divmod(y, 3.0, out=(z, x * 0))
    return y, z, singular, rolled, np.concatenate([a, b])


@pytest.mark.parametrize(
    ("devices", "gate"), [("cpu:0,cpu:1", "worker"), ("cpu:0,sim:0", "worker"), ("cpu:0,cpu:1", "coordinator")]
)
def test_calls_by_name_are_replayed_and_sent_like_any_other(devices: str, gate: str) -> None:
    with il.connect(devices, gate=gate) as session:
        first, second = session.devices
        step = il.capture(_step)
        for n in (4, 120):
            for seed in range(3):
                rng = np.random.default_rng(seed)
                given = rng.normal(size=(n, n)), rng.random((n, n)) > 0.5, rng.integers(0, n, 5)
                found = step(*[il.asarray(each, device=second) for each in given])
                for ours, theirs in zip(found, _step(*[each.copy() for each in given]), strict=True):
                    assert np.allclose(ours.to(first).numpy(timeout=HANG_S), theirs)
        x = il.arange(10.0, device=second)
        assert x[x > 4].to(first).tolist() == [5.0, 6.0, 7.0, 8.0, 9.0]
        assert (np.unique(x.to(first)) + x.to(first)).tolist() == [2.0 * n for n in range(10)]


def test_whoever_waits_for_a_shape_is_told_that_the_worker_was_lost() -> None:
    with il.connect("cpu:0,cpu:1") as session:
        x = il.ones(1000, device="cpu:1")
        session.synchronize()
        os.kill(session.pids["cpu:1"], signal.SIGSTOP)
        found = np.flatnonzero(x)
        os.kill(session.pids["cpu:1"], signal.SIGKILL)
        for _ in range(2):
            with pytest.raises(il.WorkerLost):
                _ = found.shape
        assert np.flatnonzero(il.ones(3, device="cpu:0")).tolist() == [0, 1, 2]
