"""Who receives a session's events, and how the others wait.

A thread that waits for something receives for itself: it takes the turn, handles everyone's events until its own
thing has happened, and hands the turn on. Nothing that anyone waits for needs the background thread, which would
first have to get the interpreter from a busy program. That thread only ticks: while work is under way it sends
what was issued and not sent, and takes in the events that nobody waits for.
Knows nothing of what the events mean.
"""

from __future__ import annotations

import contextlib
import math
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from ..protocol.errors import InterlockError
from ..protocol.sockets import Events, Outlet
from .loans import Loan
from .uninterrupted import uninterrupted

LONGEST_S: Final = 1e6  # seconds; what is longer is cut off, as the sockets count milliseconds in 32 bits
TURN_S: Final = 1.0  # how long the end waits for whoever receives
LOOK_S: Final = 1.0  # how often a wait looks whether what it waits for goes on
STUCK_S: Final = 10.0  # without any progress: then a wait says what it waits for
TICK_S: Final = 0.002  # how long an instruction may lie unsent while the program does something else


def seconds(timeout: float | None) -> float | None:
    """A time to wait, checked; None for as long as it takes, which infinity means as well.

    Raises:
        TypeError: it is no number.
        ValueError: it is negative, or not a number at all.
    """
    if timeout is None or timeout == math.inf:
        return None
    if not isinstance(timeout, (int, float)):
        raise TypeError(f"timeout must be a number of seconds or None, not a {type(timeout).__name__}")
    if not timeout >= 0:
        raise ValueError(f"timeout must not be negative, and {timeout} is")
    return min(float(timeout), LONGEST_S)


class Pending:
    """Something that will happen once: a value that was asked for. `fact` is what came, None till then."""

    __slots__ = (
        "callback", "done", "fact", "lane", "loan", "n", "nbytes", "seen", "seen_ns", "since_ns", "site", "wakeups",
        "warned", "what",
    )  # fmt: skip

    def __init__(self, lane: int, what: str = "", n: int = 0, site: Any = None) -> None:
        """In this lane; `what` is waited for, by instruction `n` if it is one, at the user's line `site`."""
        self.lane = lane
        self.what = what
        self.n = n
        self.site = site
        self.since_ns = time.monotonic_ns()
        self.seen: Any = None  # of a long wait, what was last seen of it, and since when
        self.seen_ns = 0
        self.warned = False
        self.done = False
        self.fact: Any = None
        self.loan: Loan | None = None  # of the memory that the fact lies in
        self.nbytes: int | None = None  # of what was asked for, where it is only a part of what comes
        self.wakeups: tuple[threading.Event, ...] = ()  # of threads that wait without having the turn
        self.callback: Callable[[], None] | None = None

    def happened(self, fact: Any) -> None:
        """It has; a second time, where Ctrl-C came into the first, changes nothing but that everyone is told."""
        if not self.done:
            self.fact = fact
            self.done = True
        for wakeup in self.wakeups:
            wakeup.set()
        if self.callback is not None:
            self.callback()


class Receiver:
    """Gives the turn of receiving to one thread at a time."""

    def __init__(
        self,
        events: Events,
        handle: Callable[[bytes], None],
        tick: Callable[[], bool],
        busy: Callable[[], bool],
        lasting: Callable[[Pending], None] = lambda _: None,
    ) -> None:
        """`handle` is called with each event, `tick` now and then while there is work under way.

        Both `tick` and `busy`, a quick look, say whether there is. `lasting` is called by who waits, about once a
        second, with what he waits for.
        """
        self._events = events
        self._handle = handle
        self._tick = tick
        self._busy = busy
        self._lasting = lasting
        # One entry while nobody has the turn. Not a lock: Ctrl-C could come between acquiring it and noting that, and
        # nobody would receive any more. Deleting is no call, so that it cannot.
        self._turn: list[None] = [None]
        self.inbox: list[bytes] = []  # received and not handled; of whoever has the turn
        self._guard = threading.Lock()  # of the followers
        self._followers: deque[threading.Event] = deque()
        self._awake = threading.Lock()  # released to wake the background thread
        self._awake.acquire()
        self._asleep = False
        self._closing = False
        self._over = threading.Event()  # the turn is taken for ever
        self._thread = threading.Thread(target=self._run, name="interlock-events", daemon=True)
        self._thread.start()

    def wait(self, pending: Pending, timeout_s: float | None = None) -> bool:
        """Until it has happened (True) or the time is over (False). Ctrl-C interrupts."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while not pending.done:
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return False
            if self._closing:
                raise InterlockError("the session is closed")
            mine = False
            try:
                with contextlib.suppress(IndexError):  # another thread has it
                    del self._turn[0]
                    mine = True
                if mine:
                    self._receive_until(pending, left)
                    if not pending.done and (left is None or left > LOOK_S):
                        self._lasting(pending)
            finally:
                if mine:
                    self._turn.append(None)
                    self._pass_on()
                    if self._closing:
                        self._shut()
            if not mine:
                self._follow(pending, LOOK_S if left is None else min(left, LOOK_S))
        return True

    def wake(self) -> None:
        """There is work under way: let the background thread tick."""
        if self._asleep:
            self._asleep = False
            with contextlib.suppress(RuntimeError):  # another thread woke it at the same moment
                self._awake.release()

    def close(self) -> None:
        """End the background thread and close the socket. All that anyone waits for has happened already."""
        self._closing = True
        self._asleep = True
        self.wake()
        if not self._shut():
            self._hurry()
            self._over.wait(TURN_S)  # in vain if this very thread has the turn, further down: it closes when it leaves
        if self._thread is not threading.current_thread():
            self._thread.join(TURN_S)

    def _hurry(self) -> None:
        """Let whoever receives see that what it waits for has happened."""
        outlet = Outlet(self._events.inproc, events=True)
        outlet.send(b"")
        outlet.close()

    def _shut(self) -> bool:
        """Close the socket, unless somebody receives."""
        try:
            del self._turn[0]
        except IndexError:
            return self._over.is_set()
        self._events.close()
        self._over.set()
        return True

    def _receive_until(self, pending: Pending, timeout_s: float | None) -> None:
        """For a second at the most."""
        deadline = None if timeout_s is None else time.monotonic() + min(timeout_s, LOOK_S)
        while not pending.done and not self._closing:
            left = None if deadline is None else max(deadline - time.monotonic(), 0)
            if not self.inbox:
                # ZeroMQ's binding raises for a signal when it has received a message already, which would be lost.
                with uninterrupted(self._hurry):
                    came = self._events.receive_into(self.inbox, left)
                if not came:
                    return
            self._handle_first()

    def _handle_first(self) -> None:
        """Handle the message that came first. Where Ctrl-C comes in between, it stays, and is handled once more."""
        data = self.inbox[0]
        self._handle(data)
        if self.inbox and self.inbox[0] is data:
            del self.inbox[0]

    def handled(self) -> None:
        """The message that came first has been handled, and is not to be handled again. Called by whoever handles."""
        if self.inbox:
            del self.inbox[0]

    def _drain(self) -> None:
        """On the background thread."""
        while True:
            if not self.inbox:
                data = self._events.poll()
                if data is None:
                    return
                self.inbox.append(data)
            self._handle_first()

    def _follow(self, pending: Pending, timeout_s: float | None) -> None:
        """Wait to be told by the thread that has the turn: that it happened, or that the turn is free."""
        wakeup = threading.Event()
        with self._guard:
            pending.wakeups += (wakeup,)
            self._followers.append(wakeup)
        try:
            # It may have happened, or the turn become free, before this one could be seen among the followers.
            if not pending.done and not self._turn:
                wakeup.wait(timeout_s)
        finally:
            with self._guard:
                pending.wakeups = tuple(other for other in pending.wakeups if other is not wakeup)
                self._followers.remove(wakeup)
            if wakeup.is_set() and self._turn:
                self._pass_on()  # it may have been woken to take the turn, and be about to leave

    def _pass_on(self) -> None:
        """The turn is free: wake a follower to take it, or let the background thread tick."""
        with self._guard:
            for wakeup in self._followers:
                if not wakeup.is_set():
                    wakeup.set()
                    return
        if self._busy():
            self.wake()

    def _run(self) -> None:
        poll = select.poll()  # not select(), which refuses descriptors above 1023
        poll.register(self._events.fd, select.POLLIN)
        while not self._closing:
            if self._tick():
                if not self._turn:  # somebody receives: two would only be in each other's way
                    self._awake.acquire(timeout=TICK_S)
                else:
                    poll.poll(TICK_S * 1000)
                    self._take_in()
                continue
            self._asleep = True
            if self._tick():  # something came between the look and the going to sleep
                self._asleep = False
                continue
            self._awake.acquire()

    def _take_in(self) -> None:
        """Handle the events that are here, unless another thread is at it. On the background thread only."""
        try:
            del self._turn[0]
        except IndexError:
            return
        try:
            self._drain()
        finally:
            self._turn.append(None)
            if self._closing:
                self._shut()
        with self._guard:
            for wakeup in self._followers:
                wakeup.set()
