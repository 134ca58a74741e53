"""Calls of the public functions of `lutetia.lut`: every kernel by name, `lut`, `lut_attention`, growth and anchors."""

from __future__ import annotations

import random
from dataclasses import fields, replace
from functools import cache, partial
from typing import Any

import torch
from calls import Call, drawing, perturbed
from torch import Tensor

from lutetia.lut import Synapses, check_anchors, growth, kernels, lut, lut_attention, random_anchors
from lutetia.lut.kernels.names import NAMES

READS = ("hard", "blend", "confidence", "confidence2")
FUNCTIONS = (
    "lut",
    "lut_attention",
    "random_anchors",
    "check_anchors",
    "growth.random",
    "growth.from_edges",
    "growth.windows_2d",
    "growth.fully_connected",
    "Synapses",
)


class Layer:
    """A small layer and what its kernels find, for one step and for sequences."""

    def __init__(self, rng: random.Random) -> None:
        self.batch, self.length = rng.randint(0, 9), rng.randint(1, 6)
        self.n_inputs, self.n_outputs, self.n_detectors = rng.randint(2, 7), rng.randint(1, 9), rng.randint(1, 10)
        self.n_anchors, self.n_pe = rng.randint(1, 3), rng.randint(0, 2)
        self.anchors = random_anchors(self.n_inputs, self.n_detectors, self.n_anchors, rng.randrange(2**31))
        self.reference, self.rng = kernels("reference"), rng

    def tensors(self, seq: bool, sparse: bool) -> dict[str, Any]:
        """Every argument that a kernel may ask for, by name."""
        shape = (self.batch, self.length) if seq else (self.batch,)
        bits = 2 * self.n_anchors + self.n_pe if seq else self.n_anchors
        x, positions = torch.randn(*shape, self.n_inputs), torch.randn(self.length - 1, self.n_detectors, self.n_pe)
        # Drawn, and not found in x: that would take longer than most of the calls.
        values = drawn_detections("", (*shape, self.n_detectors), self.n_anchors)
        values |= drawn_detections("pe_", (self.length - 1, self.n_detectors), self.n_pe)
        values |= {name: torch.rand(*shape, self.n_detectors) for name in ("a", "b", "da", "db")}
        values |= {name: torch.randn(()) for name in ("log_beta", "log_gamma", "log_tau")}
        key = (self.n_detectors, bits, self.n_outputs, self.rng.random() < 0.5)
        synapses = known_synapses(*key)
        weight = torch.randn(synapses.n_weights) if sparse else torch.randn(self.n_detectors, 1 << bits, self.n_outputs)
        return values | {
            "x": x,
            "anchors": self.anchors,
            "weight": weight,
            "synapses": synapses,
            "grad": torch.randn(*shape, self.n_outputs),
            "alternatives": values["indices"] ^ 1,
            "n_inputs": self.n_inputs,
            "n_rows": 1 << bits,
            "positional_dim": self.n_pe,
            "n_anchors": self.n_anchors,
            "positions": positions,
            "batch": self.batch,
            "length": self.length,
        }


def drawn_detections(prefix: str, shape: tuple[int, ...], bits: int) -> dict[str, Any]:
    """What detectors of so many bits might find."""
    return {
        f"{prefix}indices": torch.randint(0, 1 << bits, shape, dtype=torch.int32),
        f"{prefix}min_delta": torch.randn(shape),
        f"{prefix}min_delta_index": torch.randint(0, max(bits, 1), shape, dtype=torch.int32),
    }


@cache
def known_synapses(n_detectors: int, bits: int, n_outputs: int, shared: bool) -> Synapses:
    """Some synapses of these sizes, grown once."""
    return growth.random(n_detectors, bits, n_outputs, 0.5, shared=shared, seed=n_outputs)


def kernel_call(name: str, rng: random.Random) -> Call:
    """A call of a kernel that works."""
    layer, backend = Layer(rng), rng.choice(["cpu", "cpu", "cpu", "reference"])
    seq = any(part in name for part in ("_seq_", "cells", "firing"))
    values = layer.tensors(seq, name.endswith("_sparse"))
    run = getattr(kernels(backend), name)
    call = Call(f"{name}[{backend}]", run, {each: values[each] for each in arguments_of(name) if each in values}, ())
    if name.startswith(("detect_and_read", "read_detectors", "propagate_through_reads")):
        call.arguments["read"] = rng.choice(READS)
    if "weighted" in name or name.startswith("row_gains"):
        call.arguments["for_b" if name.startswith("row_gains") else "two"] = rng.random() < 0.5
    if "gradients" in name and rng.random() < 0.4:
        size = (layer.n_detectors, values["n_rows"], layer.n_outputs) if name.endswith("_fc") else (values["synapses"].n_weights,)
        call.arguments |= {"weight": torch.zeros(size), "external_lr": 0.1}
    if (
        "read_detectors" not in name
        and not name.startswith(("check", "densify", "fill_firing", "convert"))
        and rng.random() < 0.3
    ):
        call.arguments |= {"sums": "fixed", "int_rescaler": 1.0}
    if name == "densify_firing_stat":
        stat = layer.reference.fill_firing_stat(values["indices"], values["pe_indices"], layer.n_pe, layer.n_anchors)
        call.arguments |= {"stat": stat}
    elif name == "fill_outputs_by_firings":
        stat = layer.reference.fill_firing_stat(values["indices"], values["pe_indices"], layer.n_pe, layer.n_anchors)
        call.arguments |= {"firings": layer.reference.densify_firing_stat(stat, values["indices"], layer.n_anchors)}
    elif name == "convert_integers_to_floats":
        call.arguments = {"buffer": torch.randint(-99, 99, (5,)), "int_rescaler": 1.0, "dtype": torch.float32}
    return call


def arguments_of(name: str) -> list[str]:
    """The names of the arguments of a kernel that have no default."""
    return [*getattr(type(kernels("reference")), name).takes] if name != "convert_integers_to_floats" else []


def function_call(name: str, rng: random.Random) -> Call:
    """A call of a function that is no kernel."""
    layer = Layer(rng)
    values, sparse = layer.tensors(name == "lut_attention", rng.random() < 0.5), False
    t, c, o = layer.n_detectors, layer.n_anchors, layer.n_outputs
    if name in ("lut", "lut_attention"):
        sparse = values["weight"].dim() == 1
        names = ["x", "weight", "anchors"] + ["positions"] * (name == "lut_attention") + ["synapses"] * sparse
        call = Call(name, lut if name == "lut" else lut_attention, {each: values[each] for each in names})
        if name == "lut":
            call.arguments["read"] = rng.choice(READS)
        elif rng.random() < 0.4:
            call.arguments["lengths"] = torch.randint(0, layer.length + 1, (layer.batch,))
        if rng.random() < 0.5:
            call.arguments |= {"gradient": rng.choice(["dense", "sparse", "in_place"]), "external_lr": 0.1}
            call.arguments["weight"].requires_grad_()
            plain = call.function
            call.function = lambda **given: backward(plain(**given))
        if rng.random() < 0.3:
            call.arguments |= {"sums": "fixed", "int_rescaler": 1.0}
        return call
    edges = torch.stack([torch.randint(0, n, (5,)) for n in (t, 1 << c, o)], 1).unique(dim=0)
    calls: dict[str, tuple[Any, dict[str, Any]]] = {
        "random_anchors": (random_anchors, {"n_inputs": layer.n_inputs, "n_detectors": t, "n_anchors": c, "seed": 3}),
        "check_anchors": (check_anchors, {"anchors": layer.anchors, "n_inputs": layer.n_inputs}),
        "growth.random": (growth.random, {"n_detectors": t, "n_anchors": c, "n_outputs": o, "probability": 0.5, "seed": 1}),
        "growth.from_edges": (growth.from_edges, {"n_detectors": t, "n_anchors": c, "n_outputs": o, "edges": edges}),
        "growth.fully_connected": (growth.fully_connected, {"n_detectors": t, "n_anchors": c, "n_outputs": o}),
        "growth.windows_2d": (
            growth.windows_2d,
            {"input_size": 6, "output_size": 4, "n_anchors": c, "field": 3, "projection": 2, "grid": 2, "keep": 0.5},
        ),
        "Synapses": (
            lambda synapses, weight: (
                isinstance(synapses, Synapses) and (synapses.validate().statistics(), synapses.expand(weight))
            ),
            {"synapses": values["synapses"], "weight": torch.zeros(values["synapses"].n_weights)},
        ),
    }
    function, arguments = calls[name]
    return Call(name, function, arguments)


def backward(y: Tensor) -> None:
    """Gradients of all that wants them."""
    if y.requires_grad:
        y.sum().backward()


def spoil(call: Call, rng: random.Random) -> None:
    """Change up to three arguments."""
    for name in rng.sample([*call.arguments], min(rng.choice([0, 1, 1, 1, 2, 3]), len(call.arguments))):
        value = call.arguments[name]
        if isinstance(value, Synapses) and rng.random() < 0.8:
            field = rng.choice([each.name for each in fields(value) if each.init])
            other = perturbed(getattr(value, field), rng)
            changed, plain = {field: other}, call.function
            call.changed.append(f"synapses.{field}")
            call.function = lambda synapses, plain=plain, changed=changed, **given: plain(
                synapses=replace(synapses, **changed), **given
            )
        else:
            call.arguments[name] = perturbed(value.detach() if isinstance(value, Tensor) else value, rng)
            call.changed.append(name)


def make(name: str, rng: random.Random) -> Call:
    """A call of a function, most of the time with something wrong."""
    call = function_call(name, rng) if name in FUNCTIONS else kernel_call(name, rng)
    spoil(call, rng)
    return call


CALLS = {name: drawing(partial(make, name)) for name in (*NAMES, *FUNCTIONS)}
