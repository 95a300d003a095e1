"""A worker's Python stack, for another process of the same user, whatever the worker is doing.

The worker has the interpreter's own fault handler write it at a signal: that needs neither the loop nor the
interpreter's lock, which a kernel may hold for long. What it writes goes into memory that goes with the process.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path
from typing import Final

from .identity import Identity, alive

NAME: Final = "interlock-stack"
WAIT_S: Final = 1.0  # how long a stack may take to be written
LINES: Final = 24  # of a stack that are shown


def offer_stack() -> None:
    """From now on SIGUSR1 makes this process write its stacks where `python_stack` finds them."""
    import faulthandler

    faulthandler.register(signal.SIGUSR1, file=os.memfd_create(NAME), all_threads=True)


def process_state(identity: Identity) -> str | None:
    """The letter that the kernel gives to what a process does: R runs, S sleeps, D on disk, T stopped, Z ended."""
    with contextlib.suppress(OSError, IndexError):
        state = Path(f"/proc/{identity.pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        return state if alive(identity) else None
    return None


def python_stack(identity: Identity) -> list[str]:
    """The stack of a worker's main thread, the innermost frame first; empty if it cannot be had."""
    file = _file_of(identity.pid)
    if file is None or not alive(identity):
        return []
    with contextlib.suppress(OSError), open(file, "rb", buffering=0) as written:
        before = written.seek(0, os.SEEK_END)
        os.kill(identity.pid, signal.SIGUSR1)
        deadline = time.monotonic() + WAIT_S
        size = before
        while time.monotonic() < deadline:
            time.sleep(0.02)
            now = written.seek(0, os.SEEK_END)
            if now > before and now == size:
                break
            size = now
        written.seek(before)
        return _main_thread(written.read().decode(errors="replace"))
    return []


def _file_of(pid: int) -> Path | None:
    """Where the process writes its stacks; None if it does not offer them."""
    with contextlib.suppress(OSError):
        for file in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                if os.readlink(file).startswith(f"/memfd:{NAME}"):
                    return file
    return None


def _main_thread(text: str) -> list[str]:
    """The frames of the main thread: the stack that ends in the program's own start."""
    threads: list[list[str]] = []
    for line in text.splitlines():
        if line.startswith(("Thread", "Current thread")):
            threads.append([])
        elif threads and line.strip():
            threads[-1].append(line.strip())
    for frames in threads:
        if frames and frames[-1].startswith('File "<frozen runpy>"'):
            return [frame for frame in frames if "<frozen" not in frame][:LINES]
    return threads[0][:LINES] if threads else []
