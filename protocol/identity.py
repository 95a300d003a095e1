"""Who a process is, so that nobody mistakes another one for it.

A process id alone is used again; with the start time and the boot it is not. The incarnation tells apart two
lives under one name even where the rest cannot be compared. Knows nothing of sockets, sessions or memory.
"""

from __future__ import annotations

import os
import select
from collections.abc import Sequence
from typing import Any, NamedTuple


class Identity(NamedTuple):
    """One life of one process. Plain values only: it travels in a greeting as it stands."""

    boot_id: str
    pid_namespace: int
    ipc_namespace: int
    uid: int
    pid: int
    start_time: int  # clock ticks since boot, field 22 of /proc/<pid>/stat
    incarnation: int  # random, 63 bit


def parse_identity(values: Sequence[Any]) -> Identity:
    """The identity that a greeting tells.

    Raises:
        ValueError: it is none.
    """
    kinds = (str, int, int, int, int, int, int)
    if len(values) != len(kinds) or not all(type(value) is kind for value, kind in zip(values, kinds, strict=True)):
        raise ValueError(f"{str(values)[:200]} is not the identity of a process")
    identity = Identity(*values)
    if not 0 < identity.pid < 1 << 31 or min(identity[1:]) < 0:
        raise ValueError(f"{str(values)[:200]} is not the identity of a process")
    return identity


_own: tuple[int, Identity] | None = None  # (pid it was made in, identity): a forked child makes its own


def own_identity() -> Identity:
    """The identity of this process; after a fork the child gets a new one."""
    global _own
    pid = os.getpid()
    if _own is None or _own[0] != pid:
        _own = (pid, _read_own(pid))
    return _own[1]


def same_host(a: Identity, b: Identity) -> bool:
    """Can the two see each other's /proc entries: same boot, same pid namespace, same user?"""
    return a.boot_id == b.boot_id and a.pid_namespace == b.pid_namespace and a.uid == b.uid


def alive(identity: Identity) -> bool:
    """Does that very process still run? Only asked of a process on the `same_host`. A zombie does not run."""
    return start_time(identity.pid) == identity.start_time


def ends_within(identity: Identity, seconds: float) -> bool:
    """Has that process ended, or does it within this time? One that is dying loses its files before its number."""
    if not alive(identity):
        return True
    try:
        fd = os.pidfd_open(identity.pid)
    except OSError:
        return not alive(identity)
    try:
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        return bool(poll.poll(seconds * 1000)) or not alive(identity)
    finally:
        os.close(fd)


def start_time(pid: int) -> int | None:
    """When the process with this id started (clock ticks since boot); None if there is none, or only a zombie."""
    if pid <= 0:
        return None
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            line = file.read()
    except OSError:
        return None
    fields = line[line.rindex(b")") + 2 :].split()  # the name before it may hold spaces and brackets
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


def _read_own(pid: int) -> Identity:
    return Identity(
        _boot_id(), _namespace("pid"), _namespace("ipc"), os.getuid(), pid, start_time(pid) or 0, _incarnation()
    )


def _incarnation() -> int:
    # Not `secrets`, which takes longer to import than all else here.
    return int.from_bytes(os.urandom(8), "big") >> 1


def _boot_id() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return f"unknown-{os.uname().nodename}"


def _namespace(kind: str) -> int:
    try:
        return os.stat(f"/proc/self/ns/{kind}").st_ino
    except OSError:
        return 0
