"""Grad-CAM: where in a picture the channels of a layer speak for the target."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lutetia.errors import ArgumentError, did_you_mean, fail
from lutetia.relevance.methods.case import Case

SMOOTHLY = {1: "linear", 2: "bilinear", 3: "trilinear"}  # how a map is enlarged, by its dimensions


def grad_cam(model: nn.Module, x: Tensor, target: object = None, *, layer: str | nn.Module | None = None) -> Tensor:
    """Grad-CAM: the channels of a layer, weighed by their mean slope and added up, or 0 if negative (Selvaraju et al. 2017).

    x: [B, C, ...] with one to three dimensions of places. `layer`: a module or its name, whose output has channels and places
    like x; by default the last with more than one place. The map is enlarged to the places of x, and divided evenly among its
    channels: `.sum(1)` is the map.
    """
    if not isinstance(model, nn.Module):
        fail("model", model, "an nn.Module")
    if not isinstance(x, Tensor) or not 3 <= x.dim() <= 5:
        fail("x", x, "a floating-point tensor [B, C, ...] with one to three dimensions of places")
    wanted = _module(model, layer)
    seen: list[Tensor] = []

    def after(module: nn.Module, inputs: Any, output: Any) -> None:
        if not isinstance(output, Tensor) or output.dim() != x.dim() or not output.requires_grad:
            return
        if module is wanted or (wanted is None and output.shape[2:].numel() > 1):
            seen.append(output)

    case = Case(model, x, target)
    handles = [module.register_forward_hook(after) for module in model.modules()]
    try:
        with torch.inference_mode(False), torch.enable_grad():
            score = case.scores([case.parts[0].requires_grad_()]).sum()
    finally:
        for handle in handles:
            handle.remove()
    if not seen:
        what = "no module" if wanted is None else f"layer {layer!r}" if isinstance(layer, str) else "the layer"
        raise ArgumentError(f"{what} gives channels and places that lead to the score, expected an output like x {list(x.shape)}")
    found = seen[-1]
    (slope,) = torch.autograd.grad(score, found, allow_unused=True)
    if slope is None:
        raise ArgumentError("the score does not depend on the layer, expected one that leads to it")
    places = list(range(2, x.dim()))
    cam = (slope.mean(places, keepdim=True) * found.detach()).sum(1, keepdim=True).relu()
    cam = F.interpolate(cam, x.shape[2:], mode=SMOOTHLY[len(places)], align_corners=False)
    return (cam / x.shape[1]).expand_as(x).to(x.dtype)


def _module(model: nn.Module, layer: str | nn.Module | None) -> nn.Module | None:
    if layer is None:
        return None
    modules = dict(model.named_modules())
    if isinstance(layer, nn.Module):
        if not any(module is layer for module in modules.values()):
            fail("layer", type(layer).__name__, "a module of the model, or its name")
        return layer
    if not isinstance(layer, str):
        fail("layer", layer, "a module of the model, or its name")
    if layer not in modules:
        raise ArgumentError(f"layer is {layer!r}, which is no module of the model: {did_you_mean(layer, list(modules))}")
    return modules[layer]
