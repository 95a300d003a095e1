"""`coordinator/explain.py` against simulated workers, and a twin that follows everything."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.coordinator import explain as core
from interlock.coordinator.explain import Lane, Picture, Step


@dataclass
class Worker:
    """A lane's worker: it takes instructions in order, parks what must wait, and runs one at a time."""

    sent: list[Step] = field(default_factory=list)
    taken: int = 0  # how many of them it has come to
    parked: list[Step] = field(default_factory=list)
    running: Step | None = None
    finished: set[int] = field(default_factory=set)
    known: set[int] = field(default_factory=set)  # tickets that it has taken in

    def conflicts(self, step: Step) -> bool:
        for other in self.parked:
            touched = {*step.reads, *step.writes}
            if other.n < step.n and (touched & set(other.writes) or set(step.writes) & set(other.reads)):
                return True
        return step.after_all and any(other.n < step.n for other in self.parked)

    def done(self) -> int:
        """As the shared page has it: everything up to here has finished."""
        n = 0
        while n + 1 in self.finished:
            n += 1
        return n


class Simulation:
    """Some lanes in the middle of a random program."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.workers = [Worker() for _ in range(self.random.randint(1, 3))]
        self.tickets: set[int] = set()  # that were sent
        self.unsent = self.random.randint(0, 4)
        self._issue(self.random.randint(1, 40))
        for _ in range(self.random.randint(0, 80)):
            self._advance(self.random.choice(self.workers))
        for worker in self.workers:  # between what a ticket has let go nobody looks
            if worker.running is None and any(self._may_run(worker, step) for step in worker.parked):
                self._advance(worker)

    def _issue(self, count: int) -> None:
        buffers = range(1, 6)
        for number in range(count):
            lane = self.random.randrange(len(self.workers))
            steps = self.workers[lane].sent
            kind = self.random.random()
            if kind < 0.35 and len(self.workers) > 1:
                other = self.random.choice([each for each in range(len(self.workers)) if each != lane])
                ticket = 1000 + number
                steps.append(Step(lane, len(steps) + 1, (self.random.choice(buffers),), (), gives=ticket))
                theirs = self.workers[other].sent
                theirs.append(Step(other, len(theirs) + 1, (), (self.random.choice(buffers),), takes=ticket))
            elif kind < 0.4:
                steps.append(Step(lane, len(steps) + 1, (), (), after_all=True))
            else:
                reads = tuple(self.random.sample(buffers, self.random.randint(0, 2)))
                steps.append(Step(lane, len(steps) + 1, reads, (self.random.choice(buffers),)))

    def _advance(self, worker: Worker) -> None:
        if worker.running is not None:
            if worker.running.gives is not None:
                self.tickets.add(worker.running.gives)
            worker.finished.add(worker.running.n)
            worker.running = None
            return
        ready = [step for step in worker.parked if self._may_run(worker, step)]
        if not ready and self.random.random() < 0.5:
            worker.known |= self.tickets
            ready = [step for step in worker.parked if self._may_run(worker, step)]
        if ready:  # all that a ticket lets go runs before anything new
            worker.running = ready[0]
            worker.parked.remove(ready[0])
        elif worker.taken < len(worker.sent) - self.unsent:
            step = worker.sent[worker.taken]
            worker.taken += 1
            if self._may_run(worker, step):
                worker.running = step
            else:
                worker.parked.append(step)

    def _may_run(self, worker: Worker, step: Step) -> bool:
        return (step.takes is None or step.takes in worker.known) and not worker.conflicts(step)

    def lane(self, worker: Worker) -> Lane:
        done = worker.done()
        at = worker.taken + 1 if worker.running is None else worker.running.n
        steps = tuple(step for step in worker.sent if step.n > done)
        sent = max(len(worker.sent) - self.unsent, worker.taken)
        return Lane(steps, sent, at if at > done else 0, worker.running is not None, {})


def blockers(simulation: Simulation, step: Step) -> set[tuple[int, int]]:
    """The twin: all that must have finished before this one can run, found by going everywhere."""
    found: set[tuple[int, int]] = set()
    open_ = [step]
    while open_:
        one = open_.pop()
        worker = simulation.workers[one.lane]
        near = []
        for other in worker.sent[: one.n - 1]:
            touched = {*one.reads, *one.writes}
            if touched & set(other.writes) or set(one.writes) & set(other.reads) or one.after_all:
                near.append(other)
        if one.takes is not None:
            near += [each for other in simulation.workers for each in other.sent if each.gives == one.takes]
        for other in near:
            key = other.lane, other.n
            if other.n not in simulation.workers[other.lane].finished and key not in found:
                found.add(key)
                open_.append(other)
    return found


@given(st.integers(0, 1 << 40))
def test_every_link_waits_for_the_next_and_the_last_for_nothing_that_is_unfinished(seed: int) -> None:
    simulation = Simulation(seed)
    picture = Picture([simulation.lane(worker) for worker in simulation.workers])
    for worker in simulation.workers:
        for step in worker.sent:
            if step.n in worker.finished:
                continue
            assert not picture.over(step), "what has not finished must never be called so"
            links = picture.chain(step)
            assert (links[0].lane, links[0].n) == (step.lane, step.n)
            assert len(links) == len({(link.lane, link.n) for link in links})
            for link, following in itertools.pairwise(links):
                at = simulation.workers[link.lane].sent[link.n - 1]
                key = following.lane, following.n
                if link.state == core.QUEUED:
                    assert following.lane == link.lane
                    assert following.n not in simulation.workers[link.lane].finished
                else:
                    assert link.state in (core.NEEDS, core.TICKET)
                    if following.n not in simulation.workers[following.lane].finished:
                        assert key in blockers(simulation, at)
            last = links[-1]
            busy = simulation.workers[last.lane].running
            if last.state == core.RUNNING:
                assert busy is not None
                assert busy.n == last.n
            else:
                assert last.state in (core.COMES, core.STARTS, core.UNSENT)
                assert busy is None or last.state == core.COMES


@given(st.integers(0, 1 << 40))
def test_what_nothing_keeps_is_over_or_about_to_run(seed: int) -> None:
    """A finished instruction is called unfinished only where a ticket that it was behind may not have been taken in."""
    simulation = Simulation(seed)
    picture = Picture([simulation.lane(worker) for worker in simulation.workers])
    for worker in simulation.workers:
        done = worker.done()
        for step in worker.sent:
            if step.n <= done or step.n not in worker.finished or picture.over(step):
                continue
            resumed = worker.running is not None and worker.running.n <= step.n
            assert resumed or picture.chain(step)[-1].state in (core.COMES, core.RUNNING, core.STARTS, core.UNSENT)


def test_a_chain_across_a_transfer() -> None:
    d0 = (Step(0, 5, (), (1,)), Step(0, 6, (1,), (2,)), Step(0, 7, (2,), (), gives=9))
    d1 = (Step(1, 3, (), (4,), takes=9), Step(1, 4, (4,), (5,)), Step(1, 5, (7,), (8,)))
    picture = Picture([Lane(d0, 7, 5, True, {}), Lane(d1, 5, 6, False, {})])
    chain = [(link.lane, link.n, link.state, link.behind) for link in picture.chain(d1[1])]
    assert chain == [(1, 4, core.NEEDS, 0), (1, 3, core.TICKET, 0), (0, 7, core.QUEUED, 2), (0, 5, core.RUNNING, 0)]
    assert picture.over(d1[2])  # it shares nothing with them, and has overtaken them
    assert picture.writer(1, 8) is None
    assert picture.writer(1, 5) is d1[1]


def test_what_is_held_before_the_gate() -> None:
    d0 = (Step(0, 1, (), (1,)), Step(0, 2, (1,), (), gives=9))
    d1 = (Step(1, 1, (), (4,), takes=9), Step(1, 2, (4,), (5,)))
    picture = Picture([Lane(d0, 2, 1, True, {}), Lane(d1, 0, 0, False, {1: ((0, 2),), 2: ()})])
    chain = [(link.lane, link.n, link.state) for link in picture.chain(d1[1])]
    assert chain == [(1, 2, core.GATE), (1, 1, core.GATE), (0, 2, core.QUEUED), (0, 1, core.RUNNING)]


@pytest.mark.parametrize("lost", [True, False])
def test_a_lost_worker_ends_a_chain(lost: bool) -> None:
    d0 = (Step(0, 1, (1,), (), gives=9),)
    d1 = (Step(1, 1, (), (4,), takes=9),)
    picture = Picture([Lane(d0, 1, 0, False, {}, lost), Lane(d1, 1, 2, False, {})])
    assert [link.state for link in picture.chain(d1[0])] == [core.TICKET, core.LOST if lost else core.STARTS]
