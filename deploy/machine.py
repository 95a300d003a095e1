"""What this machine has: devices, shared memory, ways between devices; and why something is missing.

Looks only: starts no device and no worker. Plain values, for people and for programs.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from .. import __version__
from ..coordinator.client import count_gpus
from ..coordinator.workers import HAS_CUDA, cores
from ..protocol.arena import PAGE, SHARED_DIRECTORY, Arena
from ..protocol.errors import InterlockError
from ..protocol.identity import own_identity
from ..protocol.sockets import library_version

GPUS: Final = Path("/proc/driver/nvidia/gpus")
_OPEN: Final = "import os, sys; os.close(os.open(sys.argv[1], os.O_RDONLY))"


def survey() -> dict[str, Any]:
    """Everything."""
    shared, gpus = shared_memory(), graphics()
    return {
        "versions": versions(),
        "cpu": {"cores": cores(), "of": os.cpu_count(), "memory": PAGE * os.sysconf("SC_PHYS_PAGES")},
        "gpu": gpus,
        "shared_memory": shared,
        "paths": paths(shared, gpus),
    }


def versions() -> dict[str, str]:
    """Of all that takes part; "missing" where it is not installed."""
    found = {"interlock": __version__, "python": platform.python_version(), "libzmq": library_version()}
    for package in ("numpy", "pyzmq", "msgpack", "cupy-cuda13x"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "missing"
    return found


def graphics() -> dict[str, Any]:
    """The GPUs that workers can drive; if none, why none."""
    models = [_model(gpu) for gpu in sorted(GPUS.glob("*"))]
    usable = count_gpus()
    return {"usable": usable, "models": models, "why_none": "" if usable else _why_no_gpu(len(models))}


def _model(gpu: Path) -> str:
    for line in (gpu / "information").read_text(errors="replace").splitlines():
        if line.startswith("Model:"):
            return line.partition(":")[2].strip()
    return gpu.name


def _why_no_gpu(found: int) -> str:
    if not HAS_CUDA:
        return "this version of interlock has no CUDA device"
    if not GPUS.is_dir():
        return f"no NVIDIA driver on this machine ({GPUS} is missing)"
    if not found:
        return "the NVIDIA driver sees no GPU"
    if find_spec("cupy") is None:
        return "CuPy is missing: pip install 'interlock[cuda]'"
    return f"CUDA_VISIBLE_DEVICES={os.environ.get('CUDA_VISIBLE_DEVICES')!r} hides all of them"


def shared_memory() -> dict[str, Any]:
    """The kind of shared memory that workers will use here, and what there is of each kind."""
    found: dict[str, Any] = {"kind": None, "why_no_memfd": "", "why_none": "", "named_size": 0, "named_free": 0}
    try:
        about = os.statvfs(SHARED_DIRECTORY)
    except OSError as error:
        found["why_none"] = f"{SHARED_DIRECTORY}: {error.strerror}"
    else:
        found["named_size"] = about.f_blocks * about.f_frsize
        found["named_free"] = about.f_bavail * about.f_frsize
    try:
        arena = Arena(1 << 20, own_identity(), minimum_segment=16 * PAGE)
        try:
            kind, where = arena.ticket(arena.allocate(PAGE))[:2]
            found["kind"] = kind
            if kind == "memfd":
                found["why_no_memfd"] = _why_not_opened(f"/proc/{os.getpid()}/fd/{where!r}")
            else:
                found["why_no_memfd"] = "memfd_create is refused, or /proc does not open what it made"
        finally:
            arena.close()
    except (InterlockError, OSError) as error:
        found["why_none"] = str(error)
    return found


def _why_not_opened(path: str) -> str:
    """Open a file in another process, as a worker would; empty if it can."""
    child = subprocess.run([sys.executable, "-I", "-S", "-c", _OPEN, path], capture_output=True, text=True, check=False)
    return child.stderr.strip().rpartition("\n")[2] if child.returncode else ""


def paths(shared: dict[str, Any], gpus: dict[str, Any]) -> list[dict[str, str]]:
    """How an array of 32 KiB or more goes from one kind of device to another; smaller ones go inside messages."""
    if shared["kind"] is None or (shared["kind"] == "memfd" and shared["why_no_memfd"]):
        host, missing = "", f"no shared memory between processes: {shared['why_none'] or shared['why_no_memfd']}"
    else:
        host = "shared memory (memfd)" if shared["kind"] == "memfd" else f"named shared memory ({SHARED_DIRECTORY})"
        missing = ""
    no_gpu = f"no GPU: {gpus['why_none']}" if gpus["why_none"] else missing
    few = no_gpu or ("" if gpus["usable"] > 1 else "there is only one GPU")
    ways = (
        ("cpu", "cpu", f"read in place in {host}; no copy", missing),
        ("cpu", "cuda", f"one copy by the GPU from {host}", no_gpu),
        ("cuda", "cpu", f"one copy by the GPU into {host}, read in place there", no_gpu),
        ("cuda", "cuda", f"one copy between the GPUs (CUDA IPC); else over {host}", few),
        ("sim", "sim", f"as cuda to cuda, in {host}", missing),
    )
    return [{"from": a, "to": b, "how": "" if why else how, "why_not": why} for a, b, how, why in ways]
