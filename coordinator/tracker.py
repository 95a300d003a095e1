"""What an instruction must wait for in other lanes, and which may be sent now: gate="coordinator".

Pure: no sockets, threads, clocks or devices, and no knowledge of kinds: an instruction is (lane, n) and the buffers
that it reads and writes. Facts go in (submitted, completed, lost); what to send comes out, in the order to send it.

A buffer lives on one worker, and order within a lane settles every hazard there. Across lanes there are two:
  * read after write: a `recv` waits for its `send`, which the caller knows as it issues both;
  * write after read: a write to a buffer that was sent, or its free, waits for each `recv` of it: `Hazards`.
With gate="coordinator" both waits are done here, by `Gate`. With gate="worker" they are done where the instruction
runs, and nothing here is used. All that depends on all, for a picture, is found in `graph.py`.

Both are called under the session's lock; a refused fact raises TrackerError and changes nothing.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import NamedTuple

from ..protocol.errors import InterlockError

Instruction = tuple[int, int]  # (lane, n): lanes have any numbers, instructions in a lane count from 1


class TrackerError(InterlockError):
    """The coordinator was told what cannot be: a broken invariant of its own, or a worker that counts wrongly."""


class Lost(NamedTuple):
    """What follows from the loss of a lane."""

    send: list[Instruction]  # held in other lanes until now, to send in this order
    dropped: list[Instruction]  # held in the lost lane: never sent


class _Lane:
    __slots__ = ("completed", "held", "sent", "submitted")

    def __init__(self) -> None:
        self.submitted = 0  # the highest n of each; completed <= sent <= submitted
        self.sent = 0
        self.completed = 0
        self.held: deque[tuple[Instruction, ...]] = deque()  # the waits of sent + 1, sent + 2, ... submitted


class Gate:
    """Holds each instruction until its waits are completed, and its lane with it.

    A held head holds its lane: skipping ahead would let two lanes meet two collectives in opposite order, and both wait
    for ever. No deadlock: a wait names an instruction that was submitted before, so the earliest that is unfinished can
    always go on.
    """

    __slots__ = ("_lanes", "_lost")

    def __init__(self) -> None:
        self._lanes: dict[int, _Lane] = {}
        self._lost: set[int] = set()

    @property
    def idle(self) -> bool:
        """Everything submitted to lanes that are not lost was reported completed."""
        return all(at.completed == at.submitted for at in self._lanes.values())

    def open(self, lane: int) -> None:
        """A lane begins. The lane of a worker's next incarnation has another number."""
        if lane in self._lanes or lane in self._lost:
            raise TrackerError(f"lane {lane} was opened before")
        self._lanes[lane] = _Lane()

    def submit(self, lane: int, n: int, waits: tuple[Instruction, ...] = ()) -> bool:
        """May instruction `n` of the lane be sent now? If not, it is held, and a later fact's answer names it.

        Args:
            lane: an open lane.
            n: one more than the last that was submitted to it.
            waits: instructions submitted before. Those in the same lane, or in a lost one, need no waiting.
        """
        at = self._lanes.get(lane)
        if at is None:
            raise TrackerError(f"instruction {n} submitted to lane {lane}, which {self._fate(lane)}")
        if n != at.submitted + 1:
            raise TrackerError(f"instruction {n} submitted to lane {lane} after {at.submitted}")
        if waits:
            waits = self._other_lanes(lane, n, waits)
        at.submitted = n
        if at.held or not self._over(waits):
            at.held.append(waits)
            return False
        at.sent = n
        return True

    def held(self, lane: int) -> tuple[int, list[tuple[Instruction, ...]]]:
        """The last instruction of the lane that was sent, and what each of those behind it waits for."""
        at = self._lanes.get(lane)
        return (0, []) if at is None else (at.sent, list(at.held))

    def completed(self, lane: int, through: int) -> list[Instruction]:
        """All instructions of the lane up to `through` have finished. Returns what to send now, in order.

        A late report from a lost lane changes nothing.
        """
        at = self._lanes.get(lane)
        if at is None:
            if lane in self._lost:
                return []
            raise TrackerError(f"lane {lane} reported completed through {through}, but it {self._fate(lane)}")
        if not at.completed <= through <= at.sent:
            raise TrackerError(
                f"lane {lane} reported completed through {through}, after {at.completed} were completed"
                f" and {at.sent} sent"
            )
        at.completed = through
        return self._release()

    def lost(self, lane: int) -> Lost:
        """The worker of the lane is gone: nobody waits for its instructions any more.

        A second report changes nothing.
        """
        at = self._lanes.pop(lane, None)
        if at is None:
            if lane in self._lost:
                return Lost([], [])
            raise TrackerError(f"lane {lane} reported lost, but it {self._fate(lane)}")
        self._lost.add(lane)
        return Lost(self._release(), [(lane, n) for n in range(at.sent + 1, at.submitted + 1)])

    def _release(self) -> list[Instruction]:
        """Send from each lane's head until one must wait. Sending completes nothing, so one pass is enough."""
        released: list[Instruction] = []
        for lane, at in self._lanes.items():
            while at.held and self._over(at.held[0]):
                at.held.popleft()
                at.sent += 1
                released.append((lane, at.sent))
        return released

    def _over(self, waits: tuple[Instruction, ...]) -> bool:
        for lane, n in waits:
            at = self._lanes.get(lane)  # None: lost since
            if at is not None and at.completed < n:
                return False
        return True

    def _other_lanes(self, lane: int, n: int, waits: tuple[Instruction, ...]) -> tuple[Instruction, ...]:
        for other, m in waits:
            at = self._lanes.get(other)
            if at is None and other not in self._lost:
                raise TrackerError(f"instruction {n} of lane {lane} waits for lane {other}, which {self._fate(other)}")
            if at is not None and not 1 <= m <= at.submitted:
                raise TrackerError(
                    f"instruction {n} of lane {lane} waits for {m} of lane {other}, where {at.submitted} were submitted"
                )
        return tuple(wait for wait in waits if wait[0] != lane)

    def _fate(self, lane: int) -> str:
        return "was lost" if lane in self._lost else "was never opened"


class Hazards:
    """Per buffer that was sent, the recvs that a write to it must wait for: per consumer lane the highest is enough.

    Told of completions and losses like the gate, it forgets what they settle.
    """

    __slots__ = ("_by_buffer", "_by_lane")

    def __init__(self) -> None:
        self._by_buffer: dict[int, dict[int, int]] = {}  # buffer -> lane -> n
        # The same, from the lowest n of each lane, so that a completion touches only what it settles.
        self._by_lane: dict[int, OrderedDict[int, int]] = {}  # lane -> buffer -> n

    @property
    def idle(self) -> bool:
        """No write to any buffer would have to wait."""
        return not self._by_buffer and not self._by_lane

    def sent(self, buffer: int, consumer_lane: int, recv_n: int) -> None:
        """A send of the buffer was issued, and the recv that takes it in."""
        by_buffer = self._by_lane.get(consumer_lane)
        if by_buffer is None:
            by_buffer = self._by_lane[consumer_lane] = OrderedDict()
        elif recv_n <= (last := by_buffer[next(reversed(by_buffer))]):
            raise TrackerError(f"recv {recv_n} of buffer {buffer} noted in lane {consumer_lane} after recv {last}")
        by_buffer[buffer] = recv_n
        by_buffer.move_to_end(buffer)
        self._by_buffer.setdefault(buffer, {})[consumer_lane] = recv_n

    def waits_of_write(self, buffer: int) -> tuple[Instruction, ...]:
        """The recvs that a write to the buffer, or its free, must wait for."""
        recvs = self._by_buffer.get(buffer)
        return tuple(recvs.items()) if recvs else ()

    def freed(self, buffer: int) -> None:
        """The free of the buffer was issued, with its waits: nothing more will name it."""
        for lane in self._by_buffer.pop(buffer, ()):
            by_buffer = self._by_lane[lane]
            del by_buffer[buffer]
            if not by_buffer:
                del self._by_lane[lane]

    def completed(self, lane: int, through: int) -> None:
        """All instructions of the lane up to `through` have finished."""
        by_buffer = self._by_lane.get(lane)
        while by_buffer:
            buffer = next(iter(by_buffer))
            if by_buffer[buffer] > through:
                return
            del by_buffer[buffer]
            self._forget(buffer, lane)
        self._by_lane.pop(lane, None)

    def lost(self, lane: int) -> None:
        """The worker of the lane is gone: it reads nothing any more."""
        for buffer in self._by_lane.pop(lane, ()):
            self._forget(buffer, lane)

    def _forget(self, buffer: int, lane: int) -> None:
        recvs = self._by_buffer[buffer]
        del recvs[lane]
        if not recvs:
            del self._by_buffer[buffer]
