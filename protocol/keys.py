"""Who may come in over tcp: key pairs, the file that holds them, and how an address carries a public key.

A key is 32 bytes, written as 64 hexadecimal digits, which no shell and no address needs to quote. A secret is in the
file alone: it is never printed, never part of an address, a command line or a log, and `repr` does not show it.
Knows nothing of sockets; what makes a new pair is given to it.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

from .errors import InterlockError

LARGEST: Final = 1 << 20  # bytes of a file of keys
VARIABLE: Final = "INTERLOCK_KEYS"
_HEX: Final = re.compile(r"[0-9a-f]{64}")
_MARK: Final = "?key="


class KeysError(InterlockError):
    """A file of keys is missing, is open to others, or is not one."""


class Pair:
    """A key pair. Only its public half is ever shown."""

    __slots__ = ("public", "secret")

    def __init__(self, public: bytes, secret: bytes) -> None:
        self.public = public
        self.secret = secret

    def __repr__(self) -> str:
        return f"<key pair {self.public.hex()}>"


class Keys(NamedTuple):
    """What a file of keys holds."""

    path: Path
    server: Pair | None  # of the launchers and workers that use this file
    client: Pair | None  # of the programs that use it
    accepted: dict[bytes, str]  # public keys of the programs that may come in, with their names

    def admits(self, public: bytes) -> bool:
        """Whether whoever has this key may come in: a listed program, or another worker with these keys."""
        return public in self.accepted or (self.server is not None and public == self.server.public)


def default_path() -> Path:
    """Where a user's keys lie, unless something else is said: INTERLOCK_KEYS, else a folder of the user's own."""
    named = os.environ.get(VARIABLE)
    if named:
        return Path(named)
    base = os.environ.get("XDG_CONFIG_HOME")
    return (Path(base) if base else Path.home() / ".config") / "interlock" / "keys.json"


def load(path: Path) -> Keys:
    """The keys in a file.

    Raises:
        KeysError: there is none, others may read it or own it, or it holds no keys.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise KeysError(
            f"the keys at {path} cannot be read: {error.strerror}; `interlock keys` makes a file of keys, and shows it"
        ) from None
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
            raise KeysError(
                f"{path} must be a file that belongs to user {os.getuid()} and that nobody else may read: "
                f"chmod 600 {path}, and make new keys if somebody may have read them"
            )
        written = os.read(fd, LARGEST)
    finally:
        os.close(fd)
    try:
        told = json.loads(written)
        accepted = {_key(public): str(name) for public, name in told.get("accepted", {}).items()}
        return Keys(path, _pair(told.get("server")), _pair(told.get("client")), accepted)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        # Nothing of what is in it is shown, and nothing that failed hangs on to it.
        raise KeysError(f"{path} is not a file of keys as `interlock keys` makes it") from None


def save(keys: Keys, *, new: bool = False) -> None:
    """Write the file, which is whole whenever it is there.

    Args:
        new: leave alone a file that is there.

    Raises:
        FileExistsError: it is to be new, and there is one.
    """
    told: dict[str, Any] = {}
    for kind, pair in (("server", keys.server), ("client", keys.client)):
        if pair is not None:
            told[kind] = {"public": pair.public.hex(), "secret": pair.secret.hex()}
    if keys.server is not None:
        told["accepted"] = {public.hex(): name for public, name in keys.accepted.items()}
    keys.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    unfinished = keys.path.with_name(f".{keys.path.name}.{os.getpid()}.{os.urandom(4).hex()}")
    fd = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with open(fd, "w", encoding="ascii") as file:
            json.dump(told, file, indent=1)
        if new:
            os.link(unfinished, keys.path)
        else:
            os.replace(unfinished, keys.path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(unfinished)


def load_or_make(path: Path, make: Callable[[], Pair]) -> Keys:
    """The keys in a file, which is made if there is none: a server's pair, and a client's that it accepts.

    Raises:
        KeysError: as for `load`.
    """
    if not os.path.lexists(path):
        client = make()
        with contextlib.suppress(FileExistsError):  # another process was quicker
            save(Keys(path, make(), client, {client.public: f"user {os.getuid()}"}), new=True)
    return load(path)


def parse_public(text: str) -> bytes:
    """A public key as people pass it on.

    Raises:
        ValueError: it is none.
    """
    return _key(text.strip().lower())


def with_key(endpoint: str, public: bytes) -> str:
    """The address of a tcp endpoint whose server has this public key."""
    return f"{endpoint}{_MARK}{public.hex()}"


def split(address: str) -> tuple[str, bytes | None]:
    """(endpoint, public key of the server or None) of an address.

    Raises:
        ValueError: what stands behind `?` is no key.
    """
    endpoint, mark, key = address.partition(_MARK)
    if not mark:
        return endpoint, None
    return endpoint, _key(key)


def _key(text: Any) -> bytes:
    if not isinstance(text, str) or not _HEX.fullmatch(text):
        raise ValueError("a public key is 64 hexadecimal digits, as `interlock keys` prints it")
    return bytes.fromhex(text)


def _pair(told: Any) -> Pair | None:
    return None if told is None else Pair(_key(told["public"]), _key(told["secret"]))
