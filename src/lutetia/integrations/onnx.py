"""ONNX: layers and models of lookup tables as a file of standard operators, which any ONNX runtime runs.

    export(model, torch.zeros(1, 64), "model.onnx")

Tables become gathers: inputs are compared, the answers packed into the number of a row, rows gathered and added. Needs onnx and
onnxscript.
"""

from __future__ import annotations

import copy
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lutetia.errors import ArgumentError, DataError, check_tensor, fail, require
from lutetia.files import write_atomically
from lutetia.lut import LayerDescription
from lutetia.nn import LUT, LUTAttention, NgramTables

LARGEST_FILE = 2**31 - 1  # bytes that one ONNX file can hold


def export(model: nn.Module, example: Tensor | tuple[Tensor, ...], path: str | os.PathLike[str]) -> None:
    """Write a module to an ONNX file; example: its input, or its inputs, with the batch as first dimension, of any size.

    The first dimension of every input stays open; the others are those of the example. The file appears whole or not at all. The
    inputs of the file are called input, or input_0 and so on, and its output is called output.
    """
    require("onnx", "ONNX export")
    require("onnxscript", "ONNX export")
    if not isinstance(model, nn.Module):
        fail("model", model, "an nn.Module")
    inputs = example if isinstance(example, tuple) else (example,)
    for number, tensor in enumerate(inputs):
        check_tensor(f"example[{number}]", tensor)
        if tensor.dim() < 1:
            fail("example", tensor, "tensors whose first dimension is the batch")
    size = sum(tensor.nbytes for tensor in model.state_dict().values())
    if size > LARGEST_FILE:
        raise ArgumentError(
            f"the model has {size:,} bytes of weights, expected at most {LARGEST_FILE:,}, the limit of one ONNX file"
        )
    plain = in_plain_torch(model).eval()
    # A batch of one would be taken for a size that never changes.
    wide = tuple(tensor if len(tensor) > 1 else torch.cat([tensor, tensor]) for tensor in inputs)
    names = ["input"] if len(wide) == 1 else [f"input_{number}" for number in range(len(wide))]
    batch = torch.export.Dim("batch", min=1)
    shapes = tuple({0: batch} for _ in wide)
    options: dict[str, Any] = {"input_names": names, "output_names": ["output"], "dynamic_shapes": shapes, "verbose": False}
    try:
        with torch.no_grad():
            program: Any = torch.onnx.export(plain, wide, dynamo=True, **options)
    except torch.onnx.errors.OnnxExporterError as error:
        reason = str(error).strip().splitlines()[0]
        raise ArgumentError(
            f"the model cannot be written as ONNX, expected operations that torch.onnx knows: {reason}"
        ) from error
    foreign = sorted({node.domain for node in program.model.graph if node.domain not in ("", "ai.onnx")})
    if foreign:
        raise ArgumentError(f"the model needs operators of {', '.join(foreign)}, expected only standard ones")
    with write_atomically(Path(path)) as file:
        file.write(program.model_proto.SerializeToString())


def check_file(path: str | os.PathLike[str]) -> None:
    """Check that a file is a valid ONNX model of standard operators; otherwise raise an error that says why."""
    onnx = require("onnx", "ONNX files")
    try:
        model = onnx.load(os.fspath(path))
        onnx.checker.check_model(model, full_check=True)
    except Exception as error:  # onnx and protobuf raise many kinds
        raise DataError(f"{path} is not a valid ONNX model: {error}") from error
    foreign = sorted({node.domain for node in model.graph.node} - {"", "ai.onnx"})
    if foreign:
        raise DataError(f"{path} has operators of {', '.join(foreign)}, expected only standard ones")


# ---- tables in plain torch -------------------------------------------------------------------------------------------


def in_plain_torch(model: nn.Module) -> nn.Module:
    """A copy of a model in which every LUT layer is made of torch's own operations; the model itself is unchanged."""
    if isinstance(model, LUT):
        return plain_layer(model, "model")
    model = copy.deepcopy(model)
    for name, module in list(model.named_modules()):
        if isinstance(module, NgramTables):
            raise ArgumentError(
                f"{name or 'the model'} is a layer of n-gram tables, expected none: ONNX files cannot hold their hash yet"
            )
        if isinstance(module, LUT):
            parent, _, own = name.rpartition(".")
            setattr(model.get_submodule(parent), own, plain_layer(module, name))
    return model


def plain_layer(layer: LUT, name: str) -> nn.Module:
    """The same function as a LUT layer, of torch's own operations."""
    if layer.share is not None:
        raise ArgumentError(f"{name} is sharded over processes, expected a whole layer: gather it first")
    if layer.sums != "float":
        raise ArgumentError(f"{name} adds in fixed point (sums={layer.sums!r}), expected sums='float' for ONNX")
    about = layer.describe()
    return PlainAttention(about, layer) if isinstance(layer, LUTAttention) else PlainTables(about)


class PlainTables(nn.Module):
    """y = Σ_t a_t · W[t, index_t] + b_t · W[t, alternative_t]: x [..., I] -> [..., O]."""

    rows: Tensor  # [N_t · R, O]
    first: Tensor  # [N_t]: the first row of each table
    powers: Tensor  # [N_c]
    a: Tensor  # [N_t, N_c]
    b: Tensor
    thresholds: Tensor | None

    def __init__(self, about: LayerDescription) -> None:
        super().__init__()
        tables = about.connectivity.expand(about.weight.detach()).float()
        self.n_rows = tables.shape[1]
        self.read = about.read.name
        self.register_buffer("rows", tables.flatten(0, 1))
        self.register_buffer("first", torch.arange(tables.shape[0]) * self.n_rows)
        self.register_buffer("powers", 1 << torch.arange(about.anchors.shape[1]))
        a, b = about.anchors.long().unbind(-1)
        self.register_buffer("a", a)
        self.register_buffer("b", b)
        self.register_buffer("thresholds", None if about.thresholds is None else about.thresholds.detach().float())
        beta, gamma, tau = (None if log is None else float(log.detach().exp()) for log in about.read.logs)
        self.beta, self.gamma, self.tau = beta, gamma, tau

    def margins(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Both sides of every comparison: x [..., I] -> [..., N_t, N_c] twice."""
        if self.thresholds is not None:
            constants = torch.zeros_like(x[..., :1]) + self.thresholds
            x = torch.cat([x, constants], -1)
        return x[..., self.a], x[..., self.b]

    def indices(self, x: Tensor) -> Tensor:
        """The row that each detector reads, int64 [..., N_t]."""
        one, other = self.margins(x)
        return ((one > other).long() * self.powers).sum(-1)

    def forward(self, x: Tensor) -> Tensor:
        """x [..., I] -> [..., O]."""
        x = x.float()
        indices = self.indices(x)
        if self.read == "hard":
            return self.rows_of(indices).sum(-2)
        a, b, alternatives = self.coefficients(x, indices)
        y = (a[..., None] * self.rows_of(indices)).sum(-2)
        return y if b is None or alternatives is None else y + (b[..., None] * self.rows_of(alternatives)).sum(-2)

    def rows_of(self, indices: Tensor) -> Tensor:
        """W[t, index_t]: [..., N_t] -> [..., N_t, O]."""
        return nn.functional.embedding(indices + self.first, self.rows)

    def coefficients(self, x: Tensor, indices: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """The coefficients of the rows, and the other row of each detector, [..., N_t] each: see the kernels' reads.py."""
        one, other = self.margins(x)
        size = (one - other).abs()
        closest, which = size.min(-1)
        alternatives = indices + torch.where((indices // self.powers[which]) % 2 == 1, -1, 1) * self.powers[which]
        if self.read == "blend":
            b = 0.5 / (1 + closest)
            return 1 - b, b, alternatives
        assert self.beta is not None
        assert self.gamma is not None
        s = size.sum(-1) * torch.exp(self.gamma * nn.functional.logsigmoid(self.beta * size).sum(-1))
        if self.read == "confidence":
            return s, None, None
        assert self.tau is not None
        v = torch.sigmoid(-2 * closest / self.tau)
        return s * (1 - v), s * v, alternatives


class PlainAttention(PlainTables):
    """y[j] = Σ_{i < j} Σ_t W[t, Q_j · K_i · PE_{j-i}]: x [B, S, I] -> [B, S, O], distance by distance."""

    places: Tensor  # [max_length - 1, N_t]: what each distance adds to the number of a row

    def __init__(self, about: LayerDescription, layer: LUTAttention) -> None:
        super().__init__(about)
        assert about.positions is not None
        self.shift, self.n_pe = layer.n_anchors + layer.positional_dim, layer.positional_dim
        signs = (about.positions.detach() > 0).long() << torch.arange(layer.positional_dim)
        self.register_buffer("places", signs.sum(-1).expand(-1, len(about.anchors)).clone())  # [max_length - 1, N_t]

    def forward(self, x: Tensor, lengths: Tensor | None = None, cache: Any = None) -> Tensor:
        """x [B, S, I] -> [B, S, O]."""
        if lengths is not None or cache is not None:
            raise ArgumentError("lengths or a cache is given, expected neither in an exported model")
        indices = self.indices(x.float())
        y = torch.zeros_like(self.rows_of(indices).sum(-2))
        for d in range(1, x.shape[1]):
            cells = (indices[:, d:] << self.shift) + (indices[:, :-d] << self.n_pe) + self.places[d - 1]
            rows = self.rows_of(cells).sum(-2)
            y = torch.cat([y[:, :d], y[:, d:] + rows], 1)
        return y
