"""Starts workers, starts others for those that end, and tells programs where they are: what `interlock up` runs.

One thread that waits in one place: for questions, for the end of a process, for a worker to be ready, for the word
to stop. It never waits for one worker while others need it. How often a worker is started again is decided in
`coordinator/restarts.py`; how a process is started and ended, in `coordinator/workers.py`. Knows nothing of
sessions: programs speak to the workers themselves.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from ..coordinator import workers
from ..coordinator.restarts import Restarts
from ..protocol import supervision
from ..protocol.codec import encode
from ..protocol.errors import InterlockError, ProtocolError
from ..protocol.identity import Identity, alive, own_identity, parse_identity, same_host
from ..protocol.limits import LARGEST_QUESTION
from ..protocol.messages import Stop
from ..protocol.network import Network, listening, server_pair
from ..protocol.sockets import Answers, Outlet, ipc, private_folder, remove_folder
from .registry import announce

IDLE_S: Final = 60.0  # how long to wait when nothing is expected


class State(StrEnum):
    """How it stands with the worker of a device."""

    STARTING = "starting"
    SERVING = "serving"
    ENDED = "ended"  # another will be started
    FAILED = "failed"  # no other will be started


class Slot:
    """A device that is to have a worker: the present one, or what became of the last."""

    def __init__(self, device: str, index: int) -> None:
        self.device = device
        self.index = index
        self.name = ""  # of the present worker's local endpoint
        self.state = State.ENDED
        self.process: workers.Process | None = None
        self.adopted: workers.Adopted | None = None
        self.restarts = Restarts()
        self.lives = 0
        self.due = 0.0  # monotonic: when to start another, or by when the present one must be ready
        self.since = 0.0  # monotonic: serving since
        self.since_clock = 0.0
        self.reason = ""  # why the last one ended
        self.pidfd = -1


class Guest:
    """A worker that another supervisor started, and that serves here for as long as it lives."""

    def __init__(self, device: str, endpoint: str, identity: Identity) -> None:
        self.adopted = workers.Adopted(device, endpoint, identity)
        self.pidfd = -1  # of a process on this machine
        self.tie: Outlet | None = None  # to one on another
        self.since_clock = time.time()

    def let_go(self) -> None:
        """Watch it no longer."""
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1
        if self.tie is not None:
            self.tie.close(linger_ms=0)
            self.tie = None


class Launcher:
    """The workers of some devices, and the address where programs find them."""

    def __init__(
        self,
        devices: Sequence[str],
        say: Callable[[str], None],
        *,
        memory: int | None = None,
        options: dict[str, Any] | None = None,
        stop_fd: int = -1,
        tcp: workers.Tcp | None = None,
    ) -> None:
        """Makes the folder and the address; starts nothing yet.

        Args:
            devices: names; none, for workers that join.
            say: is told what people should know, a line or some at a time.
            memory: bytes for each worker; None for an equal part of half the machine's.
            options: of the devices.
            stop_fd: readable when the launcher is to end.
            tcp: to be reached by other machines, or by whoever has a listed key: where, and the file of keys.

        Raises:
            KeysError: the keys cannot be used.
            OSError: the place to listen at is taken, or is not of this machine.
        """
        self._tcp = tcp
        self._network = Network(server_pair(tcp and tcp.keys), self._tell_of_guest)
        remote = listening(tcp.listen, tcp.keys) if tcp is not None else None
        self.folder = private_folder()
        self._say = say
        self._memory = memory or workers.default_memory(len(devices))
        self._options = options or {}
        self._stop_fd = stop_fd
        self._slots = [Slot(device, index) for index, device in enumerate(devices)]
        self._guests: list[Guest] = []
        self._cpu_workers = sum(device.startswith(("cpu:", "sim:")) for device in devices)
        self._since_clock = time.time()
        self._stopping = False
        self._starting_up = True
        self._cut_off: deque[tuple[Guest, str]] = deque()  # guests whose connection is over, and how
        self._told_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)  # readable when there is one
        self._local_address = ipc(self.folder, "launcher")
        try:
            self._answers = Answers(self._local_address, remote)
        except BaseException:
            remove_folder(self.folder)
            raise
        self.address = self._answers.endpoint

    # -- the life of a launcher

    def start(self) -> bool:
        """Start every worker and wait until all serve; False if the word to stop came first.

        Raises:
            InterlockError: one did not start.
        """
        for slot in self._slots:
            self._begin(slot)
        while not self._stopping and any(slot.state is not State.SERVING for slot in self._slots):
            self._turn()
        self._starting_up = False
        if not self._stopping:
            announce(self.folder, self._local_address)
        return not self._stopping

    def serve(self) -> None:
        """Answer and supervise until the word to stop.

        Raises:
            InterlockError: every worker has failed for good.
        """
        while not self._stopping:
            self._turn()
            if self._slots and not self._guests and all(slot.state is State.FAILED for slot in self._slots):
                raise InterlockError("no worker is left: each ended again and again")

    def close(self) -> None:
        """End the workers and leave nothing behind."""
        running = [slot for slot in self._slots if slot.process is not None]
        for slot in running:
            if slot.state is State.SERVING and slot.adopted is not None:
                outlet = Outlet(ipc(self.folder, slot.name))
                outlet.send(encode(Stop()))
                outlet.close()
            elif slot.process is not None:
                slot.process.let_go()
        workers.stop([slot.process for slot in running if slot.process is not None])
        for slot in self._slots:
            if slot.pidfd >= 0:
                os.close(slot.pidfd)
        for guest in self._guests:
            guest.let_go()
        self._network.close()
        self._answers.close()
        os.close(self._told_fd)
        remove_folder(self.folder)

    # -- one turn

    def _turn(self) -> None:
        """Wait for something to happen, and see to it."""
        now = time.monotonic()
        dues = [slot.due - now for slot in self._slots if slot.state in (State.STARTING, State.ENDED)]
        ready = set(self._answers.wait(max(min([*dues, IDLE_S]), 0.0), self._watched()))
        if self._stop_fd in ready:
            self._stopping = True
            return
        for slot in self._slots:
            self._look(slot, ready)
        for guest in [guest for guest in self._guests if guest.pidfd in ready]:
            self._part(guest)
        if self._told_fd in ready:
            os.eventfd_read(self._told_fd)
        while self._cut_off:
            guest, words = self._cut_off.popleft()
            if guest in self._guests:
                self._part(guest, f" {words}")
        while (asked := self._answers.poll()) is not None:
            self._answer(*asked)

    def _watched(self) -> list[int]:
        starting = [s.process.ready_fd for s in self._slots if s.state is State.STARTING and s.process is not None]
        serving = [s.pidfd for s in self._slots if s.state is State.SERVING]
        guests = [guest.pidfd for guest in self._guests]
        return [fd for fd in (self._stop_fd, self._told_fd, *starting, *serving, *guests) if fd >= 0]

    def _look(self, slot: Slot, ready: set[int]) -> None:
        process, overdue = slot.process, time.monotonic() >= slot.due
        if slot.state is State.ENDED and overdue:
            self._begin(slot)
        elif slot.state is State.STARTING and process is not None and (process.ready_fd in ready or overdue):
            self._take_up(slot, process)
        elif slot.state is State.SERVING and process is not None and slot.pidfd in ready:
            self._ended(slot, f"{process.fate()}{process.last_words()}", time.monotonic() - slot.since)

    # -- workers of its own

    def _begin(self, slot: Slot) -> None:
        """Start a worker; `_take_up` sees when it is ready."""
        slot.lives += 1
        name = slot.name = f"w{slot.index}.{slot.lives}"
        slot.state = State.STARTING
        slot.due = time.monotonic() + workers.START_S
        try:
            slot.process = workers.Process(
                slot.device, name, self.folder, self._memory, self._cpu_workers, self._options, self._workers_tcp()
            )
        except OSError as error:
            self._ended(slot, f"could not be started: {error}", 0.0)

    def _workers_tcp(self) -> workers.Tcp | None:
        """Where its workers listen: at the launcher's address, each at a port of its own."""
        return self._tcp and self._tcp._replace(listen=self._tcp.listen.rpartition(":")[0] + ":0")

    def _take_up(self, slot: Slot, process: workers.Process) -> None:
        """The worker has said that it is ready, or has ended, or took too long."""
        try:
            slot.adopted = process.ready(slot.due)
            slot.pidfd = os.pidfd_open(process.pid)
        except (InterlockError, OSError) as error:
            self._ended(slot, str(error).removeprefix(f"the worker of {slot.device} "), 0.0)
            return
        slot.state, slot.since, slot.since_clock = State.SERVING, time.monotonic(), time.time()
        self._say(f"{slot.device} serves, pid {process.pid}")

    def _ended(self, slot: Slot, reason: str, lived_s: float) -> None:
        """The worker has ended: start another one, or leave it at that."""
        if slot.process is not None:
            slot.process.stop(0.0)
            slot.process.remove_traces()
        if slot.pidfd >= 0:
            os.close(slot.pidfd)
        slot.process, slot.adopted, slot.pidfd, slot.reason = None, None, -1, reason
        if self._starting_up:
            raise InterlockError(f"the worker of {slot.device} {reason}")
        wait_s = slot.restarts.ended(lived_s)
        if wait_s is None:
            slot.state = State.FAILED
            plan = "it is not started again, since this happened again and again"
        else:
            slot.state, slot.due = State.ENDED, time.monotonic() + wait_s
            plan = "another one is started"
        self._say(f"the worker of {slot.device} {reason}\n{slot.device}: {plan}")

    # -- workers of others

    def _join(self, question: bytes) -> bytes:
        """Take in a worker that another supervisor started."""
        try:
            device, endpoint, values = supervision.parse_join(question)
            (device,) = workers.check_devices([device])
            identity = parse_identity(values)
        except (ProtocolError, ValueError) as error:
            return supervision.joined(None, str(error))
        if device in [adopted.device for adopted in self._serving()] + [slot.device for slot in self._slots]:
            return supervision.joined(None, f"the launcher at {self.address} has a worker for {device} already")
        if self._tcp is not None and not endpoint.startswith("tcp://"):
            return supervision.joined(None, "the workers here are reached over tcp: say --listen for this one, too")
        guest = Guest(device, endpoint, identity)
        if same_host(identity, own_identity()):
            try:
                guest.pidfd = os.pidfd_open(identity.pid)
            except OSError:
                return supervision.joined(None, f"process {identity.pid} cannot be seen from the launcher")
            if not alive(identity):
                guest.let_go()
                return supervision.joined(None, f"process {identity.pid} is not the one that asks")
        else:  # of another machine: as long as its connection lives
            try:
                guest.tie = Outlet(endpoint, link=self._network.link(endpoint, guest))
            except (ValueError, InterlockError) as error:
                return supervision.joined(None, str(error))
        self._guests.append(guest)
        self._say(f"{device} has joined, pid {identity.pid}")
        return supervision.joined(tuple(own_identity()))

    def _part(self, guest: Guest, how: str = "") -> None:
        self._guests.remove(guest)
        guest.let_go()
        self._say(f"{guest.adopted.device} has left, pid {guest.adopted.identity.pid}{how and ':'}{how}")

    def _tell_of_guest(self, guest: Guest, words: str) -> None:
        """On a thread that watches connections."""
        self._cut_off.append((guest, words))
        os.eventfd_write(self._told_fd, 1)

    # -- questions

    def _answer(self, asker: bytes, question: bytes, key: str) -> None:
        """Answer a question; `key` is the asker's public one, if it came over tcp."""
        try:
            answer = self._answer_to(question, key)
        except Exception:  # one question is never the end of everybody's workers
            traceback.print_exc()
            return
        if answer is not None:
            with contextlib.suppress(OSError):  # the asker has gone
                self._answers.answer(asker, answer)

    def _answer_to(self, question: bytes, key: str) -> bytes | None:
        trusted = not key or key == self._network.public
        if len(question) > LARGEST_QUESTION:
            return None
        if question == supervision.DOWN and not trusted:
            return b"only with the keys of the launcher itself"
        if question.startswith(supervision.JOIN) and not trusted:
            return supervision.joined(None, "a worker joins from another machine with the keys of the launcher itself")
        answer: bytes | None = None
        if question == supervision.ROSTER:
            answer = supervision.roster([(w.device, w.endpoint, tuple(w.identity)) for w in self._serving()])
        elif question == supervision.STATUS:
            answer = json.dumps(self.status()).encode()
        elif question.startswith(supervision.JOIN):
            answer = self._join(question)
        elif question == supervision.DOWN:
            self._stopping, answer = True, b"ok"
        return answer  # none to what is not one of ours

    def _serving(self) -> list[workers.Adopted]:
        own = [slot.adopted for slot in self._slots if slot.adopted is not None]
        return own + [guest.adopted for guest in self._guests]

    def status(self) -> dict[str, Any]:
        """What `interlock status` shows: plain values."""
        return {
            "address": self.address,
            "identity": list(own_identity()),
            "pid": os.getpid(),
            "since": self._since_clock,
            "workers": [*map(self._slot_status, self._slots), *map(self._guest_status, self._guests)],
        }

    def _slot_status(self, slot: Slot) -> dict[str, Any]:
        return {
            "device": slot.device,
            "state": slot.state.value,
            "pid": None if slot.process is None else slot.process.pid,
            "endpoint": None if slot.adopted is None else slot.adopted.endpoint,
            "since": slot.since_clock if slot.state is State.SERVING else None,
            "memory": self._memory,
            "resident": None if slot.process is None else resident(slot.process.pid),
            "restarts": slot.restarts.count,
            "joined": False,
            "reason": slot.reason,
        }

    def _guest_status(self, guest: Guest) -> dict[str, Any]:
        return {
            "device": guest.adopted.device,
            "state": State.SERVING.value,
            "pid": guest.adopted.identity.pid,
            "endpoint": guest.adopted.endpoint,
            "since": guest.since_clock,
            "memory": None,
            "resident": resident(guest.adopted.identity.pid) if guest.pidfd >= 0 else None,
            "restarts": 0,
            "joined": True,
            "reason": "",
        }


def resident(pid: int) -> int | None:
    """Bytes of memory that a process takes up, shared memory included."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None
