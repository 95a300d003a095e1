"""A process's way over tcp: as whom it connects, whom it lets in, and who is told when a connection is over.

Nothing of it is loaded or started before a tcp endpoint is used. Which keys there are is in `keys.py`, what happens
on the wire in `tcp.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import keys
from .keys import Pair

if TYPE_CHECKING:
    from .tcp import Link, Listening, Ties


class Network:
    """What a process needs for its tcp sockets; with no pair it can have none."""

    def __init__(self, pair: Pair | None, ended: Callable[[Any, str], None]) -> None:
        """`ended(key, words)` is called, on a thread, when a connection that was made with that key is over."""
        self._pair = pair
        self._ended = ended
        self._ties: Ties | None = None

    @property
    def public(self) -> str:
        """This process's own public key, in hexadecimal; "" without keys."""
        return "" if self._pair is None else self._pair.public.hex()

    def link(self, endpoint: str, key: Hashable) -> Link | None:
        """What an `Outlet` to this endpoint needs; None for a local one, and where there is no key."""
        if self._pair is None or not endpoint.startswith("tcp://"):
            return None
        from .tcp import Link, Ties

        if self._ties is None:
            self._ties = Ties(self._ended)
        return Link(self._pair, self._ties, key)

    def close(self) -> None:
        if self._ties is not None:
            self._ties.close()
            self._ties = None


def server_pair(path: Path | None) -> Pair | None:
    """The server's pair in a file of keys; None without a file.

    Raises:
        KeysError: it has none, or cannot be used.
    """
    if path is None:
        return None
    pair = keys.load(path).server
    if pair is None:
        raise keys.KeysError(f"{path} has a program's keys only: a launcher and its workers need those of a server")
    return pair


def listening(endpoint: str, path: Path | None) -> Listening | None:
    """Where a server with these keys listens, for the programs listed at the moment when they come; None for nowhere.

    Raises:
        KeysError: it has none, or cannot be used.
    """
    pair = server_pair(path)
    if not endpoint or path is None or pair is None:
        return None
    from .tcp import Listening

    return Listening(endpoint, pair, lambda public: keys.load(path).admits(public))
