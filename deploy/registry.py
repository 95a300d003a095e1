"""Where the launchers of this user are found: a note in the private folder of each.

The note goes with the folder, which goes with the launcher or, if that was killed, with the last of its workers.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Final, NamedTuple

from ..protocol.identity import Identity, alive, own_identity, same_host
from ..protocol.sockets import remove_folder, sweep
from ..protocol.whole import write_whole

NOTE: Final = "launcher.json"


class Found(NamedTuple):
    """A launcher that runs."""

    address: str
    identity: Identity


def announce(folder: Path, address: str) -> None:
    """Let this process's launcher be found."""
    write_whole(folder / NOTE, json.dumps({"address": address, "identity": own_identity()}))


def find() -> list[Found]:
    """The launchers that run, the oldest first. What the dead have left is removed."""
    found = []
    for note in sweep().glob(f"*/{NOTE}"):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):  # it may be going just now
            told = json.loads(note.read_text())
            launcher = Found(told["address"], Identity(*told["identity"]))
            if not same_host(launcher.identity, own_identity()):
                continue  # of a container that shares the folder
            if alive(launcher.identity):
                found.append(launcher)
            else:
                remove_folder(note.parent)
    return sorted(found, key=lambda launcher: launcher.identity.start_time)
