"""Threads that wait take turns at receiving; none is forgotten, whoever leaves first."""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from collections.abc import Iterator

import pytest

from interlock.coordinator.events import Pending, Receiver

HANG_S = 30.0


class FakeEvents:
    """A queue in place of the socket; its descriptor is readable while something was put in and not seen."""

    def __init__(self) -> None:
        self.items: queue.Queue[bytes] = queue.Queue()
        self.fd = os.eventfd(0, os.EFD_NONBLOCK)

    def put(self, item: bytes) -> None:
        self.items.put(item)
        os.eventfd_write(self.fd, 1)

    def receive(self, timeout_s: float | None = None) -> bytes | None:
        try:
            return self.items.get(timeout=timeout_s)
        except queue.Empty:
            return None

    def receive_into(self, inbox: list[bytes], timeout_s: float | None = None) -> bool:
        received = self.receive(timeout_s)
        if received is not None:
            inbox.append(received)
        return received is not None

    def poll(self) -> bytes | None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.fd)
        try:
            return self.items.get_nowait()
        except queue.Empty:
            return None

    def close(self) -> None:
        """Nobody receives any more."""


class Bench:
    """A receiver whose events are the names of what happened."""

    def __init__(self) -> None:
        self.events = FakeEvents()
        self.things: dict[bytes, Pending] = {}
        self.busy = False
        self.receiver = Receiver(self.events, self.handle, lambda: self.busy, lambda: self.busy)  # type: ignore[arg-type]

    def thing(self, name: bytes) -> Pending:
        return self.things.setdefault(name, Pending(0))

    def handle(self, name: bytes) -> None:
        self.thing(name).happened(name)

    def waiting(self, name: bytes, timeout_s: float | None = None) -> tuple[threading.Thread, list[bool]]:
        answers: list[bool] = []
        pending = self.thing(name)
        thread = threading.Thread(target=lambda: answers.append(self.receiver.wait(pending, timeout_s)), daemon=True)
        thread.start()
        return thread, answers


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.receiver.close()


def ended(thread: threading.Thread) -> None:
    thread.join(HANG_S)
    assert not thread.is_alive()


def test_what_has_happened_is_not_waited_for(bench: Bench) -> None:
    bench.thing(b"a").happened(b"a")
    assert bench.receiver.wait(bench.thing(b"a"))


def test_the_one_who_waits_receives_for_everyone(bench: Bench) -> None:
    first, _ = bench.waiting(b"a")
    second, _ = bench.waiting(b"b")
    bench.events.put(b"b")
    ended(second)
    bench.events.put(b"a")
    ended(first)


def test_many_threads_may_wait_for_one_thing(bench: Bench) -> None:
    threads = [bench.waiting(b"a")[0] for _ in range(8)]
    bench.events.put(b"a")
    for thread in threads:
        ended(thread)


def test_the_turn_goes_on_when_its_holder_leaves(bench: Bench) -> None:
    for _ in range(200):
        bench.things.clear()
        threads = {name: bench.waiting(name)[0] for name in (b"a", b"b", b"c", b"d")}
        for name in (b"c", b"a", b"d", b"b"):
            bench.events.put(name)
        for thread in threads.values():
            ended(thread)


def test_the_turn_is_not_lost_with_one_who_runs_out_of_time(bench: Bench) -> None:
    for _ in range(20):
        bench.things.clear()
        leader, _ = bench.waiting(b"a")
        hasty, answers = bench.waiting(b"never", timeout_s=0.002)
        patient, _ = bench.waiting(b"b")
        bench.events.put(b"a")
        ended(leader)
        ended(hasty)
        assert answers == [False]
        bench.events.put(b"b")
        ended(patient)


def test_the_background_thread_takes_in_what_nobody_waits_for(bench: Bench) -> None:
    arrived = threading.Event()
    bench.thing(b"a").callback = arrived.set
    bench.busy = True
    bench.receiver.wake()
    bench.events.put(b"a")
    assert arrived.wait(HANG_S)
    bench.busy = False
