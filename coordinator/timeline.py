"""What happened when: a timeline for Perfetto, and how much of the transfers was hidden behind computing.

Pure, but for the functions that write a file: records go in (what the frontend issued, what each worker ran, what
moved, where the frontend waited), plain values come out. Knows no session, worker or clock: every time is nanoseconds
on one clock, aligned by the caller.
"""

from __future__ import annotations

import bisect
import heapq
import itertools
import json
import math
import os
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from ..protocol.whole import write_whole

WAITS: Final = "waits"  # the stream of what did not run, but waited
WAITING: Final = 8  # tracks of what waits on a worker: a thousand may stand behind one ticket


class Issued(NamedTuple):
    """The frontend issued instruction `n` of `lane`, at the user's line."""

    lane: int  # index into the list of devices
    n: int
    name: str
    kind: str  # create, compute, send, recv, read, free, upload
    file: str
    line: int
    function: str
    issued_ns: int
    reads: tuple[int, ...]  # buffer ids, unique in the session
    writes: tuple[int, ...]
    ticket: int | None  # the same on a send and its recv
    detail: str  # such as "float64 (128, 256)"


class Ran(NamedTuple):
    """A worker spent this time on instruction `n` of its lane."""

    lane: int
    n: int
    stream: str  # compute, h2d, d2h, peer; WAITS while it waited for a ticket, or behind what did
    start_ns: int
    end_ns: int


class Moved(NamedTuple):
    """A transfer: from the moment the producer sent the ticket until the consumer had the array."""

    ticket: int
    source: int
    target: int
    nbytes: int
    sent_ns: int
    taken_ns: int
    in_place: bool  # the consumer reads the producer's memory: nothing was copied


class Blocked(NamedTuple):
    """The frontend waited."""

    what: str  # read, credit, synchronize, upload
    file: str
    line: int
    start_ns: int
    end_ns: int
    reason: str = ""  # in words
    buffer: int | None = None  # whose elements it waited for


def chrome_trace(
    devices: Sequence[str],
    issued: Sequence[Issued],
    ran: Sequence[Ran],
    moved: Sequence[Moved],
    blocked: Sequence[Blocked],
) -> dict[str, object]:
    """The timeline in the Chrome trace event format: one process for the frontend, one for each device.

    Slices of one track never cross, and each carries the user's line; an arrow leads from a send to its recv.
    """
    timeline = _Timeline(devices, issued, origin_ns=_origin(issued, ran, moved, blocked))
    timeline.frontend(issued, blocked)
    for lane in range(len(devices)):
        timeline.worker(lane, [r for r in ran if r.lane == lane], [m for m in moved if m.target == lane])
    into_the_past = timeline.arrows(issued)
    hidden = overlap(devices, ran, moved, issued)
    return {
        "traceEvents": timeline.events(),
        "displayTimeUnit": "ns",
        "otherData": {
            "devices": list(devices),
            "transfer_ns": hidden.transfer_ns,
            "hidden_ns": hidden.hidden_ns,
            "share_of_transfers_hidden": hidden.share,
            "transfers_into_the_past": into_the_past,  # 0 unless the clocks were not aligned
        },
    }


def write_trace(
    path: str | os.PathLike[str],
    devices: Sequence[str],
    issued: Sequence[Issued],
    ran: Sequence[Ran],
    moved: Sequence[Moved],
    blocked: Sequence[Blocked],
) -> None:
    """Write the timeline for Perfetto (ui.perfetto.dev) or chrome://tracing. The file is whole or not there."""
    write_whole(path, json.dumps(chrome_trace(devices, issued, ran, moved, blocked), separators=(",", ":")))


# ---------------------------------------------------------------------------------------------------------------------
# Overlap
# ---------------------------------------------------------------------------------------------------------------------


class Overlap(NamedTuple):
    """How much of the transfers was hidden behind computing, and how much computing went side by side."""

    transfer_ns: int  # the length of all transfers, one by one
    hidden_ns: int  # of these, while some device computed
    share: float  # hidden / transfer; 0.0 when nothing moved, so that no transfers never pass for hidden ones
    compute_ns: tuple[int, ...]  # for each lane, while it computed
    both_ns: int  # while two lanes or more computed


def overlap(
    devices: Sequence[str], ran: Iterable[Ran], moved: Iterable[Moved], issued: Iterable[Issued] = ()
) -> Overlap:
    """The share of transfer time during which some device computed.

    With `issued`, a send, recv, read, upload or free that occupied a compute stream is not taken for computing:
    a host worker does them in line, and a transfer must not hide behind its own copy.
    """
    carrying = {(i.lane, i.n) for i in issued if i.kind not in _COMPUTING}
    computing: list[list[Interval]] = [[] for _ in devices]
    for r in ran:
        if r.stream == "compute" and (r.lane, r.n) not in carrying:
            computing[r.lane].append((r.start_ns, r.end_ns))
    lanes = [_union(lane) for lane in computing]
    anywhere = _Covered(_union(interval for lane in lanes for interval in lane))
    transfers = [(m.sent_ns, m.taken_ns) for m in moved if m.taken_ns > m.sent_ns]
    transfer_ns = _length(transfers)
    hidden_ns = sum(anywhere.within(start, end) for start, end in transfers)
    return Overlap(
        transfer_ns=transfer_ns,
        hidden_ns=hidden_ns,
        share=hidden_ns / transfer_ns if transfer_ns else 0.0,
        compute_ns=tuple(_length(lane) for lane in lanes),
        both_ns=_shared(lanes),
    )


Interval = tuple[int, int]  # start, end; end excluded
_COMPUTING: Final = frozenset({"create", "compute"})


def _length(intervals: Iterable[Interval]) -> int:
    return sum(end - start for start, end in intervals)


def _union(intervals: Iterable[Interval]) -> list[Interval]:
    """The same times as disjoint intervals in order."""
    union: list[Interval] = []
    for start, end in sorted(i for i in intervals if i[1] > i[0]):
        if union and start <= union[-1][1]:
            union[-1] = (union[-1][0], max(end, union[-1][1]))
        else:
            union.append((start, end))
    return union


def _shared(lanes: Iterable[Iterable[Interval]]) -> int:
    """How long two lanes or more are busy. Each lane's own intervals are disjoint."""
    steps = sorted(step for lane in lanes for start, end in lane for step in ((start, 1), (end, -1)))
    shared = busy = last = 0
    for at, change in steps:
        if busy >= 2:
            shared += at - last
        busy, last = busy + change, at
    return shared


class _Covered:
    """How much of a stretch of time lies inside a set of disjoint intervals."""

    def __init__(self, intervals: list[Interval]) -> None:
        self._starts = [start for start, _ in intervals]
        self._intervals = intervals
        self._before = [0, *itertools.accumulate(end - start for start, end in intervals)]

    def within(self, start: int, end: int) -> int:
        return self._until(end) - self._until(start)

    def _until(self, at: int) -> int:
        k = bisect.bisect_right(self._starts, at)
        if k == 0:
            return 0
        first, last = self._intervals[k - 1]
        return self._before[k - 1] + min(at, last) - first


# ---------------------------------------------------------------------------------------------------------------------
# The trace
# ---------------------------------------------------------------------------------------------------------------------

Event = dict[str, object]

ISSUE_NS: Final = 1_000  # how long an issue is drawn, unless the next comes sooner: it is a moment in truth
BEFORE: Final = "issued before the trace began"
_STREAMS: Final = ("compute", "h2d", "d2h", "peer")


class _Slice(NamedTuple):
    start_ns: int
    end_ns: int
    name: str
    category: str
    args: dict[str, object]
    key: tuple[int, int] | None = None  # lane and n, where an arrow may begin or end


def _origin(issued: Sequence[Issued], ran: Sequence[Ran], moved: Sequence[Moved], blocked: Sequence[Blocked]) -> int:
    """The earliest moment. Times are told from there: a double holds them to the nanosecond."""
    firsts = [i.issued_ns for i in issued] + [r.start_ns for r in ran]
    firsts += [min(m.sent_ns, m.taken_ns) for m in moved] + [b.start_ns for b in blocked]
    return min(firsts, default=0)


class _Timeline:
    """Events under construction. Process 1 is the frontend, process 2 + lane a device; thread ids are never shared."""

    def __init__(self, devices: Sequence[str], issued: Sequence[Issued], origin_ns: int) -> None:
        self._devices = devices
        self._by_key = {(i.lane, i.n): i for i in issued}
        # Of the two ends of a transfer the recv is asked for its line; the send, if the recv is not in the trace.
        ends = sorted((i for i in issued if i.ticket is not None), key=lambda i: i.kind == "recv")
        self._by_ticket = {i.ticket: i for i in ends}
        self._sends = {i.ticket: i for i in ends if i.kind == "send"}
        self._origin_ns = origin_ns
        self._metadata: list[Event] = []
        self._timed: list[tuple[tuple[int, int, int], Event]] = []
        self._where: dict[tuple[int, int], tuple[int, int, int, int]] = {}  # pid, tid, start_ns, end_ns
        self._tids = itertools.count(1)

    def events(self) -> list[Event]:
        self._timed.sort(key=lambda timed: timed[0])
        return self._metadata + [event for _, event in self._timed]

    def frontend(self, issued: Sequence[Issued], blocked: Sequence[Blocked]) -> None:
        self._process(1, "frontend", 0)
        in_time = sorted(issued, key=lambda i: i.issued_ns)
        slices = []
        for this, following in itertools.zip_longest(in_time, in_time[1:]):
            end = this.issued_ns + ISSUE_NS
            if following is not None:
                end = min(end, following.issued_ns)
            args = _args(this) | {"device": self._devices[this.lane]}
            slices.append(_Slice(this.issued_ns, end, this.name, "issue", args))
        self._tracks(1, "issue", slices)
        writers: dict[int, list[Issued]] = {}
        for i in in_time:
            for buffer in i.writes:
                writers.setdefault(buffer, []).append(i)
        waits = []
        for b in blocked:
            why: dict[str, object] = {"line": f"{b.file}:{b.line}", "reason": b.reason or b.what}
            made = [i for i in writers.get(b.buffer or 0, ()) if i.issued_ns <= b.start_ns and i.kind != "free"]
            if made:
                why["made_by"] = f"{made[-1].name} at {made[-1].file}:{made[-1].line}"
            waits.append(_Slice(b.start_ns, b.end_ns, f"waiting: {b.what}", "wait", why))
        self._tracks(1, "waiting", waits)

    def worker(self, lane: int, ran: Sequence[Ran], arrived: Sequence[Moved]) -> None:
        pid = 2 + lane
        self._process(pid, self._devices[lane], 1 + lane)
        streams: dict[str, list[_Slice]] = {}
        for r in ran:
            streams.setdefault(r.stream, []).append(self._execution(r))
        waited = [r for r in ran if r.stream == WAITS]
        streams.pop(WAITS, None)
        self._tracks(pid, "compute", streams.pop("compute", []))
        if waited:
            self._tracks(pid, "waiting", [self._wait(r, waited) for r in waited], most=WAITING)
        self._tracks(pid, "transfers in", [self._transfer(m) for m in arrived])
        for stream in sorted(streams, key=lambda s: (_STREAMS.index(s) if s in _STREAMS else len(_STREAMS), s)):
            self._tracks(pid, f"copy {stream}", streams[stream])

    def arrows(self, issued: Sequence[Issued]) -> int:
        """From each send that ran to the recv of its ticket that ran.

        A viewer drops an arrow into the past, so one to a recv that was over before the send began is left out; their
        count is returned.
        """
        into_the_past = 0
        sends = {i.ticket: (i.lane, i.n) for i in issued if i.kind == "send"}
        for recv in issued:
            if recv.kind != "recv" or recv.ticket is None or recv.ticket not in sends:
                continue
            source, target = self._where.get(sends[recv.ticket]), self._where.get((recv.lane, recv.n))
            if source is None or target is None:
                continue
            leaves = source[2]
            arrives = max(target[2], min(leaves, target[3] - 1))  # inside the recv, not before it left
            if arrives < leaves:
                into_the_past += 1
                continue
            common: Event = {"name": "transfer", "cat": "transfer", "id": recv.ticket}
            self._add(leaves, 1, 0, {**common, "ph": "s", "pid": source[0], "tid": source[1]})
            self._add(arrives, 2, 0, {**common, "ph": "f", "bp": "e", "pid": target[0], "tid": target[1]})
        return into_the_past

    def _execution(self, r: Ran) -> _Slice:
        key = (r.lane, r.n)
        instruction = self._by_key.get(key)
        if instruction is None:
            return _Slice(r.start_ns, r.end_ns, f"instruction {r.n}", "unknown", {"line": BEFORE, "n": r.n}, key)
        return _Slice(r.start_ns, r.end_ns, instruction.name, instruction.kind, _args(instruction), key)

    def _wait(self, r: Ran, others: Sequence[Ran]) -> _Slice:
        """An instruction that was parked: for a ticket, or behind others that were, since they share a buffer."""
        this = self._by_key.get((r.lane, r.n))
        args: dict[str, object] = {"line": BEFORE, "n": r.n} if this is None else _args(this)
        if this is not None and this.kind == "recv":
            send = self._sends.get(this.ticket)
            source = "another worker" if send is None else self._devices[send.lane]
            reason = f"waits for the ticket from {source}"
            if send is not None:
                args["sent_at"] = f"{send.file}:{send.line}"
        else:
            reason = "waits behind what waits"
            before = [o for o in others if o.n < r.n and o.start_ns <= r.start_ns < o.end_ns]
            mine = set() if this is None else {*this.reads, *this.writes}
            for other in sorted(before, key=lambda o: -o.n):
                that = self._by_key.get((other.lane, other.n))
                if that is not None and mine.intersection((*that.reads, *that.writes)):
                    reason = f"waits behind {that.name} at {that.file}:{that.line}"
                    break
        return _Slice(r.start_ns, r.end_ns, reason, "wait", args | {"reason": reason})

    def _transfer(self, m: Moved) -> _Slice:
        instruction = self._by_ticket.get(m.ticket)
        args: dict[str, object] = {"line": BEFORE} if instruction is None else _args(instruction)
        source, target = self._devices[m.source], self._devices[m.target]
        args |= {"ticket": m.ticket, "source": source, "target": target, "nbytes": m.nbytes, "in_place": m.in_place}
        if m.taken_ns > m.sent_ns:
            args["gigabytes_per_s"] = round(m.nbytes / (m.taken_ns - m.sent_ns), 3)
        return _Slice(m.sent_ns, m.taken_ns, f"from {source}", "transfer", args)

    def _process(self, pid: int, name: str, order: int) -> None:
        self._metadata.append({"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}})
        self._metadata.append({"ph": "M", "name": "process_sort_index", "pid": pid, "args": {"sort_index": order}})

    def _tracks(self, pid: int, name: str, slices: list[_Slice], most: int | None = None) -> None:
        """One track, or as many as it takes for no two slices to cross; what needs more than `most` is left out."""
        for k, row in enumerate(_rows(slices)[:most]):
            tid = next(self._tids)
            label = name if k == 0 else f"{name} ({k + 1})"
            self._metadata.append({"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": label}})
            order: Event = {"ph": "M", "name": "thread_sort_index", "pid": pid, "tid": tid, "args": {"sort_index": tid}}
            self._metadata.append(order)
            for s in row:
                dur_ns = s.end_ns - s.start_ns
                event: Event = {"name": s.name, "cat": s.category, "ph": "X", "pid": pid, "tid": tid}
                self._add(s.start_ns, 0, -dur_ns, {**event, "dur": _microseconds(dur_ns), "args": s.args})
                if s.key is not None:
                    self._where[s.key] = (pid, tid, s.start_ns, s.end_ns)

    def _add(self, at_ns: int, rank: int, nearer: int, event: Event) -> None:
        # At one moment: a slice before the arrows bound to it, and an arrow's tail before its head.
        at_ns -= self._origin_ns
        self._timed.append(((at_ns, rank, nearer), {**event, "ts": _microseconds(at_ns)}))


def _args(instruction: Issued) -> dict[str, object]:
    return {
        "line": f"{instruction.file}:{instruction.line}",
        "function": instruction.function,
        "n": instruction.n,
        "detail": instruction.detail,
        "reads": list(instruction.reads),
        "writes": list(instruction.writes),
    }


def _rows(slices: Iterable[_Slice]) -> list[list[_Slice]]:
    """Slices dealt to the fewest rows on which none overlap. The first row is always there.

    A slice of no length (or of less: a clock misread) gets one nanosecond, or an arrow could not lie inside it.
    """
    rows: list[list[_Slice]] = [[]]
    free = [0]
    busy: list[tuple[int, int]] = []  # end_ns, row
    for s in sorted((s._replace(end_ns=max(s.end_ns, s.start_ns + 1)) for s in slices), key=lambda s: s[:2]):
        while busy and busy[0][0] <= s.start_ns:
            heapq.heappush(free, heapq.heappop(busy)[1])
        if not free:
            heapq.heappush(free, len(rows))
            rows.append([])
        row = heapq.heappop(free)
        rows[row].append(s)
        heapq.heappush(busy, (s.end_ns, row))
    return rows


def _microseconds(ns: int) -> float:
    """The double that gives `ns` back when a viewer multiplies by 1000 and cuts, as several do."""
    value = ns / 1000
    return value if int(value * 1000.0) == ns else math.nextafter(value, math.inf)
