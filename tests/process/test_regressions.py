"""What was once wrong in the runtime, each as the behaviour that it broke."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import interlock as il
from interlock.coordinator import lane

SLOW_SIM = {"seed": 1, "delay_s": 0.05, "delay_share": 1.0, "lazy": False}  # each kernel begins 0 to 50 ms late


def test_a_refused_operation_does_not_keep_its_operands_alive() -> None:
    with il.connect("cpu:0") as session:
        x = il.ones((5,), dtype="i8")
        with pytest.raises(TypeError):
            x /= 2.0
        gc.disable()
        try:
            with pytest.raises(TypeError):
                x /= 2.0
            del x
            session.synchronize()
            assert session.inspect()["cpu:0"]["arrays"] == 0
        finally:
            gc.enable()


def test_an_option_of_one_kind_of_device_may_be_given_to_a_session_with_several_kinds() -> None:
    with il.connect("cpu:0,sim:0", options={"seed": 3}) as session:
        assert float((il.ones(3, device="cpu:0").to("sim:0") + 1).sum()) == 6.0
    with pytest.raises(il.InterlockError, match="has no options"):
        il.connect("cpu:0,sim:0", options={"sead": 3})
    del session


def test_a_failure_of_an_instruction_that_was_parked_tells_its_line() -> None:
    with il.connect("cpu:0,sim:0", options=SLOW_SIM):
        x = il.ones((300, 300), dtype="i8", device="cpu:0")
        indices = (x @ x)[0, :3].to("sim:0")  # 300 each: not there yet, so what uses it is parked
        y = il.ones(3, device="sim:0")
        z = y[indices]
        others = [y + i for i in range(20)]  # overtake it
        with pytest.raises(IndexError) as raised:
            z.numpy()
        assert __file__ in raised.value.__notes__[0]
        assert np.array_equal(others[3].numpy(), np.full(3, 4.0))


def test_ravel_of_what_is_not_contiguous_is_a_copy() -> None:
    with il.connect("cpu:0"):
        for key in (slice(None, None, 2), slice(None, None, -1)):
            x = il.arange(6, device="cpu:0")
            flat = x[key].ravel()
            x[...] = 0
            assert flat.strides == (8,)
            assert flat.tolist() == np.arange(6)[key].tolist()


def no_memory_on_sim(session: il.Session, x: il.Array) -> None:
    for _ in range(2):
        with pytest.raises(il.OutOfDeviceMemory):
            x.numpy()
    with pytest.raises(il.OutOfDeviceMemory):
        (x + 1).numpy()
    del x
    session.synchronize()


def test_an_array_for_which_there_was_no_memory_says_so_at_each_read_and_holds_nothing() -> None:
    data = np.ones(10_000)
    with il.connect("cpu:0,sim:0", memory=1 << 20) as session:  # no slab of the simulator's fits into it
        no_memory_on_sim(session, il.asarray(data, device="cpu:0").to("sim:0"))
        no_memory_on_sim(session, il.asarray(data, device="sim:0"))
        no_memory_on_sim(session, il.ones(3, device="sim:0"))
        while any(any(counts.values()) for counts in session.inspect().values()):
            session.synchronize()  # cpu:0 hears of it from sim:0


def test_uploads_that_stay_in_use_fill_the_memory_for_them_and_then_say_so() -> None:
    with il.connect("cpu:0", memory=4 << 20) as session:
        held: list[il.Array] = []
        with pytest.raises(il.OutOfDeviceMemory):
            held.extend(il.asarray(np.full(10_000, i)) for i in range(100))
        assert [int(x[0]) for x in held] == list(range(len(held)))
        held.clear()
        session.synchronize()
        assert int(il.asarray(np.full(10_000, 7))[0]) == 7


def test_a_closed_session_keeps_no_memory_mapped_even_where_its_object_lives_on() -> None:
    before = segments()
    with il.connect("cpu:0") as session:
        x = il.asarray(np.ones(10_000))
        assert float(x.sum()) == 10_000.0
    assert segments() == before
    del session, x


def segments() -> list[str]:
    """The shared memory that this process has open."""
    paths = (f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd"))
    return [name for path in paths if os.path.lexists(path) and "memfd:interlock" in (name := os.readlink(path))]


def test_the_arena_of_the_frontend_is_used_under_the_lock_alone() -> None:
    """Else a thread that uploads and one that receives what workers give back tear a list of free places."""
    with il.connect("cpu:0") as session:
        arena = session._arena
        allocate, free, unlocked = arena.allocate, arena.free, []

        def checked(call: Callable[[Any], Any]) -> Callable[[Any], Any]:
            def used(argument: Any) -> Any:
                if not session.lock.locked():
                    unlocked.append(call.__name__)
                return call(argument)

            return used

        arena.allocate, arena.free = checked(allocate), checked(free)
        x = il.asarray(np.ones(10_000))
        assert float(x.sum()) == 10_000.0
        del x
        while arena.used_bytes > session._progress_block.capacity:
            session.synchronize()
        assert unlocked == []


@pytest.mark.parametrize("gate", ["worker", "coordinator"])
def test_a_program_of_ever_new_shapes_goes_on_with_the_old_ones(gate: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane, "KNOWN", 8)  # specs that a worker is made to remember
    with il.connect("cpu:0,cpu:1", gate=gate):
        old = il.ones(5)
        for extent in range(1, 60):
            old = old + 1
            new = il.ones(extent) * 2
            there = new.to("cpu:1")
            new += 1
            both = old.to("cpu:1") + there.sum()
        assert both.tolist() == [60 + 2 * 59] * 5


def test_synchronize_raises_what_was_issued_first_though_it_failed_last() -> None:
    with il.connect("cpu:0,cpu:1") as session:
        slow = il.ones((400, 400), dtype="i8", device="cpu:0")
        indices = slow @ slow
        first = indices[indices]  # 400 each, found out when they are there
        second = il.arange(3, device="cpu:1")[il.full(1, 7, device="cpu:1")]
        with pytest.raises(IndexError, match="index 400") as raised:
            session.synchronize()
        assert any("index 7" in note for note in raised.value.__notes__)
        del first, second


def test_a_repeated_numpy_operand_is_sent_once_and_gives_numpys_layout() -> None:
    left, right = (np.broadcast_to(np.arange(20.0).reshape(1, 4, 5), (3, 4, 5)) for _ in range(2))
    with il.connect("cpu:0"):
        x = il.broadcast_to(il.asarray(left[:1]), left.shape)
        for made in (x == right, right == x):
            assert made.strides == (left == right).strides
            assert bool(made.all())
        huge = np.broadcast_to(np.float64(2), (1 << 20, 1 << 20))
        assert float((il.ones((1 << 20, 1)) * huge[:, :1]).sum()) == float(1 << 21)
        one = il.ones((2, 2))
        one[...] = np.broadcast_to(np.arange(2), (2, 2))
        assert one.tolist() == [[0, 1], [0, 1]]
