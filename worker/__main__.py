"""Starts one worker process: reads its configuration, opens its device, says that it is ready, serves.

BLAS takes its number of threads from the environment when NumPy is imported, so whoever starts a worker sets it there.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import warnings
from pathlib import Path

from ..protocol.files import allow_many
from ..protocol.stacks import offer_stack
from .guard import Guard


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m interlock.worker", description="One worker.")
    parser.add_argument("--device", required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--folder", required=True, type=Path)
    parser.add_argument("--memory", required=True, type=int)
    parser.add_argument("--owner", required=True, type=int, nargs=2, metavar=("PID", "FD"))
    parser.add_argument("--ready-fd", required=True, type=int)
    parser.add_argument("--log", type=Path, help="what it prints goes there already; it is kept short")
    parser.add_argument("--options", default="{}", type=json.loads)
    parser.add_argument("--listen", default="", help="over tcp, besides")
    parser.add_argument("--keys", type=Path, help="the file of keys, for that")
    chosen = parser.parse_args(arguments)

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the program; the worker ends with its owner
    owner, pipe = chosen.owner
    guard = Guard(pipe, owner, chosen.folder, chosen.log)  # before anything that may hang, such as a driver
    offer_stack()
    sys.setswitchinterval(5e-4)  # the device's threads must not wait 5 ms for their turn
    warnings.simplefilter("ignore")

    allow_many()

    import numpy as np

    from .loop import Config, Worker

    np.seterr(all="ignore")
    worker = Worker(
        Config(chosen.device, chosen.name, chosen.folder, chosen.memory, chosen.options, chosen.listen, chosen.keys)
    )
    ready = {"endpoint": worker.inbox.endpoint, "identity": list(worker.identity), "device": chosen.device}
    with os.fdopen(chosen.ready_fd, "w") as file:
        print(json.dumps(ready), file=file)
    try:
        worker.run()
    finally:
        guard.dismiss()
    return 0


if __name__ == "__main__":
    sys.exit(main())
