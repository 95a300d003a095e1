"""Sockets that other machines may reach: CURVE always, listed keys only, heartbeats, and why nobody answers.

The second file that knows zmq, loaded only where an address is a tcp one: with local sockets alone neither its threads
nor its import are paid for. Everything here is of the process's one context, in `sockets.py`, which calls it.

A server's socket has a key pair and a rule; ZeroMQ asks a thread of this process, the doorkeeper, whether the key that
a client has proved to own may come in, and without an answer nobody does. A client's socket makes one connection and
no second: what was on the way when it broke is lost, so its end is the end of whatever it served, and is told of.
"""

from __future__ import annotations

import contextlib
import os
import socket as plain
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable
from typing import Any, Final, NamedTuple

import zmq

from . import sockets
from .errors import Unreachable
from .keys import Pair, split, with_key

HEARTBEAT_MS: Final = 1000  # between two questions whether the other side is there, which its I/O thread answers
SILENT_MS: Final = 4000  # without an answer the connection is over
HANDSHAKE_MS: Final = 5000  # who connects and has not proved its key by then is cut off
CONNECT_S: Final = 2.0  # how long a host may take to accept a connection
CLOSE_S: Final = 2.0  # how long connections may take to be untied at the end
GREETING_S: Final = 1.5  # and whoever listens there to say the first word
SIGNATURE: Final = 10  # bytes of a ZeroMQ socket's first words: 0xff, eight more, 0x7f
LOOPBACK: Final = "127.0.0.1"

_ZAP: Final = "inproc://zeromq.zap.01"
_REFUSED: Final = zmq.EVENT_HANDSHAKE_FAILED_AUTH
_FAILED: Final = zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
_ENDED: Final = zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED
_WATCHED: Final = _REFUSED | _FAILED | _ENDED | zmq.EVENT_MONITOR_STOPPED
_OTHER_MECHANISM: Final = zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH
_EVENT: Final = struct.Struct("=HI")

Socket = zmq.Socket[bytes]


class Listening(NamedTuple):
    """Where a socket is to listen, as whom, and for whom."""

    endpoint: str  # tcp://host:port, port 0 for any that is free
    pair: Pair
    admits: Callable[[bytes], bool]  # whether the owner of this public key may come in; on the doorkeeper's thread


class Link(NamedTuple):
    """As whom to connect, and who is told when the connection is over."""

    pair: Pair
    ties: Ties | None = None
    key: Hashable = None  # what it is told of


def is_tcp(endpoint: str) -> bool:
    return endpoint.startswith("tcp://")


def host_of(endpoint: str) -> str:
    """The host in tcp://host:port."""
    return split(endpoint)[0].removeprefix("tcp://").rpartition(":")[0].strip("[]")


def listening_endpoint(text: str) -> str:
    """What people write behind --listen, as an endpoint: the loopback and any port where nothing is said.

    Raises:
        ValueError: it is no tcp endpoint.
    """
    rest = text.removeprefix("tcp").removeprefix("://")
    host, _, port = rest.rpartition(":") if ":" in rest.rpartition("]")[2] else (rest, "", "0")
    if not (text == "tcp" or is_tcp(text)) or not (port or "0").isdecimal() or int(port or 0) > 65535 or "?" in host:
        raise ValueError(f"{text!r} is no place to listen, such as tcp://127.0.0.1:0 or tcp://10.0.0.5")
    return f"tcp://{host or LOOPBACK}:{int(port or 0)}"


def is_loopback(endpoint: str) -> bool:
    """Whether no other machine can reach it."""
    host = host_of(endpoint)
    return host in ("localhost", "::1") or host.startswith("127.")


def new_pair() -> Pair:
    """A new key pair."""
    from zmq.utils import z85

    public, secret = zmq.curve_keypair()
    return Pair(z85.decode(public), z85.decode(secret))


# -- the server's side ------------------------------------------------------------------------------------------------


def listen(socket: Socket, wanted: Listening) -> str:
    """Let a socket listen there, besides where it listens already; the address, with the server's key in it.

    Raises:
        OSError: the endpoint is taken, or is not of this machine.
    """
    domain = os.urandom(8).hex()
    _doorkeeper().admit(domain, wanted.admits)
    for option, value in (
        (zmq.CURVE_SERVER, 1),
        (zmq.CURVE_PUBLICKEY, wanted.pair.public),
        (zmq.CURVE_SECRETKEY, wanted.pair.secret),
        (zmq.ZAP_DOMAIN, domain.encode()),
        (zmq.ZAP_ENFORCE_DOMAIN, 1),  # nobody comes in while the doorkeeper does not answer
        (zmq.HANDSHAKE_IVL, HANDSHAKE_MS),
    ):
        socket.setsockopt(option, value)
    _beat(socket, wanted.endpoint)
    host, port = host_of(wanted.endpoint), wanted.endpoint.rpartition(":")[2]
    bracketed = f"[{host}]" if ":" in host else host
    try:
        socket.bind(f"tcp://{bracketed}:{'*' if port == '0' else port}")
    except zmq.ZMQError as error:
        dismiss(domain)
        raise OSError(error.errno, f"{wanted.endpoint} cannot be listened at: {error.strerror}") from None
    _domains.setdefault(id(socket), []).append(domain)
    port = socket.getsockopt(zmq.LAST_ENDPOINT).rstrip(b"\0").decode().rpartition(":")[2]  # type: ignore[union-attr]
    if host in ("*", "0.0.0.0", "::"):
        host = own_address()
    return with_key(f"tcp://{f'[{host}]' if ':' in host else host}:{port}", wanted.pair.public)


def stop_listening(socket: Socket) -> None:
    """Its rules are not needed any more; call before it is closed."""
    for domain in _domains.pop(id(socket), ()):
        dismiss(domain)


def dismiss(domain: str) -> None:
    _doorkeeper().dismiss(domain)


_domains: dict[int, list[str]] = {}  # of the sockets that listen


class _Doorkeeper:
    """Answers ZeroMQ's question whether a key may come in, for all sockets of this process, on one thread."""

    def __init__(self) -> None:
        self._rules: dict[bytes, Callable[[bytes], bool]] = {}
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._wakeup = -1

    def admit(self, domain: str, admits: Callable[[bytes], bool]) -> None:
        with self._lock:
            self._rules[domain.encode()] = admits
            if self._thread is None:
                self._wakeup = os.eventfd(0, os.EFD_CLOEXEC)
                door = sockets.context().socket(zmq.REP)
                door.bind(_ZAP)
                self._thread = threading.Thread(
                    target=self._run, args=(door, self._wakeup), name="interlock-door", daemon=True
                )
                self._thread.start()

    def dismiss(self, domain: str) -> None:
        with self._lock:
            self._rules.pop(domain.encode(), None)
            if self._rules or self._thread is None:
                return
            os.eventfd_write(self._wakeup, 1)
            self._thread.join()
            os.close(self._wakeup)
            self._thread = None

    def _run(self, door: Socket, wakeup: int) -> None:
        poller = zmq.Poller()
        poller.register(door, zmq.POLLIN)
        poller.register(wakeup, zmq.POLLIN)
        while wakeup not in dict(poller.poll()):
            door.send_multipart(self._answer(door.recv_multipart()))
        door.unbind(_ZAP)  # at once: closing frees the name a while later, and the next doorkeeper needs it
        door.close(linger=0)

    def _answer(self, question: list[bytes]) -> list[bytes]:
        version, request, domain, *_, mechanism, public = question if len(question) == 7 else [b""] * 7
        rule = self._rules.get(domain)
        try:
            welcome = mechanism == b"CURVE" and rule is not None and rule(public)
        except Exception:  # such as a file of keys that somebody else may read by now
            welcome = False
        if welcome:
            return [version, request, b"200", b"", public.hex().encode(), b""]
        return [version, request, b"400", b"this key is not listed", b"", b""]


_doorkeepers: dict[int, _Doorkeeper] = {}  # by process id, as a fork takes no thread along


def _doorkeeper() -> _Doorkeeper:
    return _doorkeepers.setdefault(os.getpid(), _Doorkeeper())


# -- the client's side ------------------------------------------------------------------------------------------------


def dial(socket: Socket, address: str, link: Link | None) -> None:
    """Connect a socket, once, to an address that carries its server's key.

    Raises:
        ValueError: the address has no key, or is none.
        Unreachable: there is no key to connect with.
    """
    endpoint, server = split(address)
    if server is None:
        raise ValueError(f"{address!r} lacks its server's key: use the whole address, as `interlock up` prints it")
    if link is None:
        raise Unreachable(f"{endpoint} lets in who has a listed key, and this program has none: see `interlock keys`")
    for option, value in (
        (zmq.CURVE_SERVERKEY, server),
        (zmq.CURVE_PUBLICKEY, link.pair.public),
        (zmq.CURVE_SECRETKEY, link.pair.secret),
        (zmq.RECONNECT_IVL, -1),
    ):
        socket.setsockopt(option, value)
    _beat(socket, endpoint)
    if link.ties is not None:
        link.ties.tie(link.key, socket, endpoint, link.pair)
    try:
        socket.connect(endpoint)
    except zmq.ZMQError as error:
        raise ValueError(f"{endpoint!r} is not an address, such as tcp://10.0.0.5:4000: {error.strerror}") from None


def untie(socket: Socket) -> None:
    """Tell no more of a socket's connection: before it is closed, as whoever hears of it may be gone after that."""
    socket.disable_monitor()


def _beat(socket: Socket, endpoint: str) -> None:
    socket.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, SILENT_MS)
    socket.setsockopt(zmq.HEARTBEAT_TTL, SILENT_MS + HEARTBEAT_MS)
    socket.setsockopt(zmq.IPV6, int("[" in endpoint))


class Ties:
    """Tells, on threads of its own, of connections that have ended or never came to be: `ended(key, words)`, once each.

    The words go behind a name, as in "the worker of cpu:0 has been silent for 5 s".
    """

    def __init__(self, ended: Callable[[Any, str], None]) -> None:
        self._tell = ended
        self._new: deque[tuple[Socket, Hashable, str, Pair]] = deque()
        self._stopping = False
        self._wakeup = os.eventfd(0, os.EFD_CLOEXEC)
        self._thread = threading.Thread(target=self._run, name="interlock-ties", daemon=True)
        self._thread.start()

    def tie(self, key: Hashable, socket: Socket, endpoint: str, pair: Pair) -> None:
        """Watch the connection that `socket` is about to make, until it is closed."""
        name = f"inproc://tie-{os.urandom(8).hex()}"
        socket.monitor(name, _WATCHED)
        seen = sockets.context().socket(zmq.PAIR)
        seen.setsockopt(zmq.LINGER, 0)
        seen.connect(name)
        self._new.append((seen, key, endpoint, pair))
        os.eventfd_write(self._wakeup, 1)

    def close(self) -> None:
        """End the threads; every socket that was tied has been closed."""
        self._stopping = True
        os.eventfd_write(self._wakeup, 1)
        self._thread.join(CLOSE_S)
        if not self._thread.is_alive():
            os.close(self._wakeup)

    def _run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._wakeup, zmq.POLLIN)
        ties: dict[Any, tuple[Hashable, str, Pair] | None] = {}  # None once it has been told of
        while ties or self._new or not self._stopping:
            for ready, _ in poller.poll():
                if ready == self._wakeup:
                    os.eventfd_read(self._wakeup)
                    while self._new:
                        seen, key, endpoint, pair = self._new.popleft()
                        ties[seen] = key, endpoint, pair
                        poller.register(seen, zmq.POLLIN)
                elif ready in ties:
                    event, detail = _event(ready)
                    if event == zmq.EVENT_MONITOR_STOPPED:
                        # Not before: with nobody to hear of it, ZeroMQ's thread that tells it would wait for ever.
                        poller.unregister(ready)
                        ready.close(linger=0)
                        del ties[ready]
                    elif (tie := ties[ready]) is not None:
                        ties[ready] = None
                        self._over(event, detail, *tie)

    def _over(self, event: int, detail: int, key: Hashable, endpoint: str, pair: Pair) -> None:
        if event & (_REFUSED | _FAILED):
            self._tell(key, _handshake_words(event, detail, pair))
        else:  # a look takes a moment, and others may go at the same time
            threading.Thread(target=self._look, args=(key, endpoint), name="interlock-look", daemon=True).start()

    def _look(self, key: Hashable, endpoint: str) -> None:
        why = why_unreachable(endpoint, connect_s=0.5, greeting_s=0.3)
        if why is not None and not why.ended:  # of a process that is just ending, connections go before the rest
            why = why_unreachable(endpoint, connect_s=0.5, greeting_s=0.3)
        silent = f"has been silent for {(SILENT_MS + HEARTBEAT_MS) // 1000} s and its connection is over"
        if not self._stopping:
            self._tell(key, "has closed its connection" if why is None or why.ended else silent)


def _event(seen: Any) -> tuple[int, int]:
    """What a monitor tells: the event, and its value."""
    return _EVENT.unpack(seen.recv_multipart()[0])


def _handshake_words(event: int, detail: int, pair: Pair | None) -> str:
    if detail == _OTHER_MECHANISM and event & _FAILED:
        return "speaks ZeroMQ and asks for no keys: it is no launcher and no worker"
    if event & _REFUSED and pair is not None:
        return (
            f"does not accept the key of this program, {pair.public.hex()}; whoever runs it lets it in by "
            f"`interlock keys --accept {pair.public.hex()}`"
        )
    return (
        "has another key than the address says: use the address that `interlock up` prints there now, and see who "
        "else may be listening"
    )


# -- why nobody answers -----------------------------------------------------------------------------------------------


class Why(NamedTuple):
    """Why a connection cannot be made."""

    words: str  # they go behind an endpoint
    ended: bool  # it is sure that nobody listens any more


def why_unreachable(endpoint: str, connect_s: float = CONNECT_S, greeting_s: float = GREETING_S) -> Why | None:
    """Knock without a key: None if a ZeroMQ socket opens. It takes at most the two times together."""
    host, port = host_of(endpoint), endpoint.rpartition(":")[2]
    try:
        found = plain.getaddrinfo(host, int(port), type=plain.SOCK_STREAM)[0]
    except (OSError, ValueError, OverflowError, UnicodeError) as error:
        return Why(f"cannot be found: no host is called {host!r} ({error})", False)
    with plain.socket(found[0], plain.SOCK_STREAM) as door:
        door.settimeout(connect_s)
        try:
            door.connect(found[4])
        except ConnectionRefusedError:
            return Why("has nobody that listens: start workers there with `interlock up --listen` and use the address "
                       "that it prints", True)  # fmt: skip
        except OSError as error:
            seconds = f" in {connect_s:g} s" if isinstance(error, TimeoutError) else f" ({error.strerror})"
            return Why(f"is on a host that does not answer{seconds}: is its name right, and is there a way to it, "
                       f"through firewalls too?", False)  # fmt: skip
        door.settimeout(greeting_s)
        said = b""
        try:
            while len(said) < SIGNATURE and (piece := door.recv(SIGNATURE - len(said))):
                said += piece
        except TimeoutError:
            return Why(f"is held by something that said nothing in {greeting_s:g} s: a process that is stopped, or "
                       f"something that is no launcher and no worker", False)  # fmt: skip
        except OSError:
            said = b"nothing that could be read"
    if len(said) == SIGNATURE and said[0] == 0xFF and said[9] == 0x7F:
        return None
    return Why("is held by something that does not speak ZeroMQ: it is no launcher and no worker", False)


def ask(address: str, question: bytes, timeout_s: float, pair: Pair | None) -> bytes:
    """One question to a launcher, one answer.

    Raises:
        ValueError: it is no address, or lacks the server's key.
        Unreachable: nobody listens there, or it is no launcher, or it has another key, or does not let this key in, or
            its host or it does not answer.
    """
    endpoint, server = split(address)
    link = None if pair is None else Link(pair)
    socket = sockets.new_socket(zmq.DEALER)
    name = f"inproc://ask-{os.urandom(8).hex()}"
    socket.monitor(name, _WATCHED | zmq.EVENT_HANDSHAKE_SUCCEEDED)
    seen = sockets.context().socket(zmq.PAIR)
    seen.connect(name)
    try:
        if pair is None or server is None:
            dial(socket, address, link)  # says what is missing
        why = why_unreachable(endpoint)
        if why is not None:
            raise Unreachable(f"{endpoint} {why.words}")
        dial(socket, address, link)
        socket.send(question)
        poller = zmq.Poller()
        poller.register(socket, zmq.POLLIN)
        poller.register(seen, zmq.POLLIN)
        deadline, let_in = time.monotonic() + timeout_s, False
        while ready := dict(poller.poll(max(int((deadline - time.monotonic()) * 1000), 0))):
            if socket in ready:
                return socket.recv()
            event, detail = _event(seen)
            if event & zmq.EVENT_HANDSHAKE_SUCCEEDED:
                let_in = True
                continue
            # Cut off without a word about why: a server that cannot read the first message does that.
            words = "has closed its connection" if let_in else _handshake_words(event, detail, pair)
            raise Unreachable(f"the launcher at {endpoint} {words}")
        words = "lets this program in and" if let_in else "is stopped or busy: it"
        raise Unreachable(f"the launcher at {endpoint} {words} did not answer in {timeout_s:g} s")
    finally:
        untie(socket)
        socket.close(linger=0)
        seen.close(linger=0)


def local_address(endpoint: str) -> str:
    """The address of this machine from which that endpoint is reached; nothing is sent."""
    host, port = host_of(endpoint), endpoint.rpartition(":")[2]
    try:
        found = plain.getaddrinfo(host, int(port), type=plain.SOCK_DGRAM)[0]
        with plain.socket(found[0], plain.SOCK_DGRAM) as way:
            way.connect(found[4])
            return str(way.getsockname()[0])
    except (OSError, ValueError):
        return LOOPBACK


def own_address() -> str:
    """The address of this machine on its way to others."""
    with contextlib.suppress(OSError), plain.socket(plain.AF_INET, plain.SOCK_DGRAM) as way:
        way.connect(("192.0.2.1", 9))  # reserved for documentation: nothing is sent, only a way is looked up
        return str(way.getsockname()[0])
    return LOOPBACK
