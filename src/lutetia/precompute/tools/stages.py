"""LUTs by stage: to which part of the graph each LUT of a synthesised netlist belongs.

A synthesiser mixes the logic between two registers, so that logic is a stage: the nodes before a register, or before the output.
A LUT belongs to the first stage, in the order of the data, whose bits depend on it. What no bit of data depends on is the
handshake.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lutetia.precompute.ir.graph import Graph
from lutetia.precompute.ir.stream import Register, Window

HANDSHAKE = "handshake"
HELD = ("data", "out_data")  # inside of a register
DATA_PORTS = ("D", "DI", "M")  # of a flip-flop
Cell = dict[str, Any]


def luts_by_stage(path: Path, top: str, graph: Graph, kind_of: Callable[[str], str | None]) -> dict[str, int]:
    """LUTs of each stage in the netlist that yosys wrote to `path`, flat; `kind_of` says what a cell is: "luts", "flip_flops".

    A graph with windows, whose registers are inside of them, is one stage.
    """
    module = json.loads(path.read_text())["modules"][top]
    nets = {name: each["bits"] for name, each in module["netnames"].items()}
    drivers, holders = _drivers(module["cells"].values(), kind_of)
    counts: Counter[str] = Counter()
    visited: set[Any] = set()
    for name, ends in _ends(graph, nets):
        counts[name] += _cone([bit for end in ends for bit in holders.get(end, [end])], drivers, visited)
    others = sum(number for bit, (number, _) in drivers.items() if bit not in visited)
    return dict(counts) | ({HANDSHAKE: others} if others else {})


def _ends(graph: Graph, nets: dict[str, list[Any]]) -> list[tuple[str, list[Any]]]:
    """The stages and the bits in which each ends."""
    if any(isinstance(node, Window) for node in graph.nodes):
        return [("circuit", nets["out_data"])]
    stages = [
        (_names(graph, number), _held(graph, number, nets))
        for number, node in enumerate(graph.nodes)
        if isinstance(node, Register)
    ]
    stages.append((_names(graph, None), nets["out_data"]))
    return [stage for stage in stages if stage[0]]


def _held(graph: Graph, number: int, nets: dict[str, list[Any]]) -> list[Any]:
    """The bits that a register holds: yosys leaves each one of the names that it has inside, outside and where it is read."""
    readers = [reader for reader, node in enumerate(graph.nodes) if number in node.sources]
    names = {f"n{number}_data", *(f"u{reader}.in_data" for reader in readers)}
    inside = f"u{number}."
    own = [name for name in nets if name in names or (name.startswith(inside) and name.endswith(HELD))]
    return [bit for name in own for bit in nets[name]]


def _names(graph: Graph, register: int | None) -> str:
    """The names of the nodes between a register, or the output, and the registers before it."""
    waiting = [graph.output] if register is None else list(graph.nodes[register].sources)
    found: dict[str, None] = {}
    while waiting:
        node = graph.nodes[waiting.pop()]
        if not isinstance(node, Register) and node.sources:
            found[node.name or node.kind] = None
            waiting += node.sources
    return " and ".join(reversed(found))


def _drivers(cells: Any, kind_of: Callable[[str], str | None]) -> tuple[dict[Any, tuple[int, list[Any]]], dict[Any, list[Any]]]:
    """Of each bit that logic drives 1 where it is the first one of a LUT, else 0, and the bits read; of each bit that a flip-flop
    drives the bits that it takes over."""
    drivers: dict[Any, tuple[int, list[Any]]] = {}
    holders: dict[Any, list[Any]] = {}
    for cell in cells:
        kind, directions = kind_of(cell["type"]), cell["port_directions"]
        outputs = [bit for port, bits in cell["connections"].items() if directions[port] == "output" for bit in bits]
        inputs = {port: bits for port, bits in cell["connections"].items() if directions[port] != "output"}
        if kind == "flip_flops":
            data = [bit for port in DATA_PORTS for bit in inputs.get(port, [])]
            holders |= dict.fromkeys(outputs, data)
        else:
            read = [bit for bits in inputs.values() for bit in bits]
            drivers |= {bit: (int(kind == "luts" and not place), read) for place, bit in enumerate(outputs)}
    return drivers, holders


def _cone(bits: list[Any], drivers: dict[Any, tuple[int, list[Any]]], visited: set[Any]) -> int:
    """LUTs, not counted before, that these bits depend on."""
    count = 0
    waiting = list(bits)
    while waiting:
        bit = waiting.pop()
        if bit in visited or bit not in drivers:
            continue
        visited.add(bit)
        count += drivers[bit][0]
        waiting += drivers[bit][1]
    return count
