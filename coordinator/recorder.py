"""Collects, while tracing, what was issued, what ran where, what was transferred, and what the frontend waited for.

Holds raw facts as they come; `timeline.py` and `graph.py` make pictures of them afterwards.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from ..protocol import messages as m
from ..protocol.accesses import accesses, operation_name, outputs
from ..protocol.messages import CONTROLS, Control, Instruction
from ..protocol.operations import BY_NUMBER
from ..protocol.recordings import bind
from .events import Pending
from .sites import Site, place
from .timeline import WAITS, Blocked, Issued, Moved, Ran

if TYPE_CHECKING:
    from .lane import Lane

_STREAMS: Final = ("compute", "h2d", "d2h", "peer", WAITS)
_CREATING: Final = ("create", "sequence", "random")


class Recorder:
    """The records of one trace."""

    def __init__(self, devices: list[str]) -> None:
        self.devices = devices
        self.ran: list[Ran] = []
        self.moved: list[Moved] = []
        self.blocks: list[Blocked] = []
        self._raw: list[tuple[int, int, Instruction, Site | None, int, str]] = []
        self._noted: dict[int, int] = {}  # per lane, the last instruction noted
        self._last: dict[int, Pending] = {}

    def begin(self, lane: int, first: int) -> None:
        self._noted[lane] = first - 1

    def note(self, lane: Lane) -> None:
        """Record what was issued in this lane since the last time; the caller holds the session's lock."""
        now = time.monotonic_ns()
        noted = self._noted.get(lane.index, 0)
        for n in range(max(noted + 1, lane.first), lane.first + len(lane.batch)):
            at = n - lane.first
            instruction = lane.batch[at]
            site = lane.sites[at] if at < len(lane.sites) else None  # one is missing where Ctrl-C came between the two
            self._noted[lane.index] = n
            if instruction[0] == Control.RUN:
                self._note_run(lane, n, instruction, now)
            elif instruction[0] not in (Control.DEFINE, Control.FORGET):
                specs = [lane.known[id] for _, id in outputs(instruction) if id >= 0]
                detail = ", ".join(f"{spec.dtype} {spec.shape}" for spec in specs)
                self._raw.append((lane.index, n, instruction, site, now, detail))

    def _note_run(self, lane: Lane, n: int, run: Instruction, now: int) -> None:
        """The instructions that a run stands for. It is the last in its batch, as always when there is a recorder."""
        _, recording, base, bindings, numbers, _ = run
        part = lane.recordings[recording]
        specs = {id: f"{dtype} {shape}" for id, shape, dtype, _ in part.template.specs}
        for at, (each, site) in enumerate(zip(part.template.instructions, part.sites, strict=True), n):
            instruction = bind(each, base, bindings, numbers)
            detail = ", ".join(specs[id] for _, id in outputs(instruction))
            self._raw.append((lane.index, at, instruction, site, now, detail))
            self._noted[lane.index] = at

    def traced(self, message: m.Traced) -> None:
        """A worker's records came."""
        lane = message.lane
        self.ran.extend(Ran(lane, n, _STREAMS[stream], start, end) for n, stream, start, end in message.ran)
        self.moved.extend(Moved(ticket, source, lane, *rest) for ticket, source, *rest in message.moved)
        if message.last and lane in self._last:
            self._last.pop(lane).happened(True)

    def expect_last(self, lane: int) -> Pending:
        """What happens when the lane's worker has sent its last record."""
        pending = self._last[lane] = Pending(lane)
        return pending

    def lost(self, lane: int) -> None:
        """The lane's worker sends no records any more."""
        pending = self._last.get(lane)
        if pending is not None:
            pending.happened(None)

    def blocked(self, what: str, site: Site | None, start_ns: int, reason: str, buffer: int | None = None) -> None:
        """The frontend waited, for this reason; `buffer` if it was for that one's elements."""
        file, line, _ = place(site)
        self.blocks.append(Blocked(what, file, line, start_ns, time.monotonic_ns(), reason, buffer))

    def said(self, what: str, reason: str) -> None:
        """The last wait was for this."""
        if self.blocks:
            self.blocks[-1] = self.blocks[-1]._replace(what=what, reason=reason)

    def issued(self) -> list[Issued]:
        """What was issued, in order, for the pictures."""
        return [self._issued(*raw) for raw in self._raw]

    @staticmethod
    def _issued(lane: int, n: int, instruction: Instruction, site: Site | None, at: int, detail: str) -> Issued:
        code = instruction[0]
        ticket: Any = None
        if code < CONTROLS:
            name = kind = operation_name(instruction)
            ticket = {Control.SEND: 2, Control.RECV: 3}.get(code)
            ticket = None if ticket is None else instruction[ticket]
            if kind == "fence":
                kind = "read"
        else:
            operation = BY_NUMBER[code // 4]
            name = operation_name(instruction)
            kind = "create" if operation.kind in _CREATING else "compute"
        reads, writes = accesses(instruction)
        return Issued(lane, n, name, kind, *place(site), at, reads, writes, ticket, detail)
