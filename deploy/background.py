"""A launcher in the background: a fresh interpreter in a session of its own, never a fork of this one.

It says on a pipe what people should know at the start, the address last, and goes on when the pipe closes.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from ..protocol.descriptors import pipe
from ..protocol.errors import InterlockError
from ..protocol.logs import tail
from ..protocol.sockets import runtime_folder

ADDRESS: Final = "address "  # the last line of a start begins with this


def start(arguments: Sequence[str], log: Path | None, say: Callable[[str], None]) -> None:
    """Run `interlock up` with these arguments in the background, and wait until its workers serve.

    Args:
        arguments: of `up`, without those that say how it is started.
        log: what it writes goes there; None for a file in its own folder, which goes with it.
        say: is told each line of the start.

    Raises:
        InterlockError: it did not start; with its last lines.
    """
    written = log or _new_log()
    told, tell = pipe()
    command = [sys.executable, "-P", "-m", "interlock.deploy", "up", *arguments, "--told-fd", str(tell)]
    if log is None:
        command += ["--own-log", str(written)]
    try:
        with open(written, "ab") as output:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=(tell,),
                start_new_session=True,
            )
    except BaseException:
        os.close(told)
        raise
    finally:
        os.close(tell)
    last = ""
    try:
        with os.fdopen(told, encoding="utf-8") as lines:
            for line in lines:
                last = line.rstrip("\n")
                say(last)
        if not last.startswith(ADDRESS):
            code = process.wait()
            raise InterlockError(f"the launcher ended with exit code {code} at its start{_last_lines(written)}")
    except BaseException:
        process.terminate()
        process.wait()
        if log is None:
            written.unlink(missing_ok=True)
        raise
    process.returncode = 0  # it goes on: nobody waits for it here


def adopt_log(log: Path, folder: Path) -> None:
    """In the background, once all is well: put the log file into the launcher's folder, with which it goes."""
    os.replace(log, folder / "launcher.log")


def _new_log() -> Path:
    fd, name = tempfile.mkstemp(prefix="launcher-", suffix=".log", dir=runtime_folder())
    os.close(fd)
    return Path(name)


def _last_lines(log: Path) -> str:
    lines = tail(log, 20, 16384)
    return ":\n  " + "\n  ".join(lines) if lines else ""
