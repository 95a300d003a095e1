"""Field cases of lost workers: what users of other systems have met, each in its whole kind. Named by their numbers."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import interlock as il

from .programs import gone, kill

SOON_S = 5.0


@pytest.fixture
def session(runtime: Path) -> Iterator[il.Session]:
    with il.connect(devices=["cpu:0", "cpu:1", "cpu:2"]) as session:
        yield session


def right_or_lost(read: Callable[[], Any], right: Any) -> bool:
    """Whether the read is right; else it must be lost, and soon."""
    begun = time.monotonic()
    try:
        found = read()
    except il.WorkerLost as error:
        assert "cpu:1 was ended by SIGKILL" in str(error)  # noqa: PT017
        assert time.monotonic() - begun < SOON_S
        return False
    assert np.array_equal(found, right)
    return True


# FL-43: dask/distributed#3196 --------------------------------------------------------------------------------------


@pytest.mark.timeout(120)
def test_fl43_a_worker_killed_at_any_moment_never_leaves_the_client_waiting(session: il.Session) -> None:
    """One in hundreds of kills left the client waiting for ever."""
    chance, rounds, whole = random.Random(43), 50, 0
    home, far, third = session.devices
    kept = il.arange(7, device=home)
    capture = il.capture(lambda x: ((x + 1).to(far) * 2).to(home))
    for turn in range(rounds):
        n = (5, 40_000)[turn % 2]
        chain, apart, beside = il.ones(n, device=home), il.ones(5, device=home), il.ones(n, device=third)
        victim = session.pids["cpu:1"]
        timer = threading.Timer(chance.random() * 0.05, kill, (victim,))
        timer.start()

        def work(chain: Any = chain, turn: int = turn) -> Any:
            for step in range(40):
                if turn % 5 == 4:
                    chain = capture(chain) * 0.5 - 0.5 + 0.5
                elif step % 3 == 2 and turn % 3 == 1:
                    chain = chain + float((chain[:1].to(far) * 0).sum())  # reads in between
                    chain = chain + 1
                else:
                    chain = (chain + 1).to(far).to(home)
            return chain.numpy()

        for _ in range(10):
            apart, beside = apart * 1, (beside * 1).to(home).to(third)
        whole += right_or_lost(work, np.full(n, 41.0))
        timer.join()
        assert gone([victim], SOON_S)
        assert apart.numpy(timeout=SOON_S).tolist() == [1.0] * 5
        assert float(beside.sum()) == n
        assert kept.numpy(timeout=SOON_S).tolist() == [*range(7)]
        session.restart(far)
    assert 0 < whole < rounds  # some were done before, some were not
    counts = session.inspect()
    del chain, beside
    assert all(counted["parked"] == counted["tickets"] == 0 for counted in counts.values())


# FL-44: meta-pytorch/monarch#2835 ----------------------------------------------------------------------------------


def test_fl44_a_failure_fails_what_depends_on_it_and_nothing_else_and_a_new_worker_serves(session: il.Session) -> None:
    """One part's failure killed the shared service, and every later, unrelated request failed."""
    w0, w1, w2 = session.devices
    alone = [il.arange(n, device=w0) for n in range(1, 6)]
    grown = [x.to(w2) * 2 for x in alone]
    lost = [il.ones(n, device=w1) for n in (3, 50_000)]
    derived = [x + 1 for x in lost]
    came = [x.to(w0) for x in lost]  # their ancestors were there; they themselves are here
    assert [float(x.sum()) for x in came] == [3.0, 50_000.0]
    failing = il.arange(3, device=w1)[il.asarray([9], device=w1)]  # its own error, which was not read
    kill(session.pids["cpu:1"])
    on_their_way = []
    for x in lost:
        try:
            on_their_way.append(x.to(w0) * 3)
        except il.WorkerLost as error:  # it was known already
            assert "SIGKILL" in str(error)  # noqa: PT017
    for x in [*lost, *derived, *on_their_way, failing]:
        assert not right_or_lost(lambda: x.numpy(), None)  # noqa: B023
    for x, y in zip(alone, grown, strict=True):
        assert x.numpy().tolist() == [*range(x.size)]
        assert y.numpy().tolist() == [2 * i for i in range(x.size)]
    assert [float((x + 1).sum()) for x in came] == [6.0, 100_000.0]
    session.restart(w1)
    assert il.ones(3, device=w1).numpy().tolist() == [1.0] * 3
    assert (alone[4].to(w1) + 1).to(w2).numpy().tolist() == [1, 2, 3, 4, 5]
    for x in [*lost, *derived, *on_their_way, failing]:
        assert not right_or_lost(lambda: x.numpy(), None)  # noqa: B023
    session.synchronize()
