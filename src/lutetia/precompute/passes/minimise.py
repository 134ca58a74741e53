"""`minimise`: the cheapest of three forms for each table, as LUTs that are emitted one by one.

    yosys     the synthesiser's result (where it is installed; tables of up to 14 address bits)
    shannon   a tree of cofactors
    adder     partial sums, where the table collapses into them

Running a synthesiser over a tree of LUTs again undoes it, so LUTs are instances. Every form is compared with its table, row by
row, before it is kept.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from lutetia.errors import fail
from lutetia.precompute.ir.netlist import ONE, ZERO, LutCells, LutForm, columns
from lutetia.precompute.ir.stream import TableData
from lutetia.precompute.passes.adders import adder
from lutetia.precompute.passes.shannon import shannon
from lutetia.precompute.tables.domains import check_whole
from lutetia.precompute.tools.find import find_tool, run_yosys

WIDEST = 14  # maximum address bits of tables passed to yosys
BATCH = 64


def minimise_tables(tables: Sequence[TableData], k: int = 6) -> list[TableData]:
    """The tables, each with its cheapest `form`; yosys starts once per 64."""
    _check(tables, k)
    found: list[dict[str, LutForm]] = []
    wide = []
    for number, table in enumerate(tables):
        forms = {"shannon": shannon(table, k)} if table.k else {}
        if table.k and forms["shannon"].luts > _least(table, k):
            summed = adder(table, k)
            if summed is not None:
                forms["adder"] = summed
            if table.k <= WIDEST:
                wide.append(number)
        found.append(forms)
    if wide and find_tool("yosys") is not None:
        for begin in range(0, len(wide), BATCH):
            part = wide[begin : begin + BATCH]
            for number, form in zip(part, yosys_forms([tables[each] for each in part], k), strict=True):
                found[number]["yosys"] = form
    return [_best(table, forms) for table, forms in zip(tables, found, strict=True)]


def _check(tables: object, k: object) -> None:
    """Tables [2**k, n_outputs] with the bits of each output; 2 to 16 inputs of a LUT."""
    check_whole("k", k, 2, 16)
    if not isinstance(tables, Sequence):
        fail("tables", tables, "a list of TableData")
    for table in tables:
        if not isinstance(table, TableData) or not _is_sound(table):
            fail("one of tables", table, "a TableData of 2**k rows, with the bits of each of its outputs")


def _is_sound(table: TableData) -> bool:
    """Whether rows, outputs and their bits go together."""
    contents, bits, care = table.contents, table.bits, table.care
    if not isinstance(contents, np.ndarray) or contents.ndim != 2 or len(contents).bit_count() != 1 or not contents.shape[1]:
        return False
    if not isinstance(bits, tuple) or len(bits) != contents.shape[1] or not all(isinstance(n, int) and 0 < n < 63 for n in bits):
        return False
    return care is None or (isinstance(care, np.ndarray) and care.shape == contents.shape[:1])


def _least(table: TableData, k: int) -> int:
    """A lower bound for every form: one LUT for each different output that is neither constant nor a wire."""
    care = slice(None) if table.care is None else table.care
    addresses = np.arange(len(table.contents))[care]
    free = {bytes(len(addresses)), bytes([1]) * len(addresses)}
    free |= {(addresses >> bit & 1).astype(np.uint8).tobytes() for bit in range(table.k)}
    return len({column[care].astype(np.uint8).tobytes() for column in columns(table)} - free)


def _best(table: TableData, forms: dict[str, LutForm]) -> TableData:
    right = {kind: form for kind, form in forms.items() if _is_right(table, form)}
    if set(right) != set(forms):  # a mistake here, or in yosys: never silently
        raise AssertionError(f"the forms {sorted(set(forms) - set(right))} do not give the rows of their table")
    if not right:
        return table
    kind = min(right, key=lambda each: right[each].luts)
    return replace(table, form=replace(right[kind], tried={each: form.luts for each, form in right.items()}))


def _is_right(table: TableData, form: LutForm) -> bool:
    wrong = form.columns() != columns(table)
    return not (wrong if table.care is None else wrong[:, table.care]).any()


# ---- yosys -----------------------------------------------------------------------------------------------------------


def yosys_forms(tables: Sequence[TableData], k: int) -> list[LutForm]:
    """What `synth -lut k` makes of each table on its own."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "tables.v").write_text("\n".join(_module(number, table) for number, table in enumerate(tables)))
        script = ["read_verilog tables.v", f"synth -lut {k}", "opt_clean -purge", "write_json tables.json"]
        run_yosys(script, folder, "minimise()")
        modules = json.loads((folder / "tables.json").read_text())["modules"]
    return [_imported(modules[f"t{number}"], table.k, k) for number, table in enumerate(tables)]


def _module(number: int, table: TableData) -> str:
    """Rows as a `case`, with x for rows that do not count, as one would write it by hand."""
    bits, out = table.k, table.out_bits
    lines = [f"module t{number} (input wire [{bits - 1}:0] a, output reg [{out - 1}:0] y);", "always @* case (a)"]
    counts = np.ones(len(table.contents), dtype=bool) if table.care is None else table.care
    for row in np.flatnonzero(counts).tolist():
        word = 0
        for column in reversed(range(len(table.bits))):
            word = word << table.bits[column] | int(table.contents[row, column])
        lines.append(f"{bits}'d{row}: y = {out}'h{word:x};")
    return "\n".join([*lines, f"default: y = {out}'bx;", "endcase", "endmodule"])


def _imported(module: dict[str, Any], n: int, k: int) -> LutForm:
    """The `$lut` cells of a module, each after those it reads."""
    signal: dict[Any, int] = {"0": ZERO, "1": ONE, "x": ZERO}
    signal |= {net: at for at, net in enumerate(module["ports"]["a"]["bits"])}
    luts = {cell["connections"]["Y"][0]: cell for cell in module["cells"].values() if cell["type"] == "$lut"}
    cells = LutCells(n)

    for net in _ordered(luts):
        cell = luts[net]
        inputs = [signal[each] for each in cell["connections"]["A"]]
        init = int(str(cell["parameters"]["LUT"]).replace("x", "0"), 2)
        signal[net] = cells.add(tuple(inputs), init)
    return cells.form("yosys", k, [signal[each] for each in module["ports"]["y"]["bits"]])


def _ordered(luts: dict[Any, Any]) -> Iterable[Any]:
    done: set[Any] = set()
    for start in luts:
        stack = [start]
        while stack:
            net = stack[-1]
            waiting = [each for each in luts[net]["connections"]["A"] if each in luts and each not in done]
            if net in done or not waiting:
                stack.pop()
                if net not in done:
                    done.add(net)
                    yield net
            else:
                stack += waiting
