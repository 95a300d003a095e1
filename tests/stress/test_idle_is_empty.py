"""Everything idle is empty: nothing is left of a program on its workers, and nothing of a session on the machine."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import interlock as il

from .builder import program
from .player import Player, Setting, Wrong
from .programs import plan

SETTINGS = (
    Setting("cpu:0,cpu:1,cpu:2"),
    Setting("cpu:0,cpu:1,cpu:2", options={"arena": "shm"}),
    Setting("cpu:0,sim:0,sim:1", gate="coordinator", options={"seed": 11}),
)


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where the endpoints of this test lie."""
    folder = Path(tempfile.mkdtemp(prefix="il-", dir="/tmp"))  # short: a socket's path has at most 107 bytes
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    yield folder
    shutil.rmtree(folder)


def on_the_machine(runtime: Path) -> dict[str, list[str]]:
    """What sessions of this process have there by now: children, threads, segments, endpoints."""
    descriptors = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if _is_open(fd)]
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return {
        "children": sorted(children),
        "threads": sorted(thread.name for thread in threading.enumerate() if "interlock" in thread.name),
        "memory files": sorted(name for name in descriptors if name.startswith("/memfd:interlock")),
        "pipes": sorted(name for name in descriptors if name.startswith("pipe:")),
        "named segments": sorted(name for name in os.listdir("/dev/shm") if f"-{os.getpid()}-" in name),
        "endpoints": sorted(str(path) for path in (runtime / "interlock").glob("*/*")),
    }


def _is_open(fd: str) -> bool:
    return os.path.lexists(f"/proc/self/fd/{fd}")


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_a_closed_session_leaves_nothing_on_the_machine(setting: Setting, runtime: Path) -> None:
    before = on_the_machine(runtime)
    with setting.session() as session:
        pids = list(session.pids.values())
        lines, left = plan(program(7000, 150))
        player = Player(session, setting)
        player.play(lines, left)
        during = on_the_machine(runtime)
        assert len(during["children"]) == len(before["children"]) + 3
        assert len(during["endpoints"]) >= 4
        # The arrays are still held: close must not depend on the program's dropping them.
    assert on_the_machine(runtime) == before
    assert not [pid for pid in pids if os.path.exists(f"/proc/{pid}")]
    named = [name for name in os.listdir("/dev/shm") if any(f"-{pid}-" in name for pid in pids)]
    assert named == []
    player.values.clear()


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_the_counts_tell_what_is_held_and_are_zero_when_all_was_dropped(setting: Setting) -> None:
    with setting.session() as session:
        player = Player(session, setting)
        assert player.left_over() == {}
        here, there = session.devices[1:3]
        x = il.ones((100, 100), device=here)
        x[0] = 2
        y = x.to(there)
        y += 1
        failed = x[il.full(3, 200, device=here)]
        assert float((y.sum() + failed.size).numpy()) == 20400.0
        with pytest.raises(IndexError):
            session.synchronize()
        counts = session.inspect()
        assert counts[str(here)]["arrays"] + counts[str(here)]["failures"] >= 2
        assert counts[str(here)]["failures"] == 1
        assert counts[str(here)]["bytes"] >= 80_000
        assert counts[str(there)]["arrays"] == 1
        assert player.left_over()
        del x, y, failed
        player.finish()


def test_what_is_left_over_is_seen() -> None:
    with Setting().session() as session:
        player = Player(session, Setting())
        kept = il.ones(3)
        player.patience_s = 0.2
        with pytest.raises(Wrong, match=r"left over .*'arrays': 1"):
            player.finish()
        del kept
