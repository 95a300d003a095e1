"""Random functions, captured and replayed on other data, give bit for bit what NumPy gives; faults in replay are found.

The short way through a recording and the long way, one instruction at a time, are each other's twins: both must agree
with NumPy on the same programs.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import interlock as il
from interlock.coordinator import chains as by_rows
from interlock.coordinator import recording, workers

from . import player
from .builder import program
from .captured import chains, play_captured
from .planted_worker import REPLAY_FAULTS
from .player import Setting, Wrong

HOST, SIMS = "cpu:0,cpu:1,cpu:2", "cpu:0,sim:0,sim:1"
SETTINGS = {
    "host": Setting(HOST),
    "host, the long way": Setting(HOST),
    "host, gate at the coordinator": Setting(HOST, gate="coordinator"),
    "host, small window": Setting(HOST, window=8),
    "host, few specs": Setting(HOST, known=8),
    "sims": Setting(SIMS, options={"seed": 1}),
    "sims, late": Setting(SIMS, options={"seed": 2, "delay_s": 2e-3, "delay_share": 0.2}),
    "sims, gate at the coordinator": Setting(SIMS, gate="coordinator", options={"seed": 3}),
}
PROGRAMS, STEPS = 4, 90
PLANTED = str(Path(__file__).with_name("planted_worker.py"))
LOST = "temporaries_are_lost_in_a_failure"  # seen only where an operation fails in the middle of a run
BUDGET_S = 30.0


@pytest.fixture(autouse=True)
def _short_stretches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small arrays go by stretches of rows as well."""
    monkeypatch.setattr(by_rows, "LARGE", 64)
    monkeypatch.setattr(by_rows, "STRETCH", 400)


@pytest.mark.parametrize("name", SETTINGS)
def test_random_functions_are_replayed_as_numpy_has_them(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    setting, first = SETTINGS[name], 100 * list(SETTINGS).index(name)
    if name == "host, the long way":
        first = 0  # the very programs of the short way
        monkeypatch.setattr(workers, "PROGRAM", (PLANTED, "no_short_way"))
    with setting.session() as session:
        for seed in range(first, first + PROGRAMS):
            try:
                assert play_captured(session, setting, program(seed, STEPS)) == 1
                assert play_captured(session, setting, *chains(seed)) == 1
            except Wrong as wrong:
                pytest.fail(f"program {seed} on {setting}: {wrong}")


def found(setting: Setting) -> bool:
    """Whether some program goes wrong within the time."""
    deadline = time.monotonic() + BUDGET_S
    seed = 0
    while time.monotonic() < deadline:
        try:
            with setting.session() as session:
                for seed in range(seed, seed + 20):  # noqa: B020
                    play_captured(session, setting, *chains(seed))
                    play_captured(session, setting, program(seed, 2 * STEPS))
        except (Wrong, KeyError, il.InterlockError):
            return True
    return False


@pytest.mark.filterwarnings("ignore")  # a faulty worker may upset the frontend in any way
@pytest.mark.parametrize("fault", [fault for fault in REPLAY_FAULTS if fault not in ("no_short_way", LOST)])
def test_a_fault_planted_in_replay_is_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "PROGRAM", (PLANTED, fault))
    monkeypatch.setattr(player, "PATIENCE_S", 3.0)
    assert found(Setting(HOST))


@pytest.mark.filterwarnings("ignore")  # failures that nobody reads
@pytest.mark.parametrize("fault", [None, LOST])
def test_what_was_made_before_a_failure_is_good(fault: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if fault:
        monkeypatch.setattr(workers, "PROGRAM", (PLANTED, fault))

    def around(x: Any, place: Any) -> Any:
        before = x + 1.0
        return x[place], before * 2.0

    with il.connect("cpu:0"):
        step, x = il.capture(around), il.ones(5)
        _, good = step(x, il.asarray([1, 2]))
        assert good.tolist() == [4.0] * 5
        bad, good = step(x, il.asarray([1, 9]))
        with pytest.raises(IndexError):
            bad.numpy()
        if fault is None:
            assert good.tolist() == [4.0] * 5
        else:
            with pytest.raises((LookupError, il.InterlockError)):
                good.numpy()


def temporaries_overlap(monkeypatch: pytest.MonkeyPatch) -> None:
    """All temporaries lie at one place."""
    sound = recording.plan
    monkeypatch.setattr(
        recording, "plan", lambda temporaries: ({each.slot: 0 for each in temporaries}, sound(temporaries)[1])
    )


def lifetimes_end_too_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """The place of a temporary is free from its first use on."""
    sound = recording.plan
    monkeypatch.setattr(
        recording, "plan", lambda temporaries: sound([each._replace(last=each.first) for each in temporaries])
    )


def any_operand_gives_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """A result lies where an operand lay that is used for the last time, whatever the operation and the layout."""

    def instead(instruction: Any, at: int, spec: Any, specs: Any, life: Any, inner: Any) -> int:
        for operand in recording.refs_of(instruction):
            buffer = recording.buffer_of(operand) or 0
            if buffer > 0 and life.last[buffer] == at and buffer not in life.lent:
                return buffer
        return 0

    monkeypatch.setattr(recording, "_instead", instead)


def receives_come_too_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is received is received at the end."""
    monkeypatch.setattr(
        recording,
        "_late_receives",
        lambda mine: sorted(mine, key=lambda each: each.instruction[0] == recording.Control.RECV),
    )


RECORDED_WRONGLY: list[Callable[[pytest.MonkeyPatch], None]] = [
    temporaries_overlap, lifetimes_end_too_early, any_operand_gives_its_place, receives_come_too_late,
]  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("fault", RECORDED_WRONGLY)
def test_a_fault_planted_in_recording_is_found(
    fault: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    fault(monkeypatch)
    monkeypatch.setattr(player, "PATIENCE_S", 3.0)
    assert found(Setting(HOST))
