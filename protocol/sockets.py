"""The sockets between processes: inboxes, outlets, events. It knows zmq, with `tcp.py`, and no other file does.

Nothing is lost and nothing blocks here: no high-water marks (credits bound what is in flight), sends that
never wait for a peer, bounded lingering at the end. A socket belongs to one thread at a time; whoever shares
one holds a lock of its own. An endpoint lies in a folder that only its owner can enter, or is a tcp one, of which
`tcp.py` takes care: nobody without a listed key gets in there.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import select
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import zmq

from . import files
from .errors import InterlockError
from .identity import own_identity, start_time
from .limits import LARGEST_MESSAGE

if TYPE_CHECKING:
    from .keys import Pair
    from .tcp import Link, Listening

_POLLIN: Final = int(zmq.POLLIN)  # the enumeration's own `&` takes longer than the question
_WAITING: Final = (0,)  # flags of one receive
LINGER_MS: Final = 500  # how long a closing socket may still try to hand over its last messages
_OWNER: Final = re.compile(r"p(\d+)\.(\d+)\.(\d+)-")  # the name of a private folder: pid, start time, pid namespace
_LONGEST_BASE: Final = 45  # bytes; a socket's path has at most 107, and its folder's and its own name take the rest

# By process id: a forked child makes its own and leaves its parent's alone (it stays here, never cleaned up).
_contexts: dict[int, zmq.Context[zmq.Socket[bytes]]] = {}


def context() -> zmq.Context[zmq.Socket[bytes]]:
    """The one context of this process."""
    found = _contexts.get(os.getpid())
    if found is None:
        found = _contexts[os.getpid()] = zmq.Context()
    return found


def new_socket(kind: int) -> zmq.Socket[bytes]:
    """A socket that loses nothing in silence, and takes in nothing that is too large."""
    try:
        socket = context().socket(kind)
    except zmq.ZMQError as error:
        if error.errno != errno.EMFILE:
            raise
        raise InterlockError(
            f"no socket can be had: this process may open {max(files.free(), 0)} more files (ulimit -n), and ZeroMQ "
            f"gives {context().get(zmq.MAX_SOCKETS)} sockets to a process; close sessions that are not needed any more"
        ) from None
    socket.set_hwm(0)
    socket.setsockopt(zmq.LINGER, LINGER_MS)
    socket.setsockopt(zmq.MAXMSGSIZE, LARGEST_MESSAGE)
    return socket


def _readable(socket: zmq.Socket[bytes]) -> bool:
    """Whether a message is here: a third of the price of the exception that receiving raises if there is none."""
    return bool(socket.getsockopt(zmq.EVENTS) & _POLLIN)  # type: ignore[operator]  # an int for this option


def _from_router(socket: zmq.Socket[bytes], flags: int = 0) -> tuple[bytes, bytes]:
    """(sender, data) of a message; b"" for one of several frames, which none of ours has."""
    sender, data = socket.recv(flags), socket.recv(flags)  # its first frame is in front of another one always
    while socket.getsockopt(zmq.RCVMORE):
        socket.recv(flags)
        data = b""
    return sender, data


def runtime_folder() -> Path:
    """The folder, for this user only, in which Interlock keeps its endpoints.

    Raises:
        PermissionError: somebody else made a folder of that name first.
    """
    import tempfile  # here, like the others below: what only a start or an end needs is not loaded before

    base = os.environ.get("XDG_RUNTIME_DIR")
    folders = [Path(base) / "interlock"] if base and os.access(base, os.W_OK) else []
    folders += [Path(tempfile.gettempdir()) / f"interlock-{os.getuid()}"]
    fitting = [folder for folder in folders if len(os.fsencode(folder)) <= _LONGEST_BASE]
    folder = fitting[0] if fitting else Path(f"/tmp/interlock-{os.getuid()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise PermissionError(f"{folder} must belong to user {os.getuid()} alone (mode 0700); mend that or remove it")
    return folder


def private_folder() -> Path:
    """A new folder for this process's endpoints; its name says whose it is. Remove with `remove_folder`.

    Folders whose owner is gone are removed on the way.
    """
    base = sweep()
    me = own_identity()
    folder = base / f"p{me.pid}.{me.start_time}.{me.pid_namespace}-{os.urandom(6).hex()}"
    folder.mkdir(mode=0o700)
    return folder


def owner_of(folder: Path) -> tuple[int, int, int] | None:
    """Whose private folder this is, as its name says: process id, start time, pid namespace; None if it is none."""
    named = _OWNER.match(folder.name)
    if named is None:
        return None
    pid, started, namespace = map(int, named.groups())
    return pid, started, namespace


def sweep() -> Path:
    """Remove the folders whose owner has ended without removing them; where they lay.

    Those of another pid namespace (a container that shares the runtime folder) are left alone: who lives there
    cannot be seen from here.
    """
    base = runtime_folder()
    here = own_identity().pid_namespace
    for folder in base.glob("p*-*"):
        owner = owner_of(folder)
        if owner is not None:
            pid, started, namespace = owner
            if namespace == here and start_time(pid) != started:
                remove_folder(folder)
    return base


def remove_folder(folder: Path) -> None:
    """Remove a folder of endpoints; no error if it is gone already."""
    import shutil

    shutil.rmtree(folder, ignore_errors=True)


_HERE: Final = b"h"
_FAR: Final = b"f"


class Inbox:
    """Where a worker is spoken to: by sessions, by other workers, and by its own watcher thread.

    With `remote` also over tcp, by a socket of its own: who comes in there can never pass for somebody local.
    """

    def __init__(self, endpoint: str, inproc: str, remote: Listening | None = None) -> None:
        self.local = endpoint
        self.inproc = inproc
        self._socket = new_socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.ROUTER_HANDOVER, 0)
        self._socket.bind(endpoint)
        self._socket.bind(inproc)
        self._poller = select.poll()  # one system call, where ZeroMQ's own takes several
        self._poller.register(int(self._socket.getsockopt(zmq.FD)), select.POLLIN)
        self._remote: zmq.Socket[bytes] | None = None
        self.endpoint = endpoint  # where others find it
        if remote is not None:
            from . import tcp

            self._remote = new_socket(zmq.ROUTER)
            self._remote.setsockopt(zmq.ROUTER_HANDOVER, 0)
            self.endpoint = tcp.listen(self._remote, remote)
            self._poller.register(int(self._remote.getsockopt(zmq.FD)), select.POLLIN)

    def is_remote(self, sender: bytes) -> bool:
        """Whether a sender came in over tcp."""
        return self._remote is not None and sender.startswith(_FAR)

    def watch(self, fd: int) -> None:
        """Make `wait` return also when `fd` is readable."""
        self._poller.register(fd, select.POLLIN)

    def unwatch(self, fd: int) -> None:
        self._poller.unregister(fd)

    def wait(self, timeout_s: float | None = None) -> None:
        """Until a message may be here, a watched descriptor is readable, or the time is over; it may return early."""
        # The descriptors tell of what came since these questions, and of no more.
        if not _readable(self._socket) and (self._remote is None or not _readable(self._remote)):
            self._poller.poll(None if timeout_s is None else max(int(timeout_s * 1000), 1))

    def poll(self) -> tuple[bytes, bytes] | None:
        """(sender, data) of a message that is already here; else None."""
        if self._remote is not None:
            return self._poll_both()
        if not _readable(self._socket):
            return None
        try:
            return _from_router(self._socket, zmq.NOBLOCK)
        except zmq.Again:
            return None

    def _poll_both(self) -> tuple[bytes, bytes] | None:
        for socket, origin in ((self._socket, _HERE), (self._remote, _FAR)):
            if socket is not None and _readable(socket):
                with contextlib.suppress(zmq.Again):
                    sender, data = _from_router(socket, zmq.NOBLOCK)
                    return origin + sender, data
        return None

    def close(self) -> None:
        self._socket.close()
        if self._remote is not None:
            from . import tcp

            tcp.stop_listening(self._remote)
            self._remote.close()


class Outlet:
    """The way to one inbox or to one session's events. Sending queues and returns."""

    def __init__(
        self, endpoint: str, *, name: bytes | None = None, events: bool = False, link: Link | None = None
    ) -> None:
        """Connect to `endpoint`; `name` is how an inbox knows the sender; `events` when it is a session's.

        `link` is for tcp: as whom to connect, and who is told when the connection is over.

        Raises:
            ValueError: it is no address, or lacks its server's key.
            Unreachable: it is a tcp one, and there is no key to connect with.
        """
        self._socket = new_socket(zmq.PUSH if events else zmq.DEALER)
        self._send: Callable[[bytes, int], object] = self._socket.send
        self._tied = False
        try:
            if name is not None:
                self._socket.setsockopt(zmq.ROUTING_ID, name)
            if endpoint.startswith("tcp://"):
                from . import tcp

                self._tied = link is not None and link.ties is not None
                tcp.dial(self._socket, endpoint, link)
                self._send = self._send_if_connected
            else:
                self._socket.connect(endpoint)
        except zmq.ZMQError as error:
            self.close(linger_ms=0)
            raise ValueError(f"{endpoint!r} is not an address, such as ipc:///path: {error}") from None
        except BaseException:
            self.close(linger_ms=0)
            raise

    def _send_if_connected(self, data: bytes, flags: int) -> None:
        with contextlib.suppress(zmq.Again):  # the connection is over, of which whoever ties it is told
            self._socket.send(data, flags)

    def send(self, data: bytes) -> None:
        self._send(data, zmq.NOBLOCK)

    def close(self, linger_ms: int = LINGER_MS) -> None:
        """Close; what is not handed over within `linger_ms` is dropped (0 when the other side is dead)."""
        self._send = _refuse
        self._socket.close(linger=linger_ms)


def _refuse(data: bytes, flags: int) -> None:
    raise InterlockError("the session is closed")


class Events:
    """Where a session hears from its workers and its own watcher."""

    def __init__(self, endpoint: str, inproc: str) -> None:
        self.endpoint = endpoint
        self.inproc = inproc
        self._socket = new_socket(zmq.PULL)
        self._socket.bind(endpoint)
        self._socket.bind(inproc)
        self._socket.setsockopt(zmq.RCVTIMEO, 1000)
        self.fd = int(self._socket.getsockopt(zmq.FD))  # readable at least once after messages came: drain fully
        self._remote = False

    def listen(self, remote: Listening) -> str:
        """Listen over tcp as well; the address to be told to the workers there."""
        from . import tcp

        self._remote = True
        return tcp.listen(self._socket, remote)

    def receive(self, timeout_s: float | None = None) -> bytes | None:
        """The next message, waiting for it; None when the time, or a second, is over. Ctrl-C interrupts."""
        if timeout_s is not None and not self._socket.poll(max(int(timeout_s * 1000), 0)):
            return None
        try:
            return self._socket.recv()
        except zmq.Again:
            return None

    def receive_into(self, inbox: list[bytes], timeout_s: float | None = None) -> bool:
        """Append the next message, waiting for it; False when the time, or a second, is over.

        Ctrl-C interrupts, and loses no message: it does not come in between the receiving and the appending.
        """
        if timeout_s is not None and not self._socket.poll(max(int(timeout_s * 1000), 0)):
            return False
        try:
            inbox.extend(map(self._socket.recv, _WAITING))  # one call, for Python
        except zmq.Again:
            return False
        return True

    def poll(self) -> bytes | None:
        """A message that is already here, or None."""
        if not _readable(self._socket):
            return None
        try:
            return self._socket.recv(zmq.NOBLOCK)
        except zmq.Again:
            return None

    def close(self) -> None:
        if self._remote:
            from . import tcp

            tcp.stop_listening(self._socket)
        self._socket.close(linger=0)


class Answers:
    """The asked side of a plain question-and-answer endpoint (a supervisor's)."""

    def __init__(self, endpoint: str, remote: Listening | None = None) -> None:
        self.endpoint = endpoint  # where others find it
        self._remote = remote is not None
        self._socket = new_socket(zmq.ROUTER)
        self._socket.bind(endpoint)
        if remote is not None:
            from . import tcp

            self.endpoint = tcp.listen(self._socket, remote)

    def wait(self, timeout_s: float, fds: Iterable[int] = ()) -> list[int]:
        """Wait for a question or for one of `fds`; which of these are readable."""
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        for fd in fds:
            poller.register(fd, zmq.POLLIN)
        return [ready for ready, _ in poller.poll(int(timeout_s * 1000)) if isinstance(ready, int)]

    def poll(self) -> tuple[bytes, bytes, str] | None:
        """(asker, question, the asker's public key in hexadecimal or "" if it is local) if one is here.

        A question of several frames, which none of ours has, comes as an empty one.
        """
        try:
            frames = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
        except zmq.Again:
            return None
        key = ""
        with contextlib.suppress(zmq.ZMQError):  # it has no such property: it came by a local socket
            key = str(frames[-1].get("User-Id"))
        return frames[0].bytes, frames[1].bytes if len(frames) == 2 else b"", key

    def answer(self, asker: bytes, data: bytes) -> None:
        self._socket.send_multipart([asker, data], zmq.NOBLOCK)

    def close(self) -> None:
        if self._remote:
            from . import tcp

            tcp.stop_listening(self._socket)
        self._socket.close()


def ask(endpoint: str, question: bytes, timeout_s: float, pair: Pair | None = None) -> bytes | None:
    """One question, one answer; None when nobody listens there, or nobody answers in time.

    Raises:
        ValueError: it is no address.
        Unreachable: over tcp, with the reason, instead of None.
    """
    if endpoint.startswith("tcp://"):
        from . import tcp

        return tcp.ask(endpoint, question, timeout_s, pair)
    socket = new_socket(zmq.DEALER)
    try:
        try:
            socket.connect(endpoint)
        except zmq.ZMQError as error:
            raise ValueError(f"{endpoint!r} is not an address, such as ipc:///path: {error}") from None
        socket.send(question)
        deadline = time.monotonic() + timeout_s
        while (left := deadline - time.monotonic()) > 0:
            if socket.poll(min(max(int(left * 1000), 1), 100)):
                return socket.recv()
            if nobody_listens(endpoint):
                return None
        return None
    finally:
        socket.close(linger=0)


def ipc(folder: Path, name: str) -> str:
    """The address of endpoint `name` in `folder`."""
    return f"ipc://{folder / name}"


def nobody_listens(endpoint: str) -> bool:
    """True if it is sure that no process listens at this local address; a socket's file alone says nothing."""
    if not endpoint.startswith("ipc://"):
        return False
    import socket

    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        try:
            probe.connect(endpoint[6:])
        except BlockingIOError:
            return False  # somebody does, and is busy
        except OSError:
            return True
    return False


def library_version() -> str:
    """Of the ZeroMQ library, not of its Python package."""
    return zmq.zmq_version()
