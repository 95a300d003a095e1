"""A device that behaves like a GPU and needs none: NumPy behind real asynchronous streams.

Each stream is a thread that works through a queue; marks, slots and waits follow the rules of CUDA events; memory is
cut from slabs, is reused in compute order, and is exported by slab and offset. With a seed it turns hostile: it
delays work, leaves it lying until somebody asks, and overwrites what was retired, so that a missing wait gives wrong
numbers on a laptop. Knows nothing of instructions or sessions.

The host never reads a queue's state by asking again and again: threads sleep until there is work, a wait sleeps until
its mark is reached, and completions raise `completion_fd`. Only the seeded delays sleep for a time.
"""

from __future__ import annotations

import contextlib
import os
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from queue import SimpleQueue
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from ...protocol.arena import Arena, Block, Bytes
from ...protocol.errors import DeviceLost, ImportFailed, InterlockError, OutOfDeviceMemory
from ...protocol.identity import Identity
from .base import (
    COMPUTE,
    REACHED_SLOT,
    STREAMS,
    Completion,
    Device,
    DeviceInfo,
    Mark,
    Ticket,
    probe_pattern,
    refuse_calls,
)
from .sharing import Borrowed, Exports, Loans, array_in, slot_of, stretch

SLAB: Final = 2 << 20  # slabs are multiples of this
POISON: Final = 0xA5
SIM_SLOT: Final = "sim slot"
JOIN_TIMEOUT_S: Final = 30.0
OPTIONS: Final = {
    "arena": None,  # 'memfd' or 'shm'
    "minimum_segment": None,
    "host_limit_bytes": None,  # of host memory; None for as much as device memory
    "slots": 32,
    "seed": None,  # chaos: an int
    "delay_s": 1e-3,  # with a seed: delays of up to this
    "delay_share": 0.3,  # with a seed: before this share of the work
    "lazy": None,  # leave work lying until somebody asks; None: with a seed, in streams that it chooses
    "poison": None,  # overwrite retired memory; None: with a seed
    "oom_at": 0,  # the n-th allocation fails; 0 for none
    "fault_at": 0,  # the n-th launch or copy breaks the device; 0 for none
    "probe": True,  # what probes say at best
}


class _Point:
    """One record: reached when its stream gets there."""

    __slots__ = ("number", "reached", "sleepers", "stream", "tokens")

    def __init__(self, stream: _Stream, number: int) -> None:
        self.stream = stream
        self.number = number  # of records in this stream
        self.reached = False
        self.sleepers: list[threading.Lock] = []  # locks that threads are asleep on
        self.tokens: list[Any] = []


class SimMark(Mark):
    """Stands at its latest record; None before the first, which counts as reached."""

    __slots__ = ("point",)

    def __init__(self, point: _Point | None) -> None:
        self.point = point


class _Wait:
    """In a stream's queue: sleep until the point is reached."""

    __slots__ = ("lock", "point")

    def __init__(self, point: _Point, lock: threading.Lock) -> None:
        self.point = point
        self.lock = lock


_Call: TypeAlias = tuple[Callable[..., object], tuple[Any, ...]]
_Item: TypeAlias = _Call | _Point | _Wait


class _Stream:
    """A queue and the thread that works through it. `lying`: what a lazy stream's thread has not been given yet."""

    __slots__ = ("lazy", "lying", "name", "points", "queue", "started", "thread")

    def __init__(self, name: str, lazy: bool) -> None:
        self.name = name
        self.lazy = lazy
        self.lying: list[_Item] = []
        self.queue: SimpleQueue[_Item | None] = SimpleQueue()
        self.points = 0  # records so far
        self.started = 0  # the latest of them that the thread was given, in a lazy stream
        self.thread: threading.Thread | None = None

    def put(self, item: _Item) -> None:
        if self.lazy:
            self.lying.append(item)
        else:
            self.queue.put(item)

    def give(self, count: int) -> None:
        """Gives the thread the first of the items that lie."""
        for item in self.lying[:count]:
            self.queue.put(item)
        del self.lying[:count]


class SimDevice:
    """NumPy behind streams. Options: see OPTIONS."""

    inline = False
    xp: Any = np
    completion_fd: int | None

    def __init__(self, index: int, limit_bytes: int, identity: Identity, options: Mapping[str, Any]) -> None:
        if unknown := options.keys() - OPTIONS.keys():
            raise InterlockError(f"sim:{index} has no options {sorted(unknown)}; it has {sorted(OPTIONS)}")
        chosen = {**OPTIONS, **options}
        self._name = name = f"sim:{index}"
        self.info = DeviceInfo("sim", index, f"sim-{identity.incarnation}-{index}", limit_bytes, True, False)
        self._identity = identity
        segment, kind = chosen["minimum_segment"], chosen["arena"]
        host_limit = limit_bytes if chosen["host_limit_bytes"] is None else chosen["host_limit_bytes"]
        self._memory = Arena(
            limit_bytes, identity, segment, kind=kind, label=f"memory of {name}", alignment=512, granularity=SLAB
        )
        self._host = Arena(host_limit, identity, segment, kind=kind, label=f"host memory of {name}")
        self._loans = Loans()
        self._exports = Exports(self._memory, identity, self._loans)

        self._chaos: random.Random | None = None if chosen["seed"] is None else random.Random(chosen["seed"])
        self._delay_s, self._delay_share = chosen["delay_s"], chosen["delay_share"]
        self._poison = chosen["poison"] if chosen["poison"] is not None else self._chaos is not None
        self._oom_at, self._fault_at, self._probe = chosen["oom_at"], chosen["fault_at"], chosen["probe"]
        self._allocations = self._works = 0

        self._lock = threading.Lock()  # guards points and arrivals
        self._arrived: list[Completion] = []
        self._awaited = 0  # tokens that have not arrived
        self._fault: str | None = None  # why the device is lost
        self._closing = False
        self.completion_fd = self._eventfd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._slots = [SimMark(None) for _ in range(chosen["slots"])]
        self._thread = threading.get_ident()
        self._streams = [_Stream(stream, self._is_lazy(chosen["lazy"])) for stream in STREAMS]
        for stream in self._streams:
            stream.thread = threading.Thread(
                target=self._work, args=(stream.queue,), name=f"interlock-{name}-{stream.name}", daemon=True
            )
            stream.thread.start()

    # memory

    def alloc(self, nbytes: int, /) -> Block:
        self._check_thread()
        self._allocations += 1
        if self._allocations == self._oom_at:
            raise OutOfDeviceMemory(f"memory of {self._name}: no room for {nbytes} bytes: asked for by oom_at")
        return self._memory.allocate(nbytes)

    def view(
        self,
        buffer: Any,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        offset: int = 0,
        strides: tuple[int, ...] | None = None,
    ) -> npt.NDArray[Any]:
        if buffer.arena is not self._memory:
            raise InterlockError(f"{buffer} is not memory of {self._name}: copy it there to compute with it")
        return array_in(buffer, shape, dtype, offset, strides)

    def retire(self, buffer: Any, after: Sequence[Mark] = ()) -> None:
        self._check_thread()
        memory: Bytes = buffer.bytes
        self._memory.free(buffer)  # in compute order; what is handed out next is used behind these waits
        self._exports.retired(buffer)
        for mark in after:
            self.wait(COMPUTE, mark)
        if self._poison:
            self._streams[COMPUTE].put((memory.fill, (POISON,)))

    # work

    def launch(self, stream: int, fn: Callable[..., object], *args: Any) -> None:
        self._check_thread()
        self._put(stream, fn, args)

    def copy(self, stream: int, dst: Any, src: Any, nbytes: int, dst_offset: int = 0, src_offset: int = 0) -> None:
        self._check_thread()
        if dst.arena is not self._memory and dst.arena is not self._host:
            raise InterlockError(f"{dst} is not memory of {self._name}, and only that may be written")
        self._put(stream, np.copyto, (stretch(dst, dst_offset, nbytes), stretch(src, src_offset, nbytes)))

    def _put(self, number: int, fn: Callable[..., object], args: tuple[Any, ...]) -> None:
        stream = self._streams[number]
        self._works += 1
        if self._works == self._fault_at:
            fn, args = _fail, ()
        chaos = self._chaos
        if chaos is not None and chaos.random() < self._delay_share:
            stream.put((time.sleep, (chaos.uniform(0, self._delay_s),)))
        stream.put((fn, args))

    # order

    def record(self, stream: int, slot: int | None = None) -> SimMark:
        self._check_thread()
        into = self._streams[stream]
        into.points += 1
        point = _Point(into, into.points)
        into.put(point)
        if slot is None:
            return SimMark(point)
        mark = self._slots[slot]
        mark.point = point
        return mark

    def wait(self, stream: int, mark: Mark) -> None:
        self._check_thread()
        point, waiting = _point(mark), self._streams[stream]
        if point is None or point.reached or point.stream is waiting:
            return
        if not waiting.lazy:
            self._start(point)  # nobody could start it later: this stream's thread will be asleep
        lock = self._sleep_until(point)
        if lock is not None:
            waiting.put(_Wait(point, lock))

    def query(self, mark: Mark) -> bool:
        self._check_thread()
        point = _point(mark)
        if point is None or point.reached:
            return True
        self._start(point)
        return False

    def notify(self, mark: Mark, token: Any) -> None:
        self._check_thread()
        point = _point(mark)
        self._awaited += 1
        with self._lock:
            if point is None or point.reached:
                self._arrive(token)
                return
            point.tokens.append(token)
        self._start(point)

    def drain(self) -> list[Completion]:
        self._check_thread()
        with self._lock:
            arrived, self._arrived = self._arrived, []
            if arrived:
                os.eventfd_read(self._eventfd)
        self._awaited -= len(arrived)
        return arrived

    def fence(self, timeout: float) -> None:
        self._check_thread()
        deadline = time.monotonic() + timeout
        marks = [self.record(number) for number in range(len(STREAMS))]
        for mark in marks:
            point = _point(mark)
            assert point is not None
            self._start(point)
            lock = self._sleep_until(point)
            if lock is not None and not lock.acquire(timeout=max(0.0, deadline - time.monotonic())):
                raise TimeoutError(f"the {point.stream.name} stream of {self._name} was not done within {timeout} s")
        if self._fault:
            raise DeviceLost(self._fault)

    def _sleep_until(self, point: _Point) -> threading.Lock | None:
        """A lock that can be had once the point is reached; None if it is."""
        lock = threading.Lock()
        lock.acquire()
        with self._lock:
            if point.reached:
                return None
            point.sleepers.append(lock)
        return lock

    def _start(self, point: _Point) -> None:
        """Gives the threads of lazy streams all that the point needs, in other streams too, and nothing more."""
        give: dict[_Stream, int] = {}  # how many of the items that lie in a stream
        ask = [point]
        while ask:
            point = ask.pop()
            stream = point.stream
            if point.number <= stream.started or not stream.lying:
                continue
            first = give.get(stream, 0)
            for at in range(first, len(stream.lying)):
                item = stream.lying[at]
                if type(item) is _Wait:
                    ask.append(item.point)
                elif item is point:
                    give[stream] = at + 1
                    stream.started = point.number
                    break
        for stream, count in give.items():
            stream.give(count)

    # host memory

    def host_alloc(self, nbytes: int, /) -> Block:
        return self._host.allocate(nbytes)

    def host_retire(self, buffer: Any) -> None:
        memory: Bytes = buffer.bytes
        self._host.free(buffer)
        if self._poison:
            memory.fill(POISON)

    def host_array(
        self,
        buffer: Any,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        offset: int = 0,
        strides: tuple[int, ...] | None = None,
    ) -> npt.NDArray[Any]:
        if buffer.arena is self._memory:
            raise InterlockError(f"{buffer} is memory of {self._name}: copy it to host memory to read it")
        return array_in(buffer, shape, dtype, offset, strides)

    def host_ticket(self, buffer: Any) -> Ticket:
        return self._host.ticket(buffer)

    def host_attach(self, owner: Identity, ticket: Sequence[object]) -> Borrowed:
        return self._loans.attach(owner, ticket)

    def host_detach(self, buffer: Any) -> None:
        self._loans.release(buffer)

    # between processes

    def export(self, buffer: Any) -> Ticket:
        return self._exports.export(buffer)

    def release_export(self, ticket: Sequence[object]) -> None:
        self._exports.release_export(ticket)

    def import_(self, owner: Identity, ticket: Sequence[object]) -> Block | Borrowed:
        return self._exports.import_(owner, ticket)

    def release_import(self, buffer: Any, after: Sequence[Mark] = ()) -> None:
        # Work that is queued holds the mapping itself, so there is nothing to wait for.
        self._exports.release_import(buffer)

    def forget(self, owner: Identity) -> None:
        self._loans.forget(owner)

    def export_slot(self, slot: int) -> Ticket:
        return self._exports.export_slot(slot, len(self._slots), SIM_SLOT)

    def import_slot(self, owner: Identity, ticket: Sequence[object]) -> Mark:
        """Slots are not shared between processes: there, the producer waits for its mark and then sends its ticket."""
        if slot_of(owner, ticket, REACHED_SLOT) is not None:
            return SimMark(None)
        slot = slot_of(owner, ticket, SIM_SLOT)
        if slot is None or owner.incarnation != self._identity.incarnation or slot >= len(self._slots):
            raise ImportFailed(f"{self._name} cannot wait for a slot of process {owner.pid}; wait there for its mark")
        return self._slots[slot]

    def probe_ticket(self) -> Ticket:
        block, fresh = self._exports.probe_block()
        if fresh:
            pattern = np.frombuffer(probe_pattern(self._identity), np.uint8)
            self.launch(COMPUTE, np.copyto, block.bytes, pattern)
            self.fence(JOIN_TIMEOUT_S)
        return self._exports.export(block)

    def probe(self, owner: Identity, ticket: Sequence[object]) -> bool:
        return bool(self._probe) and self._exports.probe(owner, ticket)

    # housekeeping

    def memory(self) -> dict[str, int]:
        used, reserved = self._memory.used_bytes, self._memory.reserved_bytes
        return {
            "used": used,
            "cached": reserved - used,
            "limit": self._memory.limit_bytes,
            "exported": len(self._memory.held),
            "imported": self._loans.mapped,
        }

    def trim(self) -> None:
        self._loans.trim()
        self._memory.trim()
        self._host.trim()

    @property
    def idle(self) -> bool:
        return self._exports.idle and self._host.idle and self._loans.idle and self._awaited == 0

    def close(self) -> None:
        if self._closing:
            return
        self._closing = True
        for stream in self._streams:
            stream.give(len(stream.lying))
            stream.queue.put(None)
        for stream in self._streams:
            assert stream.thread is not None
            stream.thread.join(JOIN_TIMEOUT_S)
            if stream.thread.is_alive():
                raise InterlockError(f"the {stream.name} stream of {self._name} does not end: its work does not return")
        self.completion_fd = None
        os.close(self._eventfd)
        self._loans.close()
        self._memory.close()
        self._host.close()

    # in the streams' threads

    def _work(self, queue: SimpleQueue[_Item | None]) -> None:
        get = queue.get
        while (item := get()) is not None:
            kind = type(item)
            if kind is tuple:
                fn, args = item  # type: ignore[misc]
                if self._fault is None and not self._closing:
                    self._run(fn, args)
                del fn, args
            elif kind is _Wait:
                item.lock.acquire()  # type: ignore[union-attr]
            else:
                self._reach(item)  # type: ignore[arg-type]
            del item  # while this thread sleeps, nothing of what it ran stays alive

    def _run(self, fn: Callable[..., object], args: tuple[Any, ...]) -> None:
        try:
            fn(*args)
        except BaseException as error:
            name = getattr(fn, "__qualname__", fn)
            text = f"{self._name} is lost: {name} raised {type(error).__name__}: {error}"
            with self._lock:
                self._fault = self._fault or text
            refuse_calls(self, self._fault)

    def _reach(self, point: _Point) -> None:
        with self._lock:
            point.reached = True
            for token in point.tokens:
                self._arrive(token)
            point.tokens = []
        for lock in point.sleepers:  # nobody adds to them once the point is reached
            lock.release()
        point.sleepers = []

    def _arrive(self, token: Any) -> None:
        if not self._arrived:
            with contextlib.suppress(OSError):  # closing
                os.eventfd_write(self._eventfd, 1)
        self._arrived.append((token, DeviceLost(self._fault) if self._fault else None))

    def _is_lazy(self, asked: bool | None) -> bool:
        if asked is not None:
            return asked
        return self._chaos is not None and self._chaos.random() < 0.5

    def _check_thread(self) -> None:
        if threading.get_ident() != self._thread:
            raise InterlockError(f"{self._name} is driven from one thread only, the one that opened it")


def _point(mark: Mark) -> _Point | None:
    if not isinstance(mark, SimMark):
        raise InterlockError(f"{mark} is not a mark of this device")
    return mark.point


def _fail() -> None:
    raise RuntimeError("asked for by fault_at")


def open_device(index: int, limit_bytes: int, identity: Identity, options: Mapping[str, Any]) -> Device:
    return SimDevice(index, limit_bytes, identity, options)
