"""Workers with one BLAS thread each, whatever the machine has: NumPy in one process is given one as well."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import interlock as il


def connect_single(devices: Sequence[str]) -> il.Session:
    """A session whose workers have a core and a BLAS thread each, if there are enough cores.

    A worker has as many threads as there are cores to share, so it is started with as many cores as there are workers.
    """
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, set(apart(allowed)[: len(devices)]))
    try:
        return il.connect(devices=devices)
    finally:
        os.sched_setaffinity(0, allowed)


def apart(cores: set[int]) -> list[int]:
    """All of some cores, those first that share no hardware with one before."""
    seen: set[str] = set()
    first: list[int] = []
    later: list[int] = []
    for core in sorted(cores):
        siblings = _siblings(core)
        (later if siblings in seen else first).append(core)
        seen.add(siblings)
    return first + later


def _siblings(core: int) -> str:
    """The hardware threads of the core to which this one belongs."""
    try:
        return Path(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list").read_text().strip()
    except OSError:
        return str(core)
