"""The instructions of a step as a graph, and the graph as a picture.

Pure, but for the function that writes a file: records of what was issued go in, nodes, edges and SVG come out. Decides
what depends on what by last accessor, and where each box and arrow goes; the same graph always gives the same picture.
Knows no session or worker, and nothing of when things ran: that is the timeline's.
"""

from __future__ import annotations

import bisect
import itertools
import math
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple
from xml.sax.saxutils import escape, quoteattr

from ..protocol.whole import write_whole
from .timeline import Issued


class Edge(NamedTuple):
    """The instruction `target` waits for `source`; both are places in `Graph.nodes`."""

    source: int
    target: int
    hazard: str  # RAW, WAR, WAW; transfer from a send to its recv
    buffer: int  # the buffer they meet on; the ticket of a transfer


class Graph(NamedTuple):
    devices: tuple[str, ...]
    nodes: tuple[Issued, ...]
    edges: tuple[Edge, ...]


def step_graph(devices: Sequence[str], issued: Iterable[Issued], *, sources: bool = True) -> Graph:
    """What depends on what among these instructions, given in the order of issue. Frees are left out.

    With `sources=False` so are the instructions that bring arrays into being: create and upload.
    """
    left_out = {"free"} if sources else {"free", "create", "upload"}
    nodes = tuple(i for i in issued if i.kind not in left_out)
    return Graph(tuple(devices), nodes, tuple(_hazards(nodes)) + tuple(_transfers(nodes)))


def write_graph(path: str | os.PathLike[str], graph: Graph) -> None:
    """Write the picture of a graph as SVG, for any browser. The file is whole or not there."""
    write_whole(path, draw(graph))


def _hazards(nodes: Sequence[Issued]) -> Iterable[Edge]:
    """Edges to the last accessors: what two steps back is implied by what lies between is not said again."""
    writer: dict[int, int] = {}
    readers: defaultdict[int, list[int]] = defaultdict(list)  # since the last write
    for node, instruction in enumerate(nodes):
        reads, writes = dict.fromkeys(instruction.reads), dict.fromkeys(instruction.writes)
        for buffer in reads:
            if buffer in writer:
                yield Edge(writer[buffer], node, "RAW", buffer)
        for buffer in writes:
            since = readers.pop(buffer, [])
            for reader in since:
                yield Edge(reader, node, "WAR", buffer)
            if buffer in writer and buffer not in reads and not since:
                yield Edge(writer[buffer], node, "WAW", buffer)
            writer[buffer] = node
        for buffer in reads:
            if buffer not in writes:
                readers[buffer].append(node)


def _transfers(nodes: Sequence[Issued]) -> Iterable[Edge]:
    sends = {i.ticket: node for node, i in enumerate(nodes) if i.kind == "send"}
    for node, instruction in enumerate(nodes):
        if instruction.kind == "recv" and instruction.ticket is not None and instruction.ticket in sends:
            yield Edge(sends[instruction.ticket], node, "transfer", instruction.ticket)


# ---------------------------------------------------------------------------------------------------------------------
# The picture. A column for each device; layers from top to bottom, shared by all columns, by longest path. A box is a
# node; nodes of a chain lie side by side in one *run*. What is placed in a layer is an item: a run, or the bend of an
# edge on its way through.
# ---------------------------------------------------------------------------------------------------------------------

ROW: Final = 30.0  # height of a box
LINK: Final = 16.0  # between two boxes of a run
SPACE: Final = 10.0  # between two items of a layer
GAP: Final = 25.0  # between two layers, before it is widened for arrows that cross columns
TRACK: Final = 4.0  # between two arrows that cross columns in one gap
MARGIN: Final = 14.0
TOP: Final = 74.0  # title and column headers
BOTTOM: Final = 40.0  # legend
CHAIN: Final = 3  # boxes in a run at most
_HEADS: Final = frozenset(  # names that begin a run
    ("matmul", "dot", "vdot", "inner", "outer", "tensordot", "einsum", "vecdot", "matvec", "vecmat")
)
_STRENGTH: Final = {"transfer": 0, "RAW": 1, "WAR": 2, "WAW": 3}
_CONTROL: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # not allowed in XML


@dataclass(slots=True, eq=False)
class _Item:
    """A run of boxes, or (with no nodes) a bend: where an edge passes through a layer."""

    lane: int
    nodes: list[int]
    width: float
    layer: int = 0
    x: float = 0.0  # of its middle
    ports: dict[int, float] = field(default_factory=dict)  # node to the middle of its box, from the middle of the item


@dataclass(slots=True, eq=False)
class _Link:
    """The part of an edge between one layer and the next. Edges from one node share links while they go together."""

    above: _Item
    above_node: int  # -1 at a bend
    below: _Item
    below_node: int
    leaves: float = 0.0  # x at the top and at the bottom of the gap, once placed
    arrives: float = 0.0
    track: int = 0  # of a link that crosses columns: which horizontal of the gap it takes

    @property
    def crosses(self) -> bool:
        return self.above.lane != self.below.lane

    @property
    def pull(self) -> float:
        """How much it counts that this link is straight: bends most, so that long edges do not waver."""
        if self.crosses:
            return 0.05
        return (1.0, 3.0, 9.0)[(not self.above.nodes) + (not self.below.nodes)]

    def from_above(self) -> float:
        """Where the item below wants to be, to hang straight under the one above."""
        return self.above.x + self.above.ports.get(self.above_node, 0.0) - self.below.ports.get(self.below_node, 0.0)

    def from_below(self) -> float:
        return self.below.x + self.below.ports.get(self.below_node, 0.0) - self.above.ports.get(self.above_node, 0.0)


Layers = list[list[list[_Item]]]  # by layer, by lane, from left to right


class _Box(NamedTuple):
    x: float
    y: float
    width: float


def draw(graph: Graph) -> str:
    """The graph as an SVG document of its natural size: a training step of a hundred nodes fits a screen."""
    return _Picture(graph).svg()


# -- Which boxes lie in which layer --


def _drawn(graph: Graph) -> list[Edge]:
    """One edge for each pair of nodes, the strongest; WAR and WAW only where no other way says the same."""
    strongest: dict[tuple[int, int], Edge] = {}
    for edge in graph.edges:
        known = strongest.get(edge[:2])
        if known is None or _STRENGTH[edge.hazard] < _STRENGTH[known.hazard]:
            strongest[edge[:2]] = edge
    after: dict[int, list[int]] = {}
    for source, target in strongest:
        after.setdefault(source, []).append(target)
    reach = [0] * len(graph.nodes)  # bit sets
    for node in reversed(_in_order(len(graph.nodes), after)):
        for following in after.get(node, ()):
            reach[node] |= 1 << following | reach[following]

    def implied(edge: Edge) -> bool:
        others = (node for node in after[edge.source] if node != edge.target)
        return edge.hazard in ("WAR", "WAW") and any(reach[node] >> edge.target & 1 for node in others)

    return [edge for edge in strongest.values() if not implied(edge)]


def _in_order(count: int, after: dict[int, list[int]]) -> list[int]:
    """0, 1, … so that each comes after all it waits for."""
    waits = [0] * count
    for targets in after.values():
        for target in targets:
            waits[target] += 1
    ready = [k for k in range(count) if not waits[k]]
    for k in ready:  # grows as it goes
        for target in after.get(k, ()):
            waits[target] -= 1
            if not waits[target]:
                ready.append(target)
    if len(ready) < count:
        raise ValueError(f"{count - len(ready)} of {count} instructions wait for one another in a circle")
    return ready


def _runs(graph: Graph, edges: Sequence[Edge]) -> list[list[int]]:
    """Chains of computing instructions that follow one another in their lane, cut to what fits in a row.

    Lanes meet in sends and recvs only, which no run contains: so joining makes no circle. Were an edge to cross
    lanes in another way, nothing is joined.
    """
    nodes = graph.nodes
    raw = {edge[:2] for edge in edges if edge.hazard == "RAW"}
    joinable = all(nodes[e.source].lane == nodes[e.target].lane or e.hazard == "transfer" for e in edges)
    runs: list[list[int]] = []
    last: dict[int, list[int]] = {}  # the run at the end of each lane
    for node, instruction in enumerate(nodes):
        run = last.get(instruction.lane)
        both = run is not None and nodes[run[-1]].kind == instruction.kind == "compute"
        if run and both and joinable and instruction.name not in _HEADS and (run[-1], node) in raw:
            run.append(node)
        else:
            run = last[instruction.lane] = [node]
            runs.append(run)
    return [part for run in runs for part in _evenly(run)]


def _evenly(run: list[int]) -> list[list[int]]:
    parts = math.ceil(len(run) / CHAIN)
    cuts = [round(k * len(run) / parts) for k in range(parts + 1)]
    return [run[start:end] for start, end in itertools.pairwise(cuts)]


def _layer_of(runs: Sequence[Sequence[int]], edges: Iterable[Edge]) -> list[int]:
    """Longest path from the top; what waits for nothing moves down to where it is first needed."""
    home = {node: k for k, run in enumerate(runs) for node in run}
    after: dict[int, list[int]] = {}
    fed = set()
    for pair in dict.fromkeys((home[e.source], home[e.target]) for e in edges):
        if pair[0] != pair[1]:
            after.setdefault(pair[0], []).append(pair[1])
            fed.add(pair[1])
    layer = [0] * len(runs)
    for k in _in_order(len(runs), after):
        for target in after.get(k, ()):
            layer[target] = max(layer[target], layer[k] + 1)
    for k, targets in after.items():
        if k not in fed:
            layer[k] = min(layer[target] for target in targets) - 1
    return layer


# -- Words in a box --


def _label(graph: Graph, node: int, partners: dict[int, int]) -> tuple[str, str]:
    """Name and small print. A transfer names the other end instead."""
    instruction = graph.nodes[node]
    name = instruction.name
    if node in partners:
        arrow = "to" if instruction.kind == "send" else "from"
        name = f"{arrow} {graph.devices[graph.nodes[partners[node]].lane]}"
    shape = re.search(r"\(([\d, ]*)\)", instruction.detail)
    if shape is None:
        return _short(name, 14), _short(instruction.detail, 14)
    extents = re.findall(r"\d+", shape[1])
    return _short(name, 14), _short("\u00d7".join(extents) if extents else "scalar", 16)


def _width(text: str, height: float) -> float:
    """How wide a line of text comes out at most: the bold of common fonts, by kinds of letters."""
    return height * sum(0.34 if c in _NARROW else 0.9 if c in _WIDE else 0.74 if c.isupper() else 0.6 for c in text)


_NARROW: Final = frozenset("iljtfr.,:;|!'()[]/ ")
_WIDE: Final = frozenset("mwMW@%\u2026")


def _short(text: str, limit: int) -> str:
    text = _CONTROL.sub("?", text)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _hover(graph: Graph, node: int) -> str:
    i = graph.nodes[node]
    lines = [
        f"{i.name} {i.detail}".strip(),
        f"{i.file}:{i.line}" + (f" in {i.function}" if i.function else ""),
        f"{graph.devices[i.lane]}, instruction {i.n}" + ("" if i.ticket is None else f", ticket {i.ticket}"),
        f"reads {', '.join(map(str, i.reads)) or 'nothing'}; writes {', '.join(map(str, i.writes)) or 'nothing'}",
    ]
    return _CONTROL.sub("?", "\n".join(lines))


# -- Order and place --


def _order(layers: Layers, links: Sequence[Sequence[_Link]]) -> None:
    """Sort each column of each layer by the mean place of its neighbours, sweeping down and up; keep the best seen."""
    into: defaultdict[_Item, list[_Link]] = defaultdict(list)
    out: defaultdict[_Item, list[_Link]] = defaultdict(list)
    for gap in links:
        for link in gap:
            into[link.below].append(link)
            out[link.above].append(link)
    _pack(layers)
    best, crossings = [[list(lane) for lane in layer] for layer in layers], _crossings(links)
    for sweep in range(16):
        down = sweep % 2 == 0
        for layer in layers if down else reversed(layers):
            for lane in layer:
                wish = {}
                for item in lane:
                    wants = [k.from_above() for k in into[item]] if down else [k.from_below() for k in out[item]]
                    wish[item] = sum(wants) / len(wants) if wants else item.x
                lane.sort(key=wish.__getitem__)
            _pack([layer])
        found = _crossings(links)
        if found < crossings:
            best, crossings = [[list(lane) for lane in layer] for layer in layers], found
    layers[:] = best
    _pack(layers)


def _pack(layers: Layers) -> None:
    """Items side by side about the middle of their column, columns far apart: enough to compare orders."""
    for layer in layers:
        for number, lane in enumerate(layer):
            x = number * 1e5 - (sum(item.width for item in lane) + SPACE * (len(lane) - 1)) / 2
            for item in lane:
                item.x = x + item.width / 2
                x += item.width + SPACE


def _crossings(links: Sequence[Sequence[_Link]]) -> int:
    count = 0
    for gap in links:
        ends = sorted(
            (k.above.x + k.above.ports.get(k.above_node, 0.0), k.below.x + k.below.ports.get(k.below_node, 0.0))
            for k in gap
        )
        seen: list[float] = []
        for _, below in ends:
            count += len(seen) - bisect.bisect_right(seen, below)
            bisect.insort(seen, below)
    return count


def _place(layers: Layers, links: Sequence[Sequence[_Link]], columns: Sequence[tuple[float, float]]) -> None:
    """Give each item its x: as near to under and over its neighbours as order, room and column allow."""
    into: defaultdict[_Item, list[_Link]] = defaultdict(list)
    out: defaultdict[_Item, list[_Link]] = defaultdict(list)
    for gap in links:
        for link in gap:
            into[link.below].append(link)
            out[link.above].append(link)
    for layer in layers:
        for (left, right), lane in zip(columns, layer, strict=True):
            _settle(lane, [(left + right) / 2] * len(lane), [1.0] * len(lane), left, right)
    for sweep in range(24):
        down, last = sweep % 2 == 0, sweep >= 20
        for layer in layers if down else reversed(layers):
            for (left, right), lane in zip(columns, layer, strict=True):
                wishes, weights = [], []
                for item in lane:
                    pulls = [(k.from_above(), k.pull) for k in into[item]] if down or last else []
                    pulls += [(k.from_below(), k.pull) for k in out[item]] if not down or last else []
                    weight = sum(pull for _, pull in pulls)
                    wishes.append(sum(x * pull for x, pull in pulls) / weight if weight else item.x)
                    weights.append(weight or 0.01)
                _settle(lane, wishes, weights, left, right)


def _settle(
    lane: Sequence[_Item], wishes: Sequence[float], weights: Sequence[float], left: float, right: float
) -> None:
    """The places nearest to the wishes (least squares) that keep the order, the distances and the column."""
    if not lane:
        return
    offsets = [0.0]
    for before, item in itertools.pairwise(lane):
        offsets.append(offsets[-1] + (before.width + item.width) / 2 + SPACE)
    blocks: list[tuple[float, float, int]] = []  # mean, weight, items: neighbours that want to pass each other stand
    for wish, weight, offset in zip(wishes, weights, offsets, strict=True):
        mean, total, count = wish - offset, weight, 1
        while blocks and blocks[-1][0] > mean:
            other, more, items = blocks.pop()
            mean, total, count = (mean * total + other * more) / (total + more), total + more, count + items
        blocks.append((mean, total, count))
    low, high = left + lane[0].width / 2, right - lane[-1].width / 2 - offsets[-1]
    means = [min(max(mean, low), high) for mean, _, count in blocks for _ in range(count)]
    for item, mean, offset in zip(lane, means, offsets, strict=True):
        item.x = mean + offset


# -- The whole --


class _Picture:
    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._edges = _drawn(graph)
        self._partners = {e.source: e.target for e in self._edges if e.hazard == "transfer"}
        self._partners |= {target: source for source, target in self._partners.items()}
        self._labels = [_label(graph, node, self._partners) for node in range(len(graph.nodes))]
        self._widths = [max(_width(name, 10), _width(detail, 9), 18) + 10 for name, detail in self._labels]
        self._make_items()
        self._make_links()
        _order(self._layers, self._links)
        self._make_columns()
        _place(self._layers, self._links, self._columns)
        self._make_ports()
        self._make_rows()

    def _make_items(self) -> None:
        runs = _runs(self._graph, self._edges)
        self._home: dict[int, _Item] = {}
        depth = _layer_of(runs, self._edges)
        self._layers: Layers = [[[] for _ in self._graph.devices] for _ in range(max(depth, default=0) + 1)]
        for run, layer in zip(runs, depth, strict=True):
            width = sum(self._widths[node] for node in run) + LINK * (len(run) - 1)
            item = _Item(self._graph.nodes[run[0]].lane, run, width, layer)
            x = -width / 2
            for node in run:
                item.ports[node] = x + self._widths[node] / 2
                x += self._widths[node] + LINK
                self._home[node] = item
            self._layers[layer][item.lane].append(item)

    def _make_links(self) -> None:
        """Cut each edge at the layers it passes. It stays in its source's column until the last gap."""
        self._links: list[list[_Link]] = [[] for _ in self._layers]  # by the layer above
        self._ways: list[tuple[Edge, list[_Link]]] = []
        bends: dict[tuple[int, bool, int], _Item] = {}
        known: dict[tuple[_Item, int, _Item, int, bool], _Link] = {}
        for edge in self._edges:
            source, target = self._home[edge.source], self._home[edge.target]
            dashed = edge.hazard in ("WAR", "WAW")
            way, above, above_node = [], source, edge.source
            for layer in range(source.layer, target.layer):
                below, below_node = target, edge.target
                if layer + 1 < target.layer:
                    key = (edge.source, dashed, layer + 1)
                    if key not in bends:
                        bends[key] = _Item(source.lane, [], 4.0, layer + 1)
                        self._layers[layer + 1][source.lane].append(bends[key])
                    below, below_node = bends[key], -1
                ends = (above, above_node, below, below_node, dashed)
                if ends not in known:
                    known[ends] = _Link(above, above_node, below, below_node)
                    self._links[layer].append(known[ends])
                way.append(known[ends])
                above, above_node = below, below_node
            self._ways.append((edge, way))

    def _make_columns(self) -> None:
        self._columns: list[tuple[float, float]] = []
        x = MARGIN + SPACE
        for lane, device in enumerate(self._graph.devices):
            needed = max(sum(item.width + SPACE for item in layer[lane]) - SPACE for layer in self._layers)
            width = max(needed * 1.04 + 8, _width(device, 14) + 40, 120.0)
            self._columns.append((x, x + width))
            x += width + 3 * SPACE
        self._width = max(x - 2 * SPACE + MARGIN, 1120.0)  # the legend's, at least

    def _make_ports(self) -> None:
        """Spread the ends of links along the edge of their box, in the order of where they go."""
        leaving: defaultdict[int, list[_Link]] = defaultdict(list)
        arriving: defaultdict[int, list[_Link]] = defaultdict(list)
        for gap in self._links:
            for link in gap:
                link.leaves = link.above.x + link.above.ports.get(link.above_node, 0.0)
                link.arrives = link.below.x + link.below.ports.get(link.below_node, 0.0)
                leaving[link.above_node].append(link)
                arriving[link.below_node].append(link)
        for node, ends in leaving.items():
            if node >= 0:
                ends.sort(key=lambda link: (link.arrives, link.below.layer))
                for k, link in enumerate(ends):
                    link.leaves += self._widths[node] * ((k + 1) / (len(ends) + 1) - 0.5)
        for node, ends in arriving.items():
            if node >= 0:
                ends.sort(key=lambda link: link.leaves)
                for k, link in enumerate(ends):
                    link.arrives += self._widths[node] * ((k + 1) / (len(ends) + 1) - 0.5)

    def _make_rows(self) -> None:
        """The height of each layer; a gap is as high as the arrows that cross columns in it need."""
        self._tops: list[float] = []
        y = TOP
        for gap in self._links:
            self._tops.append(y)
            y += ROW + GAP + TRACK * _tracks([link for link in gap if link.crosses])
        self._height = y - GAP + BOTTOM
        self._boxes: dict[int, _Box] = {}
        for node, item in self._home.items():
            width = self._widths[node]
            self._boxes[node] = _Box(item.x + item.ports[node] - width / 2, self._tops[item.layer], width)

    # -- Words --

    def svg(self) -> str:
        width, height = round(self._width), round(self._height)
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            f'viewBox="0 0 {width} {height}" font-family="Helvetica, Arial, sans-serif">',
            f"<style>{_STYLE}{self._lit_by_hover()}</style>",
            _MARKERS,
            f'<rect class="paper" width="{width}" height="{height}"/>',
            *self._headers(),
            *(self._arrow(edge, way) for edge, way in sorted(self._ways, key=lambda w: -_STRENGTH[w[0].hazard])),
            *(self._node(node) for node in range(len(self._graph.nodes))),
            *self._legend(),
            "</svg>",
        ]
        return "\n".join(parts) + "\n"

    def _lit_by_hover(self) -> str:
        """A node under the pointer lights its arrows; not in a large graph: so many rules make a browser slow."""
        if len(self._boxes) > 500:
            return ""
        return "".join(
            f"svg:has(#n{node}:hover) :is(.from{node},.to{node}){{stroke-width:3}}" for node in sorted(self._boxes)
        )

    def _headers(self) -> Iterable[str]:
        nodes, transfers = self._graph.nodes, len(self._partners) // 2
        counts = f"{_count(len(nodes), 'instruction')}, {_count(transfers, 'transfer')}"
        yield f'<text class="title" x="{MARGIN:g}" y="22">{counts}: each waits only for what points at it</text>'
        for lane, (device, (left, right)) in enumerate(zip(self._graph.devices, self._columns, strict=True)):
            x, width = left - SPACE, right - left + 2 * SPACE
            count = sum(i.lane == lane for i in nodes)
            height = self._height - BOTTOM - 34 + 8
            yield f'<rect class="column" x="{x:.1f}" y="34" width="{width:.1f}" height="{height:.1f}" rx="8"/>'
            name = escape(_CONTROL.sub("?", device))
            yield f'<text class="device" x="{x + 12:.1f}" y="53">{name}</text>'
            yield f'<text class="count" x="{x + width - 12:.1f}" y="53">{count}</text>'

    def _node(self, node: int) -> str:
        box, (name, detail), instruction = self._boxes[node], self._labels[node], self._graph.nodes[node]
        middle = box.x + box.width / 2
        heavy = " heavy" if instruction.name in _HEADS else ""
        kind = instruction.kind if instruction.kind in _KINDS else "compute"
        first = box.y + (13 if detail else 19)
        words = f'<text class="name" x="{middle:.1f}" y="{first:.1f}">{escape(name)}</text>'
        if detail:
            words += f'<text class="detail" x="{middle:.1f}" y="{box.y + 24.5:.1f}">{escape(detail)}</text>'
        return (
            f'<g class="node {kind}{heavy}" id="n{node}"><title>{escape(_hover(self._graph, node))}</title>'
            f'<rect x="{box.x:.1f}" y="{box.y:.1f}" width="{box.width:.1f}" height="{ROW:g}" rx="5"/>{words}</g>'
        )

    def _arrow(self, edge: Edge, way: Sequence[_Link]) -> str:
        source, target = (self._graph.nodes[node] for node in (edge.source, edge.target))
        what = f"ticket {edge.buffer}" if edge.hazard == "transfer" else f"{edge.hazard} on buffer {edge.buffer}"
        line = f"{what}: {source.name} ({source.file}:{source.line}) before {target.name} ({target.file}:{target.line})"
        return (
            f'<path class="edge {edge.hazard} from{edge.source} to{edge.target}" data-source="n{edge.source}" '
            f'data-target="n{edge.target}" d={quoteattr(self._path(edge, way))} '
            f'marker-end="url(#{edge.hazard})"><title>{escape(_CONTROL.sub("?", line))}</title></path>'
        )

    def _path(self, edge: Edge, way: Sequence[_Link]) -> str:
        if not way:
            return self._path_in_run(edge)
        parts = [f"M{way[0].leaves:.1f} {self._tops[way[0].above.layer] + ROW:.1f}"]
        for link in way:
            top, bottom = self._tops[link.above.layer] + ROW, self._tops[link.below.layer]
            if link is not way[0]:
                parts.append(f"V{top:.1f}")  # straight down through the layer of a bend
            parts.append(_across(link, top, bottom) if link.crosses else _down(link, top, bottom))
        return "".join(parts)

    def _path_in_run(self, edge: Edge) -> str:
        source, target = self._boxes[edge.source], self._boxes[edge.target]
        order = self._home[edge.source].nodes
        if order.index(edge.target) == order.index(edge.source) + 1:
            return f"M{source.x + source.width:.1f} {source.y + ROW / 2:.1f}H{target.x:.1f}"
        start, end, y = source.x + source.width - 9, target.x + 9, source.y
        return f"M{start:.1f} {y:.1f}C{start:.1f} {y - 13:.1f} {end:.1f} {y - 13:.1f} {end:.1f} {y:.1f}"

    def _legend(self) -> Iterable[str]:
        x, y = MARGIN + SPACE, self._height - 14
        for kind, text in _KINDS.items():
            yield f'<g class="node {kind}"><rect x="{x:.1f}" y="{y - 10:.1f}" width="18" height="12" rx="3"/></g>'
            yield f'<text class="legend" x="{x + 24:.1f}" y="{y:.1f}">{text}</text>'
            x += 24 + _width(text, 10) + 10
        for hazard, text in _HAZARDS.items():
            yield f'<path class="edge {hazard}" d="M{x:.1f} {y - 4:.1f}h24" marker-end="url(#{hazard})"/>'
            yield f'<text class="legend" x="{x + 30:.1f}" y="{y:.1f}">{text}</text>'
            x += 30 + _width(text, 10) + 10


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _tracks(links: list[_Link]) -> int:
    """Give each link that crosses columns a horizontal of its own where they would lie on each other.

    Of two that go right the one that starts further right lies higher, and of two that go left the one that starts
    further left: so they do not cross unless their ends are in another order.
    """
    taken: list[list[tuple[float, float]]] = []
    for link in sorted(links, key=lambda k: -k.leaves if k.arrives > k.leaves else k.leaves):
        left, right = sorted((link.leaves, link.arrives))
        in_the_way = [k for k, spans in enumerate(taken) if any(left < b + 6 and a < right + 6 for a, b in spans)]
        link.track = in_the_way[-1] + 1 if in_the_way else 0
        if link.track == len(taken):
            taken.append([])
        taken[link.track].append((left, right))
    return len(taken)


def _down(link: _Link, top: float, bottom: float) -> str:
    bend = (bottom - top) * 0.5
    return f"C{link.leaves:.1f} {top + bend:.1f} {link.arrives:.1f} {bottom - bend:.1f} {link.arrives:.1f} {bottom:.1f}"


def _across(link: _Link, top: float, bottom: float) -> str:
    """Down, along its own track, down again; the corners rounded."""
    y = top + 9 + TRACK * link.track
    turn = min(4.0, abs(link.arrives - link.leaves) / 2) * (1 if link.arrives > link.leaves else -1)
    round_ = abs(turn)
    return (
        f"V{y - round_:.1f}Q{link.leaves:.1f} {y:.1f} {link.leaves + turn:.1f} {y:.1f}"
        f"H{link.arrives - turn:.1f}Q{link.arrives:.1f} {y:.1f} {link.arrives:.1f} {y + round_:.1f}V{bottom:.1f}"
    )


_KINDS: Final = {
    "compute": "operation",
    "send": "send",
    "recv": "recv",
    "create": "create",
    "upload": "upload",
    "read": "read",
}
_HAZARDS: Final = {
    "transfer": "transfer between devices",
    "RAW": "reads what it wrote (RAW)",
    "WAR": "overwrites what it read (WAR)",
    "WAW": "overwrites what it wrote (WAW)",
}
_COLOURS: Final = {"transfer": "#d97706", "RAW": "#475569", "WAR": "#be3455", "WAW": "#7c3aed"}
_MARKERS: Final = "<defs>{}</defs>".format(
    "".join(
        f'<marker id="{hazard}" viewBox="0 0 8 8" refX="7.5" refY="4" markerWidth="6" markerHeight="6" '
        f'markerUnits="userSpaceOnUse" orient="auto"><path d="M0 0.5L8 4L0 7.5z" fill="{colour}"/></marker>'
        for hazard, colour in _COLOURS.items()
    )
)
_STYLE: Final = (
    ".paper{fill:#fff}.column{fill:#f6f8fb;stroke:#dde3ec}"
    ".title{font-size:13px;fill:#334155}.device{font-size:14px;font-weight:bold;fill:#0f172a}"
    ".count{font-size:11px;fill:#64748b;text-anchor:end}.legend{font-size:10px;fill:#334155}"
    ".name{font-size:10px;font-weight:bold;fill:#0f172a;text-anchor:middle}"
    ".detail{font-size:9px;fill:#475569;text-anchor:middle}"
    ".node rect{stroke-width:1}.node:hover rect{stroke-width:2.5}"
    ".compute rect{fill:#e8f0fe;stroke:#5b7fb9}.heavy rect{fill:#c7dafc;stroke:#36599a}"
    ".send rect{fill:#fde3c0;stroke:#d97706}.recv rect{fill:#fff3df;stroke:#d97706}"
    ".create rect,.upload rect{fill:#e2f5e5;stroke:#4d9a5b}.read rect{fill:#f0e4fa;stroke:#8b55b5}"
    ".edge{fill:none;stroke-width:1.1}.edge:hover{stroke-width:3}"
    + "".join(f".{hazard}{{stroke:{colour}}}" for hazard, colour in _COLOURS.items())
    + ".transfer{stroke-width:1.4}.WAR,.WAW{stroke-dasharray:4 3}"
)
