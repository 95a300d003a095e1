"""The random programs find every fault that is planted in a worker: a wait taken away, a copy not made.

A fault that they did not find would be one that could come back unseen.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from interlock.coordinator import workers

from . import player
from .builder import program
from .planted_worker import FAULTS
from .player import Setting, Wrong, play

HOST, SIMS = "cpu:0,cpu:1,cpu:2", "cpu:0,sim:0,sim:1"
ON_QUEUES = (
    "copy_in_is_not_awaited", "copy_out_does_not_wait", "copy_in_does_not_wait", "writes_do_not_await_copies",
    "memory_is_reused_under_a_copy", "lent_before_it_is_made", "taken_before_it_is_copied",
)  # fmt: skip
BUDGET_S = 30.0  # they are found within two or three


@pytest.mark.filterwarnings("ignore")  # a faulty worker may upset the frontend in any way
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "PROGRAM", (str(Path(__file__).with_name("planted_worker.py")), fault))
    monkeypatch.setattr(player, "PATIENCE_S", 3.0)
    deadline = time.monotonic() + BUDGET_S
    first = 0
    while time.monotonic() < deadline:
        options = {"seed": first, "delay_share": 0.5, "lazy": False} if fault in ON_QUEUES else {}
        setting = Setting(SIMS if fault in ON_QUEUES else HOST, options=options)
        try:
            with setting.session() as session:
                for seed in range(first, first + 20):
                    play(session, setting, program(seed, 120))
        except (Wrong, KeyError):  # KeyError: the frontend was told twice that its memory is free
            return
        first += 20
    pytest.fail(f"{first} programs did not find it")
