"""The rules of the house that tools can hold: layers, types, style, packaging."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
BIN = Path(sys.executable).parent


def run(*command: object, timeout: float = 300) -> None:
    done = subprocess.run([str(c) for c in command], cwd=ROOT, capture_output=True, text=True, timeout=timeout)
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout[-6000:]}{done.stderr[-3000:]}"


def test_the_layers_hold() -> None:
    run(BIN / "lint-imports")


def test_ruff_is_content() -> None:
    run(BIN / "ruff", "check", ".")


@pytest.mark.timeout(400)
def test_the_package_is_typed_strictly() -> None:
    run("make", "--silent", "build/types")
    run(BIN / "mypy", "-p", "interlock")


def test_a_worker_does_not_import_the_frontend() -> None:
    script = "import sys, interlock.worker.loop, interlock.worker.__main__; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert "interlock.worker.loop" in loaded
    assert not [name for name in loaded if name.startswith(("interlock.coordinator", "interlock.deploy", "cupy"))]


def test_importing_interlock_loads_neither_numpy_nor_zmq() -> None:
    script = "import sys, interlock; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert not {"numpy", "zmq", "msgpack", "cupy"} & set(loaded)


def test_every_folder_with_code_is_packaged_and_marked_as_typed() -> None:
    packages = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"])
    found = {"interlock"}
    for top in ("protocol", "coordinator", "worker", "deploy"):
        for file in (ROOT / top).rglob("*.py"):
            found.add("interlock." + str(file.parent.relative_to(ROOT)).replace("/", "."))
    assert packages == found
    for package in packages:
        folder = ROOT / "/".join(package.split(".")[1:])
        assert (folder / "py.typed").exists(), folder


def test_every_public_name_can_be_had() -> None:
    import interlock as il

    for name in dir(il):
        assert getattr(il, name) is not None or name == "newaxis"
    with pytest.raises(AttributeError, match="no attribute 'zeroes'"):
        _ = il.zeroes


def test_nothing_is_pickled() -> None:
    """Outside the tests no file names pickle but to refuse it."""
    for top in ("protocol", "coordinator", "worker", "deploy"):
        for file in (ROOT / top).rglob("*.py"):
            assert "import pickle" not in file.read_text(), file
