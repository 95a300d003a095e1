"""A runtime folder of the test's own, which must be empty at the end."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

CLEARED_S = 5.0


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where every endpoint of this test lies, of the programs that it starts too; nothing may be left there."""
    folder = Path(tempfile.mkdtemp(prefix="il-", dir="/tmp"))  # short: a socket's path has at most 107 bytes
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    monkeypatch.delenv("INTERLOCK_ADDRESS", raising=False)
    monkeypatch.delenv("INTERLOCK_DEVICES", raising=False)
    try:
        yield folder
        deadline = time.monotonic() + CLEARED_S
        while left := leftovers(folder):  # guards of killed workers clear it a moment after these have ended
            assert time.monotonic() < deadline, left
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def leftovers(folder: Path) -> list[str]:
    """What lies in a runtime folder, as seen from it."""
    return sorted(
        os.path.relpath(os.path.join(root, name), folder)
        for root, _, names in os.walk(folder / "interlock")
        for name in [*names, "."]
        if os.path.abspath(os.path.join(root, name)) != str(folder / "interlock")
    )
