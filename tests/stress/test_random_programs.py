"""Random programs over three workers give, bit for bit, what NumPy gives in program order.

Each failure prints the seed of its program, the setting it ran on, and a smaller program that fails as well.

    INTERLOCK_STRESS_SECONDS=600 pytest tests/stress     goes on with new seeds, this long for all settings together
    INTERLOCK_STRESS_SEED=5000000                        where those seeds begin; default: the clock
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator

import pytest

from .builder import program
from .player import Setting, Wrong, play, report

HOST, SIMS = "cpu:0,cpu:1,cpu:2", "cpu:0,sim:0,sim:1"
SETTINGS = {
    "host": Setting(HOST),
    "host, gate at the coordinator": Setting(HOST, gate="coordinator"),
    "host, small window": Setting(HOST, window=8),
    "host, named segments": Setting(HOST, options={"arena": "shm", "minimum_segment": 1 << 20}),
    "sims": Setting(SIMS, options={"seed": 1}),
    "sims, late": Setting(SIMS, options={"seed": 2, "delay_s": 4e-3, "delay_share": 0.5}),
    "sims, lazy": Setting(SIMS, options={"seed": 3, "lazy": True}),
    "sims, eager": Setting(SIMS, options={"seed": 4, "lazy": False}),
    "sims, small window": Setting(SIMS, options={"seed": 5}, window=8),
    "sims, gate at the coordinator": Setting(SIMS, gate="coordinator", options={"seed": 6}),
    "sims, gate at the coordinator, lazy": Setting(SIMS, gate="coordinator", options={"seed": 7, "lazy": True}),
    "three sims": Setting("sim:0,sim:1,sim:2", options={"seed": 8}),
}
LONGER_S = float(os.environ.get("INTERLOCK_STRESS_SECONDS", "0"))
FIRST = int(os.environ.get("INTERLOCK_STRESS_SEED", time.time_ns() // 1000 % 10**9))
PROGRAMS, STEPS = 20, 120
SHRINK_S = 30.0


def seeds(number: int) -> Iterator[int]:
    """Fixed ones, and then new ones as long as it was asked for."""
    yield from range(1000 * number, 1000 * number + PROGRAMS)
    deadline = time.monotonic() + LONGER_S / len(SETTINGS)
    for seed in itertools.count(FIRST + 10_000_000 * number):
        if time.monotonic() > deadline:
            return
        yield seed


@pytest.mark.timeout(120 + LONGER_S)
@pytest.mark.parametrize("name", SETTINGS)
def test_random_programs_give_what_numpy_gives(name: str) -> None:
    setting = SETTINGS[name]
    with setting.session() as session:
        for seed in seeds(list(SETTINGS).index(name)):
            steps = program(seed, STEPS)
            try:
                play(session, setting, steps)
            except Wrong as wrong:
                failed = seed, steps, wrong
                break
        else:
            return
    pytest.fail(report(setting, *failed, SHRINK_S))


OUT_OF_MEMORY = {
    "host, few bytes": [Setting(HOST, memory=2 << 20, may_run_out=True)],
    "sims, few bytes": [Setting(SIMS, memory=4 << 20, options={"seed": 1}, may_run_out=True)],
    "sims, few bytes on the host": [Setting(SIMS, options={"seed": 2, "host_limit_bytes": 1 << 19}, may_run_out=True)],
    "sims, once": [Setting(SIMS, options={"seed": n, "oom_at": 1 + 7 * n}, may_run_out=True) for n in range(8)],
}


@pytest.mark.parametrize("name", OUT_OF_MEMORY)
def test_a_program_that_runs_out_of_memory_is_right_or_says_so(name: str) -> None:
    ran_out = 0
    for setting in OUT_OF_MEMORY[name]:
        with setting.session() as session:
            for seed in range(500, 500 + 24 // len(OUT_OF_MEMORY[name])):
                steps = program(seed, STEPS)
                try:
                    ran_out += play(session, setting, steps).ran_out
                except Wrong as wrong:
                    failed = seed, steps, wrong
                    break
            else:
                continue
        pytest.fail(report(setting, *failed, SHRINK_S))
    assert ran_out > 3, "the programs need more memory for this test to mean anything"
