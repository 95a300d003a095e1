"""The trace opens in a viewer as meant, and the overlap is what a slow count gives."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from interlock.coordinator.timeline import (
    BEFORE,
    Blocked,
    Issued,
    Moved,
    Overlap,
    Ran,
    chrome_trace,
    overlap,
    write_trace,
)
from interlock.protocol.whole import write_whole

DEVICES = ["cpu:0", "cpu:1", "cuda:0"]
Records = tuple[list[Issued], list[Ran], list[Moved], list[Blocked]]
Event = dict[str, Any]


def an_issue(lane: int, n: int, kind: str = "compute", at: int = 0, ticket: int | None = None, **more: Any) -> Issued:
    values: dict[str, Any] = {"name": kind, "file": "train.py", "line": 7, "function": "step", "detail": "float64 (2,)"}
    values |= {"reads": (), "writes": ()} | more
    return Issued(lane=lane, n=n, kind=kind, issued_ns=at, ticket=ticket, **values)


# -- A viewer, as far as it decides what is shown. It takes whole nanoseconds, and cuts. --


class Viewer:
    """Reads a trace as Perfetto does: in file order; an arrow belongs to the last slice begun on its track."""

    def __init__(self, trace: dict[str, object]) -> None:
        self.slices: dict[tuple[int, int], list[Event]] = defaultdict(list)
        self.arrows: dict[object, tuple[Event, Event]] = {}
        self.names: dict[object, str] = {}
        tails: dict[object, Event] = {}
        last_ts = -1.0
        events: Any = json.loads(json.dumps(trace, allow_nan=False))["traceEvents"]
        for event in events:
            track = (event["pid"], event.get("tid"))
            if event["ph"] == "M":
                if event["name"] in ("process_name", "thread_name"):
                    self.names[track if "tid" in event else event["pid"]] = event["args"]["name"]
                continue
            assert isinstance(event["ts"], float)
            assert event["ts"] >= last_ts, "events must be in order of time"
            last_ts = event["ts"]
            start = int(event["ts"] * 1000.0)
            if event["ph"] == "X":
                event["start"], event["end"] = start, start + int(event["dur"] * 1000.0)
                self.slices[track].append(event)
                continue
            slice_ = self.slices[track][-1]
            assert slice_["start"] <= start < slice_["end"], "an arrow must lie in its slice"
            if event["ph"] == "s":
                tails[event["id"]] = slice_
            else:
                assert event["ph"] == "f"
                assert event["bp"] == "e"
                self.arrows[event["id"]] = (tails.pop(event["id"]), slice_)
        assert not tails

    def all_slices(self) -> list[Event]:
        return [event for track in self.slices.values() for event in track]

    def on(self, process: str, thread: str) -> list[Event]:
        wanted = (process, thread)
        return [
            e for track, es in self.slices.items() if (self.names[track[0]], self.names[track]) == wanted for e in es
        ]


def told(trace: dict[str, Any], what: str) -> object:
    return trace["otherData"][what]


def check(trace: dict[str, object]) -> Viewer:
    """What must hold of any trace."""
    viewer = Viewer(trace)
    for track, slices in viewer.slices.items():
        assert track[0] in viewer.names
        assert track in viewer.names
        open_until: list[int] = []
        for event in slices:
            assert event["start"] < event["end"]
            while open_until and open_until[-1] <= event["start"]:
                open_until.pop()
            assert not open_until or event["end"] <= open_until[-1], "slices of a track nest or are apart"
            open_until.append(event["end"])
    for event in viewer.all_slices():
        assert event["name"]
        assert event["cat"]
        assert event["args"]["line"]
    return viewer


times = st.integers(10**15, 10**15 + 400)  # nanoseconds, as big as a clock gives after days
lanes = st.integers(0, 2)


@st.composite
def any_records(draw: st.DrawFn) -> Records:
    """Records that need not make sense together: slices cross, ends are missing, clocks run backwards."""
    issued, numbers = [], [0, 0, 0]
    for ticket in range(draw(st.integers(0, 6))):
        for kind in draw(st.sampled_from([("compute",), ("send", "recv"), ("recv", "send"), ("recv",), ("read",)])):
            lane = draw(lanes)
            numbers[lane] += 1
            ends = ticket if kind in ("send", "recv") else None
            issued.append(an_issue(lane, numbers[lane], kind, draw(times), ends))
    keys = sorted({(i.lane, i.n) for i in issued} | {(0, 99)})
    ran = []
    for lane, n in draw(st.lists(st.sampled_from(keys), unique=True)):
        ran.append(Ran(lane, n, draw(st.sampled_from(["compute", "h2d", "peer"])), draw(times), draw(times)))
    moved = draw(st.lists(st.builds(Moved, st.integers(0, 8), lanes, lanes, st.just(80), times, times, st.booleans())))
    waits = st.builds(Blocked, st.sampled_from(["read", "credit"]), st.just("a.py"), st.just(3), times, times)
    return issued, ran, moved, draw(st.lists(waits, max_size=4))


@settings(max_examples=100, deadline=None)
@given(any_records())
def test_any_records_make_a_trace_that_a_viewer_takes_whole(records: Records) -> None:
    issued, ran, moved, blocked = records
    trace = chrome_trace(DEVICES, *records)
    viewer = check(trace)
    assert len(viewer.all_slices()) == len(issued) + len(ran) + len(moved) + len(blocked)
    done = {(r.lane, r.n): r for r in ran}
    ends: dict[object, dict[str, Ran]] = defaultdict(dict)
    for i in issued:
        if i.ticket is not None and (i.lane, i.n) in done:
            ends[i.ticket][i.kind] = done[i.lane, i.n]
    both = {ticket: e for ticket, e in ends.items() if len(e) == 2}
    past = {t for t, e in both.items() if max(e["recv"].end_ns, e["recv"].start_ns + 1) <= e["send"].start_ns}
    assert set(viewer.arrows) == set(both) - past
    assert told(trace, "transfers_into_the_past") == len(past)
    for tail, head in viewer.arrows.values():
        assert (tail["cat"], head["cat"]) == ("send", "recv")


def pipeline(count: int = 100, skew_ns: int = 0) -> Records:
    """A chain of dependent operations that goes round three devices; device 2's clock may be off."""
    issued: list[Issued] = []
    ran: list[Ran] = []
    moved: list[Moved] = []
    numbers, clock, held = [0, 0, 0], 5_000_000, 0

    def do(lane: int, kind: str, reads: tuple[int, ...], writes: tuple[int, ...], ticket: int | None, ns: int) -> None:
        nonlocal clock
        numbers[lane] += 1
        n = numbers[lane]
        issued.append(an_issue(lane, n, kind, 1_000 * len(issued), ticket, reads=reads, writes=writes))
        off = skew_ns if lane == 2 else 0
        ran.append(Ran(lane, n, "compute" if kind == "compute" else "peer", clock + off, clock + ns + off))
        clock += ns + 500

    for k in range(count):
        lane = k % 3
        do(lane, "compute", (held,) if k else (), (held + 1,), None, 40_000)
        do(lane, "send", (held + 1,), (), k, 2_000)
        sent = clock - 500
        do((lane + 1) % 3, "recv", (), (held + 2,), k, 3_000)
        moved.append(Moved(k, lane, (lane + 1) % 3, 800, sent, clock - 500, False))
        held += 2
    return issued, ran, moved, [Blocked("read", "train.py", 9, 400_000, clock)]


def too_early(viewer: Viewer, tolerance_ns: int) -> list[str]:
    """Slices that began before what they read, or what was sent to them, was there; by the trace alone."""
    made: dict[int, int] = {}
    ran = [s for s in viewer.all_slices() if s["cat"] in ("compute", "send", "recv")]
    for s in ran:
        for buffer in s["args"]["writes"]:
            made[buffer] = s["end"]
    waits = [(s, made[buffer]) for s in ran for buffer in s["args"]["reads"]]
    waits += [(head, tail["start"]) for tail, head in viewer.arrows.values()]
    return [f"{s['name']} {s['args']['n']}" for s, ready in waits if s["start"] < ready - tolerance_ns]


def test_in_a_chain_over_three_devices_nothing_starts_before_its_inputs_end() -> None:
    trace = chrome_trace(DEVICES, *pipeline(100))
    viewer = check(trace)
    assert len(viewer.arrows) == 100
    assert told(trace, "transfers_into_the_past") == 0
    assert too_early(viewer, 0) == []


def test_a_clock_that_was_not_aligned_shows() -> None:
    trace = chrome_trace(DEVICES, *pipeline(100, skew_ns=-5_000_000))
    assert len(check(trace).arrows) == 67
    assert told(trace, "transfers_into_the_past") == 33


def test_an_operation_before_its_inputs_shows() -> None:
    issued, ran, moved, blocked = pipeline(9)
    ran[3] = ran[3]._replace(start_ns=ran[2].end_ns - 2_000_000)
    assert too_early(check(chrome_trace(DEVICES, issued, ran, moved, blocked)), 1_000_000) == ["compute 2"]


def test_each_device_has_a_process_with_its_tracks() -> None:
    viewer = check(chrome_trace(DEVICES, *pipeline(6)))
    names = set(viewer.names.values())
    assert {"frontend", "cpu:0", "cpu:1", "cuda:0", "issue", "waiting", "compute", "transfers in", "copy peer"} == names
    transfer = viewer.on("cpu:1", "transfers in")[0]
    assert transfer["name"] == "from cpu:0"
    assert transfer["args"]["source"] == "cpu:0"
    assert transfer["args"]["target"] == "cpu:1"
    assert transfer["args"]["nbytes"] == 800
    assert viewer.on("frontend", "waiting")[0]["args"] == {"line": "train.py:9", "reason": "read"}


def test_a_slice_tells_the_line_the_function_and_the_buffers() -> None:
    issue = an_issue(
        1, 4, name="add", file="net.py", line=12, function="loss", reads=(3, 5), writes=(6,), detail="f (2,)"
    )
    viewer = check(chrome_trace(DEVICES, [issue], [Ran(1, 4, "compute", 10, 20)], [], []))
    (found,) = viewer.on("cpu:1", "compute")
    assert found["name"] == "add"
    assert found["args"] == {
        "line": "net.py:12",
        "function": "loss",
        "n": 4,
        "detail": "f (2,)",
        "reads": [3, 5],
        "writes": [6],
    }


def test_issues_in_close_order_do_not_lie_on_each_other() -> None:
    viewer = check(chrome_trace(DEVICES, [an_issue(0, k + 1, at=k * 300) for k in range(5)], [], [], []))
    assert [(e["start"], e["end"]) for e in viewer.on("frontend", "issue")] == [
        (0, 300), (300, 600), (600, 900), (900, 1200), (1200, 2200),
    ]  # fmt: skip


def test_a_viewer_that_cuts_gets_back_each_nanosecond() -> None:
    starts = [0, *range(1001, 9_000, 2)]  # 1.001 * 1000.0 is less than 1001
    ran = [Ran(0, n, "compute", 10**15 + start, 10**15 + start + 2) for n, start in enumerate(starts)]
    viewer = check(chrome_trace(DEVICES, [], ran, [], []))
    assert [(e["start"], e["end"]) for e in viewer.on("cpu:0", "compute")] == [(s, s + 2) for s in starts]


def test_transfers_that_cross_in_time_get_a_track_each() -> None:
    moved = [Moved(1, 0, 1, 8, 0, 100, False), Moved(2, 2, 1, 8, 50, 150, False), Moved(3, 2, 1, 8, 100, 200, True)]
    viewer = check(chrome_trace(DEVICES, [], [], moved, []))
    assert [e["args"]["ticket"] for e in viewer.on("cpu:1", "transfers in")] == [1, 3]
    assert [e["args"]["ticket"] for e in viewer.on("cpu:1", "transfers in (2)")] == [2]


def test_what_was_issued_before_the_trace_says_so() -> None:
    viewer = check(chrome_trace(DEVICES, [], [Ran(0, 41, "compute", 5, 9)], [Moved(3, 1, 0, 8, 1, 5, True)], []))
    assert {e["args"]["line"] for e in viewer.all_slices()} == {BEFORE}


def test_nothing_recorded_is_a_trace_too() -> None:
    assert check(chrome_trace(DEVICES, [], [], [], [])).all_slices() == []


def test_the_file_holds_the_trace(tmp_path: Path) -> None:
    write_trace(tmp_path / "run.json", DEVICES, *pipeline(3))
    assert json.loads((tmp_path / "run.json").read_text()) == chrome_trace(DEVICES, *pipeline(3))
    assert [p.name for p in tmp_path.iterdir()] == ["run.json"]


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("old")
    with pytest.raises(UnicodeEncodeError):
        write_whole(tmp_path / "run.json", "new, half of it \ud800")
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("run.json", "old")]


# -- Overlap --


def test_three_operations_computed_by_hand() -> None:
    # device 0 computes 0-100 and 150-250; device 1 computes 80-160. One transfer 90-170, one 240-300.
    ran = [Ran(0, 1, "compute", 0, 100), Ran(0, 2, "compute", 150, 250), Ran(1, 1, "compute", 80, 160)]
    moved = [Moved(1, 0, 1, 8, 90, 170, False), Moved(2, 1, 0, 8, 240, 300, False)]
    assert overlap(DEVICES, ran, moved) == Overlap(
        transfer_ns=140, hidden_ns=90, share=90 / 140, compute_ns=(200, 80, 0), both_ns=30
    )


def test_no_transfers_are_not_hidden_transfers() -> None:
    assert overlap(DEVICES, [Ran(0, 1, "compute", 0, 100)], []).share == 0.0


def test_a_transfer_does_not_hide_behind_its_own_copy() -> None:
    ran = [Ran(0, 1, "compute", 0, 50), Ran(1, 1, "compute", 50, 100), Ran(0, 2, "h2d", 0, 100)]
    moved = [Moved(1, 0, 1, 8, 0, 100, False)]
    issued = [an_issue(0, 1, "send", ticket=1), an_issue(1, 1, "recv", ticket=1)]
    assert overlap(DEVICES, ran, moved).hidden_ns == 100
    assert overlap(DEVICES, ran, moved, issued)[:4] == (100, 0, 0.0, (0, 0, 0))


def overlap_by_counting(ran: Sequence[Ran], moved: Sequence[Moved], until: int) -> Overlap:
    """The same figures, one nanosecond at a time."""
    busy = [{r.lane for r in ran if r.stream == "compute" and r.start_ns <= t < r.end_ns} for t in range(until)]
    moving = [t for m in moved for t in range(m.sent_ns, m.taken_ns)]
    hidden = sum(bool(busy[t]) for t in moving)
    return Overlap(
        transfer_ns=len(moving),
        hidden_ns=hidden,
        share=hidden / len(moving) if moving else 0.0,
        compute_ns=tuple(sum(lane in lanes for lanes in busy) for lane in range(3)),
        both_ns=sum(len(lanes) >= 2 for lanes in busy),
    )


moments = st.integers(0, 40)
any_ran = st.builds(Ran, lanes, st.integers(1, 9), st.sampled_from(["compute", "compute", "peer"]), moments, moments)
any_moved = st.builds(Moved, st.integers(0, 9), lanes, lanes, st.just(8), moments, moments, st.booleans())


@settings(max_examples=300, deadline=None)
@given(st.lists(any_ran, max_size=12), st.lists(any_moved, max_size=8))
def test_the_overlap_equals_a_count_of_nanoseconds(ran: list[Ran], moved: list[Moved]) -> None:
    assert overlap(DEVICES, ran, moved) == overlap_by_counting(ran, moved, 41)
