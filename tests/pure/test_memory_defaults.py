"""How much memory workers may take when nothing is said."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from interlock.coordinator import workers


@pytest.mark.parametrize("version", [1, 2])
def test_a_container_s_memory_is_what_there_is(tmp_path: Path, version: int) -> None:
    root, own = tmp_path / "cgroup", tmp_path / "own"
    inner = root / ("memory" if version == 1 else "") / "outer" / "inner"
    inner.mkdir(parents=True)
    if version == 1:
        (inner / "memory.limit_in_bytes").write_text("4000\n")
        own.write_text("5:cpu,cpuacct:/elsewhere\n4:memory:/outer/inner\n")
    else:
        (inner / "memory.max").write_text("max\n")
        (inner.parent / "memory.max").write_text("4000\n")
        own.write_text("0::/outer/inner\n")
    assert min(workers._group_limits(root, own)) == 4000


def test_workers_take_half_of_what_there_is_together(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    monkeypatch.setattr(workers, "_group_limits", lambda: [1 << 62])
    assert workers.default_memory(3) == whole // 2 // 3
    monkeypatch.setattr(workers, "_group_limits", lambda: [6000, 1 << 62])
    assert workers.default_memory(3) == 1000
