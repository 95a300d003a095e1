"""What a session waits for, in words: `explain`, the text of a TimeoutError, and the warning that a worker is stuck.

The shell of `explain.py`. All that it needs is in the frontend and on the shared page, so that nothing here waits for
what it explains; only a stack is asked of the worker, by a signal that it answers whatever it is doing.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ..protocol.accesses import accesses, buffer_of, operation_name
from ..protocol.messages import Control, Instruction
from ..protocol.page import RUNNING, SINCE, cell
from ..protocol.recordings import bind
from ..protocol.specs import spec as spec_of
from ..protocol.stacks import process_state, python_stack
from . import answers, asked
from . import explain as core
from .events import Pending
from .issue import Handle
from .sites import Site, describe, user_site

if TYPE_CHECKING:
    from .lane import Lane
    from .session import Session

PROBE_S: Final = 0.25  # how long `explain` waits to hear whether what nothing keeps has failed
SHOWN: Final = 12  # links of a chain that are printed; the ones in the middle are left out


class Reason(NamedTuple):
    """One link of the chain: an instruction, and what it waits for."""

    device: str
    number: int  # of the instruction in its lane
    operation: str
    line: str  # `file:line` and the source text there
    call: str | None  # the line that called the captured function, for what is in one
    state: str  # one of the states of `coordinator/explain.py`
    what: str  # the same in words
    since_s: float | None  # it has run, or been sent, for so long

    def __str__(self) -> str:
        called = f", called at {self.call}" if self.call else ""
        return f"{self.device} {self.operation} at {self.line}{called}: {self.what}"


class Explanation:
    """Why an array is not there yet. `str()` of it is for people."""

    def __init__(self, about: str, state: str, reasons: Sequence[Reason] = (), error: Exception | None = None) -> None:
        self.about = about
        self.state = state  # "ready", "failed", "waiting"
        self.reasons = tuple(reasons)
        self.error = error

    def __str__(self) -> str:
        if self.state == "ready":
            return f"{self.about} is ready"
        if self.error is not None:
            notes = "\n".join(getattr(self.error, "__notes__", []))
            return f"{self.about} has failed: {type(self.error).__name__}: {self.error}\n{notes}".rstrip()
        return "\n".join([f"{self.about} is not ready:", *lines(self.reasons)])

    def __repr__(self) -> str:
        return f"<interlock explanation: {self.state}, {len(self.reasons)} instructions>"


def lines(reasons: Sequence[Reason]) -> list[str]:
    """A chain as indented lines; of a long one, both ends."""
    told = [f"  {'waits for ' if place else ''}{reason}" for place, reason in enumerate(reasons)]
    if len(told) > SHOWN:
        half = SHOWN // 2
        told[half:-half] = [f"  ... {len(told) - 2 * half} more ..."]
    return told


def explain(array: Any) -> Explanation:
    """Why an array is not there yet: from the operation that makes it to the one that runs now. Does not wait for it.

    Raises:
        TypeError: it is no array of Interlock's.
    """
    handle = getattr(array, "_state", array)  # a random generator's
    if not isinstance(handle, Handle):
        raise TypeError(f"explain takes an array on a device, not a {type(array).__name__}")
    lane, session = handle._lane, handle._lane.session
    buffer = buffer_of(handle._ref)
    assert buffer is not None
    session.check_open()
    spec: Any = None
    if asked.is_known(handle):
        try:
            spec = handle._spec
        except Exception as error:
            return Explanation(f"an array on {lane.device}", "failed", error=error)
    about = f"{getattr(spec, 'dtype', '')} {getattr(spec, 'shape', '')} on {lane.device}".strip()
    if lane.lost is not None:
        return Explanation(about, "failed", error=lane.lost)
    with session.lock:
        session.flush()
    session.receiver.wake()
    view = View(session)
    step = view.picture.writer(lane.index, buffer)
    if step is not None:
        reasons = view.reasons(step)
        if reasons[-1].state not in (core.COMES, core.STARTS):
            return Explanation(about, "waiting", reasons)
        return _settled(session, lane, buffer, spec, about, reasons)
    return _settled(session, lane, buffer, spec, about, [])


def _settled(session: Session, lane: Lane, buffer: int, spec: Any, about: str, reasons: list[Reason]) -> Explanation:
    """Nothing that it waits for runs: it is there, or has failed, or will be in a moment, as only its worker knows."""
    waiting = Explanation(about, "waiting" if reasons or spec is None else "ready", reasons)
    if not hasattr(spec, "dtype") or session.taping():
        return waiting
    nothing = (buffer, 0, (0,), (spec.dtype.itemsize,), spec.dtype.str)
    pending = session.ask(lane, nothing, user_site(3))
    if not session.receiver.wait(pending, PROBE_S):
        session.abandon(pending)
        return waiting  # the worker is busy with something else
    try:
        answers.value(session, pending, spec_of((0,), spec.dtype))
    except Exception as error:
        return Explanation(about, "failed", error=error)
    return Explanation(about, "ready")


class View:
    """A session's unfinished instructions at a moment, with what people are told of them."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._told: dict[tuple[int, int], tuple[str, Site | None, Site | None, int]] = {}
        self._calls = dict(session.calls)
        self._now = time.monotonic_ns()
        # Whoever holds the lock may be stuck in it: then a look without it must do.
        locked = session.lock.acquire(timeout=1.0)
        try:
            self._lanes = [self._lane(lane) for lane in session.lanes]
        finally:
            if locked:
                session.lock.release()
        self.picture = core.Picture(self._lanes)

    def step(self, lane: int, n: int) -> core.Step | None:
        """An unfinished instruction by its number."""
        return next((step for step in self._lanes[lane].steps if step.n == n), None)

    def next(self, lane: int) -> core.Step | None:
        """The first instruction of a lane that has not finished."""
        return next((step for step in self._lanes[lane].steps if not self.picture.over(step)), None)

    def reasons(self, step: core.Step) -> list[Reason]:
        """The chain from here, in words."""
        return [self._reason(link) for link in self.picture.chain(step)]

    def _lane(self, lane: Lane) -> core.Lane:
        page, done = self._session.progress, lane.through()
        at, since = page[cell(page, RUNNING, lane.index)], page[cell(page, SINCE, lane.index)]
        steps = [
            self._step(lane, n, instruction, site, call, sent_ns)
            for n, instruction, site, call, sent_ns in _unfinished(lane, self._calls)
            if n > done
        ]
        held = lane.held()
        sent = lane.first - 1 if held is None else held[0]
        known = at > done  # else it was noted long ago
        gate = held[1] if held else {}
        return core.Lane(tuple(steps), sent, at if known else 0, known and since > 0, gate, lane.lost is not None)

    def _step(
        self, lane: Lane, n: int, instruction: Instruction, site: Site | None, call: Site | None, sent_ns: int
    ) -> core.Step:
        code = instruction[0]
        name = operation_name(instruction) if code != Control.FENCE else "synchronize"  # as the program calls it
        self._told[lane.index, n] = name, site, call, sent_ns
        reads, writes = accesses(instruction)
        takes = instruction[3] if code == Control.RECV else None
        gives = instruction[2] if code == Control.SEND else None
        return core.Step(lane.index, n, reads, writes, takes, gives, code == Control.FENCE)

    def _reason(self, link: core.Link) -> Reason:
        session, at = self._session, (link.lane, link.n)
        name, site, call, sent_ns = self._told[at]
        since = (self._now - sent_ns) / 1e9 if sent_ns else None
        lane = session.lanes[link.lane]
        if link.state == core.RUNNING:
            page = session.progress
            since = (self._now - page[cell(page, SINCE, link.lane)]) / 1e9
        words = {
            core.RUNNING: f"it has run for {since or 0:.1f} s",
            core.QUEUED: f"behind {link.behind} other{'s' * (link.behind != 1)} on {lane.device}",
            core.TICKET: "it needs what another device sends",
            core.COMES: "what it needs was sent, and is on its way",
            core.NEEDS: f"it needs what {lane.device} has not received",
            core.GATE: "it is held here (gate='coordinator')",
            core.UNSENT: "it leaves with the next batch",
            core.STARTS: f"it was sent to {lane.device}, where nothing is before it",
            core.LOST: f"the worker of {lane.device} is lost",
        }
        called = None if call is None else describe(call)
        return Reason(str(lane.device), link.n, name, describe(site), called, link.state, words[link.state], since)


def _unfinished(lane: Lane, calls: dict[int, Site | None]) -> Any:
    """(n, instruction, its line, the line of the call that it is in, when it was sent) of all that is remembered."""
    batches = [*lane.log, (lane.first, list(lane.sites), list(lane.batch), 0)]
    for first, sites, instructions, sent_ns in batches:
        n = first
        for instruction in instructions:
            if instruction[0] != Control.RUN:
                yield n, instruction, _at(sites, n - first), None, sent_ns
                n += 1
                continue
            _, recording, base, bindings, numbers, count = instruction
            part, call = lane.recordings.get(recording), calls.get(base)
            for place in range(count):
                inner: Instruction = (Control.FENCE, 0)
                if part is not None:
                    inner = bind(part.template.instructions[place], base, bindings, numbers)
                yield n, inner, _at(sites, n - first), call, sent_ns
                n += 1


def _at(sites: Sequence[Site | None], place: int) -> Site | None:
    return sites[place] if place < len(sites) else None


# -- long waits


def why_waiting(session: Session, pending: Pending) -> list[str]:
    """What a wait waits for, as lines."""
    view = View(session)
    step = view.step(pending.lane, pending.n) or view.next(pending.lane)
    if step is not None:
        return lines(view.reasons(step))
    return [f"  the answer of {session.lanes[pending.lane].device} is on its way"]


def look_at_wait(session: Session, pending: Pending) -> None:
    """A wait goes on: called about once a second by who waits. Warns once, if its worker lives and does not go on."""
    if pending.warned or session.lanes[pending.lane].lost is not None or session.lanes[pending.lane].paused:
        return
    now = time.monotonic_ns()
    view = View(session)
    step = view.step(pending.lane, pending.n) or view.next(pending.lane)
    links = [] if step is None else view.picture.chain(step)
    lane = session.lanes[links[-1].lane if links else pending.lane]
    seen = (lane.index, links[-1].n if links else 0, lane.through())
    if seen != pending.seen:
        pending.seen, pending.seen_ns = seen, now
    if now - max(pending.seen_ns, pending.since_ns) < (session.stuck_after - 1) * 1e9:
        return
    pending.warned = True
    waited = (now - pending.since_ns) / 1e9
    # Without a shared page a worker tells at each quarter of the window only: it may well go on.
    found = "lives but does not go on" if lane.shares else "lives and has told of no progress"
    text = [
        f"interlock: {describe(pending.site)} has waited for {waited:.0f} s, and the worker of {lane.device} "
        f"(process {lane.worker.identity.pid}) {found}:",
        *(lines(view.reasons(step)) if step is not None else []),
        *worker_story(session, lane),
        "it is still waited for; Ctrl-C drops what has not started",
    ]
    print("\n".join(text), file=sys.stderr, flush=True)


def worker_story(session: Session, lane: Lane) -> list[str]:
    """What a worker is doing, as lines: whether it is stopped, and its Python stack."""
    identity = lane.worker.identity
    state = process_state(identity) if session.here(lane) else None
    if state is None:
        return []
    if state in "Tt":
        return [f"  process {identity.pid} is stopped (Ctrl-Z, a debugger): `kill -CONT {identity.pid}` lets it go on"]
    stack = python_stack(identity)
    return ["  there it is in (the innermost first):", *(f"    {line}" for line in stack)] if stack else []


# -- told to another program


def told(session: Session) -> dict[str, Any]:
    """What the session waits for, as plain values, for `interlock explain`."""
    view = View(session)
    now = time.monotonic_ns()
    pendings = [*session.pending(), *[lane.credit for lane in session.lanes if lane.credit is not None]]
    waits = []
    for pending in pendings:
        step = view.step(pending.lane, pending.n) or view.next(pending.lane)
        reasons = [] if step is None else view.reasons(step)
        waits.append(
            {
                "line": describe(pending.site),
                "device": str(session.lanes[pending.lane].device),
                "what": pending.what,
                "since_s": (now - pending.since_ns) / 1e9,
                "chain": [reason._asdict() for reason in reasons],
                "text": lines(reasons),
            }
        )
    workers = []
    for lane in session.lanes:
        state = (process_state(lane.worker.identity) if session.here(lane) else None) or ""
        following = None if lane.lost is not None else view.next(lane.index)
        workers.append(
            {
                "device": str(lane.device),
                "pid": lane.worker.identity.pid,
                "state": "lost" if lane.lost is not None else {"T": "stopped", "t": "stopped"}.get(state, "alive"),
                "finished": lane.through(),
                "issued": lane.first - 1 + len(lane.sites),
                "next": str(view.reasons(following)[0]) if following is not None else None,
            }
        )
    return {"session": session.id.hex(), "waits": waits, "workers": workers}
