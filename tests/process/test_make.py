"""The Makefile's choice of an interpreter, tried where nothing is installed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from .programs import Ran, run

ROOT = Path(__file__).parent.parent.parent
pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    return tmp_path


def make(folder: Path, *words: str) -> Ran:
    command = ["env", "-u", "PYTHON", "make", "--no-print-directory", "-C", str(folder), *words]
    return run(command, env={"MAKEFLAGS": "", "MAKELEVEL": ""})  # this may run under a make of its own


def with_venv(folder: Path) -> Path:
    (folder / ".venv" / "bin").mkdir(parents=True)
    for name in ("bin/python", "with-examples"):
        (folder / ".venv" / name).touch()
    return folder


def test_an_interpreter_that_will_not_do_is_refused_before_anything_is_made(folder: Path) -> None:
    done = make(folder, "train", "PYTHON=false")  # it fails, whatever it is asked, as one that is too old does
    assert done.code == 2
    assert done.err.startswith("Interlock needs Python 3.11 or newer with venv; false will not do: install one")
    assert not (folder / ".venv").exists()


def test_an_interpreter_that_comes_too_late_is_told_so_in_one_line(folder: Path) -> None:
    note = ".venv is there and stays: PYTHON=python3 is not used; `make clean` first makes it anew\n"
    train = ".venv/bin/python examples/mlp.py\n"
    assert make(with_venv(folder), "-n", "train").out == train
    assert make(folder, "-n", "train", "PYTHON=python3").out == note + train
    assert note not in make(folder, "-n", "clean", "PYTHON=python3").out
