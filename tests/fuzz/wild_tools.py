"""Random calls of what `lutetia.precompute` makes public around graphs: makers of graphs, whole-number models, programs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from loaders import patches, windowed
from torch import nn
from wild import Made, Wild, small

from lutetia import models, precompute
from lutetia.precompute import Binary, Int, IOTable, Stream, TableData, UInt
from lutetia.precompute.passes import minimise

SUM = IOTable.of(lambda x: x.sum(1, keepdim=True), (Binary(), Binary()))


def _table_graph(wild: Wild) -> tuple[Callable[..., object], dict[str, Any]]:
    def use(layers: Any, input: Any, x: Any) -> None:
        graph = precompute.table_graph(layers, input)
        graph(x)
        graph.emit("verilog")

    layers: tuple[Any, ...] = ([SUM], [[SUM, (SUM, (1, 0))], IOTable.of(lambda x: x, (UInt(2), UInt(2)))], [[(SUM, (0, 2))]])
    return use, {
        "layers": wild.one(*layers),
        "input": wild.one(None, Stream(3, Binary()), Stream(3, UInt(2))),
        "x": torch.randint(0, 2, (2, wild.one(2, 3, 4))),
    }


def _graph_of_votes(wild: Wild) -> tuple[Callable[..., object], dict[str, Any]]:
    model = models.Votes(4, 2, 4, k=2, bits=3, thresholds=(3,), seed=0)
    return lambda model: precompute.votes_graph(model)(torch.zeros(1, 4, dtype=torch.int64)), {
        "model": wild.one(model, nn.Linear(2, 2))
    }


def _graph_of_gates(wild: Wild) -> tuple[Callable[..., object], dict[str, Any]]:
    model = models.Gates(4, 2, 4, hidden=(3,), k=2, bits=3, thresholds=(3,), seed=0)
    return lambda model: precompute.gates_graph(model)(torch.zeros(1, 4, dtype=torch.int64)), {
        "model": wild.one(model, nn.Linear(2, 2))
    }


def _table_data(wild: Wild) -> tuple[Callable[..., object], dict[str, Any]]:
    def use(tables: Any, k: Any, **fields: Any) -> None:
        table = TableData(**fields)
        minimise.find_tool = lambda tool: None  # yosys takes a second, and more memory than a case may have
        precompute.minimise_tables([table] if tables is None else tables, k)

    return use, {
        "contents": np.arange(4)[:, None],
        "bits": (2,),
        "care": wild.one(None, np.array([True, True, False, True])),
        "tables": None,
        "k": wild.one(4, 6),
    }


def _patch_core(wild: Wild) -> tuple[Callable[..., object], dict[str, Any]]:
    def use(model: Any, reuse: Any, images: Any) -> None:
        whole = precompute.integer_model(model)
        assert isinstance(whole, precompute.IntegerClassifier)
        core = whole.emit_images(reuse=reuse)
        assert torch.equal(core.interpret(images), core.answers(images))
        core.testbench(images, axi=bool(core.axi()))

    return use, {
        "model": wild.one(patches(), *_classifiers()),
        "reuse": wild.one(1, 2),
        "images": wild.one(np.arange(128).reshape(2, 8, 8), torch.full((1, 64), 255)),
    }


def _signal_core(wild: Wild) -> tuple[Callable[..., object], dict[str, Any]]:
    def use(model: Any, recordings: Any) -> None:
        whole = precompute.integer_model(model)
        assert isinstance(whole, precompute.IntegerClassifier)
        core = whole.emit_signals()
        assert torch.equal(core.interpret(recordings), core.answers(recordings))
        core.testbench(recordings, axi=bool(core.axi()))

    samples = np.arange(60).reshape(30, 2) % 7
    return use, {
        "model": wild.one(windowed(), *_classifiers()),
        "recordings": wild.one(samples, [samples, samples[:4], torch.full((9, 2), -5)]),
    }


def _stream(wild: Wild) -> tuple[Callable[..., object], dict[str, Any]]:
    return lambda **fields: Stream(**fields).edge(wild.one("vector", "sequence", "image")), {
        "channels": 2,
        "dtype": wild.one(Binary(), (Binary(), Int(3))),
        "length": wild.one(None, 4),
        "height": None,
        "width": None,
        "scale": 1.0,
    }


def _integer_classifier(wild: Wild) -> tuple[Callable[..., object], dict[str, Any]]:
    def use(x: Any, **options: Any) -> None:
        network = precompute.integer_model(**options)
        if isinstance(network, precompute.IntegerClassifier):
            network(x)
            network.quantise(x)

    return use, {
        "x": torch.rand(2, 4),
        "folder_or_model": wild.one(*_classifiers(), "none", nn.Linear(2, 2)),
        "weight_bits": 4,
        "input_bits": 3,
        "low": wild.one(None, 0.0),
        "high": wild.one(None, 1.0),
        "readings": wild.one(None, None, "auto", {"x0": "u4"}),
    }


KNOWN: dict[str, Any] = {}


def _classifiers() -> list[nn.Module]:
    """A classifier of tables, one that votes, and one of gates, made once."""
    if "classifiers" not in KNOWN:
        layer = {"kind": "lut", "n_outputs": 3, "n_detectors": 2, "n_anchors": 2}
        votes = {"input_shape": (2, 2), "n_classes": 2, "n_tables": 4, "k": 2, "bits": 3, "thresholds": (3,), "seed": 0}
        KNOWN["classifiers"] = [
            models.LUTClassifier(input_shape=(4,), n_classes=3, layers=[layer], readout="none", seed=0),
            models.VotesClassifier(**votes),
            models.GateNetwork(**votes, hidden=(3,)),
        ]
    return KNOWN["classifiers"]


def _language() -> Any:
    """A whole-number language model, made once."""
    if "language" not in KNOWN:
        sizes = {"vocab": 256, "context": 4, "width": 4, "n_layers": 1, "n_detectors": 2, "n_anchors": 1, "positional_dim": 1}
        model = models.LUTTransformer(**sizes, ff_detectors=2, ff_anchors=2, unembedding="lut", initial_noise=0.5, seed=0)
        KNOWN["language"] = precompute.integer_model(model)
    return KNOWN["language"]


def _core(detectors: Any) -> Any:
    """Its hardware; each that can be made takes a second, and is made once."""
    key = f"core {detectors!r}"
    if key not in KNOWN:
        KNOWN[key] = _language().emit(detectors_per_cycle=detectors)
    return KNOWN[key]


def _integer_language(wild: Wild) -> tuple[Callable[..., object], dict[str, Any]]:
    def use(prompt: Any, n: Any, data: Any, **options: Any) -> None:
        if small(n):
            _language().generate(prompt, n, **options)
        _language().report(data)

    return use, {"prompt": b"ab", "n": 3, "seed": wild.one(None, 1), "temperature": wild.one(1.0, 0.5), "data": b"abcdef"}


def _language_hardware(wild: Wild) -> tuple[Callable[..., object], dict[str, Any]]:
    def use(detectors: Any, prompt: Any, n: Any, tool: Any, stalls: Any) -> None:
        hardware = _core(detectors)
        if tool is not None:  # which would run what is installed
            hardware.simulate(prompt, n, tool=tool, stalls=stalls)

    return use, {"detectors": 1, "prompt": b"ab", "n": 1, "tool": wild.one("none", "vcs"), "stalls": False}


def _files(wild: Wild) -> tuple[Callable[..., object], dict[str, Any]]:
    def use(path: Any) -> None:
        wild.one(precompute.LanguageHardware.load, IOTable.load)(path)

    return use, {"path": wild.one("none", "/dev/zero", ".", "", "a" * 300)}


def _time_limit(wild: Wild) -> tuple[Callable[..., object], dict[str, Any]]:
    def use(seconds: Any) -> None:
        with precompute.time_limit(seconds):
            pass

    return use, {"seconds": wild.one(None, 60.0, 1)}


def _steps(wild: Wild) -> tuple[Callable[..., object], dict[str, Any]]:
    def use(steps: Any, **fields: Any) -> None:
        precompute.run_steps(precompute.Build(**fields), steps)

    return use, {
        "graph": precompute.table_graph([SUM]),
        "samples": None,
        "target": wild.one(*precompute.TARGETS),
        "time_limit": 60.0,
        "steps": (*precompute.MAKE,),
    }


CALLS: dict[str, Made] = {
    "IntegerClassifier": _integer_classifier,
    "IntegerTransformer": _integer_language,
    "LanguageHardware": _language_hardware,
    "PatchCore": _patch_core,
    "SignalCore": _signal_core,
    "Stream": _stream,
    "TableData": _table_data,
    "gates_graph": _graph_of_gates,
    "load": _files,
    "run_steps": _steps,
    "table_graph": _table_graph,
    "time_limit": _time_limit,
    "votes_graph": _graph_of_votes,
}
