"""Image classifiers with random weights: all of torchvision's, and one of every module of timm."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

SMALL = ("tiny", "nano", "atto", "femto", "pico", "small", "xs", "_s", "18", "test", "b0", "lite", "mini")
SIDES = (64, 96, 224)  # of the image, the first that the net accepts


def builders() -> dict[str, Callable[[], tuple[nn.Module, dict[str, Any]]]]:
    """How to build each net, by its name."""
    import timm
    import torchvision

    nets: dict[str, Callable[[], tuple[nn.Module, dict[str, Any]]]] = {}
    for name in torchvision.models.list_models(module=torchvision.models):
        options = {"init_weights": False} if name in ("googlenet", "inception_v3") else {}
        nets[f"torchvision {name}"] = partial(build, partial(torchvision.models.get_model, name, weights=None, **options))
    for module in timm.list_modules():
        names = timm.list_models(module=module)
        if names:
            name = min(names, key=lambda each: (not any(mark in each for mark in SMALL), len(each)))
            nets[f"timm {name}"] = partial(build, partial(timm.create_model, name, pretrained=False))
    return nets


def build(make: Callable[[], nn.Module]) -> tuple[nn.Module, dict[str, Any]]:
    """A net in evaluation mode, and an image [1, 3, side, side] that it accepts."""
    torch.manual_seed(0)
    model = make().eval()
    own = getattr(model, "default_cfg", {}).get("input_size", (3, 0, 0))[-1]
    problem: Exception | None = None
    for side in (*SIDES, own):
        x = torch.randn(1, 3, side, side) if side else None
        try:
            with torch.no_grad():
                if x is not None and bool(model(x).isfinite().all()):
                    return model, {"x": x}
        except Exception as error:  # whatever a net raises for an image of the wrong size
            problem = error
    raise problem or LookupError("no image size fits")
