"""Arrays into a file and back: `save` is a snapshot of the moment of its call, and returns at once.

The reads of all the arrays are issued under one lock at the call, so that what is written to them afterwards does not
show: a worker that has lent memory moves before it writes. A thread of this process writes the values as they come,
from where they lie in the workers' shared memory, so that a save takes no memory here. What the file is like, and how
it gets to its place, is `tensorfile.py`'s.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import functools
import os
import sys
import threading
import time
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final, NamedTuple

import numpy as np

from ..protocol.errors import InterlockError
from ..protocol.specs import Spec
from . import failures, issue, workers
from .answers import in_place
from .array import Array
from .client import lane_of
from .events import Pending, seconds
from .lane import Device
from .session import FORKED, Session
from .sites import Site, describe, user_site
from .tensorfile import METADATA, NAMES, Draft, Entry, header, laid_out

Where = Device | str | None
QUIET_S: Final = 2.0  # a wait that takes longer says on a terminal how far it has come
LOOK_S: Final = 0.2  # between two looks, while it does


class _Read(NamedTuple):
    """An array whose elements have been asked for."""

    session: Session
    pending: Pending
    spec: Spec


class Save:
    """A save under way: made by `save`. `await` it in asyncio, or `wait()`."""

    def __init__(
        self,
        path: Path,
        sources: dict[str, _Read | np.ndarray[Any, Any]],
        entries: list[Entry],
        head: bytes,
        site: Site,
    ) -> None:
        self.path = path
        self.nbytes = len(head) + sum(entry.nbytes for entry in entries)  # of the file
        self.written = 0  # bytes of it, so far
        self._sources = sources
        self._entries = entries
        self._head = head
        self._site = site
        self._pid = os.getpid()
        self._after: Save | None = None  # an earlier save to the same path
        self._awaited = ""  # the array that is being waited for
        self._error: Exception | None = None
        self._told = False  # the error has been raised
        self._finished = threading.Event()
        self._guard = threading.Lock()
        self._callbacks: list[Callable[[], None]] = []

    @property
    def done(self) -> bool:
        """The file is in its place, or the save has failed."""
        return self._finished.is_set()

    def wait(self, timeout: float | None = None) -> None:
        """Wait until the file is in its place, on the disk.

        Args:
            timeout: seconds; None waits as long as it takes.

        Raises:
            TimeoutError: it was not in `timeout` seconds; the save goes on.
            OSError: the file could not be written. The one that was there is as it was.
            Exception: what made one of the arrays fail; a note names it. The file that was there is as it was.
        """
        if os.getpid() != self._pid:
            raise InterlockError(FORKED)
        if not _shown([self], seconds(timeout)):
            raise TimeoutError(f"not saved after {timeout} s: {self._story()}")
        self._raise()

    def __await__(self) -> Generator[Any, None, None]:
        loop = asyncio.get_running_loop()
        arrived = loop.create_future()

        def tell() -> None:
            if not arrived.done():
                arrived.set_result(None)

        def happened() -> None:
            with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
                loop.call_soon_threadsafe(tell)

        with self._guard:
            self._callbacks.append(happened)
        if self.done:
            happened()
        yield from arrived
        self._raise()

    def __repr__(self) -> str:
        state = "done" if self.done and self._error is None else "failed" if self.done else self._story()
        return f"<interlock save to {self.path}: {state}>"

    def _story(self) -> str:
        waits = f", waits for {self._awaited}" if self._awaited else ""
        return f"{_percent(self)} written to {self.path}{waits}"

    def _raise(self) -> None:
        if self._error is not None:
            self._told = True
            raise failures.again(self._error)

    # -- on the thread that writes

    def start(self) -> None:
        threading.Thread(target=self._run, name=f"interlock-save-{self.path.name}", daemon=True).start()

    def _run(self) -> None:
        try:
            if self._after is not None:
                self._after._finished.wait()
                self._after = None
            self._write()
        except OSError as error:
            self._error = self._not_written(error)
        except Exception as error:
            self._error = failures.again(error)  # what was raised has frames, and they the elements
        finally:
            for source in self._sources.values():
                if isinstance(source, _Read):
                    source.session.abandon(source.pending)
            self._sources.clear()
            self._finished.set()
            with self._guard:
                callbacks, self._callbacks = self._callbacks, []
            for callback in callbacks:
                callback()

    def _write(self) -> None:
        offsets, offset = {}, len(self._head)
        for entry in self._entries:
            offsets[entry.name] = offset
            offset += entry.nbytes
        with Draft(self.path) as draft:
            draft.write(self._head)
            for name in self._as_they_come():
                draft.go_to(offsets[name])
                source = self._sources[name]
                if isinstance(source, _Read):
                    self._write_read(draft, name, source)
                else:
                    self._piecewise(draft, source)
                del self._sources[name], source
            draft.put_in_place()
            self.written = draft.written

    def _as_they_come(self) -> Iterator[str]:
        """The names of the arrays, each when its elements are here: a worker short of memory may wait for them."""
        came: SimpleQueue[str] = SimpleQueue()
        reads = {name: each for name, each in self._sources.items() if isinstance(each, _Read)}
        for name, each in reads.items():
            each.pending.callback = functools.partial(came.put, name)
        yield from [name for name in self._sources if name not in reads]
        for name in [name for name, each in reads.items() if each.pending.done]:  # these may be told of again
            del reads[name]
            yield name
        while reads:
            name, each = next(iter(reads.items()))
            self._awaited = f"{name!r} on {each.session.lanes[each.pending.lane].device}"
            name = came.get()
            self._awaited = ""
            if reads.pop(name, None) is not None:
                yield name

    def _write_read(self, draft: Draft, name: str, read: _Read) -> None:
        session, pending, spec = read
        try:
            with in_place(session, pending, spec) as elements:
                self._piecewise(draft, elements)
        except OSError:
            raise
        except Exception as error:
            error.add_note(f"as {name!r} was saved to {self.path}, where all is as it was")
            raise

    def _piecewise(self, draft: Draft, elements: np.ndarray[Any, Any]) -> None:
        draft.write_array(elements)
        self.written = draft.written

    def _not_written(self, error: OSError) -> OSError:
        room = ""
        with contextlib.suppress(OSError):
            found = os.statvfs(self.path.parent)
            room = f" and {found.f_bavail * found.f_frsize:,} are free there"
        made = OSError(
            error.errno,
            f"{error.strerror or error}: {self.path} could not be written: it takes {self.nbytes:,} bytes{room}; "
            f"what was there before is as it was",
        )
        made.add_note(f"saved at {describe(self._site)}")
        return made

    # -- at the end of a session

    def hopeless(self) -> str:
        """Why what is waited for will not come, though nothing has been lost; "" if it may."""
        for source in [each for each in list(self._sources.values()) if isinstance(each, _Read)]:
            if not source.pending.done:
                worker = source.session.lanes[source.pending.lane].worker
                with contextlib.suppress(OSError), open(f"/proc/{worker.identity.pid}/stat", "rb") as file:
                    if file.read().rpartition(b")")[2].split()[0] in (b"T", b"t"):
                        return f"the worker of {worker.device} is stopped"
        return ""

    def give_up(self, reason: str) -> None:
        """Wait for no value any more; what is there is written no further than the next that is missing."""
        for source in [each for each in list(self._sources.values()) if isinstance(each, _Read)]:
            if not source.pending.done:
                source.session.abandon(source.pending)
                source.pending.happened(InterlockError(f"{reason}, and the array was not saved"))


_last: dict[Path, Save] = {}  # by path: the latest save under way
_turn = threading.Lock()  # of `_last`


def save(path: str | os.PathLike[str], arrays: Mapping[str, Any], *, metadata: Mapping[str, str] | None = None) -> Save:
    """Write arrays to a safetensors file, in the background; the file has the values that they have at this call.

    What is written to the arrays afterwards does not show. The file appears under its name when it is whole and on
    the disk; until then, and if anything goes wrong or the program is killed, what was there before stays. Of two
    saves to one path the later call wins. `session.close()` and the program's end wait for saves under way. The
    file is written from the workers' memory: an array that is changed meanwhile moves, and takes memory twice on
    its worker until it is written. Where there is none for that, the change waits some seconds for the file.

        saved = il.save("model.safetensors", {"w": w, "layer": {"b": b}}, metadata={"step": "100"})
        ...                            # go on training
        saved.wait()                   # or `await saved`, or leave it

    Args:
        path: of the file. Its folder must exist; a symbolic link is followed.
        arrays: by name: Interlock's arrays, on any devices, NumPy's, and numbers. A mapping inside gives its arrays
            the names "outer.inner".
        metadata: texts to keep in the file.

    Returns:
        A handle with `wait(timeout=None)`, `done`, `written` and `nbytes`, which can be awaited. An error that
        nobody waited for is warned of when the session closes.

    Raises:
        TypeError: a name or metadata that is no text; something that is no array of numbers; complex128, which the
            format lacks.
        ValueError: a name twice.
        OSError: there is no such folder, or the path is a folder.
        CaptureError: inside `il.capture`.
    """
    site = user_site(2)
    place = _place(path)
    found: dict[str, Any] = {}
    _flatten("", arrays, found)
    _check_metadata(metadata)
    sessions = dict.fromkeys(each._lane.session for each in found.values() if isinstance(each, Array))
    for session in sessions:
        session.check_open()
        session.refuse_in_tape("arrays are saved")
    entries = laid_out(_entry(name, each) for name, each in found.items())
    head = header(entries, metadata)
    sources: dict[str, Any] = {name: np.array(each) for name, each in found.items() if not isinstance(each, Array)}
    for session in sessions:
        mine = {n: a for n, a in found.items() if isinstance(a, Array) and a._lane.session is session}
        asked = session.ask_all([(a._lane, a._ref) for a in mine.values()], site)
        sources |= {n: _Read(session, p, a._spec) for (n, a), p in zip(mine.items(), asked, strict=True)}
    made = Save(place, sources, entries, head, site)
    with _turn:
        for other in [key for key, each in _last.items() if each.done]:
            del _last[other]
        made._after = _last.get(place)
        _last[place] = made
        for session in sessions:
            session.saves = [each for each in session.saves if not each.done or _unread(each)] + [made]
    made.start()
    return made


def _place(path: str | os.PathLike[str]) -> Path:
    place = Path(os.path.realpath(os.fsdecode(path)))
    if place.is_dir():
        raise IsADirectoryError(f"{place} is a folder: name a file to save to")
    if not place.parent.is_dir():
        raise FileNotFoundError(f"there is no folder {place.parent} to save {place.name} in: make it first")
    return place


def _flatten(prefix: str, arrays: Any, found: dict[str, Any]) -> None:
    if not isinstance(arrays, Mapping):
        raise TypeError(f"what is saved must be a mapping of names to arrays, not a {type(arrays).__name__}")
    for key, value in arrays.items():
        if not isinstance(key, str):
            raise TypeError(f"arrays are saved under names that are texts, and {key!r} is a {type(key).__name__}")
        name = prefix + key
        if isinstance(value, Mapping):
            _flatten(f"{name}.", value, found)
        elif name in found:
            raise ValueError(f"two arrays would be saved as {name!r}")
        elif name == METADATA:
            raise ValueError(f"no array can be saved as {METADATA!r}: it is the format's own name")
        elif isinstance(value, (Array, np.ndarray, np.generic, bool, int, float, complex)):
            found[name] = value if isinstance(value, (Array, np.ndarray)) else np.asarray(value)
        else:
            raise TypeError(f"{name!r} cannot be saved: it is a {type(value).__name__}, no array and no number")


def _entry(name: str, array: Any) -> Entry:
    dtype = array.dtype.newbyteorder("=")
    if dtype == np.complex128:
        raise TypeError(
            f"{name!r} cannot be saved: safetensors has no complex128; save {name}.astype('complex64'), or the parts, "
            f"as in {name}.numpy().view('float64'), and view them as complex128 when they are loaded"
        )
    if dtype not in NAMES:
        raise TypeError(f"{name!r} cannot be saved: safetensors has no dtype {dtype}")
    return Entry(name, dtype, tuple(array.shape))


def _check_metadata(metadata: Mapping[str, str] | None) -> None:
    for key, value in (metadata or {}).items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise TypeError(f"metadata must be texts by text, and {key!r}: {value!r} is not")


# -- waiting


def _percent(save: Save) -> str:
    return f"{100 * save.written // max(save.nbytes, 1)} % of {save.nbytes / 1e6:,.1f} MB"


def _shown(saves: list[Save], timeout: float | None, look: Callable[[list[Save]], None] = lambda left: None) -> bool:
    """Until these are done (True) or the time is over; on a terminal it says how far they are if it takes long."""
    started, last = time.monotonic(), ""
    try:
        while left := [each for each in saves if not each.done]:
            now = time.monotonic()
            if timeout is not None and now - started >= timeout:
                return False
            left[0]._finished.wait(LOOK_S if timeout is None else min(LOOK_S, timeout - (now - started)))
            look(left)
            if now - started > QUIET_S and sys.stderr.isatty():
                last = f"interlock: saving: {left[0]._story()}"
                print(f"\r{last}\x1b[K", end="", file=sys.stderr, flush=True)
        return True
    finally:
        if last:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def finish(saves: Iterable[Save]) -> None:
    """Wait for saves under way, but not for what a stopped worker holds. An interrupt gives them up."""
    saves = [each for each in saves if each._pid == os.getpid()]
    stopped: dict[Save, float] = {}

    def look(left: list[Save]) -> None:
        now = time.monotonic()
        for each in left:
            reason = each.hopeless()
            if not reason:
                stopped.pop(each, None)
            elif now - stopped.setdefault(each, now) > workers.STOP_S:
                each.give_up(reason)

    try:
        _shown(saves, None, look)
    except BaseException:
        for each in saves:
            each.give_up("the wait for it was interrupted")
        raise


def _unread(save: Save) -> bool:
    return save._error is not None and not save._told


def report(saves: Iterable[Save]) -> None:
    """Warn of failed saves that nobody waited for, once. Called by what the user calls."""
    failed = [each for each in saves if each.done and _unread(each)]
    for each in failed:
        each._told = True
    if failed:
        lines = [f"{len(failed)} failed save{'s' if len(failed) > 1 else ''} that nobody waited for:"]
        lines += [
            "\n".join([f"{each.path}: {type(each._error).__name__}: {each._error}", *_notes(each._error)[:1]])
            for each in failed[:5]
        ]
        warnings.warn("\n".join(lines), stacklevel=3)


def _notes(error: Exception | None) -> list[str]:
    return list(getattr(error, "__notes__", ()))


def _at_exit() -> None:
    """Saves of no session; those of sessions are done first as well, as they are closed right after this."""
    saves = list(_last.values())
    finish(saves)
    report([each for each in saves if each._pid == os.getpid()])


atexit.register(_at_exit)


# -- loading


def load(
    path: str | os.PathLike[str],
    device: Where | Mapping[str, Where] | Callable[[str], Where] = None,
    *,
    with_metadata: bool = False,
) -> Any:
    """The arrays of a safetensors file, on devices, by name.

    Needs the package `safetensors` (`pip install 'interlock[files]'`). The file is mapped, and copied array by array
    to where the workers read it.

    Args:
        path: of the file.
        device: for all arrays; or by name, in a mapping or as a function. None is the first device of the session.
        with_metadata: return (arrays, metadata).

    Raises:
        ImportError: the package is missing.
        ValueError: it is no safetensors file, or part of one; the mapping lacks a name.
        TypeError: an array has a dtype that NumPy lacks, such as bfloat16; nothing is loaded.
        OSError: it cannot be read.
    """
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError as error:
        raise ImportError(
            "il.load needs the package safetensors: pip install 'interlock[files]', or pip install safetensors"
        ) from error
    site = user_site(2)
    place = os.fsdecode(path)
    known = set(NAMES.values())
    try:
        with safe_open(place, framework="np") as file:
            names = list(file.keys())
            for name in names:
                dtype = file.get_slice(name).get_dtype()
                if dtype not in known:
                    raise TypeError(
                        f"{name!r} in {place} is of dtype {dtype}, which NumPy lacks: convert it to F32 first, "
                        f"with the program that wrote it"
                    )
            lanes = {name: lane_of(_chosen(device, name)) for name in names}
            for session in dict.fromkeys(lane.session for lane in lanes.values()):
                session.refuse_in_tape("a file is loaded")
            loaded = {name: issue.upload(file.get_tensor(name), lanes[name], Array, site) for name in names}
            metadata = dict(file.metadata() or {})
    except SafetensorError as error:
        raise ValueError(f"{place} is no whole safetensors file: {error}") from error
    return (loaded, metadata) if with_metadata else loaded


def _chosen(device: Any, name: str) -> Any:
    if isinstance(device, Mapping):
        if name not in device:
            raise ValueError(f"the mapping of devices has none for {name!r}, which is in the file")
        return device[name]
    return device(name) if callable(device) else device
