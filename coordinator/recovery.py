"""connect(recover=True): a worker's death costs time and nothing else, as what it had is made again.

All batches since the last checkpoint are remembered (`history.py`). A checkpoint is what all buffers of the session
hold at one moment, on all lanes: it is asked for under the session's lock, where both ends of a transfer are issued
together, so that no transfer is cut in two. Its answers come as the workers get there; until the last one has come,
the checkpoint before it holds.

When a worker is lost, another one is started, every lane begins a new life on its worker, under the same numbers; the
buffers of the checkpoint are made again, and the batches since are sent again in the order in which they were sent.
All that a worker does is determined by its lane's instructions, so the results are the same, bit for bit. Who waits
for an answer goes on waiting; what is issued meanwhile waits in the lanes, and follows.

What still comes from the life before is dropped: what workers report carries the life's number (`messages.aged`), what
they tell one another the id that the session had in that life. The only thread that does any of this is the one here.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import warnings
from collections import Counter, deque
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from ..protocol import messages as m
from ..protocol.arena import Arena
from ..protocol.errors import InterlockError
from ..protocol.messages import Control
from ..protocol.page import CANCEL, DONE, FLAGGED, RUNNING, cell
from ..protocol.specs import Spec
from ..protocol.specs import spec as spec_of
from . import closing, greetings, losses, workers
from .events import Pending
from .history import Asked, Chunk, Live, question_of, without_answered
from .lives import Source

if TYPE_CHECKING:
    from .lane import Lane
    from .session import Session

INSTRUCTIONS: Final = 10_000  # since the last checkpoint, until the next one is made
UPLOADED: Final = 256 << 20  # bytes of uploads since, likewise
PUT_OFF: Final = 8  # checkpoints in a row that could not be made, until what was sent since is not kept any more
TRIES: Final = 6  # losses in a row without any progress, until it is given up
GREETING_S: Final = 0.05  # between two looks whether a worker that does not answer is still there
AGAIN_S: Final = 0.1  # before another try; twice as long each time
LONGEST_S: Final = 1.0
PIECE: Final = 8 << 20  # bytes of small arrays in one message
KEEPS: Final = 256  # in one batch
NO_SPEC: Final = spec_of((), np.dtype(np.float64))  # of what never got one, as it failed
POLL_S: Final = 0.0005  # between two looks whether a worker has room for more of the replay
STOP_S: Final = 1.0  # how long a session that is closed waits for the thread here


class Saved(NamedTuple):
    """What a buffer held at the checkpoint."""

    place: Any  # bytes, a Block of the arena here, or a generator's state
    failure: tuple[Any, ...] | None


class _Stale(Exception):
    """Another worker was lost meanwhile, or the session is closed: begin again."""


class Recovery:
    """One session's. Guarded by the session's lock, but for what only its own thread uses."""

    def __init__(self, session: Session, source: Source) -> None:
        self._session = session
        self._source = source
        self._limit = session.memory * len(session.lanes)
        self._arena = Arena(self._limit, session._identity)
        # The last checkpoint: by lane, what was live, how far the lane was, and what each buffer held.
        self._live: dict[int, Live] = {lane.index: Live() for lane in session.lanes}
        self._after: dict[int, int] = {lane.index: lane.first - 1 for lane in session.lanes}
        self._saved: dict[int, dict[int, Saved]] = {lane.index: {} for lane in session.lanes}
        self._kept_recordings: dict[int, dict[int, Any]] = {lane.index: {} for lane in session.lanes}
        self._kept_buffers: dict[int, dict[int, Any]] = {lane.index: {} for lane in session.lanes}
        # Since then; while a checkpoint is being made, what was sent before it is apart.
        self._before: list[Chunk] = []
        self._log: list[Chunk] = []
        self._folded = 0  # so many of the log are in `_live` already
        self._instructions = 0
        self._uploads: dict[int, tuple[int, Any, int]] = {}  # of the log, by number: their data must stay
        self._uploaded = 0
        self._lent: Counter[int] = Counter()  # blocks of the checkpoint that workers read, by id
        self._quiet = False  # what is sent is not to be remembered
        self._dead: dict[Lane, str] = {}
        self._marks: dict[int, int] = {}  # by lane, the furthest that was seen when its worker was lost
        self._tries = 0
        self.recovering = False
        self._told: dict[int, tuple[tuple[Any, ...], ...]] = {}  # by question, the specs that only a worker could tell
        self._asked: dict[int, set[int]] = {}  # by lane, what a checkpoint that is being made asked for
        self._put_offs = 0  # in a row
        self._wanted: list[Pending] = []  # of those who wait for a checkpoint
        self._wake = threading.Event()
        self._closed = False
        self._freed = False
        self._thread = threading.Thread(target=self._run, name="interlock-recovery", daemon=True)
        self._thread.start()

    # -- what the session tells; the caller holds its lock

    def note(self, lane: Lane, first: int, batch: list[Any]) -> None:
        """A batch is about to be sent."""
        live = self._live[lane.index]
        for spec in lane.specs:
            live.specs[spec.id] = live.since[spec.id] = spec
        if self._quiet:
            return
        self._log.append(Chunk(lane.index, first, batch, lane.sites, lane.heavy))
        self._instructions += len(batch)
        if self._instructions >= INSTRUCTIONS:
            self._wake.set()

    def uploaded(self, number: int, upload: tuple[int, Any, int]) -> None:
        """An upload was issued whose data lies in the session's arena."""
        self._uploads[number] = upload
        self._uploaded += upload[1].nbytes
        if self._uploaded >= UPLOADED:
            self._wake.set()

    def returned(self, number: int, block: Any) -> None:
        """A worker reads this upload no more."""
        if block.arena is self._arena:
            self._lent[id(block)] -= 1
            self._free_unless_needed([block])
        elif number not in self._uploads:
            block.arena.free(block)

    def lost(self, lane: Lane, reason: str) -> None:
        """A worker was lost: nothing more is sent until there is another one."""
        if lane in self._dead:
            return
        session = self._session
        through, mark = lane.through(), self._marks.get(lane.index, -1)
        if not self.recovering:
            self._tries = self._tries + 1 if through <= mark and through < lane.first - 1 else 0
        self._marks[lane.index] = max(mark, through)
        self._dead[lane] = reason
        self.recovering = True
        session.life += 1
        for each in session.lanes:
            each.paused = True
            if session.recorder is not None:
                session.recorder.lost(each.index)  # what the former life recorded last does not come any more
        self._end_questions()  # the thread here may wait for them
        self._wake.set()

    def answered(self, message: m.Value) -> m.Value | None:
        """An answer as it is to be taken: its elements are copied, as their memory may go. None: it does not count."""
        session = self._session
        if message.failure is not None and tuple(message.failure[0])[1] == 0:
            return None  # of a worker whose loss is about to be told: it is asked again
        pending = session._pending.get(message.request)
        if type(message.place) is not tuple or pending is None or isinstance(pending, _Kept):
            return message
        _, loan, offset, ticket = message.place
        lane = session.lanes[message.lane]
        try:
            memory = session._mappings.attach(lane.worker.identity, ticket)
        except InterlockError:
            return None  # as above
        end = None if pending.nbytes is None else offset + pending.nbytes
        elements = np.frombuffer(memory, np.uint8)[offset:end].copy()
        lane.send(m.Returned((loan,)))
        return message._replace(place=elements)

    def described(self, message: m.Described) -> bool:
        """Specs that only a worker could tell. False if the answer does not count."""
        if message.failure is not None and tuple(message.failure[0])[1] == 0:
            return False
        self._told[message.request] = message.specs
        return True

    # -- what the session asks

    def checkpoint(self, timeout: float | None) -> bool:
        """Make a checkpoint of what was issued up to now, and wait for it."""
        session = self._session
        pending = Pending(0)
        with session.lock:
            self._wanted.append(pending)
        self._wake.set()
        return session.wait(pending, timeout)

    def restart(self, lane: Lane) -> None:
        """Let another worker take the place of this one; its arrays stay."""
        session = self._session
        with session.lock:
            if lane not in self._dead:
                lane.left = True
                losses.lose(session, lane.index, "was stopped by restart()")
                self._tries = 0  # who asks for it again and again may have it
        while self.recovering and not session.closed and lane.lost is None:
            self._wake.set()
            time.sleep(POLL_S)
        if lane.lost is not None:
            raise lane.lost

    def close(self) -> None:
        """The session ends."""
        session = self._session
        self._closed = True
        self._source.close()
        self._wake.set()
        with closing.lock(session) as mine:
            self._end_questions()
        session.nudge()
        if mine and self._thread is not threading.current_thread():
            self._thread.join(STOP_S)
        with closing.lock(session):
            if self.recovering:  # nothing can be waited for any more
                for lane in session.lanes:
                    lane.paused = False
                    lane.lose(InterlockError("the session was closed while a worker was being replaced"))
            self._let_go()
            for pending in self._wanted:
                pending.happened(None)

    def _let_go(self) -> None:
        """The session goes on without this; the caller holds its lock."""
        session = self._session
        session.recovery = None
        for number, (_, block, _) in self._uploads.items():
            if number not in session._uploads:
                block.arena.free(block)
        self._uploads = {}
        for number in [each for each, (_, block, _) in session._uploads.items() if block.arena is self._arena]:
            del session._uploads[number]

    def free(self) -> None:
        """Give back the memory of the checkpoint; no worker reads it any more."""
        for kept in self._saved.values():
            for each in kept.values():
                if _is_block(each.place):
                    self._arena.free(each.place)
        self._saved = {}
        if not self._freed:
            self._freed = True
            self._arena.close()

    # -- the thread

    def _run(self) -> None:
        while not self._closed:
            self._wake.wait()
            self._wake.clear()
            try:
                if self.recovering:
                    self._recover()
                    self._wake.set()  # a checkpoint may be due since
                elif self._due():
                    self._checkpoint()
            except _Stale:
                self._wake.set()
            except Exception as error:
                if not self._closed:
                    self._give_up(f"recovering failed ({type(error).__name__}: {error})")

    def _due(self) -> bool:
        return bool(self._wanted) or self._instructions >= INSTRUCTIONS or self._uploaded >= UPLOADED

    def _check(self, life: int) -> None:
        if self._closed or self._session.life != life or self._session.closed:
            raise _Stale

    # -- a checkpoint

    def _checkpoint(self) -> None:
        session = self._session
        with session.lock:
            if self.recovering or session.closed:
                return
            life = session.life
            wanted, self._wanted = self._wanted, []
            session.flush()
            self._fold()
            uploads = set(self._uploads)
            self._instructions = self._uploaded = 0
            known = {lane.index: dict(lane.known) for lane in session.lanes}
            for live in self._live.values():
                live.since = {}
            after = {lane.index: lane.first - 1 for lane in session.lanes}
            buffers = {index: dict(live.buffers) for index, live in self._live.items()}
            recordings = {index: dict(live.recordings) for index, live in self._live.items()}
            asked_before = set(session._pending)
            earlier = next(session._requests)
            asked = self._ask(life)
        saved: dict[int, dict[int, Saved]] = {index: {} for index in buffers}
        try:
            for pending in asked:
                session.receiver.wait(pending)
                self._check(life)
                self._land(pending, saved, buffers, life)
            while True:  # answers to questions from before it may still be under way: they must not be asked again
                with session.lock:
                    self._check(life)
                    if asked_before.isdisjoint(session._pending):
                        self._replace(saved, after, buffers, recordings, uploads)
                        self._told = {each: specs for each, specs in self._told.items() if each > earlier}
                        for index, live in self._live.items():
                            live.specs = {**known[index], **live.since}
                        break
                time.sleep(POLL_S)
        except BaseException as error:
            with session.lock:
                self._wanted += wanted
                self._forget(saved)
                if not isinstance(error, _Stale):  # no memory for it
                    self._put_off(error)
                    return
            raise
        self._put_offs = 0
        for each in wanted:
            each.happened(True)
        session.nudge()

    def _spec(self, spec: Spec | Asked) -> Spec:
        """The spec itself; of what failed, any."""
        if not isinstance(spec, Asked):
            return spec
        told = self._told.get(spec.request)
        return spec_of(told[spec.place][0], np.dtype(told[spec.place][1]), told[spec.place][2]) if told else NO_SPEC

    def _fold(self) -> None:
        for chunk in self._log[self._folded :]:
            self._live[chunk.lane].fold(chunk.batch)
        self._before, self._log, self._folded = self._log, [], 0

    def _ask(self, life: int) -> list[_Kept]:
        """Ask every lane for what was changed since the last checkpoint, and for the end of all before."""
        session = self._session
        asked: list[_Kept] = []
        self._quiet = True
        try:
            for lane in session.lanes:
                live = self._live[lane.index]
                questions: list[tuple[int, Any]] = [(buffer, (Control.KEEP, buffer)) for buffer in live.changed]
                self._asked[lane.index], live.changed = live.changed, set()
                for place, (buffer, question) in enumerate([*questions, (0, (Control.FENCE,))], 1):
                    request = next(session._requests)
                    pending = _Kept(lane.index, buffer)
                    session._pending[request] = pending
                    asked.append(pending)
                    # Not by the batch's own append, which a recording may divert.
                    list.append(lane.batch, (*question, request))
                    list.append(lane.sites, None)
                    if place % KEEPS == 0:
                        lane.flush()
                lane.flush()
        finally:
            self._quiet = False
        session.receiver.wake()
        return asked

    def _land(
        self, pending: _Kept, saved: dict[int, dict[int, Saved]], buffers: dict[int, dict[int, Any]], life: int
    ) -> None:
        """Take in what one buffer held."""
        session, fact = self._session, pending.fact
        if isinstance(fact, Exception):
            raise _Stale
        if pending.buffer == 0 or (type(fact.place) is tuple and fact.place[0] == "nothing"):
            return
        place = fact.place
        if fact.failure is not None and fact.failure[4] == "keep":
            raise MemoryError("a worker had no memory to answer")
        if type(place) is tuple and place[0] == "host":
            _, _, offset, ticket = place
            lane = session.lanes[pending.lane]
            with session.lock:
                self._check(life)
                nbytes = self._spec(buffers[pending.lane][pending.buffer]).nbytes
                block = self._arena.allocate(nbytes)
                try:
                    memory = session._mappings.attach(lane.worker.identity, ticket)
                except InterlockError as error:
                    self._arena.free(block)
                    raise _Stale from error
            elements = np.frombuffer(memory, np.uint8)[offset : offset + nbytes]
            np.copyto(self._arena.array(block, (nbytes,), np.dtype(np.uint8)), elements)
            pending.loan = None
            with session.lock:
                if session.life == life:
                    lane.give_back()
            place = block
        saved[pending.lane][pending.buffer] = Saved(place, fact.failure)

    def _replace(
        self,
        saved: dict[int, dict[int, Saved]],
        after: dict[int, int],
        buffers: dict[int, dict[int, Any]],
        recordings: dict[int, dict[int, Any]],
        uploads: set[int],
    ) -> None:
        """The checkpoint is whole: what came before it is needed no more. The caller holds the lock."""
        session = self._session
        for index, live in buffers.items():
            for buffer, spec in live.items():
                if isinstance(spec, Asked):
                    live[buffer] = self._spec(spec)
                    if buffer in self._live[index].buffers:
                        self._live[index].buffers[buffer] = live[buffer]
            old = self._saved[index]
            for buffer in live:
                if buffer not in saved[index] and buffer in old:
                    saved[index][buffer] = old[buffer]  # not changed since
        former, self._saved = self._saved, saved
        self._after, self._kept_buffers, self._kept_recordings = after, buffers, recordings
        self._before = []
        self._free_unless_needed([each.place for kept in former.values() for each in kept.values()])
        for number in uploads:
            _, block, _ = self._uploads.pop(number)
            if number not in session._uploads:
                block.arena.free(block)

    def _forget(self, saved: dict[int, dict[int, Saved]]) -> None:
        """The checkpoint is not made: what it would have had is to be asked for the next time."""
        for kept in saved.values():
            for each in kept.values():
                if _is_block(each.place):
                    self._arena.free(each.place)
        for index, live in self._live.items():
            live.changed |= {buffer for buffer in self._asked.get(index, ()) if buffer in live.buffers}
        self._asked = {}
        self._log, self._folded = self._before + self._log, len(self._before)
        self._before = []
        self._instructions = sum(len(chunk.batch) for chunk in self._log)

    def _put_off(self, error: BaseException) -> None:
        """There is no memory for a checkpoint: then without one, for as long as the log may grow."""
        for pending in self._wanted:
            pending.happened(InterlockError(f"no checkpoint could be made: {error}"))
        self._wanted = []
        self._instructions = self._uploaded = 0  # another try when as much has come again
        self._put_offs += 1
        if self._put_offs >= PUT_OFF:
            self._stop()
        if self._closed:
            told = (
                f"recover=True has ended, as {PUT_OFF} checkpoints in a row could not be made ({error}): what a worker "
                f"holds is lost with it from now on; drop arrays, or raise memory="
            )
        else:
            told = f"recover=True: no checkpoint could be made ({error}); all is kept"
        if self._closed or self._put_offs == 1:
            with contextlib.suppress(Warning):
                warnings.warn(told, stacklevel=2)

    def _stop(self) -> None:
        """The session goes on as one without recover=True. The caller holds its lock."""
        self._closed = True
        self._let_go()
        self._end_questions()
        self._log, self._before = [], []
        self.free()

    def _free_unless_needed(self, places: list[Any]) -> None:
        needed = {id(each.place) for kept in self._saved.values() for each in kept.values()}
        for block in places:
            if not _is_block(block) or id(block) in needed or self._lent[id(block)] > 0:
                continue
            self._lent.pop(id(block), None)
            self._arena.free(block)

    def _end_questions(self) -> None:
        """Nobody waits for the checkpoint's answers any more. The caller holds the lock."""
        pending = self._session._pending
        for request, each in list(pending.items()):
            if isinstance(each, _Kept):
                del pending[request]
                each.happened(_Stale())

    # -- a recovery

    def _recover(self) -> None:
        session = self._session
        with session.lock:
            tries, dead = self._tries, dict(self._dead)
        if tries >= TRIES:
            story = "; ".join(f"the worker of {lane.device} {reason}" for lane, reason in dead.items())
            self._give_up(f"was not recovered in {tries} tries ({story})")
            return
        if tries > 1:
            time.sleep(min(AGAIN_S * 2 ** (tries - 2), LONGEST_S))
        try:
            life = self._start_others()
            self._begin(life)
            self._replay(life)
            with session.lock:
                self._check(life)
                session.former = ()
                self.recovering = False
                for lane in session.lanes:
                    lane.paused = False
                self._resume()
        except _Stale:
            with session.lock:
                self._tries += 1
            raise
        session.nudge()

    def _start_others(self) -> int:
        """Another worker for each that was lost; the life of the session that they begin."""
        session = self._session
        while True:
            with session.lock:
                self._check(session.life)
                lane = next(iter(self._dead), None)
                if lane is None:
                    return session.life
            try:
                worker, process = self._source.another(lane)
            except InterlockError as error:
                self._dead[lane] = str(error)
                raise _Stale from None
            with session.lock:
                self._adopt(lane, worker, process)

    def _begin(self, life: int) -> None:
        """A new life of every lane, with what the checkpoint has."""
        session = self._session
        with session.lock:
            self._check(life)
            self._end_questions()
            session.former, session.id = (*session.former, session.id), os.urandom(16)
            for lane in session.lanes:
                lane.renew(b"s" + session.id + bytes([lane.index]))
        for lane in session.lanes:
            greetings.say_hello(session, lane)
        for lane in session.lanes:
            self._await_welcome(lane, life)
        with session.lock:
            self._check(life)
            greetings.introduce(session, session.lanes)
            self._lent.clear()
            lent = [block for _, block, _ in session._uploads.values() if block.arena is self._arena]
            for number, (_, block, _) in session._uploads.items():
                if block.arena is not self._arena and number not in self._uploads:
                    block.arena.free(block)
            session._uploads.clear()
            session._uploads.update(self._uploads)
            self._free_unless_needed(list({id(block): block for block in lent}.values()))
            page = session.progress
            session.flags.again()
            for lane in session.lanes:
                lane.completed = self._after[lane.index]
                lane.log.clear()
                lane.loans_over.clear()
                page[cell(page, DONE, lane.index)] = lane.completed
                for row in (RUNNING, CANCEL, FLAGGED):
                    page[cell(page, row, lane.index)] = 0
                self._restore(lane)

    def _adopt(self, lane: Lane, worker: workers.Adopted, process: workers.Process | None) -> None:
        """Another worker has begun; the caller holds the lock."""
        session, former = self._session, lane.worker.identity
        del self._dead[lane]
        session._watch.forget((lane.index, former.incarnation))
        session._mappings.forget(former)
        if process is not None:
            session._processes = [each for each in session._processes if each is not lane.process]
            session._processes.append(process)
        lane.worker, lane.process, lane.left = worker, process, False
        session._watch.watch((lane.index, worker.identity.incarnation), worker.identity)

    def _await_welcome(self, lane: Lane, life: int) -> None:
        """However long it takes: a worker that lives may be at something that takes long."""
        session = self._session
        pending = session._welcomes[lane.index]
        while not session.receiver.wait(pending, GREETING_S):
            self._check(life)
        if isinstance(pending.fact, Exception):
            raise _Stale
        lane.welcomed(pending.fact)

    def _resume(self) -> None:
        """What was issued meanwhile leaves; the caller holds the lock."""
        session = self._session
        sent = [each for chunk in self._log for each in chunk.batch]
        waiting = [each for lane in session.lanes for each in lane.batch]
        asked = {question_of(each) for each in [*sent, *waiting]}
        for request in [each for each in session._pending if each not in asked]:  # beside the lanes: an Inspect
            session._pending.pop(request).happened(InterlockError("a worker was replaced meanwhile: ask again"))
        if session.recorder is not None:
            for lane in session.lanes:
                lane.send(m.Trace(True))
        session.flush()
        for lane in session.lanes:
            session._give_credit(lane)

    def _restore(self, lane: Lane) -> None:
        live, saved = self._live[lane.index], self._saved[lane.index]
        specs = {**live.specs, **{spec.id: spec for spec in self._kept_buffers[lane.index].values()}}
        for id, spec in lane.known.items():
            specs[id] = spec
        lane.known.update(specs)
        told = tuple([(s.id, s.shape, s.dtype.str, s.strides) for s in specs.values()])
        recordings = tuple([(n, *template) for n, template in self._kept_recordings[lane.index].items()])
        after = self._after[lane.index]
        lane.post(m.Restore(after, told, (), recordings))
        piece: list[tuple[Any, ...]] = []
        size = 0
        for buffer, spec in self._kept_buffers[lane.index].items():
            held = saved.get(buffer)
            if held is None:
                continue  # there was no such buffer
            place = held.place
            if _is_block(place):
                place = self._lend(lane, buffer, place)
            piece.append((buffer, spec.id, place, held.failure))
            size += len(place) if type(place) is bytes else 100
            if size > PIECE:
                lane.post(m.Restore(after, (), tuple(piece), ()))
                piece, size = [], 0
        if piece:
            lane.post(m.Restore(after, (), tuple(piece), ()))

    def _lend(self, lane: Lane, buffer: int, block: Any) -> tuple[Any, ...]:
        number = next(self._session._blocks)
        self._session._uploads[number] = lane.index, block, buffer
        self._lent[id(block)] += 1
        return ("host", number, 0, self._arena.ticket(block))

    def _replay(self, life: int) -> None:
        """Send again what was sent since the checkpoint, never more ahead than a window."""
        session = self._session
        with session.lock:
            chunks = [*self._before, *self._log]
        ahead: dict[int, deque[tuple[int, int, int]]] = {lane.index: deque() for lane in session.lanes}
        for chunk in chunks:
            lane = session.lanes[chunk.lane]
            sent = ahead[chunk.lane]
            while not self._has_room(lane, sent):
                self._check(life)
                time.sleep(POLL_S)
            with session.lock:
                self._check(life)
                batch = without_answered(chunk.batch, session._pending)
                lane.resend(chunk.first, chunk.sites, batch)
                lane.replayed = chunk.last
            sent.append((chunk.last, len(chunk.sites), chunk.heavy))

    def _has_room(self, lane: Lane, sent: deque[tuple[int, int, int]]) -> bool:
        through = lane.through()
        while sent and sent[0][0] <= through:
            sent.popleft()
        session = self._session
        counted, heavy = sum(each[1] for each in sent), sum(each[2] for each in sent)
        return counted < session.window and (heavy < session.window_bytes or not heavy)

    def _give_up(self, reason: str) -> None:
        """Everything is lost: what living workers had, was taken from them to begin anew."""
        session = self._session
        with session.lock:
            self._stop()
            self.recovering = False
            for lane in session.lanes:
                lane.paused = False
            for pending in self._wanted:
                pending.happened(InterlockError("there is nothing left to make a checkpoint of"))
            for lane in list(session.lanes):
                own = self._dead.get(lane)
                losses.lose(
                    session,
                    lane.index,
                    reason if own is None else f"was not recovered in {self._tries} tries: it {own}",
                )
        session.nudge()


def _is_block(place: Any) -> bool:
    """Whether it lies in the arena here."""
    return not isinstance(place, (bytes, tuple, type(None)))


class _Kept(Pending):
    """The answer to a KEEP, or to the fence behind them (buffer 0)."""

    __slots__ = ("buffer",)

    def __init__(self, lane: int, buffer: int) -> None:
        super().__init__(lane)
        self.buffer = buffer
