"""A worker's loss: how it is told, what fails with it, and what of it is given up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ..protocol import messages as m
from ..protocol.identity import ends_within, same_host
from . import failures, greetings
from .unfinished import told, unfinished
from .uninterrupted import uninterrupted

if TYPE_CHECKING:
    from .session import Session

DYING_S: Final = 1.0  # how long a worker may take to end, once its memory cannot be opened any more


def lose(session: Session, index: int, reason: str) -> None:
    """A worker is lost: what needs it fails, and everybody is told. The caller holds the lock."""
    lane = session.lanes[index]
    if lane.lost is not None or session.closed or session.exiting:
        return
    if session.recovery is not None:
        session.recovery.lost(lane, reason)
        return
    found = unfinished(lane)
    words = "" if lane.process is None else lane.process.last_words()
    site = None if found is None else found.site
    error = failures.worker_lost(str(lane.device), reason, told(found), site, words)
    lane.lose(error)
    session._give_credit(lane)
    greetings.welcome(session, index, error)
    if session.recorder is not None:
        session.recorder.lost(index)
    for request, pending in list(session._pending.items()):
        if pending.lane == index:
            del session._pending[request]
            pending.happened(failures.again(error))
    for other in session.lanes:
        if other.lost is None:
            other.send(m.PeerGone(index, f"the worker of {lane.device} {reason}"))
    if session._gated:
        session.hazards.lost(index)
        session._send_released(session.gate.lost(index).send)
    session._mappings.forget(lane.worker.identity)
    for number, (reader, block, _) in list(session._uploads.items()):
        if reader == index:
            del session._uploads[number]
            session._arena.free(block)
    if session.lives is not None:
        session.lives.lost(lane, reason + told(found))


def found_lost(session: Session, index: int) -> Exception | None:
    """The error of a worker that has ended, though the watch may not have told yet; None if it lives."""
    lane = session.lanes[index]
    if lane.lost is None:
        if not same_host(lane.worker.identity, session._identity) or not ends_within(lane.worker.identity, DYING_S):
            return None
        reason = fate(session, index)
        with uninterrupted(), session.lock:
            lose(session, index, reason)
    return None if lane.lost is None else failures.again(lane.lost)


def tell_lost(session: Session, lane: Any, words: str = "") -> None:
    """On the thread of a watch or of a connection."""
    session.tell_receiver(m.Lost(lane, words or fate(session, lane)))
    session._ended = True
    session.receiver.wake()  # nobody else may be receiving


def fate(session: Session, key: Any) -> str:
    """How the process behind a key of the watch has ended."""
    lane = key if type(key) is int else key[0]
    process = session.lanes[lane].process
    return "has ended" if process is None else process.fate()
