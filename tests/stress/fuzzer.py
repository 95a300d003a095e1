"""Throws bytes and messages at workers that no honest program sends: at random, mutated, forged.

Everything comes from one seed. What is thrown is made here; that the workers, their launcher and other sessions go on
is seen in `test_fuzz.py`. Left out is only what a session that is let in may do: take long, and fill its own share.
"""

from __future__ import annotations

import os
import pickle
import random
import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from interlock.protocol import messages as m
from interlock.protocol.arena import Arena
from interlock.protocol.codec import decode, encode
from interlock.protocol.errors import ProtocolError
from interlock.protocol.functions import FUNCTIONS, WRITING
from interlock.protocol.identity import own_identity
from interlock.protocol.operations import BY_NAME, OPERATIONS, table_hash

SIZES = (-1, 0, 1, 2, 3, 7, 64, 100, 4095, 1 << 31, 1 << 32, 1 << 40, (1 << 62) + 1, (1 << 63) - 1, (1 << 64) - 1)
FEW = (-1, 0, 1, 2, 3, 7)  # for what is really made
DTYPES = ("<f8", "<f4", "<i8", "|b1", "<c16", "|u1", "<f2", "O", "|V8", "<U4", "|S3", "<M8[s]", ">f8", "no", "O,O", "")
NAMES = (*sorted(FUNCTIONS | WRITING), "add.at", "add.reduceat", "getitem", "load", "fromfile", "frompyfunc", "x" * 9)
LIES = (
    b"\xdd\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\xdb\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff",
    b"\xc9\xff\xff\xff\xff\x05", b"\x92" * 3000, b"\x81" * 3000, b"\xc7\x0c\xff" + b"\0" * 12,
)  # fmt: skip


class Bomb:
    """Whoever unpickles it makes a file."""

    def __init__(self, file: str) -> None:
        self.file = file

    def __reduce__(self) -> tuple[object, tuple[str, str]]:
        return open, (self.file, "w")


class Fuzzer:
    """Makes what is thrown."""

    def __init__(self, seed: int, bomb: str) -> None:
        """`bomb` is the file that appears if a pickle is run."""
        self.random = random.Random(seed)
        self._pickles = [pickle.dumps(Bomb(bomb), protocol) for protocol in range(pickle.HIGHEST_PROTOCOL + 1)]
        self.me = own_identity()
        self._arena = Arena(1 << 20, self.me, 1 << 20)
        self._block = self._arena.allocate(4096)
        self._segment = self._arena.ticket(self._block)
        self.seen: list[bytes] = []  # real messages, to be replayed and mutated
        self._kinds: tuple[tuple[Callable[[], bytes], int], ...] = (
            (self.noise, 2), (self.mutant, 5), (self.lie, 1), (self.pickled, 1), (self.forged, 8), (self.replayed, 2),
        )  # fmt: skip

    def close(self) -> None:
        self._arena.close()

    def message(self) -> bytes:
        """One message of any kind."""
        makers, weights = zip(*self._kinds, strict=True)
        return self.random.choices(makers, weights)[0]()

    def frames(self) -> list[bytes]:
        """One message, now and then in the wrong number of frames."""
        if self.random.random() < 0.97:
            message = self.message()
            while stops(message):
                message = self.message()
            return [message]
        return [self.message() for _ in range(self.random.choice((2, 3, 9)))]

    # -- kinds

    def noise(self) -> bytes:
        return self.random.randbytes(self.random.choice((0, 1, 2, 5, 17, 80, 300)))

    def lie(self) -> bytes:
        """A few bytes that claim gigabytes, bare or inside a message."""
        lie = self.random.choice(LIES)
        return lie if self.random.random() < 0.5 else bytes([0x92 + self.random.randrange(8), self.number(32)]) + lie

    def pickled(self) -> bytes:
        return self.random.choice(self._pickles)

    def replayed(self) -> bytes:
        return self.random.choice(self.seen) if self.seen else self.noise()

    def mutant(self) -> bytes:
        """A message with some bytes changed, taken out or put in."""
        data = bytearray(self.replayed() if self.random.random() < 0.3 else self.forged())
        for _ in range(self.random.choice((1, 1, 2, 5))):
            at = self.random.randrange(len(data) + 1)
            match self.random.randrange(4):
                case 0 if at < len(data):
                    data[at] = self.random.randrange(256)
                case 1 if at < len(data):
                    del data[at : at + self.random.choice((1, 1, 4))]
                case 2:
                    data[at:at] = self.random.randbytes(self.random.choice((1, 1, 4)))
                case 3:
                    data[at:at] = data[: self.random.randrange(1 + len(data))]
        return bytes(data)

    def forged(self) -> bytes:
        """A well-formed message whose fields are anything that their types allow."""
        cls = self.random.choice((m.Batch, m.Batch, m.Batch, m.Ticket, m.Ticket, *m.CLASSES))
        return encode(self.fill(cls))

    def fill(self, cls: type[Any]) -> Any:
        """A message of this class."""
        return cls._make([self.field(cls, name, kind) for name, kind in cls.__annotations__.items()])

    def field(self, cls: type[Any], name: str, kind: Any) -> Any:
        match name:
            case "instructions":
                return tuple(self.instruction() for _ in range(self.number(6)))
            case "specs" if cls is m.Batch:
                return tuple(self.spec() for _ in range(self.number(3)))
            case "place":
                return self.place()
            case "identity":
                return self.identity()
            case "events":
                return self.random.choice(("inproc://x", "ipc:///nowhere/events", "tcp://127.0.0.1:1", "", "x" * 300))
            case "version":
                return m.PROTOCOL_VERSION
            case "table":
                return table_hash()
            case "session":
                return self.random.randbytes(self.random.choice((16, 16, 16, 0, 5)))
            case "peers":
                return tuple(self.peer() for _ in range(self.number(3)))
            case "options":
                return {"memory": self.random.choice(SIZES), "window": self.plain(), "progress": self.ticket()}
            case "failure":
                return None if self.random.random() < 0.7 else tuple(self.plain() for _ in range(6))
        if kind is int:
            return self.random.choice(SIZES)
        if kind is bool:
            return self.random.random() < 0.5
        if kind is str:
            return self.random.choice(("", "x", "\0", "é" * 40))
        if kind is bytes:
            return self.noise()
        if kind in (dict[str, Any], dict[str, int]):
            return {"arrays": 1}
        if kind is Any:
            return self.plain()
        return tuple(self.plain() for _ in range(self.number(4)))

    # -- parts

    def number(self, most: int) -> int:
        return self.random.randrange(most)

    def plain(self, depth: int = 0) -> Any:
        """Any value that a message can hold."""
        match self.random.randrange(9 if depth < 3 else 7):
            case 0:
                return None
            case 1:
                return self.random.random() < 0.5
            case 2 | 3:
                return self.random.choice(SIZES)
            case 4:
                return self.random.choice((0.5, -0.0, float("nan"), float("inf"), 1e300))
            case 5:
                return self.random.choice(DTYPES)
            case 6:
                return self.random.randbytes(self.number(20))
            case 7:
                return tuple(self.plain(depth + 1) for _ in range(self.number(4)))
            case _:
                return {"a": self.plain(depth + 1)}

    def identity(self) -> tuple[Any, ...]:
        """Of this process, or a forged one: another's number, a time that was never, no identity at all."""
        real = list(self.me)
        if self.random.random() < 0.5:
            real[self.number(7)] = self.random.choice((*SIZES, "x", os.getppid(), 1))
        return tuple(real[: self.random.choice((7, 7, 7, 0, 6))])

    def peer(self) -> tuple[Any, ...]:
        where = self.random.choice(("ipc:///nowhere/w", "inproc://x", "tcp://127.0.0.1:1", "pgm://x", 5))
        return (self.random.choice((0, 1, 2, -1, 300)), where, self.identity(), self.random.random() < 0.5)

    def ticket(self) -> Any:
        """For shared memory: the real one of a segment of this process, with anything about it forged."""
        forged = list(self._segment)
        for _ in range(self.random.choice((0, 1, 1, 2))):
            at = self.number(len(forged))
            forged[at] = self.random.choice((*SIZES, "memfd", "shm", b"\0" * 16, self.random.randbytes(16), None))
        if self.random.random() < 0.3:
            forged = ["slab", self.me.incarnation, *self.random.choices(FEW, k=2), *forged]
        return tuple(forged)

    def place(self) -> Any:
        match self.random.randrange(4):
            case 0:
                return self.random.randbytes(self.random.choice((0, 8, 24, 64)))
            case 1:
                return None
            case 2:
                return self.plain()
        kind = self.random.choice(("host", "host", "device", "x"))
        return (kind, self.random.choice(SIZES), self.random.choice((0, 0, 8, *SIZES)), self.ticket())

    def shape(self) -> tuple[int, ...]:
        return tuple(self.random.choices(FEW, k=self.number(4)))

    def spec(self) -> tuple[Any, ...]:
        if self.random.random() < 0.05:
            return tuple(self.plain() for _ in range(4))
        shape = self.shape()
        strides = tuple(self.random.choice((8, 16, 24, -8, 1, 1 << 40)) for _ in shape)
        if self.random.random() < 0.7:
            dtype = np.dtype(self.random.choice(DTYPES[:7]))
            whole = np.empty([max(extent, 0) for extent in shape], dtype)
            return (self.number(8), shape, dtype.str, whole.strides)
        return (self.number(8), shape, self.random.choice(DTYPES), strides)

    def ref(self) -> Any:
        """An operand: a buffer that may be there, a view that may reach outside of it, a constant, nonsense."""
        match self.random.randrange(8):
            case 0 | 1 | 2:
                return self.random.choice((1, 2, 3, 4, 5, 6, 7, *SIZES))
            case 3 | 4:
                shape = self.shape()
                # No step of 0: what is broadcast to any size takes for ever, as it may.
                strides = tuple(self.random.choice((8, -8, 1, 7, 1 << 20, -(1 << 40))) for _ in shape)
                return (self.random.choice(FEW), self.random.choice(SIZES), shape, strides, self.random.choice(DTYPES))
            case 5:
                return (self.random.choice((1, 2.5, True, None, "x", b"y", -3)),)
            case 6:
                return (self.random.choice(DTYPES), self.random.randbytes(self.random.choice((0, 1, 8, 16))))
        return self.plain()

    def tree(self, depth: int = 0) -> Any:
        """Arguments of a call by name."""
        few = self.random.choices(FEW, k=2)
        leaf = self.random.choice(
            ((":", *few, None), ("...",), ("d", self.random.choice(DTYPES)), ("i", "9" * 5000), ("@", few[0]), "O",
             ("n", self.random.choice(DTYPES), bytes(8)), ("a", self.random.choice(DTYPES), (few[1],), bytes(8)))
        )  # fmt: skip
        if depth > 2 or self.random.random() < 0.4:
            return leaf
        if self.random.random() < 0.3:
            return ("{", self.random.choice(("dtype", "out", "axis", "x", "where")), self.tree(depth + 1))
        return (self.random.choice("(["), *[self.tree(depth + 1) for _ in range(self.number(4))])

    def instruction(self) -> tuple[Any, ...]:
        match self.random.randrange(10):
            case 0:
                return tuple(self.plain() for _ in range(self.number(6)))
            case 1:
                return (self.number(12), *[self.ref() for _ in range(self.number(6))])
            case 2:
                return (m.Control.UPLOAD, self.number(8), self.number(8), self.place())
            case 3:
                return (m.Control.RECV, self.number(8), self.number(8), self.random.choice(SIZES), self.number(3))
            case 4:
                return (m.Control.SEND, self.ref(), self.random.choice(SIZES), self.random.choice((0, 1, 2, 9)))
            case 5:
                return (m.Control.READ, self.ref(), self.number(100))
            case 6:
                fill = self.random.choice(("zeros", "ones", "empty"))
                static = (self.shape(), self.random.choice(DTYPES), self.random.choice(("C", "F", (0, 1), "Z")))
                return (4 * BY_NAME[fill].number + m.GENERAL, self.number(8), (self.number(8),), (), static, None)
        operation = self.random.choice(OPERATIONS)
        form = self.random.choice((m.ARRAYS, m.SCALAR_LEFT, m.SCALAR_RIGHT, m.GENERAL))
        code = 4 * operation.number + form
        if form != m.GENERAL:
            operands = [self.ref() for _ in range(self.random.choice((operation.inputs, 2, 1, 3)))]
            return (code, self.number(8), self.number(8), *operands)
        outputs = tuple(self.number(8) for _ in range(max(self.random.choice((operation.outputs, 1, 0)), 0)))
        operands = tuple(self.ref() for _ in range(self.random.choice((max(operation.inputs, 0), 1, 2, 3))))
        static = tuple(self.random.choice((*FEW, None, True, "<f8", "O", (), (1,), (2.5,))) for _ in operation.static)
        if operation.kind in ("named", "asked"):
            static = (self.random.choice(NAMES), (self.tree(), self.tree()), *static[2:])
        into = self.ref() if self.random.random() < 0.3 else None
        return (code, self.number(8), outputs, operands, static, into)


def stops(data: bytes) -> bool:
    """Whether it is a Stop, which every process of the same user may say to a worker, as it may kill it."""
    try:
        return type(decode(data)) is m.Stop
    except ProtocolError:
        return False


def zmtp_noise(fuzzer: Fuzzer) -> bytes:
    """Bytes for a socket on which ZeroMQ is spoken: its greeting, then anything."""
    greeting = b"\xff" + struct.pack(">Q", 1) + b"\x7f\x03\x01" + b"CURVE".ljust(20, b"\0") + b"\0" * 32
    cut = fuzzer.random.choice((len(greeting), len(greeting), 10, 3))
    frame = fuzzer.random.choice((b"\x04", b"\x06" + struct.pack(">Q", 1 << 40), b"\x00\xff", b"\x02" + b"\xff" * 8))
    return greeting[:cut] + frame + fuzzer.noise()
