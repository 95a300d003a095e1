"""Random programs over three workers, while these are killed, stopped, delayed, refused memory, and interrupted.

What a round does is a function of the seed and the round's number alone: the program, its setting, and which fault
comes before which step (when a fault comes *within* a step is up to the processes). After each round every array that
is read is right, bit for bit, or raises a named error that one of the faults can have caused: `WorkerLost` only where
something of it lived on a killed worker, `Cancelled` only after an interrupt, `OutOfDeviceMemory` only where memory is
short; with `recover=True` nothing is lost. Nothing waits for ever, living workers are empty when all was dropped, and a
closed session leaves nothing.

    python -m tests.stress.chaos --seed 1 --rounds 1000        from the repository's root
    python -m tests.stress.chaos --seed 1 --first 17 --rounds 1   round 17 of these alone, with a session of its own
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import itertools
import os
import signal
import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Final, NamedTuple

import numpy as np

import interlock as il
from interlock.coordinator import workers

from . import captured, player, programs
from .builder import program
from .player import Player, Setting, Wrong, same, same_strides
from .programs import KINDS, Expected, Line, Model, Step

SERIES: Final = 8  # rounds on one session
CLOSE_S: Final = 2.0  # how long a session may take to close
SLOW: Final = 10.0  # times as long as that, on a machine that runs other things besides, before it is a hang
ENDS_S = 30.0  # how long workers may take to tell one another that nothing is lent any more
HANG_S: Final = 240.0  # a round that takes longer ends the run, with all stacks
HOST, SIMS = "cpu:0,cpu:1,cpu:2", "cpu:0,sim:0,sim:1"
SETTINGS: Final = (
    (5, Setting(HOST)),
    (3, Setting(HOST, gate="coordinator")),
    (2, Setting(HOST, window=8)),
    (2, Setting(HOST, options={"arena": "shm", "minimum_segment": 1 << 20})),
    (2, Setting(HOST, memory=3 << 19, may_run_out=True)),
    (4, Setting(SIMS, options={"seed": 0})),
    (2, Setting(SIMS, gate="coordinator", options={"seed": 0, "delay_s": 4e-3, "delay_share": 0.5})),
    (2, Setting("sim:0,sim:1,sim:2", options={"seed": 0})),
    (2, Setting(SIMS, memory=2 << 20, options={"seed": 0}, may_run_out=True)),
    (2, Setting(SIMS, options={"seed": 0, "oom_at": 30}, may_run_out=True)),
    (1, Setting(HOST, recover=True)),
    (1, Setting(SIMS, options={"seed": 0}, recover=True)),
)
FAULTS: Final = (
    (2, ()),
    (5, ("kill",)),
    (5, ("stop",)),
    (2, ("stop", "stop")),
    (2, ("stop", "kill")),
    (2, ("kill", "kill")),
    (3, ("interrupt",)),
    (2, ("interrupt", "interrupt")),
    (2, ("stop", "interrupt", "interrupt")),
    (1, ("stop", "interrupt", "kill")),
    (1, ("restart",)),
    (1, ("kill", "restart")),
    (1, ("kill", "interrupt", "kill")),
)


class Fault(NamedTuple):
    """Something that is done to a worker, or to this program, before a step."""

    at: int
    what: str  # kill, stop (to go on after a while), interrupt, restart (where nothing may be lost; else it is a kill)
    device: int
    delay_s: float  # kill, interrupt: so much later; stop: for so long


@dataclass(frozen=True)
class Round:
    """What a round does."""

    number: int
    steps: list[Step]
    captured: bool
    faults: tuple[Fault, ...]
    close_with: str  # what the workers are when the session is closed behind it, if it is the last of its series

    @property
    def killed(self) -> frozenset[int]:
        return frozenset(fault.device for fault in self.faults if fault.what in ("kill", "restart"))


def _choose(random: np.random.Generator, among: Any) -> Any:
    weights = np.array([weight for weight, _ in among], float)
    return among[int(random.choice(len(among), p=weights / weights.sum()))][1]


def setting_of(seed: int, series: int, among: Sequence[int] = ()) -> tuple[Setting, bool]:
    """On what a series of rounds is played (among these of the settings; of all), and whether messages are late."""
    random = np.random.default_rng([seed, 1, series])
    setting = _choose(random, [SETTINGS[place] for place in among] or SETTINGS)
    return setting.reseeded(int(random.integers(1 << 30))), bool(random.random() < 0.3)


def round_of(seed: int, number: int) -> Round:
    random = np.random.default_rng([seed, 2, number])
    steps = program(int(random.integers(1 << 40)), int(random.integers(20, 110)))
    faults = []
    for what in _choose(random, FAULTS):
        delay = float(random.choice([0.0, 0.002, 0.01, 0.03])) if what != "stop" else float(random.uniform(0, 0.06))
        faults.append(Fault(int(random.integers(len(steps) + 1)), what, int(random.integers(3)), delay))
    return Round(
        number, steps, bool(random.random() < 0.2), tuple(faults), str(random.choice(["", "", "dead", "stopped"]))
    )


# -- what must come of it ---------------------------------------------------------------------------------------------


class Fact(NamedTuple):
    """A step of a plan, with what it touches."""

    line: Line
    devices: frozenset[int]
    args: tuple[int, ...]  # buffers
    written: tuple[int, ...]
    spared: tuple[int, ...]  # of these, those that stay as they were if the step fails
    made: dict[int, int]  # by variable, its buffer
    whole: bool  # the first argument is overwritten, whatever it was


def fact_of(model: Model, step: Step) -> Fact | None:
    """Do a step on the model. None if it cannot be done."""
    args = tuple(model.buffer.get(arg, -1) for arg in step.args)
    devices = {model.device[arg] for arg in step.args if arg in model.device}
    kind = KINDS[step.kind]
    whole = kind.whole and bool(step.args) and step.args[0] in model.values and model.whole(step.args[0])
    line = model.step(step)
    if line is None:
        return None
    made = {v: model.buffer[v] for v in step.out if v in model.buffer}
    devices |= {model.device[v] for v in made}
    written, spared = (tuple(args[place] for place in places) for places in (kind.writes, kind.spares))
    return Fact(line, frozenset(devices), args, written, spared, made, whole)


def facts_of(steps: list[Step]) -> tuple[list[Fact], dict[int, Expected]]:
    model = Model()
    facts = [fact for step in steps if (fact := fact_of(model, step)) is not None]
    return facts, {v: model.expected(v) for v, value in model.values.items() if isinstance(value, np.ndarray)}


class ChaosPlayer(Player):
    """Plays a program in which any step may fail for a fault, and knows which may."""

    def __init__(self, hands: Hands, setting: Setting, killed: frozenset[int]) -> None:
        super().__init__(hands.session, setting)
        self.patience_s = ENDS_S
        self.killed = frozenset() if setting.recover else killed
        self.counts = hands.counts
        self._hands = hands
        self._buffer: dict[int, int] = {}  # of each variable
        self._ancestors: dict[int, frozenset[int]] = {}  # by buffer: devices on which something of it has lived
        self._unknown: set[int] = set()  # buffers that a step should have written which was skipped

    def act(self, fact: Fact) -> None:
        """Do a step.

        Raises:
            Wrong: what came of it is no fault's doing.
        """
        step = fact.line.step
        self._buffer.update(fact.made)
        if step.kind == "free":
            self.values.pop(step.args[0], None)
        elif step.kind == "synchronize":
            self._await_all(fact.line.failed)
        elif fact.line.read is not None:
            self.compare(step.args[0], fact.line.read)
        else:
            self._issue(fact)

    def _issue(self, fact: Fact) -> None:
        line, step = fact.line, fact.line.step
        if not all(arg in self.values for arg in step.args):
            self.skip(fact)
            return
        try:
            with KEYBOARD.inside():
                results = programs.run(step, self.side, tuple(self.values[arg] for arg in step.args))
        except KeyboardInterrupt:
            self._note_interrupt()
            self.skip(fact)
            return
        except Exception as error:
            if line.refused != type(error).__name__:
                self._explain(error, fact.devices | self._of(fact.args), f"{step}")
                self.skip(fact)
            return
        if line.refused is not None:
            raise Wrong(f"{step}: NumPy raises {line.refused}, Interlock nothing")
        self.touched(fact)
        made = results if type(results) is tuple else (results,)
        for variable, result, promise in zip(step.out, made, line.made, strict=False):
            self.values[variable] = result
            if promise is not None:
                shape, dtype, strides = promise
                if (result.shape, result.dtype.str) != (shape, dtype) or not same_strides(
                    result.strides, strides, shape
                ):
                    raise Wrong(f"{step}: NumPy makes {promise}, Interlock {result.shape, result.dtype.str}")

    def touched(self, fact: Fact) -> None:
        """The step was issued: where what it reads has lived, what it makes and writes has, too."""
        reads = fact.args[1:] if fact.whole else fact.args
        ancestors = self._of(reads) | fact.devices
        unknown = any(buffer in self._unknown for buffer in reads)
        for buffer in {*fact.made.values(), *fact.written}:
            alone = buffer not in fact.args or (fact.whole and buffer == fact.args[0])
            self._ancestors[buffer] = ancestors if alone else self._of([buffer]) | ancestors
            if unknown:
                self._unknown.add(buffer)
            elif alone and buffer not in reads:
                self._unknown.discard(buffer)
        if self.killed & ancestors or self._hands.interrupted or self.setting.may_run_out:
            self._unknown.update(fact.spared)  # where what is shuffled was lost, the generator has not moved

    def skip(self, fact: Fact) -> None:
        """The step was not issued, or nobody knows whether it was."""
        self.counts["steps skipped"] += 1
        self._unknown.update(fact.written, (b for b in fact.made.values() if b not in fact.args))

    def _of(self, buffers: Any) -> frozenset[int]:
        return frozenset().union(*[self._ancestors.get(buffer, frozenset()) for buffer in buffers])

    def _note_interrupt(self) -> None:
        self._hands.interrupted = True  # it may have dropped what other programs of the round have issued, too
        self.counts["interrupts that came out"] += 1

    def _explain(self, error: Exception, ancestors: frozenset[int], what: str) -> None:
        """Count an error that a fault can have caused here.

        Raises:
            Wrong: none can.
        """
        name = type(error).__name__
        notes = "\n".join(getattr(error, "__notes__", ()))
        if isinstance(error, TimeoutError):
            raise Wrong(f"{what} hangs: {error}") from None
        if not (
            (isinstance(error, il.WorkerLost) and self.killed & ancestors)
            or (isinstance(error, il.Cancelled) and self._hands.interrupted)
            or (isinstance(error, il.OutOfDeviceMemory) and self.setting.may_run_out)
        ):
            raise Wrong(f"{what} raises {name}, which no fault here explains: {error}\n{notes}") from error
        self.counts[name] += 1

    def compare(self, variable: int, expected: Expected) -> None:
        """Read an array."""
        if variable not in self.values:
            return
        buffer = self._buffer[variable]
        what = f"v{variable} of {expected.array.dtype if expected.array is not None else sorted(expected.errors)}"
        while True:
            try:
                with KEYBOARD.inside():
                    found = self.values[variable].numpy(timeout=player.PATIENCE_S)
                break
            except KeyboardInterrupt:
                self._note_interrupt()  # and read it again
            except Exception as error:
                if type(error).__name__ in expected.errors:
                    self.counts["errors of the program's own"] += 1
                elif buffer not in self._unknown or isinstance(error, TimeoutError):
                    self._explain(error, self._of([buffer]), f"reading {what}")
                else:
                    self.counts[f"{type(error).__name__}, of what was skipped"] += 1
                return
        if buffer in self._unknown:
            self.counts["reads of what was skipped"] += 1
        elif expected.errors:
            raise Wrong(f"{what} must have failed, but has a value")
        elif expected.array is None or not same(found, expected.array):
            raise Wrong(f"{what}: {player._difference(found, expected.array)}")  # type: ignore[arg-type]
        else:
            self.counts["reads right"] += 1

    def _await_all(self, may_fail: bool) -> None:
        try:
            with KEYBOARD.inside():
                self.session.synchronize(timeout=player.PATIENCE_S)
        except KeyboardInterrupt:
            self._note_interrupt()
        except Exception as error:
            if isinstance(error, TimeoutError) or not (may_fail or self._unknown):
                self._explain(error, self.killed, "synchronize()")

    def _synchronize(self, may_fail: bool) -> None:  # of `finish`
        with KEYBOARD.held():
            super()._synchronize(may_fail)
            if self.setting.recover:  # or uploads stay until the next checkpoint, which is far away
                self.session.checkpoint(player.PATIENCE_S)


class Keyboard:
    """Lets an interrupt out only within what is interrupted on purpose: not in what keeps the books here."""

    def __init__(self) -> None:
        self._inside = False
        self._owed = False

    def came(self, number: int, frame: FrameType | None) -> None:
        if not self._inside:
            self._owed = True
            return
        self._inside = False
        raise KeyboardInterrupt

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        if self._owed:
            self._owed = False
            raise KeyboardInterrupt
        self._inside = True
        try:
            yield
        finally:
            self._inside = False

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        self._inside = False
        yield

    def forget(self) -> None:
        self._owed = self._inside = False


KEYBOARD: Final = Keyboard()


# -- the faults -------------------------------------------------------------------------------------------------------


@dataclass
class Hands:
    """Does a round's faults to a session's workers."""

    session: il.Session
    faults: tuple[Fault, ...]
    counts: Counter[str]
    recover: bool = False
    interrupted: bool = False  # an interrupt has come out of a call
    _timers: list[threading.Timer] = field(default_factory=list)
    _fds: list[int] = field(default_factory=list)

    def __enter__(self) -> Hands:
        for device in self.session.devices:
            self._fds.append(os.pidfd_open(device.lane.worker.identity.pid))
        return self

    def __exit__(self, *_: object) -> None:
        self.over()
        for fd in self._fds:
            os.close(fd)

    def over(self) -> None:
        """All that was to be done is done, and who lives runs."""
        for timer in self._timers:
            timer.join()
        self._timers.clear()
        for device in range(len(self._fds)):
            self._send(device, signal.SIGCONT)

    def before(self, step: int) -> None:
        """Do what comes before this step."""
        for fault in self.faults:
            if fault.at == step:
                self.do(fault)

    def do(self, fault: Fault) -> None:
        self.counts[f"{fault.what}s"] += 1
        if fault.what == "restart" and self.recover:
            self.session.restart(self.session.devices[fault.device])
        elif fault.what in ("kill", "restart"):
            self._later(fault.delay_s, lambda: self._send(fault.device, signal.SIGKILL))
        elif fault.what == "stop":
            self._send(fault.device, signal.SIGSTOP)
            self._later(fault.delay_s, lambda: self._send(fault.device, signal.SIGCONT))
        else:
            self._later(fault.delay_s, lambda: os.kill(os.getpid(), signal.SIGINT))

    def _later(self, delay_s: float, call: Callable[[], None]) -> None:
        if delay_s:
            timer = threading.Timer(delay_s, call)
            timer.start()
            self._timers.append(timer)
        else:
            call()

    def _send(self, device: int, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            if self.recover:  # it may be another one by now
                os.kill(self.session.devices[device].lane.worker.identity.pid, number)
            else:
                signal.pidfd_send_signal(self._fds[device], number)


# -- rounds -----------------------------------------------------------------------------------------------------------


def play(session: il.Session, setting: Setting, round_: Round, counts: Counter[str]) -> None:
    """One round from beginning to end.

    Raises:
        Wrong: something is as no fault can have made it.
    """
    counts["programs"] += 1
    KEYBOARD.forget()
    with Hands(session, round_.faults, counts, setting.recover) as hands:
        if round_.captured:
            _play_captured(session, setting, round_, hands, counts)
        else:
            _play_plain(session, setting, round_, hands, counts)


def _play_plain(session: il.Session, setting: Setting, round_: Round, hands: Hands, counts: Counter[str]) -> None:
    facts, left = facts_of(round_.steps)
    chaos = ChaosPlayer(hands, setting, round_.killed)
    try:
        for at, fact in enumerate(facts):
            hands.before(at)
            try:
                chaos.act(fact)
            except Wrong as wrong:
                raise Wrong(f"step {at} of {len(facts)}, {fact.line.step}: {wrong}") from None
        for at in range(len(facts), len(round_.steps) + 1):
            hands.before(at)
        for variable, expected in left.items():
            chaos.compare(variable, expected)
        hands.over()
        KEYBOARD.forget()
        chaos.finish()
    finally:
        chaos.values.clear()


def _play_captured(session: il.Session, setting: Setting, round_: Round, hands: Hands, counts: Counter[str]) -> None:
    """A program whose middle is a captured function, called for three inputs; the faults come between its steps."""
    split = captured.Split(round_.steps)
    inside, given, returned = split.inside()
    step = il.capture(captured.function_of(inside, tuple(session.devices), returned))
    players = [ChaosPlayer(hands, setting, round_.killed) for _ in split.parts]
    models = [Model() for _ in split.parts]
    turns = sum(len(parts[0]) + 1 + len(parts[2]) for parts in split.parts)
    due = sorted((fault.at * turns // (len(round_.steps) + 1), fault) for fault in round_.faults)
    turns_done = itertools.count()

    def turn() -> None:
        now = next(turns_done)
        while due and due[0][0] <= now:
            hands.do(due.pop(0)[1])

    try:
        for chaos, model, parts in zip(players, models, split.parts, strict=True):
            for line in parts[0]:
                turn()
                _act(chaos, model, line)
        for chaos, model, parts in zip(players, models, split.parts, strict=True):
            turn()
            facts = [fact for line in parts[1] if (fact := fact_of(model, line.step)) is not None]
            _call(step, chaos, facts, given, inside)
        for chaos, model, parts, left in zip(players, models, split.parts, split.left, strict=True):
            for line in parts[2]:
                turn()
                _act(chaos, model, line)
            for variable, expected in left.items():
                chaos.compare(variable, expected)
        counts["captured programs"] += 1
        hands.over()
        KEYBOARD.forget()
        del step
        for chaos in players:
            chaos.values.clear()
        players[0].finish()
    finally:
        for chaos in players:
            chaos.values.clear()


def _act(chaos: ChaosPlayer, model: Model, line: Line) -> None:
    fact = fact_of(model, line.step)
    assert fact is not None
    try:
        chaos.act(fact._replace(line=line))
    except Wrong as wrong:
        raise Wrong(f"{line.step}: {wrong}") from None


def _call(step: Any, chaos: ChaosPlayer, facts: list[Fact], given: list[int], inside: list[Step]) -> None:
    """Call the captured function once."""
    for fact in facts:
        chaos._buffer.update(fact.made)
    done = False
    if all(v in chaos.values for v in given):
        try:
            with KEYBOARD.inside():
                made = step({v: chaos.values[v] for v in given})
            chaos.values.update(made)
            done = True
        except KeyboardInterrupt:
            chaos._note_interrupt()
        except Exception as error:
            chaos._explain(error, chaos.killed, "the captured function")
    for fact in facts:
        if done:
            chaos.touched(fact)
        else:
            chaos.skip(fact)
    for each in inside:
        if each.kind == "free":
            chaos.values.pop(each.args[0], None)


# -- runs -------------------------------------------------------------------------------------------------------------


class Failed(AssertionError):
    """A round went wrong; the text says which, and how to have it again."""


@contextlib.contextmanager
def handled() -> Iterator[None]:
    """Interrupts come through KEYBOARD."""
    before = signal.signal(signal.SIGINT, KEYBOARD.came)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def open_session(setting: Setting) -> il.Session:
    session = il.connect(
        setting.devices,
        gate=setting.gate,
        options=dict(setting.options),
        window=setting.window,
        memory=setting.memory,
        recover=setting.recover,
    )
    if setting.memory:  # the workers are to run out of it, not the uploads, which say so when they are issued
        session._arena.limit_bytes = 1 << 30
    return session


def revive(session: il.Session, killed: frozenset[int], counts: Counter[str]) -> None:
    """Other workers for those that were killed."""
    for device in sorted(killed):
        with KEYBOARD.held():
            session.restart(session.devices[device])
        counts["other workers"] += 1


def end(session: il.Session, close_with: str, counts: Counter[str]) -> None:
    """Close the session, with a worker that is dead or stopped.

    Raises:
        Wrong: it took too long, or left something.
    """
    pids = [process.pid for process in session._processes]
    folder = session._folder
    if close_with:
        pid = session.devices[0].lane.worker.identity.pid
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL if close_with == "dead" else signal.SIGSTOP)
    started = time.monotonic()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # failures that nobody read are part of the programs
        session.close()
    took = time.monotonic() - started
    counts["sessions"] += 1
    counts["closing, longest, ms"] = max(counts["closing, longest, ms"], int(took * 1000))
    if took > CLOSE_S * SLOW:
        raise Wrong(f"closing took {took:.1f} s with a worker {close_with or 'alive'}")
    left = [f"process {pid}" for pid in pids if _runs(pid)]
    left += [str(folder)] if folder.exists() else []
    left += [name for name in os.listdir("/dev/shm") if any(f"-{pid}-" in name for pid in (*pids, os.getpid()))]
    held = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if _is_open(fd)]
    left += [name for name in held if name.startswith("/memfd:interlock")]
    left += [thread.name for thread in threading.enumerate() if thread.name.startswith("interlock")]
    if left:
        raise Wrong(f"left over after closing with a worker {close_with or 'alive'}: {left}")


def _is_open(fd: str) -> bool:
    return os.path.lexists(f"/proc/self/fd/{fd}")


def _runs(pid: int) -> bool:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/stat", "rb") as file:
        return file.read().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    return False


def run(
    seed: int,
    first: int = 0,
    rounds: int | None = None,
    seconds: float | None = None,
    say: Callable[[str], None] | None = None,
    hang_ends: bool = False,
    among: Sequence[int] = (),
) -> Counter[str]:
    """Rounds of a seed: so many, or for so long; `hang_ends` the process, with all stacks, where even a limit hangs.

    `among`: which of the settings there may be; none are all.

    Raises:
        Failed: one went wrong.
    """
    counts: Counter[str] = Counter()
    deadline = None if seconds is None else time.monotonic() + seconds
    number = first
    sound = workers.PROGRAM

    def more() -> bool:
        return (rounds is None or number < first + rounds) and (deadline is None or time.monotonic() < deadline)

    with handled():
        while more():
            series = number // SERIES
            setting, late = setting_of(seed, series, among)
            if late:
                late_worker = str(Path(__file__).with_name("late_worker.py"))
                workers.PROGRAM = (late_worker, str(seed + series))
            try:
                session = open_session(setting)
                try:
                    while more() and number // SERIES == series:
                        round_ = round_of(seed, number)
                        if hang_ends:
                            faulthandler.dump_traceback_later(HANG_S, exit=True)
                        started = time.monotonic()
                        play(session, setting, round_, counts)
                        number += 1
                        if not setting.recover:
                            revive(session, round_.killed, counts)
                        elif round_.killed:
                            counts["rounds with a recovery"] += 1
                        counts["rounds"] += 1
                        counts["round, longest, ms"] = max(
                            counts["round, longest, ms"], int((time.monotonic() - started) * 1000)
                        )
                        if say is not None and number % 50 == 0:
                            say(f"round {number}: {dict(sorted(counts.items()))}")
                    end(session, round_.close_with, counts)
                finally:
                    faulthandler.cancel_dump_traceback_later()
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore")
                        session.close()
            except (Wrong, il.InterlockError, TimeoutError) as wrong:
                only = " --setting " + " ".join(map(str, among)) if among else ""
                raise Failed(
                    f"round {number} on {setting}{', late' if late else ''}: {type(wrong).__name__}: {wrong}\n"
                    f"faults: {round_.faults}, captured: {round_.captured}\n"
                    f"again: python -m tests.stress.chaos --seed {seed} --first {number} --rounds 1{only}"
                    f" (the whole series: --first {series * SERIES} --rounds {SERIES}{only})"
                ) from wrong
            finally:
                workers.PROGRAM = sound
    return counts


def add(counts: Counter[str], more: Counter[str]) -> None:
    """Add those of other rounds."""
    for name, count in more.items():
        counts[name] = max(counts[name], count) if "longest" in name else counts[name] + count


def table(counts: Counter[str]) -> str:
    return "\n".join(f"{count:>9,}  {name}" for name, count in sorted(counts.items()))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.stress.chaos", description=__doc__.split("\n")[0])
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--seconds", type=float)
    places = range(len(SETTINGS))
    parser.add_argument("--setting", type=int, nargs="*", choices=places, default=(), help="places in SETTINGS; all")
    chosen = parser.parse_args(arguments)
    print(f"seed {chosen.seed}", flush=True)
    rounds = 1000 if chosen.rounds is None and chosen.seconds is None else chosen.rounds
    try:
        counts = run(
            chosen.seed,
            chosen.first,
            rounds,
            chosen.seconds,
            lambda line: print(line, flush=True),
            True,
            chosen.setting,
        )
    except Failed as failed:
        print(failed, file=sys.stderr)
        return 1
    print(table(counts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
