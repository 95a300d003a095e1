"""What comes to a session: each message is checked, and taken in under the session's lock.

What a worker says that makes no sense costs it its lane, and nobody else anything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ..protocol import messages as m
from ..protocol.codec import decode
from ..protocol.errors import ProtocolError
from . import greetings, losses
from .events import Pending
from .failures import Cause
from .loans import Loan
from .uninterrupted import uninterrupted

if TYPE_CHECKING:
    from .session import Session

_TWICE: Final = (m.Value, m.Completed)  # the frequent ones; nothing is amiss if they are handled once more


def handle(session: Session, data: bytes) -> None:
    try:
        message = decode(data)
    except ProtocolError:
        return  # not of one of ours
    if type(message) in _TWICE and not session._gated and session.recovery is None:
        _handle_whole(session, message)
    else:
        with uninterrupted():
            _handle_whole(session, message)
            session.receiver.handled()


def _handle_whole(session: Session, message: m.Message) -> None:
    with session.lock:
        lane = getattr(message, "lane", 0)
        if (lane >= m.LIFE or session.life) and type(message) is not m.Lost:
            life, lane = divmod(lane, m.LIFE)
            if life != session.life:
                return  # of a life that is over
            message = message._replace(lane=lane)
        if not 0 <= lane < len(session.lanes):
            return
        try:
            _take(session, message)
        except Exception as error:  # a worker that tells nonsense is as good as lost; the others are not
            losses.lose(session, lane, f"told what makes no sense here ({type(error).__name__}: {error})")


def _take(session: Session, message: m.Message) -> None:
    match message:
        case m.Value():
            session._completed(message.lane, message.through)
            if session.recovery is not None:
                message = session.recovery.answered(message)
                if message is None:
                    return  # it is asked again
            pending = _asked(session, message)
            lane = session.lanes[message.lane]
            if pending is None:  # nobody waits any more
                if type(message.place) is tuple:
                    lane.loans_over.append(message.place[1])
                    lane.give_back()
                return
            if not pending.done and pending.loan is None and type(message.place) is tuple:
                pending.loan = Loan(message.place[1], lane.loans_over)
            pending.happened(message)
            # No calls: it is forgotten as it counts as handled, for nobody must hear of it again.
            del session._pending[message.request]
            if session.receiver.inbox:
                del session.receiver.inbox[0]
        case m.Completed():
            session._completed(message.lane, message.through)
        case m.Failed():
            _failed(session, message)
        case m.Flagged():
            session.flags.add(message)
        case m.Released():
            for block in message.blocks:
                uploaded = session._uploads.get(block)
                if uploaded is not None and uploaded[0] == message.lane:  # it is this worker's to give back
                    del session._uploads[block]
                    if session.recovery is not None:
                        session.recovery.returned(block, uploaded[1])
                    else:
                        session._arena.free(uploaded[1])
        case m.Inspected() | m.Described():
            if (
                session.recovery is not None
                and type(message) is m.Described
                and not session.recovery.described(message)
            ):
                return  # it is asked again
            pending = _asked(session, message)
            if pending is not None:
                pending.happened(message)
                del session._pending[message.request]
        case m.Traced():
            if session.recorder is not None:
                session.recorder.traced(message)
        case m.Lost():
            _lost(session, message.key, message.reason)
        case m.Unreachable():
            other = session.lanes[message.peer]
            if other.lost is None:  # whose end the connection was; else there is no way from one to the other
                teller = session.lanes[message.lane].device
                losses.lose(session, other.index, f"cannot be reached from {teller}: {message.reason}")
        case m.Welcome():
            greetings.welcome(session, message.lane, message)
        case m.Refused():
            greetings.welcome(session, message.lane, ProtocolError(message.reason))
            losses.lose(session, message.lane, f"refused: {message.reason}")


def _asked(session: Session, answer: m.Value | m.Inspected | m.Described) -> Pending | None:
    """What this answers; None if nobody waits any more, or it was another worker that was asked.

    Raises:
        ProtocolError: it is no answer.
    """
    if type(answer) is m.Value:
        place, failure = answer.place, answer.failure
        if type(place) not in (bytes, type(None), np.ndarray) and not (type(place) is tuple and len(place) == 4):
            raise ProtocolError("an answer that says nothing")
        if failure is not None and not (len(failure) == 6 and type(failure[0]) is tuple and len(failure[0]) == 2):
            raise ProtocolError("an answer with a failure that is none")
    pending = session._pending.get(answer.request)
    return None if pending is None or pending.lane != answer.lane else pending


def _lost(session: Session, key: Any, reason: str) -> None:
    """A process has ended (lane, incarnation), or a connection (lane); None is nobody."""
    if key is not None:
        session._ended = False
    if type(key) is int and 0 <= key < len(session.lanes):
        losses.lose(session, key, reason)
    elif type(key) is tuple and len(key) == 2:
        lane, incarnation = key
        if lane in range(len(session.lanes)) and session.lanes[lane].worker.identity.incarnation == incarnation:
            losses.lose(session, lane, reason)


def _failed(session: Session, message: m.Failed) -> None:
    if message.detail == "keep":
        return  # of a checkpoint, which sees it itself
    root = (message.root[0], message.root[1])
    site = session.lanes[message.lane].site(message.n)
    if root == (message.lane, message.n):
        owners = session._owners.lines(message.lane, message.shortage) if message.shortage else ()
        cause = Cause(message.kind, message.text, message.traceback, message.detail, message.shortage, owners)
        session._failures.failed(root, cause, site, message.issued)
    else:
        session._failures.inherited((message.lane, message.n), site, root)
