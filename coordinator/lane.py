"""The stream of instructions to one worker: batches, the window, what has been completed, what is remembered of it.

A lane is guarded by its session's lock. It sends, and decides when; what the instructions mean is not its concern,
but for the buffers that they read and write, under gate="coordinator".
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from ..protocol import messages as m
from ..protocol.accesses import accesses, buffer_of
from ..protocol.codec import encode, packer
from ..protocol.messages import Control, Instruction, Message, Ref
from ..protocol.sockets import Outlet
from ..protocol.specs import Spec
from . import failures, workers
from .events import Pending
from .sites import Site
from .tracebacks import let_go
from .uninterrupted import uninterrupted

if TYPE_CHECKING:
    from ..protocol.recordings import Binding
    from .recording import Part
    from .session import Session

BATCH: Final = 64  # instructions that leave together at the most
FIRST_LOOK: Final = 1  # the first instruction of a batch leaves at once if its worker has nothing to do
STEP: Final = 16  # after that many more, look again
HEAVY: Final = 1 << 20  # bytes of results in a batch, beyond which the worker should not wait for more
GAP_NS: Final = 50_000  # between two messages to a worker that keeps up: each costs both sides tens of microseconds
RUNS: Final = 4  # of recordings that leave together at the most
PAST: Final = 4  # completed batches that are remembered, to tell what an instruction was given
MOST_FREED: Final = 1 << 20  # buffers that one instruction drops
KNOWN: Final = 50_000  # specs that a worker is made to remember
BIG: Final = 32 * 1024  # bytes; results from here on count for when a batch leaves, and for the window
_POP: Final = deque.popleft
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

    def __init__(
        self, session: Session, index: int, worker: workers.Adopted, name: bytes, device: Device | None = None
    ) -> None:
        """`name`: how the worker knows the session; `device`: one that had a worker before, whose lane is lost."""
        self.session = session
        self.index = index
        self.worker = worker
        self.process: workers.Process | None = None  # of the worker, where the session started it
        self.welcome: m.Welcome | None = None
        self.paused = False  # a worker is being replaced, and what is issued waits here (`recovery.py`)
        self.replayed = 0  # what was sent before, up to here, was sent again
        self.left = False  # its worker lives, and the session has taken leave of it
        self.device = device or Device(worker.device, self)
        self.lock = session.lock
        self.next_id = session.next_id
        self.batch: list[Instruction] = []  # issued and not sent
        self.sites: list[Site | None] = []  # the user's line of each
        self.first = 1  # the number of batch[0]
        self.limit = min(FIRST_LOOK, session.longest)  # at this length of the batch, `full` decides
        self.heavy = 0  # bytes of large results in the batch
        self.large: list[int] = []  # the places in the batch of what makes these
        self.owners: dict[int, Site | None] = {}  # by buffer: the line that made it, of large ones that live
        self.known: dict[int, Spec] = {}  # by id: specs that the worker knows, or that are in `specs`
        self.specs: list[Spec] = []  # to be sent with the next batch
        # Buffers whose last handle went, and, negative, recordings; filled by finalisers, from any thread.
        self.dropped: deque[int] = deque()
        self.loans_over: deque[int] = deque()  # of reads, to be given back; filled by finalisers as well
        self._freeing: list[int] = []  # taken from there, and not issued yet
        self.recordings: dict[int, Part] = {}  # that the worker knows
        self.completed = 0  # as far as events have told
        self.looked = 0  # as far as failures have been raised, under sync="op"
        # What was sent and is not completed, with the sites (of a run each of its instructions has one) and the time.
        self.log: deque[tuple[int, list[Site | None], list[Instruction], int]] = deque()
        self.past: deque[tuple[int, list[Site | None], list[Instruction], int]] = deque(maxlen=PAST)  # completed since
        self.bytes: deque[tuple[int, int]] = deque()  # (n, bytes of large results through it) of sent batches
        self.lost: Exception | None = None
        self.credit: Pending | None = None  # of those who wait for room in the window
        self._runs = 0  # in the batch; there are none beyond these
        self._last_run = 0  # the base of the last run
        self._last_site: Site | None = None  # of what was sent
        self._sent_ns = 0  # when the last batch left
        self._bytes_sent = 0
        self._bytes_done = 0
        self._pack = packer()
        self.shares = True  # the worker maps this process's memory, and this process the worker's
        self._outlet = Outlet(worker.endpoint, name=name, link=session.network.link(worker.endpoint, index))

    # -- issuing

    def append(self, instruction: Instruction, site: Site | None, nbytes: int = 0) -> int:
        """Add an instruction and return its number. The caller holds the lock, and calls `full` after releasing it."""
        if nbytes >= BIG:
            self.expect(nbytes)
        if self.session.tape is None:
            self.batch += (instruction,)  # no calls: Ctrl-C comes before both or after
            self.sites += (site,)
        else:  # whose lists may go elsewhere
            self.batch.append(instruction)
            self.sites.append(site)
        return self.first + len(self.batch) - 1

    def expect(self, nbytes: int) -> None:
        """A large result is about to be issued: what was dropped makes room for it first, and the batch leaves soon."""
        if self.session.taping():
            return
        self.heavy += nbytes
        self.limit = 0
        let_go()
        if self.dropped:
            self.free()
        self.large.append(len(self.batch))

    def free(self) -> None:
        """Issue the FREE of the buffers whose last handle has gone."""
        dropped = self.dropped
        if self.lost is not None:
            dropped.clear()
            return
        # Its line is that of the last instruction before it: where a handle went, nobody noted.
        site = self.sites[-1] if self.sites else self._last_site
        # More than that wait for the next batch, so that no message grows with how much is dropped at once.
        # They go from one list to the other in C code, where no Ctrl-C comes, and stay there until they are issued.
        self._freeing += map(_POP, itertools.repeat(dropped, min(len(dropped), MOST_FREED)))
        buffers = self._freeing
        if self.session.tape is not None:
            buffers = self.session.tape.dropped(buffers)
        for trail in self.session.trails:
            buffers = trail.keep(buffers)
        if self.owners and not self.owners.keys().isdisjoint(buffers):
            for buffer in buffers:
                self.owners.pop(buffer, None)
        forgotten = [-each for each in buffers if each < 0 and -each in self.recordings]
        issued: list[Instruction] = [(Control.FORGET, each) for each in forgotten]
        issued.append((Control.FREE, *[each for each in buffers if each > 0]))
        sites = [site] * len(issued)
        # No calls: Ctrl-C comes before all of it or after. Nor the batch's own append, which a recording may divert.
        self.batch += issued
        self.sites += sites
        self._freeing = []
        for recording in forgotten:
            self.recordings.pop(recording, None)

    def _note_owners(self, batch: list[Instruction]) -> None:
        """Remember the lines of the large results in the batch for as long as they live."""
        owners, sites = self.owners, self.sites
        for place in self.large:
            if place < len(batch):  # of what was refused between the look and the append, there is none
                owners[batch[place][1]] = sites[place]

    def define(self, spec: Spec) -> None:
        """Let the worker know a spec, with the batch that uses it first."""
        if spec.id not in self.known:
            self.known[spec.id] = spec
            self.specs.append(spec)

    def run(
        self, part: Part, recording: int, base: int, bindings: tuple[Binding, ...], numbers: tuple[Ref, ...]
    ) -> None:
        """Issue a run of a recording; a second time for the same base does nothing but send it, should it not be.

        The caller holds the lock, and looks for room in the window.
        """
        let_go()
        if self.dropped:
            self.free()
        if recording not in self.recordings:
            site = part.sites[0] if part.sites else None
            # No calls, here and below: Ctrl-C comes before all of it or after.
            self.batch += ((Control.DEFINE, recording, *part.template),)
            self.sites += (site,)
            self.recordings[recording] = part
        if self._last_run != base and not any(each[0] == Control.RUN and each[2] == base for each in self.batch):
            run = (Control.RUN, recording, base, bindings, numbers, len(part.sites))
            self.batch += (run,)
            self.sites += part.sites  # a run has the numbers of all its instructions
            self.heavy += part.weight
            self._runs += 1
            self._last_run = base
            for number, site in part.large:
                self.owners[base + number] = site
        # A worker that has a run in hand gets some together: a message costs both sides as much as a small step.
        in_hand = self.first - 1 - self.through()
        if self._runs >= RUNS or in_hand <= len(part.sites) or self.session.recorder is not None:
            self.flush()

    def full(self) -> None:
        """The batch has grown to its limit: send it, or wait for more. Called without the lock; may wait for credit."""
        with self.lock:
            if self.lost is not None:
                self.batch.clear()
                self.sites.clear()
                self.large.clear()
                self.dropped.clear()
                raise failures.again(self.lost)
            recorder = self.session.recorder
            if recorder is not None:
                recorder.note(self)
            if len(self.batch) >= BATCH or self.heavy > HEAVY or self.idle():
                self.flush()
            else:
                self.limit = min(len(self.batch) + STEP, self.session.longest)
            room = self.in_window()
        self.session.receiver.wake()
        if not room:
            self.session.await_credit(self)
        if self.session.modes.sync and not self.session.taping():
            self.session.finish(self)

    def flush(self) -> None:
        """Send what was issued, and the buffers that were dropped. The caller holds the lock."""
        if self.dropped or self._freeing:  # where Ctrl-C came before these were issued
            self.free()
        batch = self.batch
        if not batch or self.lost is not None or self.paused:
            return
        recorder = self.session.recorder
        if recorder is not None:
            recorder.note(self)
        for trail in self.session.trails:
            trail.sent(self)
        self._sent_ns = time.monotonic_ns()
        first = self.first
        self.log.append((first, self.sites, batch, self._sent_ns))
        if len(self.sites) < len(batch):  # Ctrl-C has come between the two
            self.sites += [None] * (len(batch) - len(self.sites))
        self._last_site = self.sites[-1]
        if self.large:
            self._note_owners(batch)
        if self.heavy:
            self._bytes_sent += self.heavy
            self.bytes.append((first + self._length(batch) - 1, self._bytes_sent))
        recovery = self.session.recovery
        if recovery is not None:
            recovery.note(self, first, batch)
        self._forward(first, batch)

    def _forward(self, first: int, batch: list[Instruction]) -> None:
        """Send the batch and begin the next one. If Ctrl-C comes in between, it is sent twice, and run once."""
        message, known = self._message(first, batch)
        limit = min(FIRST_LOOK, self.session.longest)
        following, fresh = first + self._length(batch), self._lists()
        self._outlet.send(message)
        # These are no calls: Python does not look for signals between them.
        self.first, self.heavy, self.limit, self._runs = following, 0, limit, 0
        self.batch, self.sites = fresh
        self.large = []
        self.specs, self.known = [], known

    def _length(self, batch: list[Instruction]) -> int:
        """How many numbers a batch takes. A run has one for each of its instructions."""
        if not self._runs:
            return len(batch)
        runs = sum([int(each[5]) - 1 for each in batch if each[0] == Control.RUN])
        return len(batch) + runs

    def last(self) -> int:
        """The number of the last instruction that was issued."""
        return self.first + self._length(self.batch) - 1

    def _lists(self) -> tuple[list[Instruction], list[Site | None]]:
        """The next batch and its sites, empty; while something is recorded they are the tape's."""
        tape = self.session.tape
        return ([], []) if tape is None else tape.lists(self)

    def _message(self, first: int, batch: list[Instruction]) -> tuple[bytes, dict[int, Spec]]:
        """A batch with the specs that are new in it, and what the worker knows from then on."""
        known = self.known
        specs: tuple[tuple[Any, ...], ...] = ()
        if self.specs:
            specs = tuple((s.id, s.shape, s.dtype.str, s.strides) for s in self.specs)
            if len(known) > KNOWN and self._names_no_spec():  # a program of ever new shapes: both sides start afresh
                known = {}
                specs = (*specs, m.FORGET_SPECS)
        return self._pack((_BATCH_TAG, first, specs, batch)), known

    def _names_no_spec(self) -> bool:
        """No instruction waits here, behind those that are being sent, that names specs made known before."""
        return True

    def send(self, message: Message) -> None:
        """A message beside the instructions. The caller holds the lock."""
        if not self.paused:  # else it is about what its worker does not have any more
            self._outlet.send(encode(message))

    def welcomed(self, fact: m.Welcome) -> None:
        """The worker has made the lane."""
        self.welcome = fact
        self.shares = bool(fact.device.get("shares", True))

    def renew(self, name: bytes) -> None:
        """Another life of the lane begins, on the same worker or on another one."""
        self._outlet.close(0)
        link = self.session.network.link(self.worker.endpoint, self.index)
        self._outlet = Outlet(self.worker.endpoint, name=name, link=link)

    def post(self, message: Message) -> None:
        """A message of those with which another life begins."""
        self._outlet.send(encode(message))

    def give_back(self) -> None:
        """Return what the worker lent and nobody reads any more. The caller holds the lock."""
        if self.loans_over and self.lost is None:
            with uninterrupted():
                self.send(m.Returned(tuple([self.loans_over.popleft() for _ in range(len(self.loans_over))])))

    def resend(self, first: int, sites: list[Site | None], batch: list[Instruction]) -> None:
        """Send a batch again, of which the worker knows all specs."""
        self.log.append((first, sites, batch, time.monotonic_ns()))
        self._outlet.send(self._pack((_BATCH_TAG, first, (), batch)))

    # -- how far it has come

    def through(self) -> int:
        """All instructions up to this one have finished, as far as is known here."""
        seen: int = self.session.progress[self.index]
        return seen if seen > self.completed else self.completed

    def idle(self) -> bool:
        """The worker has nothing more to do, and has not just been sent something that it may not have met yet."""
        return self.through() >= self.first - 1 and time.monotonic_ns() - self._sent_ns > GAP_NS

    def in_window(self, share: float = 1.0) -> bool:
        """Fewer instructions, and fewer bytes of results, are on the way than (this share of) the window allows."""
        if self.paused:
            return len(self.batch) < BATCH
        through = self.through()
        while self.bytes and self.bytes[0][0] <= through:
            self._bytes_done = self.bytes.popleft()[1]
        session = self.session
        return (
            self.first - 1 - through < session.window * share
            and self._bytes_sent - self._bytes_done < session.window_bytes * share
        )

    def room_at(self, share: float) -> int:
        """The instruction with whose end `in_window(share)` comes true; the caller found that it is not."""
        session = self.session
        room = max(int(self.first - session.window * share), 1)
        for n, nbytes in self.bytes:
            if n >= room and self._bytes_sent - nbytes < session.window_bytes * share:
                return n
        return room

    def unfinished(self) -> bool:
        return bool(self.batch or self.dropped or self._freeing) or self.through() < self.first - 1

    def note_completed(self, through: int) -> None:
        self.completed = max(self.completed, through)
        log = self.log
        while log and log[0][0] + len(log[0][1]) - 1 <= through:
            self.past.append(log.popleft())

    def site(self, n: int) -> Site | None:
        """The user's line that issued instruction n, if it is still remembered."""
        for first, sites, _, _ in self.log:
            if first <= n < first + len(sites):
                return sites[n - first]
        return self.sites[n - self.first] if 0 <= n - self.first < len(self.sites) else None

    def held(self) -> tuple[int, dict[int, tuple[tuple[int, int], ...]]] | None:
        """Of what was issued and is held here: the last that was sent, and by number what the others wait for."""
        return None

    def lose(self, error: Exception) -> None:
        """Nothing more can be sent."""
        self.lost = error
        self.limit = 0
        self.batch.clear()
        self.sites.clear()
        self.large.clear()
        self.owners.clear()

    def close(self, linger_ms: int) -> None:
        self._outlet.close(linger_ms)


class GatedLane(Lane):
    """A lane under gate="coordinator": an instruction is held here, and the lane with it, until its waits are over."""

    def __init__(
        self, session: Session, index: int, worker: workers.Adopted, name: bytes, device: Device | None = None
    ) -> None:
        super().__init__(session, index, worker, name, device)
        self._ready: list[Instruction] = []
        self._ready_first = 1
        self._held: deque[Instruction] = deque()
        session.gate.open(index)

    def _forward(self, first: int, batch: list[Instruction]) -> None:
        limit = min(FIRST_LOOK, self.session.longest)
        with uninterrupted():
            self.first, self.heavy, self.limit, self.large = first + len(batch), 0, limit, []
            self.batch, self.sites = self._lists()
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

    def held(self) -> tuple[int, dict[int, tuple[tuple[int, int], ...]]] | None:
        sent, waits = self.session.gate.held(self.index)
        return sent, dict(enumerate(waits, sent + 1))

    def release(self) -> None:
        """The gate has opened for the first that is held."""
        self._ready.append(self._held.popleft())

    def forward_ready(self) -> None:
        if self._ready:
            message, known = self._message(self._ready_first, self._ready)
            self._outlet.send(message)
            self._ready_first, self._ready = self._ready_first + len(self._ready), []
            self.specs, self.known = [], known

    def _names_no_spec(self) -> bool:
        return not (self.batch or self._held)

    def lose(self, error: Exception) -> None:
        super().lose(error)
        self._ready.clear()
        self._held.clear()
