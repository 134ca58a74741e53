"""Random calls of what `lutetia.precompute` makes public."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from wild import Made, Wild

from lutetia import models, precompute
from lutetia.precompute import Binary, Int, IOTable, PlusMinus, Stream, Ternary, UInt


def _table(wild: Wild) -> tuple[Callable[..., object], dict[str, Any]]:
    def use(inputs: Any, outputs: Any, domain: Any, default: Any, asked: Any, groups: Any) -> None:
        table = IOTable(inputs, outputs, domain=domain, default=default)
        table(asked)
        table.pairs()
        table.output_domain  # noqa: B018
        repr(table)
        table.grouped(groups)

    return use, {
        "inputs": wild.one(None, torch.tensor([[0, 0], [0, 1], [1, 1]])),
        "outputs": wild.one(torch.arange(4)[:, None], torch.arange(3)[:, None]),
        "domain": wild.one(None, Binary(), (Binary(), Binary()), Binary),
        "default": wild.one(None, (0,)),
        "asked": torch.tensor([[0, 1]]),
        "groups": 1,
    }


def _pairs(wild: Wild) -> tuple[Callable[..., object], dict[str, Any]]:
    return IOTable.from_pairs, {
        "pairs": [((0, 1), (1,)), ((1, 1), (0,))],
        "domain": wild.one(None, Int(3), UInt(2)),
        "default": None,
    }


def _of(wild: Wild) -> tuple[Callable[..., object], dict[str, Any]]:
    layer = wild.one(
        lambda x: x.sum(1, keepdim=True), nn.Linear(2, 1), nn.Sequential(nn.Linear(2, 1), precompute.Quantise(Ternary()))
    )
    return IOTable.of, {
        "layer": layer,
        "domain": wild.one(Binary(), UInt(3), (Int(2), Ternary()), PlusMinus),
        "n_inputs": wild.one(None, 2),
    }


def _domain(wild: Wild) -> tuple[Callable[..., object], dict[str, Any]]:
    def use(bits: Any, signed: Any, low: Any, high: Any, step: Any, values: Any) -> None:
        domain = precompute.Domain(bits, signed, low, high, step)
        domain.check("values", values)
        domain.decode(domain.encode(values))
        if domain.radix < 100:
            domain.values()
            precompute.enumerate_rows([domain, Binary()])
        precompute.pack([domain], values[..., None])
        str(domain)

    return use, {"bits": 3, "signed": wild.one(True, False), "low": 0, "high": 3, "step": 1, "values": torch.tensor([0, 1, 3])}


def _makers(wild: Wild) -> tuple[Callable[..., object], dict[str, Any]]:
    return wild.one(Int, UInt), {"bits": wild.one(1, 4, 53)}


def _rows(wild: Wild) -> tuple[Callable[..., object], dict[str, Any]]:
    def use(domains: Any, begin: Any, end: Any, dtype: Any) -> None:
        if not isinstance(end, int) or end < 1000:
            precompute.enumerate_rows(domains, begin, end, dtype)

    return use, {
        "domains": (Binary(), Int(2)),
        "begin": 0,
        "end": wild.one(None, 5),
        "dtype": wild.one(torch.int64, torch.float32),
    }


def _pack(wild: Wild) -> tuple[Callable[..., object], dict[str, Any]]:
    return precompute.pack, {"domains": (Binary(), Int(2)), "rows": torch.tensor([[0, 1], [1, -2]])}


def _quantise(wild: Wild) -> tuple[Callable[..., object], dict[str, Any]]:
    return precompute.quantise, {
        "x": torch.randn(3, 2),
        "domain": wild.one(Binary(), Int(3), PlusMinus, Ternary()),
        "scale": wild.one(1.0, 0.25),
    }


def _quantise_weights(wild: Wild) -> tuple[Callable[..., object], dict[str, Any]]:
    def use(module: Any, domain: Any) -> None:
        precompute.quantise_weights(module, domain)(torch.randn(1, 4))

    modules = (nn.Linear(4, 3), precompute.SparseLinear(4, 3, 2))
    return use, {"module": wild.one(*modules), "domain": wild.one(Int(3), PlusMinus, Ternary())}


def _sparse_linear(wild: Wild) -> tuple[Callable[..., object], dict[str, Any]]:
    return precompute.SparseLinear(4, 3, 2), {"x": torch.randn(2, 4)}


def _encoder(wild: Wild) -> tuple[Callable[..., object], dict[str, Any]]:
    def use(x: Any, **options: Any) -> None:
        n_inputs = options["n_inputs"]
        if not isinstance(n_inputs, int) or n_inputs < 1000:
            precompute.encoder(**options)(x)

    ends = wild.one((0.0, 1.0), ([0.0, -1.0, 2.0], [1.0, 1.0, 2.5]))
    return use, {
        "x": torch.rand(2, 3),
        "bits": wild.one(1, 4, 8),
        "low": ends[0],
        "high": ends[1],
        "n_inputs": 3,
        "affine": wild.one(None, True, False),
    }


def _trace(wild: Wild) -> tuple[Callable[..., object], dict[str, Any]]:
    def use(model: Any, channels: Any, dtype: Any, x: Any, max_bits: Any, budget: Any, k: Any, language: Any, name: Any) -> None:
        if isinstance(channels, int) and channels > 50:
            return
        graph = precompute.trace(model, Stream(channels=channels, dtype=dtype))
        graph(x)
        precompute.trace_values(graph, x)
        lowered = graph.precompute(max_bits).dedupe().fuse(budget)
        lowered.cost(k)
        lowered.mermaid()
        lowered.emit(language, name=name).testbench()

    layers = nn.Sequential(precompute.SparseLinear(4, 3, 2), precompute.Quantise(UInt(2)), nn.ReLU())
    precompute.quantise_weights(layers[0], Ternary())
    return use, {
        "model": layers,
        "channels": 4,
        "dtype": wild.one(Binary(), UInt(2)),
        "x": torch.randint(0, 2, (3, 4)),
        "max_bits": 10,
        "budget": 8,
        "k": wild.one(4, 6),
        "language": wild.one("verilog", "vhdl"),
        "name": wild.one("top", "always", "a b", ""),
    }


def _decompose(wild: Wild) -> tuple[Callable[..., object], dict[str, Any]]:
    def use(module: Any, n_inputs: Any, domain: Any) -> None:
        units = precompute.decompose(module, n_inputs=n_inputs)
        units.sizes  # noqa: B018
        IOTable.of(units[0], domain)

    return use, {
        "module": wild.one(
            nn.Linear(3, 2), nn.Conv2d(1, 1, 2), precompute.SparseLinear(4, 3, 2), nn.Sequential(nn.Linear(2, 2), nn.ReLU())
        ),
        "n_inputs": None,
        "domain": wild.one(Binary(), Ternary()),
    }


def _network(wild: Wild) -> tuple[Callable[..., object], dict[str, Any]]:
    def use(x: Any, labels: Any, model: Any, **options: Any) -> None:
        network = precompute.lut_network(model, **options)
        network(x)
        network.classes(x)
        network.report(x, labels)
        precompute.fit_bits(model, x, labels)

    layer = {"kind": "lut", "n_outputs": 3, "n_detectors": 2, "n_anchors": 2}
    model = models.LUTClassifier(input_shape=(4,), n_classes=3, layers=[layer], readout="none", seed=0)
    return use, {
        "x": torch.rand(5, 4),
        "labels": torch.randint(0, 3, (5,)),
        "model": model,
        "bits": 3,
        "weight_bits": 4,
        "low": 0.0,
        "high": 1.0,
        "argmax": True,
    }


def _claims(wild: Wild) -> tuple[Callable[..., object], dict[str, Any]]:
    def use(domain: Any, groups: Any) -> None:
        module = precompute.precomputable(domain=domain, groups=groups)(nn.Linear(4, 2, bias=False))
        precompute.decompose(module)

    return use, {
        "domain": wild.one(None, Binary()),
        "groups": wild.one(None, 1, 2, ((2, 1), (2, 1)), (((0, 1, 2, 3), (0,)), ((0, 1, 2, 3), (1,)))),
    }


def _windows(wild: Wild) -> tuple[Callable[..., object], dict[str, Any]]:
    def use(**options: Any) -> None:
        class Middle(nn.Module):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return x.unfold(2, 3, 1).median(-1).values

        precompute.decompose(precompute.precomputable(groups=((3, 1),), **options)(Middle()))

    return use, {"kernel": 3, "stride": 1, "dilation": 1, "padding": 0, "domain": wild.one(None, UInt(2))}


def _lstm(wild: Wild) -> tuple[Callable[..., object], dict[str, Any]]:
    def use(**options: Any) -> None:
        precompute.FixedLSTMCell(**options).run(torch.rand(2, 4, 2))

    widths = {"fraction": 4, "sum_bits": 6, "state_bits": 7, "weight_bits": 6}
    return use, {"cell": nn.LSTMCell(2, 3, bias=wild.one(True, False)), **widths}


def _norm(wild: Wild) -> tuple[Callable[..., object], dict[str, Any]]:
    def use(**options: Any) -> None:
        precompute.FixedLayerNorm(**options)(torch.rand(3, 4))

    return use, {"norm": nn.LayerNorm(4), "scale": wild.one(0.25, 1.0), "bits": 6}


def _split(wild: Wild) -> tuple[Callable[..., object], dict[str, Any]]:
    conv = nn.Conv1d(2, 3, 2)
    nn.init.ones_(conv.weight)
    return precompute.split_convolution, {"conv": wild.one(conv, nn.Conv2d(1, 2, 2)), "filters": wild.one(1, 2)}


CALLS: dict[str, Made] = {
    "IOTable": _table,
    "from_pairs": _pairs,
    "of": _of,
    "Domain": _domain,
    "Int": _makers,
    "enumerate_rows": _rows,
    "pack": _pack,
    "quantise": _quantise,
    "quantise_weights": _quantise_weights,
    "SparseLinear": _sparse_linear,
    "encoder": _encoder,
    "trace": _trace,
    "decompose": _decompose,
    "lut_network": _network,
    "precomputable": _claims,
    "precomputable.window": _windows,
    "FixedLSTMCell": _lstm,
    "FixedLayerNorm": _norm,
    "split_convolution": _split,
}
