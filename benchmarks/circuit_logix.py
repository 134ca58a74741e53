"""torchlogix's networks as circuits: what it exports, with our comparisons in front and our argmax behind it.

Its Verilog starts with bits and ends with a count for each class. The module around it compares numbers of 8 bits with
constants and finds the first of the largest counts, as our circuits do.
"""

from __future__ import annotations

import math
import platform
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lutetia.errors import DataError, MissingFeatureError
from lutetia.precompute import read_cells, recipe, require_program, run_program, run_yosys

BITS = 8  # of an input
Comparison = tuple[int, int]  # an input and the constant that it is compared with


def layers_of() -> Any:
    """torchlogix.layers; an error that says what is missing."""
    try:
        from torchlogix import layers
    except SyntaxError as error:
        raise MissingFeatureError(f"torchlogix needs Python 3.12 or later, this is {platform.python_version()}") from error
    except ImportError as error:
        raise MissingFeatureError(f"this needs torchlogix (pip install --no-deps torchlogix==0.2.2): {error}") from error
    return layers


def dense_network(n_bits: int, n_classes: int, per_class: int, candidates: int, device: str) -> nn.Sequential:
    """Two layers of gates that choose each input from so many, bits [batch, n_bits] -> counts [batch, n_classes]."""
    layers = layers_of()
    per_class = max(per_class, math.ceil(n_bits / 2 / n_classes))  # the first layer has to read every bit
    width, tau = per_class * n_classes, max(1.0, 0.57 * per_class**0.5)
    made: dict[str, Any] = {"device": device, "parametrization": "light", "connections": "learnable"}
    return nn.Sequential(
        *(
            layers.LogicDense(reads, width, connections_kwargs={"num_candidates": candidates}, **made)
            for reads in (n_bits, width)
        ),
        layers.GroupSum(k=n_classes, tau=tau),
    )


def around(comparisons: Sequence[Comparison], n_inputs: int, n_classes: int, score_bits: int) -> str:
    """What our circuit has and the exported one has not: numbers of 8 bits compared, and the first class of the largest count."""
    compared = "\n".join(
        f"    assign bits[{at}] = numbers[{BITS * source} +: {BITS}] > {constant};"
        for at, (source, constant) in enumerate(comparisons)
    )
    return f"""module top (input wire [{n_inputs * BITS - 1}:0] numbers, output reg [3:0] answer);
    wire [{len(comparisons) - 1}:0] bits;
    wire [{n_classes * score_bits - 1}:0] scores;
{compared}
    circuit gates (.inp(bits), .scores_flat(scores));
    reg [{score_bits - 1}:0] best;
    integer each;
    always @(*) begin
        answer = 0;
        best = scores[0 +: {score_bits}];
        for (each = 1; each < {n_classes}; each = each + 1)
            if (scores[each * {score_bits} +: {score_bits}] > best) begin
                answer = each;
                best = scores[each * {score_bits} +: {score_bits}];
            end
    end
endmodule
"""


def circuit(
    model: nn.Sequential, input_shape: tuple[int, ...], comparisons: Sequence[Comparison], n_inputs: int
) -> dict[str, str]:
    """The Verilog of the gates, by torchlogix, and our module around it."""
    from torchlogix import Circuit

    counts: Any = model[-1]
    counts.tau = 1.0  # the counts themselves: it leaves the largest where it is
    made = Circuit.from_model(model, input_shape=input_shape)
    made.simplify()
    text = made.get_verilog_code()
    score_bits = 8 if max(len(each.input_ids) for each in made.sum_nodes) <= 255 else 16
    return {"circuit.v": text, "top.v": around(comparisons, n_inputs, counts.k, score_bits)}


def simulated(sources: dict[str, str], x: np.ndarray) -> Tensor:
    """What Icarus answers to numbers x uint8 [n, n_inputs]."""
    width = x.shape[1] * BITS
    bench = f"""module bench;
    reg [{width - 1}:0] samples [0:{len(x) - 1}];
    reg [{width - 1}:0] numbers;
    wire [3:0] answer;
    integer at;
    top dut (.numbers(numbers), .answer(answer));
    initial begin
        $readmemh("samples.hex", samples);
        for (at = 0; at < {len(x)}; at = at + 1) begin
            numbers = samples[at];
            #1 $display("%0d", answer);
        end
    end
endmodule
"""
    with tempfile.TemporaryDirectory() as where:
        folder = Path(where)
        for name, text in {**sources, "bench.v": bench}.items():
            (folder / name).write_text(text)
        rows = x.astype(np.uint8)[:, ::-1]  # input 0 is the lowest byte
        (folder / "samples.hex").write_text("".join(f"{row.tobytes().hex()}\n" for row in rows))
        compiler = require_program("iverilog", "simulation")
        run_program([*compiler, "-g2012", "-o", "bench.vvp", "-s", "bench", *sources, "bench.v"], folder)
        said = run_program(["vvp", "-n", "bench.vvp"], folder).stdout
    return torch.tensor([int(line) for line in said.split()])


def count_luts(sources: dict[str, str], top: str) -> int:
    """LUT6 of a module, by the commands of `Hardware.synthesize("lut6")`."""
    with tempfile.TemporaryDirectory() as where:
        folder = Path(where)
        for name, text in sources.items():
            (folder / name).write_text(text)
        script = ["read_verilog -DSYNTHESIS " + " ".join(sources), *recipe("lut6", top), "tee -q -o stat.json stat -json"]
        run_yosys(script, folder, "counting LUTs")
        cells = read_cells(folder / "stat.json")
    if set(cells) != {"$lut"}:
        raise DataError(f"yosys left the cells {sorted(cells)}, expected $lut alone")
    return cells["$lut"]
