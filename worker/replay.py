"""Runs of recordings on a worker: a lane's part of a captured function, made ready once and carried out many times.

What a run does is what its instructions do in their order, as `protocol/recordings.py` binds them; that is how a
device with queues runs them, and how any run goes on once an operand has failed. Where kernels run inline there is a
short way with the same results: operands are places in one list, temporaries lie in memory planned for them, and a
step is one call. Either way a run stops where a ticket has not come yet, and goes on later from there.
"""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from ..protocol.accesses import recording_buffer
from ..protocol.errors import OutOfDeviceMemory
from ..protocol.messages import CONTROLS, GENERAL, SCALAR_LEFT, SCALAR_RIGHT, Control, Instruction
from ..protocol.operations import BY_NUMBER, Operation
from ..protocol.recordings import Binding, Template, bind, bound, made, outputs_of, refs_of, slot_of
from ..protocol.specs import Spec, dtype_of
from ..protocol.specs import spec as spec_of
from .buffers import Store
from .devices.base import Device
from .kernels import decode_operand, kernel, prepared
from .transfers import Transfers

Step = Callable[[], object]


class Program:
    """A recording's part on this worker."""

    def __init__(
        self, recording: int, template: Template, device: Device, store: Store, transfers: Transfers, short: bool
    ) -> None:
        """`short`: runs may take the short way."""
        self.template = template
        self.specs: dict[int, Spec] = {}
        for id, shape, dtype, strides in template.specs:
            self.specs[id] = spec_of(tuple(shape), dtype_of(dtype), tuple(strides))
        self.count = len(template.instructions)
        reads: set[int] = set()
        writes: set[int] = set()
        for instruction in template.instructions:
            for slot, written in _slots(instruction):
                if slot < 0:
                    (writes if written else reads).add(-1 - slot)
        self._reads, self._writes = sorted(reads), sorted(writes)
        self._order = recording_buffer(recording)
        self.sends = any(each[0] == Control.SEND for each in template.instructions)
        # By position: the ticket (relative to the run) that the instruction there takes, and from which lane.
        self.tickets = {
            at: (each[3], each[4]) for at, each in enumerate(template.instructions) if each[0] == Control.RECV
        }
        self._device, self._store, self.transfers = device, store, transfers
        self._fast: FastProgram | None = None
        self.under_way = False  # a run is on the short way
        self._tried = not short

    def accesses(self, run: Instruction) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """(read, written) buffers of a run; what it changes in part is in both."""
        _, _, base, bindings, *_ = run
        names = [each if type(each) is int else each[0] for each in bindings]
        writes = [names[place] for place in self._writes]
        writes += [made(base, slot) for slot in self.template.kept]
        return tuple([names[place] for place in (*self._reads, *self._writes)]), (*writes, self._order)

    def fast(self) -> FastProgram | None:
        """The short way, if there is one here."""
        if not self._tried:
            self._tried = True
            while self._fast is None:
                try:
                    self._fast = FastProgram(self, self._device, self._store, self.transfers)
                except OutOfDeviceMemory:
                    if not self._store.make_room():
                        break  # runs allocate as they go: what does not fit fails
        return self._fast

    def give_up(self) -> bool:
        """Let go of the memory planned for temporaries, unless a run needs it; the next one has it made again."""
        if self._fast is None or self.under_way:
            return False
        self.close()
        self._tried = False
        return True

    @property
    def planned(self) -> int:
        """Bytes that are kept for its temporaries now."""
        return 0 if self._fast is None else self.template.planned

    def close(self) -> None:
        if self._fast is not None:
            self._fast.close()
            self._fast = None


class Run:
    """One run under way: how far it has come."""

    __slots__ = (
        "at", "base", "bindings", "doomed", "dropped", "first", "handed_out", "numbers", "over", "program", "started",
        "swift",
    )  # fmt: skip

    def __init__(self, program: Program, n: int, run: Instruction, doomed: tuple[int, ...] = ()) -> None:
        """`doomed`: buffers that are dropped right behind it."""
        self.program = program
        self.doomed = doomed
        self.first = n
        _, _, self.base, self.bindings, self.numbers, _ = run
        self.at = 0  # the next instruction
        self.started = False
        self.swift: FastProgram | None = None  # the short way, while the run is on it
        self.over = False
        self.dropped: bool | None = None  # computes nothing, as the program was interrupted; None: it may still be
        self.handed_out = False  # it was parked, and all that it must follow is done

    def instruction(self, at: int) -> Instruction:
        """The instruction there, as this run carries it out."""
        return bind(self.program.template.instructions[at], self.base, self.bindings, self.numbers)

    def missing(self) -> bool:
        """Whether the next instruction has to wait for a ticket."""
        wanted = self.program.tickets.get(self.at)
        return wanted is not None and not self.program.transfers.has(self.base + wanted[0], wanted[1])

    def waits(self, executor: Executor) -> bool:
        """Whether the next instruction has to wait for a ticket; if it need not, the ticket is taken."""
        wanted = self.program.tickets.get(self.at)
        if wanted is None:
            return False
        ticket = self.base + wanted[0]
        if not self.program.transfers.has(ticket, wanted[1]):
            return True
        executor.take_of_run(ticket)
        return False


class FastProgram:
    """The short way through a recording on an inline device.

    Its results, bits and layouts, are those of the instructions one by one. What it leaves out, and why it may:
    - no names for temporaries: nobody outside the run can ask for them;
    - no look-ups of memory for these either: they lie at planned places of one block, written again in every run.
      That is safe as they are never lent: what is sent, or kept after the run, has memory of its own in each run;
    - no check whether operands failed: an exception tells, and the run goes on one instruction at a time from there.
    """

    def __init__(self, program: Program, device: Device, store: Store, transfers: Transfers) -> None:
        self._program = program
        self._device, self._store, self._transfers = device, store, transfers
        template = program.template
        self._values: list[Any] = []  # what steps work on, by place
        self._places: dict[Any, int] = {}  # reference in the template -> its place in values
        self._of_slot: dict[int, list[tuple[int, Any]]] = {}  # slot -> (place, view or None) of all that look into it
        self._numbers: list[tuple[int, int]] = []  # (place, which number)
        self._roots: list[Any] = [None] * len(template.given)  # what each binding was in the last run
        self._offsets: list[int] = [0] * len(template.given)
        self._donated = dict(template.donated)
        self.base = 0
        self.doomed: tuple[int, ...] = ()
        self.bindings: tuple[Binding, ...] = ()
        self._planned = dict(template.places)
        self._inner = {slot: self._rows_of(slot) for slot in template.inner}
        self._layouts: dict[int, Spec] = {}
        self._block: Any = device.alloc(template.planned) if template.planned else None
        for instruction in template.instructions:
            self._note_layouts(instruction)
        steps: list[tuple[int, Step]] = []  # with the place of its (first) instruction
        ends = {start: (stop, rows) for start, stop, rows in template.chains}
        at = 0
        while at < program.count:
            stop, rows = ends.get(at, (at + 1, 0))
            step = self._chain(at, stop, rows) if rows else self._step(template.instructions[at])
            if step is not None:
                steps.append((at, step))
            at = stop
        # From the beginning, and from wherever a ticket is taken: the steps until the next such place.
        stops = sorted({0, *program.tickets, program.count})
        self.until = {
            start: (stop, [(at, step) for at, step in steps if start <= at < stop])
            for start, stop in itertools.pairwise(stops)
        }
        self._chains = {start: stop for start, stop, _ in template.chains}

    def close(self) -> None:
        self.until.clear()
        self._values.clear()
        self._roots.clear()
        if self._block is not None:
            self._device.retire(self._block)
            self._block = None

    # -- a run

    def begin(self, run: Run) -> None:
        """Take in what this run is given.

        Raises:
            Unavailable: one of its inputs has failed.
        """
        self.base, self.bindings, self.doomed = run.base, run.bindings, run.doomed
        arrays, roots, offsets = self._store.arrays, self._roots, self._offsets
        for place, binding in enumerate(run.bindings):
            if type(binding) is int:
                root, offset = arrays[binding], 0
            else:
                root, offset = arrays[binding[0]], binding[1]
            if root is not roots[place] or offset != offsets[place]:
                roots[place], offsets[place] = None, offset
                self._look_again(-1 - place)
                roots[place] = root
        for place, number in self._numbers:
            self._values[place] = decode_operand(run.numbers[number])

    def keep(self, run: Run, at: int) -> None:
        """Name the temporaries that are there before instruction `at`: from there on, one instruction at a time."""
        there: set[int] = set()
        # In a chain nothing of its own can be told apart: rows of all its results are there.
        for instruction in self._program.template.instructions[:at]:
            there.update(slot for slot, _ in outputs_of(instruction) if slot in self._planned)
            if instruction[0] == Control.FREE:
                there.difference_update(instruction[1:])
        for slot in there - self._inner.keys():
            self._store.arrays[made(run.base, slot)] = self._planned_array(slot, None)

    def after(self, at: int) -> int:
        """Behind the last instruction of the step at this place."""
        return self._chains.get(at, at + 1)

    # -- making ready

    def _note_layouts(self, instruction: Instruction) -> None:
        for slot, id in outputs_of(instruction):
            self._layouts[slot] = self._program.specs[id]

    def _place(self, ref: Any) -> int:
        """Where in `values` an operand is; a scalar stands there for good."""
        kind = type(ref)
        if kind is int or len(ref) == 5:
            found = self._places.get(ref)
            if found is None:
                found = self._places[ref] = len(self._values)
                self._values.append(None)
                slot, view = (ref, None) if kind is int else (ref[0], (*ref[1:4], dtype_of(ref[4])))
                self._of_slot.setdefault(slot, []).append((found, view))
                if slot in self._planned:
                    self._values[found] = self._planned_array(slot, view)
            return found
        self._values.append(None)
        place = len(self._values) - 1
        if len(ref) == 3:
            self._numbers.append((place, ref[1]))
        else:
            self._values[place] = decode_operand(ref)
        return place

    def _planned_array(self, slot: int, view: Any) -> Any:
        at, spec = self._planned[slot], self._layouts[slot]
        if slot in self._inner:
            return self._device.view(self._block, (self._inner[slot], *spec.shape[1:]), spec.dtype, at, spec.strides)
        if view is None:
            return self._device.view(self._block, spec.shape, spec.dtype, at, spec.strides)
        offset, shape, strides, dtype = view
        return self._device.view(self._block, shape, dtype, at + offset, strides)

    def _rows_of(self, slot: int) -> int:
        """How many rows of a slot there are at a time, of which only a chain has any."""
        for start, stop, rows in self._program.template.chains:
            for instruction in self._program.template.instructions[start:stop]:
                if any(made_slot == slot for made_slot, _ in outputs_of(instruction)):
                    return rows
        raise ValueError(f"slot {slot} is in no chain")

    def _look_again(self, slot: int) -> None:
        """Find the arrays of a slot whose memory is another now."""
        values, arrays, begin = self._values, self._store.arrays, 0
        if slot > 0:
            buffer = made(self.base, slot)
        else:
            binding = self.bindings[-1 - slot]
            buffer, begin = (binding, 0) if type(binding) is int else binding  # type: ignore[misc]
        root = arrays[buffer]
        for place, view in self._of_slot.get(slot, ()):
            if view is None:
                values[place] = root
                continue
            offset, shape, strides, dtype = view
            if root.size and root.flags.c_contiguous:  # it needs no name, as `arrays` gives it: it is for this run
                values[place] = np.ndarray(shape, dtype, root, begin + offset, strides)
            else:
                values[place] = arrays[buffer, begin + offset, shape, strides, dtype.str]

    def _step(self, instruction: Instruction) -> Step | None:
        """What to call for an instruction; None where there is nothing to do."""
        if instruction[0] < CONTROLS:
            return self._control(instruction)
        operation, out, ids, refs, static, into = _spelt_out(instruction)
        slots = [out + i for i in range(len(ids))]
        if operation.name == "rng_new":
            return self._new_generator(operation, static, slots[0])
        places = [self._place(ref) for ref in refs]
        written = operation.writes[operation.kind == "random" :]  # a generator is never lent
        targets = [refs[place] for place in written] + ([] if into is None else [into])
        own = all(self._is_planned(ref) for ref in targets)
        if into is not None:
            call = self._call(operation, static, places, [self._place(into)])
        elif slots:
            call = self._call(operation, static, places, [self._place(slot) for slot in slots])
        else:
            call = self._call(operation, static, places, [])
        fresh = [slot for slot in slots if slot not in self._planned]
        if not fresh and own:
            return call
        if fresh:
            return self._making(call, fresh)
        return self._writing(operation, static, places, written, targets, into is not None)

    def _is_planned(self, ref: Any) -> bool:
        return slot_of(ref) in self._planned

    def _call(self, operation: Operation, static: tuple[Any, ...], places: list[int], outs: list[int]) -> Step:
        """The kernel on operands in their places."""
        v = self._values
        if operation.plain:
            function = kernel(operation, self._device.xp)
            (o,) = outs
            if all(self._is_fixed(place) for place in (*places, o)):
                return functools.partial(function, *[v[place] for place in places], v[o])
            if len(places) == 1:
                (a,) = places
                return lambda: function(v[a], v[o])
            a, b = places
            return lambda: function(v[a], v[b], v[o])
        call = prepared(operation, self._device.xp, static)
        fixed = outs and all(self._is_fixed(place) for place in (*places, *outs))
        if len(outs) > 1:
            return lambda: call(tuple([v[o] for o in outs]), *[v[place] for place in places])
        if not outs:
            return lambda: call(None, *[v[place] for place in places])
        (o,) = outs
        if fixed:
            return functools.partial(call, v[o], *[v[place] for place in places])
        if len(places) == 1:
            (a,) = places
            return lambda: call(v[o], v[a])
        if len(places) == 2:
            a, b = places
            return lambda: call(v[o], v[a], v[b])
        return lambda: call(v[o], *[v[place] for place in places])

    def _is_fixed(self, place: int) -> bool:
        """What stands there is the same in every run."""
        return self._values[place] is not None

    def _making(self, call: Step, slots: list[int]) -> Step:
        """First memory of their own for results that are sent or kept."""
        store = self._store
        wanted = [(slot, self._layouts[slot], self._of_slot[slot]) for slot in slots]
        values, look_again = self._values, self._look_again

        def step() -> None:
            for slot, spec, places in wanted:
                donor = self._donor(slot)
                if donor is not None and store.take_over(donor, made(self.base, slot)):
                    look_again(slot)
                    continue
                array = store.create(made(self.base, slot), spec)
                if len(places) == 1 and places[0][1] is None:
                    values[places[0][0]] = array
                else:
                    look_again(slot)
            call()

        return step

    def _donor(self, slot: int) -> int | None:
        """The buffer whose memory a result may take over in this run."""
        given = self._donated.get(slot)
        if given is None:
            return None
        binding = self.bindings[-1 - given]
        return binding if type(binding) is int and binding in self.doomed else None

    def _writing(
        self,
        operation: Operation,
        static: tuple[Any, ...],
        places: list[int],
        written: tuple[int, ...],
        targets: list[Any],
        into: bool,
    ) -> Step:
        """What writes to memory that may be lent: it moves away first. What is only read is read where it was."""
        v = self._values
        plain = operation.plain
        call = kernel(operation, self._device.xp) if plain else prepared(operation, self._device.xp, static)
        pairs = [(ref, self._place(ref), type(ref) is int and (into or operation.name == "assign")) for ref in targets]

        def step() -> None:
            values = [v[place] for place in places]
            found = [
                v[place] if self._is_planned(ref) else self._writable(ref, overwrites)
                for ref, place, overwrites in pairs
            ]
            for place, array in zip(written, found, strict=False):
                values[place] = array
            out = found[-1] if into else None
            if plain:
                call(*values, out)
            else:
                call(out, *values)

        return step

    def _writable(self, ref: Any, overwrites: bool) -> Any:
        """The array to write to, in memory that nobody else reads."""
        real = bound(ref, self.base, self.bindings, ())
        buffer = real if type(real) is int else real[0]  # type: ignore[index]
        before = self._store.arrays[buffer]
        array = self._store.writable(real, overwrites)
        if self._store.arrays[buffer] is not before:
            self._moved(ref)
        return array

    def _moved(self, ref: Any) -> None:
        slot = ref if type(ref) is int else ref[0]
        self._look_again(slot)
        if slot < 0:
            binding = self.bindings[-1 - slot]
            self._roots[-1 - slot] = self._store.arrays[binding if type(binding) is int else binding[0]]  # type: ignore[index]

    def _new_generator(self, operation: Operation, static: tuple[Any, ...], slot: int) -> Step:
        make = kernel(operation, self._device.xp)
        place, arrays = self._place(slot), self._store.arrays

        def step() -> None:
            arrays[made(self.base, slot)] = self._values[place] = make(None, (), static)

        return step

    def _chain(self, start: int, stop: int, rows: int) -> Step:
        """Elementwise instructions, carried out a stretch of rows at a time."""
        instructions = [_spelt_out(each) for each in self._program.template.instructions[start:stop]]
        shape = self._shape(instructions[0])
        stretches = [slice(row, min(row + rows, shape[0])) for row in range(0, shape[0], rows)]
        fresh: list[int] = []
        targets: list[Any] = []
        calls = []
        parts: dict[int, _Parts] = {}
        for operation, out, _, refs, _, into in instructions:
            if into is None and out not in self._planned:
                fresh.append(out)
            elif into is not None and not self._is_planned(into) and slot_of(into) not in fresh:
                targets.append(into)
            places = [self._place(ref) for ref in refs] + [self._place(out if into is None else into)]
            for place in places:
                if place not in parts:
                    parts[place] = _Parts(self._values, place, shape, stretches, self._is_inner(place))
            calls.append((kernel(operation, self._device.xp), [parts[place] for place in places]))
        everything = list(parts.values())

        def compute() -> None:
            for each in everything:
                each.look()
            for n in range(len(stretches)):
                for function, operands in calls:
                    function(*[each.stretches[n] for each in operands])

        make = self._making(lambda: None, fresh) if fresh else None

        def step() -> None:
            if make is not None:
                make()
            for ref in targets:
                self._writable(ref, overwrites=False)
            compute()

        return step if fresh or targets else compute

    def _shape(self, instruction: tuple[Any, ...]) -> tuple[int, ...]:
        """The shape of what an elementwise instruction writes."""
        ids, into = instruction[2], instruction[5]
        if into is None:
            return self._program.specs[ids[0]].shape
        if type(into) is not int:
            shape: tuple[int, ...] = into[2]
            return shape
        return self._layouts[into].shape if into > 0 else self._program.template.given[-1 - into]

    def _is_inner(self, place: int) -> bool:
        return any(slot in self._inner for slot, found in self._of_slot.items() if any(p == place for p, _ in found))

    def _control(self, instruction: Instruction) -> Step | None:
        code = instruction[0]
        store, transfers = self._store, self._transfers
        if code == Control.SEND:
            _, ref, ticket, target = instruction
            return lambda: transfers.send(bound(ref, self.base, self.bindings, ()), self.base + ticket, target)
        if code == Control.RECV:
            _, slot, id, ticket, source = instruction
            spec = self._program.specs[id]

            def receive() -> None:
                transfers.receive(made(self.base, slot), spec, self.base + ticket, source)
                self._look_again(slot)

            return receive
        named = [slot for slot in instruction[1:] if slot not in self._planned]

        def free() -> None:
            for slot in named:
                store.drop(made(self.base, slot))

        return free if named else None


class Executor(Protocol):
    """What a run needs of the executor whose lane it runs in."""

    def one_of_run(self, run: Run, n: int, instruction: Instruction) -> None: ...

    def take_of_run(self, ticket: int) -> None: ...

    def trouble_in_run(self, run: Run, n: int, instruction: Instruction, error: Exception) -> None: ...

    def record_of_run(self) -> Callable[[int, int], None] | None: ...


def carry_out(run: Run, executor: Executor) -> bool:
    """Go on with a run as far as tickets let it; True when it is over."""
    if not run.started:
        run.started = True
        run.swift = None if run.dropped else run.program.fast()
        if run.swift is not None:
            try:
                run.swift.begin(run)
                run.program.under_way = True
            except Exception:  # an input has failed: one instruction at a time, so that only what needs it fails
                run.swift = None
    if run.swift is not None and not _swiftly(run, run.swift, executor):
        return False
    while run.at < run.program.count:
        if run.waits(executor):
            return False
        executor.one_of_run(run, run.first + run.at, run.instruction(run.at))
        run.at += 1
    run.program.under_way = False  # only now: what it made before a failure may lie in the planned memory
    return True


def _swiftly(run: Run, fast: FastProgram, executor: Executor) -> bool:
    """As far as the short way leads; False where a ticket is missing."""
    record = executor.record_of_run()
    at = run.at
    try:
        while run.at < run.program.count:
            if run.waits(executor):
                return False
            stop, steps = fast.until[run.at]
            if record is None:
                for at, step in steps:  # noqa: B007  the handler asks how far it came
                    step()
            else:
                for at, step in steps:
                    began = time.monotonic_ns()
                    step()
                    for place in range(at, fast.after(at)):  # those of a chain take their time together
                        record(run.first + place, began)
            run.at = stop
    except Exception as error:
        fast.keep(run, at)
        run.swift = None
        run.at = fast.after(at)  # a chain fails as a whole: some of its rows may have been written
        for failed in range(at, run.at):
            executor.trouble_in_run(run, run.first + failed, run.instruction(failed), error)
        return True
    return True


class _Parts:
    """One operand of a chain, cut into stretches of rows; what has fewer rows is the same for each."""

    __slots__ = ("_cuts", "_inner", "_place", "_shape", "_values", "_whole", "stretches")

    def __init__(self, values: list[Any], place: int, shape: tuple[int, ...], cuts: list[slice], inner: bool) -> None:
        self._values, self._place, self._shape, self._cuts, self._inner = values, place, shape, cuts, inner
        self._whole: Any = None
        self.stretches: list[Any] = []

    def look(self) -> None:
        """Cut the array that stands there now."""
        whole = self._values[self._place]
        if whole is self._whole:
            return
        self._whole = whole
        if self._inner:  # there is room for one stretch, used for each
            self.stretches = [whole[: cut.stop - cut.start] for cut in self._cuts]
        elif getattr(whole, "ndim", 0) == len(self._shape) and whole.shape[0] == self._shape[0]:
            self.stretches = [whole[cut] for cut in self._cuts]
        else:
            self.stretches = [whole] * len(self._cuts)


def _spelt_out(instruction: Instruction) -> tuple[Operation, int, tuple[int, ...], tuple[Any, ...], Any, Any]:
    """(operation, first slot made, their specs, operands, static values, target in place) of an operation."""
    code, form = instruction[0], instruction[0] % 4
    operation = BY_NUMBER[code // 4]
    if form == GENERAL:
        _, out, ids, refs, static, into = instruction
        return operation, out, ids, refs, static, into
    _, out, id, *operands = instruction
    if form == SCALAR_LEFT:
        operands[0] = (operands[0],)
    elif form == SCALAR_RIGHT:
        operands[1] = (operands[1],)
    return operation, out, (id,), tuple(operands), (), None


def _slots(instruction: Instruction) -> list[tuple[int, bool]]:
    """The slots that an instruction looks into, each with whether it writes there."""
    refs = refs_of(instruction)
    written: set[int] = set()
    if instruction[0] >= CONTROLS and instruction[0] % 4 == GENERAL:
        written.update(BY_NUMBER[instruction[0] // 4].writes)
        if instruction[5] is not None:
            written.add(len(refs) - 1)
    found = []
    for place, ref in enumerate(refs):
        if type(ref) is int:
            found.append((ref, place in written))
        elif len(ref) == 5:  # type: ignore[arg-type]
            found.append((ref[0], place in written))  # type: ignore[index]
    return found
