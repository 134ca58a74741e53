"""Relevance names what a model of tables used: disturb it first, and decisions change sooner than by gradient × input.

Models are trained on the spot, from several seeds. Of each input that they have not seen, what a rule of `lutetia explain` calls
most relevant for the decision is disturbed first: a pixel becomes the mean of that pixel, a byte some other byte. After each step
we look at the probability of what was decided at first, and whether it is decided still; the mean over all steps is the *area*,
and small is good. Errors are standard errors over inputs, of means over seeds. *z* is the mean difference from gradient × input
over its standard error, and 3 is claimed. With `--shares` the rules compared are ways in which a table could share its relevance
out.

    lutetia bench lut_faithfulness [--quick] [--json] [--save] [-- --inputs 160 --seeds 3 --only stack-hard --shares]
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch import Tensor

from lutetia import models, training
from lutetia.nn import lut_read_relevance, lut_relevance
from lutetia.report import RULES, attribute_class, attribute_token
from results import Row, finish, options_of, peer, progress, result, table

ORDERS = 4  # random ones that are averaged over
DRAWS = 2  # other bytes that are
AT_ONCE = 1024  # rows of one forward pass
TEXT_HELD_OUT = 40_000  # bytes
CLAIM = 3.0  # standard errors


class Areas(NamedTuple):
    """Under the curves of each input, [n]: of the probability of what was decided, and of whether it is decided still."""

    probability: Tensor
    same: Tensor


# ---- models ----------------------------------------------------------------------------------------------------------


def one(read: str, n_outputs: int = 10, n_anchors: int = 4) -> dict[str, Any]:
    return {"kind": "lut", "n_outputs": n_outputs, "n_detectors": 128, "n_anchors": n_anchors, "read": read, "table_dropout": 0.1}


def stack(read: str) -> list[dict[str, Any]]:
    windows = {"receptive_field": 4, "projection": 3, "grid": 5, "detectors_per_position": 4, "n_anchors": 4}
    return [{"kind": "projection2d", "out_shape": [4, 6, 6], "read": read, **windows}, one(read, n_anchors=5)]


LANGUAGE = {
    "kind": "transformer", "context": 32, "width": 48, "n_layers": 2, "n_heads": 4, "n_detectors": 4, "n_anchors": 3,
    "positional_dim": 3, "ff_detectors": 64, "ff_anchors": 6, "read": "confidence2",
}  # fmt: skip
MODELS: dict[str, dict[str, Any]] = {
    **{f"one-{read}": {"layers": [one(read)], "readout": "none"} for read in ("hard", "confidence2")},
    **{f"stack-{read}": {"layers": stack(read), "readout": "none"} for read in ("hard", "blend", "confidence", "confidence2")},
    "linear-hard": {"layers": [one("hard", n_outputs=64)], "readout": "linear"},
    "text-lut": {**LANGUAGE, "attention": "lut", "feed_forward": "lut"},
    "text-softmax": {**LANGUAGE, "attention": "softmax", "feed_forward": "lut"},
}


def config_of(name: str, seed: int) -> training.Config:
    """How a model is trained: seconds on one core."""
    text = name.startswith("text")
    shape = {} if text else {"kind": "classifier", "input_shape": [8, 8], "n_classes": 10}
    rate = 3e-3 if text else 0.02
    table = {
        "model": {**shape, **MODELS[name], "seed": seed},
        "data": {"kind": "stdlib", "valid": TEXT_HELD_OUT} if text else {"kind": "digits", "shuffle": True, "test": 0.2},
        "optimizer": {"tables": {"kind": "adamw", "lr": rate}, "rest": {"kind": "adamw", "lr": rate}},
        "schedule": {"kind": "cosine", "warmup": 0.05, "floor": 0.05},
        "train": {"batch_size": 32 if text else 64, "steps": 400, "clip": 1.0, "eval_every": 1000, "seed": seed},
    }
    return training.make_config(table, name)


def trained(name: str, seed: int) -> tuple[Any, training.Data]:
    """A model, ready for use, and what it learned from."""
    config = config_of(name, seed)
    with tempfile.TemporaryDirectory() as folder:
        training.train(config, Path(folder) / name)
        return models.load(Path(folder) / name).eval(), training.open_data(config.data, Path())


# ---- inputs, and what they are disturbed with ------------------------------------------------------------------------


def digits_of(data: training.Data, n: int) -> tuple[Tensor, Tensor]:
    """The last n of the digits that were not learned from, [n, 8, 8]; and for each the means of the pixels, [1, n, 8, 8]."""
    learned, unseen = data.splits["train"], data.splits["test"]
    x = torch.as_tensor(unseen.x[-n:])
    return x, torch.as_tensor(learned.x).mean(0).expand(1, *x.shape)


def texts_of(data: training.Data, n: int, length: int) -> tuple[Tensor, Tensor]:
    """n pieces of a text that was not learned from, [n, length]; and for each byte others of that text, [DRAWS, n, length]."""
    text = torch.as_tensor(data.splits["valid"].bytes.copy()).long()
    generator = torch.Generator().manual_seed(0)
    starts = torch.randint(len(text) - length, (n,), generator=generator)
    pieces = text[starts[:, None] + torch.arange(length)]
    known = text.unique()
    steps = torch.randint(1, len(known), (DRAWS, *pieces.shape), generator=generator)
    return pieces, known[(torch.searchsorted(known, pieces) + steps) % len(known)]


# ---- curves ----------------------------------------------------------------------------------------------------------


@torch.no_grad()
def scores_of(model: Any, inputs: Tensor) -> Tensor:
    """The scores of the classes, or of the byte that comes next: inputs [n, ...] -> [n, C]."""
    found = torch.cat([model(piece) for piece in inputs.split(AT_ONCE)])
    return found[:, -1] if found.dim() == 3 else found


def areas_of(model: Any, x: Tensor, order: Tensor, others: Tensor) -> Areas:
    """Disturb x [n, ...] place by place, in an order [n, places], with each of `others` [draws, n, ...]."""
    decided = scores_of(model, x).argmax(-1)
    found = [_areas(model, x, order, other, decided) for other in others]
    return Areas(*(torch.stack(each).mean(0) for each in zip(*found, strict=True)))


def _areas(model: Any, x: Tensor, order: Tensor, other: Tensor, decided: Tensor) -> Areas:
    now, other = x.flatten(1).clone(), other.flatten(1)
    steps = [now.clone()]
    for place in order.unbind(1):
        now.scatter_(1, place[:, None], other.gather(1, place[:, None]))
        steps.append(now.clone())
    scores = scores_of(model, torch.stack(steps, 1).view(-1, *x.shape[1:])).unflatten(0, (len(x), -1))  # [n, places + 1, C]
    probability = scores.softmax(-1).gather(-1, decided[:, None, None].expand(*scores.shape[:2], 1))
    return Areas(probability.mean((1, 2)), (scores.argmax(-1) == decided[:, None]).float().mean(1))


def relevances(model: Any, x: Tensor, rule: str) -> Tensor:
    """What `lutetia explain` says of each place of each input, for what the model decided: [n, places]."""
    attribute = attribute_token if isinstance(model, models.LUTTransformer) else attribute_class
    targets = scores_of(model, x).argmax(-1).tolist()
    return torch.stack([attribute(model, row, target, rule).relevance.flatten() for row, target in zip(x, targets, strict=True)])


def compare(model: Any, x: Tensor, others: Tensor, rules: dict[str, Callable[[Any, Tensor], Tensor]]) -> dict[str, Areas]:
    """The areas of random orders, of each rule's, and of one that knows more than any rule: that the last bytes of a text matter
    most, or what a pixel will be replaced with."""
    n, places = x.flatten(1).shape
    generator = torch.Generator().manual_seed(0)
    orders = [torch.rand(n, places, generator=generator).argsort(1) for _ in range(ORDERS)]
    drawn = [areas_of(model, x, order, others) for order in orders]
    found = {"random order": Areas(*(torch.stack(each).mean(0) for each in zip(*drawn, strict=True)))}
    if isinstance(model, models.LUTTransformer):
        found["last byte first"] = areas_of(model, x, torch.arange(places - 1, -1, -1).expand(n, -1), others)
    else:
        found["gradient × (x - mean)"] = areas_of(model, x, most_first(gradient_from(model, x, others[0]), orders[0]), others)
    for name, rule in rules.items():
        found[name] = areas_of(model, x, most_first(rule(model, x), orders[0]), others)
    return found


def gradient_from(model: Any, x: Tensor, baseline: Tensor) -> Tensor:
    """The slope of the decided class's lead, times the way from a baseline: x, baseline [n, ...] -> [n, places]."""
    leaf = x.clone().requires_grad_()
    scores = model(leaf)
    (slope,) = torch.autograd.grad((scores.amax(1) - scores.mean(1)).sum(), leaf)
    return (slope * (x - baseline)).flatten(1)


def most_first(relevance: Tensor, ties: Tensor) -> Tensor:
    """The places in the order of falling relevance, equal ones in the order `ties`: all [n, places]."""
    return ties.gather(1, relevance.gather(1, ties).argsort(dim=1, descending=True, stable=True))


# ---- other ways to share a table's relevance out ---------------------------------------------------------------------


def equally(node: Any, worth: Tensor, decided: Tensor) -> Tensor:
    return (worth[..., None] / decided.shape[-1]).expand_as(decided)


def by_what_is_decided(node: Any, worth: Tensor, decided: Tensor) -> Tensor:
    return worth[..., None] * lut_relevance.shares(decided.abs())


def only_what_weighs_most(node: Any, worth: Tensor, decided: Tensor) -> Tensor:
    return torch.zeros_like(decided).scatter(-1, decided.abs().argmax(-1, keepdim=True), worth[..., None])


def in_halves(node: Any, args: Any) -> None:
    return None


SHARES: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "equally, halves": (equally, in_halves),
    "equally, by |x|": (equally, lut_relevance.sizes_of),
    "all to the largest |D|, by |x|": (only_what_weighs_most, lut_relevance.sizes_of),
    "by |D|, halves": (by_what_is_decided, in_halves),
    "by |D|, by |x|": (by_what_is_decided, lut_relevance.sizes_of),
    "D/n and the rest by |D|, halves": (lut_relevance.to_bits, in_halves),
    "D/n and the rest by |D|, by |x|": (lut_relevance.to_bits, lut_relevance.sizes_of),
}


@contextlib.contextmanager
def sharing(to_bits: Callable[..., Any], sizes_of: Callable[..., Any]) -> Iterator[None]:
    """Tables share their relevance out in another way for a while."""
    with contextlib.ExitStack() as stack:
        for module in (lut_relevance, lut_read_relevance):
            stack.enter_context(mock.patch.object(module, "to_bits", to_bits))
            stack.enter_context(mock.patch.object(module, "sizes_of", sizes_of))
        yield


def with_shares(to_bits: Callable[..., Any], sizes_of: Callable[..., Any]) -> Callable[[Any, Tensor], Tensor]:
    def rule(model: Any, x: Tensor) -> Tensor:
        with sharing(to_bits, sizes_of):
            return relevances(model, x, "decisive")

    return rule


# ---- the table -------------------------------------------------------------------------------------------------------


def rule_named(name: str) -> Callable[[Any, Tensor], Tensor]:
    return lambda model, x: relevances(model, x, name)


def measure(name: str, n: int, seeds: list[int], rules: dict[str, Callable[[Any, Tensor], Tensor]]) -> dict[str, Areas]:
    """The areas of one kind of model: means over its seeds, for each input."""
    found: dict[str, list[Areas]] = {}
    for seed in seeds:
        model, data = trained(name, seed)
        x, others = texts_of(data, n, model.config.context) if name.startswith("text") else digits_of(data, n)
        for rule, areas in compare(model, x, others, rules).items():
            found.setdefault(rule, []).append(areas)
    return {rule: Areas(*(torch.stack(e).mean(0) for e in zip(*each, strict=True))) for rule, each in found.items()}


def error(values: Tensor) -> float:
    """The standard error of a mean: values [n]."""
    return float(values.std() / len(values) ** 0.5)


def z_of(worse: Tensor, better: Tensor) -> float:
    """How many standard errors the mean of the differences is above 0."""
    difference = worse - better
    return float(difference.mean()) / max(error(difference), 1e-12)


def rows_of(kind: str, areas: dict[str, Areas]) -> list[Row]:
    """A row for each rule of one kind of model."""
    return [
        {
            "model": kind,
            "rule": rule,
            "probability": float(each.probability.mean()),
            "error": error(each.probability),
            "decided still": float(each.same.mean()),
            "z": z_of(areas["gradient"].probability, each.probability),
        }
        for rule, each in areas.items()
    ]


def main(argv: list[str] | None = None) -> int:
    """Train, disturb; 1 where relevance does not beat gradient × input by three standard errors."""
    parser = options_of(__doc__)
    parser.add_argument("--inputs", type=int, default=160, help="digits or pieces of text (default 160)")
    parser.add_argument("--seeds", type=int, default=3, help="models of each kind (default 3)")
    parser.add_argument("--only", choices=MODELS, help="one kind of model")
    parser.add_argument("--shares", action="store_true", help="compare ways to share a table's relevance out")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    rules = {"gradient": rule_named("gradient")}
    if options.shares:
        rules |= {name: with_shares(*how) for name, how in SHARES.items()}
    else:
        rules |= {name: rule_named(name) for name in (["epsilon"] if options.quick else RULES)}
    kinds = ["one-hard"] if options.quick else [options.only] if options.only else list(MODELS)
    n, seeds = (4, 1) if options.quick else (options.inputs, options.seeds)
    rows: list[Row] = []
    for kind in kinds:
        progress(kind)
        rows += rows_of(kind, measure(kind, n, list(range(1, seeds + 1)), rules))
    missed = [
        f"{row['model']}, {row['rule']}: z {row['z']:.1f}, {CLAIM} claimed"
        for row in rows
        if row["rule"] in ("epsilon", "decisive") and row["z"] < CLAIM
    ]
    columns = {"model": None, "rule": None, "probability": "area", "error": "area", "decided still": "area", "z": None}
    settings = {"inputs": n, "seeds": seeds, "shares": options.shares}
    peers = [peer("gradient", mode="gradient × input"), peer("random order", mode=f"the mean of {ORDERS} orders")]
    found = result(__doc__, "lut_faithfulness", settings, [table("areas", columns, rows)], peers=peers, missed=missed)
    return finish(found, options)


if __name__ == "__main__":
    sys.exit(main())
