"""How peers are compared: one after the other, each in turn with NumPy, round by round.

A round of the peer and one of NumPy take turns, so that a ratio compares what the machine gave at the same time. A peer
that computes something else than NumPy has no figures. Knows neither the peers nor what they are asked to do.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from asking import Refused, Running, Silent
from environments import FOLDER, PEERS, Peer, Unmade, command
from figures import Cell, Row
from workloads import Workload

FLOOR: Final = "NumPy, one process"
CLOSE: Final = 1e-3  # relative: float32 sums in another order


class Plan(NamedTuple):
    """How long the run may take."""

    rounds: int
    round_s: float
    warm: int


NORMAL: Final = Plan(7, 0.2, 1)
QUICK: Final = Plan(3, 0.05, 1)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


class Sides:
    """A peer and NumPy, that take turns."""

    def __init__(self, peer: Running, floor: Running, plan: Plan) -> None:
        self._peer, self._floor, self._plan = peer, floor, plan

    def measure(self, row: str, workload: Workload) -> Cell:
        """All rounds of one workload."""
        check = self._peer.ask(open=[row, workload.name])["check"]
        try:
            beside = self._floor is not self._peer and workload.name in self._floor.rows[FLOOR]
            return self._beside(workload, check) if beside else Cell(self._rounds(workload, self._peer)[0])
        finally:
            self._peer.ask(close=True)

    def _beside(self, workload: Workload, check: float | None) -> Cell:
        numpys = self._floor.ask(open=[FLOOR, workload.name])["check"]
        try:
            if check is not None and abs(check - numpys) > CLOSE * abs(numpys):
                raise Refused(f"it computes something else than NumPy: {check:.6g}, not {numpys:.6g}")
            return Cell(*self._rounds(workload, self._peer, self._floor))
        finally:
            self._floor.ask(close=True)

    def _rounds(self, workload: Workload, *sides: Running) -> list[list[float]]:
        """The figures of each side; first it is found out how often the work fits in a round."""
        counts = [self._count(workload, side) for side in sides]
        taken: list[list[float]] = [[] for _ in sides]
        for number in range(self._plan.warm + self._plan.rounds):
            for side, count, figures in zip(sides, counts, taken, strict=True):
                figure = side.ask(run=count)["seconds"]
                if number >= self._plan.warm:
                    figures.append(figure)
        return taken

    def _count(self, workload: Workload, side: Running) -> int:
        side.ask(run=1)
        few = max(workload.most // 100, 1)
        return min(max(int(self._plan.round_s / side.ask(run=few)["seconds"]), 1), workload.most)


def rows_of(peer: Running, floor: Running, plan: Plan, chosen: Sequence[Workload]) -> list[Row]:
    """All that a peer can do. One that falls silent keeps what it had till then."""
    rows = []
    lost = ""
    for name, able in peer.rows.items():
        cells: dict[str, Cell] = {}
        failed: dict[str, str] = {}
        for workload in (w for w in chosen if w.name in able):
            try:
                if lost:
                    raise Silent(lost)
                cells[workload.name] = Sides(peer, floor, plan).measure(name, workload)
            except Refused as why:
                failed[workload.name] = str(why)
            except Silent as why:
                failed[workload.name] = lost = str(why)
            say(f"  {name}: {workload.name} {failed.get(workload.name, '')}".rstrip())
        rows.append(Row(name, cells, failed))
    return rows


def measure(
    peers: Mapping[str, Peer], plan: Plan, chosen: Sequence[Workload], folder: Path = FOLDER
) -> tuple[dict[str, str], list[Row], dict[str, str]]:
    """The versions of everything, the rows of all peers, and the peers that could not be measured and why."""
    rows: list[Row] = []
    unmeasured: dict[str, str] = {}
    folder.mkdir(parents=True, exist_ok=True)
    with Running(command("numpy", PEERS["numpy"], say), folder / "numpy.log") as floor:
        versions = dict(floor.versions)
        for place, (name, peer) in enumerate(peers.items(), 1):
            say(f"{place}/{len(peers)} {name}")
            started = time.perf_counter()
            try:
                if peer is PEERS["numpy"]:
                    rows += rows_of(floor, floor, plan, chosen)
                    continue
                words = command(name, peer, lambda text: say(f"  {text}"), folder)
                with Running(words, folder / f"{name}.log") as running:
                    rows += rows_of(running, floor, plan, chosen)
                    versions |= running.versions
            except (Unmade, Silent, OSError) as why:
                unmeasured[name] = str(why)
                say(f"  not measured: {why}")
            say(f"  {time.perf_counter() - started:.0f} s")
    return versions, pooled(rows), unmeasured


def pooled(rows: Sequence[Row]) -> list[Row]:
    """NumPy's own row gets all the rounds that it has taken between those of the peers."""
    return [
        row._replace(cells={name: Cell([*cell.seconds, *_floors(rows, name)]) for name, cell in row.cells.items()})
        if row.name == FLOOR
        else row
        for row in rows
    ]


def _floors(rows: Sequence[Row], workload: str) -> list[float]:
    return [figure for row in rows if workload in row.cells for figure in row.cells[workload].floor]
