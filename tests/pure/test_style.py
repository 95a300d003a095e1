"""The rules of the house that tools can hold: layers, types, style, packaging."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

TOPS = ("protocol", "coordinator", "worker", "deploy")
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


# Where a module is imported by a name that is not written there; each takes it from a table, or from a class at hand.
IMPORTS_BY_NAME = {
    "__init__.py": 1,  # the public names
    "worker/kernels.py": 1,  # the module that an array's own class is of
    "worker/devices/__init__.py": 2,  # the kinds of devices
}
NEVER_IMPORTED = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "shelve", "ctypes", "runpy", "code", "codeop"}
NEVER_CALLED = {"eval", "exec", "compile", "__import__", "breakpoint", "execfile"}


def test_no_code_is_run_that_somebody_else_names() -> None:
    """No pickle, no eval, no exec, no foreign functions; no import of a name that comes from elsewhere."""
    by_name: dict[str, int] = {}
    for file in [ROOT / "__init__.py", *(f for top in TOPS for f in (ROOT / top).rglob("*.py"))]:
        here = str(file.relative_to(ROOT))
        for node in ast.walk(ast.parse(file.read_text())):
            match node:
                case ast.Import(names=names):
                    assert not NEVER_IMPORTED & {name.name.partition(".")[0] for name in names}, here
                case ast.ImportFrom(module=str(module), level=0):
                    assert module.partition(".")[0] not in NEVER_IMPORTED, here
                case ast.Call(func=ast.Name(id=name), args=args) if name in NEVER_CALLED:
                    raise AssertionError(f"{here}:{node.lineno} calls {name}")
                case ast.Call(func=ast.Name(id="import_module") | ast.Attribute(attr="import_module"), args=args):
                    by_name[here] = by_name.get(here, 0) + (not isinstance(args[0], ast.Constant))
                case ast.Call(func=ast.Attribute(value=ast.Name(id="marshal"), attr=attr)):
                    assert attr == "dumps", here  # a key for a table; nothing is loaded
                case ast.Call(keywords=words) if any(word.arg == "allow_pickle" for word in words):
                    (allowed,) = [word.value for word in words if word.arg == "allow_pickle"]
                    assert isinstance(allowed, ast.Constant), here
                    assert allowed.value is False, here
    assert {file: count for file, count in by_name.items() if count} == IMPORTS_BY_NAME
