"""The rows of the table: a figure, its floor, their ratio, the budget; as text and as plain values for JSON.

Knows nothing of how anything was measured.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from budgets import BUDGETS, Budget

SECONDS: Final = {"us": 1e6, "ms": 1e3, "s": 1.0}  # how many of each are a second
NOISY: Final = 1.5  # a spread above it


class Row(NamedTuple):
    """One line: the figures of all rounds, ours and the floor's, both in `unit`; medians count."""

    what: str
    unit: str
    ours: Sequence[float]
    floor: str = ""  # what it is compared with
    floors: Sequence[float] = ()
    budget: Budget | None = None
    gain: bool = False  # the ratio is floor over ours: more is better

    @property
    def figure(self) -> float:
        return statistics.median(self.ours)

    @property
    def floor_figure(self) -> float | None:
        return statistics.median(self.floors) if self.floors else None

    @property
    def ratio(self) -> float | None:
        floor = self.floor_figure
        if floor is None or (self.figure if self.gain else floor) <= 0:
            return None
        return floor / self.figure if self.gain else self.figure / floor

    @property
    def met(self) -> bool | None:
        """None where there is no budget."""
        if self.budget is None:
            return None
        value = self.ratio if self.budget.unit == "x" else self.figure
        return value is not None and self.budget.met(value)

    def plain(self) -> dict[str, Any]:
        return {
            "what": self.what,
            "unit": self.unit,
            "figure": self.figure,
            "figures": list(self.ours),
            "floor": self.floor or None,
            "floor_figure": self.floor_figure,
            "floor_figures": list(self.floors),
            "ratio": self.ratio,
            "ratio_is": "floor/figure" if self.gain else "figure/floor",
            "budget": str(self.budget) if self.budget else None,
            "met": self.met,
            "spread": spread(self.ours),
            "floor_spread": spread(self.floors),
        }


def timed(
    what: str,
    unit: str,
    ours: Sequence[float],
    floor: str = "",
    floors: Sequence[float] = (),
    budget: Budget | None = None,
    gain: bool = False,
) -> Row:
    """A row of times, which come in seconds."""
    scale = SECONDS[unit]
    return Row(what, unit, [t * scale for t in ours], floor, [t * scale for t in floors], budget, gain)


def held_to(budget: Budget, unit: str, ours: Sequence[float], floor: str = "", floors: Sequence[float] = ()) -> Row:
    """A row of times, in seconds, that has a budget."""
    return timed(budget.what, unit, ours, floor, floors, budget, gain=budget.least)


def spread(figures: Sequence[float]) -> float | None:
    """The largest over the smallest: how noisy it was."""
    return max(figures) / min(figures) if len(figures) > 1 and min(figures) > 0 else None


def table(rows: Sequence[Row]) -> str:
    """All rows, as text."""
    head = ["what", "figure", "floor", "", "ratio", "budget", "met", "spread", "floor's"]
    cells = [head, *map(_cells, rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(head))]
    left = {0, 2, 5, 6}
    lines = (
        "  ".join(c.ljust(w) if i in left else c.rjust(w) for i, (c, w) in enumerate(zip(line, widths, strict=True)))
        for line in cells
    )
    return "\n".join(line.rstrip() for line in lines)


def _cells(row: Row) -> list[str]:
    ratio, floor = row.ratio, row.floor_figure
    return [
        row.what,
        f"{_number(row.figure)} {row.unit}",
        row.floor,
        "" if floor is None else f"{_number(floor)} {row.unit}",
        "" if ratio is None else f"{_number(ratio)}{'^' if row.gain else ' '}",
        "" if row.budget is None else str(row.budget),
        {None: "", True: "yes", False: "NO"}[row.met],
        _number(spread(row.ours)),
        _number(spread(row.floors)),
    ]


def _number(value: float | None) -> str:
    """Three digits."""
    if value is None:
        return ""
    return f"{value:.0f}" if abs(value) >= 99.95 else f"{value:.1f}" if abs(value) >= 9.995 else f"{value:.2f}"


def not_measured(rows: Sequence[Row], reasons: dict[str, str]) -> list[tuple[Budget, str]]:
    """The budgets that no row holds, and why. `reasons` are by benchmark."""
    measured = {row.budget for row in rows}
    return [
        (budget, budget.why or reasons.get(budget.benchmark, "not chosen"))
        for budget in BUDGETS
        if budget not in measured
    ]


class Noise(NamedTuple):
    """How much the floors went up and down in a run: each one's slowest round over its fastest."""

    floors: int
    median: float
    most: float
    of: str  # the floor of the most
    above: int  # floors whose spread is more than NOISY

    def __str__(self) -> str:
        return (
            f"{self.floors} floors, slowest round over fastest: median {_number(self.median)} x, "
            f"most {_number(self.most)} x ({self.of}), {self.above} above {NOISY:g} x"
        )


def noise(rows: Sequence[Row]) -> Noise | None:
    """None where no floor had several rounds."""
    spreads = {tuple(row.floors): (found, row.floor) for row in rows if (found := spread(row.floors)) is not None}
    if not spreads:
        return None
    most, of = max(spreads.values())
    figures = [figure for figure, _ in spreads.values()]
    return Noise(len(figures), statistics.median(figures), most, of, sum(figure > NOISY for figure in figures))


def verdict(rows: Sequence[Row]) -> str:
    """The last line."""
    held = [row.met for row in rows if row.budget is not None]
    return f"budgets: {held.count(True)} met, {held.count(False)} missed, {len(BUDGETS) - len(held)} not measured"
