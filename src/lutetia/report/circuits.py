"""A stream graph as a circuit for the report: its parts, costs and a waveform."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from lutetia.errors import check_range, check_tensor, fail
from lutetia.report.story import CellTable, Check, Circuit, Part, Waveform, WaveLine

if TYPE_CHECKING:
    from lutetia.precompute import Graph

HEX_DIGITS = 6  # of a wide bus that are shown
MOST_CYCLES = 256


def circuit(
    graph: Graph,
    *,
    x: Tensor | None = None,
    checks: Sequence[Check] = (),
    facts: Mapping[str, str] | None = None,
    said: str = "",
    k: int = 6,
) -> Circuit:
    """The circuit of a graph of `lutetia.precompute`, with its estimated costs in LUTs of k inputs.

    `x`, whole numbers [frames, channels], are sent through for the waveform, one each cycle. `facts` come after those that the
    graph itself gives.
    """
    costs = graph.cost(k)
    parts = [
        Part(node.kind, node.name, node.sources, row.channels, row.bits, _tables(row.tables, row.lookups))
        for node, row in zip(graph.nodes, costs.rows, strict=True)
    ]
    own = {
        "tables": f"{graph.n_tables:,}",
        "table bits": f"{costs.table_bits:,}",
        f"LUT{k} (estimate)": f"{costs.luts:,}",
        "flip-flops": f"{costs.flip_flops:,}",
        "latency": f"{costs.latency} cycles",
    }
    if f"LUT{k}" in (facts or {}):
        del own[f"LUT{k} (estimate)"]  # counted by synthesis
    wave = None if x is None else waveform(graph, x)
    return Circuit(parts, said, own | dict(facts or {}), _cost_table(costs, k), tuple(checks), wave)


def _tables(tables: int, lookups: int) -> str:
    if not lookups:
        return ""
    many = f"{tables:,} table{'' if tables == 1 else 's'}"
    return many if tables == lookups else f"{many}, {lookups:,} lookups"


def _cost_table(costs: object, k: int) -> CellTable:
    columns = ("node", "kind", "channels", "bits", "tables", "widest", "table bits", f"LUT{k}", "FF")
    rows: list[Sequence[str | int | float]] = []
    for row in costs.rows:  # type: ignore[attr-defined]
        name = f"{row.node} {row.name}".strip()
        rows.append((name, row.kind, row.channels, row.bits, row.tables, row.widest, row.table_bits, row.luts, row.flip_flops))
    return CellTable(
        columns, rows, f"LUT{k} and FF (flip-flops) are bounds and estimates before synthesis.", "What each node needs"
    )


def waveform(graph: Graph, x: Tensor) -> Waveform:
    """What every bus carries, cycle by cycle, when frames x [frames, channels], whole numbers, enter one after the other.

    The values are the integer interpreter's, the times those of the graph's registers when nothing stalls.
    """
    from lutetia.precompute import trace_values

    if any(node.edge.shape for node in graph.nodes):
        fail("graph", graph, "one whose frames are a single sample, such as a LUT network")
    check_tensor("x", x, ["frames", graph.input_edge.channels])
    check_range("the number of frames", len(x), 1, MOST_CYCLES)
    values = trace_values(graph, x)
    arrival: list[int] = []
    for node in graph.nodes:
        arrival.append(max((arrival[source] for source in node.sources), default=0) + node.latency)
    frames, last = len(x), arrival[graph.output]
    cycles = last + frames + 1
    signals = [
        WaveLine("clk", [(c + half, c + half + 0.5, str(int(not half))) for c in range(cycles) for half in (0.0, 0.5)], True)
    ]
    signals.append(_valid("in_valid", 0, frames, cycles))
    for number, (node, begin, carried) in enumerate(zip(graph.nodes, arrival, values, strict=True)):
        spans = [(float(begin + frame), float(begin + frame + 1), _word(row, node.edge)) for frame, row in enumerate(carried)]
        signals.append(WaveLine(f"{number} {node.kind}", spans))
    signals.append(_valid("out_valid", last, frames, cycles))
    one = "1 input" if frames == 1 else f"{frames} inputs"
    said = f"{one} through the pipeline; the first answer comes out after {last} cycles."
    return Waveform(signals, cycles, f"{said} Wide buses show their first digits, in hexadecimal.")


def _valid(name: str, begin: int, frames: int, cycles: int) -> WaveLine:
    spans = [(0, begin, "0"), (begin, begin + frames, "1"), (begin + frames, cycles, "0")]
    return WaveLine(name, [(float(a), float(b), value) for a, b, value in spans if b > a], True)


def _word(row: np.ndarray, edge: object) -> str:
    """A bus as text: one channel as a number, a few as a list, many as the first digits of the whole word in hexadecimal."""
    flat = row.reshape(-1).tolist()
    if len(flat) == 1:
        return str(flat[0])
    if len(flat) <= 3:
        return ", ".join(map(str, flat))
    word = shift = 0
    for value, domain in zip(flat, edge.domains, strict=True):  # type: ignore[attr-defined]
        word |= (value & ((1 << domain.bits) - 1)) << shift
        shift += domain.bits
    digits = f"{word:0{-(-shift // 4)}x}"
    return f"{digits[:HEX_DIGITS]}…" if len(digits) > HEX_DIGITS else digits
