"""`il.save` and `il.load`: what is in the file, when it gets there, and what becomes of it when something fails."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import interlock as il

from .programs import becomes, run_python

HANG_S = 60.0  # generous: a deadline for a hang
BIG = (300, 400)  # of float64: lies in shared memory; its rows do not fill a piece that is written at once


@pytest.fixture(scope="module", params=[("cpu:0,cpu:1", "worker"), ("cpu:0,sim:0", "coordinator")], ids=str)
def session(request: pytest.FixtureRequest) -> Iterator[il.Session]:
    devices, gate = request.param
    with il.connect(devices=devices, gate=gate) as session:
        yield session


def drafts(folder: Path) -> list[str]:
    return [each.name for each in folder.iterdir() if each.name.startswith(".")]


@pytest.mark.parametrize("dtype", ["?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8"])
@pytest.mark.parametrize("shape", [(), (0, 3), (5,), BIG], ids=str)
def test_what_is_saved_is_what_is_loaded(session: il.Session, tmp_path: Path, dtype: str, shape: tuple) -> None:
    host = np.asarray(np.arange(np.prod(shape, dtype=int)).reshape(shape) % 120).astype(dtype)
    here, there = session.devices
    arrays = {"x": il.asarray(host, device=here), "y": {"z": il.asarray(host, device=there)}, "n": host}
    il.save(tmp_path / "a", arrays).wait(HANG_S)
    for found in (load_file(tmp_path / "a"), il.load(tmp_path / "a", there)):
        assert sorted(found) == ["n", "x", "y.z"]
        for each in found.values():
            got = np.asarray(each)
            assert got.dtype == host.dtype
            assert got.shape == host.shape
            assert got.tobytes() == host.tobytes()


@pytest.mark.parametrize("view", ["[::2]", ".T", "[3]", "[1:, ::-2]", "[:, 7]", ".reshape(400, 300).T", "[...]"])
def test_views_and_layouts_are_saved_by_their_elements(session: il.Session, tmp_path: Path, view: str) -> None:
    host = np.arange(120_000.0).reshape(BIG)
    fortran = np.asfortranarray(np.arange(1_500_000.0).reshape(1000, 1500))  # more than a piece, in the other order
    views = [eval(f"x{view}", {"x": x}) for x in (host, il.asarray(host, device=session.devices[1]))]
    il.save(tmp_path / "a", {"v": views[1], "f": il.asarray(fortran), "b": host.astype(">f4")[::3]}).wait(HANG_S)
    found = load_file(tmp_path / "a")
    np.testing.assert_array_equal(found["v"], views[0])
    np.testing.assert_array_equal(found["f"], fortran)
    np.testing.assert_array_equal(found["b"], host[::3])


def test_numbers_metadata_and_names_are_kept(session: il.Session, tmp_path: Path) -> None:
    name = 'a "name", in ümläuts \n and .dots.'
    arrays = {name: 1.5, "i": np.int8(3), "b": True}
    il.save(tmp_path / "a", arrays, metadata={"step": "100", "ü": ""}).wait(HANG_S)
    found, metadata = il.load(tmp_path / "a", with_metadata=True)
    assert metadata == {"step": "100", "ü": ""}
    assert {each: found[each].item() for each in found} == {name: 1.5, "i": 3, "b": True}
    assert found["i"].dtype == np.int8


def test_arrays_of_numpy_are_saved_as_they_are_at_the_call(session: il.Session, tmp_path: Path) -> None:
    host = np.ones(BIG)
    slow = il.ones((600, 600))
    for _ in range(20):
        slow = slow @ slow * 1e-3
    saved = il.save(tmp_path / "a", {"slow": slow, "host": host})
    host[:] = 2
    saved.wait(HANG_S)
    assert (load_file(tmp_path / "a")["host"] == 1).all()


def test_where_arrays_go_is_said_by_a_name_a_mapping_or_a_function(session: il.Session, tmp_path: Path) -> None:
    here, there = session.devices
    save_file({"x": np.ones(3), "y": np.zeros(3)}, tmp_path / "a")
    for device, wanted in [
        (None, (here, here)),
        (str(there), (there, there)),
        ({"x": there, "y": "cpu:0"}, (there, here)),
        (lambda name: there if name == "y" else None, (here, there)),
    ]:
        found = il.load(tmp_path / "a", device)
        assert (found["x"].device, found["y"].device) == wanted
    with pytest.raises(ValueError, match="none for 'y'"):
        il.load(tmp_path / "a", {"x": here})


def test_of_two_saves_to_one_path_the_later_call_wins(session: il.Session, tmp_path: Path) -> None:
    _, there = session.devices
    slow = il.ones((500, 500), device=there)
    for _ in range(20):
        slow = slow @ slow * 1e-3
    (tmp_path / "link").symlink_to("a")
    first = il.save(tmp_path / "a", {"x": slow})
    others = [il.save(tmp_path / "link", {"x": i}) for i in range(5)]
    others[-1].wait(HANG_S)
    assert first.done
    assert load_file(tmp_path / "a")["x"] == 4
    assert (tmp_path / "link").is_symlink()
    assert drafts(tmp_path) == []


def test_a_save_can_be_awaited(session: il.Session, tmp_path: Path) -> None:
    async def program() -> None:
        saved = il.save(tmp_path / "a", {"x": il.ones(BIG)})
        await saved
        assert saved.done
        assert saved.written == saved.nbytes == os.path.getsize(tmp_path / "a")
        await saved  # and once more
        with pytest.raises(IndexError):
            await il.save(tmp_path / "a", {"x": il.arange(3)[il.asarray([7])]})

    asyncio.run(asyncio.wait_for(program(), HANG_S))


def test_a_failed_array_fails_the_save_by_name_and_the_old_file_stays(session: il.Session, tmp_path: Path) -> None:
    _, there = session.devices
    il.save(tmp_path / "a", {"x": il.ones(3)}).wait(HANG_S)
    bad = il.arange(5, device=there)[il.asarray([7], device=there)] * 1.0
    saved = il.save(tmp_path / "a", {"big": il.ones(BIG), "bad": bad, "small": il.ones((), dtype="i1")})
    for _ in range(2):  # and once more
        with pytest.raises(IndexError, match="index 7 is out of bounds") as raised:
            saved.wait(HANG_S)
        assert "as 'bad' was saved to" in "\n".join(raised.value.__notes__)
    assert (load_file(tmp_path / "a")["x"] == 1).all()
    assert drafts(tmp_path) == []
    il.synchronize()  # it has been raised
    assert becomes(lambda: all(counts["lent"] == 0 for counts in session.inspect().values()))


def test_no_room_on_the_disk_is_an_error_with_what_is_needed(session: il.Session, tmp_path: Path) -> None:
    il.save(tmp_path / "a", {"x": 1}).wait(HANG_S)
    x = il.ones(BIG, device=session.devices[1]) + 0
    x.numpy(HANG_S)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))  # as a full disk: a part can be written
    try:
        saved = il.save(tmp_path / "a", {"x": x, "y": x})
        with pytest.raises(
            OSError, match=r"a could not be written: it takes 1,920,\d\d\d bytes and .* are free"
        ) as raised:
            saved.wait(HANG_S)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "test_checkpoints.py" in raised.value.__notes__[0]
    assert load_file(tmp_path / "a")["x"] == 1
    assert drafts(tmp_path) == []
    assert becomes(lambda: all(counts["lent"] == 0 for counts in session.inspect().values()))


def test_what_cannot_be_saved_is_refused_at_the_call(session: il.Session, tmp_path: Path) -> None:
    x = il.ones(3)
    for arrays, error, words in [
        ({"x": x.astype(complex)}, TypeError, "no complex128; save x.astype"),
        ({"x": np.ones(2, "S3")}, TypeError, r"no dtype \|S3"),
        ({"x": [1, 2]}, TypeError, "'x' cannot be saved: it is a list"),
        ({"x": il.random.default_rng(0)}, TypeError, "it is a Generator"),
        ({1: x}, TypeError, "names that are texts, and 1 is a int"),
        ([x], TypeError, "must be a mapping"),
        ({"a": {"b": x}, "a.b": x}, ValueError, "two arrays would be saved as 'a.b'"),
        ({"__metadata__": x}, ValueError, "the format's own name"),
    ]:
        with pytest.raises(error, match=words):
            il.save(tmp_path / "a", arrays)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="metadata"):
        il.save(tmp_path / "a", {"x": x}, metadata={"step": 1})  # type: ignore[dict-item]
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        il.save(tmp_path / "b" / "a", {"x": x})
    with pytest.raises(IsADirectoryError):
        il.save(tmp_path, {"x": x})
    assert list(tmp_path.iterdir()) == []


def test_saving_and_loading_are_refused_while_a_function_is_captured(session: il.Session, tmp_path: Path) -> None:
    save_file({"x": np.ones(3)}, tmp_path / "a")
    path = str(tmp_path / "a")
    saves, loads = il.capture(lambda x: il.save(path, {"x": x})), il.capture(lambda x: il.load(path)["x"] + x)
    for captured, words in [(saves, "arrays are saved"), (loads, "a file is loaded")]:
        with pytest.raises(il.CaptureError, match=words):
            captured(il.ones(3))


def test_what_is_no_whole_file_is_refused(session: il.Session, tmp_path: Path) -> None:
    il.save(tmp_path / "a", {"x": il.ones(BIG)}).wait(HANG_S)
    whole = (tmp_path / "a").read_bytes()
    bf16 = b'{"x":{"dtype":"BF16","shape":[1],"data_offsets":[0,2]}}'
    for data, error, words in [
        (whole[:-1], ValueError, "is no whole safetensors file"),
        (whole[:5], ValueError, "is no whole safetensors file"),
        (b"", ValueError, "is no whole safetensors file"),
        (len(bf16).to_bytes(8, "little") + bf16 + b"ab", TypeError, "'x' in .* is of dtype BF16"),
    ]:
        (tmp_path / "b").write_bytes(data)
        with pytest.raises(error, match=words):
            il.load(tmp_path / "b")
    with pytest.raises(FileNotFoundError):
        il.load(tmp_path / "c")


def test_drafts_of_dead_writers_are_swept_and_those_of_living_ones_are_not(session: il.Session, tmp_path: Path) -> None:
    dead = tmp_path / ".b.0123456789abcdef.interlock-draft"
    dead.write_bytes(b"half")
    other = tmp_path / ".b.interlock-draft"  # not ours
    other.write_bytes(b"")
    pid = session.pids[str(session.devices[1])]
    x = il.ones(BIG, device=session.devices[1])
    os.kill(pid, signal.SIGSTOP)
    try:
        slow = il.save(tmp_path / "a", {"x": x})
        with pytest.raises(TimeoutError, match=rf"waits for 'x' on {session.devices[1]}"):
            slow.wait(0.3)
        assert not dead.exists()
        assert len(drafts(tmp_path)) == 2
        il.save(tmp_path / "c", {"x": 1}).wait(HANG_S)
        assert len(drafts(tmp_path)) == 2
    finally:
        os.kill(pid, signal.SIGCONT)
    slow.wait(HANG_S)
    assert drafts(tmp_path) == [other.name]


def test_the_end_of_a_session_waits_for_saves_and_tells_what_nobody_waited_for(tmp_path: Path) -> None:
    session = il.connect("cpu:0")
    x = il.ones((500, 500))
    for _ in range(20):
        x = x @ x * 1e-3
    il.save(tmp_path / "a", {"x": x})
    il.save(tmp_path / "b", {"x": il.arange(3)[il.asarray([7])]})
    with pytest.warns(UserWarning, match=r"1 failed save that nobody waited for:\n.*b: IndexError"):
        session.close()
    assert load_file(tmp_path / "a")["x"].shape == (500, 500)
    assert os.listdir(tmp_path) == ["a"]


def test_the_end_of_a_session_does_not_wait_for_a_stopped_worker(tmp_path: Path) -> None:
    session = il.connect("cpu:0,cpu:1")
    x = il.ones(BIG, device="cpu:1")
    os.kill(session.pids["cpu:1"], signal.SIGSTOP)
    saved = il.save(tmp_path / "a", {"x": x})
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        session.close()
    assert any("the worker of cpu:1 is stopped, and the array was not saved" in str(each.message) for each in told)
    assert saved.done
    assert os.listdir(tmp_path) == []


def test_a_worker_that_is_killed_fails_the_save_and_the_old_file_stays(tmp_path: Path) -> None:
    with il.connect("cpu:0,cpu:1") as session:
        x, y = il.ones(BIG, device="cpu:1"), il.ones(BIG)
        il.save(tmp_path / "a", {"x": x, "y": y}).wait(HANG_S)
        os.kill(session.pids["cpu:1"], signal.SIGSTOP)
        x += 1
        saved = il.save(tmp_path / "a", {"x": x, "y": y})
        os.kill(session.pids["cpu:1"], signal.SIGKILL)
        with pytest.raises(il.WorkerLost, match="cpu:1") as raised:
            saved.wait(HANG_S)
        assert "as 'x' was saved to" in raised.value.__notes__[-1]
        assert (load_file(tmp_path / "a")["x"] == 1).all()
        il.save(tmp_path / "a", {"y": y}).wait(HANG_S)
    assert os.listdir(tmp_path) == ["a"]


def test_the_end_of_the_program_waits_for_saves_and_without_the_package_only_loading_fails(tmp_path: Path) -> None:
    script = """
import sys
sys.modules["safetensors"] = None
import interlock as il
il.connect("cpu:0")
x = il.ones((500, 500))
for _ in range(20):
    x = x @ x * 1e-3
il.save(sys.argv[1] + "/a", {"x": x})
try:
    il.load(sys.argv[1] + "/a")
except ImportError as error:
    print(error)
"""
    ran = run_python(script, str(tmp_path))
    assert ran.code == 0, ran.err
    assert ran.err == ""
    assert "pip install 'interlock[files]'" in ran.out
    assert load_file(tmp_path / "a")["x"].shape == (500, 500)
