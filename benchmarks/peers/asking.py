"""The runner's side of a peer: starts its script, asks, waits no longer than agreed, and leaves no process behind."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final

THREADS: Final = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
START_S: Final = 120.0
ANSWER_S: Final = 120.0
END_S: Final = 20.0


class Silent(Exception):
    """The peer gave no answer, and this is how it ended."""


class Refused(Exception):
    """The peer answered that it could not, and why; it can be asked other things."""


class Running:
    """A peer's script as a process, in a session of its own, so that all of its processes end with it."""

    def __init__(self, command: Sequence[str], log: Path) -> None:
        self._log = log
        with log.open("w") as errors:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env={**os.environ, **THREADS, "PYTHONPATH": str(Path(__file__).parent)},
                start_new_session=True,
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._questions, self._answers = self._process.stdin, self._process.stdout
        self._read = b""

    def __enter__(self) -> Running:
        try:
            hello = self._answer(START_S)
        except BaseException:
            self._end(0)
            raise
        self.versions: Mapping[str, str] = hello["versions"]
        self.rows: Mapping[str, Sequence[str]] = hello["rows"]
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._end(0 if kind else END_S)

    def ask(self, **question: Any) -> dict[str, Any]:
        try:
            self._questions.write(json.dumps(question).encode() + b"\n")
            self._questions.flush()
        except BrokenPipeError:
            raise self._silent("it has ended") from None
        answer = self._answer(ANSWER_S)
        if "error" in answer:
            raise Refused(answer["error"])
        return answer

    def _answer(self, timeout_s: float) -> dict[str, Any]:
        deadline = time.monotonic() + timeout_s
        while True:
            answer = _plain(self._line(deadline, timeout_s))
            if answer is not None:
                return answer

    def _line(self, deadline: float, timeout_s: float) -> bytes:
        while b"\n" not in self._read:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._answers], [], [], left)[0]:
                raise self._silent(f"no answer within {timeout_s:.0f} s")
            some = os.read(self._answers.fileno(), 1 << 16)
            if not some:
                raise self._silent("it has ended")
            self._read += some
        line, _, self._read = self._read.partition(b"\n")
        return line

    def _silent(self, how: str) -> Silent:
        lines = [line.strip() for line in self._log.read_text(errors="replace").splitlines() if line.strip()]
        return Silent(f"{how}: {lines[-1] if lines else 'it said nothing'}; see {self._log}")

    def _end(self, patience_s: float) -> None:
        """Let it end by itself for a while, then not."""
        with contextlib.suppress(OSError):
            self._questions.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(patience_s)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._answers.close()


def _plain(line: bytes) -> dict[str, Any] | None:
    """An answer; None for what a library said while it was loaded."""
    try:
        answer = json.loads(line)
    except ValueError:
        return None
    return answer if isinstance(answer, dict) else None
