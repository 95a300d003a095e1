"""Bugs that others' users have reported, as tests: how programs and workers start and end.

Each names the public report that it comes from.
"""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest

from .programs import becomes, program

GONE_S = 5.0


def marked(mark: str) -> list[int]:
    """The processes that have this mark in their environment, which children inherit."""
    found = []
    for pid in (int(name) for name in os.listdir("/proc") if name.isdigit()):
        try:
            if f"MARK={mark}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                found.append(pid)
        except OSError:
            continue  # it has ended, or is a zombie
    return found


# FL-09: vllm-project/vllm#55510, #28053 ----------------------------------------------------------------------------

BUSY = """
import os, sys
import interlock as il
session = il.connect(devices=["cpu:0", "cpu:1", "cpu:2"], options={"arena": os.environ["ARENA"]})
kept = [il.ones((6000, 6000), dtype="f4", device=device) for device in session.devices]
il.synchronize()
long = [x @ x for x in kept]
session.flush()
print("busy", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("arena", ["memfd", "shm"])
def test_fl09_workers_in_long_operations_end_with_a_program_that_is_killed(arena: str, runtime: Path) -> None:
    """Workers outlived a program killed with SIGKILL: later workers had inherited the pipe that was to tell them."""
    mark = f"fl09-{os.getpid()}-{arena}"
    before = {name for name in os.listdir("/dev/shm") if name.startswith("interlock-")}
    with program(BUSY, env={"MARK": mark, "ARENA": arena}) as running:
        running.line("busy")
        assert len(marked(mark)) == 7  # the program, three workers, and their guards
        running.signal(signal.SIGKILL)
        running.ended()
        becomes(lambda: not marked(mark), GONE_S)
    left = {name for name in os.listdir("/dev/shm") if name.startswith("interlock-")} - before
    assert not [name for name in left if f"-{running.pid}-" in name]


def test_fl09_workers_that_are_still_starting_end_with_a_program_that_is_killed(runtime: Path) -> None:
    chance = random.Random(9)
    for round_ in range(12):
        mark = f"fl09-{os.getpid()}-{round_}"
        script = BUSY.replace("import interlock as il", "import interlock as il; print('starts', flush=True)")
        with program(script, env={"MARK": mark, "ARENA": "memfd"}) as running:
            running.line("starts")
            time.sleep(chance.uniform(0, 0.4))
            running.signal(signal.SIGKILL)
            running.ended()
            becomes(lambda mark=mark: not marked(mark), GONE_S)  # type: ignore[misc]
