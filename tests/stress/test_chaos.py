"""Chaos for a while in each setting; longer, or from another seed, by a switch. See `chaos.py`.

INTERLOCK_CHAOS_SECONDS=3600 pytest tests/stress/test_chaos.py      or: make chaos CHAOS="--seconds 3600"
INTERLOCK_CHAOS_SEED=7                                               default: one that never changes
"""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import interlock as il
from interlock.coordinator import losses, workers
from interlock.coordinator.session import Session

from . import chaos, player
from .player import Setting, Wrong

SECONDS = float(os.environ.get("INTERLOCK_CHAOS_SECONDS", "30"))  # for all settings together
SEED = int(os.environ.get("INTERLOCK_CHAOS_SEED", "1"))


@pytest.mark.timeout(SECONDS + chaos.HANG_S + 60)
def test_what_chaos_leaves_is_right_or_a_named_error(capsys: pytest.CaptureFixture[str]) -> None:
    counts: Counter[str] = Counter()
    for place in range(len(chaos.SETTINGS)):  # each has its turn, however short
        first = place * chaos.SERIES
        chaos.add(counts, chaos.run(SEED, first, seconds=SECONDS / len(chaos.SETTINGS), among=(place,)))
    with capsys.disabled():
        print(f"\nchaos, seed {SEED}:\n{chaos.table(counts)}")
    assert counts["rounds"] >= len(chaos.SETTINGS)
    assert counts["reads right"] > 50


def test_a_round_is_a_function_of_its_seed_and_number() -> None:
    for number in range(20):
        assert repr(chaos.round_of(7, number)) == repr(chaos.round_of(7, number))
        assert chaos.setting_of(7, number) == chaos.setting_of(7, number)
    assert len({repr(chaos.round_of(seed, 3)) for seed in range(10)}) == 10


# -- what it would find -----------------------------------------------------------------------------------------------


def planted(fault: str) -> tuple[str, ...]:
    return str(Path(__file__).with_name("planted_worker.py")), fault


def is_found(words: str, plant: Callable[[], Any]) -> None:
    """Rounds on sessions with a planted fault, until one is found wrong with these words."""
    deadline = time.monotonic() + 60
    counts: Counter[str] = Counter()
    number = 0
    with chaos.handled():
        while time.monotonic() < deadline:
            plant()
            session = il.connect("cpu:0,cpu:1,cpu:2")
            try:
                for _ in range(8):
                    round_ = chaos.round_of(99, number)
                    number += 1
                    chaos.play(session, Setting(), round_, counts)
                    chaos.revive(session, round_.killed, counts)
            except Wrong as wrong:
                assert re.search(words, str(wrong)), wrong  # noqa: PT017
                return
            finally:
                session.close()
    pytest.fail(f"{number} rounds did not find it")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("lender_writes_in_place", "is wrong in"),
        ("frees_are_lost", "left over"),
        ("tickets_are_lost", "hangs|left over"),
    ],
)
def test_a_wrong_value_a_leak_and_a_hang_are_found(fault: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "PROGRAM", planted(fault))
    monkeypatch.setattr(player, "PATIENCE_S", 1.0 if fault == "tickets_are_lost" else 3.0)
    monkeypatch.setattr(chaos, "ENDS_S", 3.0)
    is_found(words, lambda: None)


@pytest.mark.filterwarnings("ignore")
def test_a_loss_that_hits_what_has_nothing_to_do_with_it_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here every device is lost with one."""
    sound = losses.lose

    def lose(session: Session, index: int, reason: str) -> None:
        for other in range(len(session.lanes)):
            sound(session, other, reason)

    monkeypatch.setattr(losses, "lose", lose)
    is_found("which no fault here explains", lambda: None)


def test_what_a_closed_session_leaves_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    session = il.connect("cpu:0")
    folder = session._folder
    with monkeypatch.context() as patched:
        patched.setattr("interlock.coordinator.closing.remove_folder", lambda folder: None)
        with pytest.raises(Wrong, match=r"left over after closing .*interlock"):
            chaos.end(session, "stopped", Counter())
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()
