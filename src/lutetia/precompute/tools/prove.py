"""`prove`: SAT proofs that the emitted logic is what the graph says.

The emitted module is compared with a specification written from the numbers of the table, row by row, by other code than the
emission: a `case` with one line per row that counts. yosys looks for an input at which the two differ. Proved are

    tables    each different one of up to `max_bits` address bits
    stages    each combinational node whose bus has few bits (at most 9); its rows come from the interpreter
    the net   as a whole, where it has no state and so few input bits; its rows come from the interpreter too

Rows that do not count (codes that cannot occur) are left out of the claim. Wider things are listed as skipped, never as proved.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from lutetia import flow
from lutetia.errors import ArgumentError, JobError, check_range
from lutetia.precompute.hdl.design import Design, design
from lutetia.precompute.ir.interpret import encode, evaluate
from lutetia.precompute.ir.stream import Input, Register, StreamEdge, StreamNode, Table, TableData, Window
from lutetia.precompute.tables.domains import Domain
from lutetia.precompute.tools.find import require_program, run_yosys
from lutetia.precompute.tools.hardware import EquivalenceError

if TYPE_CHECKING:
    from lutetia.precompute.tools.hardware import Hardware

WIDEST = 16
STAGE_BITS = 9  # a stage of 12 bits with many tables takes a minute, one of 9 a second
BATCH = 200  # claims for one run of yosys
YOSYS = "prove()"


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


@dataclass(frozen=True)
class Proof:
    """What was proved, and what was too wide to be."""

    proved: tuple[str, ...]
    skipped: tuple[str, ...]
    max_bits: int

    @property
    def ok(self) -> bool:
        """True: a claim that fails raises. What was skipped is not proved."""
        return True

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return {"proved": list(self.proved), "skipped": list(self.skipped), "max_bits": self.max_bits}

    def __str__(self) -> str:
        skipped = f"; {len(self.skipped)} left out as too wide" if self.skipped else ""
        return f"{len(self.proved)} proved by SAT (yosys){skipped}"


def prove(hardware: Hardware, max_bits: int = 12) -> Proof:
    """Prove every claim; EquivalenceError with a counterexample where one is false."""
    check_range("max_bits", max_bits, 1, WIDEST)
    if hardware.language != "verilog":
        raise ArgumentError(f'the hardware is in {hardware.language}, expected "verilog", which yosys reads')
    require_program("yosys", YOSYS)
    plan = design(hardware.graph, hardware.name)
    proved, skipped = [], []
    with flow.step("prove", part="precompute", max_bits=max_bits) as step, tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for name, text in hardware.files.items():
            (folder / name).write_text(text)
        batch: list[ProofClaim] = []
        for made in _claims(plan, max_bits):
            if isinstance(made, str):
                skipped.append(made)
                continue
            proved.append(made.name)
            batch.append(made)
            if len(batch) == BATCH:
                _prove(hardware, batch, folder)
                batch = []
        if batch:
            _prove(hardware, batch, folder)
        step.note(proved=len(proved), skipped=len(skipped))
    return Proof(tuple(proved), tuple(skipped), max_bits)


# ---- what is claimed -------------------------------------------------------------------------------------------------


def _claims(plan: Design, max_bits: int) -> Iterator[ProofClaim | str]:
    """Claims, and names of what is too wide for one."""
    for number, table in enumerate(plan.tables):
        name = f"table {number} ({table.k} -> {table.out_bits} bits)"
        if table.k:
            yield name if table.k > max_bits else _of_table(plan, number, table, name)
    graph = plan.graph
    for number, node in enumerate(graph.nodes):
        if isinstance(node, Input | Register | Window):
            continue
        edges = plan.edges(node)
        bits = sum(edge.width for edge in edges)
        name = f"node {number}, {node.kind}{f' of {node.name}' if node.name else ''} ({bits} -> {node.edge.width} bits)"
        yield name if bits > min(max_bits, STAGE_BITS) else _of_node(plan, number, node, edges, name)
    if not plan.has_state:
        edge = graph.input_edge
        name = f"the whole net ({edge.width} -> {graph.output_edge.width} bits)"
        yield name if edge.width > max_bits else _of_net(plan, edge, name)


def _of_table(plan: Design, number: int, table: TableData, name: str) -> ProofClaim:
    rows = np.arange(2**table.k) if table.care is None else np.flatnonzero(table.care)
    answers = []
    for row in rows:
        word = 0
        for column in reversed(range(len(table.bits))):
            word = word << table.bits[column] | int(table.contents[row, column])
        answers.append(word)
    instance = f"{plan.table(number)} gate (.a({{a}}), .y({{y}}));"
    used = _first_use(plan, table)
    return ProofClaim(name, table.k, table.out_bits, rows, answers, instance, lambda address: used(address))


def _first_use(plan: Design, table: TableData) -> Callable[[int], Any]:
    """An address of a table as the bits of the bus that its first reader reads."""

    def decoded(address: int) -> Any:
        for node in plan.graph.nodes:
            for lookup in node.lookups if isinstance(node, Table) else ():
                assert isinstance(node, Table)
                if node.tables[lookup.table].key == table.key:
                    read = address ^ lookup.flip
                    bits = {bit: read >> (table.k - 1 - at) & 1 for at, bit in enumerate(lookup.inputs)}
                    return {"address": address, "bits": bits, "channels": _channels(plan.edges(node)[0], bits)}
        return {"address": address}

    return decoded


def _channels(edge: StreamEdge, bits: dict[int, int]) -> dict[int, int]:
    """Channels of which every bit is known, as values."""
    found = {}
    for channel, domain in enumerate(edge.domains):
        own = list(range(int(edge.offsets[channel]), int(edge.offsets[channel + 1])))
        if all(bit in bits for bit in own):
            code = sum(bits[bit] << at for at, bit in enumerate(own))
            found[channel] = int(domain.decode(torch.tensor(code)))
    return found


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
    return ProofClaim(name, low, node.edge.width, rows, answers, instance, lambda address: _values(joined, address))


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


# ---- yosys -----------------------------------------------------------------------------------------------------------


def _prove(hardware: Hardware, claims: list[ProofClaim], folder: Path) -> None:
    (folder / "claims.v").write_text("\n".join(_miter(number, claim) for number, claim in enumerate(claims)))
    sources = " ".join([*hardware.sources, "claims.v"])
    script = [f"read_verilog -DSYNTHESIS {sources}", "hierarchy", "proc -norom", "flatten", "opt_clean"]
    for number in range(len(claims)):
        script.append(f"sat -verify -prove ok 1 -show a,y,want -dump_json wrong{number}.json claim{number}")
    done = run_yosys(script, folder, YOSYS, check=False)
    if not done.returncode:
        return
    for number, claim in enumerate(claims):
        found = folder / f"wrong{number}.json"
        if found.is_file():
            raise _false(claim, _signals(json.loads(found.read_text())))
    raise JobError(f"yosys failed with exit code {done.returncode}: {(done.stdout + done.stderr).strip()[-800:]}")


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


def _signals(found: dict[str, Any]) -> dict[str, int]:
    """The values of a counterexample, from the WaveJSON that yosys writes."""
    values = {}
    for signal in found["signal"]:
        text = str(signal.get("data", [""])[0]) if "=" in str(signal.get("wave", "")) else str(signal["wave"])
        digits = "".join(each for each in text if each in "01")
        values[str(signal["name"]).lstrip("\\")] = int(digits, 2) if digits else 0
    return values


def _false(claim: ProofClaim, signals: dict[str, int]) -> EquivalenceError:
    decoded = claim.decoded(signals.get("a", 0))
    example = {"what": claim.name, "input": decoded, "found": signals.get("y"), "expected": signals.get("want")}
    return EquivalenceError(
        f"{claim.name} is not what the graph says: at {decoded} it answers {example['found']}, expected {example['expected']}",
        example,
    )
