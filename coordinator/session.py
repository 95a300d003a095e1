"""A session: one program's lanes to its workers, what is on the way in them, and what has come back.

The shell of the coordinator. It owns the sockets, the shared memory for uploads, and the lock that every issued
instruction takes once. What waits for what is decided in `tracker.py` and at the workers; which thread receives,
in `events.py`; how a user's operation becomes an instruction, in `issue.py`.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import time
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from ..protocol import messages as m
from ..protocol.accesses import accesses, buffer_of
from ..protocol.arena import Arena, Mappings
from ..protocol.codec import decode, encode, packer
from ..protocol.errors import InterlockError, ProtocolError, WorkerLost
from ..protocol.identity import Identity, own_identity, same_host
from ..protocol.messages import Control, Instruction, Message, Ref
from ..protocol.operations import table_hash
from ..protocol.sockets import Events, Outlet, ipc, private_folder, remove_folder
from ..protocol.specs import Spec, packed_strides
from ..protocol.watch import Watch
from . import failures, workers
from .events import Pending, Receiver
from .failures import Cause, Root, Site
from .recorder import Recorder
from .tracker import Gate, Hazards

BATCH: Final = 64  # instructions that leave together at the most
FIRST_LOOK: Final = 1  # the first instruction of a batch leaves at once if its worker has nothing to do
STEP: Final = 16  # after that many more, look again
HEAVY: Final = 256 * 1024  # bytes of results in a batch, beyond which the worker should not wait for more
KNOWN: Final = 50_000  # specs that a worker is made to remember
INLINE: Final = 32 * 1024  # bytes; smaller uploads travel inside the message
HELLO_S: Final = 20.0
ROOM: Final = 0.75  # of the window: who has waited for room goes on when no more than this is on the way
FORKED: Final = "this is a forked child of the program that made the session: connect again here"
_BATCH_TAG: Final = m.TAGS[m.Batch]


class Device:
    """One device of a session. `str(device)` is its name."""

    __slots__ = ("index", "kind", "lane")

    def __init__(self, name: str, lane: Lane) -> None:
        kind, _, index = name.partition(":")
        self.kind = kind
        self.index = int(index)
        self.lane = lane

    def __str__(self) -> str:
        return f"{self.kind}:{self.index}"

    def __repr__(self) -> str:
        return f"<interlock device {self}>"

    def __eq__(self, other: object) -> bool:
        if isinstance(other, str):
            return str(self) == other
        return self is other

    def __hash__(self) -> int:
        return hash(str(self))


class Lane:
    """The stream of instructions to one worker. Everything here is guarded by the session's lock."""

    def __init__(self, session: Session, index: int, worker: workers.Adopted, name: bytes) -> None:
        self.session = session
        self.index = index
        self.worker = worker
        self.device = Device(worker.device, self)
        self.lock = session.lock
        self.next_id = session.next_id
        self.batch: list[Instruction] = []  # issued and not sent
        self.sites: list[Site | None] = []  # the user's line of each
        self.first = 1  # the number of batch[0]
        self.limit = FIRST_LOOK  # at this length of the batch, `full` decides
        self.heavy = 0  # bytes of large results in the batch
        self.known: dict[int, Spec] = {}  # by id: specs that the worker knows, or that are in `specs`
        self.specs: list[Spec] = []  # to be sent with the next batch
        self.dropped: deque[int] = deque()  # buffers whose last handle went; filled by finalisers, from any thread
        self.completed = 0  # as far as events have told
        self.log: deque[tuple[int, list[Site | None]]] = deque()  # sites of what was sent and is not completed
        self.bytes: deque[tuple[int, int]] = deque()  # (n, bytes of large results through it) of sent batches
        self.lost: Exception | None = None
        self.credit: Pending | None = None  # of those who wait for room in the window
        self._bytes_sent = 0
        self._bytes_done = 0
        self._pack = packer()
        self._outlet = Outlet(worker.endpoint, name=name)

    # -- issuing

    def append(self, instruction: Instruction, site: Site | None, nbytes: int = 0) -> int:
        """Add an instruction and return its number. The caller holds the lock, and calls `full` after releasing it."""
        if nbytes >= INLINE:
            self.expect(nbytes)
        self.batch.append(instruction)
        self.sites.append(site)
        return self.first + len(self.batch) - 1

    def expect(self, nbytes: int) -> None:
        """A large result is about to be issued: what was dropped makes room for it first, and the batch leaves soon."""
        self.heavy += nbytes
        self.limit = 0
        if self.dropped:
            self.free()

    def free(self) -> None:
        """Issue the FREE of the buffers whose last handle has gone."""
        dropped = self.dropped
        self.batch.append((Control.FREE, *[dropped.popleft() for _ in range(len(dropped))]))
        self.sites.append(None)

    def define(self, spec: Spec) -> None:
        """Let the worker know a spec, with the batch that uses it first."""
        if spec.id not in self.known:
            self.known[spec.id] = spec
            self.specs.append(spec)

    def full(self) -> None:
        """The batch has grown to its limit: send it, or wait for more. Called without the lock; may wait for credit."""
        with self.lock:
            if self.lost is not None:
                self.batch.clear()
                self.sites.clear()
                self.dropped.clear()
                raise failures.again(self.lost)
            recorder = self.session.recorder
            if recorder is not None:
                recorder.note(self)
            if len(self.batch) >= BATCH or self.heavy > HEAVY or self.dry():
                self.flush()
            else:
                self.limit = len(self.batch) + STEP if recorder is None else 0
            room = self.in_window()
        self.session.receiver.wake()
        if not room:
            self.session.await_credit(self)

    def flush(self) -> None:
        """Send what was issued, and the buffers that were dropped. The caller holds the lock."""
        if self.dropped:
            self.free()
        batch = self.batch
        if not batch or self.lost is not None:
            return
        recorder = self.session.recorder
        if recorder is not None:
            recorder.note(self)
        first = self.first
        self.first += len(batch)
        self.log.append((first, self.sites))
        if self.heavy:
            self._bytes_sent += self.heavy
            self.bytes.append((self.first - 1, self._bytes_sent))
            self.heavy = 0
        self.batch = []
        self.sites = []
        self.limit = FIRST_LOOK if recorder is None else 0
        self._forward(first, batch)

    def _forward(self, first: int, batch: list[Instruction]) -> None:
        specs: tuple[tuple[Any, ...], ...] = ()
        if self.specs:
            specs = tuple((s.id, s.shape, s.dtype.str, s.strides) for s in self.specs)
            self.specs = []
            if len(self.known) > KNOWN:  # a program of ever new shapes: both sides start afresh
                self.known = {}
                specs = (*specs, m.FORGET_SPECS)
        self._outlet.send(self._pack((_BATCH_TAG, first, specs, batch)))

    def send(self, message: Message) -> None:
        """A message beside the instructions. The caller holds the lock."""
        self._outlet.send(encode(message))

    # -- how far it has come

    def through(self) -> int:
        """All instructions up to this one have finished, as far as is known here."""
        seen: int = self.session.progress[self.index]
        return seen if seen > self.completed else self.completed

    def dry(self) -> bool:
        """The worker has nothing more to do."""
        return self.through() >= self.first - 1

    def in_window(self, share: float = 1.0) -> bool:
        """Fewer instructions, and fewer bytes of results, are on the way than (this share of) the window allows."""
        through = self.through()
        while self.bytes and self.bytes[0][0] <= through:
            self._bytes_done = self.bytes.popleft()[1]
        session = self.session
        return (
            self.first - 1 - through < session.window * share
            and self._bytes_sent - self._bytes_done < session.window_bytes * share
        )

    def unfinished(self) -> bool:
        return bool(self.batch or self.dropped) or self.completed < self.first - 1

    def note_completed(self, through: int) -> None:
        self.completed = max(self.completed, through)
        log = self.log
        while log and log[0][0] + len(log[0][1]) - 1 <= through:
            log.popleft()

    def site(self, n: int) -> Site | None:
        """The user's line that issued instruction n, if it is still remembered."""
        for first, sites in self.log:
            if first <= n < first + len(sites):
                return sites[n - first]
        return self.sites[n - self.first] if 0 <= n - self.first < len(self.sites) else None

    def lose(self, error: Exception) -> None:
        """Nothing more can be sent."""
        self.lost = error
        self.limit = 0
        self.batch.clear()
        self.sites.clear()

    def close(self, linger_ms: int) -> None:
        self._outlet.close(linger_ms)


class GatedLane(Lane):
    """A lane under gate="coordinator": an instruction is held here, and the lane with it, until its waits are over."""

    def __init__(self, session: Session, index: int, worker: workers.Adopted, name: bytes) -> None:
        super().__init__(session, index, worker, name)
        self._ready: list[Instruction] = []
        self._ready_first = 1
        self._held: deque[Instruction] = deque()
        session.gate.open(index)

    def _forward(self, first: int, batch: list[Instruction]) -> None:
        self.scan(first, batch)
        self.forward_ready()

    def scan(self, first: int, batch: list[Instruction]) -> None:
        """Put instructions before the gate, in the order of issue."""
        for n, instruction in enumerate(batch, first):
            if self.session.gate.submit(self.index, n, self._waits(n, instruction)):
                self._ready.append(instruction)
            else:
                self._held.append(instruction)

    def _waits(self, n: int, instruction: Instruction) -> tuple[tuple[int, int], ...]:
        session = self.session
        if instruction[0] == Control.SEND:
            recv = session.recvs.pop(instruction[2])
            buffer = buffer_of(instruction[1])
            assert buffer is not None
            session.hazards.sent(buffer, *recv)
            session.sends[recv] = (self.index, n)
            return ()
        if instruction[0] == Control.RECV:
            return (session.sends.pop((self.index, n)),)
        waits = tuple(wait for buffer in accesses(instruction)[1] for wait in session.hazards.waits_of_write(buffer))
        if instruction[0] == Control.FREE:
            for buffer in instruction[1:]:
                session.hazards.freed(buffer)
        return waits

    def release(self) -> None:
        """The gate has opened for the first that is held."""
        self._ready.append(self._held.popleft())

    def forward_ready(self) -> None:
        if self._ready:
            first, batch = self._ready_first, self._ready
            self._ready_first += len(batch)
            self._ready = []
            super()._forward(first, batch)

    def lose(self, error: Exception) -> None:
        super().lose(error)
        self._ready.clear()
        self._held.clear()


class Session:
    """One connection of this program to a set of workers, started for it or shared with other programs."""

    def __init__(
        self,
        adopted: Sequence[workers.Adopted],
        processes: Sequence[workers.Process] = (),
        *,
        folder: Any = None,
        gate: str = "worker",
        window: int = 1024,
        memory: int | None = None,
    ) -> None:
        """Greet the workers. `processes` are those that this session started, and stops; `folder` its own folder."""
        if gate not in ("worker", "coordinator"):
            raise ValueError(f"gate must be 'worker' or 'coordinator', not {gate!r}")
        if window < 1:
            raise ValueError(f"window must be at least 1 instruction, not {window}")
        self.id = os.urandom(16)
        self.lock = threading.Lock()
        self.next_id: Callable[[], int] = itertools.count(1).__next__
        self.window = window
        self.memory = memory or workers.default_memory(len(adopted))
        self.window_bytes = self.memory // 4
        self.closed = False
        self.lanes: list[Lane] = []
        self.previous: Session | None = None  # the default session before this one
        self.gate = Gate()
        self.hazards = Hazards()
        self.recvs: dict[int, tuple[int, int]] = {}  # gate only: by ticket, the recv of a send that is issued with it
        self.sends: dict[tuple[int, int], tuple[int, int]] = {}  # gate only: the send of each recv
        self.recorder: Recorder | None = None
        self._gated = gate == "coordinator"
        self._pid = os.getpid()
        self._processes = list(processes)
        self._folder = folder or private_folder()
        self._requests = itertools.count(1)
        self._tickets = itertools.count(1)
        self._blocks = itertools.count(1)
        self._uploads: dict[int, Any] = {}  # blocks of the arena that workers read
        self._pending: dict[int, Pending] = {}
        self._welcomes: dict[int, Pending] = {}
        self._causes: dict[Root, tuple[Cause, Site | None, int]] = {}  # of failures, with the order of issue
        self._unread: dict[Root, None] = {}
        self._raised: set[Root] = set()
        self._inherited: dict[tuple[int, int], Site | None] = {}
        self._identity = own_identity()
        self._arena = Arena(self.memory, self._identity)
        self._mappings = Mappings()
        self._progress_block = self._arena.allocate(8 * max(len(adopted), 8))
        page: Any = self._arena.array(self._progress_block, (max(len(adopted), 8),), np.dtype(np.int64))
        page[...] = 0
        self.progress = memoryview(page)
        self._events = Events(ipc(self._folder, "events"), f"inproc://session-{self.id.hex()}")
        self.receiver = Receiver(self._events, self._handle, self._tick, self._busy)
        self._watch = Watch(self._tell_lost)
        make = GatedLane if self._gated else Lane
        try:
            for i, worker in enumerate(adopted):
                self.lanes.append(make(self, i, worker, b"s" + self.id + bytes([i])))
            self._greet()
        except BaseException:
            self.close()
            raise
        self.devices = [lane.device for lane in self.lanes]
        _sessions.add(self)

    # -- the beginning

    def _greet(self) -> None:
        progress = self._arena.ticket(self._progress_block)
        for lane in self.lanes:
            options = {"memory": self.memory, "window": self.window, "progress": progress}
            self._welcomes[lane.index] = Pending(lane.index)
            hello = m.Hello(
                m.PROTOCOL_VERSION,
                table_hash(),
                self.id,
                tuple(self._identity),
                lane.index,
                self._events.endpoint,
                options,
            )
            lane.send(hello)
            if same_host(lane.worker.identity, self._identity):
                self._watch.watch(lane.index, lane.worker.identity)
        info: dict[int, m.Welcome] = {}
        for lane in self.lanes:
            pending = self._welcomes[lane.index]
            if not self.receiver.wait(pending, HELLO_S):
                raise InterlockError(
                    f"the worker of {lane.device} at {lane.worker.endpoint} did not answer in {HELLO_S:.0f} s"
                )
            if isinstance(pending.fact, Exception):
                raise pending.fact
            info[lane.index] = pending.fact
        self._welcomes.clear()
        for lane in self.lanes:
            peers = []
            for other in self.lanes:
                if other is not lane:
                    direct = self._reads_directly(info[lane.index], info[other.index])
                    peers.append((other.index, other.worker.endpoint, tuple(info[other.index].identity), direct))
            lane.send(m.Peers(tuple(peers)))

    @staticmethod
    def _reads_directly(source: m.Welcome, target: m.Welcome) -> bool:
        """Whether the target's device reads the source's memory itself."""
        kinds = source.device["kind"], target.device["kind"]
        here = same_host(Identity(*source.identity), Identity(*target.identity))
        return kinds[0] == kinds[1] != "cpu" and here and bool(source.device["exports_memory"])

    @property
    def pids(self) -> dict[str, int]:
        """The process id of each device's worker."""
        return {str(lane.device): lane.worker.identity.pid for lane in self.lanes}

    @property
    def mine(self) -> bool:
        """This process made the session; a forked child did not."""
        return os.getpid() == self._pid

    def device(self, device: Device | str) -> Device:
        """The session's device of that name.

        Raises:
            ValueError: it has none.
        """
        if isinstance(device, Device):
            return device
        wanted = workers.check_devices([device])[0]
        for lane in self.lanes:
            if str(lane.device) == wanted:
                return lane.device
        names = ", ".join(str(lane.device) for lane in self.lanes)
        raise ValueError(f"there is no device {wanted!r} in this session: it has {names}")

    # -- sending

    def check_open(self) -> None:
        """Raise if the session is closed, or if this process is a fork of the one that made it."""
        if os.getpid() != self._pid:
            raise InterlockError(FORKED)
        if self.closed:
            raise InterlockError("the session is closed")

    def flush(self) -> None:
        """Send everything that was issued. The caller holds the lock."""
        for lane in self.lanes:
            lane.flush()

    def await_credit(self, lane: Lane) -> None:
        """Wait until the lane's window has room again: until at most three quarters of it are in use."""
        started = time.monotonic_ns()
        while True:
            with self.lock:
                if lane.lost is not None or lane.in_window(ROOM):
                    break
                self.flush()  # all lanes: what this one waits for may be unsent in another
                pending = lane.credit = lane.credit or Pending(lane.index)
            self.receiver.wait(pending)
        self._note_blocked("credit", started)

    def _ask(self, lane: Lane, ref: Ref | None, site: Site | None = None) -> Pending:
        """Ask a worker for a value (a fence, without a reference): everything before is sent along."""
        request = next(self._requests)
        pending = Pending(lane.index)
        with self.lock:
            self.check_open()
            if lane.lost is not None:
                pending.happened(failures.again(lane.lost))
                return pending
            self._pending[request] = pending
            lane.append((Control.FENCE, request) if ref is None else (Control.READ, ref, request), site)
            self.flush()
        return pending

    def transfer(self, ref: Ref, source: Lane, target: Lane, spec: Spec, site: Site | None) -> int:
        """Send an array from one worker to another; the new buffer's number there."""
        ticket = (source.index << 40) | next(self._tickets)
        buffer = self.next_id()
        with self.lock:
            for lane in (source, target):
                if lane.lost is not None:
                    raise failures.again(lane.lost)
            target.define(spec)
            send = (Control.SEND, ref, ticket, target.index)
            recv = (Control.RECV, buffer, spec.id, ticket, source.index)
            if self._gated:
                # Here the send must be before the gate when the recv comes, which waits for it.
                if spec.nbytes >= INLINE:
                    target.expect(spec.nbytes)
                self.recvs[ticket] = (target.index, target.first + len(target.batch))
                source.append(send, site)
                source.flush()
                target.append(recv, site)
                target.flush()
            else:
                source.append(send, site)
                target.append(recv, site, spec.nbytes)
        for lane in (source, target):
            if len(lane.batch) >= lane.limit:
                lane.full()
        return buffer

    def upload(self, lane: Lane, data: np.ndarray[Any, Any], spec: Spec, site: Site | None) -> int:
        """Copy the user's data now, and make an array of it on the worker; the new buffer's number.

        `data` has the dtype and the shape of `spec`, whose memory order the elements are sent in.
        """
        buffer = self.next_id()
        place: Any
        if spec.nbytes < INLINE:
            place = _in_memory_order(data, spec).tobytes()
        else:
            block = self._allocate(spec.nbytes)
            target = self._arena.array(block, spec.shape, spec.dtype, spec.strides)
            target[...] = data
            number = next(self._blocks)
            place = ("host", number, 0, self._arena.ticket(block))
        with self.lock:
            if lane.lost is not None:
                raise failures.again(lane.lost)
            if type(place) is tuple:
                self._uploads[place[1]] = block
            lane.define(spec)
            lane.append((Control.UPLOAD, buffer, spec.id, place), site, spec.nbytes)
            if type(place) is bytes and len(place) > 1024:
                lane.heavy += len(place)  # let it leave soon: the message grows
                lane.limit = 0
        if len(lane.batch) >= lane.limit:
            lane.full()
        return buffer

    def _allocate(self, nbytes: int) -> Any:
        """A block of the arena; when it is full, wait until the workers have given some back."""
        while True:
            try:
                return self._arena.allocate(nbytes)
            except MemoryError:
                if not self._uploads:
                    raise
            self.synchronize(raising=False)

    # -- reading

    def read(
        self, lane: Lane, ref: Ref, spec: Spec, site: Site | None, timeout: float | None = None
    ) -> np.ndarray[Any, Any]:
        """The elements of an array, the caller's own, writable.

        Raises:
            TimeoutError: it was not there in `timeout` seconds; reading again goes on waiting.
            Exception: what made the array fail.
        """
        self.check_open()
        started = time.monotonic_ns() if self.recorder is not None else 0
        pending = self._ask(lane, ref, site)
        try:
            if not self.receiver.wait(pending, timeout):
                raise TimeoutError(self._why_waiting(lane, timeout))
        except BaseException:  # Ctrl-C, too
            self.abandon(pending)
            raise
        if self.recorder is not None:
            self.recorder.blocked("read", site, started)
        return self.value(pending, spec)

    def ask(self, lane: Lane, ref: Ref, site: Site | None) -> Pending:
        """Ask for an array's elements without waiting; `value` makes an array of the answer."""
        self.check_open()
        pending = self._ask(lane, ref, site)
        self.receiver.wake()  # nobody else may be receiving
        return pending

    def abandon(self, pending: Pending) -> None:
        """Nobody waits for this answer any more: what it lends is given back, now or when it comes."""
        with self.lock:
            for request, other in self._pending.items():
                if other is pending:
                    del self._pending[request]
                    return
            fact, lane = pending.fact, self.lanes[pending.lane]
            if isinstance(fact, m.Value) and type(fact.place) is tuple and lane.lost is None:
                lane.send(m.Returned((fact.place[1],)))

    def value(self, pending: Pending, spec: Spec) -> np.ndarray[Any, Any]:
        """The elements that came for a pending read."""
        fact = pending.fact
        if isinstance(fact, Exception):
            raise fact
        if fact.failure is not None:
            raise self._error(fact.failure)
        strides = packed_strides(spec.shape, spec.dtype.itemsize, spec.strides)
        place = fact.place
        if type(place) is bytes:
            return np.ndarray(spec.shape, spec.dtype, bytearray(place or bytes(spec.dtype.itemsize)), 0, strides).copy(
                "K"
            )
        _, loan, offset, ticket = place
        lane = self.lanes[pending.lane]
        with self.lock:
            memory = self._mappings.attach(lane.worker.identity, ticket)
        array = np.ndarray(spec.shape, spec.dtype, memory, offset, strides).copy(order="K")
        with self.lock:
            lane.send(m.Returned((loan,)))
        return array

    def synchronize(self, timeout: float | None = None, raising: bool = True) -> None:
        """Wait until all that was issued has finished; raise the earliest unread failure, with the others as notes."""
        self.check_open()
        started = time.monotonic_ns()
        deadline = None if timeout is None else time.monotonic() + timeout
        fences = [(lane, self._ask(lane, None)) for lane in self.lanes if lane.lost is None]
        for lane, pending in fences:
            if not self.receiver.wait(pending, None if deadline is None else max(deadline - time.monotonic(), 0)):
                raise TimeoutError(self._why_waiting(lane, timeout))
        self._note_blocked("synchronize", started)
        if raising:
            self._raise_unread()

    def _raise_unread(self) -> None:
        errors = self._take_unread()
        lost = [lane.lost for lane in self.lanes if lane.lost is not None]
        if not errors and lost:
            raise failures.again(lost[0])
        if errors:
            first, *others = errors
            for other in others[:10]:
                first.add_note(f"also failed: {type(other).__name__}: {other}\n  {other.__notes__[0]}")
            if len(others) > 10:
                first.add_note(f"and {len(others) - 10} more")
            raise first

    def _take_unread(self) -> list[Exception]:
        with self.lock:
            roots = sorted(self._unread, key=lambda root: self._causes[root][2])
            self._unread.clear()
        return [self._exception(root, *self._causes[root][:2], ()) for root in roots]

    def _why_waiting(self, lane: Lane, timeout: float | None) -> str:
        stuck = []
        for each in self.lanes:
            through = each.through()
            if through < each.first - 1 and each.lost is None:
                where = failures.describe(each.site(through + 1))
                stuck.append(f"{each.device} has finished {through} of {each.first - 1} instructions; next is {where}")
        story = "\n  ".join(stuck)
        return f"not ready after {timeout} s on {lane.device}" + (f":\n  {story}" if story else "")

    def _note_blocked(self, what: str, started: int) -> None:
        if self.recorder is not None:
            self.recorder.blocked(what, None, started)

    # -- failures

    def _error(self, failure: tuple[Any, ...]) -> Exception:
        root, kind, text, words, detail, path = failure
        root = tuple(root)
        with self.lock:
            self._unread.pop(root, None)
            self._raised.add(root)  # should the report of it come later than this, as it may from another worker
            known = self._causes.get(root)
        if root[1] == 0:  # a lost worker's
            lost = self.lanes[root[0]].lost
            return failures.again(lost) if lost is not None else WorkerLost(text)
        cause, site = (
            known[:2] if known is not None else (Cause(kind, text, words, detail), self.lanes[root[0]].site(root[1]))
        )
        return self._exception(root, cause, site, path)

    def _exception(self, root: Root, cause: Cause, site: Site | None, path: Sequence[Any]) -> Exception:
        through = [(str(self.lanes[lane].device), self._inherited.get((lane, n))) for lane, n in path]
        return failures.exception(cause, str(self.lanes[root[0]].device), site, through)

    # -- what comes

    def _handle(self, data: bytes) -> None:
        try:
            message = decode(data)
        except ProtocolError:
            return  # not of one of ours
        with self.lock:
            if not 0 <= getattr(message, "lane", 0) < len(self.lanes):
                return
            match message:
                case m.Value():
                    self._completed(message.lane, message.through)
                    pending = self._pending.pop(message.request, None)
                    if pending is not None:
                        pending.happened(message)
                    elif type(message.place) is tuple:  # nobody waits any more
                        self.lanes[message.lane].send(m.Returned((message.place[1],)))
                case m.Completed():
                    self._completed(message.lane, message.through)
                case m.Failed():
                    self._failed(message)
                case m.Released():
                    for block in message.blocks:
                        self._arena.free(self._uploads.pop(block))
                case m.Inspected():
                    pending = self._pending.pop(message.request, None)
                    if pending is not None:
                        pending.happened(message)
                case m.Traced():
                    if self.recorder is not None:
                        self.recorder.traced(message)
                case m.Lost():
                    self._lose(message.key, message.reason)
                case m.Welcome():
                    self._welcome(message.lane, message)
                case m.Refused():
                    self._welcome(message.lane, ProtocolError(message.reason))
                    self._lose(message.lane, f"refused: {message.reason}")

    def _welcome(self, lane: int, fact: Any) -> None:
        pending = self._welcomes.get(lane)
        if pending is not None and not pending.done:
            pending.happened(fact)

    def _completed(self, index: int, through: int) -> None:
        lane = self.lanes[index]
        lane.note_completed(through)
        self._give_credit(lane)
        if self._gated:
            self.hazards.completed(index, through)
            self._send_released(self.gate.completed(index, through))

    def _give_credit(self, lane: Lane) -> None:
        if lane.credit is not None and (lane.lost is not None or lane.in_window(ROOM)):
            lane.credit.happened(True)
            lane.credit = None

    def _send_released(self, released: list[tuple[int, int]]) -> None:
        for index, _ in released:
            lane = self.lanes[index]
            assert isinstance(lane, GatedLane)
            lane.release()
        for index in {index for index, _ in released}:
            lane = self.lanes[index]
            assert isinstance(lane, GatedLane)
            lane.forward_ready()

    def _failed(self, message: m.Failed) -> None:
        root = tuple(message.root)
        site = self.lanes[message.lane].site(message.n)
        if root == (message.lane, message.n):
            cause = Cause(message.kind, message.text, message.traceback, message.detail)
            self._causes[root] = cause, site, next(self._requests)
            if root not in self._raised:
                self._unread[root] = None
        else:
            self._inherited[message.lane, message.n] = site

    def _tell_lost(self, lane: Any) -> None:
        """On the watch's thread: tell by the one road that everyone listens on."""
        outlet = Outlet(self._events.inproc, events=True)
        outlet.send(encode(m.Lost(lane, self._fate(lane))))
        outlet.close()

    def _fate(self, lane: int) -> str:
        return self._processes[lane].fate() if lane < len(self._processes) else "has ended"

    def _lose(self, index: int, reason: str) -> None:
        lane = self.lanes[index]
        if lane.lost is not None or self.closed:
            return
        if index < len(self._processes):
            reason += self._processes[index].last_words()
        error = failures.worker_lost(str(lane.device), reason, lane.site(lane.through() + 1))
        lane.lose(error)
        self._give_credit(lane)
        self._welcome(index, error)
        for request, pending in list(self._pending.items()):
            if pending.lane == index:
                del self._pending[request]
                pending.happened(failures.again(error))
        for other in self.lanes:
            if other.lost is None:
                other.send(m.PeerGone(index, f"the worker of {lane.device} {reason}"))
        if self._gated:
            self.hazards.lost(index)
            self._send_released(self.gate.lost(index).send)
        self._mappings.forget(lane.worker.identity)

    # -- the background thread

    def _busy(self) -> bool:
        """There is work under way; a look without the lock, that a tick will make sure of."""
        return any(lane.lost is None and lane.unfinished() for lane in self.lanes)

    def _tick(self) -> bool:
        """Send what lies unsent; True while there is work under way."""
        if self.closed:
            return False
        with self.lock:
            some = False
            for lane in self.lanes:
                if lane.lost is None and lane.unfinished():
                    some = True
                    lane.flush()
            return some

    # -- looking into the workers

    def inspect(self) -> dict[str, dict[str, int]]:
        """How many of each thing the session holds on each of its workers at this moment, by device."""
        self.check_open()
        asked: list[tuple[Lane, Pending]] = []
        with self.lock:
            self.flush()
            for lane in self.lanes:
                if lane.lost is None:
                    request = next(self._requests)
                    self._pending[request] = pending = Pending(lane.index)
                    lane.send(m.Inspect(request))
                    asked.append((lane, pending))
        found = {}
        for lane, pending in asked:
            self.receiver.wait(pending)
            if isinstance(pending.fact, m.Inspected):  # else it was lost meanwhile
                found[str(lane.device)] = pending.fact.counts
        return found

    # -- tracing

    def start_trace(self) -> None:
        """Record from now on what is issued and what runs."""
        self.synchronize(raising=False)
        with self.lock:
            self.recorder = Recorder([str(lane.device) for lane in self.lanes])
            for lane in self.lanes:
                if lane.lost is None:
                    lane.send(m.Trace(True))
                    lane.limit = 0
                    self.recorder.begin(lane.index, lane.first)

    def stop_trace(self) -> Recorder:
        """Stop recording; everything recorded has come."""
        self.synchronize(raising=False)
        recorder = self.recorder
        if recorder is None:
            raise InterlockError("no trace was started")
        with self.lock:
            lanes = [lane for lane in self.lanes if lane.lost is None]
            waits = [recorder.expect_last(lane.index) for lane in lanes]
            for lane in lanes:
                lane.send(m.Trace(False))
        for pending in waits:
            self.receiver.wait(pending, HELLO_S)
        self.recorder = None
        return recorder

    # -- the end

    def close(self) -> None:
        """End the session; the workers that it started are stopped. Failures that nobody read are warned of, once."""
        if self.closed or os.getpid() != self._pid:
            return
        unread: list[Exception] = []
        if getattr(self, "devices", None) is not None:
            with contextlib.suppress(Exception):
                self.synchronize(timeout=workers.STOP_S, raising=False)
            unread = self._take_unread()
        with self.lock:
            self.closed = True
            for lane in self.lanes:
                if lane.lost is None:
                    lane.flush()
                    lane.send(m.Goodbye())
                    if self._processes:
                        lane.send(m.Stop())
                error = InterlockError("the session is closed")
                alive = lane.lost is None
                lane.lose(error)
                self._give_credit(lane)
                lane.close(linger_ms=500 if alive else 0)
            for pending in [*self._pending.values(), *self._welcomes.values()]:
                if not pending.done:
                    pending.happened(InterlockError("the session was closed meanwhile"))
            self._pending.clear()
        workers.stop(self._processes)
        self.receiver.close()
        self._watch.close()
        self._events.close()
        self.progress.release()
        self._mappings.close()
        self._arena.close()
        remove_folder(self._folder)
        _sessions.discard(self)
        if unread:
            warnings.warn(failures.unread(len(unread), unread[:5]), stacklevel=3)

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self.closed else ", ".join(str(lane.device) for lane in self.lanes)
        return f"<interlock session: {state}>"


_sessions: weakref.WeakSet[Session] = weakref.WeakSet()  # open ones


def _in_forked_child() -> None:
    """The sessions stay the parent's: here their handles are inert, and using one is an error."""
    for session in list(_sessions):
        session.lock = threading.Lock()  # the parent's may have been held at the fork
        for lane in session.lanes:
            lane.lock = session.lock
            lane.lose(InterlockError(FORKED))


os.register_at_fork(after_in_child=_in_forked_child)


def close_all() -> None:
    """At the program's end: close what is still open."""
    for session in list(_sessions):
        session.close()


def _in_memory_order(data: np.ndarray[Any, Any], spec: Spec) -> np.ndarray[Any, Any]:
    """The elements as they will lie in memory, C-contiguous."""
    axes = sorted(range(spec.ndim), key=lambda axis: (-abs(spec.strides[axis]), axis))
    return np.ascontiguousarray(data.transpose(axes))


__all__ = ["Device", "Identity", "Lane", "Session", "close_all"]
