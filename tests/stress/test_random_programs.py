"""Random programs over three workers give, bit for bit, what NumPy gives in program order.

Each failure prints the seed of its program, the setting it ran on, and a smaller program that fails as well.

    INTERLOCK_STRESS_SECONDS=600 pytest tests/stress     goes on with new seeds of programs and of the simulator's
                                                         chaos, this long for all settings together
    INTERLOCK_STRESS_SEED=5000000                        where those seeds begin; default: the clock
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

import interlock as il

from .builder import program
from .player import Player, Setting, Wrong, play, report
from .programs import Step, plan

HOST, SIMS = "cpu:0,cpu:1,cpu:2", "cpu:0,sim:0,sim:1"
SETTINGS = {
    "host": Setting(HOST),
    "host, gate at the coordinator": Setting(HOST, gate="coordinator"),
    "host, small window": Setting(HOST, window=8),
    "host, named segments": Setting(HOST, options={"arena": "shm", "minimum_segment": 1 << 20}),
    "host, few specs": Setting(HOST, known=8),
    "sims": Setting(SIMS, options={"seed": 1}),
    "sims, late": Setting(SIMS, options={"seed": 2, "delay_s": 4e-3, "delay_share": 0.5}),
    "sims, lazy": Setting(SIMS, options={"seed": 3, "lazy": True}),
    "sims, eager": Setting(SIMS, options={"seed": 4, "lazy": False}),
    "sims, small window": Setting(SIMS, options={"seed": 5}, window=8),
    "sims, gate at the coordinator": Setting(SIMS, gate="coordinator", options={"seed": 6}),
    "sims, gate at the coordinator, lazy": Setting(SIMS, gate="coordinator", options={"seed": 7, "lazy": True}),
    "sims, gate at the coordinator, few specs": Setting(SIMS, gate="coordinator", options={"seed": 9}, known=8),
    "three sims": Setting("sim:0,sim:1,sim:2", options={"seed": 8}),
}
LONGER_S = float(os.environ.get("INTERLOCK_STRESS_SECONDS", "0"))
FIRST = int(os.environ.get("INTERLOCK_STRESS_SEED", time.time_ns() // 1000 % 10**9))
PROGRAMS, STEPS = 20, 120
SHRINK_S = 30.0


def sessions(name: str) -> Iterator[tuple[Setting, range]]:
    """A setting and the seeds of programs to play on it: fixed ones, and then new ones as long as it was asked for."""
    number, setting = list(SETTINGS).index(name), SETTINGS[name]
    yield setting, range(1000 * number, 1000 * number + PROGRAMS)
    deadline = time.monotonic() + LONGER_S / len(SETTINGS)
    for seed in itertools.count(FIRST + 10_000_000 * number, PROGRAMS):
        if time.monotonic() > deadline:
            return
        yield setting.reseeded(seed), range(seed, seed + PROGRAMS)


@pytest.mark.timeout(120 + LONGER_S)
@pytest.mark.parametrize("name", SETTINGS)
def test_random_programs_give_what_numpy_gives(name: str) -> None:
    for setting, seeds in sessions(name):
        with setting.session() as session:
            failed = first_wrong(session, setting, seeds)
        if failed is not None:
            pytest.fail(report(setting, *failed, SHRINK_S))


def first_wrong(session: il.Session, setting: Setting, seeds: range) -> tuple[int, list[Step], Wrong] | None:
    """The first program that goes wrong: its seed, its steps, and what is wrong."""
    for seed in seeds:
        steps = program(seed, STEPS)
        try:
            play(session, setting, steps)
        except Wrong as wrong:
            return seed, steps, wrong
    return None


OUT_OF_MEMORY = {
    "host, few bytes": [Setting(HOST, memory=3 << 19, may_run_out=True)],
    "sims, few bytes": [Setting(SIMS, memory=2 << 20, options={"seed": 1}, may_run_out=True)],
    "sims, few bytes on the host": [Setting(SIMS, options={"seed": 2, "host_limit_bytes": 1 << 17}, may_run_out=True)],
    "sims, once": [Setting(SIMS, options={"seed": n, "oom_at": 1 + 11 * n}, may_run_out=True) for n in range(8)],
}


@pytest.mark.parametrize("name", OUT_OF_MEMORY)
def test_a_program_that_runs_out_of_memory_is_right_or_says_so(name: str) -> None:
    ran_out = 0
    for setting in OUT_OF_MEMORY[name]:
        with setting.session() as session:
            for seed in range(500, 500 + 16 // len(OUT_OF_MEMORY[name])):
                steps = program(seed, 2 * STEPS, live=150)
                try:
                    ran_out += play(session, setting, steps).ran_out
                except Wrong as wrong:
                    failed = seed, steps, wrong
                    break
            else:
                continue
        pytest.fail(report(setting, *failed, SHRINK_S))
    assert ran_out > 1, "the programs need more memory for this test to mean anything"


@pytest.mark.parametrize("name", ["host", "host, small window", "sims", "sims, gate at the coordinator"])
def test_programs_of_several_threads_do_not_disturb_one_another(name: str) -> None:
    """Each thread's program is its own; lanes, windows, batches and the turn of receiving are everyone's."""

    plans = {
        seed: plan(program(seed, STEPS, failures=False))
        for first in (100, 200, 300)
        for seed in range(first, first + 5)
    }

    def several(session: il.Session, seeds: range) -> None:
        for seed in seeds:
            player = Player(session, SETTINGS[name])
            try:
                player.play(*plans[seed])
            except Wrong as wrong:
                raise Wrong(f"program {seed} of {seeds} on {SETTINGS[name]}, with two other threads: {wrong}") from None
            finally:
                player.values.clear()

    with SETTINGS[name].session() as session, ThreadPoolExecutor(3) as pool:
        for future in [pool.submit(several, session, range(first, first + 5)) for first in (100, 200, 300)]:
            future.result()
        Player(session, SETTINGS[name]).finish()
