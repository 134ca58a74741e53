"""Whether the top module joins its nodes as the graph says: every pin of every instance, from the elaborated netlist."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from lutetia.precompute.hdl.design import Design
from lutetia.precompute.ir.stream import Input, Register, Unpack, Window


class WrongWire(NamedTuple):
    """A pin that is not connected as it should be, and the node it belongs to."""

    node: int
    what: str


def wrong_wire(plan: Design, modules: dict[str, Any]) -> WrongWire | None:
    """The first pin that differs; None where all are right."""
    top = modules[plan.name]
    ports = {name: port["bits"] for name, port in top["ports"].items()}
    cells = {name: cell for name, cell in top["cells"].items() if cell["type"] != "$scopeinfo"}
    expected = _instances(plan)
    for name in sorted({*cells, *expected}):
        node = int(name[1:]) if name[1:].isdigit() else plan.graph.output
        if name not in expected:
            return WrongWire(node, f"the top module has a {cells[name]['type']} ({name}) that the graph does not have")
        if name not in cells:
            return WrongWire(node, f"the top module has no {expected[name]} {name}")
        kind = _module(str(cells[name]["type"]))
        if kind != expected[name]:
            return WrongWire(node, f"{name} is a {kind}, expected a {expected[name]}")
    for node, what, one, other in _pairs(plan, cells, ports):
        if one != other:
            return WrongWire(node, what)
    return None


def _module(kind: str) -> str:
    """The module of a cell type; with parameters it reads $paramod..\\name\\.. in yosys."""
    return kind.split("\\")[1] if kind.startswith("$paramod") else kind


def _instances(plan: Design) -> dict[str, str]:
    """The module of each instance."""
    nodes = enumerate(plan.graph.nodes)
    made = {f"u{number}": plan.module(number) for number, node in nodes if not isinstance(node, Input)}
    forks = {f"f{number}": f"{plan.name}_fork" for number, readers in enumerate(plan.branches) if readers > 1}
    return made | forks | ({"last": f"{plan.name}_last"} if plan.last else {})


def _pairs(plan: Design, cells: dict[str, Any], ports: dict[str, list[Any]]) -> Iterator[tuple[int, str, list[Any], list[Any]]]:
    """Nets that must be the same: of the node, what they are, one, the other."""

    def pin(instance: str, name: str) -> list[Any]:
        return list(cells[instance]["connections"].get(name, []))

    def produced(number: int) -> dict[str, list[Any]]:
        """The data, valid and ready of a node's own output."""
        if number == 0:
            return {name: ports[f"in_{name}"] for name in ("data", "valid", "ready")}
        return {name: pin(f"u{number}", f"out_{name}") for name in ("data", "valid", "ready")}

    def branch(source: int, reader: int) -> tuple[list[Any], list[Any]]:
        """The valid and ready of one reader."""
        if plan.branches[source] == 1:
            own = produced(source)
            return own["valid"], own["ready"]
        return pin(f"f{source}", "out_valid")[reader : reader + 1], pin(f"f{source}", "out_ready")[reader : reader + 1]

    for number, node in enumerate(plan.graph.nodes):
        if plan.branches[number] > 1:
            own = produced(number)
            yield (
                number,
                f"in_valid of the fork after node {number} is not that of the node",
                pin(f"f{number}", "in_valid"),
                own["valid"],
            )
            yield (
                number,
                f"in_ready of the fork after node {number} is not that of the node",
                pin(f"f{number}", "in_ready"),
                own["ready"],
            )
            for clock in ("clk", "rst"):
                yield number, f"{clock} of the fork after node {number} is another wire", pin(f"f{number}", clock), ports[clock]
        if isinstance(node, Input):
            continue
        for clock in ("clk", "rst") if isinstance(node, Register | Window | Unpack) else ():
            yield number, f"{clock} of node {number} is another wire", pin(f"u{number}", clock), ports[clock]
        readers = plan.readers[number]
        for place, reader in enumerate(readers):
            prefix = "in" if len(readers) == 1 else f"in{place}"
            valid, ready = branch(reader.source, reader.branch)
            title = f"of node {number} is not that of node {reader.source}"
            yield number, f"{prefix}_data {title}", pin(f"u{number}", f"{prefix}_data"), produced(reader.source)["data"]
            yield number, f"{prefix}_valid {title}", pin(f"u{number}", f"{prefix}_valid"), valid
            yield number, f"{prefix}_ready {title}", pin(f"u{number}", f"{prefix}_ready"), ready
    last = plan.graph.output
    valid, ready = branch(last, plan.branches[last] - 1)
    yield last, f"out_data of the top module is not that of node {last}", ports["out_data"], produced(last)["data"]
    yield last, f"out_valid of the top module is not that of node {last}", ports["out_valid"], valid
    yield last, f"out_ready of the top module is not that of node {last}", ports["out_ready"], ready
    marker = {"clk": ports["clk"], "rst": ports["rst"], "valid": valid, "ready": ports["out_ready"]} if plan.last else {}
    for name, wire in marker.items():
        yield last, f"{name} of the frame marker is another wire", pin("last", name), wire
    if plan.last:
        yield last, "out_last of the top module is not that of the frame marker", ports["out_last"], pin("last", "last")
