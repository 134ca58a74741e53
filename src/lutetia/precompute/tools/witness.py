"""A fault of one part, shown as an input of the whole net.

Random samples are simulated first. A wrong row of a table is then looked for by the interpreter, which runs the graph with and
without it on thousands of samples: those that reach the row are changed here and there until the answer differs. At last SAT
searches through the net, for a minute at most.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from lutetia.precompute.front.samples import random_input, values_of
from lutetia.precompute.hdl.design import Design
from lutetia.precompute.hdl.testbench import Bench, bench
from lutetia.precompute.ir.interpret import trace_values
from lutetia.precompute.ir.stream import Input, Register, TableData, Unpack, Window
from lutetia.precompute.tools.builtin_simulator import simulate_builtin
from lutetia.precompute.tools.find import check_time, time_limit
from lutetia.precompute.tools.sat import first_false
from lutetia.precompute.tools.specify import specification

if TYPE_CHECKING:
    from lutetia.precompute.ir.graph import Graph
    from lutetia.precompute.tools.hardware import Hardware
    from lutetia.precompute.tools.whole import Disproof

SAMPLES = 2048  # that are simulated, at most
FRAMES = 64
SEARCHED, ROUNDS = 2048, 24  # samples of a round of the search by the interpreter, at most; rounds
SOLVE = 60.0  # seconds for the search by SAT: sums and an argmax behind the fault can take it hours


def witness(hardware: Hardware, plan: Design, folder: Path, finding: Disproof) -> dict[str, Any]:
    """An input of the net with a wrong answer, that answer and the right one; `not_shown` says why there is none."""
    if finding.silent:
        return {"not_shown": finding.silent}
    samples = plan.graph.input_edge.samples or 64
    x = random_input(plan.graph, max(2, min(FRAMES, SAMPLES // samples)), seed=0)
    shown = _simulated(hardware, plan, bench(hardware, x), folder)
    if not shown and finding.faulty is not None:
        found = search(plan.graph, finding.faulty, max(2, SEARCHED // samples))
        if found is not None:  # the Verilog itself has to show it
            shown = _simulated(hardware, plan, bench(hardware, found), folder)
    if not shown and finding.node is not None:
        with time_limit(min(SOLVE, check_time("the search for an input"))):
            shown = _solved(hardware, plan, folder, finding.node)
    return shown or {"not_shown": "none of the samples that were tried, and none that SAT can find"}


def search(graph: Graph, faulty: Graph, batch: int) -> Tensor | None:
    """A sample that two graphs of equal shape answer differently, [1, channels, *shape]; None where none was found.

    Half of each round comes from samples at which anything inside differs: one of them, or a mixture of the values that they
    have, in which what they need stays and the rest varies; some values are redrawn. The other half is new.
    """
    rng = np.random.default_rng(0)
    near = random_input(graph, 0, seed=0)
    for number in range(ROUNDS):
        check_time("the search for an input")
        x = random_input(graph, batch, seed=number + 1)
        if len(near):
            x[: batch // 2] = _varied(near, x[: batch // 2], rng)
        inside = np.zeros(len(x), dtype=bool)
        for right, wrong in zip(trace_values(graph, x), trace_values(faulty, x), strict=True):
            differs = (right != wrong).reshape(len(x), -1).any(1)
            inside |= differs
        if differs.any():
            return x[np.flatnonzero(differs)[:1]]
        near = torch.cat([near, x[inside]])[-batch:]
    return None


def _varied(near: Tensor, fresh: Tensor, rng: np.random.Generator) -> Tensor:
    """As many samples as fresh ones, every second one a mixture; in each, up to all values are those of a fresh one."""
    values, n = near.flatten(1).numpy(), len(fresh)
    kept = values[rng.integers(0, len(values), n)]
    mixed = [rng.choice(np.unique(column), n // 2) for column in values.T]  # rare values as often as others
    kept[: n // 2] = np.stack(mixed, 1)
    redrawn = rng.random(kept.shape) < rng.random((n, 1)) ** 2
    return torch.from_numpy(np.where(redrawn, fresh.flatten(1).numpy(), kept)).reshape(fresh.shape)


def _simulated(hardware: Hardware, plan: Design, made: Bench, folder: Path) -> dict[str, Any]:
    answers = simulate_builtin(hardware, made, folder, seed=0, stalls=True).answers
    count = min(len(answers), len(made.expected))
    differs = np.flatnonzero((answers[:count] != made.expected[:count]).any(1))
    if not len(differs) and count == len(made.expected):
        return {}
    first = int(differs[0]) if len(differs) else count
    frame = first // max(len(made.expected) // made.batch, 1)
    length = len(made.stimulus) // made.batch
    edge, out = plan.graph.input_edge, plan.graph.output_edge
    inputs = values_of(edge, made.stimulus[frame * length : (frame + 1) * length], length, ())
    answer = values_of(out, answers[first : first + 1], 1, ())[0].tolist() if len(differs) else "nothing"
    return {
        "net_input": (inputs[0] if length == 1 else inputs.T).tolist(),
        "frame": frame,
        "answer": answer,
        "expected_answer": values_of(out, made.expected[first : first + 1], 1, ())[0].tolist(),
    }


def _solved(hardware: Hardware, plan: Design, folder: Path, node: int) -> dict[str, Any]:
    """SAT over the net without its registers, twice: as emitted, and with the right node in the wrong one's place."""
    nodes = plan.graph.nodes
    if any(isinstance(each, Window | Unpack) for each in nodes) or isinstance(nodes[node], Input | Register):
        return {}
    edge, out = plan.graph.input_edge, plan.graph.output_edge
    rights: dict[str, str] = {}

    def right(table: TableData) -> str:
        name = f"right{plan.table_number(table)}"
        rights[name] = _rows(name, table)
        return name

    lines = [f"module shown (input wire [{edge.width - 1}:0] a, output wire [{out.width - 1}:0] y,"]
    lines += [f"    output wire [{out.width - 1}:0] want, output wire ok);"]
    spec = specification(plan, node, "right_node", right)
    for side in ("e", "s"):
        for number, each in enumerate(nodes):
            lines += _placed(plan, number, side, each, wrong=node if side == "s" else -1)
    last = plan.graph.output
    lines += [f"assign y = e{last};", f"assign want = s{last};", "assign ok = y == want;", "endmodule"]
    found = first_false(hardware, folder, "\n".join([*rights.values(), spec, *lines, ""]), ["shown"], "a,y,want")
    if found is None:
        return {}
    return {
        "net_input": _values(edge, found[1].get("a", 0)),
        "answer": _values(out, found[1].get("y", 0)),
        "expected_answer": _values(out, found[1].get("want", 0)),
    }


def _placed(plan: Design, number: int, side: str, node: Any, wrong: int) -> list[str]:
    width = node.edge.width
    head = f"wire [{width - 1}:0] {side}{number}"
    if isinstance(node, Input):
        return [f"{head} = a;"]
    if isinstance(node, Register):
        return [f"{head} = {side}{node.source};"]
    sources = [f"{side}{source}" for source in node.sources]
    if number == wrong:
        return [f"{head};", f"right_node u{side}{number} (.a({{{', '.join(reversed(sources))}}}), .y({side}{number}));"]
    pins = []
    for place, source in enumerate(sources):
        prefix = "in" if len(sources) == 1 else f"in{place}"
        pins.append(f".{prefix}_data({source}), .{prefix}_valid(1'b1), .{prefix}_ready()")
    outs = f".out_data({side}{number}), .out_valid(), .out_ready(1'b1)"
    return [f"{head};", f"{plan.module(number)} u{side}{number} ({', '.join(pins)}, {outs});"]


def _rows(name: str, table: TableData) -> str:
    """A table as a case over its rows."""
    lines = [f"module {name} (input wire [{table.k - 1}:0] a, output reg [{table.out_bits - 1}:0] y);", "always @* case (a)"]
    for row, word in enumerate(table_words(table)):
        lines.append(f"{table.k}'d{row}: y = {table.out_bits}'h{word:x};")
    return "\n".join([*lines, f"default: y = {table.out_bits}'d0;", "endcase", "endmodule", ""])


def table_words(table: TableData) -> list[int]:
    """Each row as one number of any size, output 0 in the lowest bits."""
    words = [0] * len(table.contents)
    for column in reversed(range(len(table.bits))):
        words = [word << table.bits[column] | int(code) for word, code in zip(words, table.contents[:, column], strict=True)]
    return words


def _values(edge: Any, word: int) -> list[int]:
    bits = np.array([[word >> bit & 1 for bit in range(edge.width)]], dtype=np.uint8)
    values: list[int] = values_of(edge, bits, 1, ())[0].tolist()
    return values
