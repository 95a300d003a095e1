"""A session: one program's lanes to its workers, what is on the way in them, and what has come back.

The shell of the coordinator. It owns the sockets, the shared memory for uploads, and the lock that every issued
instruction takes once. What waits for what is decided in `tracker.py` and at the workers; which thread receives,
in `events.py`; how a user's operation becomes an instruction, in `issue.py`.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ..protocol import messages as m
from ..protocol.accesses import buffer_of
from ..protocol.arena import Arena, Mappings
from ..protocol.codec import encode
from ..protocol.errors import (
    Cancelled,
    InterlockError,
    ProtocolError,
    WorkerLost,
)
from ..protocol.identity import own_identity, same_host
from ..protocol.messages import Control, Instruction, Ref
from ..protocol.network import Network
from ..protocol.page import ROWS
from ..protocol.questions import Questions
from ..protocol.sockets import Events, Outlet, ipc, private_folder
from ..protocol.specs import Spec
from ..protocol.watch import Watch
from . import answers, failures, finalisers, greetings, incoming, losses, workers
from .closing import WORK_S, Closing, close
from .events import STUCK_S, Pending, Receiver
from .failures import Cause, Root
from .interrupts import Interrupts
from .lane import BATCH, BIG, Device, GatedLane, Lane
from .lives import MOST_LANES, Lives, Source, replaced
from .modes import PLAIN, Flags, Modes, words
from .owners import Owners
from .sites import Site, describe, user_site
from .tracker import Gate, Hazards
from .uninterrupted import uninterrupted

if TYPE_CHECKING:
    from ..protocol.keys import Pair
    from .checkpoints import Save
    from .recorder import Recorder
    from .recording import Tape
    from .recovery import Recovery
    from .trail import Trail

ROOM: Final = 0.75  # of the window: who has waited for room goes on when no more than this is on the way
LEAST_MEMORY: Final = 1 << 20  # bytes that a session must be allowed on each worker
PAGE: Final = 1 << 16  # bytes of the page on which workers write how far they have come
KEPT_CALLS: Final = 2048  # of captured functions: their lines
FORKED: Final = "this is a forked child of the program that made the session: connect again here"


def check_settings(gate: str, window: int, memory: int | None) -> None:
    """Refuse settings of a session that mean nothing.

    Raises:
        TypeError: `window` or `memory` is no int.
        ValueError: one is out of bounds, or `gate` is no gate.
    """
    if gate not in ("worker", "coordinator"):
        raise ValueError(f"gate must be 'worker' or 'coordinator', not {gate!r}")
    if not isinstance(window, int) or (memory is not None and not isinstance(memory, int)):
        raise TypeError("window must be a number of instructions and memory a number of bytes, both ints")
    if window < 1:
        raise ValueError(f"window must be at least 1 instruction, not {window}")
    if memory is not None and memory < LEAST_MEMORY:
        raise ValueError(f"memory must be at least {LEAST_MEMORY} bytes, not {memory}")


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
        source: Source | None = None,
        arena: str | None = None,
        restart: bool = False,
        pair: Pair | None = None,
        modes: Modes = PLAIN,
    ) -> None:
        """Greet the workers.

        `processes` are those that this session started, and stops; `folder` its own folder; `source` is where other
        workers come from when some are lost, `restart` whether they come by themselves; `pair` are the program's keys,
        for workers that are reached over tcp.
        """
        check_settings(gate, window, memory)
        self.id = os.urandom(16)
        self.lock = threading.Lock()
        self.next_id: Callable[[], int] = itertools.count(1).__next__
        self.window = window
        self.memory = memory or workers.default_memory(len(adopted))
        self.window_bytes = self.memory // 4
        self.closed = False
        self.closing = Closing()
        self.exiting = False  # the program ends while threads still use the session
        self.greeted = False
        self.mine = True  # this process made the session; a forked child did not
        self.lanes: list[Lane] = []
        self.previous: Session | None = None  # the default session before this one
        self.renewed = False  # some device has had more than one worker
        self.gate = Gate()
        self.hazards = Hazards()
        self.recvs: dict[int, tuple[int, int]] = {}  # gate only: by ticket, the recv of a send that is issued with it
        self.sends: dict[tuple[int, int], tuple[int, int]] = {}  # gate only: the send of each recv
        self.modes = modes
        self.implicit_reads = ""  # "warn" or "raise"; what `reading.py` says
        self.verifying = False  # a captured function with verify=True was called, and said so
        self.flags = Flags(self, modes.nan)
        self.longest = 0 if modes.sync else BATCH  # instructions before a lane decides whether its batch leaves
        self.recovery: Recovery | None = None
        self.kept: Recovery | None = None  # the same, also when it has ended: its memory goes with the session's
        self._ended = False  # some process has, and nobody has taken in the message that says so
        self.life = 0  # counts how often all lanes were made anew, by the recovery
        self.former: tuple[bytes, ...] = ()  # the ids in the lives that a worker may still know
        self.recorder: Recorder | None = None
        self.tape: Tape | None = None  # while something is recorded
        self.taping_turn = threading.Lock()  # one at a time
        self.trails: tuple[Trail, ...] = ()  # of functions that are being differentiated
        self.recordings = itertools.count(1)  # their numbers
        self.saves: list[Save] = []  # under way, or failed and nobody has seen it
        self._gated = gate == "coordinator"
        self._pid = os.getpid()
        self._processes = list(processes)  # of every life
        self.began = time.monotonic()
        self.lives = None if source is None else Lives(self, source, restart)
        self._folder = folder or private_folder()
        self._requests = itertools.count(1)
        self._blocks = itertools.count(1)
        # Blocks of the arena that workers read: the lane, the block, and the buffer that it is there.
        self._uploads: dict[int, tuple[int, Any, int]] = {}
        self._pending: dict[int, Pending] = {}
        self._welcomes: dict[int, Pending] = {}
        self._failures = failures.Ledger()
        self.interrupts = Interrupts()
        self.questions: Questions | None = None
        self.stuck_after = STUCK_S  # seconds without progress, after which a wait says what it waits for; may be set
        self.calls: deque[tuple[int, Site | None]] = deque(maxlen=KEPT_CALLS)  # of captured functions, by base
        self._owners = Owners(self.lanes)
        self._identity = own_identity()
        self._arena = Arena(self.memory, self._identity, kind=arena)
        self._mappings = Mappings()
        self._page = Arena(PAGE, self._identity, minimum_segment=PAGE)  # apart, to take nothing from the uploads
        self._progress_block = self._page.allocate(8 * ROWS * MOST_LANES)
        page: Any = self._page.array(self._progress_block, (ROWS * MOST_LANES,), np.dtype(np.int64))
        page[...] = 0
        # Shared with the workers (`protocol/page.py`): a message for each step would cost more than many a step.
        self.progress = memoryview(page)
        if gate == "coordinator":
            page[MOST_LANES : 2 * MOST_LANES] = 1  # of every instruction's end it is to be told
        self._far_endpoints: dict[str, str] = {}  # of the same events, over tcp; by the address they are listened at
        self._far_keys: set[bytes] = set()  # public ones of the workers that may come in there
        self._events = Events(ipc(self._folder, "events"), f"inproc://session-{self.id.hex()}")
        for worker in adopted:
            greetings.listening_for(self, worker.endpoint)  # now, while nobody receives there
        handle = partial(incoming.handle, self)
        self.receiver = Receiver(self._events, handle, self._tick, self._busy, self._look_at_wait)
        self._watch = Watch(partial(losses.tell_lost, self))
        self.network = Network(pair, partial(losses.tell_lost, self))
        try:
            for i, worker in enumerate(adopted):
                self._open(worker, self._processes[i] if i < len(self._processes) else None)
            greetings.greet(self, self.lanes)
        except BaseException:
            self.close()
            raise
        self.devices = [lane.device for lane in self.lanes]
        self._devices = {str(device): device for device in self.devices}
        self.greeted = True
        _sessions.add(self)
        finalisers.watch()
        with contextlib.suppress(OSError):  # then nobody can ask from outside
            self.questions = Questions(Path(self._folder), self._why)

    # -- the beginning

    def _open(self, worker: workers.Adopted, process: workers.Process | None, device: Device | None = None) -> Lane:
        """A lane to a worker. The caller holds the lock, if the session is known to anybody."""
        index = len(self.lanes)
        make = GatedLane if self._gated else Lane
        lane = make(self, index, worker, b"s" + self.id + bytes([index]), device)
        lane.process = process
        self.lanes.append(lane)
        return lane

    @property
    def pids(self) -> dict[str, int]:
        """The process id of each device's worker."""
        return {str(device): device.lane.worker.identity.pid for device in self.devices}

    @property
    def logs(self) -> dict[str, Path]:
        """Where the workers that this session started write what they print, by device; it goes with the session."""
        return {process.device: process.log for process in self._processes}

    def device(self, device: Device | str) -> Device:
        """The session's device of that name.

        Raises:
            ValueError: it has none.
        """
        if isinstance(device, Device):
            return device
        known = self._devices.get(device)
        if known is not None:
            return known
        wanted = workers.check_devices([device])[0]
        if wanted in self._devices:
            return self._devices[wanted]
        raise ValueError(f"there is no device {wanted!r} in this session: it has {', '.join(self._devices)}")

    # -- another life

    def restart(self, device: Device | str) -> None:
        """Give a device another worker in this session, for one that was lost; one that lives is stopped first.

        The arrays that the old one held are lost for ever; those elsewhere stay, and the device can be used again.
        A launcher's worker that lives is not stopped, as it serves others: the session begins anew with it. In a
        session with recover=True the arrays come back.

        Raises:
            ValueError: the session has no such device.
            InterlockError: no other worker could be had.
        """
        self.check_open()
        self.refuse_in_tape("a worker is restarted")
        if self.lives is None:
            raise InterlockError("this session was not made by connect(): it does not know where workers come from")
        if self.recovery is not None:
            self.recovery.restart(self.device(device).lane)
        else:
            self.lives.restart(self.device(device))

    def checkpoint(self, timeout: float | None = None) -> None:
        """Wait until everything that was issued is in a checkpoint, from where a recovery begins.

        Raises:
            InterlockError: the session has no recover=True, or there is no memory for it.
            TimeoutError: it was not made in `timeout` seconds; it will be all the same.
        """
        self.check_open()
        self.refuse_in_tape("a value is read")
        if self.recovery is None:
            raise InterlockError("only a session that was connected with recover=True makes checkpoints")
        if not self.recovery.checkpoint(timeout):
            raise TimeoutError(f"the checkpoint was not made in {timeout} s")

    def begin_recovery(self) -> None:
        """From here on a worker's loss costs time and nothing else."""
        from .recovery import Recovery  # here, as few programs use it

        assert self.lives is not None
        self.recovery = self.kept = Recovery(self, self.lives.source)

    def nudge(self) -> None:
        """Let whoever receives look again: what he waits for may have happened without a message."""
        self.tell_receiver(m.Lost(None, ""))

    def tell_receiver(self, message: m.Lost) -> None:
        """From any thread, by the one road that everyone listens on."""
        outlet = Outlet(self._events.inproc, events=True)
        outlet.send(encode(message))
        outlet.close()

    def serving(self, device: Device) -> Lane:
        """The device's lane, which is awaited where another worker is about to serve it."""
        lane = device.lane
        return lane if lane.lost is None or self.lives is None else self.lives.settled(device)

    # -- sending

    def check_open(self) -> None:
        """Raise if the session is closed, or if this process is a fork of the one that made it."""
        if not self.mine:
            raise InterlockError(FORKED)
        if self.closed:
            raise InterlockError("the session is closed")

    @property
    def gated(self) -> bool:
        """Instructions wait here for what they need, not at the workers."""
        return self._gated

    def taping(self) -> bool:
        """What this thread issues is recorded, and not sent."""
        return self.tape is not None and self.tape.thread == threading.get_ident()

    def refuse_in_tape(self, what: str) -> None:
        """Raise for something that cannot be recorded, if this thread is being recorded."""
        if self.tape is not None and self.taping():
            self.tape.refuse(what)

    def flush(self) -> None:
        """Send everything that was issued. The caller holds the lock."""
        for lane in self.lanes:
            lane.flush()
            if lane.loans_over:
                lane.give_back()

    def await_credit(self, lane: Lane) -> None:
        """Wait until the lane's window has room again: until at most three quarters of it are in use."""
        started = time.monotonic_ns()
        while True:
            with self.lock:
                if not self._gated and lane.lost is None:  # before looking: one that is done by now may tell no more
                    self.progress[MOST_LANES + lane.index] = lane.room_at(ROOM)
                if lane.lost is not None or lane.in_window(ROOM):
                    self._give_credit(lane)
                    break
                self.flush()  # all lanes: what this one waits for may be unsent in another
                if lane.credit is None:
                    n = lane.first - 1 if self._gated else lane.room_at(ROOM)
                    lane.credit = Pending(lane.index, "room in the window", n, user_site(2))
                pending = lane.credit
            self.wait(pending)
        self._note_blocked("credit", started, f"there was no room in the window of {lane.device}")

    def question(self, lane: Lane, what: str, site: Site | None) -> tuple[int, Pending]:
        """The number of a question to a worker, and its answer when that comes. The caller holds the lock."""
        request = next(self._requests)
        pending = self._pending[request] = Pending(lane.index, what, site=site)
        return request, pending

    def wait_for(self, pending: Pending, what: str) -> Any:
        """The message that answers a question.

        Raises:
            Exception: what the worker failed with, or how it was lost.
        """
        if not pending.done:
            self.check_open()
            self.refuse_in_tape(what)
            started = time.monotonic_ns()
            with self.lock:
                self.flush()
            self.wait(pending)
            self._note_blocked("read", started, what)
        if isinstance(pending.fact, Exception):
            raise failures.again(pending.fact)
        if pending.fact.failure is not None:
            raise self._error(pending.fact.failure)
        return pending.fact

    def _ask(self, lane: Lane, ref: Ref | None, site: Site | None = None, pending: Pending | None = None) -> Pending:
        """Ask a worker for a value (a fence, without a reference): everything before is sent along."""
        self.refuse_in_tape("a value is read")
        request = next(self._requests)
        pending = pending or Pending(lane.index)
        pending.what, pending.site = "a read" if ref is not None else "synchronize", site
        pending.nbytes = _nbytes(ref)
        with self.lock:
            self.check_open()
            if lane.lost is not None:
                pending.happened(failures.again(lane.lost))
                return pending
            try:
                self._pending[request] = pending
                asking = (Control.FENCE, request) if ref is None else (Control.READ, ref, request)
                pending.n = n = lane.append(asking, site)
                if ref is not None:
                    lane.looked = max(lane.looked, n)  # what fails in a read is raised by the read
                self.flush()
            except BaseException:  # Ctrl-C: nobody has it
                self._pending.pop(request, None)
                raise
        return pending

    def transfer(self, ref: Ref, source: Lane, target: Lane, buffer: int, spec: Spec, site: Site | None) -> None:
        """Send an array from one worker to another, where `buffer` is its number; there is a handle of it."""
        ticket = (source.index << m.TICKET_BITS) | buffer
        try:
            with self.lock:
                for lane in (source, target):
                    if lane.lost is not None:
                        raise failures.again(lane.lost)
                send = (Control.SEND, ref, ticket, target.index)
                recv = (Control.RECV, buffer, spec.id, ticket, source.index)
                self.issue_transfer(source, target, send, recv, spec, site)
            for lane in (source, target):
                if len(lane.batch) >= lane.limit:
                    lane.full()
        except Exception:
            if self.modes.sync:
                with contextlib.suppress(Exception):  # what failed at the source fails at the target, too
                    self.finish(target)
            raise

    def issue_transfer(
        self, source: Lane, target: Lane, send: Instruction, recv: Instruction, spec: Spec, site: Site | None
    ) -> None:
        """Issue a send and its recv. The caller holds the lock."""
        target.define(spec)
        if self._gated and not self.taping():
            # Here the send must be before the gate when the recv comes, which waits for it.
            with uninterrupted():
                if spec.nbytes >= BIG:
                    target.expect(spec.nbytes)
                self.recvs[send[2]] = (target.index, target.first + len(target.batch))
                source.append(send, site)
                source.flush()
                target.append(recv, site)
                target.flush()
        elif self.taping():
            source.append(send, site)
            target.append(recv, site, spec.nbytes)
        else:
            if spec.nbytes >= BIG:
                target.expect(spec.nbytes)
            # No calls: Ctrl-C comes before all of it or after. A send without its recv would keep its ticket for ever.
            source.batch += (send,)
            source.sites += (site,)
            target.batch += (recv,)
            target.sites += (site,)

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
        pending = Pending(lane.index)
        try:
            self._ask(lane, ref, site, pending)
            if not self.receiver.wait(pending, timeout):
                raise TimeoutError(self._why_waiting(pending, timeout))
            if self.recorder is not None:
                reason = f"the elements of {spec.dtype} {spec.shape} on {lane.device}"
                self.recorder.blocked("read", site, started, reason, buffer_of(ref))
            return answers.value(self, pending, spec)
        except BaseException as error:
            try:
                if isinstance(error, KeyboardInterrupt):
                    self.interrupts.drop(self, site)
            finally:
                self.abandon(pending)
            raise

    def wait(self, pending: Pending, timeout: float | None = None) -> bool:
        """Until it has happened (True) or the time is over (False). Ctrl-C drops what has not started."""
        try:
            return self.receiver.wait(pending, timeout)
        except KeyboardInterrupt:
            self.interrupts.drop(self, user_site(2))
            raise

    def ask(self, lane: Lane, ref: Ref, site: Site | None) -> Pending:
        """Ask for an array's elements without waiting; `value` makes an array of the answer."""
        self.check_open()
        pending = self._ask(lane, ref, site)
        self.receiver.wake()  # nobody else may be receiving
        return pending

    def ask_all(self, arrays: Sequence[tuple[Lane, Ref]], site: Site | None) -> list[Pending]:
        """Ask for the elements of several arrays as they are at one moment, without waiting."""
        asked = []
        with self.lock:
            self.check_open()
            for lane, ref in arrays:
                pending = Pending(lane.index)
                pending.nbytes = _nbytes(ref)
                asked.append(pending)
                if lane.lost is not None:
                    pending.happened(failures.again(lane.lost))
                    continue
                request = next(self._requests)
                self._pending[request] = pending
                lane.looked = max(lane.looked, lane.append((Control.READ, ref, request), site))
            self.flush()
        self.receiver.wake()  # nobody else may be receiving
        return asked

    def abandon(self, pending: Pending) -> None:
        """Nobody waits for this answer any more: what it lends is given back, now or when it comes."""
        with self.lock:
            for request, other in self._pending.items():
                if other is pending:
                    del self._pending[request]
                    return
            pending.loan = None
            self.lanes[pending.lane].give_back()

    def synchronize(self, timeout: float | None = None, raising: bool = True) -> None:
        """Wait until all that was issued has finished; raise the earliest unread failure, with the others as notes."""
        self.check_open()
        started = time.monotonic_ns()
        deadline = None if timeout is None else time.monotonic() + timeout
        site = user_site(2)
        fences = [(lane, self._ask(lane, None, site)) for lane in self.lanes if lane.lost is None]
        for _, pending in fences:
            if not self.wait(pending, None if deadline is None else max(deadline - time.monotonic(), 0)):
                raise TimeoutError(self._why_waiting(pending, timeout))
        self._note_blocked("synchronize", started, "all that was issued")
        if raising:
            self._raise_unread()

    def _raise_unread(self) -> None:
        errors = self._take_unread()
        lost = [lane.lost for lane in self.lanes if lane.lost is not None and not replaced(lane)]
        if not errors and lost:
            raise failures.again(lost[0])
        if errors:
            failures.note_others(errors)
            raise errors[0] from None
        if self.flags.on:
            self.flags.tell(user_site(3))

    def finish(self, *lanes: Lane) -> None:
        """Wait until all that was issued in lanes has finished, and raise what failed: sync="op" after each operation.

        Raises:
            Exception: the first failure since the last time, with the others as notes.
        """
        site = user_site(2)
        with self.lock:
            spans = [(lane, lane.looked + 1, lane.last()) for lane in lanes]
        fences = [self._ask(lane, None, site) for lane in lanes]
        try:
            for pending in fences:
                self.wait(pending)
        except BaseException:  # Ctrl-C
            for pending in fences:
                self.abandon(pending)
            raise
        for pending in fences:
            if isinstance(pending.fact, Exception):
                raise pending.fact
        with self.lock:
            found = self._failures.among([(lane.index, first, last) for lane, first, last in spans])
            for lane, _, last in spans:
                lane.looked = max(lane.looked, last)
        errors = [self._exception(root, cause, line, ()) for root, cause, line in found]
        if errors:
            failures.note_others(errors)
            raise errors[0] from None
        if self.flags.on:
            self.flags.tell(site)

    def _take_unread(self) -> list[Exception]:
        with self.lock:
            unread = self._failures.take_unread()
        return [self._exception(root, cause, site, ()) for root, cause, site in unread]

    def _why_waiting(self, pending: Pending, timeout: float | None) -> str:
        from .waiting import why_waiting  # here, like below: few programs come to where it is told

        said = [f"not ready after {timeout} s on {self.lanes[pending.lane].device}:", *why_waiting(self, pending)]
        return "\n".join(said)

    def _look_at_wait(self, pending: Pending) -> None:
        from .waiting import look_at_wait

        if self._gated:  # Ctrl-C may have come between a report's arrival and its being noted, and there may be no next
            with self.lock:
                for lane in self.lanes:
                    if lane.lost is None:
                        self._completed(lane.index, lane.through())
        look_at_wait(self, pending)

    def _why(self) -> str:
        from .waiting import told

        try:
            return json.dumps(told(self))
        except Exception as error:  # it may just be closed
            return json.dumps({"session": self.id.hex(), "error": f"{type(error).__name__}: {error}"})

    def pending(self) -> list[Pending]:
        """All that is waited for, or was asked for."""
        return [*self._pending.values(), *self._welcomes.values()]

    def here(self, lane: Lane) -> bool:
        """Whether the lane's worker is a process of this machine."""
        return same_host(lane.worker.identity, self._identity)

    def _note_blocked(self, what: str, started: int, reason: str) -> None:
        if self.recorder is not None:
            self.recorder.blocked(what, user_site(3), started, reason)

    # -- failures

    def _error(self, failure: tuple[Any, ...]) -> Exception:
        root, kind, text, words, detail, path = failure
        root = tuple(root)
        with self.lock:
            known = self._failures.raised(root)
        if root[1] == 0:  # a lost worker's
            return losses.found_lost(self, root[0]) or WorkerLost(text)
        cause, site = known or (Cause(kind, text, words, detail), self.lanes[root[0]].site(root[1]))
        return self._exception(root, cause, site, path)

    def _exception(self, root: Root, cause: Cause, site: Site | None, path: Sequence[Any]) -> Exception:
        through = [(str(self.lanes[lane].device), self._failures.line((lane, n))) for lane, n in path]
        made = failures.exception(cause, str(self.lanes[root[0]].device), site, through)
        if cause.kind == Cancelled.__name__:
            made.add_note(f"Ctrl-C came at {describe(self.interrupts.site(*root))}")
        return made

    # -- what comes

    def _completed(self, index: int, through: int) -> None:
        lane = self.lanes[index]
        if through >= lane.first + len(lane.sites):  # of these Ctrl-C may have come just behind the sending
            raise ProtocolError(f"instruction {through} of {lane.first - 1} has finished")
        lane.note_completed(through)
        self._give_credit(lane)
        if self._gated:
            with uninterrupted():
                self.hazards.completed(index, through)
                self._send_out(self.gate.completed(index, through))

    def _give_credit(self, lane: Lane) -> None:
        if lane.lost is not None or lane.in_window(ROOM):
            if not self._gated:
                self.progress[MOST_LANES + lane.index] = 0
            if lane.credit is not None:
                lane.credit.happened(True)
                lane.credit = None

    def _send_released(self, released: list[tuple[int, int]]) -> None:
        """Let the instructions go for which the gate has opened; a lane that is lost or closed holds none any more."""
        with uninterrupted():
            self._send_out(released)

    def _send_out(self, released: list[tuple[int, int]]) -> None:
        lanes = [lane for index, _ in released if (lane := self.lanes[index]).lost is None]
        for lane in lanes:
            assert isinstance(lane, GatedLane)
            lane.release()
        for lane in dict.fromkeys(lanes):
            assert isinstance(lane, GatedLane)
            lane.forward_ready()

    # -- the background thread

    def _busy(self) -> bool:
        """There is work under way; a look without the lock, that a tick will make sure of."""
        return self._ended or bool(self._pending) or any(lane.lost is None and lane.unfinished() for lane in self.lanes)

    def _tick(self) -> bool:
        """Send what lies unsent; True while there is work under way."""
        if self.closed:
            return False
        with self.lock:
            # All may be done, and the answer not here: whoever awaits it receives nothing.
            some = self._ended or bool(self._pending)
            for lane in self.lanes:
                if lane.lost is None and lane.unfinished():
                    some = True
                    lane.flush()
                if lane.loans_over:
                    lane.give_back()
                if lane.credit is not None:
                    self._give_credit(lane)  # should the worker have looked a moment before somebody waited
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
                    self._pending[request] = pending = Pending(lane.index, "inspect", site=user_site(2))
                    lane.send(m.Inspect(request))
                    asked.append((lane, pending))
        found = {}
        for lane, pending in asked:
            self.wait(pending)
            if isinstance(pending.fact, m.Inspected):  # else it was lost meanwhile
                found[str(lane.device)] = pending.fact.counts
        return found

    # -- tracing

    # -- the end

    def close(self) -> None:
        """End the session; the workers that it started are stopped. Failures that nobody read are warned of, once."""
        close(self)

    def _forgotten(self) -> None:
        _sessions.discard(self)
        if not _sessions:
            finalisers.leave()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self.closed else ", ".join(str(lane.device) for lane in self.lanes)
        on = words(self)
        return f"<interlock session: {state}{'; ' if on else ''}{on}>"


_sessions: weakref.WeakSet[Session] = weakref.WeakSet()  # open ones


def _in_forked_child() -> None:
    """The sessions stay the parent's: here their handles are inert, and using one is an error."""
    for session in list(_sessions):
        session.mine = False
        session.lock = threading.Lock()  # the parent's may have been held at the fork
        if session.questions is not None:
            session.questions.disown()
        for lane in session.lanes:
            lane.lock = session.lock
            lane.lose(InterlockError(FORKED))


os.register_at_fork(after_in_child=_in_forked_child)


def close_all() -> None:
    """At the program's end: close what is still open, all in the time that one may take."""
    until, first = time.monotonic() + WORK_S, None
    for session in list(_sessions):
        try:
            close(session, until, at_exit=True)
        except BaseException as error:  # the others are closed all the same
            first = first or error
    if first is not None:
        raise first


def _nbytes(ref: Ref | None) -> int | None:
    """Of a view; None for a whole buffer, and for no array."""
    if type(ref) is not tuple:
        return None
    _, _, shape, _, dtype = ref
    return math.prod(shape) * np.dtype(dtype).itemsize
