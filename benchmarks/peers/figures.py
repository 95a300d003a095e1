"""What was measured of every peer: medians, ratios to NumPy, noise; as a Markdown table and as plain values.

Knows nothing of how anything was measured.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from workloads import EXPLAINED, WORKLOADS, Workload


class Cell(NamedTuple):
    """One workload of one row: seconds per unit of work in each round, and NumPy's in the rounds between."""

    seconds: Sequence[float]
    floor: Sequence[float] = ()

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def ratio(self) -> float | None:
        """How many times as fast as NumPy."""
        return statistics.median(self.floor) / self.median if self.floor else None


class Row(NamedTuple):
    """One way to use a peer. What could not be measured has a reason instead."""

    name: str
    cells: Mapping[str, Cell]
    failed: Mapping[str, str]


class Results(NamedTuple):
    """All of a run."""

    machine: Mapping[str, str]
    versions: Mapping[str, str]
    rows: Sequence[Row]
    unmeasured: Mapping[str, str]  # peers and why


def three_digits(value: float) -> str:
    """As short as three digits can be."""
    if value >= 999.5:
        return f"{float(f'{value:.3g}'):,.0f}"
    return f"{value:.0f}" if value >= 99.95 else f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"


def cell(workload: Workload, found: Cell | None) -> str:
    if found is None:
        return "-"
    shown = three_digits(workload.shown(found.median))
    divided = workload.name.startswith("mlp") and found.ratio is not None
    return f"{shown} ({found.ratio:.2f} x)" if divided else shown


def noise(rows: Sequence[Row], workload: Workload) -> float | None:
    """NumPy's slowest median over its fastest, among those taken beside the peers: what the machine did to figures."""
    medians = [
        statistics.median(row.cells[workload.name].floor)
        for row in rows
        if workload.name in row.cells and row.cells[workload.name].floor
    ]
    return max(medians) / min(medians) if len(medians) > 1 else None


def table(results: Results) -> str:
    """What the machine and the versions are, the table, how noisy it was, what could not be measured."""
    shown = [w for w in WORKLOADS if any(w.name in row.cells for row in results.rows)] or list(WORKLOADS)
    lines = [
        "| | " + " | ".join(w.head for w in shown) + " |",
        "| --- |" + " ---: |" * len(shown),
        *(_line(row, shown) for row in results.rows),
    ]
    loud = [noise(results.rows, w) for w in shown]
    if any(each is not None for each in loud):
        words = ("-" if each is None else f"{each:.2f} x" for each in loud)
        lines.append("| *noise: NumPy's slowest over its fastest* | " + " | ".join(words) + " |")
    missing = [f"- {name}: not measured: {why}" for name, why in results.unmeasured.items()]
    for row in results.rows:
        missing += [f"- {row.name}, {name}: not measured: {why}" for name, why in row.failed.items()]
    head = (
        "; ".join(f"{what} {value}" for what, value in results.machine.items()),
        "; ".join(f"{what} {version}" for what, version in results.versions.items()),
    )
    return "\n\n".join(part for part in (*head, "\n".join(lines), "\n".join(missing), EXPLAINED.strip()) if part)


def _line(row: Row, shown: Sequence[Workload]) -> str:
    return f"| {row.name} | " + " | ".join(cell(w, row.cells.get(w.name)) for w in shown) + " |"


def plain(results: Results) -> dict[str, Any]:
    """All of it in plain values."""
    return {
        "machine": dict(results.machine),
        "versions": dict(results.versions),
        "rows": {row.name: _plain_row(row) for row in results.rows},
        "noise": {w.name: noise(results.rows, w) for w in WORKLOADS},
        "not_measured": dict(results.unmeasured),
    }


def _plain_row(row: Row) -> dict[str, Any]:
    units = {w.name: w for w in WORKLOADS}
    measured = {
        name: {
            "unit": units[name].unit,
            "figure": units[name].shown(found.median),
            "times_as_fast_as_numpy": found.ratio,
            "spread": max(found.seconds) / min(found.seconds),
            "seconds": list(found.seconds),
            "numpy_seconds": list(found.floor),
        }
        for name, found in row.cells.items()
    }
    return {"measured": measured, "not_measured": dict(row.failed)}
