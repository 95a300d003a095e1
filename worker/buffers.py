"""Which array a name stands for, in which memory it lies, and who else reads that memory.

One `Store` holds what one session has on one worker. A buffer that others read in place is *lent*: nobody
waits for them, so whoever writes it first moves it to fresh memory (`writable`). A buffer read in place from
somebody else is *borrowed*: it is copied before it is written. A view is (buffer, offset, shape, strides,
dtype), made when first used and forgotten when its buffer moves.
Knows devices only through their interface, and nothing of sockets or of the order of things.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

import numpy as np

from ..protocol.errors import OutOfDeviceMemory
from ..protocol.messages import Ref
from ..protocol.shortage import Shortage
from ..protocol.specs import Spec, dtype_of
from ..protocol.specs import spec as spec_of
from .devices.base import COMPUTE, Device

PATIENCE: Final = 20  # times that are waited for a loan to the frontend, where a worker's is waited for once
SMALL: Final = 32 * 1024  # bytes; below it a host array lives in NumPy's own memory and travels inside messages
OBJECT: Final = 256  # bytes that a small array takes besides its elements, about
SHARE: Final = 4  # small arrays are of no account below 1/2**SHARE of the memory

# Who lent the memory, and how many bytes of it: ("peer", lane, ticket, nbytes), ("session", 0, block, nbytes).
Origin = tuple[str, int, int, int]


class Failure(NamedTuple):
    """Why a buffer holds no array. `path` are the first instructions that inherited it: (lane, n) each."""

    root: tuple[int, int]
    kind: str
    text: str
    traceback: str
    detail: str  # the operation and its operands' specs
    path: tuple[tuple[int, int], ...]

    def inherited(self, lane: int, n: int) -> Failure:
        """The same failure, reached through instruction n."""
        return self if len(self.path) >= 3 else self._replace(path=(*self.path, (lane, n)))


class Unavailable(Exception):
    """The operand's buffer has no array: it failed, or no such buffer was ever made."""

    def __init__(self, buffer: int) -> None:
        super().__init__(buffer)
        self.buffer = buffer


class Memory:
    """A block of the device's memory and how many hold it: the buffer's name, and each loan."""

    __slots__ = ("block", "holders", "marks", "on_host", "orphan")

    def __init__(self, block: Any, on_host: bool = False) -> None:
        self.block = block
        self.holders = 1
        self.on_host = on_host  # made by host_alloc, not by alloc
        self.orphan = False  # no buffer has it any more: it goes with its last loan
        self.marks: list[Any] = []  # copies under way that read it (devices with queues only)


class _Arrays(dict[Any, Any]):
    """Arrays by reference. A view is made at its first use and kept until its buffer goes or moves."""

    def __init__(self, make_view: Callable[[Ref], Any]) -> None:
        super().__init__()
        self._make_view = make_view

    def __missing__(self, ref: Ref) -> Any:
        return self._make_view(ref)


class Store:
    """The arrays of one session on one device."""

    def __init__(
        self, device: Device, give_back: Callable[[Origin], None], await_loans: Callable[[], bool] = lambda: False
    ) -> None:
        """`give_back` is told of each borrowed memory that is no longer read.

        `await_loans` waits for borrowers to return what was lent, when memory is short; False if none did in time.
        """
        self.device = device
        self.arrays: dict[Any, Any] = _Arrays(self._make_view)
        self.failures: dict[int, Failure] = {}
        self._failed_specs: dict[int, Spec] = {}  # what a full overwrite makes anew
        self.make_room: Callable[[], bool] = lambda: False  # gives up what can be made again; False if there is none
        self._give_back = give_back
        self._await_loans = await_loans
        self._orphans = 0  # blocks of memory that go when a loan ends
        self._memory: dict[int, Memory] = {}
        self._views: dict[int, list[Ref]] = {}
        self._borrowed: dict[int, tuple[Origin, Any]] = {}
        # By loan number (tickets are positive, values lent to the frontend negative): the memory, and whose it was.
        self._lent: dict[int, tuple[Memory, int]] = {}
        self._loans: dict[int, set[int]] = {}  # loans of each buffer's present memory
        self._limit = device.info.memory_bytes
        self._small: dict[int, int] = {}  # by buffer: bytes of the small arrays that were counted; 0 for others
        self.small_bytes = 0
        self.tight = False  # memory is nearly full of small arrays: each new one is counted as it is made

    # -- names

    def create(self, buffer: int, spec: Spec) -> Any:
        """A new array, its elements undefined, in memory that can be lent when it is large or not the host's."""
        if self.device.inline and spec.nbytes < SMALL:
            if self.tight:
                self.admit(buffer, spec.nbytes)
            array = np.ndarray(
                spec.shape, spec.dtype, strides=spec.strides, buffer=np.empty(max(spec.nbytes, 1), np.uint8)
            )
        else:
            memory = Memory(self._alloc(spec.nbytes))
            array = self.device.view(memory.block, spec.shape, spec.dtype, 0, spec.strides)
            self._memory[buffer] = memory
        self.arrays[buffer] = array
        return array

    def _alloc(self, nbytes: int) -> Any:
        """Memory of the device; where loans hold memory that nobody else has any more, their end is waited for."""
        while True:
            try:
                if self.small_bytes > self._limit >> SHARE:
                    self._check_room(nbytes)
                return self.device.alloc(nbytes)
            except OutOfDeviceMemory:
                if not self._relieve():
                    raise

    def _relieve(self) -> bool:
        return self.make_room() or bool(self._orphans and self._await_patiently(self._lent))

    def _await_patiently(self, loans: Iterable[int]) -> bool:
        """Wait until something that is lent comes back; longer where the frontend has it: a save may be writing it."""
        return any(self._await_loans() for _ in range(PATIENCE if any(loan < 0 for loan in loans) else 1))

    def _given_back(self, buffer: int) -> bool:
        """Whether the frontend, which alone reads the buffer in place, comes to its end with it."""
        while buffer not in self._borrowed:
            loans = self._loans.get(buffer, ())
            if not loans:
                return True
            if any(loan > 0 for loan in loans) or not self._await_patiently(loans):
                break
        return False

    # -- small arrays: in NumPy's own memory, which nobody measures but us

    def count_small(self) -> None:
        """Count the small arrays that were made since the last time, and those only: they are the last in `arrays`."""
        counted, made = self._small, 0
        for buffer in reversed(self.arrays):
            if type(buffer) is not int:
                continue  # a view
            if buffer in counted:
                break
            nbytes = getattr(self.arrays[buffer], "nbytes", 0)
            if nbytes >= SMALL or buffer in self._memory:
                counted[buffer] = 0  # its memory is the device's, or another's
            else:
                counted[buffer] = nbytes + OBJECT
                made += nbytes + OBJECT
        self.small_bytes += made
        used = self.small_bytes + self.device.memory()["used"]
        slack = self._limit >> (SHARE - 2 if self.tight else SHARE - 1)
        tight = self.small_bytes > self._limit >> SHARE and used > self._limit - slack
        if tight and not self.tight:
            self.device.trim()
        self.tight = tight

    def admit(self, buffer: int, nbytes: int) -> None:
        """Count one small array that is about to be made.

        Raises:
            OutOfDeviceMemory: there is no room for it.
        """
        nbytes += OBJECT
        while True:
            try:
                self._check_room(nbytes)
                break
            except OutOfDeviceMemory:
                if not self._relieve():
                    raise
        self.small_bytes += nbytes - self._small.get(buffer, 0)
        self._small[buffer] = nbytes

    def _check_room(self, nbytes: int) -> None:
        used = self.small_bytes + self.device.memory()["used"]
        if used + nbytes > self._limit:
            error = OutOfDeviceMemory(f"no room for {nbytes} bytes: {used} bytes of {self._limit} are in use")
            error.shortage = Shortage(str(self.device.info.kind), nbytes, "", self._limit, used, "")
            raise error

    def take_over(self, old: int, new: int) -> bool:
        """Give the memory of a buffer that nobody needs any more to a new one. False if others read it in place."""
        if old in self._loans or old in self._borrowed or old in self.failures:
            return False
        self.arrays[new] = self.arrays.pop(old)
        if old in self._small:
            self._small[new] = self._small.pop(old)
        self._forget_views(old)
        memory = self._memory.pop(old, None)
        if memory is not None:
            self._memory[new] = memory
        return True

    def drop(self, buffer: int) -> None:
        """Forget a buffer. Its memory goes when the last loan of it ends."""
        if self.device.inline:
            self.failures.pop(buffer, None)
        else:
            self.device.launch(COMPUTE, self.failures.pop, buffer, None)  # after those in the queue that look it up
        self._failed_specs.pop(buffer, None)
        self._drop_array(buffer)

    def _drop_array(self, buffer: int) -> None:
        self.arrays.pop(buffer, None)
        if self._small:
            self.small_bytes -= self._small.pop(buffer, 0)
        self._forget_views(buffer)
        self._let_go(buffer)

    def fail(self, buffer: int, failure: Failure, spec: Spec | None = None) -> None:
        """The buffer holds no array any more, for this reason; `spec` is what it would have been, if not yet made."""
        if spec is None:
            old = self.arrays.get(buffer)
            spec = self._failed_specs.get(buffer) if old is None else _spec_of(old)
        self._drop_array(buffer)
        self.failures[buffer] = failure
        if spec is not None:
            self._failed_specs[buffer] = spec

    def cure(self, buffer: int) -> None:
        """Every element of a failed buffer is about to be written: it has an array again."""
        spec = self._failed_specs.get(buffer)
        if buffer in self.failures and spec is not None:
            self.create(buffer, spec)  # may raise, and then nothing has changed
            del self.failures[buffer], self._failed_specs[buffer]

    # -- lending

    def lend(self, loan: int, ref: Ref) -> tuple[Any, int] | None:
        """Lend the memory that `ref` fills without a gap: (block, offset in it), or None when it cannot be shared."""
        buffer, offset = (ref, 0) if type(ref) is int else (ref[0], ref[1])  # type: ignore[index]
        memory = self._memory.get(buffer)
        if memory is None:
            return None
        memory.holders += 1
        self._lent[loan] = memory, buffer
        self._loans.setdefault(buffer, set()).add(loan)
        return memory.block, offset

    def lend_copy(self, loan: int, memory: Memory) -> None:
        """Lend memory that was made for this loan alone."""
        self._lent[loan] = memory, -1
        self._orphan(memory)

    def returned(self, loan: int) -> None:
        """The borrower has copied or dropped it. Loans that are already over are ignored: their borrower was lost."""
        lent = self._lent.pop(loan, None)
        if lent is None:
            return
        memory, buffer = lent
        self._release(memory)
        loans = self._loans.get(buffer)
        if loans is not None:
            loans.discard(loan)  # not in it when the buffer has moved meanwhile
            if not loans:
                del self._loans[buffer]

    def borrow(self, buffer: int, origin: Origin, attached: Any, array: Any) -> None:
        """Use somebody else's memory in place, as `buffer`; `attached` is the device's handle of it."""
        self.arrays[buffer] = array
        self._borrowed[buffer] = (origin, attached)

    def memory(self, buffer: int) -> Memory | None:
        return self._memory.get(buffer)

    # -- writing

    def writable(self, ref: Ref, overwrites: bool) -> Any:
        """The array to write to, in memory that nobody else reads: moved or copied first where needed.

        `overwrites`: every element of the buffer is about to be written, so what is in it need not be kept.
        """
        buffer = ref if type(ref) is int else ref[0]  # type: ignore[index]
        if buffer in self._loans or buffer in self._borrowed:
            self._move(buffer, keep=not overwrites)
        else:
            self.await_copies(buffer)
        return self.arrays[ref]

    def _move(self, buffer: int, keep: bool) -> None:
        old = self.arrays[buffer]  # raises Unavailable
        try:
            memory = Memory(self._alloc(old.nbytes))
        except OutOfDeviceMemory:
            if self._given_back(buffer):
                return
            raise
        new = self.device.view(memory.block, old.shape, old.dtype, 0, old.strides)
        if keep:
            self.device.launch(COMPUTE, self.device.xp.copyto, new, old)
        self._forget_views(buffer)
        self._let_go(buffer)
        self.arrays[buffer] = new
        self._memory[buffer] = memory

    def _let_go(self, buffer: int) -> None:
        """The name no longer holds its memory."""
        memory = self._memory.pop(buffer, None)
        if memory is not None:
            self._loans.pop(buffer, None)
            self._release(memory)
            if memory.holders:
                self._orphan(memory)
        borrowed = self._borrowed.pop(buffer, None)
        if borrowed is not None:
            origin, attached = borrowed
            self.device.host_detach(attached)
            self._give_back(origin)

    def _orphan(self, memory: Memory) -> None:
        """Nothing but loans holds this memory any more."""
        memory.orphan = True
        self._orphans += 1

    def _release(self, memory: Memory) -> None:
        memory.holders -= 1
        if memory.holders:
            return
        self._orphans -= memory.orphan
        if memory.on_host:
            self.device.host_retire(memory.block)
        else:
            self.device.retire(memory.block, tuple(memory.marks))

    def read_by_copy(self, buffer: int, mark: Any) -> None:
        """A copy that ends at `mark` reads the buffer: writes and reuse of the memory wait for it."""
        memory = self._memory.get(buffer)
        if memory is not None:
            memory.marks = [m for m in memory.marks if not self.device.query(m)]
            memory.marks.append(mark)

    def await_copies(self, buffer: int) -> None:
        """Let what is launched from now on wait for the copies that read this buffer."""
        memory = self._memory.get(buffer)
        if memory is not None and memory.marks:
            for mark in memory.marks:
                self.device.wait(COMPUTE, mark)
            memory.marks.clear()

    # -- views

    def _make_view(self, ref: Ref) -> Any:
        if type(ref) is int:
            raise Unavailable(ref)
        buffer, offset, shape, strides, dtype = ref  # type: ignore[misc]
        root = self.arrays[buffer]  # raises Unavailable
        memory = self._memory.get(buffer)
        if memory is not None:
            array = self.device.view(memory.block, shape, dtype_of(dtype), offset, strides)
        else:
            # A small or borrowed host array: the elements fill its memory without a gap, whatever the axes' order.
            flat = root.ravel(order="K").view(np.uint8) if root.size else np.empty(1, np.uint8)
            array = np.ndarray(shape, dtype_of(dtype), buffer=flat, offset=offset, strides=strides)
            if not root.flags.writeable:
                array.flags.writeable = False
        self.arrays[ref] = array
        self._views.setdefault(buffer, []).append(ref)
        return array

    def _forget_views(self, buffer: int) -> None:
        for ref in self._views.pop(buffer, ()):
            self.arrays.pop(ref, None)

    # -- ends

    def clear(self) -> None:
        """Forget everything: the session has gone."""
        for buffer in [ref for ref in self.arrays if type(ref) is int]:
            self.drop(buffer)
        self.failures.clear()
        self._failed_specs.clear()
        for loan in list(self._lent):
            self.returned(loan)

    def owners(self) -> tuple[list[tuple[int, int, int, str]], int]:
        """(buffer, loan, bytes, array) of what lies in the device's memory, and how many small arrays were counted.

        The loan is 0 but for memory that nobody has any more besides its borrower.
        """
        found = []
        for buffer, memory in list(self._memory.items()):
            array = self.arrays.get(buffer)
            found.append((buffer, 0, memory.block.nbytes, spec_text(array)))
        for loan, (memory, buffer) in list(self._lent.items()):
            if memory.orphan:
                found.append((buffer, loan, memory.block.nbytes, "array"))
        return found, sum(nbytes > 0 for nbytes in list(self._small.values()))

    @property
    def idle(self) -> bool:
        """Nothing is held: no names, views, memory, loans or failures."""
        assert self._lent or not self._orphans
        assert self.arrays or not self.small_bytes
        held = (self.arrays, self.failures, self._memory, self._views, self._borrowed, self._lent, self._loans)
        return not any(held)

    def counts(self) -> dict[str, int]:
        """How many of each thing are held."""
        return {
            "arrays": sum(type(ref) is int for ref in self.arrays),
            "views": sum(map(len, self._views.values())),
            "failures": len(self.failures),
            "memory": len(self._memory),
            "borrowed": len(self._borrowed),
            "lent": len(self._lent),
        }


def spec_text(array: Any) -> str:
    """What an array is, such as float64[1000,1000]."""
    return f"{array.dtype}[{','.join(map(str, array.shape))}]" if hasattr(array, "shape") else "array"


def _spec_of(array: Any) -> Spec | None:
    """The spec of an array; None for what is none (a random generator)."""
    return spec_of(array.shape, array.dtype, array.strides) if hasattr(array, "strides") else None
