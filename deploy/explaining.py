"""What the programs of this user wait for: asks each of their sessions, and puts the answers into words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final, NamedTuple

from ..protocol.identity import own_identity, start_time
from ..protocol.questions import NAME, ask_why
from ..protocol.sockets import owner_of, sweep

ANSWER_S: Final = 10.0  # a program that is in one long call of C code answers late


class Asked(NamedTuple):
    """One session of a program, and what it said; None if it did not answer."""

    pid: int
    answer: dict[str, Any] | None


def ask_programs(pid: int | None) -> list[Asked]:
    """What the sessions of one program, or of all, wait for; in the order of their process ids."""
    asked = []
    for socket in sweep().glob(f"*/{NAME}"):
        owner = owner_of(socket.parent)
        if owner is None or owner[2] != own_identity().pid_namespace or (pid is not None and owner[0] != pid):
            continue
        said = ask_why(socket.parent, ANSWER_S)
        if said is None and start_time(owner[0]) != owner[1]:
            continue  # it has ended meanwhile
        asked.append(Asked(owner[0], None if said is None else json.loads(said)))
    return sorted(asked, key=lambda each: (each.pid, json.dumps(each.answer)))


def show(asked: Asked) -> str:
    """For people."""
    told = asked.answer
    program = _command(asked.pid)
    if told is None:
        return f"program {asked.pid} ({program}) does not answer: it may be stopped, or in one long call of C code"
    if "error" in told:
        return f"program {asked.pid} ({program}) cannot tell: {told['error']}"
    lines = [f"program {asked.pid} ({program}), session {told['session'][:8]}"]
    for wait in told["waits"]:
        lines.append(f"  {wait['line']}: {wait['what']} on {wait['device']}, for {wait['since_s']:.1f} s")
        lines += [f"  {line}" for line in wait["text"]]
    if not told["waits"]:
        lines.append("  waits for nothing")
    for worker in told["workers"]:
        lines.append(
            f"  {worker['device']} (process {worker['pid']}, {worker['state']}): "
            f"{worker['finished']} of {worker['issued']} instructions have finished"
        )
        if worker["next"]:
            lines.append(f"    next: {worker['next']}")
    return "\n".join(lines)


def _command(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[:3]
    except OSError:
        return "ended"
    text = " ".join(word.decode(errors="replace") for word in words if word).split("\n")[0]
    return text if len(text) <= 60 else text[:57] + "..."
