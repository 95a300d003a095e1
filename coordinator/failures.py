"""The exception that a read raises: the original class, with the story of the failure.

Takes what the worker told of a failure and the lines that the frontend kept, and builds the exception. Pure.
"""

from __future__ import annotations

import builtins
from typing import Any, Final, NamedTuple

import numpy as np

from ..protocol import errors
from ..protocol.errors import Cancelled, InterlockError, WorkerLost
from ..protocol.shortage import Shortage, tell
from .sites import Site, describe

Root = tuple[int, int]  # (lane, n) of the instruction that failed
KEPT: Final = 10_000  # failures remembered; older ones are raised by reads without their line


class Cause(NamedTuple):
    """A failed instruction: what the worker told of it."""

    kind: str
    text: str
    traceback: str
    detail: str
    shortage: tuple[Any, ...] = ()  # where it was memory that lacked
    owners: tuple[str, ...] = ()  # the lines of its largest owners


class Ledger:
    """The failures that a session was told of and the lines they came through: the latest KEPT of each."""

    def __init__(self) -> None:
        self._causes: dict[Root, tuple[Cause, Site | None, int]] = {}
        self._inherited: dict[Root, tuple[Site | None, Root]] = {}
        self._unread: dict[Root, None] = {}
        self._raised: dict[Root, None] = {}

    def failed(self, root: Root, cause: Cause, site: Site | None, issued: int) -> None:
        """An instruction failed; `issued` is its place in the order of issue."""
        self._causes[root] = cause, site, issued
        if root not in self._raised and cause.kind != Cancelled.__name__:  # who interrupts his program knows
            self._unread[root] = None
        _bound(self._causes)
        _bound(self._unread)

    def inherited(self, at: Root, site: Site | None, root: Root) -> None:
        """An instruction inherited the failure `root`."""
        self._inherited[at] = site, root
        _bound(self._inherited)

    def raised(self, root: Root) -> tuple[Cause, Site | None] | None:
        """A read raises this failure. What is known of it; None if its report has not come, or was too long ago."""
        self._unread.pop(root, None)
        self._raised[root] = None  # should the report come later than this, as it may from another worker
        _bound(self._raised)
        known = self._causes.get(root)
        return None if known is None else known[:2]

    def take_unread(self) -> list[tuple[Root, Cause, Site | None]]:
        """The failures that no read has raised, in the order of issue; from now on they count as read."""
        roots = sorted((root for root in self._unread if root in self._causes), key=lambda root: self._causes[root][2])
        self._unread.clear()
        return [(root, *self._causes[root][:2]) for root in roots]

    def line(self, at: Root) -> Site | None:
        """The line of an instruction that inherited a failure."""
        known = self._inherited.get(at)
        return None if known is None else known[0]

    def among(self, spans: list[tuple[int, int, int]]) -> list[tuple[Root, Cause, Site | None]]:
        """The failures that instructions `first` to `last` of lanes are, or inherited, in the order of issue.

        From now on they count as read.
        """
        if not self._causes:
            return []
        found: dict[Root, None] = {}
        for lane, first, last in spans:
            for n in range(first, last + 1):
                root = self._inherited[lane, n][1] if (lane, n) in self._inherited else (lane, n)
                if root in self._causes:
                    found[root] = None
        for root in found:
            self.raised(root)
        return [(root, *self._causes[root][:2]) for root in sorted(found, key=lambda each: self._causes[each][2])]


def _bound(kept: dict[Root, Any]) -> None:
    if len(kept) > KEPT:
        del kept[next(iter(kept))]


_CLASSES: Final[dict[str, type[Exception]]] = {
    **{n: c for n, c in vars(builtins).items() if isinstance(c, type) and issubclass(c, Exception)},
    **{n: c for n, c in vars(np.exceptions).items() if isinstance(c, type) and issubclass(c, Exception)},
    **{n: c for n, c in vars(errors).items() if isinstance(c, type) and issubclass(c, InterlockError)},
    "LinAlgError": np.linalg.LinAlgError,
}


def exception(cause: Cause, device: str, site: Site | None, path: list[tuple[str, Site | None]]) -> Exception:
    """The exception that a read of a failed array raises.

    Args:
        cause: what the worker told.
        device: where it failed.
        site: the user's line that issued the failed operation.
        path: (device, line) of the first operations that inherited the failure.
    """
    cls = _CLASSES.get(cause.kind, InterlockError)
    text = cause.text if cause.kind in _CLASSES else f"{cause.kind}: {cause.text}"
    if cause.shortage:
        lines = iter(cause.owners)
        text = tell(Shortage(*cause.shortage), describe(site), lambda _: next(lines, ""))
    try:
        made = cls(text)
    except TypeError:  # a class that is not made from a text
        made = InterlockError(f"{cause.kind}: {cause.text}")
    fate = "was dropped" if cls is errors.Cancelled else "failed"
    where = f"{cause.detail or 'an operation'} {fate} on {device}"
    made.add_note(f"{where}\n  issued at {describe(site)}")
    for via, line in path:
        made.add_note(f"  reached through {via}: {describe(line)}")
    if cause.traceback:
        made.add_note(f"on the worker of {device}:\n{cause.traceback.rstrip()}")
    return made


def worker_lost(device: str, reason: str, running: str = "", site: Site | None = None, words: str = "") -> WorkerLost:
    """The error of an array that went with its worker.

    Args:
        device: whose worker.
        reason: what became of it.
        running: which instruction it was at, as `unfinished.told` says it.
        site: the line that issued this instruction.
        words: the last lines that it wrote.
    """
    made = WorkerLost(f"the worker of {device} {reason}{running}{words}; the arrays that it held are lost")
    if site is not None:
        made.add_note(f"its last instruction was issued at {describe(site)}")
    return made


def again(error: Exception) -> Exception:
    """The same error, to be raised another time without what the first raising left on it."""
    made = type(error)(*error.args)
    for note in getattr(error, "__notes__", ()):
        made.add_note(note)
    return made


def note_others(errors: list[Exception]) -> None:
    """Tell of the other failures by notes on the first."""
    first, *others = errors
    for other in others[:10]:
        first.add_note(f"also failed: {type(other).__name__}: {other}\n  {other.__notes__[0]}")
    if len(others) > 10:
        first.add_note(f"and {len(others) - 10} more")


def unread(count: int, first: list[Any]) -> str:
    """The warning at a session's end about failures that no read ever raised."""
    lines = [f"{count} failed operation{'s' if count > 1 else ''} whose error nobody read:"]
    for error in first:
        notes = "\n".join(getattr(error, "__notes__", [])[:1])
        lines.append(f"{type(error).__name__}: {error}\n{notes}")
    return "\n".join(lines)
