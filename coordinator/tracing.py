"""Tracing a region of the program: `with il.trace("timeline.json"): ...`."""

from __future__ import annotations

import os
from types import TracebackType

from ..protocol import messages as m
from ..protocol.errors import InterlockError
from . import timeline
from .client import default_session
from .graph import step_graph, write_graph
from .greetings import HELLO_S
from .lane import BATCH
from .recorder import Recorder
from .session import Session
from .timeline import Overlap


class Trace:
    """What a traced region did. Has its records when the region has ended."""

    def __init__(self, path: str | os.PathLike[str] | None, session: Session) -> None:
        self._path = path
        self._session = session
        self._recorder: Recorder | None = None

    def __enter__(self) -> Trace:
        _start(self._session)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._recorder = _stop(self._session)
        if self._path is not None:
            self.write_timeline(self._path)

    @property
    def records(self) -> Recorder:
        """The raw records.

        Raises:
            ValueError: the region has not ended yet.
        """
        if self._recorder is None:
            raise ValueError("the trace has no records before its region has ended")
        return self._recorder

    def write_timeline(self, path: str | os.PathLike[str]) -> None:
        """Write the timeline in Chrome's trace format; open it at ui.perfetto.dev."""
        r = self.records
        timeline.write_trace(path, r.devices, r.issued(), r.ran, r.moved, r.blocks)

    def write_graph(self, path: str | os.PathLike[str]) -> None:
        """Write the computational graph of what was issued, as an SVG picture."""
        issued = [i for i in self.records.issued() if i.name != "fence"]  # the end of the trace, not of the program
        write_graph(path, step_graph(self.records.devices, issued, sources=False))

    def overlap(self) -> Overlap:
        """How much of the transfer time was hidden behind computing, and how long devices computed side by side."""
        r = self.records
        return timeline.overlap(r.devices, r.ran, r.moved, r.issued())


def trace(path: str | os.PathLike[str] | None = None, *, session: Session | None = None) -> Trace:
    """Trace what the default session does in a `with` block; the timeline goes to `path`, if given.

    The block's beginning and end wait until everything issued has finished.
    """
    return Trace(path, session or default_session())


def _start(session: Session) -> None:
    """Record from now on what is issued and what runs."""
    if session.recorder is not None:
        raise InterlockError("a trace of this session is being recorded already: end it before the next one begins")
    session.synchronize(raising=False)
    with session.lock:
        session.recorder = Recorder([str(lane.device) for lane in session.lanes])
        session.longest = 0
        for lane in session.lanes:
            if lane.lost is None:
                lane.send(m.Trace(True))
                lane.limit = 0
                session.recorder.begin(lane.index, lane.first)


def _stop(session: Session) -> Recorder:
    """Stop recording; everything recorded has come."""
    session.synchronize(raising=False)
    recorder = session.recorder
    if recorder is None:
        raise InterlockError("no trace was started")
    with session.lock:
        lanes = [lane for lane in session.lanes if lane.lost is None]
        waits = [recorder.expect_last(lane.index) for lane in lanes]
        for lane in lanes:
            lane.send(m.Trace(False))
    for pending in waits:
        session.receiver.wait(pending, HELLO_S)
    session.recorder = None
    session.longest = 0 if session.modes.sync else BATCH
    return recorder
