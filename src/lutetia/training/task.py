"""The training task: the loss of a batch, and how evaluations are summed, compared and printed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lutetia.errors import ArgumentError, LutetiaError
from lutetia.models import LAYER_KINDS, MODEL_KINDS, LUTClassifier, Model, load
from lutetia.nn import LUT, cell_total_variation
from lutetia.training.data import Data, Samples

THRESHOLD_ROWS = 8192  # samples, about as many, that thresholds are quantiles of

# ---- models ----------------------------------------------------------------------------------------------------------


def build_model(table: Mapping[str, Any], name: str = "config") -> Model[Any]:
    """The model that [model] describes; with `dense = true` its twin of ordinary layers."""
    fields = dict(table)
    kind, dense = fields.pop("kind", None), fields.pop("dense", False)
    if not isinstance(dense, bool):
        raise ArgumentError(f"{name}: model.dense is {dense!r}, expected true or false")
    if dense and f"dense_{kind}" in MODEL_KINDS:
        kind = f"dense_{kind}"
    if not isinstance(kind, str) or kind not in MODEL_KINDS:
        layer = ": this is a kind of layer, for [[model.layers]]" if isinstance(kind, str) and kind in LAYER_KINDS else ""
        raise ArgumentError(f"{name}: model.kind is {kind!r}, expected one of {', '.join(map(repr, MODEL_KINDS))}{layer}")
    try:
        return MODEL_KINDS[kind](**fields)
    except LutetiaError as error:
        raise type(error)(f"{name}: [model]: {error}") from error
    except TypeError as error:
        raise ArgumentError(f"{name}: [model]: {error}") from error


def table_of(model: Model[Any]) -> dict[str, Any]:
    """The [model] that a model was made from, with every default written out: what the checkpoints of a run say."""
    return {"kind": model.kind, **model.config.to_dict()}


def set_thresholds(model: nn.Module, data: Data) -> None:
    """Set the thresholds of a classifier, where its layers have some, to quantiles of training samples."""
    samples = data.splits["train"]
    if isinstance(model, LUTClassifier) and isinstance(samples, Samples):
        rows = samples.x[:: max(1, len(samples) // THRESHOLD_ROWS)]
        model.set_thresholds_from(torch.from_numpy(np.array(rows)).to(next(model.parameters()).device))


def check_fit(model: nn.Module, data: Data) -> None:
    """Check that the model can take the data: text for a language model, samples of its shape and classes for a classifier."""
    context = context_of(model)
    if (context is not None) != data.is_text:
        wants, has = ("text", "samples with classes") if context is not None else ("samples with classes", "text")
        raise ArgumentError(f"[model] needs {wants}, but [data] has {has}: expected data.kind to fit model.kind")
    if context is not None:
        for name, split in data.splits.items():
            if len(split) <= context:
                size = "1 byte" if len(split) == 1 else f"{len(split):,} bytes"
                raise ArgumentError(f"the {name} text has {size}, expected more than model.context, {context}")
        return
    samples = data.splits["train"]
    assert isinstance(samples, Samples)
    x = torch.zeros(1, *samples.x.shape[1:])
    try:
        with torch.no_grad():
            scores = model.eval()(x.to(next(model.parameters()).device))
    except LutetiaError as error:
        raise ArgumentError(f"[model] does not take samples of shape {list(x.shape[1:])}, as [data] has: {error}") from error
    if scores.shape[-1] < data.n_classes:
        raise ArgumentError(f"[model] scores {scores.shape[-1]} classes, expected the {data.n_classes} that [data] has")


def metadata_of(model: Model[Any], data: Data) -> dict[str, Any]:
    """What a checkpoint says about the data: the task, names of classes and features, and the range of the training inputs."""
    samples = data.splits["train"]
    if not isinstance(samples, Samples):
        return {"task": "language"}
    metadata: dict[str, Any] = {"task": "classification"}
    if data.names.classes:
        unused = range(len(data.names.classes), model.config.n_classes)
        metadata["classes"] = [*data.names.classes, *(f"unused class {number}" for number in unused)]
    if data.names.features and samples.x.ndim == 2:
        metadata["features"] = list(data.names.features)
    ends = samples.x.min(0), samples.x.max(0)
    if samples.x.ndim > 2:  # of an image all pixels have one range
        ends = ends[0].min(), ends[1].max()
    scale = 255 if samples.x.dtype == np.uint8 else 1  # as the model sees bytes
    metadata["input_low"], metadata["input_high"] = ((end.astype(np.float64) / scale).tolist() for end in ends)
    return metadata


def context_of(model: nn.Module) -> int | None:
    """The longest text that a language model sees; None for a classifier."""
    return getattr(getattr(model, "config", None), "context", None)


# ---- loss and metrics ------------------------------------------------------------------------------------------------


def loss_of(scores: Tensor, target: Tensor) -> Tensor:
    """The mean cross-entropy in nats: scores [..., classes], target [...] -> []."""
    return F.cross_entropy(scores.flatten(0, -2).float(), target.flatten())


class Teachers(nn.Module):
    """Models whose answers another model also learns: x -> their mean probabilities [..., classes]."""

    def __init__(self, models: Sequence[nn.Module]) -> None:
        super().__init__()
        self.models = nn.ModuleList(models)

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([model(x).float().softmax(-1) for model in self.models]).mean(0)


def load_teachers(checkpoints: str | Sequence[str] | None, model: nn.Module, device: torch.device) -> Teachers | None:
    """Teachers on a device, or None where there are none; they must score the same classes of the same inputs."""
    teachers: list[Model[Any]] = []
    for checkpoint in [checkpoints] if isinstance(checkpoints, str) else checkpoints or []:
        if not isinstance(checkpoint, str):
            raise ArgumentError(f"regularize.teacher holds {checkpoint!r}, expected a checkpoint, or a list of some")
        teachers.append(load(checkpoint))
        for name in ("input_shape", "n_classes"):
            given, wanted = getattr(teachers[-1].config, name, None), getattr(model.config, name, None)
            if given != wanted or given is None:
                raise ArgumentError(f"regularize.teacher {checkpoint} has {name} {given}, expected {wanted}, that of [model]")
    return Teachers(teachers).to(device).eval().requires_grad_(False) if teachers else None


def distilled(loss: Tensor, scores: Tensor, taught: Tensor, weight: float) -> Tensor:
    """A loss mixed with the cross-entropy to what teachers answer: scores, and probabilities, [..., classes] -> []."""
    return (1 - weight) * loss + weight * F.cross_entropy(scores.flatten(0, -2).float(), taught.flatten(0, -2))


def sums_of(scores: Tensor, target: Tensor) -> Tensor:
    """What evaluations add up, float64 [3]: nats, right answers, answers."""
    scores, target = scores.flatten(0, -2).float(), target.flatten()
    nats = F.cross_entropy(scores, target, reduction="none").double().sum()
    right = (scores.argmax(-1) == target).double().sum()
    return torch.stack([nats, right, torch.full_like(nats, len(target))])


def metrics_of(sums: Tensor, is_text: bool) -> dict[str, float]:
    """sums [3] of an evaluation as numbers with names."""
    nats, right, count = sums.tolist()
    loss = nats / count
    return {"loss": loss, "bits_per_byte": loss / math.log(2)} if is_text else {"loss": loss, "accuracy": right / count}


def is_better(new: Mapping[str, float], old: Mapping[str, float] | None) -> bool:
    """Whether an evaluation beats another: by its accuracy, where there is one, and by its loss where that is equal."""
    return old is None or (-new.get("accuracy", 0.0), new["loss"]) < (-old.get("accuracy", 0.0), old["loss"])


def told(metrics: Mapping[str, float]) -> str:
    """The headline number of an evaluation, as text."""
    if "accuracy" in metrics:
        return f"accuracy {100 * metrics['accuracy']:.2f}%"
    return f"{metrics['bits_per_byte']:.4f} bits per byte"


def variation(model: nn.Module) -> Tensor:
    """The mean cell variation of all layers of tables, []; of sharded ones what this rank's tables add to it."""
    layers = [_variation_of(module) for module in model.modules() if isinstance(module, LUT)]
    return torch.stack(layers).mean() if layers else torch.zeros((), device=next(model.parameters()).device)


def _variation_of(layer: LUT) -> Tensor:
    """The cell variation of a layer, []; of a sharded one this rank's addend, which is 0 where it has no tables."""
    if not layer.n_own:
        return torch.zeros((), device=layer.weight.device)
    return cell_total_variation(layer.own()) * (layer.n_own / layer.n_detectors)
