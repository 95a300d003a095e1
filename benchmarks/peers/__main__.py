"""The command: what it is told, what it prints, what it keeps. How peers are measured is in comparing.py."""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from comparing import NORMAL, QUICK, measure
from environments import FOLDER, PEERS, Peer
from figures import Results, plain, table
from workloads import WORKLOADS

DESCRIPTION: Final = """\
The same work on Interlock and on its peers, side by side, with NumPy in one process between their rounds.

Each peer gets an environment of its own in .peers/, made when it is first needed (the first run takes minutes and the
network) and kept. Peers are started one after the other. A round of the peer and one of NumPy take turns, so that a
ratio compares what the machine gave at the same time. A peer that cannot be had or does not answer is reported.

PyTorch from PyPI brings CUDA's libraries, which take gigabytes. pip heeds its settings in the environment:
PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu has it install the small one.
"""
EXAMPLES: Final = """examples:
  make bench-peers                                       # everything: about six minutes, longer the first time
  make bench-peers BENCH="--quick"                       # fewer and shorter rounds, about two minutes
  make bench-peers BENCH="--only interlock --only mpi4py"
  python benchmarks/peers --only jax --workload mlp64 --workload mlp512 --json jax.json
"""


def options(arguments: Sequence[str] | None) -> argparse.Namespace:
    names = [w.name for w in WORKLOADS]
    parser = argparse.ArgumentParser(
        prog="benchmarks/peers",
        description=DESCRIPTION,
        epilog=f"{EXAMPLES}\npeers: {', '.join(PEERS)}\nworkloads: {', '.join(names)}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", action="append", metavar="PEER", choices=PEERS, help="only this one; again for more")
    parser.add_argument(
        "--workload", action="append", metavar="NAME", choices=names, help="only this one; again for more"
    )
    parser.add_argument("--quick", action="store_true", help="figures are rougher")
    parser.add_argument(
        "--json", metavar="FILE", default="bench-peers.json", help="where figures go; default: %(default)s"
    )
    args = parser.parse_args(arguments)
    if not Path(args.json).absolute().parent.is_dir():
        parser.error(f"--json {args.json}: there is no such folder")
    return args


def machine() -> dict[str, str]:
    """What the figures hold for."""
    try:
        found = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    except OSError:
        found = None
    cores = len(os.sched_getaffinity(0))
    return {
        "CPU": found.group(1) if found else platform.machine(),
        "cores": str(cores),
        "Linux": platform.release(),
        "load before": f"{os.getloadavg()[0]:.1f}",
    }


def main(arguments: Sequence[str] | None = None, peers: Mapping[str, Peer] = PEERS, folder: Path = FOLDER) -> int:
    args = options(arguments)
    before = machine()
    plan = QUICK if args.quick else NORMAL
    chosen = [w for w in WORKLOADS if not args.workload or w.name in args.workload]
    wanted = {name: peer for name, peer in peers.items() if not args.only or name in args.only}
    results = Results(before, *measure(wanted, plan, chosen, folder))
    Path(args.json).write_text(json.dumps(plain(results), indent=2) + "\n")
    print(table(results))
    return 0


def _run() -> int:
    try:
        code = main()
        print(end="", flush=True)
        return code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of our output has gone, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


if __name__ == "__main__":
    sys.exit(_run())
