"""The worker's loop: messages in, batches to the executors of its sessions in turn, messages out.

The thin shell around `executor.py`: it owns the sockets and nothing else. It waits in one place, when there is
nothing to run; whatever comes (a batch, a ticket, a lost frontend, a mark that the device has reached) comes there.
"""

from __future__ import annotations

import contextlib
import os
import time
import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ..protocol import files
from ..protocol import messages as m
from ..protocol.arena import Mappings
from ..protocol.codec import decode, encode
from ..protocol.errors import DeviceLost, ImportFailed, ProtocolError
from ..protocol.identity import Identity, own_identity, parse_identity, same_host
from ..protocol.letters import Box, Letters
from ..protocol.messages import Message
from ..protocol.network import Network, listening, server_pair
from ..protocol.operations import table_hash
from ..protocol.page import FLAGGED, ROWS, cell
from ..protocol.sockets import Inbox, Outlet, ipc, sweep
from ..protocol.watch import Watch
from .devices import open_device
from .executor import Executor
from .monitor import Monitor

if TYPE_CHECKING:
    from ..protocol.tcp import Link

MOST_SESSIONS: Final = 200  # at a time; each takes sockets and descriptors
OWED_S: Final = 0.002  # how long a lender may wait to be told that a loan is over, when there is nothing else to do
LOANS_S: Final = 0.5  # how long an instruction that lacks memory waits for what was lent to come back


@dataclass(frozen=True, slots=True)
class Config:
    """What a worker is told at its start."""

    device: str  # such as "cpu:0"
    name: str  # of its endpoint, unique in the folder
    folder: Path  # where its endpoint lies
    memory: int  # bytes that its arrays may take, all sessions together
    options: dict[str, Any] = field(default_factory=dict)  # of the device
    listen: str = ""  # tcp://host:port, to be reached from elsewhere, too
    keys: Path | None = None  # the file of keys, for that


class Session:
    """What the loop keeps of one session."""

    executor: Executor

    def __init__(self, id: bytes, events: Outlet, lane: int, owner: Identity, life: int) -> None:
        self.id = id
        self.lane = lane
        self.life = life  # of the session: it counts how often all its lanes were made anew
        self.owner = owner  # the frontend's process
        self.batches: deque[m.Batch] = deque()
        self._events = events
        self._peers: dict[int, Outlet] = {}
        self._letters: dict[int, Letters] = {}  # to those that have a box
        self.progress: memoryview | None = None  # the page that is shared with the frontend (`protocol/page.py`)
        self.drop = (0, 0)  # for the monitor: what has not started up to this instruction goes, at this time
        self.seen = (0, False)

    def report(self, message: Message) -> None:
        if type(message) is m.Flagged and self.progress is not None:
            self.progress[cell(self.progress, FLAGGED, self.lane)] += 1
        self._events.send(encode(message if not self.life else m.aged(message, self.life)))

    def tell(self, lane: int, message: Message) -> None:
        peer = self._peers.get(lane)
        if peer is not None:
            data, letters = encode(message), self._letters.get(lane)
            if letters is None or not letters.send(data):
                peer.send(data)

    def upcoming(self) -> m.Instruction:
        """The first instruction of the next batch; one that means nothing here, if none has come."""
        return self.batches[0].instructions[0] if self.batches else (m.Control.FENCE,)

    def connect(self, lane: int, endpoint: str, link: Link | None) -> None:
        self.disconnect(lane)
        self._peers[lane] = Outlet(endpoint, link=link)
        with contextlib.suppress(OSError):  # it has no box: everything goes by the outlet
            self._letters[lane] = Letters(endpoint)

    def disconnect(self, lane: int) -> None:
        peer = self._peers.pop(lane, None)
        if peer is not None:
            peer.close(linger_ms=0)
        letters = self._letters.pop(lane, None)
        if letters is not None:
            letters.close()

    def show_progress(self) -> None:
        if self.progress is not None:
            self.progress[self.lane] = self.executor.through()

    def awaited(self) -> bool:
        """Whether the frontend waits to be told of how far the lane has come now, as far as can be seen from here."""
        if self.progress is None:
            return True
        wanted: int = self.progress[len(self.progress) // ROWS + self.lane]  # WANTED
        return 0 < wanted <= self.executor.through()

    def close(self, linger_ms: int) -> None:
        for lane in list(self._peers):
            self.disconnect(lane)
        self._events.close(linger_ms)
        if self.progress is not None:
            self.progress.release()


class Worker:
    """One device, served to any number of sessions."""

    def __init__(self, config: Config) -> None:
        self.identity = own_identity()
        self._config = config
        kind, _, index = config.device.partition(":")
        self._kind, self._index = kind, int(index)
        self._sessions: dict[bytes, Session] = {}  # by the name that the inbox knows the frontend by
        self._names: dict[bytes, bytes] = {}  # session id -> that name
        self._deferred: deque[tuple[bytes, Message]] = deque()  # came in the middle of a batch
        self._mappings = Mappings()
        self._broken: dict[bytes, str] = {}  # sessions to be ended, and why
        self._stopping = False
        self._network = Network(server_pair(config.keys), self._tell_lost)
        inproc = f"inproc://{config.name}-{self.identity.incarnation}"
        self.inbox = Inbox(ipc(config.folder, config.name), inproc, listening(config.listen, config.keys))
        self._own_name = b"own" + os.urandom(16)  # of this process's own threads, which nobody else can guess
        self._box: Box | None = None
        with contextlib.suppress(OSError):
            self._box = Box(self.inbox.local)
            self.inbox.watch(self._box.fd)
        # Proves that the device is there before anyone relies on it; each session opens its own.
        open_device(
            kind, self._index, limit_bytes=config.memory, identity=self.identity, options=config.options
        ).close()
        self._watch = Watch(self._tell_lost)
        self._monitor = Monitor(lambda: list(self._sessions.values()))
        self._handlers: dict[type[Any], Callable[[bytes, Any], None]] = {
            m.Hello: self._hello,
            m.Peers: self._introduce,
            m.Restore: self._restore,
            m.Batch: self._queue,
            m.Returned: self._returned,
            m.PeerGone: self._peer_gone,
            m.Trace: self._trace,
            m.Inspect: self._inspect,
            m.Cancel: self._cancel,
            m.Goodbye: self._goodbye,
            m.Ticket: self._ticket,
            m.Taken: self._taken,
            m.Lost: self._lost,
            m.Stop: self._stop,
        }

    def run(self) -> None:
        """Serve until told to stop.

        Raises:
            DeviceLost: the device is broken; the sessions have been told.
        """
        try:
            while not self._stopping:
                if not (self._take_in() or self._run_batches()):
                    self._rest()
                if self._broken:
                    self._end_broken()
        except DeviceLost as error:
            for session in self._sessions.values():
                session.report(m.Refused(session.lane, f"{self._config.device} is broken: {error}"))
                session.close(linger_ms=500)
            raise
        for name in list(self._sessions):
            self._end(name, linger_ms=200)
        self._network.close()
        self.inbox.close()
        if self._box is not None:
            self._box.close()

    # -- the loop

    def _take_in(self) -> bool:
        """Handle what is here, without waiting. True if there was anything."""
        some = False
        while self._deferred:
            self._handle(*self._deferred.popleft())
            some = True
        while (received := self._poll()) is not None:
            self._decode_and(self._handle, *received)
            some = True
        return some

    def _poll(self) -> tuple[bytes, bytes | memoryview] | None:
        """(sender, data) of what is here, or None; of a letter the sender does not matter."""
        if self._box is not None and (letter := self._box.poll()) is not None:
            return b"", letter
        return self.inbox.poll()

    def _run_batches(self) -> bool:
        """One batch of each session that has one. True if there was any."""
        some = False
        for name, session in list(self._sessions.items()):
            some = some or bool(session.batches)
            self._contain(name, self._advance, session)
        return some

    def _advance(self, session: Session) -> None:
        executor = session.executor
        if not executor.device.inline:
            executor.drain()
            session.show_progress()
        if session.batches:
            batch = session.batches.popleft()
            if executor.owes and batch.instructions[-1][0] != m.Control.RUN:  # it may take long, and send no ticket
                executor.pay_back()
            executor.batch(batch, self._interrupt)
            session.show_progress()
            executor.report_completed(at_once=session.progress is not None and session.awaited())

    def _rest(self) -> None:
        """Nothing to run: say how far everyone has come, and wait."""
        for name, session in self._sessions.items():
            self._contain(name, self._come_to_rest, session)
        owing = [session.executor for session in self._sessions.values() if session.executor.owes]
        if not self._broken:
            monitor = self._monitor
            monitor.resting = True
            self.inbox.wait(OWED_S if owing else None)
            monitor.resting = False
            if monitor.asleep:
                monitor.wake()
            if owing and not self._take_in():
                for executor in owing:
                    executor.pay_back()

    @staticmethod
    def _come_to_rest(session: Session) -> None:
        session.show_progress()
        session.executor.report_completed(at_once=session.awaited())

    def _interrupt(self) -> None:
        """Between two instructions of a batch, while something is parked: take in the tickets that have come."""
        for _ in range(len(self._deferred)):  # tickets may be among what came while memory was short
            self._handle_in_batch(*self._deferred.popleft())
        while (received := self._poll()) is not None:
            self._decode_and(self._handle_in_batch, *received)

    def _await_loans(self) -> bool:
        """In the middle of an instruction that lacks memory: wait until a borrower returns some. False if none does.

        Nothing is run meanwhile: a ticket that comes waits for the end of the instruction.
        """
        deadline = time.monotonic() + LOANS_S
        while (left := deadline - time.monotonic()) > 0:
            self.inbox.wait(left)
            received = self._poll()
            if received is not None:
                returned = self._decode_and(self._handle_in_instruction, *received)
                if returned:
                    return True
        return False

    def _handle_in_instruction(self, sender: bytes, message: Message) -> bool:
        if type(message) in (m.Taken, m.Returned, m.Batch):
            self._handle(sender, message)
            return type(message) is not m.Batch
        if type(message) is m.Ticket and message.taken:  # what comes back with it is what is waited for
            self._handle(sender, m.Taken(message.session, message.source, message.taken))
            self._deferred.append((sender, message._replace(taken=())))
            return True
        self._deferred.append((sender, message))
        return False

    def _handle_in_batch(self, sender: bytes, message: Message) -> None:
        if type(message) in (m.Ticket, m.Taken, m.Returned, m.Batch):
            self._handle(sender, message)
        else:
            self._deferred.append((sender, message))  # it may close what is running

    def _decode_and(self, handle: Callable[[bytes, Message], Any], sender: bytes, data: bytes | memoryview) -> Any:
        try:
            message = decode(data)
        except ProtocolError:
            return None  # not one of ours: nobody to answer
        return handle(sender, message)

    def _handle(self, sender: bytes, message: Message) -> None:
        handler = self._handlers.get(type(message))
        if handler is not None and (sender or type(message) in (m.Ticket, m.Taken)):  # letters bring nothing else
            session = getattr(message, "session", b"")
            name = sender if sender in self._sessions else self._names.get(session, b"")
            self._contain(name, handler, sender, message)

    # -- one session's faults are not the others'

    def _contain(self, name: bytes, call: Callable[..., None], *arguments: Any) -> None:
        """Do something for one session. What goes wrong ends that session, and leaves the others alone."""
        try:
            call(*arguments)
        except DeviceLost:
            raise
        except Exception as error:
            _log_error()  # the message may be nobody's
            if name in self._sessions:
                self._broken[name] = f"{type(error).__name__}: {error}"

    def _end_broken(self) -> None:
        """Not before the batch is over in which it was found."""
        for name, reason in self._broken.items():
            session = self._sessions.get(name)
            if session is not None:
                session.report(m.Refused(session.lane, f"what the session sent makes no sense here: {reason}"))
                self._end(name, linger_ms=500)
        self._broken.clear()

    # -- sessions

    def _hello(self, sender: bytes, hello: m.Hello) -> None:
        self._end_former(hello)
        reason = self._why_not(sender, hello)
        link = self._network.link(hello.events, hello.session if reason is None else None)
        events = Outlet(self._speakable(sender, hello.events), events=True, link=link)
        if reason is None:
            try:
                self._open(sender, hello, events)
                return
            except Exception as error:
                _log_error()
                reason = str(error)
        events.send(encode(m.aged(m.Refused(hello.lane, reason), hello.options.get("life", 0))))
        events.close()

    def _end_former(self, hello: m.Hello) -> None:
        """The session begins a new life: what is here of the former one goes first."""
        for id in hello.options.get("former", ()):
            name = self._names.get(id, b"")
            former = self._sessions.get(name)
            if former is not None and former.owner == parse_identity(hello.identity):
                self._end(name, linger_ms=0)

    def _open(self, sender: bytes, hello: m.Hello, events: Outlet) -> None:
        """Make the lane of a session."""
        options, owner = hello.options, parse_identity(hello.identity)
        device = open_device(
            self._kind,
            self._index,
            limit_bytes=min(self._config.memory, options.get("memory") or self._config.memory),
            identity=self.identity,
            options=self._config.options,
        )
        session = Session(hello.session, events, hello.lane, owner, options.get("life", 0))
        try:
            window = options.get("window", 1024)
            executor = Executor(
                device,
                hello.lane,
                hello.session,
                session.report,
                session.tell,
                window,
                self._await_loans,
                session.upcoming,
                bool(options.get("nan")),
            )
            session.executor = executor
            shares, progress = same_host(owner, self.identity), options.get("progress")
            if shares and progress is not None:
                try:
                    session.progress = self._mappings.attach(owner, progress, writable=True).cast("q")
                except ImportFailed:  # as in a container that hides processes from one another
                    shares = False
                else:
                    session.show_progress()
            executor.introduce(-1, owner, direct=False, shares=shares)
        except BaseException:
            device.close()
            raise
        if device.completion_fd is not None:
            self.inbox.watch(device.completion_fd)
        self._sessions[sender] = session
        self._names[hello.session] = sender
        told = {**device.info._asdict(), "pid": os.getpid(), "shares": shares}
        session.report(m.Welcome(hello.lane, tuple(self.identity), told))
        if same_host(owner, self.identity):
            self._watch.watch(hello.session, owner)

    def _why_not(self, sender: bytes, hello: m.Hello) -> str | None:
        here = self._config.device
        if hello.version != m.PROTOCOL_VERSION:
            return (
                f"the program speaks protocol version {hello.version}, the worker of {here} speaks "
                f"{m.PROTOCOL_VERSION}; install the same version of interlock on both sides and restart the worker"
            )
        if hello.table != table_hash():
            return (
                f"the program and the worker of {here} have different tables of operations; "
                f"install the same version of interlock on both sides and restart the worker"
            )
        kinds = type(hello.options.get("window", 1)), type(hello.options.get("memory") or 1)
        if len(hello.session) != 16 or not 0 <= hello.lane < m.LANES or kinds != (int, int):
            return f"what the program told the worker of {here} about itself makes no sense"
        if len(self._sessions) >= MOST_SESSIONS:
            return f"the worker of {here} serves {MOST_SESSIONS} sessions already"
        if hello.session in self._names or sender in self._sessions:
            return f"the worker of {here} serves a session of that number already"
        if files.free() < files.WORKER:  # without one, ZeroMQ would end the worker, and with it the other sessions
            return f"the worker of {here} serves {len(self._sessions)} sessions, and may open no more files (ulimit -n)"
        return None

    def _introduce(self, sender: bytes, peers: m.Peers) -> None:
        session = self._sessions.get(sender)
        if session is not None:
            for lane, endpoint, values, direct in peers.peers:
                identity = parse_identity(values)
                link = self._network.link(endpoint, (session.id, lane))
                session.connect(lane, self._speakable(sender, endpoint), link)
                session.executor.introduce(lane, identity, direct, same_host(identity, self.identity))

    def _speakable(self, sender: bytes, endpoint: str) -> str:
        """An endpoint that a session may send this worker to: none inside it, and of another machine none here.

        Raises:
            ProtocolError: it may not.
        """
        if endpoint.startswith("tcp://") or (endpoint.startswith("ipc://") and not self.inbox.is_remote(sender)):
            return endpoint
        raise ProtocolError(f"a session of {'another' if self.inbox.is_remote(sender) else 'this'} machine cannot be "
                            f"spoken to at {endpoint!r}")  # fmt: skip

    def _restore(self, sender: bytes, message: m.Restore) -> None:
        session = self._sessions.get(sender)
        if session is not None:
            session.executor.restore(message)

    def _queue(self, sender: bytes, batch: m.Batch) -> None:
        session = self._sessions.get(sender)
        if session is not None:
            session.batches.append(batch)

    def _returned(self, sender: bytes, returned: m.Returned) -> None:
        session = self._sessions.get(sender)
        if session is not None:
            session.executor.returned(returned.tickets, -1)

    def _peer_gone(self, sender: bytes, gone: m.PeerGone) -> None:
        session = self._sessions.get(sender)
        if session is not None:
            session.executor.peer_gone(gone.lane, gone.reason)
            session.disconnect(gone.lane)

    def _trace(self, sender: bytes, trace: m.Trace) -> None:
        session = self._sessions.get(sender)
        if session is not None:
            session.executor.trace(trace.on)

    def _inspect(self, sender: bytes, inspect: m.Inspect) -> None:
        session = self._sessions.get(sender)
        if session is not None:
            session.report(m.Inspected(session.lane, inspect.request, session.executor.counts()))

    def _cancel(self, sender: bytes, cancel: m.Cancel) -> None:
        session = self._sessions.get(sender)
        if session is not None:
            session.drop = cancel.through, time.monotonic_ns() + cancel.grace_ms * 1_000_000

    def _goodbye(self, sender: bytes, _: m.Goodbye) -> None:
        self._end(sender, linger_ms=500)

    def _end(self, sender: bytes, linger_ms: int) -> None:
        session = self._sessions.pop(sender, None)
        if session is None:
            return
        for id, name in list(self._names.items()):
            if name == sender:
                del self._names[id]
                self._watch.forget(id)
        device = session.executor.device
        if device.completion_fd is not None:
            self.inbox.unwatch(device.completion_fd)
        session.executor.close()
        device.close()
        self._mappings.forget(session.owner)  # else the memory of programs that have ended stays mapped here
        session.close(linger_ms)

    # -- peers and processes

    def _of(self, session: bytes) -> Session | None:
        return self._sessions.get(self._names.get(session, b""))

    def _ticket(self, _: bytes, ticket: m.Ticket) -> None:
        session = self._of(ticket.session)
        if session is not None and ticket.source >= 0:
            session.executor.ticket(ticket)
            self._come_to_rest(session)  # what it lets go on may be waited for, and other sessions' work never ends

    def _taken(self, _: bytes, taken: m.Taken) -> None:
        session = self._of(taken.session)
        if session is not None and taken.source >= 0:  # what the frontend was lent, it alone returns
            session.executor.returned(taken.tickets, taken.source)

    def _lost(self, sender: bytes, lost: m.Lost) -> None:
        """The frontend of a session has ended: so does the session. Or the way to another worker is lost."""
        if self._own_name not in sender:
            return  # only this process's own threads know
        if type(lost.key) is tuple:
            session = self._of(lost.key[0])
            if session is not None:
                session.report(m.Unreachable(session.lane, lost.key[1], lost.reason))
            return
        self._end(self._names.get(lost.key, b""), linger_ms=0)
        sweep()  # its endpoints, if it was killed

    def _stop(self, sender: bytes, _: m.Stop) -> None:
        if not self.inbox.is_remote(sender):  # that is its supervisor's to say
            self._stopping = True

    def _tell_lost(self, key: Any, words: str = "has ended") -> None:
        """On a thread that watches processes or connections: tell the loop, by the one road that it listens on."""
        outlet = Outlet(self.inbox.inproc, name=self._own_name + os.urandom(8))
        outlet.send(encode(m.Lost(key, words)))
        outlet.close()


def _log_error() -> None:
    with contextlib.suppress(OSError):  # the disk may be full
        traceback.print_exc()
