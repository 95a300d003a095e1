"""The peers, the releases of them that are measured, and an environment for each, made on demand and kept.

The environments lie in .peers/, one virtual environment for each peer; pip installs into them from where it is set up
to. This is the one place that names versions.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

HERE: Final = Path(__file__).parent
FOLDER: Final = HERE.parents[1] / ".peers"
TOLD_S: Final = 20.0  # so often one learns that pip is still at it
MAKING_S: Final = 1800.0  # after so long it is given up
NUMPY: Final = "numpy==2.4.6"


class Peer(NamedTuple):
    """A script, and what its environment has. Without pins, it runs in the environment of the runner."""

    script: str
    pins: tuple[str, ...] = ()
    launch: tuple[str, ...] = ("{bin}/python",)


PEERS: Final[Mapping[str, Peer]] = {
    "numpy": Peer("with_numpy.py"),
    "interlock": Peer("with_interlock.py"),
    "mpi4py": Peer(
        "with_mpi.py",
        ("mpi4py==4.1.2", "mpich==5.0.2", NUMPY),
        ("{bin}/mpiexec", "-n", "2", "{bin}/python"),
    ),
    "jax": Peer("with_jax.py", ("jax==0.10.2", "jaxlib==0.10.2", NUMPY)),
    "torch": Peer("with_torch.py", ("torch==2.13.0", NUMPY)),
    "ray": Peer("with_ray.py", ("ray==2.60.0", NUMPY)),
    "dask": Peer("with_dask.py", ("dask==2026.8.0", "distributed==2026.8.0", NUMPY)),
}


class Unmade(Exception):
    """There is no environment, and this is why."""


def command(name: str, peer: Peer, say: Callable[[str], None], folder: Path = FOLDER) -> list[str]:
    """How to run the peer's script, after making its environment if there is none like it yet."""
    binaries = Path(sys.executable).parent
    if peer.pins:
        binaries = _environment(name, peer, say, folder) / "bin"
    return [*(word.format(bin=binaries) for word in peer.launch), str(HERE / peer.script)]


def _environment(name: str, peer: Peer, say: Callable[[str], None], folder: Path) -> Path:
    place = folder / name
    marker, made = place / "made-of", "\n".join([sys.version, *peer.pins])
    if marker.exists() and marker.read_text() == made:
        return place
    shutil.rmtree(place, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / f"{name}-install.log"
    say(f"installing {', '.join(peer.pins)}")
    with log.open("w") as out:
        for words in (
            [sys.executable, "-m", "venv", str(place)],
            [str(place / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "install", *peer.pins],
        ):
            code = _wait(subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=out, stderr=out), say)
            if code:
                raise Unmade(_reason(log) if code > 0 else f"installing took more than {MAKING_S:.0f} s; see {log}")
    marker.write_text(made)
    return place


def _wait(process: subprocess.Popen[bytes], say: Callable[[str], None]) -> int:
    """The exit code, or -1 when it was given up; says from time to time that it is still running."""
    started = time.monotonic()
    try:
        while True:
            try:
                return process.wait(TOLD_S)
            except subprocess.TimeoutExpired:
                if (taken := time.monotonic() - started) > MAKING_S:
                    return -1
                say(f"still installing, {taken:.0f} s")
    finally:
        process.kill()
        process.wait()


def _reason(log: Path) -> str:
    """pip's last error, in one line."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    return f"{(errors or lines or ['no reason was given'])[-1]}; see {log}"
