"""Calls of the public layers of `lutetia.nn`, and of decoding with a cache that somebody has touched."""

from __future__ import annotations

import random
from functools import partial
from typing import Any

import torch
from calls import Call, drawing, perturbed
from torch import Tensor, nn

from lutetia.lut import growth
from lutetia.models import DenseTransformer, LUTTransformer, TransformerConfig
from lutetia.nn import LUT, DecodeAttention, LUTAttention, LUTProjection2d, ProjectedLUT

READS = ("hard", "blend", "confidence", "confidence2")
LAYERS = ("LUT", "LUTAttention", "ProjectedLUT", "LUTProjection2d", "DecodeAttention")
USES = ("LUT.forward", "LUTAttention.forward", "LUTAttention.decode", "DecodeAttention.decode", "transformer.decode")


def sizes(rng: random.Random) -> tuple[int, int, int, int]:
    """Inputs, outputs, detectors, anchors."""
    return rng.randint(2, 7), rng.randint(1, 9), rng.randint(1, 10), rng.randint(1, 3)


def new_lut(rng: random.Random) -> LUT:
    n_inputs, n_outputs, n_detectors, n_anchors = sizes(rng)
    options: dict[str, Any] = {"read": rng.choice(READS), "seed": rng.randrange(99)}
    if rng.random() < 0.5:
        options["synapses"] = growth.random(n_detectors, n_anchors, n_outputs, 0.5, shared=rng.random() < 0.5, seed=1)
    return LUT(n_inputs, n_outputs, n_detectors, n_anchors, **options)


def new_attention(rng: random.Random) -> LUTAttention:
    n_inputs, n_outputs, n_detectors, n_anchors = sizes(rng)
    n_pe, length = rng.randint(0, 2), rng.randint(2, 6)
    options: dict[str, Any] = {"shared_positions": rng.random() < 0.3, "seed": rng.randrange(99)}
    if rng.random() < 0.2:
        options["synapses"] = growth.random(n_detectors, 2 * n_anchors + n_pe, n_outputs, 0.5, seed=1)
    return LUTAttention(n_inputs, n_outputs, n_detectors, n_anchors, n_pe, length, **options)


def layer_call(name: str, rng: random.Random) -> Call:
    """Making a layer."""
    n_inputs, n_outputs, n_detectors, n_anchors = sizes(rng)
    tables = {"n_detectors": n_detectors, "n_anchors": n_anchors, "seed": 1}
    ends = {"n_inputs": n_inputs, "n_outputs": n_outputs}
    calls: dict[str, tuple[Any, dict[str, Any]]] = {
        "LUT": (LUT, {**ends, **tables, "read": "blend", "sums": "float", "gradient": "dense", "table_dropout": 0.1}),
        "LUTAttention": (LUTAttention, {**ends, **tables, "positional_dim": 1, "max_length": 4, "algorithm": "auto"}),
        "ProjectedLUT": (ProjectedLUT, {**ends, **tables, "heads": 2, "head_width": 3, "read": "confidence2"}),
        "LUTProjection2d": (
            LUTProjection2d,
            {"in_shape": (6, 6), "out_shape": (4, 4), "receptive_field": 3, "projection": 2, "n_anchors": n_anchors, "grid": 2},
        ),
        "DecodeAttention": (DecodeAttention, {"n_inputs": 8, "n_heads": 2, "n_kv_heads": 1, "head_dim": 4, "window": 3}),
    }
    function, arguments = calls[name]
    return Call(name, function, arguments)


def touched(layer: nn.Module, rng: random.Random) -> str:
    """Change a tensor of a layer, in one of the ways that people have."""
    tensors = {**dict(layer.named_buffers()), **dict(layer.named_parameters())}
    name = rng.choice([*tensors])
    old = tensors[name]
    new = perturbed(old.detach().clone(), rng)
    way = rng.choice(["data", "numpy", "assign", "copy", "load"])
    if way == "numpy" and old.numel():
        old.detach().numpy().reshape(-1)[rng.randrange(old.numel())] = rng.choice([0, 1, 30000, 100])
    elif isinstance(new, Tensor) and new.layout == torch.strided and not new.is_meta:
        if way == "data" and new.shape == old.shape:
            old.data[...] = new if not new.is_complex() else 0
        elif way == "copy" and new.shape == old.shape and not new.is_complex():
            with torch.no_grad():
                old.copy_(new)
        elif way == "assign" and name in layer._buffers:
            layer._buffers[name] = new
        elif way == "load" and new.shape == old.shape and not new.is_complex():
            layer.load_state_dict({**layer.state_dict(), name: new})
    return f"{name} by {way}"


def use_call(name: str, rng: random.Random) -> Call:
    """Using a layer, perhaps one that was touched."""
    if name.startswith("LUT.") or name == "LUTAttention.forward":
        layer: Any = new_lut(rng) if name.startswith("LUT.") else new_attention(rng)
        length = () if name.startswith("LUT.") else (rng.randint(1, layer.max_length),)
        x = torch.randn(rng.randint(0, 4), *length, layer.n_inputs)
        if rng.random() < 0.5:
            layer(x).sum().backward()  # what is remembered of the layer is from before
        call = Call(name, layer, {"x": x}, ("x",))
        if rng.random() < 0.5:
            call.changed.append(touched(layer, rng))
        return call
    return Call(name, decode_attention if name.startswith("Dec") else decode if name.startswith("LUT") else write, {"rng": rng})


def tamper(cache: Any, other: Any, rng: random.Random) -> None:
    """Change something in a cache, or take the tensors of another."""
    names = [name for name in ("lengths", "indices", "k", "v", "counts") if isinstance(getattr(cache, name, None), Tensor)]
    name = rng.choice(names)
    value = getattr(cache, name)
    way = rng.choice(["zero", "fill", "perturb", "other", "data"])
    if way == "zero":
        value.zero_()
    elif way == "fill":
        value.fill_(rng.choice([-1, 1, 3, 100, 30000]))
    elif way == "perturb":
        setattr(cache, name, perturbed(value.clone(), rng))
    elif way == "other" and hasattr(other, name):
        setattr(cache, name, getattr(other, name))
    elif value.numel():
        value.data.view(-1)[0] = rng.choice([-1, 7, 300])


def decode(rng: random.Random) -> None:
    """Steps of LUT attention through a cache that is tampered with, or of another layer."""
    layer, other = new_attention(rng), new_attention(rng)
    batch = rng.randint(1, 3)
    cache = (other if rng.random() < 0.2 else layer).new_cache(rng.choice([batch, batch, batch, batch + 1]))
    for _ in range(layer.max_length + 1):
        layer(torch.randn(batch, rng.choice([1, 1, 1, 2]), layer.n_inputs), cache=cache)
        if rng.random() < 0.3:
            tamper(cache, other.new_cache(batch), rng)
        if rng.random() < 0.2:
            touched(layer, rng)


def decode_attention(rng: random.Random) -> None:
    """The same of softmax attention."""
    layer, batch = DecodeAttention(8, 2, 1, window=rng.choice([None, 3])), rng.randint(1, 3)
    cache, other = layer.new_cache(batch, 5), DecodeAttention(8, 2, 2).new_cache(batch, 6)
    for _ in range(6):
        layer(torch.randn(batch, rng.choice([1, 1, 2]), 8), cache=cache)
        if rng.random() < 0.3:
            tamper(cache, other, rng)


MODELS: dict[str, Any] = {}


def models() -> dict[str, Any]:
    """Small language models, made once."""
    if not MODELS:
        for attention in ("lut", "softmax"):
            for context in (6, 8):
                config = TransformerConfig(width=8, n_layers=2, context=context, attention=attention, n_heads=2, ff_detectors=8)
                MODELS[f"{attention}{context}"] = LUTTransformer(config)
        MODELS["dense"] = DenseTransformer(MODELS["lut6"].config)
    return MODELS


def write(rng: random.Random) -> None:
    """Steps of a language model through a cache."""
    names = [*models()]
    model, other = MODELS[rng.choice(names)], MODELS[rng.choice(names)]
    batch = rng.randint(1, 3)
    cache = (other if rng.random() < 0.3 else model).new_cache(rng.choice([batch, batch, batch, batch + 1]))
    for _ in range(4):
        model(torch.randint(0, 256, (batch, rng.choice([1, 1, 2]))), cache=cache)
        if rng.random() < 0.4:
            tamper(rng.choice([cache, *cache.layers]), other.new_cache(batch).layers[0], rng)
        if rng.random() < 0.1:
            cache.reorder(perturbed(torch.arange(batch), rng))


def make(name: str, rng: random.Random) -> Call:
    """A call, most of the time with something wrong."""
    call = layer_call(name, rng) if name in LAYERS else use_call(name, rng)
    for each in rng.sample([*call.arguments], min(rng.choice([0, 1, 1, 2]), len(call.arguments))):
        if each != "rng":
            call.arguments[each] = perturbed(call.arguments[each], rng)
            call.changed.append(each)
    return call


CALLS = {name: drawing(partial(make, name)) for name in (*LAYERS, *USES)}
