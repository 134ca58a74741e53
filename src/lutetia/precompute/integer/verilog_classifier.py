"""A classifier of one layer of tables as Verilog that uses its comparators and memories several times for every sample.

`reuse` is how often: 1 has a bank for every table; n has 1/n of the banks, which take n cycles. Tables are in memories that are
filled from files, so the size of the logic hardly depends on their number.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from lutetia.errors import ArgumentError, check_range, check_tensor
from lutetia.precompute.integer.classifier import IntegerClassifier, TableStage
from lutetia.precompute.integer.hardware import BENCH, COMPILE, read_outputs, simulator_for
from lutetia.precompute.integer.verilog_language import bits_for, hex_words, template, words
from lutetia.precompute.tools.find import run_program, time_limit
from lutetia.precompute.tools.hardware import EquivalenceError

MOST_CLASSES = 256
BEHIND = 6  # stages behind the last group of tables


@dataclass(frozen=True, eq=False)
class SharedClassifier:
    """The core of a classifier; `files` are its Verilog and the contents of its memories."""

    model: IntegerClassifier = field(repr=False)
    reuse: int
    files: dict[str, str] = field(repr=False)

    @property
    def cycles(self) -> int:
        """From an accepted sample to its answer."""
        return self.reuse + BEHIND + self.model.n_outputs

    @property
    def sources(self) -> list[str]:
        """The Verilog files of the core."""
        return [name for name in self.files if name.endswith(".v")]

    def testbench(self, x: torch.Tensor) -> dict[str, str]:
        """The files of a bench that feeds samples, int64 [n, n_inputs]."""
        bits = self.model.input_bits
        bench = template("classifier_bench.v").replace("@COUNT@", str(len(x))).replace("@IN_BITS@", str(x.shape[1] * bits))
        return {BENCH: bench, "samples.mem": hex_words(words(x.numpy(), bits))}

    def simulate(self, x: object, *, tool: str | None = None, limit: float | None = None) -> torch.Tensor:
        """The classes that a simulator gives for whole numbers x [n, n_inputs]: int64 [n].

        Both sides of the ports pause at random. EquivalenceError where a class is not that of the model, or comes too late.
        """
        given = torch.as_tensor(x).to(torch.int64)
        wanted = self.model(given)  # checks x
        check_tensor("x", given, ["n", self.model.n_inputs])
        if not len(given):
            return wanted
        tool = simulator_for(tool, len(given))
        with tempfile.TemporaryDirectory() as place, time_limit(limit):
            for name, text in {**self.files, **self.testbench(given)}.items():
                (Path(place) / name).write_text(text)
            run_program(COMPILE[tool](Path(place), self.sources), Path(place), check=False)
            written = read_outputs(Path(place), len(given))
        classes = torch.tensor(list(written.text))
        wrong = (classes != wanted).nonzero()
        if len(wrong):
            sample = int(wrong[0])
            raise EquivalenceError(f"sample {sample} comes out of the simulator as {classes[sample]}, expected {wanted[sample]}")
        late = {cycles for cycles in written.cycles if cycles != self.cycles}
        if late:
            raise EquivalenceError(f"an answer takes {late.pop()} cycles, expected {self.cycles}")
        return classes


def emit_shared(model: IntegerClassifier, reuse: int) -> SharedClassifier:
    """The core of a classifier whose banks are used `reuse` times, 1 to the number of its tables."""
    if len(model.stages) != 1 or not isinstance(model.stages[0], TableStage):
        raise ArgumentError(f"the model has {len(model.stages)} layers, expected one layer of tables: only that can be shared")
    if not 2 <= model.n_outputs <= MOST_CLASSES:
        raise ArgumentError(f"the model has {model.n_outputs} outputs, expected 2 to {MOST_CLASSES} classes")
    stage = model.stages[0]
    check_range("reuse", reuse, 1, len(stage.lanes))
    banks = -(-len(stage.lanes) // reuse)
    reuse = -(-len(stage.lanes) // banks)  # as few groups as these banks need
    rows = _rows(stage, model.n_outputs)
    width = int(rows.max(initial=1)).bit_length()
    sizes = {
        "D": banks, "K": stage.lanes.shape[1], "N": model.n_inputs, "B": model.input_bits, "INDEX_BITS": bits_for(model.n_inputs),
        "SPREAD": bits_for(model.input_bits),
        "GROUPS": reuse, "GROUP_BITS": bits_for(reuse), "OUTPUTS": model.n_outputs, "W": width, "SUM_BITS": stage.bits,
    }  # fmt: skip
    (bias,) = words(stage.bias[None], stage.bits)
    parameters = "".join(f"    localparam {name} = {value};\n" for name, value in sizes.items())
    parameters += f"    localparam [OUTPUTS*SUM_BITS-1:0] BIAS = {model.n_outputs * stage.bits}'h{bias:x};\n"
    text = template("classifier.v").replace("@IN_BITS@", str(model.n_inputs * model.input_bits))
    text = text.replace("@PARAMETERS@", parameters).replace("@MEMORIES@", _memories(banks))
    contents = {"lanes.mem": hex_words(_lane_words(model, stage, banks, reuse))}
    for bank in range(banks):
        own = np.zeros((reuse, *rows.shape[1:]), dtype=np.int64)
        part = rows[bank::banks]
        own[: len(part)] = part
        contents[f"tables_{bank}.mem"] = hex_words(words(own.reshape(-1, model.n_outputs), width))
    return SharedClassifier(model, reuse, {"memories.v": template("memories.v"), "core.v": text, **contents})


def _rows(stage: TableStage, n_outputs: int) -> np.ndarray:
    """The rows of every lookup for every class: int64 [n_lookups, 2**k, n_outputs]."""
    rows = np.zeros((len(stage.lanes), 1 << stage.lanes.shape[1], n_outputs), dtype=np.int64)
    for lookup, (contents, targets) in enumerate(zip(stage.contents, stage.targets, strict=True)):
        for column, target in enumerate(targets.tolist()):
            rows[lookup, :, target] += contents[:, column]
    return rows


def _lane_words(model: IntegerClassifier, stage: TableStage, banks: int, groups: int) -> list[int]:
    """For each group what its banks compare: left, right, constant, which of the two is used, whether to invert the answer."""
    index, bits = bits_for(model.n_inputs), model.input_bits + 1
    k = stage.lanes.shape[1]
    lane_bits = 2 * index + bits + 2
    lanes = [0] * (groups * banks * k)
    for lookup, own in enumerate(stage.lanes.tolist()):
        for place, lane in enumerate(reversed(own)):  # the lowest bit of the row first
            right, constant = int(stage.right[lane]), int(stage.constant[lane])
            word = int(stage.left[lane]) | max(right, 0) << index
            if right < 0:
                word |= (constant & ((1 << bits) - 1)) << 2 * index | 1 << 2 * index + bits
            word |= (int(stage.flip[lookup]) >> place & 1) << 2 * index + bits + 1
            lanes[lookup * k + place] = word
    size = banks * k
    return [sum(word << lane_bits * at for at, word in enumerate(lanes[g * size : (g + 1) * size])) for g in range(groups)]


def _memories(banks: int) -> str:
    lines = ["    wire [D*OUTPUTS*W-1:0] rows;"]
    for bank in range(banks):
        lines += [
            "    lutetia_rom #(.WIDTH(OUTPUTS * W), .DEPTH(GROUPS << K), .ADDRESS(GROUP_BITS + K), "
            f'.FILE("tables_{bank}.mem")) table_memory_{bank} (',
            f"        .clk(clk), .address({{g_4, cell_4[{bank}*K +: K]}}), .data(rows[{bank}*OUTPUTS*W +: OUTPUTS*W]));",
        ]
    return "\n".join([*lines, ""])
