"""One worker in the foreground, for another supervisor: what `interlock worker` runs.

It joins a launcher's roster, and ends when told to, or when the launcher ends: its supervisor may then start it again.
"""

from __future__ import annotations

import os
import signal
import sys
import warnings
from collections.abc import Hashable
from pathlib import Path
from types import FrameType
from typing import Any, Final

from ..coordinator.workers import Tcp
from ..protocol import supervision
from ..protocol.codec import encode
from ..protocol.errors import InterlockError
from ..protocol.identity import Identity, same_host
from ..protocol.keys import Pair
from ..protocol.messages import Stop
from ..protocol.network import Network, server_pair
from ..protocol.sockets import Outlet, ask, ipc, nobody_listens, private_folder, remove_folder
from ..protocol.watch import Watch

JOIN_S: Final = 5.0


class NobodyThere(InterlockError):
    """No launcher answers at the address."""


def serve(
    device: str,
    address: str,
    folder: Path | None,
    memory: int,
    options: dict[str, Any],
    tcp: Tcp | None = None,
) -> None:
    """Serve `device` to the programs of the launcher at `address`, until told to stop.

    Args:
        folder: where the endpoint lies; None for a private one.
        tcp: where to listen besides, and the file of keys, which a launcher at a tcp address needs as well.

    Raises:
        NobodyThere: no launcher answers there, or it has ended meanwhile.
        InterlockError: the device cannot be opened, or the launcher refuses it.
    """
    pair = server_pair(tcp and tcp.keys)
    if ask(address, supervision.ROSTER, JOIN_S, pair) is None:  # before the device is opened, which may take long
        raise NobodyThere(f"no launcher answers at {address}")
    home = private_folder() if folder is None else _open_folder(folder)
    endpoint = ipc(home, device.replace(":", "-"))
    if not nobody_listens(endpoint):
        raise InterlockError(f"another worker listens at {endpoint} already")
    try:
        _serve(device, address, home, memory, options, tcp)
    finally:
        if folder is None:
            remove_folder(home)
        else:
            Path(endpoint.removeprefix("ipc://")).unlink(missing_ok=True)  # ZeroMQ may not have come to it yet


def _serve(device: str, address: str, home: Path, memory: int, options: dict[str, Any], tcp: Tcp | None) -> None:
    import numpy as np

    from ..worker.loop import Config, Worker

    np.seterr(all="ignore")
    warnings.simplefilter("ignore")
    sys.setswitchinterval(5e-4)  # the device's threads must not wait 5 ms for their turn
    listen, keys = ("", None) if tcp is None else tcp
    worker = Worker(Config(device, device.replace(":", "-"), home, memory, options, listen, keys))

    def stop() -> None:
        outlet = Outlet(worker.inbox.inproc)
        outlet.send(encode(Stop()))
        outlet.close()

    def told(number: int, frame: FrameType | None) -> None:
        stop()

    abandoned: list[Hashable] = []

    def launcher_ended(key: Hashable) -> None:
        abandoned.append(key)
        stop()

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, told)
    watch = Watch(launcher_ended)
    pair = server_pair(keys)
    network = Network(pair, lambda key, words: launcher_ended(key))
    launcher = _join(device, address, worker, pair)
    tie: Outlet | None = None
    if same_host(launcher, worker.identity):
        watch.watch(address, launcher)
    else:  # on another machine: as long as the connection lives
        tie = Outlet(address, link=network.link(address, address))
    print(f"{device} serves at {worker.inbox.endpoint} for {address}, pid {os.getpid()}", flush=True)
    worker.run()
    watch.close()
    if tie is not None:
        tie.close(linger_ms=0)
    network.close()
    if abandoned:
        raise NobodyThere(f"the launcher at {address} has ended, and so does the worker of {device}")


def _join(device: str, address: str, worker: Any, pair: Pair | None) -> Identity:
    answer = ask(address, supervision.join(device, worker.inbox.endpoint, tuple(worker.identity)), JOIN_S, pair)
    if answer is None:
        raise NobodyThere(f"no launcher answers at {address}")
    launcher, reason = supervision.parse_joined(answer)
    if launcher is None:
        raise InterlockError(f"the worker was refused: {reason}")
    return Identity(*launcher)


def _open_folder(folder: Path) -> Path:
    """The folder, made if need be; for this user alone."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.stat()
    if found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise InterlockError(f"{folder} must belong to user {os.getuid()} alone, with mode 0700")
    return folder.absolute()
