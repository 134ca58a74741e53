"""`prove`: that the emitted Verilog is what the graph says, for every input; a fault is shown as an input.

    wiring    every pin of every instance in the top module
    states    every register, window and fork, in each state that it can reach
    tables    each different one, by trying every row: up to `max_bits` address bits, with `whole` always
    stages    each combinational node: by SAT where its bus has few bits (at most 9), with `whole` always
    the net   as a whole, where it has no state and so few input bits

SAT claims compare the emitted module with rows from the interpreter, which share no code; yosys searches for an input at which
the two differ. Rows that do not count (codes that cannot occur) are left out of the claim. What is too wide is listed as skipped,
never as proved; `whole=True` skips nothing.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from lutetia import flow
from lutetia.errors import ArgumentError, LutetiaError, check_range
from lutetia.precompute.hdl.design import Design, design
from lutetia.precompute.ir.interpret import encode, evaluate
from lutetia.precompute.ir.stream import StreamEdge, StreamNode
from lutetia.precompute.tables.domains import Domain
from lutetia.precompute.tools.find import require_program
from lutetia.precompute.tools.hardware import EquivalenceError
from lutetia.precompute.tools.sat import FEATURE, first_false
from lutetia.precompute.tools.whole import (
    HOLDING,
    Disproof,
    ProofJob,
    combinational,
    elaborate,
    marker_jobs,
    prove_nodes,
    row_jobs,
    state_jobs,
    sum_jobs,
    table_jobs,
    too_many_readers,
    wiring_jobs,
)
from lutetia.precompute.tools.witness import witness

if TYPE_CHECKING:
    from lutetia.precompute.tools.hardware import Hardware

WIDEST = 16
STAGE_BITS = 9  # a stage of 12 bits with many tables takes a minute, one of 9 a second
BATCH = 200  # claims for one run of yosys
Progress = Callable[[int, int, str], None]  # parts done, parts in all, what comes next


@dataclass(frozen=True)
class ProofClaim:
    """One module, and what it must answer: rows [n_rows] are addresses that count, answers Python integers."""

    name: str  # what it is, for people
    bits: int
    out_bits: int
    rows: np.ndarray
    answers: list[int]
    instance: str  # how the emitted module is used: `{a}` is the address, `{y}` the answer
    decoded: Callable[[int], Any] = field(repr=False)  # an address as the values it encodes
    node: int | None = None


@dataclass(frozen=True)
class Proof:
    """What was proved, and what was too wide; `whole` if it is the whole net."""

    proved: tuple[str, ...]
    skipped: tuple[str, ...]
    max_bits: int
    whole: bool = False

    @property
    def ok(self) -> bool:
        """True: a claim that fails raises. What was skipped is not proved."""
        return True

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "proved": list(self.proved),
            "skipped": list(self.skipped),
            "max_bits": self.max_bits,
            "whole": self.whole,
            "said": str(self),
        }

    def __str__(self) -> str:
        if self.whole:
            return f"the whole net proved in {len(self.proved) - 1} parts"
        skipped = f"; {len(self.skipped)} skipped as too wide" if self.skipped else ""
        return f"{len(self.proved)} parts proved{skipped}"


def prove(hardware: Hardware, max_bits: int = 12, *, whole: bool = False, progress: Progress | None = None) -> Proof:
    """Prove every claim; EquivalenceError with a counterexample where one is false. `progress` is called for each part."""
    check_range("max_bits", max_bits, 1, WIDEST)
    if hardware.language != "verilog":
        raise ArgumentError(f'the hardware is in {hardware.language}, expected "verilog", which yosys reads')
    require_program("yosys", FEATURE)
    plan = design(hardware.graph, hardware.name, hardware.last)
    with flow.step("prove", part="precompute", max_bits=max_bits, whole=whole) as step, tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for name, text in hardware.files.items():
            (folder / name).write_text(text)
        try:
            proved, skipped = _proved(hardware, plan, folder, None if whole else max_bits, progress or (lambda *_: None))
        except _FalseClaim as false:
            raise _shown(hardware, plan, folder, false.finding) from None
        step.note(proved=len(proved), skipped=len(skipped))
    return Proof(tuple(proved), tuple(skipped), max_bits, whole and not skipped)


class _FalseClaim(Exception):
    """A claim that does not hold."""

    def __init__(self, finding: Disproof) -> None:
        super().__init__(finding.name)
        self.finding = finding


def _proved(
    hardware: Hardware, plan: Design, folder: Path, max_bits: int | None, progress: Progress
) -> tuple[list[str], list[str]]:
    """Names of what was proved and of what was too wide; `max_bits` None proves all."""
    netlist = elaborate(hardware, folder)
    skipped = too_many_readers(plan)
    jobs = [*wiring_jobs(plan, netlist), *row_jobs(plan), *state_jobs(plan, netlist), *marker_jobs(plan, netlist)]
    if max_bits is None:
        jobs += [job for job in table_jobs(plan, netlist) if isinstance(job, ProofJob)]
        jobs += sum_jobs(plan, netlist)
        names = ", ".join(dict.fromkeys(plan.graph.nodes[number].kind for number in combinational(plan)))
        jobs.append(ProofJob(f"{len(combinational(plan))} nodes by SAT ({names})", lambda: prove_nodes(hardware, plan, folder)))
    else:
        tables = list(table_jobs(plan, netlist, max_bits))
        jobs += [job for job in tables if isinstance(job, ProofJob)]
        claims = [*(job for job in tables if isinstance(job, str)), *_claims(plan, max_bits)]
        skipped += [claim for claim in claims if isinstance(claim, str)]
        ready = [claim for claim in claims if not isinstance(claim, str)]
        batches = [ready[begin : begin + BATCH] for begin in range(0, len(ready), BATCH)]
        jobs += [_batch_job(hardware, batch, folder) for batch in batches]
    proved: list[str] = []
    for number, job in enumerate(jobs):
        progress(number, len(jobs), job.name)
        finding = job.run()
        if finding is not None:
            raise _FalseClaim(finding)
        proved += job.names or (job.name,)
    if max_bits is None and not skipped:
        proved.append(f"the whole net ({plan.graph.input_edge.width} -> {plan.graph.output_edge.width} bits)")
    return proved, skipped


def _batch_job(hardware: Hardware, batch: list[ProofClaim], folder: Path) -> ProofJob:
    def run() -> Disproof | None:
        text = "\n".join(_miter(number, claim) for number, claim in enumerate(batch))
        found = first_false(hardware, folder, text, [f"claim{number}" for number in range(len(batch))], "a,y,want", alike=False)
        if found is None:
            return None
        claim, seen = batch[found[0]], found[1]
        return Disproof(claim.name, claim.decoded(seen.get("a", 0)), seen.get("y"), seen.get("want"), claim.node)

    return ProofJob(f"{len(batch)} stages by SAT", run, tuple(claim.name for claim in batch))


def _shown(hardware: Hardware, plan: Design, folder: Path, finding: Disproof) -> EquivalenceError:
    """The error for a false claim: where, at which input of that part, and an input of the whole net that shows it."""
    example = {"what": finding.name, "input": finding.input, "found": finding.found, "expected": finding.expected}
    where = "" if finding.input is None else f"at {finding.input} "
    said = finding.found if finding.expected is None else f"it answers {finding.found}, expected {finding.expected}"
    text = f"{finding.name} is not what the graph says: {where}{said}"
    try:
        example |= witness(hardware, plan, folder, finding)
    except LutetiaError as error:  # a circuit that is wrong may also be one that no tool can run
        example["not_shown"] = str(error)
    if "not_shown" in example:
        text += f". No input of the whole net was found that shows it: {example['not_shown']}"
    if "net_input" in example:
        text += f". The net shows it: {example['answer']} in place of {example['expected_answer']}"
    return EquivalenceError(text, example)


# ---- what is claimed -------------------------------------------------------------------------------------------------


def _claims(plan: Design, max_bits: int) -> Iterator[ProofClaim | str]:
    """Claims of nodes and of the net, and names of what is too wide for one."""
    graph = plan.graph
    for number, node in enumerate(graph.nodes):
        if isinstance(node, HOLDING):
            continue
        edges = plan.edges(node)
        bits = sum(edge.width for edge in edges)
        name = f"node {number}, {node.kind}{f' of {node.name}' if node.name else ''} ({bits} -> {node.edge.width} bits)"
        yield name if bits > min(max_bits, STAGE_BITS) else _of_node(plan, number, node, edges, name)
    if not plan.has_state:
        edge = graph.input_edge
        name = f"the whole net ({edge.width} -> {graph.output_edge.width} bits)"
        yield name if edge.width > max_bits else _of_net(plan, edge, name)


def _of_node(plan: Design, number: int, node: StreamNode, edges: list[StreamEdge], name: str) -> ProofClaim:
    joined = [domain for edge in edges for domain in edge.domains]
    rows, values = _all_values(joined)
    splits = np.split(values, np.cumsum([edge.channels for edge in edges])[:-1], axis=1)
    answers = _words(node.edge, evaluate(node, splits, edges))
    pins, low = [], 0
    for source, edge in enumerate(edges):
        prefix = "in" if len(edges) == 1 else f"in{source}"
        pins.append(f".{prefix}_data({{a}}[{low + edge.width - 1}:{low}]), .{prefix}_valid(1'b1), .{prefix}_ready()")
        low += edge.width
    instance = f"{plan.module(number)} gate ({', '.join(pins)}, .out_data({{y}}), .out_valid(), .out_ready(1'b1));"
    return ProofClaim(name, low, node.edge.width, rows, answers, instance, lambda address: _values(joined, address), number)


def _of_net(plan: Design, edge: StreamEdge, name: str) -> ProofClaim:
    rows, values = _all_values(list(edge.domains))
    answers = _words(plan.graph.output_edge, plan.graph(torch.from_numpy(values)).numpy())
    pins = "{a}), .in_valid(1'b1), .in_ready(), .out_data({y}), .out_valid(), .out_ready(1'b1)"
    instance = f"{plan.name} gate (.clk(1'b0), .rst(1'b0), .in_data({pins});"
    domains = list(edge.domains)
    return ProofClaim(
        name, edge.width, plan.graph.output_edge.width, rows, answers, instance, lambda word: _values(domains, word)
    )


def _all_values(domains: list[Domain]) -> tuple[np.ndarray, np.ndarray]:
    """Every word on a bus whose codes have values, and these values: int64 [n], [n, channels]."""
    words = np.arange(2 ** sum(domain.bits for domain in domains))
    kept = np.ones(len(words), dtype=bool)
    columns, low = [], 0
    for domain in domains:
        values = domain.decode(torch.from_numpy(words >> low & (2**domain.bits - 1)))
        kept &= domain.holds(values).numpy()
        columns.append(values.numpy())
        low += domain.bits
    return words[kept], np.ascontiguousarray(np.stack(columns, 1)[kept])


def _words(edge: StreamEdge, values: np.ndarray) -> list[int]:
    """Values [n, channels] as words on the bus."""
    words = [0] * len(values)
    for channel, column in enumerate(encode(edge, values).T.tolist()):
        low = int(edge.offsets[channel])
        words = [word | code << low for word, code in zip(words, column, strict=True)]
    return words


def _values(domains: list[Domain], word: int) -> dict[str, Any]:
    found, low = [], 0
    for domain in domains:
        found.append(int(domain.decode(torch.tensor(word >> low & (2**domain.bits - 1)))))
        low += domain.bits
    return {"word": word, "values": found}


def _miter(number: int, claim: ProofClaim) -> str:
    """The emitted module next to its rows: `ok` where a row counts and both agree, or where none counts.

    Rows are in blocks of 64, chosen by the upper bits: one `case` of thousands exhausts the stack of yosys.
    """
    bits, out = claim.bits, claim.out_bits
    low = min(bits, 6)
    lines = [
        f"module claim{number} (input wire [{bits - 1}:0] a, output wire [{out - 1}:0] y, output wire [{out - 1}:0] want,",
        "    output wire ok);",
        f"    {claim.instance.format(a='a', y='y')}",
        f"    wire [{low - 1}:0] row = a[{low - 1}:0];",
        "    wire counts;",
    ]
    blocks: dict[int, list[str]] = {}
    for row, answer in zip(claim.rows.tolist(), claim.answers, strict=True):
        blocks.setdefault(row >> low, []).append(f"{low}'d{row % 2**low}: b = {{1'b1, {out}'h{answer:x}}};")
    for block, rows in blocks.items():
        lines += _case(f"b{block}", "row", out + 1, rows)
    if bits > low:
        chosen = [f"{bits - low}'d{block}: b = b{block};" for block in blocks]
        lines += _case("found", f"a[{bits - 1}:{low}]", out + 1, chosen)
    else:
        lines.append(f"    wire [{out}:0] found = {'b0' if blocks else f'{out + 1}' + chr(39) + 'd0'};")
    return "\n".join([*lines, "    assign {counts, want} = found;", "    assign ok = !counts | y == want;", "endmodule", ""])


def _case(name: str, chooser: str, width: int, rows: list[str]) -> list[str]:
    listed = [f"        {row.replace(': b =', f': {name} =')}" for row in rows]
    head = [f"    reg [{width - 1}:0] {name};", f"    always @* case ({chooser})"]
    return [*head, *listed, f"        default: {name} = {width}'d0;", "    endcase"]
