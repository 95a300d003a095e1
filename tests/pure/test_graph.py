"""The edges are the hazards, no more and no fewer; the picture shows each, and nothing lies on anything else."""

from __future__ import annotations

import itertools
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from interlock.coordinator.graph import Edge, Graph, draw, step_graph, write_graph
from interlock.coordinator.timeline import Issued

DEVICES = ["cpu:0", "cpu:1", "cpu:2"]


class Recorder:
    """Writes down the records of a made-up program, as a session would."""

    def __init__(self) -> None:
        self.issued: list[Issued] = []
        self._n = [0, 0, 0]
        self._buffers = itertools.count(1)
        self._tickets = itertools.count(1)

    def array(self) -> int:
        return next(self._buffers)

    def do(
        self, lane: int, name: str, reads: Sequence[int], detail: str, *, out: int | None = None,
        kind: str = "compute", ticket: int | None = None,
    ) -> int:  # fmt: skip
        self._n[lane] += 1
        writes = () if kind in ("send", "read") else (out if out is not None else self.array(),)
        line = 10 + len(self.issued) // 4
        at = 1_000_000 + 3_000 * len(self.issued)
        self.issued.append(
            Issued(lane, self._n[lane], name, kind, "train.py", line, "step", at, tuple(reads), writes, ticket, detail)
        )
        return writes[0] if writes else -1

    def move(self, source: int, target: int, buffer: int, detail: str) -> int:
        ticket = next(self._tickets)
        self.do(source, "send", [buffer], detail, kind="send", ticket=ticket)
        return self.do(target, "recv", [], detail, kind="recv", ticket=ticket)


SHAPES = {"W1": "float64 (64, 256)", "b1": "float64 (256,)", "W2": "float64 (256, 10)", "b2": "float64 (10,)"}


def mlp_step() -> list[Issued]:
    """One step of training a network 64-256-10 on two devices, the parameters on a third."""
    r = Recorder()
    parameters = {name: r.array() for name in SHAPES}
    velocities = {name: r.array() for name in SHAPES}
    data = {lane: (r.array(), r.array()) for lane in (1, 2)}
    hidden, logits, column = "float64 (64, 256)", "float64 (64, 10)", "float64 (64, 1)"
    gradients: dict[str, list[int]] = {name: [] for name in SHAPES}
    local = {lane: {name: r.move(0, lane, parameters[name], SHAPES[name]) for name in SHAPES} for lane in (1, 2)}
    for lane, own in local.items():
        x, y = data[lane]
        h = r.do(lane, "matmul", [x, own["W1"]], hidden)
        r.do(lane, "add", [h, own["b1"]], hidden, out=h)
        a = r.do(lane, "maximum", [h], hidden)
        z = r.do(lane, "matmul", [a, own["W2"]], logits)
        r.do(lane, "add", [z, own["b2"]], logits, out=z)
        top = r.do(lane, "max", [z], column)
        e = r.do(lane, "subtract", [z, top], logits)
        r.do(lane, "exp", [e], logits, out=e)
        total = r.do(lane, "sum", [e], column)
        p = r.do(lane, "divide", [e, total], logits)
        delta = r.do(lane, "subtract", [p, y], logits)
        r.do(lane, "multiply", [delta], logits, out=delta)

        def give(name: str, gradient: int, lane: int = lane) -> None:
            gradients[name].append(r.move(lane, 0, gradient, SHAPES[name]))

        give("W2", r.do(lane, "matmul", [a, delta], SHAPES["W2"]))
        give("b2", r.do(lane, "sum", [delta], SHAPES["b2"]))
        dh = r.do(lane, "matmul", [delta, own["W2"]], hidden)
        mask = r.do(lane, "greater", [a], "bool (64, 256)")
        r.do(lane, "multiply", [dh, mask], hidden, out=dh)
        give("W1", r.do(lane, "matmul", [x, dh], SHAPES["W1"]))
        give("b1", r.do(lane, "sum", [dh], SHAPES["b1"]))
    for name in ("W2", "b2", "W1", "b1"):
        shape, (first, second) = SHAPES[name], gradients[name]
        g = r.do(0, "add", [first, second], shape)
        r.do(0, "multiply", [velocities[name]], shape, out=velocities[name])
        scaled = r.do(0, "multiply", [g], shape)
        r.do(0, "subtract", [velocities[name], scaled], shape, out=velocities[name])
        r.do(0, "add", [parameters[name], velocities[name]], shape, out=parameters[name])
        r.do(0, "free", [], shape, kind="free", out=g)
    return r.issued


@st.composite
def programs(draw: st.DrawFn) -> list[Issued]:
    """Any program over a few arrays on each of three devices: reads, overwrites, in place, transfers, frees."""
    r = Recorder()
    here: list[list[int]] = [[r.array()], [r.array()], [r.array()]]
    for _ in range(draw(st.integers(0, 30))):
        lane = draw(st.integers(0, 2))
        reads = draw(st.lists(st.sampled_from(here[lane][-4:]), max_size=2))
        what = draw(st.sampled_from(["new", "new", "out", "move", "read", "create", "free"]))
        name = draw(st.sampled_from(["add", "matmul", "exp", "a<b>&c", "a_very_long_name_of_an_operation"]))
        detail = draw(st.sampled_from(["float64 (128, 256)", "int8 ()", "bool (3,)", "", "no shape at all in here"]))
        if what == "new":
            here[lane].append(r.do(lane, name, reads, detail))
        elif what == "create":
            here[lane].append(r.do(lane, name, [], detail, kind="create"))
        elif what == "out":
            r.do(lane, name, reads, detail, out=draw(st.sampled_from(here[lane][-4:])))
        elif what == "move" and reads:
            target = draw(st.sampled_from([k for k in range(3) if k != lane]))
            here[target].append(r.move(lane, target, reads[0], detail))
        elif what == "read":
            r.do(lane, "read", reads[:1], detail, kind="read")
        elif what == "free" and len(here[lane]) > 1:
            r.do(lane, "free", [], "", kind="free", out=here[lane].pop(0))
    return r.issued


# -- What depends on what --


def waits(count: int, edges: Iterable[tuple[int, int]]) -> list[set[int]]:
    """For each node all it waits for, directly or not."""
    direct: list[set[int]] = [set() for _ in range(count)]
    for source, target in edges:
        direct[target].add(source)
    for node in range(count):  # in order of issue: what is waited for comes first
        for source in tuple(direct[node]):
            direct[node] |= direct[source]
    return direct


def conflicts(nodes: Sequence[Issued]) -> list[tuple[int, int]]:
    """Every pair that meets on a buffer, one of them writing, and every send with its recv."""
    found = []
    for (a, first), (b, second) in itertools.combinations(enumerate(nodes), 2):
        met = set(first.writes) & {*second.reads, *second.writes} or set(first.reads) & set(second.writes)
        paired = (first.kind, second.kind) == ("send", "recv") and first.ticket == second.ticket
        if met or paired:
            found.append((a, b))
    return found


@settings(max_examples=150, deadline=None)
@given(programs())
def test_the_edges_order_exactly_the_pairs_that_conflict(program: list[Issued]) -> None:
    graph = step_graph(DEVICES, program)
    pairs = conflicts(graph.nodes)
    assert {e[:2] for e in graph.edges} <= set(pairs)
    assert waits(len(graph.nodes), (e[:2] for e in graph.edges)) == waits(len(graph.nodes), pairs)
    for edge in graph.edges:
        source, target = graph.nodes[edge.source], graph.nodes[edge.target]
        match edge.hazard:
            case "RAW":
                assert edge.buffer in source.writes
                assert edge.buffer in target.reads
            case "WAR":
                assert edge.buffer in source.reads
                assert edge.buffer in target.writes
            case "WAW":
                assert edge.buffer in source.writes
                assert edge.buffer in target.writes
            case _:
                assert (edge.hazard, edge.buffer) == ("transfer", source.ticket)


def test_each_hazard_has_its_name() -> None:
    r = Recorder()
    a, b = r.array(), r.array()
    r.do(0, "fill", [], "", out=a)  # 0
    r.do(0, "exp", [a], "", out=b)  # 1 reads what 0 wrote
    r.do(0, "fill", [], "", out=a)  # 2 overwrites what 1 read
    r.do(0, "fill", [], "", out=a)  # 3 overwrites what 2 wrote
    r.do(0, "add", [a], "", out=a)  # 4 in place: reads what 3 wrote
    assert step_graph(DEVICES, r.issued).edges == (
        Edge(0, 1, "RAW", a),
        Edge(1, 2, "WAR", a),
        Edge(2, 3, "WAW", a),
        Edge(3, 4, "RAW", a),
    )


def test_frees_are_left_out_and_sources_on_demand() -> None:
    r = Recorder()
    a = r.do(0, "ones", [], "", kind="create")
    r.do(0, "exp", [a], "")
    r.do(0, "free", [], "", kind="free", out=a)
    assert [i.kind for i in step_graph(DEVICES, r.issued).nodes] == ["create", "compute"]
    assert [i.kind for i in step_graph(DEVICES, r.issued, sources=False).nodes] == ["compute"]


def test_the_training_step_meets_across_devices_in_transfers_only() -> None:
    graph = step_graph(DEVICES, mlp_step())
    assert len(graph.nodes) == 90
    across = [e for e in graph.edges if graph.nodes[e.source].lane != graph.nodes[e.target].lane]
    assert len(across) == 16
    assert {e.hazard for e in across} == {"transfer"}


# -- The picture --


class Box(NamedTuple):
    left: float
    top: float
    right: float
    bottom: float

    def holds(self, x: float, y: float) -> bool:
        """Well inside: the text of the picture has one decimal."""
        return self.left + 0.2 < x < self.right - 0.2 and self.top + 0.2 < y < self.bottom - 0.2

    def borders(self, x: float, y: float) -> bool:
        near = self._replace(left=self.left - 0.4, top=self.top - 0.4, right=self.right + 0.4, bottom=self.bottom + 0.4)
        return near.holds(x, y) and not self.holds(x, y)

    def meets(self, other: Box) -> bool:
        beside = self.left < other.right and other.left < self.right
        return beside and self.top < other.bottom and other.top < self.bottom

    def encloses(self, other: Box) -> bool:
        return (
            self.left <= other.left
            and self.top <= other.top
            and other.right <= self.right
            and other.bottom <= self.bottom
        )


class Seen:
    """A picture as read back from its text."""

    def __init__(self, svg: str) -> None:
        self.root = ET.fromstring(svg.replace(' xmlns="http://www.w3.org/2000/svg"', "", 1))
        self.paper = Box(0.0, 0.0, float(self.root.attrib["width"]), float(self.root.attrib["height"]))
        self.nodes = {g.attrib["id"]: g for g in self.root.iter("g") if "id" in g.attrib}
        self.boxes = {name: rectangle(next(g.iter("rect"))) for name, g in self.nodes.items()}
        self.columns = [rectangle(e) for e in self.root.iter("rect") if e.get("class") == "column"]
        self.arrows = [p for p in self.root.iter("path") if "data-source" in p.attrib]


def rectangle(element: ET.Element) -> Box:
    x, y, width, height = (float(element.attrib[k]) for k in ("x", "y", "width", "height"))
    return Box(x, y, x + width, y + height)


def points(path: str) -> list[tuple[float, float]]:
    """The path as many points: lines and curves walked in small steps."""
    found: list[tuple[float, float]] = []
    for letter, text in re.findall(r"([A-Z])([^A-Z]*)", path):
        n = [float(v) for v in text.split()]
        if letter == "M":
            found.append((n[0], n[1]))
            continue
        x, y = found[-1]
        if letter == "V":
            n = [x, n[0]]
        elif letter == "H":
            n = [n[0], y]
        corners = [(x, y), *zip(n[::2], n[1::2], strict=True)]
        found += [on_curve(corners, k / 16) for k in range(1, 17)]
    return found


def on_curve(corners: list[tuple[float, float]], t: float) -> tuple[float, float]:
    while len(corners) > 1:
        corners = [(a[0] + (b[0] - a[0]) * t, a[1] + (b[1] - a[1]) * t) for a, b in itertools.pairwise(corners)]
    return corners[0]


def check(graph: Graph) -> Seen:
    """What must hold of any picture."""
    seen = Seen(draw(graph))
    assert set(seen.boxes) == {f"n{k}" for k in range(len(graph.nodes))}
    for name, box in seen.boxes.items():
        assert seen.columns[graph.nodes[int(name[1:])].lane].encloses(box)
    for column in seen.columns:
        assert seen.paper.encloses(column)
    for one, other in itertools.combinations(seen.boxes.values(), 2):
        assert not one.meets(other)
    for one, other in itertools.combinations(seen.columns, 2):
        assert not one.meets(other)
    for arrow in seen.arrows:
        check_arrow(seen, arrow)
    drawn = [(int(a.attrib["data-source"][1:]), int(a.attrib["data-target"][1:])) for a in seen.arrows]
    assert len(drawn) == len(set(drawn)), "one arrow for a pair"
    assert {e[:2] for e in graph.edges if e.hazard in ("RAW", "transfer")} <= set(drawn)
    assert set(drawn) <= {e[:2] for e in graph.edges}
    assert waits(len(graph.nodes), drawn) == waits(len(graph.nodes), (e[:2] for e in graph.edges))
    return seen


def check_arrow(seen: Seen, arrow: ET.Element) -> None:
    source, target = seen.boxes[arrow.attrib["data-source"]], seen.boxes[arrow.attrib["data-target"]]
    way = points(arrow.attrib["d"])
    assert source.borders(*way[0])
    assert target.borders(*way[-1])
    assert source.bottom < target.top or source.top == target.top, "arrows lead down, or along a row"
    for x, y in way:
        assert seen.paper.holds(x, y)
        assert not any(box.holds(x, y) for box in seen.boxes.values()), "an arrow runs over a box"


def test_a_training_step_fits_one_screen() -> None:
    graph = step_graph(DEVICES, mlp_step())
    seen = check(graph)
    assert seen.paper.right <= 1400
    assert seen.paper.bottom <= 900
    assert min(map(int, re.findall(r"font-size:(\d+)px", draw(graph)))) >= 9


@settings(max_examples=80, deadline=None)
@given(programs())
def test_in_any_picture_nothing_lies_on_anything_else(program: list[Issued]) -> None:
    check(step_graph(DEVICES, program))


def test_a_node_shows_its_words_and_tells_its_line_under_the_pointer() -> None:
    graph = step_graph(DEVICES, mlp_step())
    seen = check(graph)
    matmul = next(k for k, i in enumerate(graph.nodes) if i.name == "matmul")
    node, issue = seen.nodes[f"n{matmul}"], graph.nodes[matmul]
    assert [t.text for t in node.iter("text")] == ["matmul", "64\u00d7256"]
    title = node.findtext("title") or ""
    assert f"train.py:{issue.line} in step" in title
    assert "float64 (64, 256)" in title
    assert [e.text for e in seen.root.iter("text") if e.get("class") == "device"] == DEVICES


def test_a_transfer_names_the_other_end() -> None:
    r = Recorder()
    r.move(0, 2, r.array(), "float64 (3,)")
    seen = check(step_graph(DEVICES, r.issued))
    assert [[t.text for t in g.iter("text")] for g in seen.nodes.values()] == [["to cpu:2", "3"], ["from cpu:0", "3"]]
    assert [g.attrib["class"] for g in seen.nodes.values()] == ["node send", "node recv"]
    assert [a.attrib["class"] for a in seen.arrows] == ["edge transfer from0 to1"]


def test_only_waits_that_carry_no_data_are_dashed() -> None:
    r = Recorder()
    a = r.array()
    r.do(0, "exp", [a], "")
    r.do(0, "fill", [], "", out=a)
    r.do(0, "fill", [], "", out=a)
    r.do(0, "matmul", [a], "")
    svg = draw(step_graph(DEVICES, r.issued))
    assert re.findall('class="edge ([A-Z]+) from', svg) == ["WAW", "WAR", "RAW"]
    assert re.findall(r"([.,A-Za-z]*)\{stroke-dasharray", svg) == [".WAR,.WAW"]


def test_the_same_step_gives_the_same_picture() -> None:
    assert draw(step_graph(DEVICES, mlp_step())) == draw(step_graph(DEVICES, mlp_step()))


def test_words_that_xml_refuses_are_harmless() -> None:
    issue = Issued(0, 1, '<&"\x00>', "compute", "a<b>\x1b.py", 1, "<lambda>", 0, (), (1,), None, "]]> &amp;")
    seen = check(step_graph(['<"cpu">'], [issue]))
    assert "<lambda>" in (seen.nodes["n0"].findtext("title") or "")


def test_an_empty_step_is_a_picture_too() -> None:
    assert check(step_graph(DEVICES, [])).boxes == {}
    assert check(step_graph([], [])).columns == []


def test_instructions_that_wait_in_a_circle_are_refused() -> None:
    def end(lane: int, n: int, kind: str, ticket: int, buffer: int) -> Issued:
        reads, writes = ((buffer,), ()) if kind == "send" else ((), (buffer,))
        return Issued(lane, n, kind, kind, "a.py", 1, "f", 0, reads, writes, ticket, "")

    circle = [end(0, 1, "recv", 1, 10), end(0, 2, "send", 2, 10), end(1, 1, "recv", 2, 20), end(1, 2, "send", 1, 20)]
    with pytest.raises(ValueError, match="4 of 4 instructions wait for one another in a circle"):
        draw(step_graph(DEVICES, circle))


def test_the_file_holds_the_picture(tmp_path: Path) -> None:
    graph = step_graph(DEVICES, mlp_step())
    write_graph(tmp_path / "step.svg", graph)
    assert (tmp_path / "step.svg").read_text(encoding="utf-8") == draw(graph)
    assert [p.name for p in tmp_path.iterdir()] == ["step.svg"]
