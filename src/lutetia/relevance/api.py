"""`explain` an output by its graph, and `attribute` a model's output to its inputs."""

from __future__ import annotations

import gc
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, TypedDict, Unpack

import torch
from torch import Tensor, nn

from lutetia.errors import ArgumentError, check_choice, describe, fail
from lutetia.relevance.autocast import autocast_as, without_autocast
from lutetia.relevance.blocks import blocks, computed_again
from lutetia.relevance.engine import UNKNOWN, Walk
from lutetia.relevance.graph import AutogradGraph, Node
from lutetia.relevance.inputs import as_found, prepare_inputs
from lutetia.relevance.inside import OUTER, Outer
from lutetia.relevance.names import operations_seen, read_names, watch
from lutetia.relevance.outputs import main_output as main_output
from lutetia.relevance.outputs import select
from lutetia.relevance.precision import carry
from lutetia.relevance.replaced import shared
from lutetia.relevance.report import Report
from lutetia.relevance.result import Result, ResultTarget
from lutetia.relevance.rules.choices import Rules
from lutetia.relevance.targets import Asked, Placing, default_targets, wanted_nodes


class AttributeOptions(TypedDict, total=False):
    """What `attribute` takes by name."""

    wrt: Any  # module names and patterns ("layers.*"), parameters and their names, other tensors
    strict: bool  # whether an operation without a rule is an error (the default)
    unknown: str  # what such an operation does otherwise: "absorb", or "linear" by its own backward
    layers: bool  # collect the relevance at each repeated block: `r.layers`
    heads: bool  # collect what each attention head gave: `r.heads`
    recompute: bool | Sequence[str]  # compute blocks again (all repeated ones, or these) instead of keeping their activations


def explain(
    output: object,
    target: object = None,
    wrt: object = None,
    rules: Rules | None = None,
    strict: bool = True,
    unknown: str | None = None,
) -> Result:
    """Relevance of whatever `output` [..., C] was computed from, read off its autograd graph.

    `target`: which outputs are explained, as for `attribute`. `wrt`: tensors, names of modules or checkpoints, parameters; by
    default the leaves that are not parameters. `rules`: from `relevance.presets`, or your own `Rules`. `strict`: whether an
    operation without a rule is an error; otherwise it absorbs its relevance, and the report says so. `unknown="linear"` treats it
    as the linear map that its own backward defines.
    """
    rules = check_rules(rules)
    unknown = check_unknown(strict, unknown)
    items = as_list(wrt)
    with walking():
        explained, seed = select(output, target)
        asked = Asked(default_targets(explained) if items is None else items, inputs=items is None)
        return explain_once(explained, seed, asked, rules, unknown)[0]


def attribute(
    model: nn.Module, inputs: object, target: object = None, rules: Rules | None = None, **options: Unpack[AttributeOptions]
) -> Result:
    """Run a model and explain its output: `r = attribute(model, x, target=3)`, then `r[x]`, shaped like x.

    `inputs`: a tensor, a tuple of arguments, or a mapping of keyword arguments; tensors of integers count as tokens.

    `target`: None (each row's largest output), an int, a tuple such as (position, class), a list or LongTensor with one target
    per row, a floating-point seed shaped like the output, `Contrast(this, that)`; the name of an output, alone or before an
    index, such as ("pred_boxes", 7, 2); a mapping from names to targets; or a function of the output that returns the tensor to
    explain.

    Options: `wrt` adds module names or patterns ("layers.*"), parameters or their names, and other tensors. `strict=False` lets
    operations without a rule absorb their relevance; `unknown="linear"` treats them as the linear maps that their own backward
    defines. `layers=True` and `heads=True` fill `r.layers` and `r.heads`. `recompute=True` recomputes repeated blocks instead of
    keeping their activations, so that only one block's activations are in memory at a time.

    The model is left as it was: parameters, gradients, buffers, RNG.
    """
    return Run(model, rules, options).explained(inputs, target)[0]


def attribute_each(
    model: nn.Module,
    inputs: object,
    target: Callable[[Any], Tensor],
    rules: Rules | None = None,
    **options: Unpack[AttributeOptions],
) -> list[Result]:
    """Explain several numbers of one output, each by itself: one run of the model and one walk for all of them.

    `target`: a function of the output that returns a tensor of these numbers, such as `lambda output: output[0, [3, 5]]`. Each
    result is what `attribute` would give for that number alone; memory holds the relevance of all of them. Other arguments are as
    for `attribute`.
    """
    if not callable(target) or isinstance(target, Tensor):
        fail("target", target, "a function of the output that returns the numbers to explain")
    return Run(model, rules, options).explained(inputs, target, each=True)


class Run:
    """How a model is run and explained: what `attribute` and plans have in common."""

    def __init__(self, model: nn.Module, rules: Rules | None, options: AttributeOptions) -> None:
        if not isinstance(model, nn.Module):
            fail("model", model, "an nn.Module")
        unexpected = sorted(set(options) - AttributeOptions.__annotations__.keys())
        if unexpected:
            raise TypeError(f"unexpected options {', '.join(unexpected)}, expected {', '.join(AttributeOptions.__annotations__)}")
        self.model, self.rules = model, check_rules(rules)
        self.unknown = check_unknown(options.get("strict", True), options.get("unknown"))
        self.wrt = options.get("wrt")
        self.heads = bool(options.get("heads"))
        wanted = options.get("recompute", False)
        repeated = blocks(model) if options.get("layers") or wanted is True else []
        self.layers = tuple(repeated) if options.get("layers") else ()
        self.recomputed = repeated if wanted is True else [*wanted] if wanted else []
        if wanted is True and not repeated:
            fail("recompute", wanted, "the names of modules, because the model has no list of repeated blocks")

    def explained(self, inputs: object, target: object, each: bool = False) -> list[Result]:
        """Run the model and explain what the target names: as a whole, or `each` number of it by itself."""
        with collector_at_rest():  # until the graph is gone
            return self._explained(inputs, target, each)

    def _explained(self, inputs: object, target: object, each: bool) -> list[Result]:
        with ExitStack() as stack:
            if self.recomputed:
                stack.enter_context(as_found(self.model))
            output, asked = self.forward(inputs)
            with walking():
                explained, seed = select(output, target)
                del output
                if each:
                    seed = _one_by_one(seed)
                results = explain_once(explained, seed, asked, self.rules, self.unknown, lenient=bool(self.recomputed))
                for result in results:  # they hold the output as numbers: with its graph they would hold every activation
                    result.output = explained.detach()
                return results

    def forward(self, inputs: object, named: bool = True) -> tuple[Any, Asked]:
        """Run the model on leaf copies of its inputs: its output, and the requested targets.

        `named`: whether the graph shall know which modules made it.
        """
        with torch.inference_mode(False):
            return self._forward(inputs, named)

    def _forward(self, inputs: object, named: bool) -> tuple[Any, Asked]:
        args, kwargs, stand_ins = prepare_inputs(inputs)
        try:
            output = self._run(args, kwargs, named)
        except RuntimeError as error:
            if "leaf Variable that requires grad" not in str(error):
                raise
            with torch.enable_grad():  # the model changes its inputs in place
                args, kwargs, stand_ins = prepare_inputs(inputs, copied=True)
            output = self._run(args, kwargs, named)
        wanted = [*(as_list(self.wrt) or []), *self.layers]
        parameters = dict(self.model.named_parameters()) if wanted else {}
        aliases: dict[Any, Tensor] = {key: leaf for key, (leaf, _) in stand_ins.items()}
        items: list[Any] = [leaf for leaf, _ in stand_ins.values()]
        for item in wanted:
            if isinstance(item, str) and item in parameters:
                aliases[item] = parameters[item]
                item = parameters[item]
            item = stand_ins[id(item)][0] if id(item) in stand_ins else item
            if not any(
                item is other or (isinstance(item, str) and item == other) for other in items if type(other) is type(item)
            ):
                items.append(item)
        if isinstance(inputs, Mapping):  # keyword arguments have names, too
            for name, value in inputs.items():
                if id(value) in stand_ins and name not in self.model._modules:
                    aliases.setdefault(name, stand_ins[id(value)][0])
        optional = frozenset(id(leaf) for leaf, _ in stand_ins.values())
        originals = tuple(original for _, original in stand_ins.values())
        return output, Asked(items, optional, aliases, originals, True, self.layers, self.heads)

    def _run(self, args: Any, kwargs: dict[str, Any], named: bool) -> Any:
        with ExitStack() as stack:
            if not self.recomputed:
                stack.enter_context(as_found(self.model))
            stack.enter_context(torch.enable_grad())
            if self.recomputed:
                if _takes_cache(self.model):
                    kwargs.setdefault("use_cache", False)  # a cache that was filled once cannot be filled again
                stack.enter_context(computed_again(self.model, self.recomputed, lambda: watch(self.model)))
            stack.enter_context(watch(self.model) if named else operations_seen())
            if "torch._dynamo" in sys.modules:  # the operations of a compiled module, not what they were fused into
                stack.enter_context(shared("uncompiled", _uncompiled))
            return self.model(*args, **kwargs)


@contextmanager
def _uncompiled() -> Iterator[None]:
    """While active, compiled modules run as they were written."""
    with torch.compiler.set_stance("force_eager"), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Using `torch.compile.module.` when there are global hooks", UserWarning)
        yield


def _takes_cache(model: nn.Module) -> bool:
    return hasattr(getattr(model, "config", None), "use_cache")


class ExplainedOutput:
    """A graph with its rules chosen and its targets placed, ready to be walked."""

    def __init__(self, output: Tensor, asked: Asked, rules: Rules, lenient: bool = False) -> None:
        self.graph = AutogradGraph(output, wanted_nodes(asked.items))
        self.named = read_names(self.graph)
        self.lenient = lenient  # whether targets may come to light during the walk, inside blocks
        self.targets = self.place(asked)
        self.log: list[tuple[bool, Node]] = []
        rules.prepare(self.graph)

    def place(self, asked: Asked) -> list[ResultTarget]:
        """Put the targets at their nodes."""
        self.placing = Placing(asked)
        self.placing.place(self.graph, self.named)
        if not self.lenient:
            self.placing.check(self.graph)
        self.targets = self.placing.targets
        return self.targets

    def walk(self, output: Tensor, seed: Tensor, unknown: str) -> Report:
        """Walk from the output, whose relevance is `seed`, of the same shape, or N of them."""
        report = Report(stacked=seed.dim() > output.dim())
        seed = carry(self.graph, seed.detach())
        walk = Walk(self.graph, report, unknown, output.detach(), self.placing.asked.inputs)
        token = OUTER.set(Outer(self.placing, report, unknown))
        try:
            walk.run(seed)
        finally:
            OUTER.reset(token)
        if self.lenient:
            self.placing.check(self.graph)
        self.log = walk.log
        return report


MOST_NUMBERS = 10_000  # that are explained in one walk


def _one_by_one(numbers: Tensor) -> Tensor:
    """The relevance of each of N numbers by itself, [N, ...] where they have the shape [...]."""
    count = numbers.numel()
    if not 0 < count <= MOST_NUMBERS:
        fail("target", f"a function that returned {count:,} numbers", f"1 to {MOST_NUMBERS:,}")
    return numbers.reshape(-1).diag().reshape(count, *numbers.shape)


def explain_once(output: Tensor, seed: Tensor, asked: Asked, rules: Rules, unknown: str, lenient: bool = False) -> list[Result]:
    """Walk a graph once and release it: one result, or one for each seed where there are several."""
    explanation = ExplainedOutput(output, asked, rules, lenient)
    try:
        report = explanation.walk(output, seed, unknown)
        if not report.stacked:
            return [finish(output, seed, asked, explanation.targets, report)]
        targets = zip(*(target.of_each(len(seed)) for target in explanation.targets), strict=True)
        parts = zip(seed, targets, report.of_each(len(seed)), strict=True)
        return [finish(output, each, asked, list(mine), told) for each, mine, told in parts]
    except RuntimeError as error:
        if "modified by an inplace operation" not in str(error):
            raise
        raise ArgumentError(
            "the model overwrote a value that autograd had saved, so its backward pass would fail, too; "
            f"if the model fills a cache in place, try use_cache=False ({error})"
        ) from error
    finally:
        explanation.graph.release()


@contextmanager
def walking() -> Iterator[None]:
    """What a walk runs in: no gradients, no autocast, which would change the dtypes that its rules divide in."""
    with torch.inference_mode(False), torch.no_grad(), autocast_as(without_autocast()), collector_at_rest():
        yield


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


def finish(output: Tensor, seed: Tensor, asked: Asked, targets: list[ResultTarget], report: Report) -> Result:
    """The result, by requested tensor or name."""
    return Result(targets, asked.aliases, asked.originals, output, seed, report, asked.layers)


def check_rules(rules: object) -> Rules:
    if rules is None:
        return Rules()
    if not isinstance(rules, Rules):
        fail("rules", rules, "relevance.Rules, such as relevance.presets.attnlrp()")
    return rules


def check_unknown(strict: bool, unknown: str | None) -> str:
    """What an operation without a rule does."""
    if unknown is None:
        return "raise" if strict else "absorb"
    check_choice("unknown", unknown, UNKNOWN)
    return unknown


def as_list(wrt: object) -> list[Any] | None:
    if wrt is None:
        return None
    if isinstance(wrt, (Tensor, str)):
        return [wrt]
    if isinstance(wrt, (list, tuple)):
        return list(wrt)
    fail("wrt", describe(wrt), "a tensor, a name, or a list of them")
