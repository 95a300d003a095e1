"""What a function issued, kept so that gradients can go back over it.

Nothing is added to the way of an operation: while a function is differentiated, its trail is told of each batch that
leaves, and holds back the FREE of the buffers whose values the rules of `gradients.py` will look at.
"""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from ..protocol.accesses import accesses, buffer_of, issue_number, outputs
from ..protocol.messages import CONTROLS, GENERAL, Control, Instruction, Ref
from ..protocol.operations import BY_NUMBER
from ..protocol.specs import Spec
from ..protocol.specs import spec as spec_of
from .array import Array
from .gradients import RULES
from .issue import Handle, handle
from .numbers import Number
from .sites import Site, describe

if TYPE_CHECKING:
    from .lane import Lane
    from .session import Session

ADVICE: Final = "make a new array there instead of writing this one in place, such as x = x * 2 for x *= 2"


class Taken(NamedTuple):
    """One instruction of the trail."""

    lane: Lane
    instruction: Instruction
    site: Site | None
    specs: dict[int, Spec]  # by id


running: list[tuple[int, Trail]] = []  # of functions that are running, each with its thread


def differentiating() -> bool:
    """Whether this thread runs a function whose gradients will be taken."""
    return bool(running) and any(thread == threading.get_ident() for thread, _ in running)


class Trail:
    """What is issued in a session from `begin` to `end`; what of it must be kept, until it is let go.

    It is known by buffers, so that what other threads issue meanwhile does no harm: no gradient reaches that.
    """

    def __init__(self, session: Session, known: Sequence[Handle]) -> None:
        """`known`: arrays that the function is given."""
        self.session = session
        self.instructions: list[Taken] = []
        self.stopped: set[int] = set()  # buffers through which no gradient goes
        self.lanes: dict[int, Lane] = {}  # by buffer
        self._specs: dict[int, Spec] = {}  # by buffer
        self._writes: dict[int, list[tuple[int, Ref]]] = {}  # by buffer: which instructions wrote what of it
        self._next: dict[int, int] = {}  # by lane: the first instruction that is not taken yet
        self._needed: set[int] = set()  # buffers whose values a rule may look at
        self._held: dict[int, Lane] = {}  # those of them whose last handle has gone
        self._from: int | None = None  # how far the tape is taken in, if the function is being captured
        self._ended = False
        for array in known:
            self._meet(array)

    def _meet(self, array: Handle) -> None:
        root = array if array._base is None else array._base
        if type(root._ref) is int:
            self._specs[root._ref], self.lanes[root._ref] = root._spec, root._lane

    # -- while the function runs, and until it is let go

    def begin(self) -> None:
        session = self.session
        if session.taping():
            assert session.tape is not None
            self._from = len(session.tape.instructions)
            return
        with session.lock:
            for lane in session.lanes:
                self._next[lane.index] = lane.first + sum(map(_numbers, lane.batch))
            session.trails = (*session.trails, self)

    def sent(self, lane: Lane) -> None:
        """A lane is about to send its batch. The session's lock is held."""
        n, wanted = lane.first, self._next.get(lane.index, 1)
        for instruction in lane.batch:
            if n >= wanted:
                site = lane.sites[n - lane.first] if n - lane.first < len(lane.sites) else None
                self._take(Taken(lane, instruction, site, lane.known))
            n += _numbers(instruction)
        self._next[lane.index] = n

    def keep(self, buffers: list[int]) -> list[int]:
        """Of a lane's dropped buffers those that may go. The session's lock is held."""
        self._catch_up()
        mine = self._needed.intersection(buffers)
        self._held.update((buffer, self.lanes[buffer]) for buffer in mine)
        return [buffer for buffer in buffers if buffer not in mine] if mine else buffers

    def _catch_up(self) -> None:
        if self._from is None:
            for lane in self.session.lanes:
                self.sent(lane)
            return
        tape = self.session.tape
        assert tape is not None
        for (index, instruction), site in zip(tape.instructions[self._from :], tape.sites[self._from :], strict=True):
            self._take(Taken(self.session.lanes[index], instruction, site, tape.specs))
        self._from = len(tape.instructions)

    def _take(self, taken: Taken) -> None:
        if self._ended:
            if any(buffer_of(ref) in self._needed for ref in written(taken.instruction)):
                self.instructions.append(taken)
                self._note_writes(len(self.instructions) - 1, taken)
            return
        self.instructions.append(taken)
        code = taken.instruction[0]
        rule = RULES.get(code // 4) if code >= CONTROLS else None
        if rule is not None:
            reads, writes = accesses(taken.instruction)
            looks = (*(reads if rule.operands else ()), *(writes if rule.result else ()))
            self._needed.update(looks)
            self.lanes.update(dict.fromkeys(looks, taken.lane))

    def _note_writes(self, at: int, taken: Taken) -> None:
        for ref in written(taken.instruction):
            self._writes.setdefault(buffer_of(ref) or 0, []).append((at, ref))

    def end(self) -> None:
        """The function has returned: put what it issued in order."""
        self.catch_up()
        self._ended = True
        if self._from is None:
            self.instructions = sorted(filter(_order, self.instructions), key=_order)
        for at, taken in enumerate(self.instructions):
            for buffer, id in outputs(taken.instruction):
                self.lanes[buffer] = taken.lane
                if id >= 0:
                    self._specs[buffer] = taken.specs[id]
            self._note_writes(at, taken)

    def catch_up(self) -> None:
        """Take in what was issued up to now."""
        with self.session.lock:
            self._catch_up()

    def need(self, buffers: set[int]) -> None:
        """Of what is kept only these are needed, as it has turned out."""
        self.release(self._needed - buffers)

    def release(self, buffers: Iterable[int]) -> None:
        """The values of these are not needed any more."""
        with self.session.lock:
            self._needed.difference_update(buffers)
            for buffer in buffers:
                lane = self._held.pop(buffer, None)
                if lane is not None:
                    lane.dropped.append(buffer)

    def let_go(self) -> None:
        """Nothing of it is needed any more."""
        with self.session.lock:
            self.session.trails = tuple([each for each in self.session.trails if each is not self])
        self.release(list(self._held))
        self._needed.clear()

    # -- looking back

    def spec(self, ref: Ref) -> Spec | None:
        """The spec of what a reference stands for; None for a scalar."""
        if type(ref) is int:
            found = self._specs.get(ref)
            if found is None:
                self._search()
                found = self._specs.get(ref)
            if found is None:
                raise RuntimeError("an array was made before the function was called, and dropped in it: keep it")
            return found
        if type(ref) is tuple and len(ref) == 5:
            return spec_of(tuple(ref[2]), np.dtype(ref[4]), tuple(ref[3]))
        return None

    def _search(self) -> None:
        """Look for arrays that the function uses and was not given, among all that there are."""
        for each in gc.get_objects():
            if isinstance(each, Handle):
                with contextlib.suppress(AttributeError):  # one that is being made
                    if each._lane.session is self.session:
                        self._meet(each)

    def lane_of(self, ref: Ref, default: Lane) -> Lane:
        return self.lanes.get(buffer_of(ref) or 0, default)

    def value(self, ref: Ref, at: int, lane: Lane) -> Any:
        """What a reference on this lane stood for behind instruction `at`.

        Raises:
            RuntimeError: it was overwritten since.
        """
        buffer = None if isinstance(ref, Number) else buffer_of(ref)
        if buffer is None:
            return _scalar(ref)
        for written_at, what in self._writes.get(buffer, ()):
            if written_at > at and overlap(ref, what):
                raise RuntimeError(
                    f"a gradient needs what an array held before it was overwritten at "
                    f"{describe(self.instructions[written_at].site)}: {ADVICE}"
                )
        spec = self.spec(ref)
        assert spec is not None
        return lent(lane, ref, spec, self._specs.get(buffer, spec))


class _Lent(Array):
    """The handle of a buffer that somebody else frees."""

    __slots__ = ()

    def __del__(self) -> None:
        pass


def lent(lane: Lane, ref: Ref, spec: Spec, whole: Spec) -> Any:
    """A handle that frees nothing; `whole` is the spec of all of the buffer."""
    return handle(Array, lane, ref, spec, handle(_Lent, lane, buffer_of(ref) or 0, whole))


def _numbers(instruction: Instruction) -> int:
    """How many numbers of its lane an instruction takes."""
    return int(instruction[5]) if instruction[0] == Control.RUN else 1


def _order(taken: Taken) -> tuple[int, ...]:
    """Grows in the order of issue over all lanes; nothing for what no gradient is concerned with."""
    instruction = taken.instruction
    if instruction[0] == Control.RUN:
        instruction = (Control.RECV, instruction[2])  # numbered likewise
    number = issue_number(instruction)
    return (number, instruction[0] == Control.RECV) if number else ()


def written(instruction: Instruction) -> list[Ref]:
    """What an instruction writes, views as such."""
    found: list[Ref] = [buffer for buffer, _ in outputs(instruction)]
    if instruction[0] >= CONTROLS and instruction[0] % 4 == GENERAL:
        _, _, _, operands, _, into = instruction
        found += [operands[place] for place in BY_NUMBER[instruction[0] // 4].writes]
        if into is not None:
            found.append(into)
    return found


def overlap(one: Ref, other: Ref) -> bool:
    """Whether two references to one buffer may have bytes in common."""
    if type(one) is int or type(other) is int:
        return True
    (low, high), (start, stop) = _span(one), _span(other)
    return low < stop and start < high


def _span(view: Any) -> tuple[int, int]:
    """From which byte to which a view reaches."""
    _, offset, shape, strides, dtype = view
    if 0 in shape:
        return offset, offset
    ends = [(extent - 1) * stride for extent, stride in zip(shape, strides, strict=True)]
    low = offset + sum([end for end in ends if end < 0])
    return low, offset + sum([end for end in ends if end > 0]) + np.dtype(dtype).itemsize


def _scalar(ref: Any) -> Any:
    if isinstance(ref, Number):
        return ref
    return ref[0] if len(ref) == 1 else np.frombuffer(ref[1], ref[0])[0]
