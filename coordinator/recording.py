"""Recording: instructions are taken down instead of being sent, and made into one template for each lane.

A `Tape` diverts what its thread issues; other threads go on as before. `Recording` is what comes of it: what each
worker does in a run, what a run must bring along, and how its results are found.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ..protocol.accesses import outputs
from ..protocol.errors import InterlockError
from ..protocol.messages import CONTROLS, GENERAL, NEXT_OUTPUT, TICKET_BITS, Control, Instruction, Ref
from ..protocol.operations import BY_NUMBER
from ..protocol.recordings import MOST_MADE, NUMBER, Binding, Template, made, outputs_of, refs_of, rewritten, slot_of
from ..protocol.specs import Spec
from .chains import Chain, find_chains
from .infer import GENERATOR, scalar_ref
from .issue import Handle
from .joins import find_joins, without
from .lives import replaced
from .numbers import Number
from .plan import Temporary, plan
from .sites import Site, describe

if TYPE_CHECKING:
    from .lane import Lane
    from .session import Session

_get_ident = threading.get_ident


class CaptureError(InterlockError):
    """A function does what cannot be replayed; the text says what, and what to do instead."""


class Taken(NamedTuple):
    """One instruction on the tape."""

    lane: int
    instruction: Instruction
    site: Site | None


class _Batch(list[Any]):
    """A lane's batch while a tape runs: what its thread appends goes onto the tape."""

    def __init__(self, tape: Tape, lane: Lane, items: Iterable[Any] = ()) -> None:
        super().__init__(items)
        self.tape = tape
        self.lane = lane

    def append(self, instruction: Instruction) -> None:
        if _get_ident() == self.tape.thread:
            self.tape.take(self.lane, instruction)
        else:
            list.append(self, instruction)


class _Sites(list[Any]):
    """The sites of the same."""

    def __init__(self, tape: Tape, items: Iterable[Any] = ()) -> None:
        super().__init__(items)
        self.tape = tape

    def append(self, site: Site | None) -> None:
        if _get_ident() == self.tape.thread:
            self.tape.sites.append(site)
        else:
            list.append(self, site)


class Tape:
    """What one thread issues in a session from `begin` to `end`."""

    def __init__(self, session: Session, arrays: list[Handle], name: str) -> None:
        """`arrays` are those that the function is given; any other is refused where it is used."""
        self.session = session
        self.thread = _get_ident()
        self.name = name
        self.instructions: list[tuple[int, Instruction]] = []
        self.sites: list[Site | None] = []
        self.made: dict[int, int] = {}  # buffer -> which instruction
        self.gone: set[int] = set()  # made here, and their handles have gone
        self.pins: set[int] = set()
        self.specs: dict[int, Spec] = {}
        self.refusal: CaptureError | None = None  # the first: the function may have caught it
        self._given = {buffer_of(array._ref) for array in arrays}

    def begin(self) -> None:
        with self.session.lock:
            self.session.tape = self
            for lane in self.session.lanes:
                lane.batch, lane.sites = _Batch(self, lane, lane.batch), _Sites(self, lane.sites)

    def end(self) -> None:
        with self.session.lock:
            try:
                self._look_for_dropped()
                for lane in self.session.lanes:
                    lane.batch, lane.sites = list(lane.batch), list(lane.sites)
            finally:  # Ctrl-C, too: lists that still divert divert nothing once the thread is nobody's
                self.thread = 0
                self.session.tape = None

    def dropped(self, buffers: list[int]) -> list[int]:
        """Those of a lane's dropped buffers that are its worker's: those made on the tape never were."""
        self.gone.update(buffer for buffer in buffers if buffer in self.made)
        return [buffer for buffer in buffers if buffer not in self.made]

    def _look_for_dropped(self) -> None:
        # The lists stay where they are, as finalisers add to them at any moment.
        for lane in self.session.lanes:
            for _ in range(len(lane.dropped)):  # each is in the list or noted at any moment: Ctrl-C loses none
                if lane.dropped[0] in self.made:
                    self.gone.add(lane.dropped[0])
                    lane.dropped.popleft()
                else:
                    lane.dropped.rotate(-1)

    def lists(self, lane: Lane) -> tuple[list[Any], list[Any]]:
        """New empty ones for a lane that has just sent its batch."""
        return _Batch(self, lane), _Sites(self)

    def take(self, lane: Lane, instruction: Instruction) -> None:
        """An instruction was issued."""
        for ref in refs_of(instruction):
            buffer = buffer_of(ref)
            if buffer is not None and buffer not in self.made and buffer not in self._given:
                raise self._refused(
                    f"{self.name} uses an array that it is not given: while it is captured, arrays come as arguments, "
                    f"or from the variables that it reads itself; pass this one as an argument"
                )
        place = len(self.instructions)
        for buffer, id in outputs(instruction):
            self.made[buffer] = place
            self.specs[id] = lane.known[id]
        self.instructions.append((lane.index, instruction))

    def slots(self) -> dict[int, int]:
        """A slot for each buffer that was made; they count from 1."""
        return {buffer: slot for slot, buffer in enumerate(self.made, 1)}

    def refuse(self, what: str) -> None:
        """Raise for something that cannot be recorded."""
        raise self._refused(f"{what} while {self.name} is captured: {_INSTEAD[what]}")

    def _refused(self, text: str) -> CaptureError:
        error = CaptureError(text)
        if self.refusal is None:
            self.refusal = error
        return error

    def escaped(self) -> str | None:
        """The line that made an array which is still held by now; None if there is none."""
        with self.session.lock:
            self._look_for_dropped()
        alive = [buffer for buffer in self.made if buffer not in self.gone]
        return describe(self.sites[self.made[alive[0]]]) if alive else None


_INSTEAD: Final = {
    "a worker is restarted": "do it outside",
    "a shape that depends on values is needed": "replace the masked selection or the call that makes it, for example "
    "by where(mask, x, y), or do it outside and pass the result",
    "a value is read": "return the array and read it outside, or pass the number as an argument",
    "arrays are saved": "return them and save them outside",
    "a file is loaded": "load it outside, and pass the arrays as arguments",
    "a NumPy array is sent to a device": "make it with interlock.asarray outside, and pass it as an argument",
}


def buffer_of(ref: Ref) -> int | None:
    """The buffer behind an operand on the tape; None for a scalar."""
    if type(ref) is int:
        return ref
    return ref[0] if type(ref) is tuple and len(ref) == 5 else None


class Part(NamedTuple):
    """What one lane has of a recording."""

    lane: int
    template: Template
    bindings: tuple[tuple[int, bool], ...]  # (which array among the arguments, whether it is a whole buffer)
    numbers: tuple[Number, ...]
    sites: tuple[Site | None, ...]
    weight: int  # bytes of large results
    large: tuple[tuple[int, Site | None], ...]  # (number from a run's base, line) of those that outlive a run


class Recording:
    """A captured function's instructions under one key."""

    def __init__(self, tape: Tape, arrays: list[Handle], results: set[int], big: int) -> None:
        """`results` are buffers, made on the tape or given, that outlive the run; `big`: from how many bytes on."""
        self.session = tape.session
        self.id = next(tape.session.recordings)
        self.slots = tape.slots()
        if len(self.slots) > MOST_MADE:
            raise CaptureError(
                f"{tape.name} makes {len(self.slots)} arrays, and a recording may make {MOST_MADE}: capture parts of it"
            )
        self._arrays = arrays
        self._groups = _groups(arrays)
        taken = [Taken(lane, each, site) for (lane, each), site in zip(tape.instructions, tape.sites, strict=True)]
        bindings: dict[int, dict[int, int]] = {}  # lane -> group -> place among its bindings
        numbers: dict[int, list[Number]] = {}
        self.issued = [
            Taken(
                each.lane,
                self._relative(each.instruction, bindings.setdefault(each.lane, {}), numbers.setdefault(each.lane, [])),
                each.site,
            )
            for each in taken
        ]
        self.specs = tape.specs
        kept = {self.slots[buffer] for buffer in results if buffer in self.slots}
        self.parts = [
            self._part(lane, kept, tuple(bindings[lane]), tuple(numbers[lane]), big) for lane in sorted(bindings)
        ]
        self._arrays = []  # they are the user's

    # -- making

    def _relative(self, instruction: Instruction, bindings: dict[int, int], numbers: list[Number]) -> Instruction:
        """The instruction with slots."""

        def ref(operand: Any) -> Ref:
            if isinstance(operand, Number):
                numbers.append(operand)
                return (NUMBER, len(numbers) - 1, 0)
            buffer = buffer_of(operand)
            if buffer is None:
                return operand  # type: ignore[no-any-return]
            slot = self.slots.get(buffer)
            if slot is not None:
                return slot if type(operand) is int else (slot, *operand[1:])
            group, start = self._groups[buffer]
            place = -1 - bindings.setdefault(group, len(bindings))
            if type(operand) is int:
                if start is not None:
                    raise CaptureError("an array is used of which the captured function is given only a view: pass it")
                return place
            return (place, operand[1] - (start or 0), *operand[2:])

        return rewritten(
            instruction,
            ref,
            lambda buffer: self.slots.get(buffer, 0),
            lambda ticket: (
                ((ticket >> TICKET_BITS) << TICKET_BITS) + self.slots[ticket & ((1 << TICKET_BITS) - 1)] * NEXT_OUTPUT
            ),
        )

    def _part(self, lane: int, kept: set[int], groups: tuple[int, ...], numbers: tuple[Number, ...], big: int) -> Part:
        mine = _early_sends([each for each in self.issued if each.lane == lane])
        mine = _without_joins(_late_receives(mine), self.specs, kept)
        given = {-1 - place: self._arrays[group]._spec for place, group in enumerate(groups)}
        life = _Lives(mine, self.specs, given, kept)
        mine, moved = _with_frees(mine, life)
        temporaries = []
        inner = set()
        for slot, (at, id) in life.made.items():
            spec = self.specs[id]
            if slot in kept or slot in life.lent or spec is GENERATOR:
                continue
            nbytes, chain = spec.nbytes, life.inside(slot)
            if chain is not None and chain.rows < spec.shape[0]:
                inner.add(slot)
                nbytes = spec.nbytes // spec.shape[0] * chain.rows
            instead = _instead(mine[moved[at]].instruction, at, spec, self.specs, life)
            temporaries.append(Temporary(slot, nbytes, moved[at], moved[life.end(slot)], instead))
        places, planned = plan(sorted(temporaries, key=lambda each: each.first))
        used = {id for _, id in life.made.values()}
        specs = tuple([(id, s.shape, s.dtype.str, s.strides) for id in sorted(used) if (s := self.specs[id])])
        template = Template(
            specs,
            tuple([spec.shape for spec in given.values()]),
            tuple([each.instruction for each in mine]),
            tuple(sorted(slot for slot in kept if slot in life.made)),
            tuple(places.items()),
            planned,
            tuple([(moved[start], moved[start] + stop - start, rows) for start, stop, rows in life.chains]),
            tuple(sorted(inner)),
            tuple(_donated(life, given, kept, self.specs)),
        )
        bindings = tuple([self._binding(group) for group in groups])
        nbytes_of = [self.specs[id].nbytes for slot, (_, id) in life.made.items() if slot not in places]
        weight = sum(nbytes for nbytes in nbytes_of if nbytes >= big)
        large = tuple(
            [
                (made(0, slot), mine[moved[at]].site)
                for slot, (at, id) in life.made.items()
                if slot in kept and self.specs[id].nbytes >= big
            ]
        )
        return Part(lane, template, bindings, numbers, tuple([each.site for each in mine]), weight, large)

    def _binding(self, group: int) -> tuple[int, bool]:
        for place, start in self._groups.values():
            if place == group:
                return group, start is None
        raise AssertionError(group)

    # -- running

    def bindings(self, part: Part, arrays: list[Handle]) -> tuple[Binding, ...]:
        """Where the arrays of this run lie that a lane is given."""
        return tuple(
            [
                arrays[place]._ref if whole else arrays[place]._ref[:2]  # type: ignore[index]
                for place, whole in part.bindings
            ]
        )

    def outdated(self) -> bool:
        """Whether no run of it can come any more: the session is closed, or a worker was replaced."""
        session = self.session
        return session.closed or any(replaced(session.lanes[part.lane]) for part in self.parts)

    def difference(self, other: Recording) -> str | None:
        """The first instruction in which another recording of the same function differs, in words."""
        for one, two in zip(self.issued, other.issued, strict=False):
            if (one.lane, repr(one.instruction)) != (two.lane, repr(two.instruction)):
                before, now = describe(one.site), describe(two.site)
                if before == now:
                    return f"other operands, or another device, at {now}"
                return f"{before} before, {now} now"
        if len(self.issued) != len(other.issued):
            return f"{len(self.issued)} instructions before, {len(other.issued)} now"
        for part, theirs in zip(self.parts, other.parts, strict=True):
            if [each.expression() for each in part.numbers] != [each.expression() for each in theirs.numbers]:
                return "what it computes of the numbers that it is given is something else"
        return None


def _groups(arrays: list[Handle]) -> dict[int, tuple[int, int | None]]:
    """By buffer: the array that stands for it, and from where its offsets count (None: it is the whole buffer)."""
    groups: dict[int, tuple[int, int | None]] = {}
    for place, array in enumerate(arrays):
        ref = array._ref
        if type(ref) is int:
            groups[ref] = (place, None)
        else:
            groups.setdefault(ref[0], (place, ref[1]))  # type: ignore[index]
    return groups


def _early_sends(mine: list[Taken]) -> list[Taken]:
    """Each send directly behind what wrote its array last, so that it waits for nothing else."""
    written: dict[int, int] = {}  # slot -> the last instruction so far that writes it
    behind: dict[int, list[Taken]] = {}
    for at, each in enumerate(mine):
        if each.instruction[0] == Control.SEND:
            behind.setdefault(written.get(slot_of(each.instruction[1]), -1), []).append(each)
        for slot in _written(each.instruction):
            written[slot] = at
    order = behind.get(-1, [])
    for at, each in enumerate(mine):
        if each.instruction[0] != Control.SEND:
            order.append(each)
        order += behind.get(at, ())
    return order


def _written(instruction: Instruction) -> list[int]:
    """The slots that an instruction makes or changes."""
    slots = [slot for slot, _ in outputs_of(instruction)]
    if instruction[0] >= CONTROLS and instruction[0] % 4 == GENERAL:
        _, _, _, operands, _, into = instruction
        slots += [slot_of(operands[place]) for place in BY_NUMBER[instruction[0] // 4].writes]
        if into is not None:
            slots.append(slot_of(into))
    return slots


def _late_receives(mine: list[Taken]) -> list[Taken]:
    """Each receive directly before what needs it first, so that nothing else waits for its ticket."""
    waiting: dict[int, Taken] = {}
    order: list[Taken] = []
    for each in mine:
        if each.instruction[0] == Control.RECV:
            waiting[each.instruction[1]] = each
            continue
        for operand in refs_of(each.instruction):
            received = waiting.pop(buffer_of(operand) or 0, None)
            if received is not None:
                order.append(received)
        order.append(each)
    return order + list(waiting.values())


class _Lives:
    """When each slot of a lane is made and used for the last time, and what may be computed in stretches of rows."""

    def __init__(self, mine: list[Taken], specs: dict[int, Spec], given: dict[int, Spec], kept: set[int]) -> None:
        """`given`: the specs of the arrays that the lane is given, by slot."""
        self.made: dict[int, tuple[int, int]] = {}  # slot -> (which instruction, spec)
        self.last: dict[int, int] = {}
        self.lent: set[int] = set()  # sent from here, or received: their memory is theirs alone
        for at, (_, instruction, _) in enumerate(mine):
            for slot, id in outputs_of(instruction):
                self.made[slot] = (at, id)
                self.last[slot] = at
            for operand in refs_of(instruction):
                slot = slot_of(operand)
                if slot > 0:
                    self.last[slot] = at
                    if instruction[0] == Control.SEND:
                        self.lent.add(slot)
            if instruction[0] == Control.RECV:
                self.lent.add(instruction[1])
        self.kept = kept
        self.instructions = [each.instruction for each in mine]

        def shape_of(ref: Ref) -> tuple[tuple[int, ...], int] | None:
            slot = slot_of(ref)
            if slot == 0:
                return None
            if type(ref) is int:
                spec = given[slot] if slot < 0 else specs[self.made[slot][1]]
                return spec.shape, spec.dtype.itemsize
            return tuple(ref[2]), int(ref[4][2:])  # type: ignore[index]

        self.chains = find_chains(self.instructions, shape_of)

    def chain(self, at: int) -> Chain | None:
        """The chain that an instruction belongs to."""
        return next((chain for chain in self.chains if chain.start <= at < chain.stop), None)

    def end(self, slot: int) -> int:
        """The last instruction during which the slot is needed: a chain is all at once."""
        chain = self.chain(self.last[slot])
        return self.last[slot] if chain is None else chain.stop - 1

    def inside(self, slot: int) -> Chain | None:
        """The chain within which a slot is made and used, and nowhere else."""
        chain = self.chain(self.made[slot][0])
        return chain if chain is not None and self.last[slot] < chain.stop else None


def _instead(instruction: Instruction, at: int, spec: Spec, specs: dict[int, Spec], life: _Lives) -> int:
    """An operand whose place the result may take: its last use, the same layout, element by element."""
    if not _by_element(instruction):
        return 0
    operands = [each for each in refs_of(instruction) if slot_of(each)]
    for operand in operands:
        if type(operand) is not int or operand <= 0 or life.last[operand] != at or operand in life.lent:
            continue
        chain = life.chain(at)
        meanwhile = [instruction] if chain is None else life.instructions[chain.start : chain.stop]
        # Where it is looked at in another way, what is written there would be seen.
        others = [ref for each in meanwhile for ref in refs_of(each) if slot_of(ref) == operand and ref != operand]
        if operand not in life.kept and specs[life.made[operand][1]] is spec and not others:
            return operand
    return 0


def _by_element(instruction: Instruction) -> bool:
    """Whether each element of the result needs the operands' elements of its own place alone."""
    if instruction[0] < CONTROLS:
        return False
    operation = BY_NUMBER[instruction[0] // 4]
    return operation.plain and operation.name != "matmul"


def _donated(life: _Lives, given: dict[int, Spec], kept: set[int], specs: dict[int, Spec]) -> Iterator[tuple[int, int]]:
    """Kept results that may take the memory of an array which the lane is given and needs no more by then.

    Whether the program still holds that array is known only in a run. Its last use may be the very instruction that
    makes the result if that goes element by element, or one before in the same chain, where both go row by row.
    """
    last: dict[int, int] = {}
    refs: dict[int, set[Ref]] = {}
    for at, instruction in enumerate(life.instructions):
        for ref in refs_of(instruction):
            last[slot_of(ref)] = at
            refs.setdefault(slot_of(ref), set()).add(ref)
    free = {slot: spec for slot, spec in given.items() if refs[slot] == {slot}}  # never looked at in another way
    for slot, (at, id) in life.made.items():
        if slot not in kept or slot in life.lent:
            continue
        by_element = _by_element(life.instructions[at])
        for donor, spec in free.items():
            if spec is specs[id] and spec is not GENERATOR and (last[donor] < at or (last[donor] == at and by_element)):
                del free[donor]
                yield slot, donor
                break


def _without_joins(mine: list[Taken], specs: dict[int, Spec], kept: set[int]) -> list[Taken]:
    """With the parts of concatenations written in place."""
    while joins := find_joins([each.instruction for each in mine], specs, kept):
        join = joins[0]
        site = mine[join.at].site
        sites = [each.site for each in mine]
        sites.insert(join.first, site)
        changed = without(join, [each.instruction for each in mine], specs)
        mine = [
            Taken(mine[0].lane, instruction, where)
            for instruction, where in zip(changed, sites, strict=True)
            if instruction is not None
        ]
    return mine


def _with_frees(mine: list[Taken], life: _Lives) -> tuple[list[Taken], dict[int, int]]:
    """With a free after the last use of each slot; and where each instruction has come to stand."""
    ending: dict[int, list[int]] = {}
    for slot in life.last:
        if slot not in life.kept:
            ending.setdefault(life.end(slot), []).append(slot)
    order: list[Taken] = []
    moved: dict[int, int] = {}
    for at, each in enumerate(mine):
        moved[at] = len(order)
        order.append(each)
        if at in ending:
            order.append(Taken(each.lane, (Control.FREE, *ending[at]), each.site))
    return order, moved


def number_refs(numbers: tuple[Number, ...], arguments: list[Any]) -> tuple[Ref, ...]:
    """The numbers of a run, as instructions carry them."""
    found = []
    for number in numbers:
        value = number.evaluate(arguments)
        if type(value) is not type(number.value):
            raise TypeError("another type")
        found.append(scalar_ref(value))
    return tuple(found)  # type: ignore[arg-type]
