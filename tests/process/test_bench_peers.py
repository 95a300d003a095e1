"""The comparison with other libraries: its form, and what becomes of a peer that cannot be had; never figures.

Nothing here needs the network or any of the peers.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PEERS = Path(__file__).parent.parent.parent / "benchmarks" / "peers"
WITH_FAKES = f"""
import runpy
import sys
sys.path.insert(0, {str(PEERS)!r})
from pathlib import Path
from environments import PEERS, Peer
folder = Path("environments")
fakes = {{
    "numpy": PEERS["numpy"],
    "missing": Peer("with_numpy.py", ("./nowhere-1.0-py3-none-any.whl",)),
    "broken": Peer("no_such_script.py"),
    "wrong": Peer(str(Path("wrong.py").absolute())),
}}
sys.exit(runpy.run_path({str(PEERS / "__main__.py")!r})["main"](sys.argv[1:], fakes, folder))
"""
WRONG = """
from contextlib import contextmanager
from serving import Trial, plainly, serve, timed

@contextmanager
def astray():
    yield Trial(timed(lambda n: None), 1.0)

@contextmanager
def unable():
    raise ValueError("no such thing here")
    yield

print("not JSON")
rows = {"Wrong": {"issue": plainly(lambda n: 5e-6), "done": unable, "mlp64": astray}}
serve({"Wrong": "1.0"}, rows)
"""


def run(*command: object, cwd: Path, **options: Any) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, *map(str, command)]
    return subprocess.run(words, cwd=cwd, capture_output=True, text=True, timeout=100, **options)


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


@pytest.fixture(scope="module")
def faked(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, Any]]:
    """What a run with NumPy and three peers that fail, each in its way, prints and writes."""
    folder = tmp_path_factory.mktemp("peers")
    (folder / "wrong.py").write_text(WRONG)
    (folder / "run.py").write_text(WITH_FAKES)
    chosen = [word for name in ("issue", "done", "mlp64") for word in ("--workload", name)]
    done = run("run.py", "--quick", *chosen, "--json", "figures.json", cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout, json.loads((folder / "figures.json").read_text())


def test_a_peer_that_cannot_be_installed_is_reported_with_the_reason(faked: tuple[str, dict[str, Any]]) -> None:
    printed, figures = faked
    assert "nowhere-1.0-py3-none-any.whl" in figures["not_measured"]["missing"]
    assert "- missing: not measured: " in printed


def test_a_peer_that_does_not_start_is_reported_with_its_last_words(faked: tuple[str, dict[str, Any]]) -> None:
    _, figures = faked
    assert figures["not_measured"]["broken"].startswith("it has ended: ")
    assert "no_such_script.py" in figures["not_measured"]["broken"]


def test_a_workload_that_fails_leaves_the_others_their_figures(faked: tuple[str, dict[str, Any]]) -> None:
    printed, figures = faked
    row = figures["rows"]["Wrong"]
    assert row["not_measured"]["done"] == "ValueError: no such thing here"
    assert row["measured"]["issue"]["figure"] == pytest.approx(5)
    assert "- Wrong, done: not measured: ValueError: no such thing here" in printed


def test_a_peer_that_computes_something_else_than_numpy_has_no_figure(faked: tuple[str, dict[str, Any]]) -> None:
    _, figures = faked
    assert "mlp64" not in figures["rows"]["Wrong"]["measured"]
    assert "it computes something else than NumPy" in figures["rows"]["Wrong"]["not_measured"]["mlp64"]


def test_numpys_own_row_is_valid_and_takes_in_its_rounds_beside_the_peers(faked: tuple[str, dict[str, Any]]) -> None:
    _, figures = faked
    numpys = figures["rows"]["NumPy, one process"]["measured"]
    assert set(numpys) == {"issue", "done", "mlp64"}
    assert all(second > 0 for found in numpys.values() for second in found["seconds"])
    assert len(numpys["issue"]["seconds"]) == 2 * len(numpys["done"]["seconds"])


def test_the_table_has_a_line_for_each_row_and_says_what_it_holds_for(faked: tuple[str, dict[str, Any]]) -> None:
    printed, figures = faked
    machine, versions, table, *_ = printed.split("\n\n")
    head, rule, *lines = table.splitlines()
    assert {"CPU", "cores"} < {each.split()[0] for each in machine.split("; ")}
    assert versions.startswith("Python ")
    assert "Wrong 1.0" in versions
    assert [cells(line)[0] for line in lines] == list(figures["rows"])
    assert {len(cells(line)) for line in (head, rule, *lines)} == {4}
    assert cells(lines[-1]) == ["Wrong", "5.00", "-", "-"]


@pytest.mark.usefixtures("runtime")
def test_the_interlock_peer_computes_what_numpy_computes(tmp_path: Path) -> None:
    def answers(script: str, *asked: tuple[str, str]) -> list[dict[str, Any]]:
        questions = [each for what in asked for each in ({"open": what}, {"run": 2}, {"close": True})]
        lines = "".join(json.dumps(each) + "\n" for each in questions)
        done = run(PEERS / script, cwd=tmp_path, input=lines)
        hello, *answers = map(json.loads, done.stdout.splitlines())
        assert set(hello["versions"]) >= {"Python", "NumPy"}
        assert [set(answer) for answer in answers] == [{"check"}, {"seconds"}, {"closed"}] * len(asked), done.stderr
        return answers

    (numpys, *_) = answers("with_numpy.py", ("NumPy, one process", "mlp64"))
    ours = answers("with_interlock.py", ("Interlock", "mlp64"), ("Interlock, captured", "mlp64"), ("Interlock", "read"))
    assert [answer["check"] for answer in ours[:6:3]] == pytest.approx([numpys["check"]] * 2, rel=1e-3)
    assert ours[7]["seconds"] > 0


def test_an_unknown_peer_is_refused_with_those_that_there_are(tmp_path: Path) -> None:
    done = run(PEERS, "--only", "mxnet", cwd=tmp_path)
    assert done.returncode == 2
    assert "'mpi4py'" in done.stderr
    assert not list(tmp_path.iterdir())
