"""A model, its inputs, and what is explained of its output: what all methods run, with copies of the inputs changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from lutetia.errors import describe, fail
from lutetia.relevance.outputs import main_output, output_named
from lutetia.relevance.seeds import make_weights

Model = Callable[..., Any]
NARROWEST = (torch.float8_e4m3fn, torch.float8_e5m2)  # which torch does not compute with
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
Score = Callable[[object, int], Tensor]  # of an output for K copies of all rows, and K: the score of each row of each copy


class Case:
    """A model, its inputs, and what is explained of its output.

    `parts` are the inputs that are explained, each [B, ...]; a batch of K copies of them is [K·B, ...], copy after copy.
    """

    def __init__(self, model: Model, inputs: Any, target: object, baseline: Any = None, tokens: bool = False) -> None:
        """`baseline`: one for each of several inputs says which of them are explained. `tokens`: whether integers can be."""
        if not callable(model):
            fail("model", model, "a module, or a function of the inputs")
        self._model, self._lone, self._named = model, isinstance(inputs, Tensor), isinstance(inputs, Mapping)
        if not isinstance(inputs, (Tensor, Mapping, tuple, list)):
            fail("inputs", inputs, "a tensor, a tuple of arguments or a mapping of keyword arguments")
        given: dict[Any, Any] = {"x": inputs} if self._lone else dict(inputs if self._named else enumerate(inputs))
        with torch.inference_mode(False):
            self._given = {name: value.detach().clone() if isinstance(value, Tensor) else value for name, value in given.items()}
        self.names = self._explained(baseline, tokens)
        self.parts = [self._given[name] for name in self.names]
        self.rows = len(self.parts[0]) if self.parts[0].dim() else 0
        for name, part in zip(self.names, self.parts, strict=True):
            if part.dim() < 2 or not part.numel() or len(part) != self.rows or part.dtype in NARROWEST:
                fail(str(name), part, f"a tensor [B, ...] with {'at least one row' if name == self.names[0] else self.rows}")
        with torch.inference_mode(False), torch.no_grad():
            self._score = _score_of(self._run(self.parts), target, self.rows)

    def _explained(self, baseline: Any, tokens: bool) -> list[Any]:
        """The names of the inputs that are explained."""

        def fits(value: Any) -> bool:
            plain = isinstance(value, Tensor) and value.layout == torch.strided
            return plain and (value.is_floating_point() or (tokens and value.dtype in INTEGERS))

        if not self._lone and isinstance(baseline, (Mapping, tuple, list)):
            given = self._each("baseline", baseline)
            names = [name for name, each in given.items() if each is not None]
            for name in names:
                if not fits(self._given[name]):
                    fail(
                        str(name),
                        self._given[name],
                        f"a tensor of floats{' or integers' if tokens else ''}, as it has a baseline",
                    )
        else:
            names = [name for name, each in self._given.items() if fits(each) and (self._lone or each.is_floating_point())]
        if not names:
            what = self._given["x"] if self._lone else [describe(each) for each in self._given.values()]
            fail("x", what, "a floating-point tensor [B, ...]" + (", or a baseline for each input" if tokens else ""))
        return names

    def _each(self, what: str, values: Any) -> dict[Any, Any]:
        """What was given for each input: the same for all, or one for each of a tuple, None where a mapping has none."""
        if self._lone or not isinstance(values, (Mapping, tuple, list)):
            return dict.fromkeys(self._given, values)
        given = dict(values if isinstance(values, Mapping) else enumerate(values))
        fitting = given.keys() <= self._given.keys() if self._named else given.keys() == self._given.keys()
        if not fitting or isinstance(values, Mapping) != self._named:
            fail(what, values, f"one for each of the inputs {', '.join(map(str, self._given))}")
        return {name: given.get(name) for name in self._given}

    def of_parts(self, what: str, values: Any) -> list[Any]:
        """What was given for each input that is explained."""
        given = self._each(what, values)
        return [given[name] for name in self.names]

    def _run(self, parts: Sequence[Tensor]) -> object:
        """The output for K copies of the explained inputs, each [K·B, ...]; other tensors with B rows are repeated."""
        copies = len(parts[0]) // self.rows
        given = dict(self._given)
        if copies > 1:
            for name, value in given.items():
                if isinstance(value, Tensor) and value.dim() and len(value) == self.rows:
                    given[name] = value.repeat(copies, *[1] * (value.dim() - 1))
        given.update(zip(self.names, parts, strict=True))
        return self._model(**given) if self._named else self._model(*given.values())

    def scores(self, parts: Sequence[Tensor]) -> Tensor:
        """The scores [K, B] for K copies of the explained inputs, each [K·B, ...]."""
        copies = len(parts[0]) // self.rows
        return self._score(self._run(parts), copies).reshape(copies, self.rows)

    def slopes(self, copies: Sequence[Tensor]) -> list[Tensor]:
        """The gradient of the scores by K copies of the explained inputs, each [K, B, ...]."""
        with torch.inference_mode(False), torch.enable_grad():
            leaves = [copy.detach().flatten(0, 1).clone().requires_grad_() for copy in copies]
            found = torch.autograd.grad(self.scores(leaves).sum(), leaves, allow_unused=True)
        pairs = zip(found, copies, strict=True)
        return [torch.zeros_like(copy) if slope is None else slope.reshape(copy.shape) for slope, copy in pairs]

    def blanks(self, baseline: Any) -> list[Tensor]:
        """What stands in place of each explained input, shaped like it."""
        return [_spread(each, x) for each, x in zip(self.of_parts("baseline", baseline), self.parts, strict=True)]

    def result(self, found: Sequence[Tensor]) -> Any:
        """What was found for the explained inputs, as the inputs were given."""
        if self._lone:
            return found[0]
        named = dict(zip(self.names, found, strict=True))
        return named if self._named else tuple(named.get(name) for name in self._given)


def _spread(baseline: Any, x: Tensor) -> Tensor:
    if not isinstance(baseline, (int, float, Tensor)) or isinstance(baseline, bool):
        fail("baseline", baseline, "a number, or a tensor that broadcasts to x")
    try:
        return torch.as_tensor(baseline, dtype=x.dtype, device=x.device).detach().expand_as(x)
    except RuntimeError:
        fail("baseline", baseline, f"a number, or a tensor that broadcasts to x {list(x.shape)}")


def _score_of(output: object, target: Any, rows: int) -> Score:
    """The score that a target means, by the output for the inputs as they are."""
    if isinstance(target, Mapping):
        if not target:
            fail("target", target, "at least one output name")
        each = [_score_of(output, (name, *(at if isinstance(at, tuple) else (at,))), rows) for name, at in target.items()]
        return lambda output, copies: torch.stack([score(output, copies) for score in each]).sum(0)
    if callable(target) and not isinstance(target, Tensor):
        _checked(target(output), "what the target function returned", rows)
        return lambda output, copies: target(output).reshape(rows * copies, -1).sum(1)
    if isinstance(target, str) or (isinstance(target, tuple) and target and isinstance(target[0], str)):
        name, *place = (target,) if isinstance(target, str) else target
        weights = _weights(_checked(output_named(output, name), f"output {name!r}", rows), _rest(place))
        return lambda output, copies: _weighed(output_named(output, name), weights, copies)
    weights = _weights(_checked(main_output(output), "the model's output", rows), target)
    return lambda output, copies: _weighed(main_output(output), weights, copies)


def _rest(place: list[Any]) -> Any:
    """The target that stands behind the name of an output."""
    return place[0] if len(place) == 1 else tuple(place) or None


def _weights(output: Tensor, target: object) -> Tensor:
    return torch.ones_like(output) if output.dim() == 1 and target is None else make_weights(output, target)


def _weighed(output: Tensor, weights: Tensor, copies: int) -> Tensor:
    """Each row's outputs, weighed and added up."""
    weighed = output.reshape(copies, *weights.shape) * weights
    return weighed.reshape(copies * len(weights), -1).sum(1)


def _checked(tensor: object, what: str, rows: int) -> Tensor:
    if not isinstance(tensor, Tensor) or not tensor.is_floating_point() or tensor.dim() < 1 or len(tensor) != rows:
        fail(what, tensor, f"one row for each of the {rows} rows of x")
    return tensor
