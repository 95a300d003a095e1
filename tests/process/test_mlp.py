"""Training over several workers is training in one NumPy process: the same losses, the same parameters, bit for bit."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import interlock as il

pytest.importorskip("sklearn")
threadpoolctl = pytest.importorskip("threadpoolctl")

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
sys.path.insert(0, str(EXAMPLES))
mlp, model, autograd = (importlib.import_module(name) for name in ("mlp", "mlp_model", "mlp_autograd"))
sys.path.remove(str(EXAMPLES))

THREE = "cpu:0,cpu:1,cpu:2"
SIMULATED = "cpu:0,sim:0,sim:1"
EPOCHS = 3
SETTINGS = model.Settings(hidden=48, batch=240, lr=0.2, seed=3)
Step = tuple[list[float], np.ndarray[Any, Any], np.ndarray[Any, Any]]  # losses of the parts, parameters of the layers


@pytest.fixture(scope="module")
def task() -> Any:
    return mlp.split(mlp.digits(), SETTINGS.batch, SETTINGS.seed)


@pytest.fixture
def connected() -> Iterator[Callable[..., Any]]:
    sessions = []

    def connect(devices: str, **options: Any) -> Any:
        sessions.append(il.connect(devices=devices, **options))
        return sessions[-1]

    yield connect
    for session in sessions:
        session.close()


def steps_of(trainer: Any, epochs: int = EPOCHS) -> list[Step]:
    """Losses and parameters after every step, read when all steps are issued."""
    issued = []
    for _ in range(epochs):
        trainer.shuffle()
        for batch in range(trainer.batches):
            losses = trainer.step(batch)
            issued.append((losses, *trainer.learned.parameters))
    return [([float(part) for part in losses], np.asarray(a), np.asarray(b)) for losses, a, b in issued]


def in_one_process(task: Any, settings: Any, devices: int, threads: int) -> list[Step]:
    """The same program, for as many devices, in NumPy with as many BLAS threads as a worker has."""
    with threadpoolctl.threadpool_limits(threads):
        return steps_of(model.Trainer(np, ["cpu"] * devices, task, settings))


def first_difference(ours: list[Step], theirs: list[Step]) -> str | None:
    """Where two runs first differ in any bit."""
    assert len(ours) == len(theirs)
    for n, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        if a[0] != b[0]:
            return f"losses of step {n}: {a[0]} and {b[0]}"
        for name, x, y in (("hidden", a[1], b[1]), ("output", a[2], b[2])):
            if (x.dtype, x.shape, x.tobytes()) != (y.dtype, y.shape, y.tobytes()):
                return f"{name} layer after step {n}: by up to {np.abs(x - y).max()}"
    return None


def relative(x: Any, y: Any) -> float:
    return float(np.abs(np.asarray(x) - y).max() / np.abs(y).max())


@pytest.mark.parametrize("capture", [False, True], ids=["eager", "captured"])
@pytest.mark.parametrize("gate", ["worker", "coordinator"])
@pytest.mark.parametrize("devices", [THREE, SIMULATED])
def test_every_step_is_bit_equal_to_the_same_program_in_one_numpy_process(
    capture: bool, gate: str, devices: str, task: Any, connected: Callable[..., Any]
) -> None:
    session = connected(devices, gate=gate)
    trainer = model.Trainer(il, session.devices, task, SETTINGS, capture)
    ours = steps_of(trainer)
    if capture:
        assert trainer.report().startswith("make_step.<locals>.step: 1 recordings"), trainer.report()
    theirs = in_one_process(task, SETTINGS, 3, mlp.blas_threads(session.devices))
    assert len(ours) == EPOCHS * 5
    assert first_difference(ours, theirs) is None
    assert sum(ours[-1][0]) < 0.6 * sum(ours[0][0])  # it learns


@pytest.mark.parametrize("capture", [False, True], ids=["eager", "captured"])
@pytest.mark.parametrize("seed", [1, 2])
def test_hostile_devices_change_no_bit(seed: int, capture: bool, task: Any, connected: Callable[..., Any]) -> None:
    session = connected("sim:0,sim:1,sim:2", options={"seed": seed})
    ours = steps_of(model.Trainer(il, session.devices, task, SETTINGS, capture), epochs=1)
    theirs = in_one_process(task, SETTINGS, 3, mlp.blas_threads(session.devices))
    assert first_difference(ours, theirs[: len(ours)]) is None


@pytest.mark.parametrize("capture", [False, True], ids=["eager", "captured"])
@pytest.mark.parametrize("devices", ["cpu:0,cpu:1", "cpu:0,cpu:1,cpu:2,cpu:3"])
def test_any_number_of_workers_will_do(devices: str, capture: bool, task: Any, connected: Callable[..., Any]) -> None:
    session = connected(devices)
    ours = steps_of(model.Trainer(il, session.devices, task, SETTINGS, capture))
    theirs = in_one_process(task, SETTINGS, len(session.devices), mlp.blas_threads(session.devices))
    assert first_difference(ours, theirs) is None


@pytest.mark.parametrize("capture", [False, True], ids=["eager", "captured"])
@pytest.mark.parametrize("devices", [THREE, SIMULATED])
def test_with_gradients_by_autograd_it_learns_the_same(
    devices: str, capture: bool, task: Any, connected: Callable[..., Any]
) -> None:
    session = connected(devices)
    ours = steps_of(model.Trainer(il, session.devices, task, SETTINGS, capture, autograd.make_step))
    theirs = in_one_process(task, SETTINGS, 3, mlp.blas_threads(session.devices))
    for mine, other in zip(ours, theirs, strict=True):
        for found, wanted in zip(mine, other, strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-12)


def test_float32_is_bit_equal_as_well(task: Any, connected: Callable[..., Any]) -> None:
    settings = SETTINGS._replace(dtype="float32")
    session = connected(THREE)
    ours = steps_of(model.Trainer(il, session.devices, task, settings))
    theirs = in_one_process(task, settings, 3, mlp.blas_threads(session.devices))
    assert ours[0][1].dtype == np.float32
    assert first_difference(ours, theirs) is None


def test_every_step_is_close_to_the_undivided_batch_but_not_equal_to_it(
    task: Any, connected: Callable[..., Any]
) -> None:
    session = connected(THREE)
    ours = steps_of(model.Trainer(il, session.devices, task, SETTINGS))
    with threadpoolctl.threadpool_limits(mlp.blas_threads(session.devices)):
        whole = steps_of(model.undivided(task, SETTINGS))
    for (losses, hidden, output), ((loss,), hidden_whole, output_whole) in zip(ours, whole, strict=True):
        assert relative(sum(losses), loss) < 1e-10
        assert relative(hidden, hidden_whole) < 1e-10
        assert relative(output, output_whole) < 1e-10
    assert ours[-1][1].tobytes() != whole[-1][1].tobytes()  # or the comparison of bits shows nothing


def test_gradients_are_those_of_finite_differences(task: Any) -> None:
    settings = SETTINGS._replace(hidden=7, batch=30, momentum=0.0, lr=1.0)

    trainer = model.undivided(task, settings)
    trainer.shuffle()
    step, before = model.make_step(np, "cpu", ["cpu"], 30, 0.0), trainer.learned
    trainer.step(0)
    for which, layer in enumerate(before.parameters):
        gradient = layer - trainer.learned.parameters[which]  # as the rate is 1
        numeric = np.empty_like(gradient)
        for place in np.ndindex(layer.shape):
            losses = []
            for nudge in (1e-6, -1e-6):
                layers = model.Layers(*[each.copy() for each in before.parameters])
                layers[which][place] += nudge
                _, (loss,) = step(before._replace(copies=[layers]), trainer.batch(0), 1.0)
                losses.append(float(loss))
            numeric[place] = (losses[0] - losses[1]) / 2e-6
        np.testing.assert_allclose(gradient, numeric, rtol=0, atol=1e-8)


def test_nothing_is_read_on_the_training_path(task: Any, connected: Callable[..., Any]) -> None:
    session = connected(THREE)
    trainer = model.Trainer(il, session.devices, task, SETTINGS)
    with il.trace() as trace:
        trainer.epoch()
    assert {blocked.what for blocked in trace.records.blocks} <= {"synchronize"}  # the end of the trace
    assert not [i for i in trace.records.issued() if i.name == "read"]


def slices(path: Path) -> list[dict[str, Any]]:
    """Of a timeline: what devices did, with the name of the device."""
    events = json.loads(path.read_text())["traceEvents"]
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    return [{**e, "device": names[e["pid"]]} for e in events if e["ph"] == "X" and names[e["pid"]] != "frontend"]


def meet(a: dict[str, Any], b: dict[str, Any]) -> bool:
    return bool(a["ts"] < b["ts"] + b["dur"] and b["ts"] < a["ts"] + a["dur"])


@pytest.mark.parametrize("devices", [THREE, SIMULATED])
def test_the_output_layers_gradient_travels_while_the_hidden_layers_backward_pass_runs(
    devices: str, task: Any, connected: Callable[..., Any], tmp_path: Path
) -> None:
    session = connected(devices)
    trainer = model.Trainer(il, session.devices, task, SETTINGS._replace(hidden=512, batch=720))
    trainer.epoch()
    trainer.shuffle()
    a, b = devices.split(",")[1:]
    side_by_side = hidden = False
    for attempt in range(20):  # a loaded machine may run one process after the other for a while
        path = tmp_path / f"timeline-{attempt}.json"
        with il.trace(path) as trace:
            for _ in range(8):
                trainer.step(0)
        done = slices(path)
        computed = [e for e in done if e["cat"] == "compute"]
        travels = [e for e in done if e["cat"] == "transfer" and e["args"]["function"] == "backward_output"]
        backward = [e for e in computed if e["args"]["function"] == "backward_hidden" and e["name"] != "greater"]
        assert (len(travels), len(backward)) == (16, 32)
        # The next backward pass needs parameters that need this gradient (but for the slope of the ReLU, which is
        # left out): what meets its travel is this step's.
        hidden |= any(meet(x, y) for x in travels for y in backward if y["device"] == x["args"]["source"])
        side_by_side |= any(meet(x, y) for x in computed if x["device"] == a for y in computed if y["device"] == b)
        assert 0 <= trace.overlap().share <= 1
        if hidden and side_by_side:
            break
    assert hidden
    assert side_by_side


@pytest.mark.parametrize("gate", ["worker", "coordinator"])
def test_the_output_layers_gradient_is_issued_before_the_hidden_layers_backward_pass(
    gate: str, task: Any, connected: Callable[..., Any]
) -> None:
    session = connected(THREE, gate=gate)
    trainer = model.Trainer(il, session.devices, task, SETTINGS)
    trainer.shuffle()
    with il.trace() as trace:
        trainer.step(0)
    for lane in (1, 2):
        issued = [(i.name, i.function) for i in trace.records.issued() if i.lane == lane]
        leaves = issued.index(("send", "backward_output"))
        assert {function for _, function in issued[leaves + 1 :] if function == "backward_hidden"}
        assert "backward_hidden" not in {function for _, function in issued[:leaves]}
