"""`capture`: a function's instructions recorded once, and sent to each worker as one message from then on.

The function is called when there is no recording for what it is given, and never otherwise: a run takes the
recording, the arrays and numbers of the call, and nothing else. What a recording is good for is in its key
(`structure.py`); what the function reads besides its arguments is in the key, too (`reach.py`).
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import gc
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable
from types import MethodType
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

from ..protocol.accesses import outputs
from ..protocol.messages import NEXT_OUTPUT, Control
from ..protocol.recordings import bind, made
from . import failures
from .client import default_session
from .issue import Handle, handle
from .lane import BIG
from .modes import announce_verify
from .numbers import Number
from .random import Generator
from .reach import Reach
from .recording import CaptureError, Recording, Tape, buffer_of, number_refs
from .session import Session
from .sites import user_site
from .structure import Walk, described, fields_of, with_numbers
from .trail import differentiating
from .uninterrupted import uninterrupted

_Maker: TypeAlias = Callable[[int, Walk, dict[int, Handle]], Any]
KEPT: Final = 64  # recordings of one function; the oldest goes for the next one


class _Entry(NamedTuple):
    """A recording, and the numbers for which it is good."""

    recording: Recording
    pins: tuple[tuple[int, Any], ...]  # (which number, what it must be)
    result: Result  # how to make what the function returns
    words: dict[str, str]
    reason: str
    runs: list[int]  # how many


class Captured:
    """A captured function; call it like the function itself."""

    def __init__(self, function: Callable[..., Any], verify: bool = False) -> None:
        functools.update_wrapper(self, function, updated=())
        self._function = function
        self._verify = verify
        self._name = getattr(function, "__qualname__", repr(function))
        self._reach = Reach(function)
        self._entries: dict[tuple[Any, ...], list[_Entry]] = {}
        self._order: list[tuple[tuple[Any, ...], _Entry]] = []  # the oldest first
        self._forgotten = 0
        self._turn = threading.RLock()
        _captured.add(self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() in _recording or differentiating():
            return self._function(*args, **kwargs)  # part of what is being recorded, or needed one by one
        walk, session = self._look(args, kwargs)
        entry, numbers = self._find(walk)
        if entry is None:
            with self._turn:
                entry, numbers = self._find(walk)  # another thread may have recorded it meanwhile
                if entry is None:
                    entry = self._record(args, kwargs, walk, session)
                    numbers = [number_refs(part.numbers, walk.numbers) for part in entry.recording.parts]
        elif self._verify:
            announce_verify(session)
            again, result, _ = self._tape(args, kwargs, walk, session)
            difference = entry.recording.difference(again)
            if difference is None and result.said != entry.result.said:
                difference = "what it returns is something else"
            if difference is not None:
                raise CaptureError(
                    f"{self._name} did something else than when it was recorded, though its arguments are alike: "
                    f"{difference}; it must depend on its arguments and on variables that it reads itself alone"
                )
        entry.runs[0] += 1
        base = session.next_id()
        result = entry.result.build(base, walk)  # first, so that what Ctrl-C leaves of a run has handles that go
        _run(entry.recording, walk.arrays, numbers, base)
        return result

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else MethodType(self, instance)  # which has a report, too

    def __del__(self) -> None:
        for _, entry in getattr(self, "_order", ()):
            _forget(entry.recording)

    def report(self) -> str:
        """What was recorded, why, and what it takes, for people."""
        lines = [f"{self._name}: {len(self._order)} recordings, {sum(e.runs[0] for _, e in self._order)} runs"]
        if self._forgotten:
            lines[0] += f", {self._forgotten} recordings forgotten for newer ones (at most {KEPT} are kept)"
        for number, (_, entry) in enumerate(self._order, 1):
            recording = entry.recording
            lines.append(f"recording {number}: {entry.runs[0]} runs; {entry.reason}")
            if recording.session.gated:
                lines.append("  gate='coordinator': a run issues its instructions one by one, as they must wait here")
            for part in recording.parts:
                device = recording.session.lanes[part.lane].device
                template = part.template
                count = sum(each[0] != Control.FREE for each in template.instructions)
                lines.append(
                    f"  {device}: {count} instructions; "
                    f"given {len(template.given)} arrays, {len(part.numbers)} numbers; "
                    f"{len(template.places)} temporaries in {_size(template.planned)} planned for them; "
                    f"{len(template.kept)} results"
                )
            lines += [f"  {path}: {text}" for path, text in entry.words.items()]
            lines += [f"  number {place} must be {value!r}: its value is asked for" for place, value in entry.pins]
        return "\n".join(lines)

    # -- looking

    def _walk(self, args: Any, kwargs: Any, reach: Reach) -> Walk:
        walk = Walk(reach.names)
        walk.take(args, True)
        if kwargs:
            walk.take(kwargs, True)
        for name, value in reach.values():
            walk.key.append(name)
            walk.take(value, False)
        return walk

    def _look(self, args: Any, kwargs: Any) -> tuple[Walk, Session]:
        """What this call is given."""
        reach, anew = self._reach, False
        while True:
            walk = self._walk(args, kwargs, reach)
            if walk.functions.keys() == reach.met:
                break
            # Others stand where some did, or some are met for the first time: these read more.
            reach, anew = Reach(self._function, walk.functions if anew else ()), True
        self._reach = reach
        walk.aliases()
        sessions = {array._lane.session for array in walk.arrays}
        if len(sessions) > 1:
            raise ValueError(f"the arrays that {self._name} is given belong to different sessions")
        session = sessions.pop() if sessions else default_session()
        if not walk.arrays:
            walk.key.append(session)
        session.check_open()
        return walk, session

    def _find(self, walk: Walk) -> tuple[Any, list[Any]]:
        """The recording for it, with the numbers of the run; None if there is none."""
        for entry in self._entries.get(tuple(walk.key), ()):
            if entry.recording.session.renewed and entry.recording.outdated():
                continue
            if all(_same(walk.numbers[place], value) for place, value in entry.pins):
                try:
                    return entry, [number_refs(part.numbers, walk.numbers) for part in entry.recording.parts]
                except Exception:  # what is computed from the numbers is of another type now, or cannot be
                    continue
        return None, []

    # -- recording

    def _record(self, args: Any, kwargs: Any, walk: Walk, session: Session) -> _Entry:
        words = self._words(args, kwargs)
        recording, result, pins = self._tape(args, kwargs, walk, session)
        entry = _Entry(
            recording,
            tuple([(place, walk.numbers[place]) for place in sorted(pins)]),
            result,
            words,
            self._why(words),
            [0],
        )
        key = tuple(walk.key)
        self._entries.setdefault(key, []).append(entry)
        self._order.append((key, entry))
        for old in [each for each in self._order if each[1].recording.outdated()]:
            self._drop(old)
        if len(self._order) > KEPT:
            self._drop(self._order[0])
            self._forgotten += 1
        return entry

    def _drop(self, old: tuple[tuple[Any, ...], _Entry]) -> None:
        key, entry = old
        self._order = [each for each in self._order if each[1] is not entry]
        left = [each for each in self._entries[key] if each is not entry]
        if left:
            self._entries[key] = left
        else:
            del self._entries[key]
        _forget(entry.recording)

    def _why(self, words: dict[str, str]) -> str:
        if any(each.recording.session.renewed and each.recording.outdated() for _, each in self._order):
            return "recorded anew, as a device of an earlier recording has had another worker since"
        if not self._order:
            return "recorded at the first call"
        differing = []
        for _, entry in self._order:
            paths = dict.fromkeys([*entry.words, *words])
            differing.append([path for path in paths if entry.words.get(path) != words.get(path)])
        nearest = min(range(len(differing)), key=lambda place: len(differing[place]))
        before = self._order[nearest][1].words
        changes = [f"{path} was {before.get(path, 'absent')}" for path in differing[nearest][:3]]
        if not changes:
            changes = ["a number whose value it asks for, or which arrays share memory, is another"]
        return f"recorded because, beside recording {nearest + 1}, {'; '.join(changes)}"

    def _tape(self, args: Any, kwargs: Any, walk: Walk, session: Session) -> tuple[Recording, Any, set[int]]:
        """Call the function, and take down what it issues."""
        me = threading.get_ident()
        with session.taping_turn:
            tape = Tape(session, walk.arrays, self._name)
            numbers = iter([Number(value, tape.pins, place) for place, value in enumerate(walk.numbers)])
            args, kwargs = with_numbers(args, numbers), with_numbers(kwargs, numbers)
            before, words = self._state(args, kwargs), self._words(args, kwargs)
            try:
                tape.begin()
                _recording.add(me)
                returned = self._function(*args, **kwargs)
                if tape.refusal is not None:
                    raise tape.refusal
                if self._state(args, kwargs) != before:
                    after = self._words(args, kwargs)
                    changed = [path for path in dict.fromkeys([*words, *after]) if words.get(path) != after.get(path)]
                    raise CaptureError(
                        f"{self._name} changes what it is given or reads ({', '.join(changed[:3]) or 'an array'} is "
                        f"another one afterwards): return what is new instead, as a replay does not call the function"
                    )
                result = Result(returned, tape, walk, self._name)
                del returned
                if tape.escaped() is not None:
                    gc.collect()
                escaped = tape.escaped()
                if escaped is not None:
                    raise CaptureError(
                        f"{self._name} keeps an array that it made, at {escaped}: return it instead, as a replay does "
                        f"not call the function"
                    )
            finally:
                _recording.discard(me)
                tape.end()
        recording = Recording(tape, walk.arrays, result.buffers, BIG)
        return recording, result, tape.pins

    def _state(self, args: Any, kwargs: Any) -> tuple[Any, ...]:
        """What the function must leave as it is."""
        walk = self._walk(args, kwargs, self._reach)
        return walk.key, [id(array) for array in walk.arrays], [id(number) for number in walk.numbers]

    def _words(self, args: Any, kwargs: Any) -> dict[str, str]:
        words: dict[str, str] = {}
        for name, value in (("args", args), ("kwargs", kwargs)):
            for path in [*enumerate(value)] if name == "args" else value.items():
                described(path[1], f"argument {path[0]}", words, True)
        for name, value in self._reach.values():
            described(value, name, words, False)
        return words


_recording: set[int] = set()  # threads that record
_captured: weakref.WeakSet[Captured] = weakref.WeakSet()


def _in_forked_child() -> None:
    """Threads that recorded are not here, and hold no lock."""
    _recording.clear()
    for each in list(_captured):
        each._turn = threading.RLock()


os.register_at_fork(after_in_child=_in_forked_child)
_NOT_MADE: Final = (np.ndarray, set, frozenset, dict, list, deque, bytearray)  # nor what is derived from them


def _goes_on(kind: type[Any]) -> bool:
    """Whether its objects are iterators or coroutines: what they give depends on what was taken from them before."""
    return hasattr(kind, "__next__") or hasattr(kind, "__await__")


def _same(one: Any, other: Any) -> bool:
    """Equal to the last bit, and of one type."""
    if type(one) is not type(other):
        return False
    return bool(one.hex() == other.hex() if type(one) is float else one.tobytes() == other.tobytes())


def _size(nbytes: int) -> str:
    return f"{nbytes / 1e6:.1f} MB" if nbytes >= 100_000 else f"{nbytes} bytes"


# -- running


def _run(recording: Recording, arrays: list[Handle], numbers: list[tuple[Any, ...]], base: int) -> None:
    """Send a run to every lane that takes part in it; its buffers are numbered from `base`."""
    session = recording.session
    lanes = [session.lanes[part.lane] for part in recording.parts]
    with session.lock:  # of all lanes at once: no other thread's transfer comes between
        for lane in lanes:
            if lane.lost is not None:
                raise failures.again(lane.lost)
        session.calls.append((base, user_site(2)))
        if session.gated:
            with uninterrupted():  # half of it would be without the frees, which come at its end
                _issue_one_by_one(recording, arrays, numbers, base)
        else:
            runs = [
                (lane, part, recording.bindings(part, arrays), refs)
                for part, lane, refs in zip(recording.parts, lanes, numbers, strict=True)
            ]
            try:
                for lane, part, bindings, refs in runs:
                    lane.run(part, recording.id, base, bindings, refs)
            except BaseException:  # Ctrl-C in between: a part of the workers alone would wait for the others for ever
                for lane, part, bindings, refs in runs:
                    lane.run(part, recording.id, base, bindings, refs)
                raise
        crowded = [lane for lane in lanes if not lane.in_window()]
    session.receiver.wake()
    for lane in crowded:
        session.await_credit(lane)
    if session.modes.sync:
        session.finish(*lanes)


def _issue_one_by_one(recording: Recording, arrays: list[Handle], numbers: list[tuple[Any, ...]], base: int) -> None:
    """The same run as single instructions, in the order in which they were issued as it was recorded."""
    session = recording.session
    given = {
        part.lane: (recording.bindings(part, arrays), refs) for part, refs in zip(recording.parts, numbers, strict=True)
    }
    send: Any = None
    for taken in recording.issued:
        lane = session.lanes[taken.lane]
        instruction = bind(taken.instruction, base, *given[taken.lane])
        if instruction[0] == Control.SEND:
            send = instruction
        elif instruction[0] == Control.RECV:
            session.issue_transfer(
                session.lanes[instruction[4]], lane, send, instruction, recording.specs[instruction[2]], taken.site
            )
        else:
            nbytes = 0
            for _, id in outputs(instruction):
                lane.define(recording.specs[id])
                nbytes += recording.specs[id].nbytes
            lane.append(instruction, taken.site, nbytes)
    for part in recording.parts:
        lane = session.lanes[part.lane]
        for instruction in part.template.instructions:
            if instruction[0] == Control.FREE:
                lane.dropped.extend(made(base, slot) for slot in instruction[1:])
        lane.flush()


def _forget(recording: Recording) -> None:
    """No run of it comes any more. In any thread, at any moment."""
    for part in recording.parts:
        recording.session.lanes[part.lane].dropped.append(-recording.id)


# -- results


class Result:
    """How to make what the function returns, from the buffers of a run."""

    def __init__(self, returned: Any, tape: Tape, walk: Walk, name: str) -> None:
        self.buffers: set[int] = set()  # made on the tape, to be there after the run
        self.said: list[Any] = []  # what is returned, to compare
        self._slots = tape.slots()
        self._given = {id(array): place for place, array in enumerate(walk.arrays)}
        self._groups = {buffer_of(array._ref): place for place, array in reversed([*enumerate(walk.arrays)])}
        self._name = name
        self._session = tape.session
        self._arrays = walk.arrays
        self._make = self._maker(returned)
        del self._given, self._groups, self._arrays

    def build(self, base: int, walk: Walk) -> Any:
        """What a run with this base returns."""
        return self._make(base, walk, {})

    def _maker(self, value: Any) -> _Maker:
        kind = type(value)
        self.said.append(kind)
        if isinstance(value, Handle):
            return self._array_maker(value)
        if isinstance(value, Generator):
            state = self._maker(value._state)
            return lambda base, walk, roots: Generator(state(base, walk, roots))
        if kind is Number:
            self.said.append(value.expression())
            return lambda base, walk, roots: value.evaluate(walk.numbers)
        if kind is list or isinstance(value, tuple):
            parts = [self._maker(each) for each in value]
            if kind is tuple:
                return lambda base, walk, roots: tuple([part(base, walk, roots) for part in parts])
            if kind is list:
                return lambda base, walk, roots: [part(base, walk, roots) for part in parts]
            return lambda base, walk, roots: tuple.__new__(kind, [part(base, walk, roots) for part in parts])
        if kind is dict:
            named = {key.pinned() if type(key) is Number else key: self._maker(each) for key, each in value.items()}
            self.said.append(list(named))
            return lambda base, walk, roots: {key: part(base, walk, roots) for key, part in named.items()}
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return self._dataclass_maker(value)
        if isinstance(value, _NOT_MADE) or fields_of(value) or _goes_on(kind):
            raise CaptureError(
                f"{self._name} returns a {kind.__name__}, which a replay cannot make: return arrays on devices, "
                f"numbers, and tuples, lists, dicts and dataclasses of them"
            )
        said = Walk()
        said.take(value, False)
        self.said += said.key
        return lambda base, walk, roots: value

    def _dataclass_maker(self, value: Any) -> _Maker:
        fields = {name: self._maker(getattr(value, name)) for name in fields_of(value)}
        empty = copy.copy(value)
        for name in fields:
            object.__setattr__(empty, name, None)

        def make(base: int, walk: Walk, roots: dict[int, Handle]) -> Any:
            made = copy.copy(empty)
            for name, part in fields.items():
                object.__setattr__(made, name, part(base, walk, roots))
            return made

        return make

    def _array_maker(self, value: Handle) -> _Maker:
        place = self._given.get(id(value))
        if place is not None:
            self.said.append(("given", place))
            return lambda base, walk, roots: walk.arrays[place]
        if value._lane.session is not self._session:
            raise CaptureError(f"{self._name} makes an array in another session: a recording belongs to one session")
        buffer = buffer_of(value._ref)
        assert buffer is not None
        slot = self._slots.get(buffer)
        if slot is None:
            return self._given_view_maker(value, self._groups.get(buffer))
        self.buffers.add(buffer)
        root = value if value._base is None else value._base
        self.said.append((slot, None if value is root else value._ref[1:]))  # type: ignore[index]
        kind, lane, spec, shift = type(root), root._lane, root._spec, slot * NEXT_OUTPUT

        def whole(base: int, walk: Walk, roots: dict[int, Handle]) -> Any:
            found = roots.get(slot)
            if found is None:
                found = roots[slot] = handle(kind, lane, base + shift, spec)
            return found

        if value is root:
            return whole
        tail, view_spec, frozen = value._ref[1:], value._spec, getattr(value, "_frozen", False)  # type: ignore[index]

        def view(base: int, walk: Walk, roots: dict[int, Handle]) -> Any:
            made = handle(kind, lane, (base + shift, *tail), view_spec, whole(base, walk, roots))
            if frozen:
                made._frozen = True
            return made

        return view

    def _given_view_maker(self, value: Handle, place: int | None) -> _Maker:
        if place is None:
            raise CaptureError(
                f"{self._name} returns an array that it was not given and did not make: pass it as an argument"
            )
        given = self._arrays[place]
        self.said.append(("view", place, value._ref if type(value._ref) is int else value._ref[1:]))  # type: ignore[index]
        start = 0 if type(given._ref) is int else given._ref[1]  # type: ignore[index]
        kind, spec, frozen = type(value), value._spec, getattr(value, "_frozen", False)
        if type(value._ref) is int:
            return lambda base, walk, roots: walk.arrays[place]._base
        _, offset, *tail = value._ref  # type: ignore[misc]

        def view(base: int, walk: Walk, roots: dict[int, Handle]) -> Any:
            array = walk.arrays[place]
            ref: Any = array._ref
            buffer, begin = (ref, 0) if type(ref) is int else (ref[0], ref[1])
            root = array if array._base is None else array._base
            made = handle(kind, array._lane, (buffer, begin + offset - start, *tail), spec, root)
            if frozen:
                made._frozen = True
            return made

        return view


# -- the public name


def capture(function: Callable[..., Any] | None = None, *, verify: bool = False) -> Any:
    """Record what a function issues at its first call; replay it, with one message to each worker, at later ones.

        @il.capture
        def step(weights, gradient, lr):
            return weights - lr * gradient

    A recording is good for calls whose arguments are alike: same nesting, shapes, dtypes, layouts and devices of
    arrays, same ints, strings and bools; floats and NumPy scalars may change. For others the function is recorded
    again; `step.report()` says what was recorded and why. What the function reads besides, closed-over variables and
    globals, its own and those of the functions that it calls, counts as an argument. It is called only to be
    recorded, so it must return what is new, not keep it; reading an array inside is refused, and what comes from
    elsewhere, such as a clock, a file, or `random.random()`, stays as it was when it was recorded. So does what is
    inside objects of libraries, and inside NumPy arrays of more than 4 KiB, while the variable holds the same one.

    Args:
        function: takes and returns arrays, numbers, and tuples, lists, dicts and dataclasses of them.
        verify: record at every call, and raise if the instructions are others than before.

    Raises:
        CaptureError: at a call: the function does what cannot be replayed.
        TypeError: at a call: a NumPy array or an iterator is among the arguments.
    """
    if function is None:
        return functools.partial(capture, verify=verify)
    return Captured(function, verify)
