"""How faithful explanations are on your own model and data: remove or add the most relevant inputs first, and see what happens.

Deletion replaces inputs by a baseline, the most relevant first, and follows the probability of the decision: it should fall fast,
so a small area is good. Insertion starts from the baseline and adds the most relevant inputs first: a large area is good.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lutetia.errors import check_range, fail, require
from lutetia.files import write_atomically
from lutetia.relevance.api import attribute
from lutetia.relevance.outputs import main_output
from lutetia.relevance.rules import presets
from lutetia.relevance.rules.choices import Rules

PRESETS = ("epsilon", "attnlrp", "gamma", "zplus", "alphabeta", "dynamic")
GRADIENT, RANDOM = "gradient × input", "random order"
DRAWS = 4  # random orders that are averaged over


@dataclass(frozen=True)
class Curves:
    """The probability of the decision, [n, steps + 1] for n inputs, while they are deleted and while they are inserted."""

    deletion: Tensor
    insertion: Tensor

    def areas(self) -> dict[str, float]:
        """The areas, the difference between insertion and deletion, and its standard error over the inputs."""
        deletion, insertion = (_area(curve) for curve in (self.deletion, self.insertion))
        difference = insertion - deletion
        error = float(difference.std() / len(difference) ** 0.5) if len(difference) > 1 else float("nan")
        return {
            "deletion": float(deletion.mean()),
            "insertion": float(insertion.mean()),
            "difference": float(difference.mean()),
            "error": error,
        }


class Faithfulness:
    """The curves of each rule, `result["gamma"].deletion`; as a table, as numbers, and as a picture."""

    def __init__(self, curves: Mapping[str, Curves]) -> None:
        self.curves = dict(curves)

    def __getitem__(self, rule: str) -> Curves:
        return self.curves[rule]

    @property
    def best(self) -> str:
        """The rule with the largest difference between insertion and deletion."""
        return max(self.curves, key=lambda name: self.curves[name].areas()["difference"])

    def as_dict(self) -> dict[str, Any]:
        """Areas and mean curves by rule, for JSON."""
        return {
            "best": self.best,
            "inputs": len(next(iter(self.curves.values())).deletion),
            "rules": {
                name: {
                    **each.areas(),
                    "deletion_curve": each.deletion.mean(0).tolist(),
                    "insertion_curve": each.insertion.mean(0).tolist(),
                }
                for name, each in self.curves.items()
            },
        }

    def __rich__(self) -> Any:
        from rich.table import Table

        count = self.as_dict()["inputs"]
        caption = "1 input; probability" if count == 1 else f"{count} inputs; mean probability"
        table = Table(title="Faithfulness", caption=f"{caption} of the decision")
        table.add_column("rule")
        for name in ("deletion ↓", "insertion ↑", "difference ↑"):
            table.add_column(name, justify="right")
        for name, each in sorted(self.curves.items(), key=lambda item: -item[1].areas()["difference"]):
            areas = each.areas()
            spread = "" if math.isnan(areas["error"]) else f" ± {areas['error']:.3f}"  # one input has none
            difference = f"{areas['difference']:.3f}{spread}"
            table.add_row(
                name,
                f"{areas['deletion']:.3f}",
                f"{areas['insertion']:.3f}",
                difference,
                style="bold" if name == self.best else None,
            )
        return table

    def picture(self, path: str | Path) -> None:
        """Write both families of curves as a PNG file."""
        figure = require("matplotlib.figure", "a picture", "matplotlib").Figure(figsize=(10, 4), layout="constrained")
        for axes, kind in zip(figure.subplots(1, 2, sharey=True), ("deletion", "insertion"), strict=True):
            for name, each in self.curves.items():
                curve = getattr(each, kind).mean(0)
                axes.plot(
                    torch.linspace(0, 1, len(curve)).tolist(), curve.tolist(), label=name, lw=2.5 if name == self.best else 1.2
                )
            axes.set(title=kind, xlabel=f"share of the inputs {'deleted' if kind == 'deletion' else 'inserted'}")
        figure.axes[0].set_ylabel("probability of the decision")
        figure.axes[1].legend(fontsize=8)
        with write_atomically(Path(path)) as file:
            figure.savefig(file, format="png", dpi=140)


Method = Callable[[Tensor, Tensor], Tensor]  # inputs [n, ...] and decisions [n] -> relevance shaped like the inputs


def evaluate(
    model: nn.Module,
    inputs: Any,
    rules: Mapping[str, Rules | Method] | None = None,
    *,
    baseline: float | Tensor | None = None,
    steps: int = 10,
) -> Faithfulness:
    """Deletion and insertion curves of several rules on a model and inputs.

    `inputs`: a tensor [n, ...] of features, images or tokens, or a mapping whose first tensor is perturbed. `rules`: by name,
    `Rules` or functions of (inputs, decisions [n]); by default all presets, gradient × input and a random order. `baseline`: what
    replaces an input: a number, or a tensor that broadcasts to the inputs; by default the mean of the inputs (0 if there is
    only one), and token 0.
    """
    if not isinstance(model, nn.Module):
        fail("model", model, "an nn.Module")
    kwargs = dict(inputs) if isinstance(inputs, Mapping) else {"": inputs}
    key = next((name for name, value in kwargs.items() if isinstance(value, Tensor)), None)
    if key is None or not isinstance(kwargs[key], Tensor) or kwargs[key].dim() < 2:
        fail("inputs", inputs, "a tensor [n, ...], or a mapping that holds one")
    x = kwargs[key].detach()

    def predict(batch: Tensor) -> Tensor:
        with torch.no_grad():
            return _scores(_run(model, {**kwargs, key: batch})).softmax(-1)

    methods = _methods(model, kwargs, key, rules)
    return measure(predict, x, methods, baseline, steps)


def measure(
    predict: Callable[[Tensor], Tensor],
    x: Tensor,
    methods: Mapping[str, Method],
    baseline: float | Tensor | None = None,
    steps: int = 10,
) -> Faithfulness:
    """The curves of explanation methods for a function from inputs [n, ...] to probabilities [n, C]."""
    check_range("steps", steps, low=1)
    if not methods:
        fail("rules", methods, "at least one rule")
    decisions = predict(x).argmax(-1)
    blank = _baseline(x, baseline)
    return Faithfulness(
        {name: _curves(predict, x, blank, _units(x, method(x, decisions)), decisions, steps) for name, method in methods.items()}
    )


def _methods(model: nn.Module, kwargs: dict[str, Any], key: str, rules: Mapping[str, Any] | None) -> dict[str, Method]:
    if rules is None:
        rules = {name: getattr(presets, name)() for name in PRESETS}
        if kwargs[key].is_floating_point():
            rules[GRADIENT] = lambda x, decisions: _gradient(model, {**kwargs, key: x}, key, decisions)
        rules[RANDOM] = lambda x, decisions: random_order(x)
    methods: dict[str, Method] = {}
    for name, rule in rules.items():
        if not isinstance(rule, Rules) and not callable(rule):
            fail(f"the rule {name!r}", rule, "relevance.Rules, or a function of inputs and decisions")
        methods[name] = _by_rules(model, kwargs, key, rule) if isinstance(rule, Rules) else rule
    return methods


def _by_rules(model: nn.Module, kwargs: dict[str, Any], key: str, rules: Rules) -> Method:
    def explain(x: Tensor, decisions: Tensor) -> Tensor:
        given: Any = x if key == "" else {**kwargs, key: x}
        with torch.no_grad():
            last = main_output(_run(model, {**kwargs, key: x})).dim() > 2
        target = [(-1, int(each)) for each in decisions] if last else decisions
        return attribute(model, given, target, rules)[x].detach()

    return explain


def _run(model: nn.Module, kwargs: dict[str, Any]) -> Any:
    return model(kwargs[""]) if "" in kwargs else model(**kwargs)


def _scores(output: object) -> Tensor:
    """Scores [n, C]; of a sequence [n, S, C] those of its last position."""
    scores = main_output(output)
    if scores.dim() < 2:
        fail("the model's output", scores, "scores [n, C]")
    return scores if scores.dim() == 2 else scores.reshape(scores.shape[0], -1, scores.shape[-1])[:, -1]


def _gradient(model: nn.Module, kwargs: dict[str, Any], key: str, decisions: Tensor) -> Tensor:
    leaf = kwargs[key].clone().requires_grad_()
    with torch.enable_grad():
        scores = _scores(_run(model, {**kwargs, key: leaf}))
        (slope,) = torch.autograd.grad(scores.gather(1, decisions[:, None]).sum(), leaf)
    return slope * leaf.detach()


def random_order(x: Tensor) -> Tensor:
    """Random relevance, [DRAWS, n, ...]: the curves are averaged over the draws."""
    generator = torch.Generator().manual_seed(0)
    return torch.rand(DRAWS, *x.shape, generator=generator).to(x.device)


def _baseline(x: Tensor, baseline: float | Tensor | None) -> Tensor:
    if baseline is None:
        baseline = x.nanmean(0) if x.is_floating_point() and len(x) > 1 else 0.0
    blank = torch.as_tensor(baseline, dtype=x.dtype, device=x.device)
    try:
        return blank.expand_as(x)
    except RuntimeError:
        fail("baseline", blank, f"a number, or a tensor that broadcasts to the inputs {list(x.shape)}")


def _units(x: Tensor, relevance: Tensor) -> Tensor:
    """Relevance per unit, [draws, n, units]. A unit is replaced whole: all channels of a pixel, all features of a position."""
    if relevance.dim() == x.dim():
        relevance = relevance[None]
    if relevance.shape[1:] != x.shape:
        fail("the relevance", relevance, f"the shape of the inputs {list(x.shape)}")
    if x.is_floating_point() and x.dim() > 2:
        relevance = relevance.sum(-1 if x.dim() == 3 else 2)
    return relevance.flatten(2)


def _curves(
    predict: Callable[[Tensor], Tensor], x: Tensor, blank: Tensor, units: Tensor, decisions: Tensor, steps: int
) -> Curves:
    deletions, insertions = [], []
    for relevance in units:
        rank = relevance.argsort(-1, descending=True).argsort(-1)  # [n, units]: 0 is the most relevant
        deletion, insertion = [], []
        for step in range(steps + 1):
            chosen = _spread(x, rank < round(step / steps * rank.shape[1]))
            deletion.append(predict(torch.where(chosen, blank, x)).gather(1, decisions[:, None])[:, 0])
            insertion.append(predict(torch.where(chosen, x, blank)).gather(1, decisions[:, None])[:, 0])
        deletions.append(torch.stack(deletion, 1))
        insertions.append(torch.stack(insertion, 1))
    return Curves(torch.stack(deletions).mean(0), torch.stack(insertions).mean(0))


def _spread(x: Tensor, chosen: Tensor) -> Tensor:
    """Which units are chosen, [n, units], broadcastable to x."""
    if not x.is_floating_point() or x.dim() == 2:
        return chosen.reshape(x.shape)
    if x.dim() == 3:
        return chosen.reshape(*x.shape[:2], 1)
    return chosen.reshape(x.shape[0], 1, *x.shape[2:])


def _area(curve: Tensor) -> Tensor:
    """The area under a curve [n, steps + 1] by the trapezoidal rule: [n]."""
    return (curve[:, 1:] + curve[:, :-1]).mean(1) / 2


def for_quantus(rules: Rules | None = None) -> Callable[..., Any]:
    """An `explain_func` for the metrics of Quantus: a function of a model, inputs [n, ...] and targets [n] as arrays."""

    def explain(model: nn.Module, inputs: object, targets: object, **_: Any) -> Any:
        device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
        dtype = next((parameter.dtype for parameter in model.parameters()), torch.float32)
        x = torch.as_tensor(inputs, dtype=dtype, device=device)
        return attribute(model, x, torch.as_tensor(targets, device=device).long(), rules)[x].detach().cpu().numpy()

    return explain
