"""Runs the instructions of one session's lane: operands by id, kernel, device; what must wait is parked.

Pure but for the device it is given: messages for the session and for other workers go out through `report` and
`tell`; what comes in (batches, tickets, losses) comes in as calls. Order within the lane is decided here and in
`scoreboard.py`; where arrays lie, in `buffers.py`; how they leave and arrive, in `transfers.py`.

Two ways to run an operation. On an inline device (`host`) a kernel has finished when it returns, and the path is
kept short: one dictionary look-up finds the handler, one more each operand, and nothing is checked that an
exception will tell: a missing operand (failed, or never made) is an `Unavailable`. On a device with queues a body
is launched that runs, or skips for a failed operand, in the order of the queue.
"""

from __future__ import annotations

import contextlib
import os
import time
import traceback
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from ..protocol.accesses import ASKED, accesses, issue_number, operation_name, outputs, spoiled
from ..protocol.errors import Cancelled, DeviceLost, OutOfDeviceMemory
from ..protocol.identity import Identity
from ..protocol.messages import (
    ARRAYS,
    CONTROLS,
    FORGET_SPECS,
    GENERAL,
    NEXT_OUTPUT,
    SCALAR_LEFT,
    SCALAR_RIGHT,
    Batch,
    Completed,
    Control,
    Described,
    Failed,
    Instruction,
    Message,
    Ref,
    Restore,
    Ticket,
    Traced,
    Value,
)
from ..protocol.operations import BY_NUMBER, OPERATIONS, Operation
from ..protocol.recordings import Template
from ..protocol.shortage import Shortage, tell
from ..protocol.specs import Spec, dtype_of
from ..protocol.specs import spec as spec_of
from .asked import keep, results
from .buffers import SMALL, Failure, Origin, Store, Unavailable
from .devices.base import COMPUTE, STREAMS, Device
from .finiteness import Finiteness
from .keeping import answer, restore
from .kernels import conform, decode_operand, kernel
from .replay import Program, Run, carry_out
from .scoreboard import Scoreboard, ticket_from
from .shortages import shortage_of, text_of
from .transfers import FailedTicket, Transfers

Handler = Callable[[int, Instruction], None]
LOOK_NS: Final = 20_000  # between two looks for tickets while something is parked: a look costs a system call
FENCE_S: Final = 30.0  # how long the device may take to finish what it has begun, at an end
WAITS: Final = len(STREAMS)  # in the records of a trace, the stream of no stream: the instruction waited
TRACE_BATCH: Final = 4096  # records before a Traced message leaves
DROPPED: Final = "it was dropped before it started, as the program was interrupted"
COUNT_EVERY: Final = 4096  # instructions at the most between two counts of the small arrays


class Executor:
    """One lane: the state of one session on one worker."""

    def __init__(
        self,
        device: Device,
        lane: int,
        session: bytes,
        report: Callable[[Message], None],
        tell: Callable[[int, Message], None],
        window: int,
        await_loans: Callable[[], bool] = lambda: False,
        upcoming: Callable[[], Instruction] = lambda: (Control.FENCE,),
        nan: bool = False,
    ) -> None:
        """`report` sends to the session, `tell` to another lane's worker; `window` instructions may be on the way.

        `upcoming` gives the first instruction of the next batch, if it is here. `nan`: look through all results.
        """
        self._upcoming = upcoming
        self.lane = lane
        self.device = device
        self.executed = 0  # the last instruction that came to be run or parked
        self.cancelled = 0  # what has not started up to here is dropped
        self.finished = 0  # the device has finished all up to here, but for what is parked
        self._resuming = 0  # what was parked and runs now
        self._resumed: set[int] = set()  # were parked, have been launched since, and the device has not finished them
        self._reported = 0  # the last Completed
        self._send_report = report
        self._send_tell = tell
        self._report_every = max(window // 4, 1)
        self._board = Scoreboard()
        self._parked: dict[int, Instruction] = {}
        self._programs: dict[int, Program] = {}  # by recording
        self._runs: dict[int, Run] = {}  # parked, or under way and waiting for a ticket; by the first number
        self._fences: deque[tuple[int, Instruction]] = deque()  # they wait for whatever is parked before them
        self._specs: dict[int, Spec | None] = {}  # by id; None stands for a small array that a kernel may allocate
        self._layouts: dict[int, Spec] = {}  # by id, all of them
        self._counted = 0  # the instruction after which small arrays were counted last
        self._count_every = min(max(device.info.memory_bytes // (16 * SMALL), 1), COUNT_EVERY)
        self._returns: list[Origin] = []
        self._store = Store(device, self._returns.append, await_loans)
        self._store.make_room = lambda: any(program.give_up() for program in self._programs.values())
        self._transfers = Transfers(device, lane, session, self._store, self._report, self._tell)
        self._late: deque[Message] = deque()  # failures not told yet; some are found on the device's threads
        # The last shortage of memory, for as long as nothing is freed: what it was told by, itself, in words.
        self._short: tuple[tuple[str, str], Shortage, str] | None = None
        self._ran: deque[tuple[Any, ...]] | None = None  # records while tracing
        self._waits_since: dict[int, int] = {}  # while tracing: since when what is parked waits
        self._handlers = self._control_handlers()
        for operation in OPERATIONS:
            self._handlers.update(self._inline(operation) if device.inline else self._queued(operation))
        self._handlers[ASKED] = self._asked
        self._finiteness: Finiteness | None = None
        if nan:
            self._finiteness = Finiteness(lane, device, self._store.arrays, self._detail, self._late.append)
            self._handlers = self._finiteness.around(self._handlers)
        self._plain = dict(self._handlers)  # to go back to when what was cancelled is over
        self._run_in_hand: Run | None = None  # on a device with queues: the run whose instructions are being launched

    # -- what comes in

    def batch(self, batch: Batch, interrupt: Callable[[], None]) -> None:
        """Run or park the instructions of a batch.

        `interrupt` is called now and then while some are parked: tickets may have come meanwhile.
        """
        if batch.specs:
            self._learn(batch.specs)
        n, instructions = batch.first, batch.instructions
        if n <= self.executed:  # a part came before: the program was interrupted as it sent
            n, instructions = _behind(self.executed, n, instructions)
        handlers, board, recv, define = self._handlers, self._board, Control.RECV, Control.DEFINE
        looked = 0
        for place, instruction in enumerate(instructions):
            if board and (now := time.monotonic_ns()) - looked > LOOK_NS:
                interrupt()
                looked = now
            self.executed = n
            code = instruction[0]
            if code == Control.RUN:
                following = instructions[place + 1] if place + 1 < len(instructions) else self._upcoming()
                self._begin_run(n, instruction, following[1:] if following[0] == Control.FREE else ())
                n = self.executed  # a run has taken several numbers
            elif board or code == recv or self._ran is not None or (code >= define and code < CONTROLS):
                self._careful(n, instruction)
            else:
                try:
                    handlers[instruction[0]](n, instruction)
                except Exception as error:
                    self._trouble(n, instruction, error)
            n += 1
        self._settle()
        if self.executed - self._counted >= self._count_every and self.device.inline:
            self._count_small()
        if FORGET_SPECS in batch.specs and not self._parked:  # what is parked still names them: then another time
            self._specs.clear()
            self._layouts.clear()

    def restore(self, message: Restore) -> None:
        """Begin where the lane of an earlier life had come to, with what the session kept of it."""
        self.executed = self.finished = self._reported = message.after
        self._learn(message.specs)
        restore(message, self._layouts, self._store, self._transfers, self._fail)
        for recording, *template in message.recordings:
            self._define(recording, Template(*template))
        self._settle()

    def ticket(self, message: Ticket) -> None:
        """A ticket came: what waited for it may run."""
        if message.taken:
            self.returned(message.taken, message.source)
        if not self._transfers.arrived(message):
            return
        self._board.arrived(message.ticket)
        if self._runs:
            self._go_on_with_runs()
        self._release()

    def returned(self, loans: tuple[int, ...], by: int) -> None:
        """Lane `by` (-1: the frontend) has copied or dropped these loans."""
        self._transfers.given_back(loans, by)

    @property
    def owes(self) -> bool:
        """Some other worker has not been told yet that its memory is not read any more."""
        return self._transfers.owes

    def pay_back(self) -> None:
        """Tell them."""
        self._transfers.pay_back()

    def introduce(self, lane: int, owner: Identity, direct: bool, shares: bool) -> None:
        """Whose memory the tickets of a lane name (-1: the frontend's).

        Args:
            direct: it reads this device's memory.
            shares: it can map this process's memory; else arrays travel to it inside messages.
        """
        self._transfers.owners[lane] = owner
        (self._transfers.far.discard if shares else self._transfers.far.add)(lane)
        if direct:
            self._transfers.direct.add(lane)

    def peer_gone(self, lane: int, reason: str) -> None:
        """Nothing more comes from this worker, and it reads nothing any more."""
        self._transfers.peer_gone(lane, reason)
        self._board.lost(lane)
        self._go_on_with_runs()
        self._release()

    def cancel(self, through: int) -> None:
        """Drop what computes and has not started, up to this instruction. On the monitor's thread.

        The other instructions go on: what others wait for comes, if only as a failure. It costs the loop nothing while
        nothing is dropped, as the handlers are exchanged.
        """
        self.cancelled = max(self.cancelled, through)
        self._divert()

    def _divert(self) -> None:
        for code in self._plain:
            if code >= CONTROLS:
                self._handlers[code] = self._dropping

    def _dropping(self, n: int, instruction: Instruction) -> None:
        """The handler of all that computes, until an instruction comes that was not dropped."""
        cancelled = self.cancelled
        if n <= cancelled:
            raise Cancelled(DROPPED)
        self._handlers.update(self._plain)
        if self.cancelled != cancelled:  # more was dropped meanwhile
            self._divert()
        self._plain[instruction[0]](n, instruction)

    def _drops(self, n: int, run: Run | None) -> bool:
        """Whether to drop an instruction that is about to start. A run is dropped as a whole, or not at all."""
        if run is None:
            return n <= self.cancelled
        if run.dropped is None:
            run.dropped = n <= self.cancelled
        return run.dropped

    def running(self) -> int:
        """The instruction that runs, or ran last; of a run one that is near. For the monitor's thread: a look."""
        if not self.device.inline:
            return min(self.finished + 1, self.executed)
        run = self._run_in_hand
        return self._resuming or self.executed if run is None else run.first + min(run.at, run.program.count - 1)

    def device_works(self) -> bool:
        """On a device with queues: it has not finished what was launched. For the monitor's thread: a look."""
        return not self.device.inline and self.finished < self.executed

    def drain(self) -> None:
        """Take in what the device has reached."""
        for token, error in self.device.drain():
            kind, *rest = token
            if kind == "through":
                self.finished = max(self.finished, rest[0])
            elif kind == "resumed":
                self._resumed.difference_update(rest)
            else:
                self._transfers.reached(token, error)
        self._settle(mark=False)

    def trace(self, on: bool) -> None:
        """Start or stop to record when instructions run; what was recorded is sent at the end."""
        if self._ran is not None:
            self._fence()
            self._send_trace(last=True)
        self._ran = deque() if on else None
        self._waits_since.clear()
        self._transfers.moved = [] if on else None

    def close(self) -> None:
        """The session has gone: so does everything it has here."""
        self._fence()
        for recording in list(self._programs):
            self._forget(recording)
        self._runs.clear()
        self._board.clear()
        self._parked.clear()
        self._fences.clear()
        self._transfers.clear()
        self._store.clear()
        self._returns.clear()

    def _fence(self) -> None:
        with contextlib.suppress(TimeoutError):
            self.device.fence(FENCE_S)

    @property
    def idle(self) -> bool:
        """Nothing is held for the session but the lane itself."""
        waiting = self._parked or self._fences or self._resumed
        return not waiting and self._board.idle and self._store.idle and self._transfers.idle

    def counts(self) -> dict[str, int]:
        """How many of each thing the session holds here."""
        counts = {**self._store.counts(), "parked": len(self._parked), **self._transfers.counts()}
        counts["recordings"] = len(self._programs)
        in_use = not (self.idle and self.device.idle)  # of anything, counted above or not
        return {**counts, "bytes": int(self.device.memory()["used"]), "in use": int(in_use)}

    # -- order

    def _careful(self, n: int, instruction: Instruction) -> None:
        """Run the instruction, or park it behind what it must follow."""
        if instruction[0] == Control.FENCE and self._board:
            self._fences.append((n, instruction))
            return
        reads, writes = accesses(instruction)
        tickets = (instruction[3],) if instruction[0] == Control.RECV else ()
        if self._board.blocked(reads, writes, tickets):
            self._parked[n] = instruction
            self._board.park(n, reads, writes, tickets)
            self._note_waiting(n)
        else:
            self._board.take(tickets)
            self._run(n, instruction)

    def _release(self) -> None:
        """Run what no longer has to wait."""
        resumed = []
        while (n := self._board.ready()) is not None:
            instruction = self._parked.pop(n)
            self._note_waited(n)
            if instruction[0] == Control.RUN:
                run = self._runs[n]
                run.handed_out = True
                if not (run.over or self._go_on(run)):
                    continue  # what depends on it goes on waiting
                del self._runs[n]
            else:
                self._resuming = n
                self._run(n, instruction)
                self._resuming = 0
            self._board.done(n)
            resumed.append(n)
        self._note_resumed(resumed)
        while self._fences and self._board.through(self._fences[0][0]) >= self._fences[0][0]:
            self._run(*self._fences.popleft())
        self._settle()

    def _note_resumed(self, resumed: list[int]) -> None:
        if resumed and not self.device.inline:  # marks set before do not cover them
            self._resumed.update(resumed)
            self.device.notify(self.device.record(COMPUTE), ("resumed", *resumed))

    def _run(self, n: int, instruction: Instruction, run: Run | None = None) -> None:
        start = time.monotonic_ns()
        try:
            if instruction[0] >= CONTROLS and self.device.inline and self._drops(n, run):
                raise Cancelled(DROPPED)
            self._plain[instruction[0]](n, instruction)
        except Exception as error:
            self._trouble(n, instruction, error)
        if self.device.inline or instruction[0] <= Control.FENCE:
            self._record(n, start)
        if self._ran is not None and len(self._ran) >= TRACE_BATCH:
            self._send_trace(last=False)

    # -- runs of recordings

    def _define(self, recording: int, template: Template) -> None:
        known = self._programs.pop(recording, None)
        if known is not None:  # it came twice, as the program was interrupted while it sent
            known.close()
        short = self.device.inline and self._finiteness is None  # whose steps nobody looks behind
        self._programs[recording] = Program(recording, template, self.device, self._store, self._transfers, short)

    def _forget(self, recording: int) -> None:
        self._programs.pop(recording).close()

    def _begin_run(self, n: int, instruction: Instruction, doomed: tuple[int, ...]) -> None:
        """Start a run, or park it behind what it must follow; park it, too, where a ticket is missing in it.

        `doomed`: the buffers that the next instruction drops.
        """
        program = self._programs[instruction[1]]
        if instruction[5] != program.count:
            raise ValueError(f"recording {instruction[1]} has {program.count} instructions, not {instruction[5]}")
        if doomed and self._board:  # what is parked before the run may still read some of them
            doomed = tuple([buffer for buffer in doomed if not self._board.touches(buffer)])
        run = Run(program, n, instruction, doomed)
        self.executed = n + program.count - 1
        if self._board:
            reads, writes = program.accesses(instruction)
            if self._board.blocked(reads, writes):
                self._parked[n], self._runs[n] = instruction, run
                self._board.park(n, reads, writes)
                self._note_waiting(n)
                return
        if not self._go_on(run):
            self._parked[n], self._runs[n] = instruction, run
            self._board.park(n, *program.accesses(instruction), (ticket_from(-1, n),))  # only we can end this wait

    def _go_on(self, run: Run) -> bool:
        """As far as tickets let it; True when it is over."""
        if not run.started and run.first <= self.cancelled:
            run.dropped = True
        self._run_in_hand = run
        self._note_waited(run.first + run.at)
        run.over = carry_out(run, self)
        self._run_in_hand = None
        if not run.over:
            self._note_waiting(run.first + run.at)
        if run.over and run.program.sends:
            os.sched_yield()  # what was sent wakes others: whoever of them is to run on this core, goes first
        return run.over

    def _go_on_with_runs(self) -> None:
        """A ticket came: some runs may get further."""
        for n, run in list(self._runs.items()):
            if run.started and not run.over and not run.missing() and self._go_on(run):
                if run.handed_out:
                    del self._runs[n]
                    self._board.done(n)
                    self._note_resumed([n])
                else:
                    self._board.arrived(ticket_from(-1, n))

    def one_of_run(self, run: Run, n: int, instruction: Instruction) -> None:
        """Carry out one instruction of a run."""
        if not run.program.specs.keys() <= self._layouts.keys():
            self._learn(run.program.template.specs)
        self._run(n, instruction, run)

    def trouble_in_run(self, run: Run, n: int, instruction: Instruction, error: Exception) -> None:
        """One instruction of a run raised."""
        self._learn(run.program.template.specs)
        self._trouble(n, instruction, error)

    def take_of_run(self, ticket: int) -> None:
        """A run takes in what this ticket brings."""
        self._board.take((ticket,))

    def record_of_run(self) -> Callable[[int, int], None] | None:
        """While tracing, what notes that an instruction ran."""
        return None if self._ran is None else self._record

    def _settle(self, mark: bool = True) -> None:
        """Note how far the lane has come, give back what is no longer read, send what failed in the queue."""
        if self.device.inline:
            self.finished = self.executed
        elif mark and self.executed > self.finished:
            self.device.notify(self.device.record(COMPUTE), ("through", self.executed))
        self._report_failures()
        if self._returns:
            self._transfers.give_back(self._returns)
            self._returns.clear()

    def through(self) -> int:
        """All instructions up to this one have finished on the device."""
        # On an inline device the instruction that is being run counts: who asks is about to answer for it.
        finished = self.executed if self.device.inline else self.finished
        through = min(finished, self._board.through(self.executed))
        return min(through, min(self._resumed) - 1) if self._resumed else through

    def report_completed(self, at_once: bool) -> None:
        """Send Completed if a quarter of the window is done since the last, or, `at_once`, if there is any news."""
        through = self.through()
        if through - self._reported >= (1 if at_once else self._report_every):
            self._reported = through
            self._report(Completed(self.lane, through))

    # -- failures

    def _report(self, message: Message) -> None:
        self._report_failures()  # the session knows of a failure before it meets it
        if type(message) is Value:
            self._reported = through = max(self._reported, self.through())
            message = message._replace(through=through)
        self._send_report(message)

    def _tell(self, lane: int, message: Message) -> None:
        self._report_failures()
        self._send_tell(lane, message)

    def _report_failures(self) -> None:
        while self._late:
            self._send_report(self._late.popleft())

    def _trouble(self, n: int, instruction: Instruction, error: Exception) -> None:
        """The instruction did not run: what it would have made or changed holds the reason instead."""
        if isinstance(error, DeviceLost):
            raise error  # nothing will run any more
        failure = self._failure(n, instruction, error)
        code = instruction[0]
        if code == Control.SEND:
            self._transfers.send_failure(instruction, failure)
        elif code in (Control.READ, Control.FENCE, Control.KEEP):
            self._report(Value(self.lane, instruction[-1], None, failure))
        elif code == ASKED:
            for buffer, _ in outputs(instruction):
                self._store.fail(buffer, failure)
            self._report(Described(self.lane, instruction[4][3], (), failure))
        else:
            specs = {buffer: self._layouts[id] for buffer, id in outputs(instruction)}
            for buffer in _spoiled(instruction, failure):
                self._fail(buffer, failure, specs.get(buffer))

    def _fail(self, buffer: int, failure: Failure, spec: Spec | None) -> None:
        """From here on in the lane the buffer holds a failure; `spec` is what it would have been, if it is new."""
        if not self.device.inline:
            try:
                if buffer not in self._store.arrays and spec is not None:
                    self._store.create(buffer, spec)
            except OutOfDeviceMemory:
                pass  # it has no array at all
            else:
                # In the queue's order: what was launched before may still read the good value.
                self.device.launch(COMPUTE, self._store.failures.__setitem__, buffer, failure)
                return
        self._store.fail(buffer, failure, spec)

    def _failure(self, n: int, instruction: Instruction, error: Exception) -> Failure:
        known = None
        if isinstance(error, FailedTicket):
            known = error.failure
        elif isinstance(error, Unavailable):
            known = self._store.failures.get(error.buffer)
            if known is None:
                error = LookupError(
                    f"no array has the number {error.buffer} on this worker: it was made in a captured function that "
                    f"failed or was refused, and so was never computed; make it anew"
                )
        if known is not None:
            failure = known.inherited(self.lane, n)
            if failure is not known:  # of the first few, the frontend keeps the line
                self._tell_failed(n, failure, instruction)
            return failure
        return self._new_failure(n, instruction, error)

    def _new_failure(
        self, n: int, instruction: Instruction, error: Exception, values: tuple[Any, ...] | None = None
    ) -> Failure:
        if isinstance(error, MemoryError):
            return self._shortage(n, instruction, error)
        words = "" if isinstance(error, Cancelled) else "".join(traceback.format_exception(error))
        # NumPy has private classes: the one that it documents is the nearest that is not.
        kind = next(cls.__name__ for cls in type(error).__mro__ if not cls.__name__.startswith("_"))
        failure = Failure((self.lane, n), kind, str(error), words, self._detail(instruction, values), ())
        self._tell_failed(n, failure, instruction)
        return failure

    def _shortage(self, n: int, instruction: Instruction, error: MemoryError) -> Failure:
        """There was no memory. Where the worker stood when it asked tells nobody anything: who has it, does."""
        wanted = text_of(self._layouts[id] for _, id in outputs(instruction))
        key = (str(error), wanted)
        if self._short is None or self._short[0] != key:
            if self.device.inline:
                self._count_small()
            planned = [(recording, each.planned) for recording, each in self._programs.items() if each.planned]
            shortage = shortage_of(error, wanted, self.device, self._store, self._transfers, planned)
            self._short = key, shortage, tell(shortage)
        _, shortage, text = self._short  # one for many: a program that goes on must not fill the memory with its errors
        kind = OutOfDeviceMemory if isinstance(error, OutOfDeviceMemory) else MemoryError  # NumPy's own memory
        failure = Failure((self.lane, n), kind.__name__, text, "", self._detail(instruction), ())
        self._tell_failed(n, failure, instruction, shortage)
        return failure

    def _detail(self, instruction: Instruction, values: tuple[Any, ...] | None = None) -> str:
        """The operation and what its operands are, for people; `values` are these, if their names may be gone."""
        code = instruction[0]
        if code < CONTROLS:
            return ("free", "send", "recv", "read", "upload", "fence", "define", "forget", "run", "keep")[code]
        refs = instruction[3] if code % 4 == GENERAL else instruction[3:]
        operands = []
        for place, ref in enumerate(refs):
            scalar = place == {SCALAR_RIGHT: 1, SCALAR_LEFT: 0}.get(code % 4)  # a number there is no buffer's
            array = (None if scalar else self._store.arrays.get(ref)) if values is None else values[place]
            operands.append(f"{array.dtype} {array.shape}" if isinstance(array, self.device.xp.ndarray) else str(ref))
        return f"{operation_name(instruction)}({', '.join(operands)})"

    def _tell_failed(self, n: int, failure: Failure, instruction: Instruction, shortage: tuple[Any, ...] = ()) -> None:
        root, kind, text, words, detail, _ = failure
        self._late.append(Failed(self.lane, n, root, kind, text, words, detail, issue_number(instruction), shortage))

    # -- handlers

    def _learn(self, specs: tuple[tuple[Any, ...], ...]) -> None:
        """Remember new specs by their ids."""
        for id, shape, dtype, strides in specs:
            if id < 0:
                continue  # FORGET_SPECS
            spec = spec_of(shape, dtype_of(dtype), strides)
            self._specs[id] = None if self._is_plain(spec) else spec
            self._layouts[id] = spec

    def _is_plain(self, spec: Spec) -> bool:
        """A kernel may allocate it: it is small, and there is so much room that it need not be counted at once."""
        return self.device.inline and spec.ndim > 0 and spec.nbytes < SMALL and not self._store.tight

    def _count_small(self) -> None:
        """Look how much memory small arrays take; where it becomes short, count each one before it is made."""
        self._counted = self.executed
        tight = self._store.tight
        self._store.count_small()
        if tight != self._store.tight:
            for id, spec in self._layouts.items():
                self._specs[id] = None if self._is_plain(spec) else spec

    def _control_handlers(self) -> dict[int, Handler]:
        transfers, store = self._transfers, self._store

        def free(n: int, instruction: Instruction) -> None:
            self._short = None
            if not self.device.inline:
                _named(instruction)
            for buffer in instruction[1:]:
                store.drop(buffer)

        def recv(n: int, instruction: Instruction) -> None:
            _, buffer, spec, ticket, source = instruction
            transfers.receive(buffer, self._layouts[spec], ticket, source)

        def upload(n: int, instruction: Instruction) -> None:
            _, buffer, spec, place = instruction
            transfers.upload(buffer, self._layouts[spec], place)

        return {
            Control.FREE: free,
            Control.SEND: lambda n, i: transfers.send(i[1], i[2], i[3]),
            Control.RECV: recv,
            Control.READ: lambda n, i: transfers.read(i[1], i[2]),
            Control.UPLOAD: upload,
            Control.FENCE: lambda n, i: transfers.fence(i[1]),
            Control.DEFINE: lambda n, i: self._define(i[1], Template(*i[2:])),
            Control.FORGET: lambda n, i: self._forget(i[1]),
            Control.KEEP: lambda n, i: answer(store, transfers, self.lane, i[1], i[2]),
        }

    def _operand(self, ref: Ref) -> Any:
        """What an operand of a general instruction is: an array, a generator, or a scalar."""
        if type(ref) is int or len(ref) == 5:  # type: ignore[arg-type]
            return self._store.arrays[ref]
        return decode_operand(ref)

    def _inline(self, operation: Operation) -> dict[int, Handler]:
        """The handlers of one operation where a kernel has finished when it returns."""
        arrays, specs, layouts, create = self._store.arrays, self._specs, self._layouts, self._store.create
        run = kernel(operation, self.device.xp)
        writes = operation.writes

        # A ufunc on arrays that are whole and here, into a small new array: look up, call, store.
        def unary(n: int, instruction: Instruction) -> None:
            _, out, spec, a = instruction
            big = specs[spec]
            if big is None:
                arrays[out] = run(arrays[a])
            else:
                run(arrays[a], create(out, big))

        def binary(n: int, instruction: Instruction) -> None:
            _, out, spec, a, b = instruction
            big = specs[spec]
            if big is None:
                arrays[out] = run(arrays[a], arrays[b])
            else:
                a, b = arrays[a], arrays[b]
                run(a, b, create(out, big))

        def scalar_right(n: int, instruction: Instruction) -> None:
            _, out, spec, a, b = instruction
            big = specs[spec]
            if big is None:
                arrays[out] = run(arrays[a], b)
            else:
                run(arrays[a], b, create(out, big))

        def scalar_left(n: int, instruction: Instruction) -> None:
            _, out, spec, a, b = instruction
            big = specs[spec]
            if big is None:
                arrays[out] = run(a, arrays[b])
            else:
                run(a, arrays[b], create(out, big))

        def general(n: int, instruction: Instruction) -> None:
            _, out, spec_ids, operands, static, into = instruction
            if writes:
                values = self._operands(operation, operands)
            else:
                values = tuple([arrays[ref] if type(ref) is int else self._operand(ref) for ref in operands])
            if into is not None:
                call(self._target(into), values, static)
            elif not spec_ids:
                call(None, values, static)
            elif operation.name == "rng_new":
                arrays[out] = call(None, values, static)
            elif len(spec_ids) == 1:
                if specs[spec_ids[0]] is None:
                    arrays[out] = conform(call(None, values, static), layouts[spec_ids[0]])
                else:
                    call(create(out, layouts[spec_ids[0]]), values, static)
            elif all(specs[id] is None for id in spec_ids):
                made = call(None, values, static)
                for i, array in enumerate(made):
                    arrays[out + i * NEXT_OUTPUT] = conform(array, layouts[spec_ids[i]])
            else:
                outs = tuple(create(out + i * NEXT_OUTPUT, layouts[id]) for i, id in enumerate(spec_ids))
                call(outs, values, static)

        def ufunc_call(target: Any, values: tuple[Any, ...], static: tuple[Any, ...]) -> Any:
            return run(*values, target)

        call = ufunc_call if operation.plain else run
        handlers: dict[int, Handler] = {4 * operation.number + GENERAL: general}
        if operation.plain:
            handlers[4 * operation.number + ARRAYS] = unary if operation.inputs == 1 else binary
            handlers[4 * operation.number + SCALAR_RIGHT] = scalar_right
            handlers[4 * operation.number + SCALAR_LEFT] = scalar_left
        return handlers

    def _asked(self, n: int, instruction: Instruction) -> None:
        """Run a call whose results' specs only the run can tell, and tell them."""
        _, out, _, operands, static, _ = instruction
        start = time.monotonic_ns()
        values = tuple([self._operand(ref) for ref in operands])
        reads, _ = accesses(instruction)

        def look() -> None:
            for buffer in reads:
                if buffer in self._store.failures:
                    raise Unavailable(buffer)

        call = kernel(BY_NUMBER[ASKED // 4], self.device.xp)
        made = results(self.device, look, lambda: call(None, values, static))
        specs = keep(self.device, self._store, out, made, static[2])
        if not self.device.inline:
            self._record(n, start)
        self._report(Described(self.lane, static[3], specs, None))

    def _operands(self, operation: Operation, refs: tuple[Ref, ...]) -> tuple[Any, ...]:
        """The operands of a general instruction: those that are only read first, in memory as it is before any move."""
        values = [None if place in operation.writes else self._operand(ref) for place, ref in enumerate(refs)]
        for place in operation.writes:
            overwrites = operation.name == "assign" and type(refs[place]) is int
            values[place] = self._writable(refs[place], overwrites)
        return tuple(values)

    def _target(self, into: Ref) -> Any:
        """The array that the results of an in-place operation replace."""
        return self._writable(into, type(into) is int)

    def _writable(self, ref: Ref, overwrites: bool) -> Any:
        """The array to write to. A failed one is good again if all of it is overwritten."""
        if overwrites:
            self._store.cure(ref)  # type: ignore[arg-type]
        return self._store.writable(ref, overwrites)

    def _queued(self, operation: Operation) -> dict[int, Handler]:
        """The handlers of one operation where kernels run in the device's queue: outputs are allocated first."""
        arrays, layouts, create = self._store.arrays, self._layouts, self._store.create
        run = kernel(operation, self.device.xp)

        def call(target: Any, values: tuple[Any, ...], static: tuple[Any, ...]) -> Any:
            return run(*values, target) if operation.plain else run(target, values, static)

        def launch(n: int, instruction: Instruction, *arguments: Any) -> None:
            named = _named(instruction)  # here: what raises in the queue is the end of the device, for everybody
            self.device.launch(COMPUTE, self._contained, n, instruction, named, call, self._run_in_hand, *arguments)

        def simple(n: int, instruction: Instruction) -> None:
            code, out, spec, *refs = instruction
            scalar = {SCALAR_RIGHT: 1, SCALAR_LEFT: 0}.get(code % 4)
            values = tuple(ref if place == scalar else arrays[ref] for place, ref in enumerate(refs))
            launch(n, instruction, create(out, layouts[spec]), values, ())

        def general(n: int, instruction: Instruction) -> None:
            _, out, spec_ids, operands, static, into = instruction
            values = self._operands(operation, operands)
            if operation.name == "rng_new":
                arrays[out] = call(None, values, static)
                return
            outs = tuple(create(out + i * NEXT_OUTPUT, layouts[id]) for i, id in enumerate(spec_ids))
            target = outs if len(outs) > 1 else outs[0] if outs else None if into is None else self._target(into)
            launch(n, instruction, target, values, static)

        return {4 * operation.number + form: simple if form != GENERAL else general for form in range(4)}

    def _contained(self, n: int, instruction: Instruction, named: tuple[tuple[int, ...], ...], *rest: Any) -> None:
        """The body, in the queue: an instruction that makes no sense fails, and is not the end of the device."""
        try:
            self._body(n, instruction, named, *rest)  # type: ignore[arg-type]
        except DeviceLost:
            raise
        except Exception as error:  # not the kernel's, which the body sees to: of what is said about it
            words = "".join(traceback.format_exception(error))
            failure = Failure((self.lane, n), type(error).__name__, str(error), words, "an instruction", ())
            root, kind, text, _, detail, _ = failure
            self._late.append(Failed(self.lane, n, root, kind, text, words, detail, 0))
            for buffer in named[1]:
                self._store.failures[buffer] = failure

    def _body(
        self,
        n: int,
        instruction: Instruction,
        named: tuple[tuple[int, ...], tuple[int, ...]],
        call: Callable[..., Any],
        run: Run | None,
        target: Any,
        values: tuple[Any, ...],
        static: tuple[Any, ...],
    ) -> None:
        """What runs in the queue: the kernel, unless an operand has failed. Failures are values, here too."""
        start = time.monotonic_ns()
        failures = self._store.failures
        reads, writes = named
        failed = next((failures[b] for b in reads if b in failures), None) if failures else None
        try:
            if self._drops(n, run):
                raise Cancelled(DROPPED)
            if failed is None:
                call(target, values, static)
                if self._finiteness is not None:
                    self._finiteness.look(n, instruction, _results(instruction, target, values), values)
        except Exception as error:
            failed = self._new_failure(n, instruction, error, values)
        else:
            if failed is not None:
                inherited = failed.inherited(self.lane, n)
                if inherited is not failed:
                    self._tell_failed(n, inherited, instruction)
                failed = inherited
        if failed is not None:
            for buffer in _spoiled(instruction, failed):
                failures[buffer] = failed
        elif failures:
            for buffer in writes:
                failures.pop(buffer, None)  # overwritten: it is good again
        self._record(n, start)

    # -- records

    def _record(self, n: int, start: int) -> None:
        if self._ran is not None:
            self._ran.append((n, COMPUTE, start, time.monotonic_ns()))

    def _note_waiting(self, n: int) -> None:
        """The instruction waits for a ticket, or behind what does."""
        if self._ran is not None:
            self._waits_since[n] = time.monotonic_ns()

    def _note_waited(self, n: int) -> None:
        if self._ran is not None and (since := self._waits_since.pop(n, None)) is not None:
            self._ran.append((n, WAITS, since, time.monotonic_ns()))

    def _send_trace(self, last: bool) -> None:
        records = self._ran or deque()
        ran = tuple(records.popleft() for _ in range(len(records)))  # the device's threads may add to it meanwhile
        moved, self._transfers.moved = tuple(self._transfers.moved or ()), []
        self._report(Traced(self.lane, ran, moved, last))


def _results(instruction: Instruction, target: Any, values: tuple[Any, ...]) -> list[Any]:
    """The arrays that an operation in the queue has written."""
    if target is None:
        return [values[place] for place in BY_NUMBER[instruction[0] // 4].writes]
    return list(target) if type(target) is tuple else [target]


def _named(instruction: Instruction) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The buffers that it reads and writes, which have numbers.

    Raises:
        TypeError: something else stands where a buffer's number should.
    """
    reads, writes = accesses(instruction)
    for buffer in (*reads, *writes):
        if type(buffer) is not int:
            raise TypeError(f"{str(buffer)[:50]!r} is no buffer's number")
    return reads, writes


def _behind(executed: int, n: int, instructions: tuple[Instruction, ...]) -> tuple[int, tuple[Instruction, ...]]:
    """Of instructions `n`, `n + 1`, ... those behind the last that was executed, and the number of their first."""
    for place, instruction in enumerate(instructions):
        if n > executed:
            return n, instructions[place:]
        n += instruction[5] if instruction[0] == Control.RUN else 1
    return n, ()


def _spoiled(instruction: Instruction, failure: Failure) -> tuple[int, ...]:
    """The buffers that hold this failure from now on.

    A generator from which nothing could be drawn for lack of memory is among them: with more memory there would have
    been a draw, and what is drawn from it later would be other numbers.
    """
    return accesses(instruction)[1] if failure.kind == OutOfDeviceMemory.__name__ else spoiled(instruction)
