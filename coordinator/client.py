"""Connecting, and the default session that the functions of the public face use.

`connect` starts workers of its own, or joins those that a launcher started. Without it the first use connects by
itself, by what the environment says.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ..protocol import files
from ..protocol.errors import InterlockError, Unreachable
from ..protocol.identity import Identity
from ..protocol.sockets import ask, private_folder, remove_folder
from ..protocol.supervision import ROSTER, parse_roster
from . import modes, reading, workers
from .events import LONGEST_S, seconds
from .lane import Device, Lane
from .lives import Launched, Started
from .session import Session, check_settings, close_all

if TYPE_CHECKING:
    from ..protocol.keys import Pair

ASK_S: Final = 5.0  # how long a launcher may take to answer
_default: Session | None = None
_lock = threading.RLock()

atexit.register(close_all)


def connect(
    devices: Sequence[str] | str | None = None,
    *,
    address: str | None = None,
    gate: str = "worker",
    window: int = 1024,
    memory: int | None = None,
    options: dict[str, Any] | None = None,
    restart: bool = False,
    recover: bool = False,
    keys: str | os.PathLike[str] | None = None,
    sync: str | None = None,
    nan: str | None = None,
    implicit_reads: str | None = None,
    start_timeout: float = workers.START_S,
) -> Session:
    """Start a session, which becomes the default one.

    Args:
        devices: names such as `["cpu:0", "cuda:0"]` or `"cpu:0,cpu:1"`: a worker is started for each, and stopped at
            the end. None: what INTERLOCK_ADDRESS or INTERLOCK_DEVICES say, else cpu:0 and every GPU found.
        address: of the launcher's workers, as `interlock up` prints it; `devices` then chooses among them.
        gate: where instructions wait for what they need: "worker" (fast) or "coordinator" (the reference).
        window: instructions that may be on the way to one worker.
        memory: bytes that the session may use on each worker; None for an equal part of half the machine's.
        keys: for an address over tcp, the file with this program's keys; None for INTERLOCK_KEYS, else the user's own.
        sync: "op" to wait for every operation, so that what fails raises at its own line; None: what INTERLOCK_SYNC
            says.
        nan: "flag" to warn, "raise" to raise FloatingPointError, at the next read or `synchronize`, of operations that
            made a NaN or an infinity out of operands without one; None: what INTERLOCK_NAN says.
        implicit_reads: "warn" or "raise" where an array is read by `np.asarray(x)`, `float(x)`, `if x:` and their like,
            each of which waits and copies; None: what INTERLOCK_IMPLICIT_READS says, else they are allowed.
        options: of the devices; for `sim`, `{"seed": 1}` makes it hostile in a reproducible way.
        restart: give a device another worker by itself when one is lost, as `session.restart` does when it is asked to.
        recover: as restart, and the arrays come back: what was sent to the workers is kept until it is in a checkpoint,
            which takes as much memory here as the arrays take there.
        start_timeout: seconds within which all workers must be ready.

    Raises:
        ValueError: not a device's name, or not one of the launcher's.
        Unreachable: over tcp, nobody listens at the address, or it has another key, or does not accept this one.
        InterlockError: nobody listens at the address, a worker did not start, or too few files may be open.
    """
    global _default
    if isinstance(devices, str):
        devices = [name for name in devices.split(",") if name.strip()]
    if devices is None and address is None:
        address = os.environ.get("INTERLOCK_ADDRESS") or None
        said = " (from INTERLOCK_ADDRESS)"
    else:
        said = ""
    check_settings(gate, window, memory)
    if recover and gate == "coordinator":
        raise ValueError("recover=True needs gate='worker'")
    if recover and address is not None and address.startswith("tcp://"):
        raise ValueError("recover=True needs workers on this machine, not over tcp")
    chosen = modes.chosen(sync, nan)
    reads = reading.chosen(implicit_reads)
    limit = seconds(start_timeout)
    if address is not None:
        pair = _client_pair(keys) if address.startswith("tcp://") else None
        _check_files(1, starting=False)
        adopted = _adopt(address, devices, said, pair)
        _check_files(len(adopted), starting=False)
        session = Session(
            adopted,
            gate=gate,
            window=window,
            memory=memory,
            source=Launched(address, pair),
            restart=restart,
            pair=pair,
            modes=chosen,
        )
    else:
        named = workers.check_devices(default_devices() if devices is None else devices)
        _check_files(len(named), starting=True)
        limit = LONGEST_S if limit is None else limit
        session = _start(named, gate, window, memory, options or {}, restart, chosen, limit)
    try:
        if recover:
            session.begin_recovery()
        with _lock:
            session.previous = _open(_default)
            _default = session
        session.implicit_reads = reads
        modes.announce(session)
    except BaseException:  # Ctrl-C: nobody has it
        session.close()
        raise
    return session


def _check_files(count: int, starting: bool) -> None:
    """Refuse a session with so many workers for which too few files may be opened.

    Raises:
        InterlockError: how many it needs, and how many there may be.
    """
    lacking = files.lacking(count, starting)
    if lacking is not None:
        raise InterlockError(lacking)


def _open(session: Session | None) -> Session | None:
    """This session, or the last before it that is open and this process's own."""
    while session is not None and (session.closed or not session.mine):
        session = session.previous
    return session


def default_devices() -> list[str]:
    """What `connect()` uses when nothing is said: INTERLOCK_DEVICES, else cpu:0 and every GPU found."""
    named = os.environ.get("INTERLOCK_DEVICES")
    if named:
        return [name for name in named.split(",") if name.strip()]
    return ["cpu:0", *(f"cuda:{i}" for i in range(count_gpus()))]


def count_gpus() -> int:
    """How many GPUs this process may use and a CUDA worker could drive; looks, without starting CUDA."""
    from importlib.util import find_spec

    if find_spec("cupy") is None or not workers.HAS_CUDA:
        return 0
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    found = len(list(Path("/proc/driver/nvidia/gpus").glob("*"))) if Path("/proc/driver/nvidia/gpus").is_dir() else 0
    return found if visible is None else min(found, len([v for v in visible.split(",") if v.strip()]))


def _start(
    devices: list[str],
    gate: str,
    window: int,
    memory: int | None,
    options: dict[str, Any],
    restart: bool,
    chosen: modes.Modes,
    start_timeout: float,
) -> Session:
    folder = private_folder()
    processes: list[workers.Process] = []
    try:
        _, adopted = workers.start(devices, folder, memory, options, start_timeout, processes)
        source = Started(folder, memory, options, devices)
        return Session(
            adopted,
            processes,
            folder=folder,
            gate=gate,
            window=window,
            memory=memory,
            source=source,
            arena=options.get("arena"),
            restart=restart,
            modes=chosen,
        )
    except BaseException:
        workers.stop(processes, 0.0)
        remove_folder(folder)
        raise


def _client_pair(path: str | os.PathLike[str] | None) -> Pair:
    """This program's keys; the user's own are made at their first use."""
    from ..protocol import keys, tcp

    named = path or os.environ.get(keys.VARIABLE)
    found = keys.load(Path(named)) if named else keys.load_or_make(keys.default_path(), tcp.new_pair)
    pair = found.client or found.server
    if pair is None:
        raise keys.KeysError(f"{found.path} holds no key of a program: `interlock keys --new-client NAME` makes one")
    return pair


def _adopt(address: str, devices: Sequence[str] | None, said: str, pair: Pair | None = None) -> list[workers.Adopted]:
    """The workers behind a launcher's address."""
    answer = ask(address, ROSTER, ASK_S, pair)
    if answer is None:
        raise InterlockError(
            f"nobody listens at {address}{said}: start workers with `interlock up` and use the address that it prints, "
            f"or name devices instead, such as devices=['cpu:0', 'cpu:1']"
        )
    found = [workers.Adopted(name, endpoint, Identity(*identity)) for name, endpoint, identity in parse_roster(answer)]
    if devices is None:
        if not found:
            raise InterlockError(f"the launcher at {address} has no workers: see `interlock status`")
        return _reachable(found)
    chosen = []
    for name in workers.check_devices(devices):
        worker = next((w for w in found if w.device == name), None)
        if worker is None:
            there = ", ".join(w.device for w in found) or "none at all"
            raise ValueError(f"the launcher at {address} has no worker for {name}: it has {there}")
        chosen.append(worker)
    return _reachable(chosen)


def _reachable(found: list[workers.Adopted]) -> list[workers.Adopted]:
    """The same workers; those that are reached over tcp answer a knock.

    Raises:
        Unreachable: one does not.
    """
    for worker in found:
        if worker.is_tcp:
            from ..protocol.tcp import why_unreachable

            endpoint = worker.endpoint.partition("?")[0]
            if (why := why_unreachable(endpoint)) is not None:
                raise Unreachable(f"the worker of {worker.device} at {endpoint} {why.words}")
    return found


def default_session() -> Session:
    """The session that `interlock.*` uses: the last one connected and still open, else a new one."""
    global _default
    with _lock:
        _default = _open(_default)
        return _default or connect()


def lane_of(device: Device | str | None) -> Lane:
    """The lane of a device: of the default session unless the device itself says of which."""
    if isinstance(device, Device):
        lane = device.lane
        return lane if lane.lost is None else lane.session.serving(device)
    session = _default
    if session is None or session.closed or not session.mine:
        session = default_session()
    named = session.devices[0] if device is None else session.device(device)
    return named.lane if named.lane.lost is None else session.serving(named)


def synchronize(timeout: float | None = None) -> None:
    """Wait until everything issued in the default session has finished.

    Raises:
        Exception: the earliest failure, by order of issue, that no read has raised; the others are notes on it.
        TimeoutError: it was not finished in `timeout` seconds.
    """
    default_session().synchronize(seconds(timeout))
