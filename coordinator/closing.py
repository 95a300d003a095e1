"""The end of a session: what is waited for and how long, and that nothing is left whatever comes in between.

First the work under way gets a moment, so that its errors can be told. Then a list of steps is gone through, each of
which may be done twice: Ctrl-C repeats the step that it came in, without patience, and is raised when all is over. A
close that another thread has begun is waited for. It may be called from anywhere, also from a finalizer that runs
while this very thread holds the session's lock further down: so no lock is waited for without a limit.

At the program's end threads may be left that use the session (Python stops them where they are, a moment later).
Nothing is taken from these: an error in such a thread would be printed, and be nobody's fault.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from ..protocol import messages as m
from ..protocol.arena import sweep
from ..protocol.errors import InterlockError
from ..protocol.identity import same_host
from ..protocol.sockets import remove_folder
from . import failures, workers
from .sites import user_site

if TYPE_CHECKING:
    from .lane import Lane
    from .session import Session

WORK_S: Final = 1.0  # how long what is under way may go on
BUSY_S: Final = 0.2  # how long a worker may take to stop that has not come to its end by then
LOCK_S: Final = 0.5  # a lock that cannot be had in this time is held by this thread, further down
OTHERS_S: Final = 5.0  # how long to wait for a close that another thread has begun
LINGER_MS: Final = 500


class Closing:
    """How far the end of a session has come."""

    def __init__(self) -> None:
        self.unclosed: list[None] = [None]  # taken by the thread that closes; deleting is no call that Ctrl-C comes in
        self.thread = 0  # which that is
        self.over = threading.Event()
        self.until = 0.0  # monotonic: as long as the work may go on
        self.patience_s = BUSY_S  # with workers that were told to stop
        self.unread: list[Exception] = []
        self.lingers: dict[int, int] = {}  # by lane, ms: those that lived when the session was closed


def close(session: Session, until: float | None = None, at_exit: bool = False) -> None:
    """End a session; once, however often and from wherever it is called.

    Args:
        session: whose close this is.
        until: monotonic; the work under way may go on until then, None for WORK_S from now.
        at_exit: the program ends: threads that use the session are to be left alone.
    """
    closing = session.closing
    if os.getpid() != session._pid or closing.over.is_set():
        return
    mine = False
    try:
        with contextlib.suppress(IndexError):
            del closing.unclosed[0]
            mine = True
        if not mine:
            if closing.thread != threading.get_ident():
                closing.over.wait(OTHERS_S)
            return
        closing.thread = threading.get_ident()
        closing.until = until or 0.0
        interrupt = _do(session, _steps_at_exit(session) if at_exit and _used_by_others() else _steps(session))
    except BaseException:
        if mine:
            closing.unclosed.append(None)  # Ctrl-C came before the first step: somebody else may close
        raise
    if closing.unread:
        warnings.warn(failures.unread(len(closing.unread), closing.unread[:5]), stacklevel=4)
    if session.saves:
        from .checkpoints import report

        report(session.saves)
    if session.flags.on:
        session.flags.tell(user_site(2), closing=True)
    if interrupt is not None:
        raise interrupt


def _do(session: Session, steps: list[Callable[[Session], None]]) -> BaseException | None:
    """Go through all steps; the interrupt or the error that came in between."""
    came: BaseException | None = None
    while steps:
        try:
            while steps:
                steps[0](session)
                del steps[0]
        except Exception as error:  # the others are to be done all the same
            came = came or error
            del steps[0]
        except BaseException as interrupt:
            came = interrupt
            session.closing.patience_s = 0.0
            if steps[0] is _let_work_end:
                del steps[0]
    session.closing.over.set()
    return came


def _steps(session: Session) -> list[Callable[[Session], None]]:
    ends = [_shut, _end_lives, _end_watch, _stop_workers, _end_receiver, _release, _forget]
    return [_let_work_end, _end_lives, _take_unread, *ends]


def _steps_at_exit(session: Session) -> list[Callable[[Session], None]]:
    session.exiting = True
    return [_let_work_end, _end_lives, _take_unread, _say_goodbye, _end_watch, _stop_workers, _forget]


def _used_by_others() -> bool:
    """Whether threads of the program's own are left, daemons all of them."""
    me = threading.current_thread()
    return any(each is not me and not each.name.startswith("interlock-") for each in threading.enumerate())


# -- the steps


def _let_work_end(session: Session) -> None:
    """Wait a moment for what was issued, as it may fail, and that is to be told; and for saves, as long as it takes."""
    closing = session.closing
    if not session.greeted or session.taping() or not _lock(session):
        return
    session.lock.release()
    if session.saves:
        from .checkpoints import finish

        finish(session.saves)
    until = closing.until or time.monotonic() + WORK_S
    ends = True
    try:
        fences = [session._ask(lane, None) for lane in session.lanes if _answers(session, lane)]
        for fence in fences:
            ends = session.receiver.wait(fence, max(until - time.monotonic(), 0.0)) and ends
    except Exception:  # something else closes, or loses, the session's workers
        return
    if ends and len(fences) == sum(lane.lost is None for lane in session.lanes):
        closing.patience_s = workers.STOP_S


def _answers(session: Session, lane: Lane) -> bool:
    """Whether it makes sense to ask this worker: it lives, and is not stopped."""
    worker = lane.worker.identity
    if lane.lost is not None:
        return False
    if same_host(worker, session._identity):
        with contextlib.suppress(OSError), open(f"/proc/{worker.pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] not in (b"T", b"t", b"Z", b"X")
    return True


def _end_lives(session: Session) -> None:
    """Lost workers get no others any more."""
    if session.recovery is not None:
        session.recovery.close()
    if session.lives is not None:
        session.lives.close()


def _take_unread(session: Session) -> None:
    if session.greeted and _lock(session):
        session.lock.release()
        closing = session.closing
        closing.unread = closing.unread or session._take_unread()


def _say_goodbye(session: Session) -> None:
    """Tell the workers that live; those that are this session's own stop."""
    for lane in session.lanes:
        alive = session.closing.lingers.setdefault(lane.index, LINGER_MS if lane.lost is None else 0)
        if alive:
            with contextlib.suppress(Exception):
                lane.flush()
                lane.send(m.Goodbye())
                if session._processes:
                    lane.send(m.Stop())


def _shut(session: Session) -> None:
    """Nothing can be issued any more, and nobody waits."""
    locked = _lock(session)
    try:
        session.closed = True
        _say_goodbye(session)
        for lane in session.lanes:
            lane.lose(InterlockError("the session is closed"))
            session._give_credit(lane)
            lane.close(session.closing.lingers[lane.index])
        for pending in [*session._pending.values(), *session._welcomes.values()]:
            if not pending.done:
                pending.happened(InterlockError("the session was closed by another thread while this one waited"))
        session._pending.clear()
    finally:
        if locked:
            session.lock.release()


def _end_watch(session: Session) -> None:
    session._watch.close()
    if session.questions is not None:
        session.questions.close()


def _stop_workers(session: Session) -> None:
    workers.stop(session._processes, session.closing.patience_s)


def _end_receiver(session: Session) -> None:
    session.receiver.close()
    session.network.close()


def _release(session: Session) -> None:
    """Give the shared memory back."""
    session.progress.release()
    session._mappings.close()
    if session._progress_block.live:
        session._page.free(session._progress_block)  # or this object would keep the memory mapped
    if session.kept is not None:
        session.kept.free()
    while session._uploads:
        _, (_, block, _) = session._uploads.popitem()
        session._arena.free(block)
    session._arena.close()
    session._page.close()


def _forget(session: Session) -> None:
    sweep()  # the named segments of workers that were killed; their guards do it, too, a moment later
    remove_folder(session._folder)
    session._forgotten()


@contextlib.contextmanager
def lock(session: Session) -> Iterator[bool]:
    """With the session's lock, or without it where this thread holds it, further down; which it is."""
    locked = _lock(session)
    try:
        yield locked
    finally:
        if locked:
            session.lock.release()


def _lock(session: Session) -> bool:
    """Take the session's lock. False if it cannot be had: this thread holds it, further down."""
    return session.lock.acquire(timeout=LOCK_S)
