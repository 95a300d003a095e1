"""The lives of a session's workers: a device whose worker is lost gets another one, in the same session.

Each life has a lane of its own, with a number of its own, and the device of which the user holds the handle names the
present one. So nothing of an earlier life can be mistaken for one of a later: whatever still comes of it names a lane
that is lost for ever, as the arrays do that lived there. Where another worker comes from, a `Source` knows.
"""

from __future__ import annotations

import contextlib
import threading
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from ..protocol import messages as m
from ..protocol.errors import InterlockError, ProtocolError
from ..protocol.identity import Identity
from ..protocol.sockets import ask
from ..protocol.supervision import ROSTER, parse_roster
from . import greetings, losses, workers
from .greetings import HELLO_S
from .restarts import Restarts

if TYPE_CHECKING:
    from ..protocol.keys import Pair
    from .lane import Device, Lane
    from .session import Session

MOST_LANES: Final = 256  # of a session: a ticket has so much room for the number of its lane
RESTART_S: Final = 30.0  # how long a launcher may take to start another worker
AGAIN_S: Final = 0.05  # between two questions to it
GREETING_S: Final = 0.02  # between two greetings to a worker that is still about to end the session's former life
JOIN_S: Final = 0.5  # how long the end waits for the thread that gives devices other workers
ASK_S: Final = 5.0  # how long it may take to answer one


class Source(Protocol):
    """Where another worker of a device comes from."""

    def another(self, lane: Lane) -> tuple[workers.Adopted, workers.Process | None]:
        """The worker that follows that of this lane, which is lost; its process, if it is this program's.

        Raises:
            InterlockError: there is none.
        """

    def close(self) -> None:
        """The session ends: whoever waits in `another` waits no longer."""


class Started:
    """Workers that the program itself starts: a process for each life."""

    def __init__(self, folder: Path, memory: int | None, options: dict[str, Any], devices: list[str]) -> None:
        self._folder = folder
        self._memory = memory or workers.default_memory(len(devices))
        self._options = options
        self._cpu_workers = sum(device.startswith(("cpu:", "sim:")) for device in devices)
        self._names = {device: f"w{place}" for place, device in enumerate(devices)}
        self._lives = dict.fromkeys(devices, 1)
        self._guard = threading.Lock()
        self._starting: set[workers.Process] = set()
        self._closed = False

    def another(self, lane: Lane) -> tuple[workers.Adopted, workers.Process | None]:
        if lane.process is not None:
            lane.process.stop(0.0)
            lane.process.remove_traces()
        device = lane.worker.device
        self._lives[device] += 1
        name = f"{self._names[device]}.{self._lives[device]}"
        with self._guard:
            if self._closed:
                raise InterlockError("the session is closed")
            process = workers.Process(device, name, self._folder, self._memory, self._cpu_workers, self._options)
            self._starting.add(process)
        try:
            return process.ready(time.monotonic() + workers.START_S), process
        except BaseException:
            process.stop(0.0)
            raise
        finally:
            self._starting.discard(process)

    def close(self) -> None:
        with self._guard:
            self._closed = True
            for process in list(self._starting):
                process.kill()  # `ready` sees that it has ended


class Launched:
    """Workers of a launcher, which starts another one by itself."""

    def __init__(self, address: str, pair: Pair | None = None) -> None:
        self._address = address
        self._pair = pair
        self._closed = threading.Event()

    def another(self, lane: Lane) -> tuple[workers.Adopted, workers.Process | None]:
        device, deadline = lane.worker.device, time.monotonic() + RESTART_S
        while not self._closed.is_set():
            answer = ask(self._address, ROSTER, ASK_S, self._pair)
            if answer is None:
                raise InterlockError(f"the launcher at {self._address} does not answer: it has no other worker to give")
            for name, endpoint, identity in parse_roster(answer):
                # A worker that lives serves on, for others too: the session begins anew with it.
                if name == device and (lane.left or Identity(*identity) != lane.worker.identity):
                    return workers.Adopted(name, endpoint, Identity(*identity)), None
            if time.monotonic() > deadline:
                raise InterlockError(
                    f"the launcher at {self._address} had no other worker for {device} in {RESTART_S:.0f} s: "
                    f"`interlock status` tells why"
                )
            self._closed.wait(AGAIN_S)
        raise InterlockError("the session is closed")

    def close(self) -> None:
        self._closed.set()


class Lives:
    """Gives a session's devices other workers: when it is asked to, and, if `by_itself`, whenever one is lost."""

    def __init__(self, session: Session, source: Source, by_itself: bool) -> None:
        self._session = session
        self.source = source
        self._by_itself = by_itself
        self._turn = threading.RLock()  # one at a time
        self._changed = threading.Condition()
        self._due: dict[Device, str] = {}  # to be given another worker by itself, and why
        self._begun: dict[Device, float] = {}  # monotonic: since when the present worker serves
        self._restarts: dict[Device, Restarts] = {}
        self._thread: threading.Thread | None = None
        self._closed = threading.Event()

    def restart(self, device: Device) -> None:
        """Another worker for the device, whose present one is lost, or else is stopped.

        Raises:
            InterlockError: there is no other, or it does not serve.
        """
        session = self._session
        with self._turn:
            lane = device.lane
            if lane.lost is None:
                _leave(session, lane)
            if lane.index + 1 >= MOST_LANES or len(session.lanes) >= MOST_LANES:
                raise InterlockError(
                    f"the session has had {len(session.lanes)} workers, and that is all it may have: connect anew"
                )
            worker, process = self.source.another(lane)
            try:
                _begin(session, device, worker, process)
            except BaseException:
                if process is not None:
                    process.stop(0.0)
                raise
            self._begun[device] = time.monotonic()

    def lost(self, lane: Lane, reason: str) -> None:
        """A worker was lost. The caller holds the session's lock."""
        if not self._by_itself or lane.left or lane.device.lane is not lane or self._closed.is_set():
            return
        with self._changed:
            self._due[lane.device] = reason
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="interlock-lives", daemon=True)
                self._thread.start()

    def settled(self, device: Device) -> Lane:
        """The device's lane, when it is not about to be given another one."""
        if self._by_itself and not self._session.taping():
            with self._changed:
                self._changed.wait_for(lambda: device not in self._due, workers.START_S)
        return device.lane

    def close(self) -> None:
        """The session ends."""
        self._closed.set()
        self.source.close()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(JOIN_S)  # it may greet a worker that does not answer: a closed session ends that

    # -- by itself

    def _run(self) -> None:
        while not self._closed.is_set():
            with self._changed:
                if not self._due:
                    self._thread = None
                    return
                device, reason = next(iter(self._due.items()))
            said = self._another(device, reason)
            with self._changed:
                self._due.pop(device, None)
                self._changed.notify_all()
            if not self._closed.is_set():
                with contextlib.suppress(Warning):  # where warnings are errors: nobody is here to see it
                    warnings.warn(said, RuntimeWarning, stacklevel=1)
        with self._changed:
            self._due.clear()
            self._changed.notify_all()

    def _another(self, device: Device, reason: str) -> str:
        """Give the device another worker; what to tell the user."""
        lived = time.monotonic() - self._begun.get(device, self._session.began)
        wait_s = self._restarts.setdefault(device, Restarts()).ended(lived)
        story = f"the worker of {device} {reason}"
        if wait_s is None:
            return f"{story}; it is not started again, since this happened again and again"
        self._closed.wait(wait_s)
        try:
            if device.lane.lost is not None:  # else the program has asked for it meanwhile
                self.restart(device)
        except Exception as error:
            return f"{story}; no other one could be had: {error}"
        return f"{story}; the arrays that it held are lost, and a new worker serves {device}"


def _leave(session: Session, lane: Lane) -> None:
    """Do without a worker that lives: to the session it is lost from here on."""
    with session.lock:
        if lane.lost is None:
            lane.left = True
            lane.send(m.Goodbye())
            if lane.process is not None:
                lane.process.kill()
            losses.lose(session, lane.index, "was stopped by restart()")


def _begin(session: Session, device: Device, worker: workers.Adopted, process: workers.Process | None) -> None:
    """Let another worker serve the device."""
    with session.lock:
        if process is not None:
            session._processes = [each for each in session._processes if each is not device.lane.process]
            session._processes.append(process)
    lane = _greet_anew(session, device, worker, process)
    with (
        session.taping_turn,
        session.lock,
    ):  # a captured function that is just being recorded uses one lane or the other
        if session.recorder is not None:
            # Of all lanes: one more was opened for each greeting that a worker refused.
            session.recorder.devices[:] = [str(each.device) for each in session.lanes]
            lane.send(m.Trace(True))
            lane.limit = 0
            session.recorder.begin(lane.index, lane.first)
        session.renewed = True
        old, device.lane = device.lane, lane
        old.close(linger_ms=500 if old.left else 0)


def _greet_anew(session: Session, device: Device, worker: workers.Adopted, process: workers.Process | None) -> Lane:
    """A lane to a worker that may not have met yet that the session took leave of it."""
    deadline = time.monotonic() + HELLO_S
    while True:
        with session.lock:
            session.check_open()
            if len(session.lanes) >= MOST_LANES:
                raise InterlockError(f"the worker of {device} did not begin anew: connect anew")
            lane = session._open(worker, process, device)
        try:
            greetings.greet(session, [lane])
            return lane
        except BaseException as error:
            with session.lock:
                losses.lose(session, lane.index, f"did not serve: {error}")
            session._watch.forget((lane.index, worker.identity.incarnation))
            if not greet_again(error) or time.monotonic() > deadline:
                raise
        time.sleep(GREETING_S)


def greet_again(refused: BaseException) -> bool:
    """Whether a worker refused only since it has not met the session's goodbye yet."""
    return isinstance(refused, ProtocolError) and "serves a session of that number already" in str(refused)


def replaced(lane: Lane) -> bool:
    """Whether the lane is lost, and its device has another one."""
    return lane.lost is not None and lane.device.lane is not lane
