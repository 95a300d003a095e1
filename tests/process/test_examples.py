"""The examples, run as a user runs them: what they print, what they leave, and what they say of bad input."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("sklearn")
pytest.importorskip("threadpoolctl")

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
SMALL = ("--epochs", "3", "--hidden", "16", "--batch", "64")
Arrays = dict[str, Any]


def start(name: str, *options: str, cwd: Path) -> subprocess.Popen[str]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("INTERLOCK_")}
    command = [sys.executable, str(EXAMPLES / name), *options]
    return subprocess.Popen(
        command, cwd=cwd, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def run(name: str, *options: str, cwd: Path) -> tuple[int, str, str]:
    process = start(name, *options, cwd=cwd)
    try:
        out, err = process.communicate(timeout=100)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    return process.returncode, out, err


def check_trained(code: int, out: str, err: str, cwd: Path) -> float:
    """What every good run of mlp.py ends with; the accuracy that it tells."""
    assert (code, err) == (0, "")
    lines = out.splitlines()
    found = re.fullmatch(r"test accuracy (\d\.\d{3})", lines[-1])
    assert found, out
    assert re.search(r"^a step on .*\d+\.\d\d ms$", out, re.MULTILINE), out
    assert re.search(r"^a step in one NumPy process, .*\d+\.\d\d ms, \d+\.\d\d x as long$", out, re.MULTILINE), out
    assert re.search(r"^transfer time hidden behind computing +\d+%$", out, re.MULTILINE), out
    assert re.search(r"^epoch \d+/\d+: loss \d\.\d{4}, accuracy \d\.\d{3}$", out, re.MULTILINE), out
    assert {path.name for path in cwd.iterdir()} == {"mlp-timeline.json", "mlp-graph.svg"}
    assert json.loads((cwd / "mlp-timeline.json").read_text())["traceEvents"]
    picture = ElementTree.parse(cwd / "mlp-graph.svg").getroot()
    assert picture.tag.endswith("svg")
    names = [each.text for each in picture.iter() if each.tag.endswith("text")]
    assert names.count("matmul") == 10  # 5 for each of two parts: one step
    assert "fence" not in names
    return float(found[1])


def test_as_it_comes_the_network_learns_the_digits(tmp_path: Path) -> None:
    code, out, err = run("mlp.py", cwd=tmp_path)
    assert check_trained(code, out, err, tmp_path) >= 0.96
    assert re.search(r"^loss curve, beside the same program's in NumPy +equal bit for bit$", out, re.MULTILINE), out


@pytest.mark.parametrize(
    "options",
    [
        ("--devices", "cpu:0,sim:0,sim:1"),
        ("--gate", "coordinator"),
        ("--dtype", "float32", "--lr", "0.05", "--momentum", "0", "--seed", "7"),
    ],
)
def test_devices_gate_and_settings_can_be_chosen(options: tuple[str, ...], tmp_path: Path) -> None:
    code, out, err = run("mlp.py", *SMALL, *options, cwd=tmp_path)
    if "coordinator" in options:  # a slow mode says so
        assert err.startswith("interlock: gate='coordinator': what crosses workers waits for this program in between")
        assert err.count("\n") == 1
        err = ""
    check_trained(code, out, err, tmp_path)


def test_two_programs_at_once_in_one_folder_do_not_disturb_each_other(tmp_path: Path) -> None:
    both = [start("mlp.py", *SMALL, "--seed", seed, cwd=tmp_path) for seed in ("1", "2")]
    told = [process.communicate(timeout=100) for process in both]
    for process, (out, err) in zip(both, told, strict=True):
        check_trained(process.returncode, out, err, tmp_path)
        assert "equal bit for bit" in out


def test_a_file_that_cannot_be_written_is_told_in_one_line_and_the_result_is_not_lost(tmp_path: Path) -> None:
    (tmp_path / "mlp-timeline.json").mkdir()
    code, out, err = run("mlp.py", *SMALL, cwd=tmp_path)
    assert (code, err) == (0, "mlp.py: mlp-timeline.json could not be written: Is a directory\n")
    *_, files, last = out.splitlines()
    assert re.fullmatch(r"timeline and graph +mlp-graph\.svg", files), out
    assert re.fullmatch(r"test accuracy \d\.\d{3}", last), out
    assert {path.name for path in tmp_path.iterdir()} == {"mlp-timeline.json", "mlp-graph.svg"}


def good() -> Arrays:
    rng = np.random.default_rng(0)
    y = np.arange(400) % 3
    return {"x": rng.random((400, 5)) + y[:, None], "y": y}


def with_nan(arrays: Arrays) -> Arrays:
    arrays["x"][7, 2] = np.nan
    return arrays


def with_label(arrays: Arrays, label: int) -> Arrays:
    arrays["y"][9] = label
    return arrays


# What is wrong with the arrays of a file, and what is said of it.
BAD_ARRAYS: dict[str, tuple[Callable[[Arrays], Arrays], str]] = {
    "no y": (lambda a: {"x": a["x"]}, "has no array y: it has x"),
    "neither": (lambda a: {"data": a["x"]}, "has no array x and no array y: it has data"),
    "flat x": (lambda a: a | {"x": a["x"][:, 0]}, "must have the shape (samples, features), not (400,)"),
    "no features": (lambda a: a | {"x": a["x"][:, :0]}, "must have the shape (samples, features), not (400, 0)"),
    "short y": (
        lambda a: a | {"y": a["y"][:-1]},
        "must have the shape (400,), one class for each row of x, not (399,)",
    ),
    "tall y": (lambda a: a | {"y": a["y"][:, None]}, "must have the shape (400,)"),
    "text": (lambda a: a | {"x": a["x"].astype(str)}, "must hold real numbers, not <U"),
    "complex": (lambda a: a | {"x": a["x"] * 1j}, "must hold real numbers, not complex128"),
    "objects": (lambda a: a | {"x": a["x"].astype(object)}, "holds no plain arrays x and y: Object arrays cannot"),
    "nan": (with_nan, "holds nan at [7, 2]: every element must be finite"),
    "negative": (lambda a: with_label(a, -1), "holds -1 at [9]: classes count from 0"),
    "enormous": (lambda a: with_label(a, 10**12), "holds 1000000000000 at [9], but there are only 400 samples"),
    "fractions": (lambda a: a | {"y": a["y"] / 2}, "must hold ints, the class of each sample, not float64"),
    "one class": (lambda a: a | {"y": a["y"] * 0}, "holds a single class"),
    "too few": (
        lambda a: {"x": a["x"][:50], "y": a["y"][:50]},
        "40 samples to train with are too few for a batch of 64",
    ),
}


def refusal(*options: str, cwd: Path) -> str:
    """The one line in which mlp.py refuses to run."""
    code, out, err = run("mlp.py", *options, cwd=cwd)
    assert code == 2, (out, err)
    assert (out, err.count("\n")) == ("", 1), (out, err)
    assert err.startswith("mlp.py: error: ")
    return err


@pytest.mark.parametrize("what", BAD_ARRAYS)
def test_bad_data_is_refused_in_one_line(what: str, tmp_path: Path) -> None:
    change, said = BAD_ARRAYS[what]
    np.savez(tmp_path / "mine.npz", **change(good()))
    assert said in refusal("--data", "mine.npz", "--batch", "64", cwd=tmp_path)


def test_a_missing_or_foreign_file_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "text.npz").write_text("x, y\n1, 2\n")
    (tmp_path / "folder.npz").mkdir()
    np.savez(tmp_path / "whole.npz", **good())
    (tmp_path / "half.npz").write_bytes((tmp_path / "whole.npz").read_bytes()[:-100])
    assert "none.npz cannot be read: No such file" in refusal("--data", "none.npz", cwd=tmp_path)
    assert "folder.npz cannot be read: Is a directory" in refusal("--data", "folder.npz", cwd=tmp_path)
    for name in ("text.npz", "half.npz"):
        assert f"{name} is not an .npz file" in refusal("--data", name, cwd=tmp_path)


def test_ones_own_data_can_be_trained_with(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    np.savez(tmp_path / "mine.npz", **good())
    code, out, err = run("mlp.py", "--data", "../mine.npz", "--batch", "64", "--epochs", "20", cwd=folder)
    assert check_trained(code, out, err, folder) > 0.9


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--devices", "cpu:0"), "name at least two"),
        (("--devices", "cpu:0,gpu:1"), "'gpu:1' is not a device"),
        (("--devices", "cpu:0,cpu:1,cpu:2", "--batch", "63"), "a batch of 63 has no 2 equal parts: use --batch 64"),
        (("--hidden", "0"), "'0' is not a whole number from 1"),
        (("--momentum", "1"), "'1' is not a number from 0 to below 1"),
        (("--lr", "nan"), "'nan' is not a number above 0"),
        (("--gate", "garden"), "invalid choice: 'garden'"),
        (("--address", "ipc:///nobody/listens/here"), "nobody listens at"),
    ],
)
def test_bad_options_are_refused_in_one_line(options: tuple[str, ...], said: str, tmp_path: Path) -> None:
    assert said in refusal(*options, cwd=tmp_path)


def test_a_loss_that_grows_beyond_all_bounds_is_told(tmp_path: Path) -> None:
    code, _, err = run("mlp.py", *SMALL, "--lr", "1e200", cwd=tmp_path)
    assert code == 2
    assert re.search(r"^mlp.py: error: the loss became (nan|inf) in epoch \d: use a smaller --lr", err)


def test_a_keypress_ends_the_training_in_one_line(tmp_path: Path) -> None:
    process = start("mlp.py", "--epochs", "5000", cwd=tmp_path)
    assert process.stdout is not None
    assert process.stdout.readline().startswith("a network of 64-256-10")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (130, "mlp.py: stopped\n")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["mlp.py", "async_toy.py", "overlap.py", "logistic.py"])
def test_help_has_examples(name: str, tmp_path: Path) -> None:
    code, out, err = run(name, "--help", cwd=tmp_path)
    assert (code, err) == (0, "")
    assert f"examples:\n  python examples/{name}" in out


@pytest.mark.parametrize("device", ["cpu:0", "sim:0"])
def test_the_toy_tells_issuing_from_reading(device: str, tmp_path: Path) -> None:
    code, out, err = run("async_toy.py", "--devices", device, "--size", "64", "--repeats", "50", cwd=tmp_path)
    assert (code, err) == (0, "")
    *_, title, head, _, _, last = out.splitlines()
    assert title == f"z = x * y + 2, 50 times on {device}; milliseconds"
    assert head.split() == ["shape", "all", "issued", "z", "read", "NumPy"]
    shape, issued, read, _ = re.fullmatch(r" *(\d+ x \d+) +([\d.]+) +([\d.]+) +([\d.]+)", last).groups()  # type: ignore[union-attr]
    assert shape == "64 x 64"
    assert float(issued) <= float(read)


@pytest.mark.parametrize("devices", ["cpu:0,cpu:1,cpu:2", "cpu:0,sim:0,sim:1"])
def test_the_overlap_example_tells_what_was_reached_beside_the_floor(devices: str, tmp_path: Path) -> None:
    code, out, err = run("overlap.py", "--devices", devices, "--size", "100", "--repeats", "3", cwd=tmp_path)
    assert (code, err) == (0, "")
    home, a, b = devices.split(",")
    lines = [line for line in out.splitlines() if line.startswith(("run", "copy"))]
    assert [re.split("  +", line)[0] for line in lines] == [
        f"run on {a}",
        f"run on {b}",
        f"run on {a} and on {b}",
        f"copy from {a} to {home}",
        f"run on {a} and copy to {home}",
    ]
    numbers = [[float(each) for each in re.split("  +", line)[1:]] for line in lines]
    assert [len(row) for row in numbers] == [1, 1, 3, 1, 3]
    (run_a,), (run_b,), both, (copied,), overlapped = numbers
    assert both[1] == max(run_a, run_b)
    assert both[2] == pytest.approx(run_a + run_b, abs=0.11)
    assert overlapped[1] == max(run_a, copied)


@pytest.mark.parametrize("devices", ["cpu:0,cpu:1", "cpu:0,sim:0,sim:1"])
def test_logistic_regression_is_as_good_as_the_one_of_scikit_learn(devices: str, tmp_path: Path) -> None:
    code, out, err = run("logistic.py", "--devices", devices, "--steps", "200", cwd=tmp_path)
    assert (code, err) == (0, "")
    *_, theirs, ours = out.splitlines()
    assert float(ours.removeprefix("test accuracy ")) >= float(theirs.removeprefix("scikit-learn's accuracy ")) - 0.01


NOTEBOOK = """
import sys, nbformat
from nbclient import NotebookClient
notebook = nbformat.read(sys.argv[1], 4)
assert not any(cell.get("outputs") for cell in notebook.cells), "the notebook is kept without outputs"
NotebookClient(notebook, timeout=100, kernel_name="python3").execute()
print(*[output.get("text", "") for cell in notebook.cells for output in cell.get("outputs", ())])
"""


def test_the_notebook_runs_from_its_first_cell_to_its_last(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", NOTEBOOK, EXAMPLES / "tour.ipynb"],
        cwd=tmp_path, capture_output=True, text=True, timeout=110, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for told in ("issued after", "index 5 is out of bounds", "move one with .to()", "both workers computed", "5 runs"):
        assert told in done.stdout
    assert {each.name for each in tmp_path.iterdir()} == {"tour-timeline.json", "tour-graph.svg"}


@pytest.mark.parametrize("name", ["async_toy.py", "overlap.py", "logistic.py"])
def test_the_small_examples_refuse_what_is_no_device_in_one_line(name: str, tmp_path: Path) -> None:
    code, _, err = run(name, "--devices", "gpu:1", cwd=tmp_path)
    assert code == 2
    assert err.startswith(f"{name}: error: 'gpu:1' is not a device")
    assert err.count("\n") == 1
