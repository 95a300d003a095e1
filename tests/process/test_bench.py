"""The benchmarks, run as `make bench` runs them: the form of what they print and write, never their figures."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parent.parent.parent / "benchmarks"
LAST = re.compile(r"budgets: (\d+) met, (\d+) missed, (\d+) not measured")


def run(*options: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(BENCHMARKS), *options]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=100)


def kept(row: dict[str, Any]) -> bool | None:
    """Whether a row keeps to its budget, by what it says itself."""
    if row["budget"] is None:
        return None
    way, limit, unit = row["budget"].split()
    value = row["ratio"] if unit == "x" else row["figure"]
    return bool(value <= float(limit) if way == "<=" else value >= float(limit))


@pytest.mark.usefixtures("runtime")
def test_two_benchmarks_end_with_a_verdict_and_leave_the_same_figures_as_json(tmp_path: Path) -> None:
    done = run("--quick", "--only", "toy", "--only", "transfer", "--json", "figures.json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    *table, noise, last = done.stdout.splitlines()
    found = LAST.fullmatch(last)
    assert found, done.stdout
    counted = dict(zip(("met", "missed", "not_measured"), map(int, found.groups()), strict=True))
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert figures["budgets"] == counted
    assert counted["met"] + counted["missed"] == 3  # one of toy, two of transfer
    assert noise.startswith("noise: 2 floors, ")  # NumPy's loop and memcpy, though two rows have the latter
    assert figures["noise"]["floors"] == 2
    floors = {row["floor"]: row["floor_spread"] for row in figures["rows"] if row["floor_spread"]}
    assert figures["noise"]["most"] == floors[figures["noise"]["of"]] == max(floors.values())

    assert table[0].split() == ["what", "figure", "floor", "ratio", "budget", "met", "spread", "floor's"]
    assert [row["what"] for row in figures["rows"]] == [re.split(r"  +", line)[0] for line in table[1:5]]
    for row in figures["rows"]:
        assert row["met"] is kept(row)
        assert len(row["figures"]) > 1 or row["unit"] == "MiB"
        if row["unit"] != "MiB":
            ratio = row["figure"] / row["floor_figure"]
            assert row["ratio"] == pytest.approx(1 / ratio if row["ratio_is"] == "floor/figure" else ratio)

    missing = {each["what"]: each["why"] for each in figures["not_measured"]}
    assert len(missing) == counted["not_measured"]
    assert sum("replayed" in what for what in missing) == 2  # there is a benchmark for both, not chosen here
    assert sum("GPU" in why for why in missing.values()) == 1
    assert set(missing.values()) >= {"not chosen"}
    assert all(f"  {what} (" in done.stdout for what in missing)
    assert [line.split()[:2] for line in done.stderr.splitlines()] == [["1/2", "toy"], ["2/2", "transfer"]]


@pytest.mark.usefixtures("runtime")
def test_programs_with_many_arrays_are_compared_with_one_that_has_few(tmp_path: Path) -> None:
    done = run("--quick", "--only", "live", "--only", "idle", "--json", "figures.json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    rows = {row["what"]: row for row in json.loads((tmp_path / "figures.json").read_text())["rows"]}
    few = rows["issue with 1000 live arrays"]
    for count in (10_000, 100_000):
        many = rows[f"issue with {count} live arrays"]
        assert many["floor_figures"] == few["figures"]
        assert many["figures"] != few["figures"]
    together, *apart = (row for what, row in rows.items() if what.startswith("idle"))
    assert [len(row["figures"]) for row in apart] == [1, 3]  # the frontend, and each of three workers
    assert together["figure"] == pytest.approx(sum(sum(row["figures"]) for row in apart))


@pytest.mark.usefixtures("runtime")
def test_a_reader_that_goes_away_is_no_error(tmp_path: Path) -> None:
    line = f"set -o pipefail; PYTHONUNBUFFERED= {sys.executable} {BENCHMARKS} --quick --only toy | true"
    done = subprocess.run(["bash", "-c", line], cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert "Error" not in done.stderr
    assert (tmp_path / "bench.json").exists()


def test_figures_that_could_not_be_kept_are_not_measured(tmp_path: Path) -> None:
    done = run("--only", "toy", "--json", "nowhere/figures.json", cwd=tmp_path)
    assert done.returncode == 2
    assert "nowhere/figures.json: there is no such folder" in done.stderr


def test_an_unknown_benchmark_is_refused_with_those_that_there_are(tmp_path: Path) -> None:
    done = run("--only", "speed", cwd=tmp_path)
    assert done.returncode == 2
    assert "'issue'" in done.stderr
    assert "'speed'" in done.stderr
    assert not list(tmp_path.iterdir())
