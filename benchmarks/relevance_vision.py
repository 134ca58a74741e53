"""Relevance runs on all of torchvision's classifiers and on one net of every module of timm, with random weights.

Each net explains one random image, the smallest that it accepts. Batch norms have the statistics of random images, and weights
that start at zero are drawn, too: an untrained head gives 0 for every class, and there is nothing to explain.
`relevance_survey.py` says what the outcomes mean.

    lutetia bench relevance_vision [--quick] [--json] [--save] [-- --only "timm resnet18" --seconds 100 --minutes 30]
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from relevance_survey import Build, add_options, draw_zeros, set_statistics, survey, tables_of, too_few, with_others
from results import finish, options_of, result, rows_of

NEEDS = ("timm", "torchvision")
LEAST = {"torchvision": 1.0, "timm": 0.95}  # the claimed shares
QUICK = ("torchvision squeezenet1_1", "timm test_vit")
SMALL = ("tiny", "nano", "atto", "femto", "pico", "small", "xs", "_s", "18", "test", "b0", "lite", "mini")
SIDES = (64, 96, 224)  # of the image, the first that the net accepts
IMAGES = 8  # for the statistics of batch norms


def all_builders() -> dict[str, Build]:
    """How to build each net, by its name."""
    torchvision = import_torchvision()
    import timm

    nets: dict[str, Build] = {}
    for name in torchvision.models.list_models(module=torchvision.models):
        options = {"init_weights": False} if name in ("googlenet", "inception_v3") else {}
        nets[f"torchvision {name}"] = partial(build, partial(torchvision.models.get_model, name, weights=None, **options))
    for module in timm.list_modules():
        names = timm.list_models(module=module)
        if names:
            name = min(names, key=lambda each: (not any(mark in each for mark in SMALL), len(each)))
            nets[f"timm {name}"] = partial(build, partial(timm.create_model, name, pretrained=False))
    return nets


def import_torchvision() -> Any:
    """torchvision, also without its compiled operators: PyPI has them for CUDA, and classifiers do not use them."""
    try:
        return importlib.import_module("torchvision")
    except RuntimeError:
        for name in ("nms", "qnms"):  # must be declared for torchvision to be imported
            torch.library.define(f"torchvision::{name}", "(Tensor boxes, Tensor scores, float threshold) -> Tensor")
        return importlib.import_module("torchvision")


def build(make: Callable[[], nn.Module]) -> tuple[nn.Module, dict[str, Any]]:
    """A net in evaluation mode, its weights as if trained, and an image [1, 3, side, side] that it accepts."""
    torch.manual_seed(0)
    model = make().eval()
    images = _accepted_images(model)
    draw_zeros(model)
    set_statistics(model, lambda: model(images))
    with torch.no_grad():
        if not model(images[:1]).any():
            raise ArithmeticError("the output is 0")
    return model, {"x": images[:1]}


def _accepted_images(model: nn.Module) -> Tensor:
    """Images [8, 3, side, side] of the first size for which the net gives finite scores."""
    problem: Exception = LookupError("no image size fits")
    for side in _sides(model):
        images = torch.randn(IMAGES, 3, side, side)
        try:
            with torch.no_grad():
                if model(images[:1]).isfinite().all():
                    return images
        except Exception as error:  # whatever a net raises for an image of the wrong size
            problem = error
    raise problem


def _sides(model: nn.Module) -> Iterator[int]:
    yield from SIDES
    own = getattr(model, "default_cfg", {}).get("input_size")
    if own is not None:
        yield own[-1]


def main(argv: list[str] | None = None) -> int:
    """Survey the nets; 1 when fewer ran than claimed."""
    parser = options_of(__doc__)
    add_options(parser, seconds=100)
    options = parser.parse_args(argv)
    builders = all_builders()
    names = options.only or (QUICK if options.quick else sorted(builders))
    rows = survey(builders, names, options)
    settings = {"models": len(names), "seconds": options.seconds}
    found = result(__doc__, "relevance_vision", settings, tables_of(rows), packages=list(NEEDS))
    if options.only and options.save is not None and options.save.exists():
        found = with_others(found, options.save)
    rows = rows_of(found, "models")
    missed = [
        words
        for library, least in LEAST.items()
        for words in too_few([row for row in rows if row["model"].startswith(library)], least, f"nets of {library}")
    ]
    return finish({**found, "missed": missed}, options)


if __name__ == "__main__":
    sys.exit(main())
