"""Ctrl-C at every place where Python looks for signals, in each kind of call: it leaves nothing, and breaks nothing.

A tracer stands in for the keyboard. Python 3.11 looks at the beginning of a function, behind a call, and at a jump
back; between other instructions no interrupt can come, and the code counts on that.
"""

from __future__ import annotations

import contextlib
import dis
import signal
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Final

import numpy as np
import pytest

import interlock as il
from interlock.coordinator.issue import Handle

from ..stress.player import Player, Setting

LOOKS: Final = frozenset(
    number for name, number in dis.opmap.items() if name.startswith(("CALL", "RESUME", "JUMP_BACKWARD"))
)
ROOT: Final = str(Path(il.__file__).parent)
FILES: Final = tuple(f"{ROOT}/{folder}/" for folder in ("coordinator", "protocol"))
N: Final = 40_000  # elements of a large array


class Keyboard:
    """Has Ctrl-C come at one place: the `at`-th where Python looks for signals in our code."""

    def __init__(self, at: int) -> None:
        self.left = at
        self._looked: dict[int, bool] = {}  # by id of a frame: whether what it did last is such a place

    def __enter__(self) -> None:
        sys.settrace(self._entered)

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _entered(self, frame: FrameType, event: str, argument: Any) -> Any:
        if not frame.f_code.co_filename.startswith(FILES) or frame.f_code.co_name == "__del__":
            return None
        frame.f_trace_opcodes = True
        self._looked[id(frame)] = False
        return self._traced

    def _traced(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event != "opcode":
            return self._traced
        looks, self._looked[id(frame)] = self._looked[id(frame)], frame.f_code.co_code[frame.f_lasti] in LOOKS
        if looks:
            self.left -= 1
            if self.left < 0:
                sys.settrace(None)
                handler = signal.getsignal(signal.SIGINT)
                assert callable(handler)
                handler(signal.SIGINT, frame)
        return self._traced


@pytest.fixture(autouse=True)
def default_handler() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def everywhere(session: il.Session, call: Callable[[], Any], stride: int = 1) -> int:
    """Do a call again and again, interrupted one place (or so many) later each time; how many there are."""
    for at in range(0, 2000, stride):
        keyboard = Keyboard(at)
        try:
            with keyboard:
                call()
        except KeyboardInterrupt:
            with session.lock:
                session.flush()  # else what is dropped grows, and with it the places
            continue
        if keyboard.left >= 0:
            return at
    raise AssertionError("it has no end")


def held(session: il.Session) -> Any:
    """What workers and the frontend hold once all has come to rest."""
    player = Player(session, Setting())
    found: Any = None
    for _ in range(20):
        player._synchronize(may_fail=True)
        if session.recovery is not None:
            session.checkpoint(20.0)  # it keeps uploads
        last, found = found, player.left_over()
        if found == last:
            break
    return found


CALLS: Final[dict[str, Callable[[Any, Any, Any], Any]]] = {
    "binary": lambda x, y, device: x + y,
    "binary with a number": lambda x, y, device: x * 2.5,
    "reflected": lambda x, y, device: 2.0 - x,
    "unary": lambda x, y, device: -x,
    "in place": lambda x, y, device: x.__iadd__(y),
    "assign": lambda x, y, device: x.__setitem__(slice(1, 3), 1.0),
    "reduction": lambda x, y, device: x.sum(),
    "two results": lambda x, y, device: np.divmod(x, y),
    "new": lambda x, y, device: il.zeros(x.shape, device=x.device),
    "a list": lambda x, y, device: x[:3] + [1.0, 2.0, 3.0],  # noqa: RUF005  # no list is made
    "broadcast": lambda x, y, device: x + np.broadcast_to(np.float64(3.0), x.shape),
    "asked": lambda x, y, device: np.unique(x[:3]),
    "transfer": lambda x, y, device: x.to(device),
    "upload": lambda x, y, device: il.asarray(np.ones(x.shape), device=device),
    "read": lambda x, y, device: x.numpy(),
    "item": lambda x, y, device: float(x[0]),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("size", [5, N])
@pytest.mark.parametrize(
    ("gate", "recover"), [("worker", False), ("coordinator", False), ("worker", True)], ids=["", "gate", "recover"]
)
def test_ctrl_c_at_any_place_of_a_call_leaves_nothing(gate: str, recover: bool, size: int) -> None:
    with il.connect("cpu:0,cpu:1", gate=gate, recover=recover) as session:
        x, y, there = il.ones(size), il.ones(size), session.devices[1]
        for name, call in CALLS.items():
            call(x, y, there)  # so that what has to be inferred is known
            before = held(session)
            assert everywhere(session, partial(call, x, y, there)) > 3, name
            assert held(session) == before, name
            np.testing.assert_array_equal((y + y).to(there).numpy(timeout=20.0), np.full(size, 2.0), name)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("gate", ["worker", "coordinator"])
def test_ctrl_c_at_any_place_of_a_run_leaves_nothing(gate: str) -> None:
    """Of a captured function with temporaries, a transfer and results, on both workers."""
    with il.connect("cpu:0,cpu:1", gate=gate) as session:
        x, there = il.ones(5), session.devices[1]

        @il.capture
        def step(x: Any) -> Any:
            y = (x + 1) * 2
            return (y - x).to(there) * 3, y.sum()

        step(x)
        before = held(session)
        assert everywhere(session, partial(step, x), 1 if gate == "worker" else 7) > 20
        assert held(session) == before
        np.testing.assert_array_equal(step(x)[0].numpy(timeout=20.0), np.full(5, 9.0))


def test_ctrl_c_in_a_finaliser_comes_a_moment_later_and_the_array_goes() -> None:
    """Where Python would drop it, with all that the finaliser had still to do."""

    def interrupt(frame: FrameType, event: str, argument: Any) -> None:
        if frame.f_code is Handle.__del__.__code__:
            sys.settrace(None)
            raise KeyboardInterrupt

    shown = sys.unraisablehook
    with il.connect("cpu:0") as session:
        x = il.ones(5)
        before = held(session)
        made = [x + 1]

        def drop() -> None:
            sys.settrace(interrupt)
            made.clear()
            assert sys.gettrace() is None
            time.sleep(20.0)

        with pytest.raises(KeyboardInterrupt):
            drop()
        assert held(session) == before
    assert sys.unraisablehook is shown


class Interrupting:
    """A session's socket for events that receives a message, and Ctrl-C with it, as ZeroMQ's binding may."""

    def __init__(self, socket: Any) -> None:
        self._socket = socket
        self.left = 0

    def recv(self, flags: int = 0) -> bytes:
        data: bytes = self._socket.recv(flags)
        self.left -= 1
        if self.left == 0:
            signal.raise_signal(signal.SIGINT)
        return data

    def __getattr__(self, name: str) -> Any:
        return getattr(self._socket, name)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("gate", ["worker", "coordinator"])
def test_no_message_is_lost_that_comes_together_with_ctrl_c(gate: str) -> None:
    """Nobody sends it again: what it gives back would be kept for ever, and what it answers be waited for."""
    with il.connect("cpu:0,cpu:1", gate=gate) as session:
        there = session.devices[1]
        socket: Any = Interrupting(session._events._socket)
        session._events._socket = socket
        before = held(session)
        for at in range(1, 31):
            x = il.asarray(np.full(N, at))
            y = (x + 1).to(there)
            del x
            socket.left = 1 + at % 3
            with contextlib.suppress(KeyboardInterrupt):
                session.synchronize(timeout=20.0)
                y.numpy(timeout=20.0)
            socket.left = 0
            np.testing.assert_array_equal(y.numpy(timeout=20.0), np.full(N, at + 1))
            del y
        assert held(session) == before
