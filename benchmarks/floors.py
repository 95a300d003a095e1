"""What ours is compared with: bare processes, bare ZeroMQ, one copy of memory, one NumPy loop.

Nothing here uses Interlock.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np
import zmq
from measuring import seconds

MIB64: Final = 64 * 2**20
WORKER_IMPORTS: Final = "import numpy, zmq, msgpack"  # what a worker cannot do without


def memcpy(nbytes: int = MIB64) -> Callable[[], float]:
    """A function that copies bytes into memory that is there already, and says how many seconds that took."""
    source, target = np.ones(nbytes // 8), np.ones(nbytes // 8)
    return lambda: seconds(lambda: np.copyto(target, source))


def memcpy_time() -> float:
    """Seconds to copy 64 MiB, at its best."""
    copy = memcpy()
    return min(copy() for _ in range(6))


def numpy_loop() -> float:
    """Seconds for a fixed piece of work: tells whether the machine was the same before and after."""
    a = b = np.ones(10)

    def work() -> None:
        for _ in range(50_000):
            a + b

    return min(seconds(work) for _ in range(3))


class Ring:
    """A message that goes through some processes, from one to the next and back here, over ZeroMQ ipc sockets."""

    HOP: Final = """
import sys, zmq
context = zmq.Context()
source, target = context.socket(zmq.PULL), context.socket(zmq.PUSH)
source.bind(sys.argv[1])
target.connect(sys.argv[2])
while (message := source.recv()):
    target.send(message)
target.send(b"")
"""

    def __init__(self, hops: int, nbytes: int) -> None:
        self._hops, self._payload = hops, bytes(nbytes)

    def __enter__(self) -> Ring:
        self._folder = tempfile.TemporaryDirectory(prefix="il-", dir="/tmp")  # short: a socket's path has 107 bytes
        ends = [f"ipc://{self._folder.name}/{i}" for i in range(self._hops + 1)]
        self._context = zmq.Context()
        self._target = self._context.socket(zmq.PUSH)
        self._source = self._context.socket(zmq.PULL)
        self._source.bind(ends[-1])
        self._target.connect(ends[0])
        self._children = [
            subprocess.Popen([sys.executable, "-c", self.HOP, ends[i], ends[i + 1]]) for i in range(self._hops)
        ]
        self.go()
        return self

    def go(self) -> None:
        """Once around."""
        self._target.send(self._payload)
        self._source.recv()

    def __exit__(self, *_: object) -> None:
        self._target.send(b"")
        for child in self._children:
            child.wait()
        self._source.close()
        self._target.close()
        self._context.term()
        self._folder.cleanup()


class Multiplier:
    """A bare process that multiplies matrices with one BLAS thread."""

    CHILD: Final = """
import sys
import numpy as np
size, repeats = int(sys.argv[1]), int(sys.argv[2])
x = np.random.default_rng(0).random((size, size))
for line in sys.stdin:
    products = [x @ x for _ in range(repeats)]
    print(flush=True)
"""

    def __init__(self, size: int, repeats: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", self.CHILD, str(size), str(repeats)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
        )

    def start(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")
        self._process.stdin.flush()

    def wait(self) -> None:
        assert self._process.stdout is not None
        self._process.stdout.readline()

    def run(self) -> None:
        self.start()
        self.wait()

    def __enter__(self) -> Multiplier:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()


def interpreters(count: int, code: str) -> None:
    """Run `code` in some fresh interpreters side by side, until all have ended."""
    for process in [subprocess.Popen([sys.executable, "-c", code]) for _ in range(count)]:
        process.wait()


def answer(code: str, *arguments: str, environment: Mapping[str, str] | None = None) -> Sequence[str]:
    """The words that `code` prints in a fresh interpreter."""
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout.split()
