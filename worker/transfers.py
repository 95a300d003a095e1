"""How arrays leave a worker and arrive at it: as a ticket to another worker, as a value to the frontend, and back.

Small arrays travel inside the message. Large ones stay where they are and are lent: the message says where they
lie, and the borrower answers when it has copied or dropped them. Where kernels run inline, memory is the host's
and is lent in place. A device with queues copies on its copy streams, behind marks; nothing here ever waits.
Knows devices through their interface, and nothing of sockets.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from ..protocol.errors import ImportFailed, InterlockError, OutOfDeviceMemory, PeerGone
from ..protocol.identity import Identity, ends_within
from ..protocol.limits import CARRIED, too_large
from ..protocol.messages import Message, Ref, Released, Taken, Ticket, Value
from ..protocol.specs import Spec
from .buffers import SMALL, Failure, Memory, Origin, Store
from .devices.base import COMPUTE, D2H, H2D, PEER, Device

OWED_BYTES: Final = 4 << 20  # of loans that are over, until their lenders are told though there is no ticket for them
READ_INSIDE: Final = 64 << 20  # bytes of an answer that travels inside its message, if there is no room to lend it
DYING_S: Final = 1.0  # how long a process may take to end, once its memory cannot be opened any more


class FailedTicket(Exception):
    """What the ticket should have brought failed at its producer, or the producer is gone."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure)
        self.failure = failure


class Transfers:
    """The arrivals and departures of one session on one worker."""

    def __init__(
        self,
        device: Device,
        lane: int,
        session: bytes,
        store: Store,
        report: Callable[[Message], None],
        tell: Callable[[int, Message], None],
    ) -> None:
        self.moved: list[tuple[Any, ...]] | None = None  # records while tracing
        self.owners: dict[int, Identity] = {}  # by lane: whose memory its tickets name; -1 is the frontend
        self.direct: set[int] = set()  # lanes whose device reads this one's memory itself
        self.far: set[int] = set()  # those that share no memory with this process; as in `owners`
        self._device = device
        self._lane = lane
        self._session = session
        self._store = store
        self._report = report
        self._tell = tell
        self._tickets: dict[int, Ticket] = {}  # arrived, not received yet
        self._gone: dict[int, str] = {}  # lanes that send no more, and why
        self._lent_to: dict[int, set[int]] = {}  # by lane: loans that it has not given back
        self._exported: dict[int, Any] = {}  # by loan: what the device exported for it
        # By lane: loans that are over, and it has not been told; each with its bytes.
        self._owed: dict[int, list[tuple[int, int]]] = {}
        self._copying = 0  # copies under way that a mark will tell of

    # -- leaving

    def send(self, ref: Ref, ticket: int, target: int) -> None:
        """When the array is ready, tell the target's worker where it lies."""
        if target in self._gone:
            return  # nobody is there to take it
        array = self._store.arrays[ref]
        if self._device.inline:
            self._depart(target, ticket, self._place(ref, array, ticket, target))
        elif target in self.direct:
            self._lend_device(ref, array, ticket, target)
        else:
            self._check_size(array, target)
            self._copy_out(ref, array, ("send", target, ticket))

    def send_failure(self, instruction: tuple[Any, ...], failure: Failure) -> None:
        """There is no array to send: say so to the one that waits for it."""
        _, _, ticket, target = instruction
        self._tell_ticket(target, ticket, None, failure)

    def read(self, ref: Ref, request: int) -> None:
        """Answer with the array's elements."""
        array = self._store.arrays[ref]
        if not self._device.inline:
            self._check_size(array, -1)
            self._copy_out(ref, array, ("read", request))
            return
        try:
            place = self._place(ref, array, -request, -1)
        except OutOfDeviceMemory:  # reading is how a program gets out what it will drop then
            if array.nbytes > READ_INSIDE:
                raise
            place = packed(array).tobytes()
        self._report(Value(self._lane, request, place, None))

    def fence(self, request: int) -> None:
        """Answer when the device has finished all that came before."""
        self.pay_back()
        if self._device.inline:
            self._report(Value(self._lane, request, None, None))
        else:
            self._notify(COMPUTE, ("fence", request))

    def answer(self, value: Value) -> None:
        """A KEEP's answer that is known already."""
        self._report(value)

    def answer_behind(self, request: int, found: list[Any]) -> None:
        """Answer a KEEP with [place, failure], which are filled in when the queue has come so far."""
        self._notify(COMPUTE, ("kept", request, found))

    def _depart(self, target: int, ticket: int, place: Any) -> None:
        if type(place) is tuple:
            self._lent_to.setdefault(target, set()).add(ticket)
        self._tell_ticket(target, ticket, place, None)

    def _tell_ticket(self, target: int, ticket: int, place: Any, failure: Failure | None) -> None:
        reason = None if failure is None else tuple(failure)
        owed = tuple([loan for loan, _ in self._owed.pop(target, ())])
        self._tell(target, Ticket(self._session, self._lane, ticket, place, reason, time.monotonic_ns(), owed))

    def _check_size(self, array: Any, reader: int) -> None:
        """Refuse what would have to travel inside a message, and is too large for one."""
        if reader in self.far and array.nbytes > CARRIED:
            raise InterlockError(too_large(array.nbytes, "leave this machine"))

    def _place(self, ref: Ref, array: Any, loan: int, reader: int) -> Any:
        """Where the elements lie, in memory order, on a device whose memory is the host's."""
        if array.nbytes < SMALL or reader in self.far:
            self._check_size(array, reader)
            return packed(array).tobytes()
        lent = self._store.lend(loan, ref) if is_packed(array) else None
        if lent is not None:
            block, offset = lent
            return ("host", loan, offset, self._device.host_ticket(block))
        memory = self._host_copy(packed(array))
        self._store.lend_copy(loan, memory)
        return ("host", loan, 0, self._device.host_ticket(memory.block))

    def _host_copy(self, elements: Any) -> Memory:
        """New memory of the host's with these elements, gapless and C-ordered, in it."""
        memory = Memory(self._device.host_alloc(elements.nbytes), on_host=True)
        self._device.host_array(memory.block, elements.shape, elements.dtype)[...] = elements
        return memory

    def _gapless(self, ref: Ref, array: Any) -> tuple[Any, int, bool]:
        """(block, offset, temporary): device memory in which the elements lie in memory order, ready on compute."""
        buffer, offset = (ref, 0) if type(ref) is int else (ref[0], ref[1])  # type: ignore[index]
        memory = self._store.memory(buffer)
        if is_packed(array) and memory is not None:
            return memory.block, offset, False
        block = self._device.alloc(array.nbytes)
        axes = memory_order(array)
        shape = tuple(array.shape[axis] for axis in axes)
        flat = self._device.view(block, shape, array.dtype)
        self._device.launch(COMPUTE, self._device.xp.copyto, flat, array.transpose(axes))
        return block, 0, True

    def _sample(self, ref: Ref) -> list[Failure | None]:
        """What the buffer's failure is at this place of the queue; filled in when the queue gets there."""
        buffer = ref if type(ref) is int else ref[0]  # type: ignore[index]
        found: list[Failure | None] = [None]
        failures = self._store.failures

        def look() -> None:
            found[0] = failures.get(buffer)

        self._device.launch(COMPUTE, look)
        return found

    def _copy_out(self, ref: Ref, array: Any, purpose: tuple[Any, ...]) -> None:
        """Copy the elements to host memory, on the copy stream; `reached` goes on when they are there."""
        device, nbytes = self._device, array.nbytes
        found = self._sample(ref)
        host = Memory(device.host_alloc(nbytes), on_host=True)
        try:
            block, offset, temporary = self._gapless(ref, array)
        except InterlockError:
            device.host_retire(host.block)
            raise
        device.wait(D2H, device.record(COMPUTE))
        device.copy(D2H, host.block, block, nbytes, 0, offset)
        done = self._notify(D2H, (*purpose, host, nbytes, found))
        if temporary:
            device.retire(block, (done,))
        else:
            self._store.read_by_copy(ref if type(ref) is int else ref[0], done)  # type: ignore[index]

    def _lend_device(self, ref: Ref, array: Any, ticket: int, target: int) -> None:
        """Lend the device's memory itself, once the work that makes the array has finished."""
        found = self._sample(ref)
        block, offset, temporary = self._gapless(ref, array)
        if temporary:
            self._store.lend_copy(ticket, Memory(block))
        else:
            self._store.lend(ticket, ref)
        self._notify(COMPUTE, ("lend", target, ticket, block, offset, found))

    def _notify(self, stream: int, token: tuple[Any, ...]) -> Any:
        mark = self._device.record(stream)
        self._copying += 1
        self._device.notify(mark, token)
        return mark

    # -- arriving

    def arrived(self, message: Ticket) -> bool:
        """Keep a ticket till its RECV comes. False if it is of a worker that has gone, and dropped."""
        if message.source in self._gone:
            return False
        self._tickets[message.ticket] = message
        return True

    def has(self, ticket: int, source: int) -> bool:
        """Whether `receive` can be called: the ticket is here, or it never comes."""
        return ticket in self._tickets or source in self._gone

    def receive(self, buffer: int, spec: Spec, ticket: int, source: int) -> None:
        """Make `buffer` from what the ticket names.

        Raises:
            FailedTicket: it brought a failure, or its producer is gone.
        """
        message = self._tickets.pop(ticket, None)
        if message is None:
            reason = self._gone.get(source, "its ticket is missing")
            raise FailedTicket(Failure((source, 0), "WorkerLost", reason, "", "", ()))
        if message.failure is not None:
            raise FailedTicket(Failure(*message.failure))
        self._adopt(buffer, spec, message.place, source, message)

    def upload(self, buffer: int, spec: Spec, place: Any) -> None:
        """Make `buffer` from the frontend's bytes."""
        self._adopt(buffer, spec, place, -1, None)

    def _adopt(self, buffer: int, spec: Spec, place: Any, source: int, message: Ticket | None) -> None:
        if type(place) is bytes:
            self._from_bytes(buffer, spec, place)
            self._note_moved(message, spec, in_place=False)
            return
        kind, lane = ("session", 0) if source < 0 else ("peer", source)
        origin: Origin = (kind, lane, place[1], spec.nbytes)
        try:
            self._from_loan(buffer, spec, place, source, origin, message)
        except InterlockError as error:  # no memory here, or theirs cannot be opened
            self.give_back([origin])
            gone = isinstance(error, (PeerGone, ImportFailed)) and source >= 0 and source not in self.far
            if gone and ends_within(self.owners[source], DYING_S):  # before the session has told of it
                raise FailedTicket(Failure((source, 0), "WorkerLost", str(error), "", "", ())) from error
            raise

    def _from_loan(
        self, buffer: int, spec: Spec, place: Any, source: int, origin: Origin, message: Ticket | None
    ) -> None:
        kind, _, offset, ticket = place
        owner, device = self.owners[source], self._device
        if device.inline:
            attached = device.host_attach(owner, ticket)
            array = device.host_array(attached, spec.shape, spec.dtype, offset, spec.strides)
            self._store.borrow(buffer, origin, attached, array)
            self._note_moved(message, spec, in_place=True)
            return
        self._store.create(buffer, spec)
        direct = kind == "device"
        foreign = device.import_(owner, ticket) if direct else device.host_attach(owner, ticket)
        self._copy_in(PEER if direct else H2D, buffer, spec, foreign, offset, (origin, foreign, direct, message, spec))

    def _from_bytes(self, buffer: int, spec: Spec, data: bytes) -> None:
        if len(data) != spec.nbytes:
            raise ValueError(f"{len(data)} bytes came for an array of {spec.nbytes}")
        if self._device.inline and len(data) >= SMALL:  # from another machine: as if it had been made here
            self._store.create(buffer, spec)
            block = self._store.memory(buffer).block  # type: ignore[union-attr]  # it is large
            self._device.host_array(block, (len(data),), np.dtype(np.uint8))[...] = np.frombuffer(data, np.uint8)
            return
        if self._store.tight:
            self._store.admit(buffer, len(data))
        if self._device.inline:
            memory = np.frombuffer(bytearray(data or b"\0"), np.uint8)  # a copy: the array can be written
            array = np.ndarray(spec.shape, spec.dtype, buffer=memory, strides=spec.strides)
            self._store.arrays[buffer] = array
            return
        self._store.create(buffer, spec)
        host = self._host_copy(np.frombuffer(data, np.uint8))
        self._copy_in(H2D, buffer, spec, host.block, 0, (None, host, False, None, spec))

    def _copy_in(self, stream: int, buffer: int, spec: Spec, source: Any, offset: int, rest: tuple[Any, ...]) -> None:
        device = self._device
        memory = self._store.memory(buffer)
        assert memory is not None  # devices with queues have memory for every array
        device.wait(stream, device.record(COMPUTE))  # what had this block before may still be at work in it
        device.copy(stream, memory.block, source, spec.nbytes, 0, offset)
        device.wait(COMPUTE, self._notify(stream, ("copied", *rest)))

    def _note_moved(self, message: Ticket | None, spec: Spec, in_place: bool) -> None:
        if self.moved is not None and message is not None:
            now = time.monotonic_ns()
            self.moved.append((message.ticket, message.source, spec.nbytes, message.sent_ns, now, in_place))

    # -- what the device has reached

    def reached(self, token: tuple[Any, ...], error: BaseException | None) -> None:
        """A mark set here was reached: go on with what waited for it."""
        self._copying -= 1
        if error is not None:
            raise error
        match token:
            case ("fence", request):
                self._report(Value(self._lane, request, None, None))
            case ("kept", request, (place, failure)):
                self._report(Value(self._lane, request, place, failure))
            case ("read", request, host, nbytes, found):
                place = None if found[0] else self._host_place(-request, host, nbytes, -1)
                self._finish(host, place)
                self._report(Value(self._lane, request, place, found[0]))
            case ("send", target, ticket, host, nbytes, found):
                place = None if found[0] else self._host_place(ticket, host, nbytes, target)
                self._finish(host, place)
                self._arrive_at(target, ticket, place, found[0])
            case ("lend", target, ticket, block, offset, found):
                if found[0]:
                    self._store.returned(ticket)
                    self._arrive_at(target, ticket, None, found[0])
                elif target in self._gone:
                    self._store.returned(ticket)
                else:
                    exported = self._exported[ticket] = self._device.export(block)
                    self._arrive_at(target, ticket, ("device", ticket, offset, exported), None)
            case ("copied", origin, foreign, direct, message, spec):
                if origin is None:
                    self._device.host_retire(foreign.block)
                else:
                    (self._device.release_import if direct else self._device.host_detach)(foreign)
                    self.give_back([origin])
                self._note_moved(message, spec, in_place=False)

    def _host_place(self, loan: int, host: Memory, nbytes: int, reader: int) -> Any:
        if nbytes < SMALL or reader in self.far:
            return self._device.host_array(host.block, (nbytes,), np.dtype(np.uint8)).tobytes()
        self._store.lend_copy(loan, host)
        return ("host", loan, 0, self._device.host_ticket(host.block))

    def _finish(self, host: Memory, place: Any) -> None:
        if type(place) is not tuple:  # not lent: the message carries all
            self._device.host_retire(host.block)

    def _arrive_at(self, target: int, ticket: int, place: Any, failure: Failure | None) -> None:
        if target in self._gone:
            self._store.returned(ticket)
        elif failure is not None:
            self._tell_ticket(target, ticket, None, failure)
        else:
            self._depart(target, ticket, place)

    # -- ends

    def given_back(self, loans: tuple[int, ...], by: int) -> None:
        """Lane `by` has copied or dropped these loans; -1 is the frontend."""
        held = self._lent_to.get(by)
        for loan in loans:
            if by < 0 and loan < 0:
                self._store.returned(loan)
            elif held is not None and loan in held:
                held.discard(loan)
                self._end(loan)

    def _end(self, loan: int) -> None:
        exported = self._exported.pop(loan, None)
        if exported is not None:
            self._device.release_export(exported)
        self._store.returned(loan)

    def give_back(self, origins: list[Origin]) -> None:
        """The lenders' memory is not read any more. A worker is told with the next ticket it gets, or soon besides."""
        blocks = []
        for kind, lane, loan, nbytes in origins:
            if kind == "session":
                blocks.append(loan)
            elif lane not in self._gone:
                self._owed.setdefault(lane, []).append((loan, nbytes))
        if self._owed and sum(nbytes for owed in self._owed.values() for _, nbytes in owed) > OWED_BYTES:
            self.pay_back()
        if blocks:
            self._report(Released(self._lane, tuple(blocks)))

    def pay_back(self) -> None:
        """Tell all lenders of the loans that are over."""
        owed, self._owed = self._owed, {}
        for lane, loans in owed.items():
            self._tell(lane, Taken(self._session, self._lane, tuple([loan for loan, _ in loans])))

    @property
    def owes(self) -> bool:
        """Some lender has not been told yet."""
        return bool(self._owed)

    def peer_gone(self, lane: int, reason: str) -> None:
        """The worker is lost: its loans are over, and what it had sent and nobody received is an error."""
        self._gone[lane] = reason
        for ticket in [
            t for t, message in self._tickets.items() if message.source == lane and message.place is not None
        ]:
            if type(self._tickets[ticket].place) is tuple:  # it names memory of the dead; bytes are good
                failure = Failure((lane, 0), "WorkerLost", reason, "", "", ())
                self._tickets[ticket] = self._tickets[ticket]._replace(place=None, failure=tuple(failure))
        for loan in self._lent_to.pop(lane, ()):
            self._end(loan)
        self._owed.pop(lane, None)
        owner = self.owners.get(lane)
        if owner is not None:
            self._device.forget(owner)

    def clear(self) -> None:
        """The session is gone."""
        self._tickets.clear()
        self._lent_to.clear()
        self._owed.clear()

    def holders(self) -> dict[int, int]:
        """Which lane reads the memory of each loan."""
        return {loan: lane for lane, loans in self._lent_to.items() for loan in loans}

    @property
    def idle(self) -> bool:
        """Nothing has arrived that nobody received, nothing is lent, no copy is under way."""
        return not (self._tickets or any(self._lent_to.values()) or self._copying or self._owed)

    def counts(self) -> dict[str, int]:
        return {
            "tickets": len(self._tickets),
            "lent to workers": sum(map(len, self._lent_to.values())),
            "copies": self._copying,
        }


def memory_order(array: Any) -> tuple[int, ...]:
    """The axes from the slowest to the fastest in memory."""
    strides = array.strides
    return tuple(sorted(range(array.ndim), key=lambda axis: (-abs(strides[axis]), axis)))


def packed(array: Any) -> Any:
    """The elements in memory order: C-contiguous, the axes those of `memory_order`. A copy where there are gaps."""
    if array.flags.c_contiguous:
        return array
    return np.ascontiguousarray(array.transpose(memory_order(array)))


def is_packed(array: Any) -> bool:
    """Whether the elements fill their memory without a gap, whatever the order of the axes."""
    return bool(array.flags.c_contiguous or array.transpose(memory_order(array)).flags.c_contiguous)
