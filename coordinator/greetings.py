"""How a session and its workers meet: who each other is, where each listens, and that a lane is made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ..protocol import messages as m
from ..protocol.errors import InterlockError
from ..protocol.identity import Identity, same_host
from ..protocol.operations import table_hash
from .events import Pending
from .lane import Lane
from .sites import user_site

if TYPE_CHECKING:
    from .session import Session

HELLO_S: Final = 20.0  # how long a worker may take to answer


def greet(session: Session, lanes: list[Lane]) -> None:
    """Let the workers of new lanes make them, and all workers know of each other."""
    for lane in lanes:
        say_hello(session, lane)
        if same_host(lane.worker.identity, session._identity):
            session._watch.watch((lane.index, lane.worker.identity.incarnation), lane.worker.identity)
    for lane in lanes:
        _await_welcome(session, lane)
    with session.lock:
        introduce(session, lanes)


def listening_for(session: Session, endpoint: str) -> str:
    """Where a worker at this endpoint finds the session's events; over tcp only this session's workers come in."""
    if not endpoint.startswith("tcp://"):
        return session._events.endpoint
    from ..protocol import keys, tcp

    _, public = keys.split(endpoint)
    assert public is not None  # its lane is connected
    session._far_keys.add(public)
    host = tcp.local_address(endpoint)
    if host not in session._far_endpoints:
        wanted = tcp.Listening(f"tcp://{host}:0", tcp.new_pair(), session._far_keys.__contains__)
        session._far_endpoints[host] = session._events.listen(wanted)
    return session._far_endpoints[host]


def say_hello(session: Session, lane: Lane) -> None:
    """Ask the worker to make the lane."""
    with session.lock:
        progress = session._page.ticket(session._progress_block)
        options: dict[str, Any] = {"memory": session.memory, "window": session.window, "progress": progress}
        if session.modes.nan:
            options["nan"] = True
        if session.life:
            options.update(life=session.life, former=session.former)
        session._welcomes[lane.index] = Pending(lane.index, "the worker's welcome", site=user_site(2))
        hello = m.Hello(
            m.PROTOCOL_VERSION,
            table_hash(),
            session.id,
            tuple(session._identity),
            lane.index,
            listening_for(session, lane.worker.endpoint),
            options,
        )
        lane.post(hello)


def _await_welcome(session: Session, lane: Lane) -> None:
    pending = session._welcomes[lane.index]
    try:
        if not session.receiver.wait(pending, HELLO_S):
            where = listening_for(session, lane.worker.endpoint)
            back = f"; can it reach this program at {where.partition('?')[0]}?" if lane.worker.is_tcp else ""
            raise InterlockError(
                f"the worker of {lane.device} at {lane.worker.endpoint} did not answer in {HELLO_S:.0f} s{back}"
            )
    finally:
        session._welcomes.pop(lane.index, None)
    if isinstance(pending.fact, Exception):
        raise pending.fact
    lane.welcomed(pending.fact)


def introduce(session: Session, new: list[Lane]) -> None:
    """Tell the workers of new lanes of all others, and those of these. The caller holds the lock."""
    living = [lane for lane in session.lanes if lane.lost is None and lane.welcome is not None]
    for lane in living:
        peers = []
        for other in living:
            if other is not lane and (lane in new or other in new):
                assert lane.welcome is not None
                assert other.welcome is not None
                direct = _reads_directly(lane.welcome, other.welcome)
                peers.append((other.index, other.worker.endpoint, tuple(other.welcome.identity), direct))
        lane.post(m.Peers(tuple(peers)))


def _reads_directly(source: m.Welcome, target: m.Welcome) -> bool:
    """Whether the target's device reads the source's memory itself."""
    kinds = source.device["kind"], target.device["kind"]
    here = same_host(Identity(*source.identity), Identity(*target.identity))
    return kinds[0] == kinds[1] != "cpu" and here and bool(source.device["exports_memory"])


def welcome(session: Session, lane: int, fact: Any) -> None:
    """The worker of a lane has said whether it serves; or it is lost."""
    pending = session._welcomes.get(lane)
    if pending is not None and not pending.done:
        pending.happened(fact)
