"""The debug modes: sync="op" raises at the issuing line, nan= names what made the first NaN; a line says the cost."""

from __future__ import annotations

import gc
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import interlock as il

from .programs import run_python

HANG_S = 60.0  # generous: a deadline for a hang
KINDS = [("cpu:0,cpu:1", "worker"), ("cpu:0,sim:0", "worker"), ("cpu:0,cpu:1", "coordinator")]


@pytest.fixture(scope="module", params=KINDS, ids=str)
def stepping(request: pytest.FixtureRequest) -> Iterator[il.Session]:
    devices, gate = request.param
    with il.connect(devices=devices, gate=gate, sync="op") as session:
        yield session


def bad_line(error: BaseException) -> str:
    """The last line of this file on the way of an error."""
    return [f.line or "" for f in traceback.extract_tb(error.__traceback__) if f.filename == __file__][-1]


FAILING: dict[str, Callable[[il.Array, il.Array], object]] = {
    "an index": lambda x, far: x[far],
    "an assignment": lambda x, far: x.__setitem__(far, 1.0),
    "an addition in place": lambda x, far: x.__iadd__(x[il.arange(9, 14, device=x.device)]),
}


@pytest.mark.parametrize("what", FAILING)
def test_under_sync_op_a_failure_raises_at_its_own_line(stepping: il.Session, what: str) -> None:
    _, device = stepping.devices
    x, far = il.arange(5.0, device=device), il.asarray([9], device=device)
    with pytest.raises((IndexError, ValueError)) as raised:
        FAILING[what](x, far)
    assert bad_line(raised.value) == f'"{what}": ' + bad_line(raised.value).partition(": ")[2]
    assert "lambda x, far" in bad_line(raised.value)
    assert f"failed on {device}" in raised.value.__notes__[0]
    assert (il.arange(5.0, device=device) + 1).sum().item() == 15  # and all goes on
    il.synchronize()  # it has been raised


def test_under_sync_op_a_read_that_fails_is_not_told_of_at_the_next_operation(stepping: il.Session) -> None:
    _, device = stepping.devices
    x = il.zeros(4, device=device)
    with pytest.raises(IndexError):
        x[:2] = il.arange(5, device=device)[il.asarray([7], device=device)] * 1.0
    with pytest.raises(IndexError):
        x[il.asarray([9], device=device)] = 1.0  # now x itself has failed
    for _ in range(2):
        with pytest.raises(IndexError):
            x.numpy(HANG_S)
        assert il.ones(3, device=device).sum().item() == 3
    with pytest.raises(IndexError):
        x.to(stepping.devices[0])
    x[...] = 2
    assert x.tolist() == [2, 2, 2, 2]
    il.synchronize()


def test_under_sync_op_a_captured_function_raises_at_its_call_with_the_inner_line(stepping: il.Session) -> None:
    device = stepping.devices[1]

    @il.capture
    def step(x: il.Array, index: il.Array) -> il.Array:
        doubled = x * 2
        return doubled[index] + 1  # the inner line

    x = il.arange(5, device=device)
    assert step(x, il.asarray([2], device=device)).tolist() == [5]
    with pytest.raises(IndexError) as raised:
        step(x, il.asarray([9], device=device))
    assert "il.asarray([9]" in bad_line(raised.value)
    assert "# the inner line" in raised.value.__notes__[0]
    assert step(x, il.asarray([3], device=device)).tolist() == [7]


def test_sync_op_gives_the_same_and_leaves_nothing(stepping: il.Session) -> None:
    here, there = stepping.devices
    gc.collect()
    before = stepping.inspect()
    x = np.random.default_rng(0).random((200, 300))
    y = (il.asarray(x, device=there) * 2).to(here)
    y += 1
    y[:, ::2] = 0
    z = y.T.to(there) @ il.asarray(x, device=there)
    wanted = x * 2 + 1
    wanted[:, ::2] = 0
    assert np.array_equal(y.numpy(HANG_S), wanted)
    assert z.numpy(HANG_S).shape == (300, 300)
    with pytest.raises(IndexError):
        il.asarray(x)[il.asarray([999])]
    del y, z
    gc.collect()
    il.synchronize()
    il.synchronize()
    left = stepping.inspect()
    assert all(left[d][what] <= before[d][what] for d in left for what in ("arrays", "failures", "memory")), left


# -- nan=


@pytest.fixture(scope="module", params=KINDS, ids=str)
def flagging(request: pytest.FixtureRequest) -> Iterator[il.Session]:
    devices, gate = request.param
    with il.connect(devices=devices, gate=gate, nan="flag") as session:
        yield session


def told(read: Callable[[], object]) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        read()
    assert all(each.category is RuntimeWarning and each.filename == __file__ for each in caught)
    return [str(each.message) for each in caught]


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "c8", "c16"])
@pytest.mark.parametrize("size", [3, 5_000])
def test_the_first_operation_that_makes_one_is_named_and_what_inherits_it_is_not(
    flagging: il.Session, dtype: str, size: int
) -> None:
    here, there = flagging.devices
    x = il.ones(size, dtype=dtype, device=there)
    x[1] = 0
    fine = x * 2 + 1
    y = 1 / x  # the line that makes it
    z = (y - y).to(here) * 0
    words = told(lambda: z.numpy(HANG_S))
    assert len(words) == 1
    assert f"among {size} elements made by divide" in words[0]
    assert f"on {there}, whose operands were all finite" in words[0]
    assert "# the line that makes it" in words[0]
    assert told(lambda: (z + 1, il.synchronize(), fine.numpy(HANG_S), z.numpy(HANG_S))) == []


MAKERS: dict[str, Callable[[il.Array], object]] = {
    "divide": lambda x: x.__itruediv__(0),
    "log": lambda x: il.log(x - 7),
    "exp": lambda x: il.exp(x * 1e4, out=x),
    "sum": lambda x: (x * 4e307).sum(),
    "assign": lambda x: x.__setitem__(slice(0, 2), x.dtype.type("inf")),
    "setitem_advanced": lambda x: x.__setitem__(il.arange(1, 2, device=x.device), float("nan")),
    "full": lambda x: il.full(4, float("nan"), device=x.device),
    "astype": lambda x: (x * 1e30).astype("f2"),
    "matmul": lambda x: (x * 1e200) @ (x * 1e200),
    "modf": lambda x: il.modf(il.cosh(x) * 1e308),
}


@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize("name", MAKERS)
def test_whatever_makes_one_is_found(flagging: il.Session, name: str, captured: bool) -> None:
    def make(x: il.Array) -> list[object]:
        return [x + 1, MAKERS[name](x), x - 1]

    step = il.capture(make) if captured else make
    for _ in range(2 if captured else 1):
        x = il.arange(1.0, 5.0, device=flagging.devices[1])
        results = step(x)
        words = told(il.synchronize)
        wanted = "multiply" if name == "modf" else name
        assert len(words) == 1
        assert f" {wanted}(" in words[0], words
        assert "lambda x" in words[0]
        del results


def test_what_the_user_brought_in_is_said_to_be_his(flagging: il.Session) -> None:
    there = flagging.devices[1]
    for size in (3, 10_000):
        host = np.ones(size)
        host[2] = np.nan
        y = il.asarray(host, device=there) + 1
        words = told(lambda y=y: y.numpy(HANG_S))
        assert len(words) == 1
        assert (
            f"1 nan among {size} elements came in with the user's data: float64 ({size},), sent to {there}" in words[0]
        )
    x = il.ones(3, device=there)
    assert "came in with a number of the user's" in told(lambda: (x * np.inf).numpy(HANG_S))[0]


def test_what_is_finite_again_is_finite(flagging: il.Session) -> None:
    there = flagging.devices[1]
    x = il.ones(3, device=there)
    x /= 0
    assert len(told(il.synchronize)) == 1
    x[...] = 0  # all of it
    assert "divide" in told(lambda: (1 / x).numpy(HANG_S))[0]
    big = il.full(4, 1e308, device=there)  # whose sum is not finite, though all of it is
    il.empty(1000, device=there)
    assert told(lambda: (big * 1, il.arange(3) // 1, il.synchronize())) == []


def test_nan_raise_raises_and_the_session_goes_on() -> None:
    with il.connect("cpu:0,sim:0", nan="raise") as session:
        for device in session.devices:
            x = il.zeros(3, device=device)
            y = 0 / x  # the line that makes it
            with pytest.raises(
                FloatingPointError, match=f"3 nan among 3 elements made by divide.* on {device}"
            ) as raised:
                (x + 1).numpy(HANG_S)
            assert "# the line that makes it" in raised.value.__notes__[0]
            assert np.isnan(y.numpy(HANG_S)).all()
            il.log(x)
            with pytest.raises(FloatingPointError, match="log"):
                il.synchronize()
        il.log(x)
        with pytest.warns(RuntimeWarning, match="made by log"):
            session.close()


def test_nan_and_sync_together_raise_at_the_line() -> None:
    with il.connect("cpu:0", nan="raise", sync="op"):
        x = il.zeros(3)
        with pytest.raises(FloatingPointError, match="made by divide") as raised:
            1 / x  # this one
        assert "# this one" in bad_line(raised.value)


# -- what is said


SCRIPT = """
import sys
import interlock as il
with il.connect({arguments}) as session:
    print(session)
    step = il.capture(lambda x: x + 1, verify={verify})
    for _ in range(3):
        print(step(il.ones(2)))
"""


@pytest.mark.parametrize(
    ("arguments", "environment", "verify", "words"),
    [
        ("'cpu:0'", {}, False, []),
        (
            "'cpu:0', sync='op'",
            {},
            False,
            ["sync='op': every operation waits for its worker (about ", " µs each here)"],
        ),
        ("'cpu:0'", {"INTERLOCK_SYNC": "op", "INTERLOCK_NAN": "flag"}, False, ["sync='op', nan='flag'"]),
        ("'cpu:0', sync='', nan=''", {"INTERLOCK_SYNC": "op", "INTERLOCK_NAN": "flag"}, False, []),
        ("'cpu:0', gate='coordinator'", {}, False, ["gate='coordinator': what crosses workers waits"]),
        ("'cpu:0'", {}, True, ["capture(verify=True): the function is called and compared at every call"]),
    ],
)
def test_a_slow_mode_says_so_once_and_a_plain_session_says_nothing(
    arguments: str, environment: dict[str, str], verify: bool, words: list[str]
) -> None:
    ran = run_python(SCRIPT.format(arguments=arguments, verify=verify), env=environment)
    assert ran.code == 0, ran.err
    assert ran.out.count("[2. 2.]") == 3
    assert ran.err.count("\n") == (1 if words else 0), ran.err
    assert all(each in ran.err for each in words)
    said = words[0].partition(":")[0] if words and not verify else ""
    assert ran.out.splitlines()[0] == f"<interlock session: cpu:0{'; ' if said else ''}{said}>"


def test_what_is_no_mode_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="sync must be 'op', or '' for off, not 'all'"):
        il.connect("cpu:0", sync="all")
    monkeypatch.setenv("INTERLOCK_NAN", "yes")
    with pytest.raises(ValueError, match=r"nan must be 'flag' or 'raise', .* \(from INTERLOCK_NAN\)"):
        il.connect("cpu:0")
