"""Real programs for tests: started with a limit on everything, and ended whatever happens.

Nothing here sleeps to wait: what is waited for is a line, the end of a process, or the answer to a question.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

LIMIT_S = 60.0  # far more than anything takes: beyond it, it hangs


class Ran(NamedTuple):
    """A program that has ended."""

    code: int
    out: str
    err: str
    seconds: float


def run(
    command: Sequence[str], *, text: str | None = None, env: Mapping[str, str] | None = None, limit_s: float = LIMIT_S
) -> Ran:
    """Run a command to its end."""
    begun = time.monotonic()
    done = subprocess.run(
        list(command),
        input=text,
        stdin=subprocess.DEVNULL if text is None else None,
        capture_output=True,
        text=True,
        timeout=limit_s,
        env=environment(env),
        check=False,
    )
    return Ran(done.returncode, done.stdout, done.stderr, time.monotonic() - begun)


def run_python(script: str, *arguments: str, env: Mapping[str, str] | None = None, limit_s: float = LIMIT_S) -> Ran:
    """Run a script to its end."""
    return run([sys.executable, "-c", script, *arguments], env=env, limit_s=limit_s)


def interlock(*arguments: str, env: Mapping[str, str] | None = None) -> Ran:
    """Run the `interlock` command to its end."""
    return run([sys.executable, "-P", "-m", "interlock.deploy", *arguments], env=env)


def environment(more: Mapping[str, str] | None) -> dict[str, str]:
    """What programs see: nothing of Interlock's but what the test says."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("INTERLOCK_")}
    return {**kept, **(more or {})}


class Program:
    """A program that runs while the test goes on. A context: it has ended when the context has."""

    def __init__(self, command: Sequence[str], *, env: Mapping[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            list(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(env),
            start_new_session=True,
        )
        self.said: list[str] = []
        self._buffer = b""

    @property
    def pid(self) -> int:
        return self.process.pid

    def line(self, containing: str = "", limit_s: float = LIMIT_S) -> str:
        """The next line of its output that contains this."""
        deadline = time.monotonic() + limit_s
        stdout = self.process.stdout
        assert stdout is not None
        poll = select.poll()
        poll.register(stdout, select.POLLIN)
        while True:
            line, newline, rest = self._buffer.partition(b"\n")
            if newline:
                self._buffer = rest
                self.said.append(line.decode())
                if containing in self.said[-1]:
                    return self.said[-1]
                continue
            if not poll.poll(max(deadline - time.monotonic(), 0) * 1000):
                raise AssertionError(f"no line with {containing!r} came; it said {self.said}")
            piece = os.read(stdout.fileno(), 65536)
            if not piece:
                raise AssertionError(f"it ended without a line with {containing!r}: {self.said}; {self.errors()}")
            self._buffer += piece

    def tell(self, line: str = "") -> None:
        """A line for its input."""
        assert self.process.stdin is not None
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()

    def errors(self) -> str:
        """What it wrote to stderr, once it has ended."""
        assert self.process.stderr is not None
        return self.process.stderr.read().decode()

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def ended(self, limit_s: float = LIMIT_S) -> int:
        """Its exit code, when it has ended."""
        return self.process.wait(limit_s)

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


def program(script: str, *arguments: str, env: Mapping[str, str] | None = None) -> Program:
    """Start a script; its output is unbuffered."""
    return Program([sys.executable, "-u", "-c", script, *arguments], env=env)


def launcher(*arguments: str, env: Mapping[str, str] | None = None) -> Program:
    """Start `interlock up` in the foreground."""
    return Program([sys.executable, "-P", "-m", "interlock.deploy", "up", *arguments], env=env)


def address_of(up: Program) -> str:
    """The address that a launcher prints, when its workers serve."""
    return up.line("address ").removeprefix("address ")


def runs(pid: int) -> bool:
    """Does a process with this id run? A zombie does not."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except OSError:
        return False


def gone(pids: Sequence[int], limit_s: float) -> bool:
    """Whether all these processes end in time."""
    deadline = time.monotonic() + limit_s
    for pid in pids:
        try:
            fd = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            poll = select.poll()
            poll.register(fd, select.POLLIN)
            if not poll.poll(max(deadline - time.monotonic(), 0) * 1000):
                return False
        finally:
            os.close(fd)
    return True


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def becomes(question: Callable[[], Any], limit_s: float = LIMIT_S) -> Any:
    """Ask again and again until the answer is true. The question itself takes its time: a round trip, a command."""
    deadline = time.monotonic() + limit_s
    while not (answer := question()):
        assert time.monotonic() < deadline, "it did not come to be"
    return answer


def customize(folder: Path, code: str) -> dict[str, str]:
    """An environment in which every worker runs this code first, before it imports anything."""
    (folder / "sitecustomize.py").write_text(
        "import sys\nif 'interlock.worker' in sys.orig_argv:\n" + textwrap.indent(textwrap.dedent(code), "    ")
    )
    return python_path(folder)


def python_path(folder: Path) -> dict[str, str]:
    """An environment in which this folder comes first among those that modules are looked for in."""
    return {"PYTHONPATH": os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])}
