"""Logs stay short, and their end is kept."""

from __future__ import annotations

import os
from pathlib import Path

from interlock.protocol.logs import KEPT, LONGEST, shorten, tail


def test_a_long_log_loses_its_beginning_and_who_writes_it_goes_on(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with open(log, "ab", buffering=0) as writer:
        line = b"x" * 98 + b"\n"
        writer.write(line * (LONGEST // len(line)))
        shorten(log)
        assert log.stat().st_size > KEPT  # not too long yet
        writer.write(line * 2)
        shorten(log)
        assert KEPT - 200 < log.stat().st_size < KEPT + 100
        writer.write(b"more\n")
        first, *others, last = log.read_bytes().splitlines()
        assert last == b"more"
        assert set(others) == {line[:-1]}
        assert first.endswith(b"bytes were left out here]")
        assert int(first[1:].split()[0]) + (len(others)) * len(line) == (LONGEST // len(line) + 2) * len(line)


def test_a_log_of_one_line_and_no_log_at_all(tmp_path: Path) -> None:
    log = tmp_path / "log"
    shorten(log)
    assert tail(log, 5) == []
    log.write_bytes(b"a" * (LONGEST + 1))
    os.symlink(log, tmp_path / "link")
    shorten(tmp_path / "link")  # not ours
    assert log.stat().st_size == LONGEST + 1
    shorten(log)
    assert log.stat().st_size < KEPT + 100
    assert tail(log, 5) == ["a" * 4096]
