"""Plays random programs on a session and compares all that comes with what NumPy made of them.

Knows how a session is started, what may be left in it when a program is over (nothing), and how to make a failing
program smaller. What programs are, and what must come of them, is in `programs.py`.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

import interlock as il
from interlock.coordinator import lane

from . import programs
from .programs import Array, Expected, Line, Side, Step, plan

PATIENCE_S = 30.0  # how long anything may take before it counts as a hang
OUT_OF_MEMORY = "OutOfDeviceMemory"


class Wrong(AssertionError):
    """Interlock and NumPy disagree, or something hangs, or something is left over."""


@dataclass(frozen=True)
class Setting:
    """On what a program is played."""

    devices: str = "cpu:0,cpu:1,cpu:2"
    gate: str = "worker"
    options: dict[str, Any] = field(default_factory=dict)
    window: int = 1024
    memory: int | None = None
    known: int = lane.KNOWN  # specs that a worker is made to remember
    recover: bool = False  # what a lost worker had comes back
    may_run_out: bool = False  # of memory: then an array may be an OutOfDeviceMemory instead of right

    def reseeded(self, seed: int) -> Setting:
        """The same with other chaos, if there is any."""
        return replace(self, options={**self.options, "seed": seed}) if "seed" in self.options else self

    @contextlib.contextmanager
    def session(self) -> Iterator[il.Session]:
        session = il.connect(
            self.devices,
            gate=self.gate,
            options=dict(self.options),
            window=self.window,
            memory=self.memory,
            recover=self.recover,
        )
        if self.memory:  # the workers are to run out of it, not the uploads, which say so when they are issued
            session._arena.limit_bytes = 1 << 30
        before, lane.KNOWN = lane.KNOWN, self.known  # type: ignore[misc]
        try:
            yield session
        finally:
            lane.KNOWN = before  # type: ignore[misc]
            try:
                _forget_failures(session)
            finally:
                session.close()


def _forget_failures(session: il.Session) -> None:
    """Failures are part of the programs: take note of them, so that the end of the session does not warn."""
    try:
        session.synchronize(timeout=PATIENCE_S)
    except Exception as error:
        if not getattr(error, "__notes__", ()):  # not one of a program's own
            raise


def same(found: Array, wanted: Array) -> bool:
    """Whether two arrays agree, bit for bit but for the payloads of NaNs, and in their layout."""
    if (
        found.dtype != wanted.dtype
        or found.shape != wanted.shape
        or not same_strides(found.strides, wanted.strides, found.shape)
    ):
        return False
    if found.tobytes() == wanted.tobytes():
        return True
    if wanted.dtype.kind not in "fc":
        return False
    parts = zip(_parts(found), _parts(wanted), strict=True)
    return all(
        np.array_equal(np.isnan(f), np.isnan(w)) and f[~np.isnan(f)].tobytes() == w[~np.isnan(w)].tobytes()
        for f, w in parts
    )


def _parts(array: Array) -> tuple[Array, ...]:
    return (array.real, array.imag) if array.dtype.kind == "c" else (array,)


def same_strides(found: tuple[int, ...], wanted: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    return 0 in shape or all(f == w for f, w, extent in zip(found, wanted, shape, strict=True) if extent != 1)


class Player:
    """One program on one session."""

    def __init__(self, session: il.Session, setting: Setting) -> None:
        self.session = session
        self.setting = setting
        self.side = Side(il, tuple(session.devices))
        self.values: dict[int, Any] = {}
        self.patience_s = PATIENCE_S
        self.ran_out = 0  # how many reads found that there was no memory

    def play(self, lines: list[Line], left: dict[int, Expected]) -> None:
        """Issue all steps, then read all that is left.

        Raises:
            Wrong: something is not as NumPy has it.
        """
        for at, line in enumerate(lines):
            try:
                self._line(line)
            except Wrong as wrong:
                raise Wrong(f"step {at}, {line.step}: {wrong}") from None
        for variable, expected in left.items():
            try:
                self._compare(variable, expected)
            except Wrong as wrong:
                raise Wrong(f"at the end, v{variable}: {wrong}") from None

    def _line(self, line: Line) -> None:
        step = line.step
        if step.kind == "free":
            del self.values[step.args[0]]
        elif step.kind == "synchronize":
            self._synchronize(line.failed)
        elif line.read is not None:
            self._compare(step.args[0], line.read)
        else:
            self._operate(line)

    def _operate(self, line: Line) -> None:
        step = line.step
        try:
            results = programs.run(step, self.side, tuple(self.values[arg] for arg in step.args))
        except Exception as error:
            if line.refused is None:
                raise Wrong(f"refused by Interlock only: {type(error).__name__}: {error}") from error
            if type(error).__name__ != line.refused:
                raise Wrong(f"NumPy raises {line.refused}, Interlock {type(error).__name__}: {error}") from error
            return
        if line.refused is not None:
            raise Wrong(f"NumPy raises {line.refused}, Interlock nothing")
        made = results if type(results) is tuple else (results,)
        for variable, result, promise in zip(step.out, made, line.made, strict=False):
            self.values[variable] = result
            if promise is not None:
                shape, dtype, strides = promise
                found = (result.shape, result.dtype.str)
                if found != (shape, dtype) or not same_strides(result.strides, strides, shape):
                    raise Wrong(f"NumPy makes {promise}, Interlock {(*found, result.strides)}")

    def _compare(self, variable: int, expected: Expected) -> None:
        try:
            found = self.values[variable].numpy(timeout=PATIENCE_S)
        except TimeoutError as error:
            raise Wrong(f"hangs: {error}") from None
        except Exception as error:
            self._compare_error(error, expected)
            return
        if expected.errors:
            raise Wrong(f"must have failed with {sorted(expected.errors)}, but has a value")
        assert expected.array is not None
        if not same(found, expected.array):
            raise Wrong(_difference(found, expected.array))

    def _compare_error(self, error: Exception, expected: Expected) -> None:
        notes = "\n".join(getattr(error, "__notes__", ()))
        found = type(error).__name__
        self.ran_out += found == OUT_OF_MEMORY
        if found not in expected.errors and not (found == OUT_OF_MEMORY and self.setting.may_run_out):
            wanted = f"to fail with {sorted(expected.errors)}" if expected.errors else "a value"
            raise Wrong(f"was {wanted}, but reading raises {found}: {error}\n{notes}")
        issued = notes.partition("\n  reached")[0]  # by a step, or, without memory for the answer, by the read itself
        if programs.__file__ not in issued and not (found == OUT_OF_MEMORY and __file__ in issued):
            raise Wrong(f"{found} does not tell the line that failed:\n{notes}")

    def _synchronize(self, may_fail: bool) -> None:
        try:
            self.session.synchronize(timeout=PATIENCE_S)
        except TimeoutError as error:
            raise Wrong(f"hangs: {error}") from None
        except Exception as error:
            if not may_fail and not (isinstance(error, il.OutOfDeviceMemory) and self.setting.may_run_out):
                raise Wrong(f"nothing failed, but synchronize raises {type(error).__name__}: {error}") from None

    def finish(self) -> None:
        """Drop everything; nothing may be left anywhere.

        Raises:
            Wrong: something is left.
        """
        self.values.clear()
        self._synchronize(may_fail=True)
        deadline = time.monotonic() + self.patience_s
        # Workers tell one another what they no longer read after the last instruction: ask until that has come.
        while found := self.left_over():
            if time.monotonic() > deadline:
                raise Wrong(f"left over after everything was dropped: {found}")
            self._synchronize(may_fail=True)

    def left_over(self) -> dict[str, Any]:
        """What workers and the frontend still hold, by place; nothing when all is well."""
        found: dict[str, Any] = {}
        for device, counts in self.session.inspect().items():
            if held := {name: count for name, count in counts.items() if count}:
                found[device] = held
        if held := self._frontend():
            found["frontend"] = held
        return found

    def _frontend(self) -> dict[str, Any]:
        session: Any = self.session
        with session.lock:
            held = {name: len(getattr(session, name)) for name in ("recvs", "sends", "_uploads", "_pending")}
            held["unread"] = len(session._failures._unread)
            held["bytes"] = session._arena.used_bytes
            held["hazards"] = not session.hazards.idle
            for lane in session.lanes:
                held[f"dropped {lane.device}"] = len(lane.dropped)
        return {name: count for name, count in held.items() if count}


def _difference(found: Array, wanted: Array) -> str:
    if (found.dtype, found.shape) != (wanted.dtype, wanted.shape) or found.strides != wanted.strides:
        return f"is {found.dtype} {found.shape} {found.strides}, not {wanted.dtype} {wanted.shape} {wanted.strides}"
    with np.errstate(all="ignore"):
        differ = np.argwhere(
            ~(
                (found == wanted) | (np.isnan(found) & np.isnan(wanted))
                if wanted.dtype.kind in "fc"
                else found == wanted
            )
        )
    if not len(differ):
        return "differs in the bits of equal numbers"
    first = tuple(differ[0].tolist())
    return (
        f"is wrong in {len(differ)} of {wanted.size} elements of {wanted.dtype} {wanted.shape}, "
        f"first at {first}: {found[first]!r}, not {wanted[first]!r}"
    )


def play(session: il.Session, setting: Setting, steps: list[Step]) -> Player:
    """One program from beginning to end.

    Raises:
        Wrong: it went otherwise than on NumPy.
    """
    lines, left = plan(steps)
    player = Player(session, setting)
    try:
        player.play(lines, left)
        player.finish()
    finally:
        player.values.clear()
    return player


def fails(setting: Setting, steps: list[Step], tries: int = 2) -> str | None:
    """Play a program on sessions of its own; what is wrong with it, None if nothing."""
    for _ in range(tries):
        with contextlib.suppress(TimeoutError), setting.session() as session:
            try:
                play(session, setting, steps)
            except Wrong as wrong:
                return str(wrong)
            except Exception as error:
                return f"{type(error).__name__}: {error}"
    return None


def smaller(setting: Setting, steps: list[Step], budget_s: float) -> list[Step]:
    """The program with all the steps taken out, piece by piece, that it fails without."""
    deadline = time.monotonic() + budget_s
    piece = max(len(steps) // 2, 1)
    while time.monotonic() < deadline:
        at = 0
        shrunk = False
        while at < len(steps) and time.monotonic() < deadline:
            candidate = steps[:at] + steps[at + piece :]
            if candidate and fails(setting, candidate):
                steps, shrunk = candidate, True
            else:
                at += piece
        if piece == 1 and not shrunk:
            break
        piece = max(piece // 2, 1)
    lines, _ = plan(steps)
    return [line.step for line in lines]


def report(setting: Setting, seed: int, steps: list[Step], wrong: Exception, budget_s: float) -> str:
    """What to print of a program that went wrong."""
    small = smaller(setting, steps, budget_s) if budget_s else steps
    text = "\n".join(f"    {step}" for step in small)
    return f"program {seed} on {setting}\n{wrong}\n{len(small)} of its {len(steps)} steps do it:\n{text}"
