"""The `interlock` command: what its words mean, what it prints, its exit codes.

What it does is done elsewhere in this folder, imported when needed, so that `--help` and mistakes are answered at once.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import json
import os
import re
import select
import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from .. import __version__
from ..protocol import supervision
from ..protocol.descriptors import pipe
from ..protocol.errors import InterlockError, Unreachable
from ..protocol.identity import Identity, alive, own_identity, same_host
from ..protocol.whole import write_whole

OK: Final = 0
FAILED: Final = 1
USAGE: Final = 2
NOBODY: Final = 3
INTERRUPTED: Final = 130

ASK_S: Final = 5.0  # how long a launcher may take to answer
END_S: Final = 15.0  # and to end, before it is killed
_UNITS: Final = {"": 1, "b": 1, "k": 1000, "m": 1000**2, "g": 1000**3, "t": 1000**4}
_BINARY: Final = {"ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30, "ti": 1 << 40}

_EXIT_CODES: Final = """exit codes:
  0    done
  1    it failed: a worker did not start, or ended again and again
  2    the command was not understood
  3    nobody is there: no launcher runs, or none answers at the address
  130  interrupted"""

_GPUS: Final = "; cuda:N is for GPUs, which this version cannot drive yet"

_EXAMPLES: Final = """examples:
  interlock up --devices cpu:0,cpu:1      start two workers; Ctrl-C ends them
  interlock up --devices cpu:0,sim:0 --detach
  interlock status                        what runs
  interlock explain                       what programs wait for
  interlock down                          end it
  interlock info                          what this machine has
  interlock keys                          who may use workers over tcp

a program uses the workers by their address:
  INTERLOCK_ADDRESS=ipc:///... python program.py
  il.connect(address="ipc:///...")

"""

_UP: Final = """Starts a worker for each device, starts another one when a worker ends, and prints the
address at which programs find them, on the last line. Ctrl-C, SIGTERM or `interlock down`
end it and its workers."""

_UP_EXAMPLES: Final = """examples:
  interlock up --devices cpu:0,cpu:1,cpu:2
  interlock up --devices cpu:0,sim:0 --memory 8GiB
  interlock up --devices cpu:0 --detach --address-file /tmp/address
  interlock up --devices none                 only workers that join: see `interlock worker`
  interlock up --devices cpu:0 --listen tcp://10.0.0.5    for other machines too: see `interlock keys`

"""

_STATUS_EXAMPLES: Final = """examples:
  interlock status                            every launcher of this user
  interlock status --address ipc:///... --json

"""

_EXPLAIN: Final = """Shows, for each session of each program of this user on this machine, which of the program's lines
wait and since when, the chain from there to the operation that runs now, and how far each worker
has come. The program may be blocked: a thread of it that is asleep otherwise answers."""

_EXPLAIN_EXAMPLES: Final = """examples:
  interlock explain
  interlock explain --pid 4711
  interlock explain --json

"""

_DOWN_EXAMPLES: Final = """examples:
  interlock down                              the one that INTERLOCK_ADDRESS names, or the only one that runs
  interlock down --address ipc:///...
  interlock down --all

"""

_WORKER: Final = """Runs one worker in the foreground, under a supervisor of your own (systemd, a container),
and adds it to the roster of a launcher for as long as it lives. It ends on SIGTERM or Ctrl-C,
and with exit code 3 when the launcher ends."""

_WORKER_EXAMPLES: Final = """examples:
  interlock up --devices none --detach
  interlock worker --device cpu:0 --memory 16GiB
  interlock worker --device cpu:1 --address ipc:///... --folder /run/user/1000/interlock-cpu1
  interlock worker --device cpu:2 --address tcp://... --listen tcp://10.0.0.6 --keys keys.json

"""

_KEYS: Final = """Shows the keys with which workers are reached over tcp, and changes who is let in. The file is
made at its first use and is for its owner alone; secrets are never shown. A list that is changed
counts for whoever comes from then on."""

_KEYS_EXAMPLES: Final = """examples:
  interlock keys                              the file, its public keys, and who is let in
  interlock keys --new-client laptop          writes laptop.keys.json, to be carried there (by scp, say), and lets it in
  interlock keys --accept 5f1c... --name laptop   lets in a program that has keys already
  interlock keys --revoke laptop              lets it in no more

on the other machine:
  INTERLOCK_KEYS=laptop.keys.json INTERLOCK_ADDRESS='tcp://...?key=...' python program.py

a worker on another machine has the launcher's own keys: copy the file to it.

"""

_INFO_EXAMPLES: Final = """examples:
  interlock info
  interlock info --json

"""


class Mistaken(Exception):
    """The command cannot mean anything: exit code 2."""


class Nobody(Exception):
    """There is no launcher: exit code 3."""


def main(arguments: list[str] | None = None) -> int:
    """Run the command; its exit code."""
    chosen = _parser().parse_args(arguments)
    command: Callable[[argparse.Namespace], int] = chosen.command
    try:
        code = command(chosen)
        print(end="", flush=True)
        return code
    except BrokenPipeError:  # the reader of our output has gone, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    except KeyboardInterrupt:
        return INTERRUPTED
    except Mistaken as error:
        return _say_error(error, USAGE)
    except (Nobody, Unreachable) as error:
        return _say_error(error, NOBODY)
    except (InterlockError, OSError, ValueError) as error:
        return _say_error(error, FAILED)


def _say_error(error: Exception, code: int) -> int:
    with contextlib.suppress(OSError):  # a log on a full disk
        print(f"interlock: {error}", file=sys.stderr, flush=True)
    return code


# -- the words --------------------------------------------------------------------------------------------------------


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="interlock",
        description="Workers for the devices of this machine, shared by several programs.",
        epilog=_EXAMPLES + _EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"interlock {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    def add(name: str, run: Callable[[argparse.Namespace], int], text: str, examples: str, more: str = "") -> Any:
        command = commands.add_parser(
            name,
            help=text,
            description=more or text[0].upper() + text[1:] + ".",
            epilog=examples + _EXIT_CODES,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.set_defaults(command=run)
        return command

    up = add("up", _up, "start workers and keep them running", _UP_EXAMPLES, _UP)
    up.add_argument("--devices", metavar="D,D", help=f"such as cpu:0,cpu:1,sim:0; default: cpu:0{_GPUS}")
    _add_worker_options(up, "for each worker, such as 2GiB; default: together half of the machine's memory")
    _add_listen(up, "let programs with a listed key in over tcp; without a host only those of this machine")
    up.add_argument("--detach", action="store_true", help="go to the background once the workers serve")
    up.add_argument("--address-file", type=Path, metavar="F", help="write the address there; removed at the end")
    up.add_argument("--log-file", type=Path, metavar="F", help="with --detach: what it says goes there")
    up.add_argument("--told-fd", type=int, help=argparse.SUPPRESS)
    up.add_argument("--own-log", type=Path, help=argparse.SUPPRESS)

    status = add("status", _status, "show the workers that run", _STATUS_EXAMPLES)
    status.add_argument("--address", metavar="A", help="of one launcher; default: every launcher of this user")
    _add_keys(status)
    status.add_argument("--json", action="store_true", help="for programs")

    explain = add("explain", _explain, "show what programs wait for", _EXPLAIN_EXAMPLES, _EXPLAIN)
    which = explain.add_mutually_exclusive_group()
    which.add_argument("--pid", type=int, metavar="P", help="of one program")
    which.add_argument("--all", action="store_true", help="every program of this user; that is the default")
    explain.add_argument("--json", action="store_true", help="for programs")

    down = add("down", _down, "end a launcher and its workers", _DOWN_EXAMPLES)
    which = down.add_mutually_exclusive_group()
    which.add_argument("--address", metavar="A", help="of the launcher; default: INTERLOCK_ADDRESS, else the only one")
    which.add_argument("--all", action="store_true", help="every launcher of this user")
    _add_keys(down)

    worker = add("worker", _worker, "run one worker under another supervisor", _WORKER_EXAMPLES, _WORKER)
    worker.add_argument("--device", required=True, metavar="D", help=f"such as cpu:0 or sim:1{_GPUS}")
    worker.add_argument("--address", metavar="A", help="of the launcher; default: INTERLOCK_ADDRESS, else the only one")
    worker.add_argument("--folder", type=Path, metavar="F", help="for its endpoint; default: a private one")
    _add_worker_options(worker, "such as 2GiB; default: half of the machine's memory")
    _add_listen(worker, "over tcp, for a launcher that is reached so")

    keys = add("keys", _keys, "show who may use workers over tcp, and change it", _KEYS_EXAMPLES, _KEYS)
    _add_keys(keys)
    keys.add_argument("--new-client", metavar="NAME", help="make keys for a program elsewhere, and let it in")
    keys.add_argument("--output", type=Path, metavar="F", help="with --new-client: the file; default NAME.keys.json")
    keys.add_argument("--accept", metavar="PUBLIC", help="let the program with this key in")
    keys.add_argument("--name", metavar="NAME", help="with --accept: what to call it")
    keys.add_argument("--revoke", metavar="PUBLIC", help="let the program with this key, or of this name, in no more")

    info = add("info", _info, "show what this machine has, and why something is missing", _INFO_EXAMPLES)
    info.add_argument("--json", action="store_true", help="for programs")
    return parser


def _add_listen(command: Any, text: str) -> None:
    command.add_argument("--listen", metavar="A", help=f"such as tcp, tcp://10.0.0.5 or tcp://*:4000: {text}")
    _add_keys(command)


def _add_keys(command: Any) -> None:
    command.add_argument(
        "--keys", type=Path, metavar="F", help="the file of keys, for tcp; default: INTERLOCK_KEYS, else the user's own"
    )


def _add_worker_options(command: Any, memory: str) -> None:
    command.add_argument("--memory", type=parse_bytes, metavar="N", help=memory)
    command.add_argument(
        "--options", type=_parse_options, default={}, metavar="JSON", help="of the devices, such as '{\"seed\": 1}'"
    )


def parse_bytes(text: str) -> int:
    """Bytes from "2GiB", "500MB", "1.5g" or "4096"."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?i?)b?", text.strip().lower())
    unit = (_UNITS | _BINARY).get(match[2]) if match else None
    if match is None or unit is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of bytes, such as 2GiB, 500MB or 4096")
    return int(float(match[1]) * unit)


def _parse_options(text: str) -> dict[str, Any]:
    try:
        options = json.loads(text)
    except ValueError:
        options = None
    if not isinstance(options, dict):
        raise argparse.ArgumentTypeError(f"{text!r} is no JSON object, such as '{{\"seed\": 1}}'")
    return options


def parse_devices(text: str | None) -> list[str]:
    """The devices that `up` is asked for; none for "none"."""
    from ..coordinator.client import count_gpus, default_devices
    from ..coordinator.workers import check_devices

    if text is not None and text.strip() == "none":
        return []
    names: list[str] = []
    for name in default_devices() if text is None else text.split(","):
        if name.strip() != "cuda:all":
            names.append(name)
            continue
        gpus = count_gpus()
        if not gpus:
            from .machine import graphics

            raise Mistaken(f"cuda:all: no GPU can be used here: {graphics()['why_none']}")
        names += [f"cuda:{index}" for index in range(gpus)]
    try:
        return check_devices(names)
    except ValueError as error:
        raise Mistaken(str(error)) from None


# -- up ---------------------------------------------------------------------------------------------------------------


_FULL: Final = (errno.ENOSPC, errno.EDQUOT)


def _up(chosen: argparse.Namespace) -> int:
    devices = parse_devices(chosen.devices)
    if chosen.detach:
        return _up_detached(chosen, devices)
    tcp = _tcp(chosen.listen, chosen.keys)
    if chosen.log_file is not None:
        raise Mistaken("--log-file goes with --detach; in the foreground, redirect the output")
    from ..protocol.logs import shorten
    from .background import ADDRESS, adopt_log
    from .launcher import Launcher

    told = None if chosen.told_fd is None else os.fdopen(chosen.told_fd, "w", encoding="utf-8")

    def say(text: str) -> None:
        try:
            print(text, flush=True)
        except OSError as error:
            if error.errno not in _FULL:  # a log on a full disk is no reason to end
                raise
        if chosen.own_log is not None:
            shorten(launcher.folder / "launcher.log")
        if told is not None and not told.closed:
            print(text, file=told, flush=True)

    with _told_to_stop() as stop_fd:
        launcher = Launcher(devices, say, memory=chosen.memory, options=chosen.options, stop_fd=stop_fd, tcp=tcp)
        try:
            if tcp is not None:
                _say_who_comes_in(tcp, say)
            if not launcher.start():
                return INTERRUPTED
            if chosen.own_log is not None:
                adopt_log(chosen.own_log, launcher.folder)
            with _address_file(chosen.address_file, launcher.address):
                quoted = shlex.quote(launcher.address)  # over tcp it has a question mark
                say(f"export INTERLOCK_ADDRESS={quoted}")
                say(f"{ADDRESS}{launcher.address}")
                if told is not None:
                    told.close()
                launcher.serve()
        except OSError as error:
            if told is not None and not told.closed and error.errno in _FULL:  # so is the log, perhaps
                print(f"interlock: {error}", file=told, flush=True)
            raise
        finally:
            launcher.close()
    return OK


def _up_detached(chosen: argparse.Namespace, devices: list[str]) -> int:
    from .background import start

    arguments = ["--devices", ",".join(devices) or "none", "--options", json.dumps(chosen.options)]
    if chosen.memory is not None:
        arguments += ["--memory", str(chosen.memory)]
    if chosen.listen is not None:
        arguments += ["--listen", chosen.listen]
    if chosen.keys is not None:
        arguments += ["--keys", str(chosen.keys.absolute())]
    if chosen.address_file is not None:
        arguments += ["--address-file", str(chosen.address_file.absolute())]
    start(arguments, chosen.log_file, lambda line: print(line, flush=True))
    return OK


def _tcp(listen: str | None, path: Path | None) -> Any:
    """Where to listen over tcp, and the file of keys, which is made at its first use; None for nowhere."""
    if listen is None:
        return None
    from ..coordinator.workers import Tcp
    from ..protocol import keys
    from ..protocol.tcp import listening_endpoint, new_pair

    try:
        endpoint = listening_endpoint(listen)
    except ValueError as error:
        raise Mistaken(str(error)) from None
    return Tcp(endpoint, keys.load_or_make(path or keys.default_path(), new_pair).path.absolute())


def _say_who_comes_in(tcp: Any, say: Callable[[str], None]) -> None:
    from ..protocol import keys
    from ..protocol.tcp import host_of, is_loopback

    if not is_loopback(tcp.listen):
        host = "every address of this machine" if host_of(tcp.listen) in ("*", "0.0.0.0", "::") else host_of(tcp.listen)
        count = len(keys.load(tcp.keys).accepted)
        say(
            f"listens at {host}, for other machines as well: whoever has one of the {count} keys listed in {tcp.keys} "
            f"may use these workers"
        )


@contextlib.contextmanager
def _told_to_stop() -> Iterator[int]:
    """A descriptor that is readable once a signal asks for the end."""
    reading, writing = pipe()
    os.set_blocking(writing, False)
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    before = {number: signal.signal(number, lambda *_: None) for number in numbers}
    woken = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    try:
        yield reading
    finally:
        signal.set_wakeup_fd(woken)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(reading)
        os.close(writing)


@contextlib.contextmanager
def _address_file(path: Path | None, address: str) -> Iterator[None]:
    """The address, in a file that is whole whenever it is there."""
    if path is None:
        yield
        return
    write_whole(path, address + "\n")
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            if path.read_text() == address + "\n":  # not another launcher's by now
                path.unlink()


# -- status and down --------------------------------------------------------------------------------------------------


def _own_pair(address: str, path: Path | None) -> Any:
    """The keys to ask a launcher with: its own, if this user has them. None for a local address."""
    if not address.startswith("tcp://"):
        return None
    from ..protocol import keys

    found = keys.load(path or keys.default_path())
    return found.server or found.client


def _ask_status(address: str, path: Path | None) -> dict[str, Any]:
    from ..protocol.sockets import ask

    answer = ask(address, supervision.STATUS, ASK_S, _own_pair(address, path))
    if answer is None:
        raise Nobody(f"no launcher answers at {address}; `interlock status` shows those that run")
    status: dict[str, Any] = json.loads(answer)
    return status


def _the_address(given: str | None) -> str:
    """The launcher that is meant."""
    from .registry import find

    address = given or os.environ.get("INTERLOCK_ADDRESS")
    if address:
        return address
    found = [launcher.address for launcher in find()]
    if not found:
        raise Nobody("no launcher of this user runs here; `interlock up` starts one")
    if len(found) > 1:
        raise Mistaken("several launchers run; say which with --address:\n  " + "\n  ".join(found))
    return found[0]


def _status(chosen: argparse.Namespace) -> int:
    from .registry import find

    found: list[dict[str, Any]] = []
    for address in [chosen.address] if chosen.address else [launcher.address for launcher in find()]:
        try:
            found.append(_ask_status(address, chosen.keys))
        except (Nobody, Unreachable):
            if chosen.address:
                raise
    if chosen.json:
        print(json.dumps({"launchers": found}, indent=2))
    elif found:
        print("\n\n".join(map(_show_status, found)))
    else:
        raise Nobody("no launcher of this user runs here; `interlock up` starts one")
    return OK if found else NOBODY


def _explain(chosen: argparse.Namespace) -> int:
    from .explaining import ask_programs, show

    asked = ask_programs(chosen.pid)
    if chosen.json:
        print(json.dumps({"sessions": [{"pid": each.pid, "answer": each.answer} for each in asked]}, indent=2))
    elif asked:
        print("\n\n".join(map(show, asked)))
    else:
        raise Nobody("no program of this user has a session here" if chosen.pid is None else f"{chosen.pid} has none")
    if not asked:
        return NOBODY
    return OK if all(each.answer is not None for each in asked) else FAILED


def _show_status(status: dict[str, Any]) -> str:
    lines = [f"address {status['address']}", f"launcher pid {status['pid']}, since {_ago(status['since'])}"]
    rows = [("DEVICE", "STATE", "PID", "SINCE", "MEMORY", "OF", "RESTARTS", "ENDPOINT")]
    for worker in status["workers"]:
        rows.append(
            (
                worker["device"],
                worker["state"] + (" (joined)" if worker["joined"] else ""),
                str(worker["pid"] or "-"),
                _ago(worker["since"]),
                show_bytes(worker["resident"]),
                show_bytes(worker["memory"]),
                str(worker["restarts"]),
                worker["endpoint"] or "-",
            )
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines += ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    for worker in status["workers"]:
        if worker["state"] != "serving" and worker["reason"]:
            lines.append(f"{worker['device']} {worker['reason']}")
    return "\n".join(lines)


def _ago(since: float | None) -> str:
    if since is None:
        return "-"
    seconds = max(int(time.time() - since), 0)
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length} {unit}"
    return f"{seconds} s"


def show_bytes(nbytes: int | None) -> str:
    """For people: 2.5 GiB."""
    if nbytes is None:
        return "-"
    value = float(nbytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.{0 if value >= 100 or unit == 'B' else 1}f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def _down(chosen: argparse.Namespace) -> int:
    from .registry import find

    if chosen.all:
        addresses = [launcher.address for launcher in find()]
        if not addresses:
            raise Nobody("no launcher of this user runs here")
    else:
        addresses = [_the_address(chosen.address)]
    for address in addresses:
        _end(address, chosen.keys)
        print(f"ended {address}")
    return OK


def _end(address: str, path: Path | None) -> None:
    """End a launcher, and wait until it and its workers are gone; on another machine, until it has heard."""
    from ..protocol.sockets import ask

    status = _ask_status(address, path)
    identities = [Identity(*status["identity"])]
    pair = _own_pair(address, path)
    if not same_host(identities[0], own_identity()):
        answer = ask(address, supervision.DOWN, ASK_S, pair)
        if answer != b"ok":
            raise InterlockError(f"the launcher at {address} did not end: {(answer or b'').decode(errors='replace')}")
        return
    pids = [worker["pid"] for worker in status["workers"] if worker["pid"] is not None and not worker["joined"]]
    with contextlib.ExitStack() as stack:
        waiting = {pid: fd for pid in (identities[0].pid, *pids) if (fd := _pidfd(pid, stack)) is not None}
        if (answer := ask(address, supervision.DOWN, ASK_S, pair)) not in (b"ok", None):
            raise InterlockError(f"the launcher at {address} did not end: {answer.decode(errors='replace')}")
        if not _wait_for(waiting, END_S) and alive(identities[0]):
            os.kill(identities[0].pid, signal.SIGKILL)  # its workers follow it
            if not _wait_for(waiting, END_S):
                raise InterlockError(f"process {', '.join(map(str, waiting))} of {address} does not end")


def _pidfd(pid: int, stack: contextlib.ExitStack) -> int | None:
    try:
        fd = os.pidfd_open(pid)
    except OSError:
        return None
    stack.callback(os.close, fd)
    return fd


def _wait_for(waiting: dict[int, int], timeout_s: float) -> bool:
    """Until all these processes have ended (pid: pidfd); those that have are taken out."""
    deadline = time.monotonic() + timeout_s
    for pid, fd in list(waiting.items()):
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        if poll.poll(max(deadline - time.monotonic(), 0) * 1000):
            del waiting[pid]
    return not waiting


# -- worker and info --------------------------------------------------------------------------------------------------


def _worker(chosen: argparse.Namespace) -> int:
    from ..coordinator.workers import blas_environment, check_devices, cores, default_memory

    try:
        (device,) = check_devices([chosen.device])
    except ValueError as error:
        raise Mistaken(str(error)) from None
    address = _the_address(chosen.address)
    os.environ.update(blas_environment(cores()) | os.environ)  # before NumPy is imported
    from .single import NobodyThere, serve

    try:
        tcp = _tcp(chosen.listen, chosen.keys)
        serve(device, address, chosen.folder, chosen.memory or default_memory(1), chosen.options, tcp)
    except NobodyThere as error:
        raise Nobody(str(error)) from None
    return OK


def _keys(chosen: argparse.Namespace) -> int:
    from ..protocol import keys
    from ..protocol.tcp import new_pair

    path = chosen.keys or keys.default_path()
    found = keys.load_or_make(path, new_pair)
    changes = [chosen.new_client, chosen.accept, chosen.revoke]
    if sum(change is not None for change in changes) > 1:
        raise Mistaken("one of --new-client, --accept and --revoke at a time")
    if any(change is not None for change in changes) and found.server is None:
        raise Mistaken(f"{path} has a program's keys only: who is let in is said where the workers run")
    accepted = dict(found.accepted)
    if chosen.new_client is not None:
        _make_client(chosen, accepted)
    elif chosen.accept is not None:
        try:
            public = keys.parse_public(chosen.accept)
        except ValueError as error:
            raise Mistaken(str(error)) from None
        accepted[public] = chosen.name or "accepted by hand"
        print(f"lets in {public.hex()} ({accepted[public]})")
    elif chosen.revoke is not None:
        gone = [key for key, name in accepted.items() if chosen.revoke in (key.hex(), name)]
        if not gone:
            raise Mistaken(f"nobody with that key or name is let in: {chosen.revoke!r}")
        for public in gone:
            print(f"no longer lets in {public.hex()} ({accepted.pop(public)}); who is in stays until it leaves")
    else:
        _show_keys(found)
        return OK
    keys.save(found._replace(accepted=accepted))
    return OK


def _make_client(chosen: argparse.Namespace, accepted: dict[bytes, str]) -> None:
    from ..protocol import keys
    from ..protocol.tcp import new_pair

    name = chosen.new_client
    if not re.fullmatch(r"[\w.-]{1,64}", name):
        raise Mistaken(f"{name!r} is no name: letters, digits, '.', '_' and '-'")
    if name in accepted.values():
        raise Mistaken(f"{name!r} is let in already; --revoke it first, or choose another name")
    path, pair = chosen.output or Path(f"{name}.keys.json"), new_pair()
    try:
        keys.save(keys.Keys(path, None, pair, {}), new=True)
    except FileExistsError:
        raise Mistaken(f"{path} is there already, and is left as it is") from None
    accepted[pair.public] = name
    print(f"wrote {path}: carry it to the other machine by a way that nobody else reads, and keep it to yourself there")
    print(f"lets in {pair.public.hex()} ({name})")


def _show_keys(found: Any) -> None:
    print(f"keys in {found.path}")
    for kind, pair in (("server", found.server), ("client", found.client)):
        if pair is not None:
            print(f"  {kind} {pair.public.hex()}")
    if found.server is not None:
        print("lets in")
        for public, name in found.accepted.items():
            print(f"  {public.hex()} {name}")


def _info(chosen: argparse.Namespace) -> int:
    from .machine import survey

    found = survey()
    print(json.dumps(found, indent=2) if chosen.json else _show_info(found))
    return OK


def _show_info(found: dict[str, Any]) -> str:
    cpu, gpu, shared = found["cpu"], found["gpu"], found["shared_memory"]
    lines = ["versions"]
    lines += [f"  {name:<14}{version}" for name, version in found["versions"].items()]
    lines += ["devices", f"  {'cpu':<14}{cpu['cores']} of {cpu['of']} cores, {show_bytes(cpu['memory'])} of memory"]
    lines += [f"  {f'cuda:{index}':<14}{model}" for index, model in enumerate(gpu["models"][: gpu["usable"]])]
    if not gpu["usable"]:
        lines.append(f"  {'cuda':<14}none: {gpu['why_none']}")
    lines.append(f"  {'sim':<14}any number: NumPy that behaves like a GPU")
    lines.append("shared memory")
    memfd = "can be opened by other processes" if shared["kind"] == "memfd" and not shared["why_no_memfd"] else ""
    lines.append(f"  {'memfd':<14}{memfd or 'no: ' + shared['why_no_memfd']}")
    lines.append(f"  {'/dev/shm':<14}{show_bytes(shared['named_free'])} free of {show_bytes(shared['named_size'])}")
    lines.append("ways of large arrays")
    for way in found["paths"]:
        lines.append(f"  {way['from'] + ' to ' + way['to']:<14}{way['how'] or 'no: ' + way['why_not']}")
    return "\n".join(lines)
