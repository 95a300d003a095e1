"""Faults that other systems had in the field with checkpoints, and with what an error keeps alive.

The names begin with the number of the case in the collection that they come from; the docstring names the report.
"""

from __future__ import annotations

import random
import re
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

import interlock as il

from .programs import kill, program, run

HANG_S = 60.0  # generous: a deadline for a hang
KINDS = ["cpu:0,cpu:1,cpu:2", "cpu:0,sim:0,sim:1"]


@pytest.fixture(scope="module", params=[*((d, "worker") for d in KINDS), (KINDS[0], "coordinator")], ids=str)
def session(request: pytest.FixtureRequest) -> Iterator[il.Session]:
    devices, gate = request.param
    with il.connect(devices=devices, gate=gate) as session:
        yield session


# FL-46: pytorch/pytorch#144657, Lightning-AI/pytorch-lightning#21079 -----------------------------------------------


@pytest.mark.parametrize("captured", [False, True])
def test_fl46_a_save_under_way_does_not_see_what_is_written_afterwards(
    session: il.Session, tmp_path: Path, captured: bool
) -> None:
    """A background save wrote values from a later step."""
    shapes = [(), (3,), (4095,), (4096,), (300, 400), (1000, 500)]
    params = {f"p{i}": il.ones(shape, device=session.devices[i % 3]) for i, shape in enumerate(shapes * 3)}
    params["row"] = params["p4"][1]
    params["column"] = params["p5"][:, 1]
    owned = [p for name, p in params.items() if name.startswith("p")]

    def add(arrays: list[il.Array]) -> None:
        for p in arrays:
            p += 1

    step = il.capture(add) if captured else add
    for value in range(1, 4):
        saved = il.save(tmp_path / "a", params)
        step(owned)
        for p in owned:
            p[...] = p * 1  # and whole overwrites
        saved.wait(HANG_S)
        for name, found in load_file(tmp_path / "a").items():
            assert (found == value).all(), name
    for p in owned:
        assert (p.numpy(HANG_S) == 4).all()
    assert all((p.numpy(HANG_S) == 3).all() for p in il.load(tmp_path / "a", session.devices[2]).values())


@pytest.mark.parametrize("devices", KINDS)
@pytest.mark.parametrize(("count", "side"), [(1, 2400), (9, 800)])
def test_fl46_it_does_not_where_there_is_no_memory_for_a_second_copy(
    tmp_path: Path, devices: str, count: int, side: int
) -> None:
    with il.connect(devices=devices, memory=64 << 20) as session:
        params = {f"p{i}": il.ones((side, side), device=session.devices[1]) for i in range(count)}
        for value in range(1, 4):
            saved = il.save(tmp_path / "a", params)
            for p in params.values():
                p += 1
            saved.wait(HANG_S)
            assert all((found == value).all() for found in load_file(tmp_path / "a").values())
        assert all(p[0, 0].item() == 4 for p in params.values())


_SAVER = """
import sys
import interlock as il
path, devices, gate = sys.argv[1:]
session = il.connect(devices=devices, gate=gate)
params = {f"p{i}": il.ones((200, 300 + i), device=session.devices[i % 3]) for i in range(12)}
il.save(path, params).wait()
print("saved", flush=True)
for step in range(1_000_000):
    saved = il.save(path, params)
    for p in params.values():
        p += 1
    if step % 3 == 0:
        saved.wait()
"""


@pytest.mark.parametrize(("devices", "gate"), [*((d, "worker") for d in KINDS), (KINDS[0], "coordinator")])
def test_fl46_a_program_killed_in_a_save_leaves_a_whole_checkpoint(tmp_path: Path, devices: str, gate: str) -> None:
    """ "Latest" pointed to an unfinished file."""
    seed = random.Random(f"{devices} {gate}")
    path = tmp_path / "latest"
    for _ in range(2):
        with program(_SAVER, str(path), devices, gate) as saver:
            saver.line("saved", HANG_S)
            for _ in range(3):  # look while it is at it: every look finds a whole one
                time.sleep(seed.random() * 0.05)
                assert whole(path) >= 1
            kill(saver.pid)
            saver.ended(HANG_S)
        assert whole(path) >= 1
    assert len(list(tmp_path.iterdir())) <= 3
    with il.connect("cpu:0") as session:
        before = whole(path)
        loaded = il.load(path)
        assert all((p.numpy(HANG_S) == before).all() for p in loaded.values())
        il.save(path, loaded).wait(HANG_S)
        assert session.devices[0] == "cpu:0"
    assert [each.name for each in tmp_path.iterdir()] == ["latest"]  # what the dead left is gone


def whole(path: Path) -> int:
    """The step of a checkpoint, all of whose parameters are of it."""
    found = load_file(path)
    assert sorted(found) == sorted(f"p{i}" for i in range(12))
    values = np.unique(np.concatenate([each.ravel() for each in found.values()]))
    assert len(values) == 1, values
    return int(values[0])


# FL-40: ipython/ipython#11572, pytorch/pytorch#27600 --------------------------------------------------------------

MEMORY = 64 << 20
LARGE, SMALLER = 2300, 2590  # squares of float64 that take 66 % and 84 % of it
NOTEBOOK = """
import gc, sys
from IPython.core.interactiveshell import InteractiveShell
import interlock as il
devices, gate, sync = sys.argv[1:4]
session = il.connect(devices=devices, memory={MEMORY}, gate=gate, sync=sync)
device = session.devices[1]
shell = InteractiveShell.instance(colors="nocolor", xmode="Minimal")
shell.push(dict(il=il, device=device, big=lambda n: il.ones((n, n), device=device), n={LARGE}))
gc.disable()  # what goes, goes by itself
for cell in sys.stdin.read().split("# --\\n"):
    shell.run_cell(cell, store_history=True)
print("types", getattr(sys, "last_type", None))
"""
SETTLED = f"R = big({SMALLER}); print('sum', float(R.sum()))\n"
CELLS = {
    "shown": ("B = big(n); B @ B\n", "del B\n", "OutOfDeviceMemory"),
    "printed": ("B = big(n); print((B @ B).sum())\n", "del B\n", "OutOfDeviceMemory"),
    "never named": ("print((big(n) @ big(n)).sum())\n", "", "OutOfDeviceMemory"),
    "in place": ("B = big(n); B += B @ B; float(B[0, 0])\n", "del B\n", "OutOfDeviceMemory"),
    "in a function": ("def f():\n  B = big(n)\n  return float((B @ B)[0, 0])\nf()\n", "", "OutOfDeviceMemory"),
    "captured": (
        "B = big(n); f = il.capture(lambda x: (x @ x).sum()); print(float(f(B)))\n",
        "del B\n",
        "OutOfDeviceMemory",
    ),
    "refused": ("B = big(n); B @ il.ones(3, device=device)\n", "del B\n", "ValueError"),
    "too early": ("B = big(n); B.numpy(timeout=0)\n", "del B\n", "TimeoutError"),
    "elsewhere": ("B = big(n); B + il.ones(3)\n", "del B\n", "ValueError"),
}


@pytest.mark.parametrize(
    ("devices", "gate", "sync"),
    [("cpu:0,cpu:1", "worker", ""), ("cpu:0,sim:0", "worker", ""), ("cpu:0,cpu:1", "coordinator", "op")],
)
def test_fl40_a_failed_cell_keeps_no_memory_from_the_next(devices: str, gate: str, sync: str) -> None:
    """The traceback of a failed cell kept its arrays alive, so that the retry ran out of memory again."""
    cells = [text for failing, dropping, _ in CELLS.values() for text in (failing, dropping + SETTLED, "del R\n")]
    script = NOTEBOOK.format(MEMORY=MEMORY, LARGE=LARGE)
    ran = run([sys.executable, "-c", script, devices, gate, sync], text="# --\n".join(cells))
    assert ran.code == 0, ran.err
    errors = re.findall(r"^(?:Out\[\d+\]: )?(\w+(?:Error|Memory)): ", ran.out, re.MULTILINE)
    assert errors == [kind for *_, kind in CELLS.values()], ran.out
    assert ran.out.count(f"sum {float(SMALLER**2)}") == len(CELLS), ran.out


def test_fl40_an_error_that_was_raised_again_and_again_does_not_grow(session: il.Session) -> None:
    """Each raising is an exception of its own, without the frames of the one before."""
    bad = il.arange(3, device=session.devices[1])[il.asarray([7], device=session.devices[1])]
    seen = []
    for _ in range(3):
        with pytest.raises(IndexError) as raised:
            bad.numpy(HANG_S)
        seen.append(raised.value)
    assert len({id(each) for each in seen}) == 3
    assert len({len(list(traceback.walk_tb(each.__traceback__))) for each in seen}) == 1
    for each in seen:
        found = [value for value in (*each.args, *vars(each).values()) if isinstance(value, il.Array)]
        assert found == []
        assert each.__context__ is None
        assert each.__cause__ is None
