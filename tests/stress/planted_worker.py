"""A worker with one fault planted, started in the place of a sound one: python planted_worker.py FAULT ARGUMENTS...

Each fault takes one wait or one copy away that keeps a hazard from becoming a wrong number.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from typing import Any

from interlock.protocol.accesses import accesses
from interlock.protocol.messages import Ticket
from interlock.worker import executor, loop, replay, transfers
from interlock.worker.buffers import Store, Unavailable
from interlock.worker.devices import sim
from interlock.worker.devices.base import COMPUTE, D2H, H2D, PEER
from interlock.worker.scoreboard import Scoreboard


def change(cls: type[Any], name: str) -> Callable[[Callable[..., Any]], None]:
    """Put a function in the place of a method; it gets the sound one first."""
    sound = getattr(cls, name)

    def put(faulty: Callable[..., Any]) -> None:
        setattr(cls, name, lambda *arguments: faulty(sound, *arguments))

    return put


def conflicts_that(keep: Callable[[Any, int, bool], bool]) -> None:
    """Let the scoreboard see only some conflicts; `keep` is told of the access, the parked number, and of a write."""

    @change(Scoreboard, "_conflicts")
    def _(sound: Any, self: Any, reads: Any, writes: Any) -> Any:
        found: list[int] = []
        for written, buffers in ((False, reads), (True, writes)):
            for buffer in buffers:
                access = self._accesses.get(buffer)
                earlier = (
                    ()
                    if access is None
                    else {access.writer, *access.readers} - {0}
                    if written
                    else {access.writer} - {0}
                )
                found.extend(n for n in earlier if keep(access, n, written))
        return found


def no_wait(*streams: int) -> None:
    """Waits of these streams for marks are forgotten."""

    @change(sim.SimDevice, "wait")
    def _(sound: Any, self: Any, stream: int, mark: Any) -> None:
        if stream not in streams:
            sound(self, stream, mark)


# -- in the lane


def raw_overtakes() -> None:
    """An instruction that reads what a parked one writes does not wait for it."""
    conflicts_that(lambda access, n, written: written)


def war_overtakes() -> None:
    """An instruction that writes what a parked one reads does not wait for it."""
    conflicts_that(lambda access, n, written: not written or n == access.writer)


def waw_overtakes() -> None:
    """An instruction that writes what a parked one writes does not wait for it."""
    conflicts_that(lambda access, n, written: not written or n != access.writer)


def recv_does_not_wait() -> None:
    """A recv whose ticket is missing makes an array of whatever there is."""

    @change(Scoreboard, "_missing")
    def _(sound: Any, self: Any, ticket: int) -> bool:
        return False

    @change(transfers.Transfers, "receive")
    def _(sound: Any, self: Any, buffer: int, spec: Any, ticket: int, source: int) -> None:
        if ticket in self._tickets:
            sound(self, buffer, spec, ticket, source)
        else:
            self._store.create(buffer, spec)


# -- loans


def lender_writes_in_place() -> None:
    """A buffer whose memory is lent is written where it lies."""

    @change(Store, "writable")
    def _(sound: Any, self: Any, ref: Any, overwrites: bool) -> Any:
        buffer = ref if type(ref) is int else ref[0]
        loans = self._loans.pop(buffer, None)
        try:
            return sound(self, ref, overwrites)
        finally:
            if loans is not None:
                self._loans[buffer] = loans


def borrower_writes_in_place() -> None:
    """Borrowed memory is written where it lies; it is mapped for reading only."""

    @change(Store, "writable")
    def _(sound: Any, self: Any, ref: Any, overwrites: bool) -> Any:
        buffer = ref if type(ref) is int else ref[0]
        return self.arrays[ref] if buffer in self._borrowed else sound(self, ref, overwrites)


def loan_ends_too_early() -> None:
    """The borrower says at once that it has taken what it reads in place."""

    @change(Store, "borrow")
    def _(sound: Any, self: Any, buffer: int, origin: Any, attached: Any, array: Any) -> None:
        sound(self, buffer, origin, attached, array)
        self._give_back(origin)


def freed_memory_is_not_kept_for_its_readers() -> None:
    """A dropped buffer's memory goes although it is lent."""

    @change(Store, "_let_go")
    def _(sound: Any, self: Any, buffer: int) -> None:
        memory = self._memory.get(buffer)
        if memory is not None:
            memory.holders = 1
        sound(self, buffer)

    @change(Store, "returned")
    def _(sound: Any, self: Any, loan: int) -> None:
        memory, buffer = self._lent.pop(loan, (None, -1))
        if memory is not None and memory.on_host and buffer < 0:
            self._release(memory)
        self._loans.get(buffer, set()).discard(loan)
        if not self._loans.get(buffer, {0}):
            del self._loans[buffer]


def views_outlive_a_move() -> None:
    """Arrays of views are kept when their buffer moves to other memory."""

    @change(Store, "_forget_views")
    def _(sound: Any, self: Any, buffer: int) -> None:
        if buffer not in self.arrays:
            sound(self, buffer)


# -- errors


def failures_are_not_inherited() -> None:
    """What an instruction with a failed operand makes is an array of zeros."""

    @change(executor.Executor, "_trouble")
    def _(sound: Any, self: Any, n: int, instruction: Any, error: Exception) -> None:
        sound(self, n, instruction, error)
        for buffer in accesses(instruction)[1]:
            spec = self._store._failed_specs.get(buffer)
            if spec is not None and isinstance(error, (Unavailable, transfers.FailedTicket)):
                self._store.cure(buffer)
                self._store.arrays[buffer][...] = 0


# -- queues of a device


def copy_in_is_not_awaited() -> None:
    """Kernels do not wait for the copies that bring their operands."""
    no_wait(COMPUTE)


def copy_out_does_not_wait() -> None:
    """A copy to the host does not wait for the kernels that make what it copies."""
    no_wait(D2H)


def copy_in_does_not_wait() -> None:
    """A copy to the device does not wait for the kernels that still use its memory for what was there before."""
    no_wait(H2D, PEER)


def writes_do_not_await_copies() -> None:
    """A kernel writes what a copy under way reads."""

    @change(Store, "await_copies")
    def _(sound: Any, self: Any, buffer: int) -> None:
        pass


def memory_is_reused_under_a_copy() -> None:
    """Memory is handed out again while a copy under way reads it."""

    @change(sim.SimDevice, "retire")
    def _(sound: Any, self: Any, buffer: Any, after: Any = ()) -> None:
        sound(self, buffer, ())


def taken_before_it_is_copied() -> None:
    """The lender hears that its memory was copied before the copy is made."""

    @change(transfers.Transfers, "_copy_in")
    def _(sound: Any, self: Any, stream: int, buffer: int, spec: Any, source: Any, offset: int, rest: Any) -> None:
        sound(self, stream, buffer, spec, source, offset, rest)
        if rest[0] is not None:
            self.give_back([rest[0]])

    @change(transfers.Transfers, "reached")
    def _(sound: Any, self: Any, token: Any, error: Any) -> None:
        tell = self.give_back
        self.give_back = lambda origins: None
        sound(self, token, error)
        self.give_back = tell


def lent_before_it_is_made() -> None:
    """Device memory is lent before the kernels that make what is in it have run."""

    @change(transfers.Transfers, "_notify")
    def _(sound: Any, self: Any, stream: int, token: Any) -> Any:
        if token[0] != "lend":
            return sound(self, stream, token)
        self._copying += 1
        self._device.notify(sim.SimMark(None), token)
        return sim.SimMark(None)


# -- runs of recordings


def no_short_way() -> None:
    """No fault: runs of recordings go one instruction at a time."""

    @change(replay.Program, "fast")
    def _(sound: Any, self: Any) -> None:
        return None


def inputs_are_those_of_the_first_run() -> None:
    """The short way does not look again when it is given other arrays."""

    @change(replay.FastProgram, "begin")
    def _(sound: Any, self: Any, run: Any) -> None:
        if not hasattr(self, "begun"):
            self.begun = True
            sound(self, run)
            return
        self.base, self.bindings, self.numbers = run.base, run.bindings, run.numbers


def what_moved_is_not_looked_for() -> None:
    """After a buffer has moved, the rest of the run goes on with the memory where it was."""

    @change(replay.FastProgram, "_moved")
    def _(sound: Any, self: Any, ref: Any) -> None:
        pass


def runs_write_what_is_lent() -> None:
    """Runs write arrays in place though somebody else reads them."""

    @change(replay.FastProgram, "_writable")
    def _(sound: Any, self: Any, ref: Any) -> Any:
        real = replay.bound(ref, self.base, self.bindings, ())
        return self._store.arrays[real]


def runs_do_not_wait_for_tickets() -> None:
    """A run goes on where a ticket has not come yet, with an array of whatever there is."""

    @change(replay.Run, "waits")
    def _(sound: Any, self: Any, executor: Any) -> bool:
        sound(self, executor)
        return False

    @change(transfers.Transfers, "receive")
    def _(sound: Any, self: Any, buffer: int, spec: Any, ticket: int, source: int) -> None:
        if ticket in self._tickets:
            sound(self, buffer, spec, ticket, source)
        else:
            self._store.create(buffer, spec)


def runs_overtake() -> None:
    """What follows a run that waits for a ticket does not wait for it."""

    @change(replay.Program, "accesses")
    def _(sound: Any, self: Any, run: Any) -> Any:
        return (), (self._order,)


def temporaries_are_lost_in_a_failure() -> None:
    """Where the short way ends with a failure, the temporaries that are there are not named for the long one."""

    @change(replay.FastProgram, "keep")
    def _(sound: Any, self: Any, run: Any, at: int) -> None:
        pass


# -- what is never told


def frees_are_lost() -> None:
    """Now and then a dropped buffer stays."""
    count = itertools.count(1)

    @change(Store, "drop")
    def _(sound: Any, self: Any, buffer: int) -> None:
        if next(count) % 40:
            sound(self, buffer)


def tickets_are_lost() -> None:
    """Now and then a ticket does not come."""
    count = itertools.count(1)

    @change(loop.Session, "tell")
    def _(sound: Any, self: Any, lane: int, message: Any) -> None:
        if type(message) is not Ticket or next(count) % 20:
            sound(self, lane, message)


LOST: dict[str, Callable[[], None]] = {fault.__name__: fault for fault in (frees_are_lost, tickets_are_lost)}
REPLAY_FAULTS: dict[str, Callable[[], None]] = {
    fault.__name__: fault
    for fault in (
        no_short_way, inputs_are_those_of_the_first_run, what_moved_is_not_looked_for, runs_write_what_is_lent,
        runs_do_not_wait_for_tickets, runs_overtake, temporaries_are_lost_in_a_failure,
    )
}  # fmt: skip
FAULTS: dict[str, Callable[[], None]] = {
    fault.__name__: fault
    for fault in (
        raw_overtakes, war_overtakes, waw_overtakes, recv_does_not_wait, lender_writes_in_place,
        borrower_writes_in_place, loan_ends_too_early, freed_memory_is_not_kept_for_its_readers, views_outlive_a_move,
        failures_are_not_inherited, copy_in_is_not_awaited, copy_out_does_not_wait, copy_in_does_not_wait,
        writes_do_not_await_copies, memory_is_reused_under_a_copy, lent_before_it_is_made, taken_before_it_is_copied,
    )
}  # fmt: skip


if __name__ == "__main__":
    from interlock.worker.__main__ import main

    {**FAULTS, **REPLAY_FAULTS, **LOST}[sys.argv[1]]()
    sys.exit(main(sys.argv[2:]))
