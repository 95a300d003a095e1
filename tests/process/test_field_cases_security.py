"""Who gets in and who does not: field cases of keys, addresses and bytes from strangers.

The names begin with the number of the case in the collection that they come from; the docstring names the report.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import zmq

import interlock as il
from interlock.protocol import keys, tcp
from interlock.protocol.letters import Letters
from interlock.protocol.sockets import context, ipc

from .far import listening, own_keys
from .programs import Program, address_of, interlock, launcher, program, run_python

LIMIT_S = 5.0  # the start limit: an answer why not comes within it


@pytest.fixture
def own(runtime: Path, tmp_path: Path) -> Path:
    return own_keys(tmp_path)


@pytest.fixture
def up(own: Path) -> Iterator[Program]:
    """A launcher with a worker, reached over tcp."""
    with listening("cpu:0", own) as up:
        yield up
        up.signal(signal.SIGTERM)
        up.ended()


def endpoint(address: str) -> str:
    return address.partition("?")[0]


def somewhere(port: int) -> str:
    """An address of the loopback with some key."""
    return keys.with_key(f"tcp://127.0.0.1:{port}", tcp.new_pair().public)


# FL-36: zeromq/libzmq#2227; zeromq/pyzmq#626 ------------------------------------------------------------------------

CONNECT = """
import sys
import interlock as il
try:
    il.connect(address=sys.argv[1], keys=sys.argv[2])
except (il.InterlockError, ValueError) as error:
    print(type(error).__name__, error, flush=True)
"""


def refused(attempts: dict[str, tuple[str, Path]]) -> dict[str, str]:
    """What programs of their own are told, at the same time; each ends in time, without another word."""
    told = {}
    with contextlib.ExitStack() as stack:
        begun = time.monotonic()
        running = {
            what: stack.enter_context(program(CONNECT, address, str(own))) for what, (address, own) in attempts.items()
        }
        for what, each in running.items():
            told[what] = each.line()
            assert each.ended() == 0
            assert each.errors() == ""
        assert time.monotonic() - begun < 3 * LIMIT_S  # for all, on a busy machine
    return told


def test_fl36_a_wrong_key_no_key_and_an_absent_server_are_three_errors(up: Program, own: Path, tmp_path: Path) -> None:
    """A wrong CURVE key looked just like an absent server, and the exit then hung."""
    address = address_of(up)
    told = refused(
        {
            "wrong server key": (keys.with_key(endpoint(address), tcp.new_pair().public), own),
            "key not accepted": (address, own_keys(tmp_path / "stranger")),
            "no file of keys": (address, tmp_path / "nowhere"),
            "address without a key": (endpoint(address), own),
            "nobody listens": (somewhere(9), own),
        }
    )
    assert "has another key than the address says" in told["wrong server key"]
    public = keys.load(tmp_path / "stranger" / "keys.json").client
    assert public is not None
    assert f"does not accept the key of this program, {public.public.hex()}" in told["key not accepted"]
    assert "`interlock keys --accept" in told["key not accepted"]
    assert "cannot be read: No such file or directory" in told["no file of keys"]
    assert "lacks its server's key" in told["address without a key"]
    assert "has nobody that listens: start workers" in told["nobody listens"]
    assert len(set(told.values())) == len(told)
    used = run_python("import sys, interlock as il; il.connect(address=sys.argv[1], keys=sys.argv[2]); "
                      "print((il.ones(2) + 1).tolist())", address, str(own))  # fmt: skip
    assert (used.out, used.err) == ("[2.0, 2.0]\n", "")


def test_fl36_what_listens_and_is_no_launcher_is_told_apart(own: Path) -> None:
    """The same, of other things that may be at an address: each in words of its own, within the start limit."""

    def why(port: int) -> str:
        begun = time.monotonic()
        with pytest.raises(il.Unreachable) as caught:
            il.connect(address=somewhere(port), keys=own)
        assert time.monotonic() - begun < LIMIT_S
        return str(caught.value)

    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert "said nothing in" in why(silent.getsockname()[1])
    with socket.create_server(("127.0.0.1", 0)) as other:
        threading.Thread(target=_answer_all, args=(other, b"SSH-2.0-OpenSSH_9.2\r\n"), daemon=True).start()
        assert "does not speak ZeroMQ" in why(other.getsockname()[1])
        other.shutdown(socket.SHUT_RDWR)
    with socket.socket() as full:  # a host that does not answer: the kernel drops what a full queue has no place for
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        queue = [socket.socket() for _ in range(4)]
        for each in queue:
            each.setblocking(False)
            each.connect_ex(full.getsockname())
        assert "is on a host that does not answer in" in why(full.getsockname()[1])
        for each in queue:
            each.close()
    plain = context().socket(zmq.ROUTER)
    port = plain.bind_to_random_port("tcp://127.0.0.1")
    assert "speaks ZeroMQ and asks for no keys" in why(port)
    plain.close(linger=0)
    with pytest.raises(il.Unreachable, match=r"no host is called 'no\.such\.host\.invalid'"):
        il.connect(address=keys.with_key("tcp://no.such.host.invalid:9", tcp.new_pair().public), keys=own)


def _answer_all(server: socket.socket, words: bytes) -> None:
    while True:
        try:
            asker, _ = server.accept()
        except OSError:
            return
        with asker:
            asker.sendall(words)


def test_fl36_a_launcher_that_is_stopped_is_told_within_the_start_limit(up: Program, own: Path) -> None:
    address = address_of(up)
    up.signal(signal.SIGSTOP)
    try:
        begun = time.monotonic()
        with pytest.raises(il.Unreachable, match=r"said nothing in|is stopped or busy"):
            il.connect(address=address, keys=own)
        assert time.monotonic() - begun < 2 * LIMIT_S
    finally:
        up.signal(signal.SIGCONT)


def test_a_key_is_let_in_and_out_again_without_a_restart(up: Program, own: Path, tmp_path: Path) -> None:
    address, file = address_of(up), tmp_path / "laptop.json"
    made = interlock("keys", "--keys", str(own), "--new-client", "laptop", "--output", str(file))
    assert made.code == 0, made.err
    assert file.stat().st_mode & 0o777 == 0o600
    pair = keys.load(file).client
    assert pair is not None
    assert keys.load(file).server is None
    assert pair.secret.hex() not in made.out + interlock("keys", "--keys", str(own)).out
    with il.connect(address=address, keys=file):
        assert (il.ones(2) + 1).tolist() == [2.0, 2.0]
    down = interlock("down", "--address", address, "--keys", str(file))
    assert (down.code, "only with the keys of the launcher itself" in down.err) == (1, True)
    assert interlock("keys", "--keys", str(own), "--revoke", "laptop").code == 0
    with pytest.raises(il.Unreachable, match="does not accept the key"):
        il.connect(address=address, keys=file)
    assert interlock("keys", "--keys", str(own), "--accept", pair.public.hex()).code == 0
    il.connect(address=address, keys=file).close()


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o666])
def test_a_file_of_keys_that_others_may_read_is_refused(mode: int, own: Path) -> None:
    os.chmod(own, mode)
    with pytest.raises(il.InterlockError, match="nobody else may read: chmod 600"):
        keys.load(own)
    assert interlock("up", "--devices", "none", "--listen", "tcp", "--keys", str(own)).code == 1


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file to another user")
def test_a_file_of_keys_of_another_user_is_refused(own: Path) -> None:
    os.chown(own, 12345, -1)
    with pytest.raises(il.InterlockError, match="must be a file that belongs to user"):
        keys.load(own)


def test_what_is_no_file_of_keys_is_refused_without_showing_what_is_in_it(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    wrong = '{"client": {"public": "00", "secret": "hunter2"}}'
    for content in ("", "hunter2", "[]", '{"server": 1}', wrong, "[" * 9999):
        file.write_text(content)
        file.chmod(0o600)
        with pytest.raises(il.InterlockError, match="is not a file of keys") as caught:
            keys.load(file)
        assert "hunter2" not in str(caught.value)
        assert caught.value.__cause__ is None
    with pytest.raises(il.InterlockError, match="must be a file"):
        keys.load(tmp_path)


def test_no_secret_is_on_a_command_line_in_a_log_or_in_an_address(up: Program, own: Path, runtime: Path) -> None:
    address = address_of(up)
    found = keys.load(own)
    assert found.server is not None
    assert found.client is not None
    session = il.connect(address=address, keys=own)
    try:
        pids = [up.pid, *session.pids.values()]
        seen = [Path(f"/proc/{pid}/{name}").read_bytes() for pid in pids for name in ("cmdline", "environ")]
        seen += [log.read_bytes() for log in runtime.rglob("*.log")]
        seen += [repr(found).encode(), str(found.server).encode(), address.encode(), interlock("status").out.encode()]
        for pair in (found.server, found.client):
            secrets = (pair.secret.hex().encode(), pair.secret)
            assert not [text for text in seen for secret in secrets if secret in text]
    finally:
        session.close()


def test_what_is_listened_at_is_local_unless_it_is_said(runtime: Path, own: Path) -> None:
    with launcher("--devices", "cpu:0") as local:
        assert address_of(local).startswith("ipc://")
        assert _listens(local.pid) == []
        local.signal(signal.SIGTERM)
        local.ended()
    for said in ("tcp", "tcp://", "tcp://:0"):
        with launcher("--devices", "none", "--listen", said, "--keys", str(own)) as up:
            assert address_of(up).startswith("tcp://127.0.0.1:")
            assert [host for host, _ in _listens(up.pid)] == ["0100007F"]
            assert not [line for line in up.said if "other machines" in line]
            up.signal(signal.SIGTERM)
            up.ended()
    with launcher("--devices", "none", "--listen", "tcp://0.0.0.0", "--keys", str(own)) as up:
        line = up.line("other machines")
        assert line.startswith("listens at every address of this machine, for other machines as well: whoever has one")
        assert [host for host, _ in _listens(up.pid)] == ["00000000"]
        up.signal(signal.SIGTERM)
        up.ended()


def _listens(pid: int) -> list[tuple[str, int]]:
    """(address, port) of the tcp sockets on which a process listens."""
    own = set()
    for fd in os.listdir(f"/proc/{pid}/fd"):
        try:
            own.add(os.readlink(f"/proc/{pid}/fd/{fd}"))
        except OSError:
            continue
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in own:
                host, port = fields[1].split(":")
                found.append((host, int(port, 16)))
    return found


# FL-64: sgl-project/sglang#24618; CVE-2025-32444 ----------------------------------------------------------------------


class Evil:
    """Whoever unpickles it makes a file."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[object, tuple[str, str]]:
        return open, (str(self.file), "w")


def strangers(file: Path) -> list[list[bytes]]:
    """Messages of some frames that nobody here should make sense of."""
    evil = [pickle.dumps(Evil(file), protocol) for protocol in range(pickle.HIGHEST_PROTOCOL + 1)]
    noise = [os.urandom(n) for n in (0, 1, 5, 100, 60_000)]
    return [*([each] for each in evil + noise), [], [b""], [evil[-1]] * 2, [b"", evil[-1]], [b""] * 7, [noise[-1]] * 40]


def throw(kind: int, where: str, dress: Callable[[zmq.Socket[bytes]], object], file: Path) -> None:
    """Send all of it to a ZeroMQ endpoint, from one socket."""
    thrower = context().socket(kind)
    try:
        dress(thrower)
        thrower.connect(where)
        for frames in strangers(file):
            with contextlib.suppress(zmq.Again):  # it was cut off
                thrower.send_multipart(frames or [b""], zmq.NOBLOCK)
    finally:
        thrower.close(linger=500)


def test_fl64_a_pickle_from_a_stranger_is_never_run_at_any_port(own: Path, runtime: Path, tmp_path: Path) -> None:
    """Unpickling bytes from an open port let any peer run code."""
    file = tmp_path / "made"
    client = keys.load(own).client
    assert client is not None

    def nothing(_: zmq.Socket[bytes]) -> None: ...

    def dressed(server: bytes) -> Callable[[zmq.Socket[bytes]], None]:
        def dress(thrower: zmq.Socket[bytes]) -> None:
            assert client is not None
            thrower.curve_serverkey = server
            thrower.curve_publickey, thrower.curve_secretkey = client.public, client.secret

        return dress

    with listening("cpu:0,cpu:1", own) as up:
        address = address_of(up)
        with il.connect(address=address, keys=own) as session:
            x = il.ones(40_000, device="cpu:0")
            folder = next((runtime / "interlock").glob(f"p{up.pid}.*"))
            sessions_folder = next((runtime / "interlock").glob(f"p{os.getpid()}.*"))
            far = [address, *(lane.worker.endpoint for lane in session.lanes), *session._far_endpoints.values()]
            near = [ipc(folder, name) for name in ("launcher", "w0.1", "w1.1")]
            for where in far:  # before a login: who has no key, or no listed one, is not heard
                plain, server = keys.split(where)
                assert server is not None
                raw(plain, file)
                throw(zmq.DEALER, plain, nothing, file)
            for where in far[:3]:  # and after it
                plain, server = keys.split(where)
                assert server is not None
                throw(zmq.DEALER, plain, dressed(server), file)
            for where in near:
                throw(zmq.DEALER, where, nothing, file)
                raw(where, file)
            throw(zmq.PUSH, ipc(sessions_folder, "events"), nothing, file)
            letters = Letters(near[1])
            for frames in strangers(file):
                letters.send(b"".join(frames))
            letters.close()
            assert float((x + 1).to("cpu:1").sum()) == 80_000.0
        with il.connect(address=address, keys=own):
            assert float((il.ones(40_000, device="cpu:1") + 1).to("cpu:0").sum()) == 80_000.0
        assert interlock("down").code == 0
        up.ended()
    assert not file.exists()


def raw(where: str, file: Path) -> None:
    """Send it as bytes that are not even ZeroMQ's."""
    host, _, port = where.removeprefix("tcp://").rpartition(":")
    local = where.startswith("ipc://")
    for frames in strangers(file):
        with socket.socket(socket.AF_UNIX if local else socket.AF_INET) as thrower:
            thrower.settimeout(5.0)
            try:
                thrower.connect(where.removeprefix("ipc://") if local else (host, int(port)))
                thrower.sendall(b"".join(frames))
            except (ConnectionError, BrokenPipeError):
                pass  # it has hung up on us


# FL-66: msgpack/msgpack-python#360, #417, #532 ------------------------------------------------------------------------


def test_fl66_a_few_bytes_that_claim_gigabytes_cost_nothing_and_the_worker_serves_on(runtime: Path) -> None:
    """Without limits a few bytes claimed gigabytes; default limits refused big honest messages."""
    lies = [b"\xdd\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\xdb\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff",
            b"\xc9\xff\xff\xff\xff\x05", b"\x94\x02\x01\x90\xdd\xff\xff\xff\xff", b"\x91" * 100_000]  # fmt: skip
    with il.connect(devices=["cpu:0"]) as session:
        pid = session.pids["cpu:0"]
        assert (il.ones(3) + 1).tolist() == [2.0, 2.0, 2.0]
        before = resident(pid)
        thrower = context().socket(zmq.DEALER)
        thrower.connect(session.lanes[0].worker.endpoint)
        for _ in range(50):
            for lie in lies:
                thrower.send(lie)
        thrower.close(linger=5000)
        honest = np.arange(150 << 17, dtype=np.float64)  # 150 MiB
        x = il.asarray(honest)
        assert float(x[-1]) == honest[-1]
        parameters = [float(i) for i in range(350_000)]  # 3 MiB as a message
        assert float(il.asarray(parameters).sum()) == sum(parameters)
        del x
        assert resident(pid) - before < 400 << 20


def resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_fl66_a_batch_of_two_hundred_thousand_operations_is_accepted(runtime: Path) -> None:
    script = """
import interlock as il
from interlock.coordinator import lane, session
lane.BATCH = lane.STEP = 10**9
lane.Lane.idle = lambda self: False
session.Session._tick = lambda self: False  # nothing leaves by itself
with il.connect(devices=["cpu:0"], window=10**6) as session:
    outlet = session.lanes[0]._outlet
    sent, send = [], outlet.send
    outlet.send = lambda data: (sent.append(len(data)), send(data))
    x = il.zeros(2)
    for _ in range(200_000):
        x += 1
    print(x.tolist(), len([n for n in sent if n > 2_000_000]))
"""
    done = run_python(script)
    assert (done.out, done.err) == ("[200000.0, 200000.0] 1\n", "")


def test_fl66_an_array_that_no_message_can_carry_is_refused_before_it_is_sent(own: Path, tmp_path: Path) -> None:
    """One item cannot pass 4 GiB: to another machine, where no memory is shared, a clear error says so."""
    script = """
import sys
import interlock.protocol.limits as limits
limits.CARRIED = 1_000_000
import interlock.protocol.identity as identity
identity._boot_id = lambda: "another"
import numpy as np
import interlock as il
with il.connect(address=sys.argv[1], keys=sys.argv[2]) as session:
    assert not session.lanes[0].shares
    try:
        il.asarray(np.ones(125_001))
    except ValueError as error:
        print(error)
    x = il.asarray(np.ones(125_000))
    print(float(x.sum()), x.numpy().size)
"""
    with listening("cpu:0", own) as up:
        done = run_python(script, address_of(up), str(own))
        up.signal(signal.SIGTERM)
        up.ended()
    assert done.err == ""
    assert done.out.splitlines() == [
        "an array of 1000008 bytes cannot be sent to cpu:0: to another machine it travels inside one message, which "
        "carries at most 1000000 bytes; send it in parts, such as x[:n] and x[n:]",
        "125000.0 125000",
    ]
