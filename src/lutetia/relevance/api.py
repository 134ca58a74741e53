"""`explain` an output by its graph, and `attribute` a model's output to its inputs."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lutetia.errors import check_tensor, describe, fail
from lutetia.relevance.engine import Walk
from lutetia.relevance.graph import Graph, Node
from lutetia.relevance.names import read_names, watch
from lutetia.relevance.report import Report
from lutetia.relevance.result import Result, Target
from lutetia.relevance.rules.choices import Rules
from lutetia.relevance.targets import default_targets, make_seed, place_targets, wanted_nodes


def explain(
    output: Tensor,
    target: Any = None,
    wrt: Any = None,
    rules: Rules | None = None,
    strict: bool = True,
) -> Result:
    """Relevance of whatever `output` [..., C] was computed from, read off its autograd graph.

    `target`: which outputs are explained: None (each row's largest), an int, a LongTensor with an index per row, or a
    floating seed shaped like the output. `wrt`: tensors, names of modules or checkpoints, parameters; by default the leaves
    that are not parameters. `rules`: what `relevance.presets` makes, or your own `Rules`. `strict`: whether an operation
    without a rule is an error; otherwise it swallows what it gets, and the report says so.
    """
    check_output(output)
    rules = check_rules(rules)
    items = as_list(wrt)
    with torch.no_grad(), collector_at_rest():
        seed = make_seed(output, target)
        asked = Asked(default_targets(output) if items is None else items, inputs=items is None)
        return explain_once(output, seed, asked, rules, strict)


def attribute(
    model: nn.Module,
    inputs: Any,
    target: Any = None,
    rules: Rules | None = None,
    *,
    wrt: Any = None,
    strict: bool = True,
) -> Result:
    """Run a model and explain its output: `r = attribute(model, x, target=3)`, then `r[x]`, shaped like x.

    `inputs`: a tensor, a tuple of arguments, or a mapping of keyword arguments; tensors of integers count as tokens. `wrt`
    adds module names, parameters or other tensors. The model is left as it was: parameters, gradients, buffers, RNG.
    """
    if not isinstance(model, nn.Module):
        fail("model", model, "an nn.Module")
    rules = check_rules(rules)
    output, asked = attribute_inputs(model, inputs, wrt)
    check_output(output)
    with torch.no_grad(), collector_at_rest():
        # The result holds the output as numbers: with its graph it would hold every activation.
        r = explain_once(output, make_seed(output, target), asked, rules, strict)
        r.output = output.detach()
        return r


class Asked(NamedTuple):
    """The requested targets."""

    items: list[Any]  # tensors and names
    optional: frozenset[int] = frozenset()  # ids of those that the output need not depend on
    aliases: Mapping[int, Tensor] = MappingProxyType({})  # id of the user's tensor -> the leaf that replaces it
    originals: tuple[Tensor, ...] = ()
    inputs: bool = False  # whether the inputs are meant: then every leaf is reached, and the report accounts for all of it


class Explanation:
    """A graph with everything chosen and placed, ready to be walked."""

    def __init__(self, output: Tensor, asked: Asked, rules: Rules) -> None:
        self.graph = Graph(output, wanted_nodes(asked.items))
        self.named = read_names(self.graph)
        self.targets = self.place(asked)
        self.log: list[tuple[bool, Node]] = []
        self.to_the_end = asked.inputs
        rules.prepare(self.graph)

    def place(self, asked: Asked) -> list[Target]:
        """Put the targets at their nodes."""
        self.targets = place_targets(self.graph, asked.items, self.named, asked.optional)
        return self.targets

    def walk(self, output: Tensor, seed: Tensor, strict: bool) -> Report:
        """Walk from the output, whose relevance is `seed`, of the same shape."""
        report = Report()
        walk = Walk(self.graph, report, strict, output.detach(), self.to_the_end)
        walk.run(seed.detach())
        self.log = walk.log
        return report


def explain_once(output: Tensor, seed: Tensor, asked: Asked, rules: Rules, strict: bool) -> Result:
    """Walk a graph once and release it."""
    explanation = Explanation(output, asked, rules)
    try:
        report = explanation.walk(output, seed, strict)
        return finish(output, seed, asked, explanation.targets, report)
    finally:
        explanation.graph.release()


@contextmanager
def collector_at_rest() -> Iterator[None]:
    """Pause Python's cyclic garbage collector, which would scan all nodes of a large graph repeatedly."""
    worked = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if worked:
            gc.enable()


def finish(output: Tensor, seed: Tensor, asked: Asked, targets: list[Target], report: Report) -> Result:
    """The result, by requested tensor or name."""
    return Result(targets, asked.aliases, asked.originals, output, seed, report)


def attribute_inputs(model: nn.Module, inputs: Any, wrt: Any) -> tuple[Tensor, Asked]:
    """Run the model on leaf copies of its inputs; its output, and the requested targets."""
    args, kwargs, stand_ins = prepare_inputs(inputs)
    with as_found(model), torch.enable_grad(), watch(model):
        output = main_output(model(*args, **kwargs))
    items = [*(leaf for leaf, _ in stand_ins.values())]
    for item in as_list(wrt) or []:
        item = stand_ins[id(item)][0] if id(item) in stand_ins else item
        if not any(item is other for other in items):
            items.append(item)
    optional = frozenset(id(leaf) for leaf, _ in stand_ins.values())
    aliases = {key: leaf for key, (leaf, _) in stand_ins.items()}
    return output, Asked(items, optional, aliases, tuple(original for _, original in stand_ins.values()), inputs=True)


def prepare_inputs(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any], dict[int, tuple[Tensor, Tensor]]]:
    """Arguments for the model, with leaves that require grad instead of floating tensors, and which leaf replaces which."""
    stand_ins: dict[int, tuple[Tensor, Tensor]] = {}

    def stand_in(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        if id(value) not in stand_ins:
            leaf = value.detach().requires_grad_() if value.is_floating_point() else value
            stand_ins[id(value)] = (leaf, value)
        return stand_ins[id(value)][0]

    if isinstance(inputs, Tensor):
        return (stand_in(inputs),), {}, stand_ins
    if isinstance(inputs, Mapping):
        return (), {name: stand_in(value) for name, value in inputs.items()}, stand_ins
    if isinstance(inputs, (tuple, list)):
        return tuple(stand_in(value) for value in inputs), {}, stand_ins
    fail("inputs", inputs, "a tensor, a tuple of arguments or a mapping of keyword arguments")


def main_output(output: Any) -> Tensor:
    """The tensor to explain: the output itself, its logits, or the first tensor in it."""
    if isinstance(output, Tensor):
        return output
    for name in ("logits", "prediction_logits", "last_hidden_state"):
        found = output.get(name) if isinstance(output, Mapping) else getattr(output, name, None)
        if isinstance(found, Tensor):
            return found
    items: Sequence[Any] = (
        list(output.values()) if isinstance(output, Mapping) else output if isinstance(output, Sequence) else ()
    )
    for item in items:
        if isinstance(item, Tensor):
            return item
    fail("the model's output", output, "a tensor, or something that holds one")


@contextmanager
def as_found(model: nn.Module) -> Iterator[None]:
    """Put back what a forward pass may change: RNG state and buffers. Frozen parameters take part while it runs."""
    frozen = [parameter for parameter in model.parameters() if not parameter.requires_grad and parameter.is_floating_point()]
    training = any(module.training for module in model.modules())
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()] if training else []
    devices = sorted({tensor.device.index for tensor in model.parameters() if tensor.device.type == "cuda"})
    try:
        for parameter in frozen:
            parameter.requires_grad_(True)
        with torch.random.fork_rng(devices=devices):
            yield
    finally:
        for parameter in frozen:
            parameter.requires_grad_(False)
        with torch.no_grad():
            for buffer, before in buffers:
                if not torch.equal(buffer, before):
                    buffer.copy_(before)


def check_output(output: Any) -> None:
    check_tensor("output", output)
    if not output.is_floating_point() or output.grad_fn is None:
        fail(
            "output",
            output,
            "a floating tensor with a grad_fn (something it was computed from must require grad, with gradients enabled)",
        )


def check_rules(rules: Any) -> Rules:
    if rules is None:
        return Rules()
    if not isinstance(rules, Rules):
        fail("rules", rules, "relevance.Rules, such as relevance.presets.attnlrp()")
    return rules


def as_list(wrt: Any) -> list[Any] | None:
    if wrt is None:
        return None
    if isinstance(wrt, (Tensor, str)):
        return [wrt]
    if isinstance(wrt, (list, tuple)):
        return list(wrt)
    fail("wrt", describe(wrt), "a tensor, a name, or a list of them")
