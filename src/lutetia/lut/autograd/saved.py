"""The autograd formulas of the training ops, and the one record that each keeps on its context.

A formula saves only what the requested gradients need. The gradient ops have no formula of their own: what they give
is marked, in a pass that builds a graph of itself, by a node that says so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lutetia._shared.backward import Once, refuse_batches
from lutetia._shared.ops import LIBRARY, op, show_alone
from lutetia.lut.autograd.how import How, Wires, how_of
from lutetia.lut.autograd.ops import gather_sequence
from lutetia.lut.connectivity.full import Connectivity, Full, full
from lutetia.lut.kernels.protocol import FLOAT, Coefficients, Detected, Into, Sequence

ONCE = "a LUT layer cannot be differentiated twice: its gradient is the slope of a blend and has none of its own"


class Saved(NamedTuple):
    """The tensors a formula saved; None for those that it does not need."""

    indices: Tensor  # [B, N_t] or [B, S, N_t]
    min_delta: Tensor | None = None
    min_delta_index: Tensor | None = None
    pe_indices: Tensor | None = None  # [S-1, N_t]
    pe_min_delta: Tensor | None = None
    pe_min_delta_index: Tensor | None = None
    weight: Tensor | None = None  # [N_t, R, O] or [n_weights]
    anchors: Tensor | None = None  # [N_t, N_c, 2]
    a: Tensor | None = None  # [B, N_t]
    b: Tensor | None = None
    alternatives: Tensor | None = None
    start: Tensor | None = None  # of synapses
    targets: Tensor | None = None
    meta: Tensor | None = None

    @property
    def wires(self) -> Wires:
        """The tensors of the synapses."""
        return self.start, self.targets, self.meta


class Facts(NamedTuple):
    """What a formula knows besides tensors."""

    how: str
    size: tuple[int, ...]  # of the weight
    weight_dtype: torch.dtype
    n_inputs: int = 0
    dtype: torch.dtype = torch.float32  # of x
    n_anchors: int = 0
    positions_shape: tuple[int, ...] = ()
    positions_dtype: torch.dtype = torch.float32
    two: bool = False  # whether a second row is added


class Record(NamedTuple):
    """All that a node of the graph knows of the call it stands for."""

    saved: Saved
    facts: Facts

    @property
    def how(self) -> How:
        """The options."""
        return how_of(self.facts.how)

    def connectivity(self) -> Connectivity:
        """Which rows reach which outputs."""
        return self.how.connectivity(self.saved.wires, self.facts.size)

    def sequence(self) -> Sequence:
        """What detectors found in sequences."""
        s, f = self.saved, self.facts
        assert s.pe_indices is not None
        positions = Detected(s.pe_indices, s.pe_min_delta, s.pe_min_delta_index)
        return Sequence(Detected(*s[:3]), positions, f.n_anchors, f.positions_shape[2])

    def coefficients(self) -> Coefficients | None:
        """Those of the rows that were added."""
        s = self.saved
        return None if s.a is None else Coefficients(s.a, s.b, s.alternatives) if self.facts.two else Coefficients(s.a)

    @property
    def in_sequence(self) -> bool:
        """Whether the rows were read by pairs of positions."""
        return self.saved.pe_indices is not None

    def gather(self, grad: Tensor, into: Into | None = None) -> Tensor:
        """The dense gradient of the weight, from grad [B, O] or [B, S, O]; or the weight of `into`, after its step."""
        how, connectivity = self.how, self.connectivity()
        if self.in_sequence:
            return gather_sequence(grad, self.sequence(), how, connectivity, into)
        rows = (self.saved.indices, self.coefficients())
        return how.kernels(grad).gather_rows(grad, connectivity, *rows, how.sums, into)

    def gather_sparse(self, grad: Tensor) -> Tensor:
        """As a coalesced COO tensor: sparse over detector and row, dense over outputs; a flat one sparse throughout."""
        how, connectivity = self.how, self.connectivity()
        if self.in_sequence:
            neurons, values = self._cells_read(grad)
        else:
            rows = (self.saved.indices, self.coefficients())
            neurons, values = how.kernels(grad).gather_compact(grad, connectivity, *rows, how.sums)
        if isinstance(connectivity, Full):
            n_rows = connectivity.n_rows
            places, values = torch.stack([neurons // n_rows, neurons % n_rows]), values.view(-1, connectivity.n_outputs)
        else:
            places = connectivity.places_of(neurons)[None]
        values = values.to(self.facts.weight_dtype)
        return torch.sparse_coo_tensor(places, values, self.facts.size, is_coalesced=True, check_invariants=False)

    def _cells_read(self, grad: Tensor) -> tuple[Tensor, Tensor]:
        """Lookup neurons that were read for a y whose gradient is not zero, and the gradients of their weights, flat."""
        how, connectivity = self.how, self.connectivity()
        # One output whose gradient is 1 counts them.
        ones = (grad != 0).any(-1, keepdim=True).float()
        plain = how._replace(sums=FLOAT, algorithm="pairs" if how.header else how.algorithm)
        counted = full(connectivity.n_detectors, connectivity.n_rows, 1)
        counts = gather_sequence(ones, self.sequence(), plain, counted)
        neurons, dense = (counts.flatten() > 0).nonzero().squeeze(1), self.gather(grad)
        if isinstance(connectivity, Full):  # whole rows: one index for each
            return neurons, dense.flatten(0, 1)[neurons].flatten()
        return neurons, dense[connectivity.places_of(neurons)]


class Unpacked:
    """A context in one backward pass, which unpacks what it saved once: gradient checkpointing allows no second time."""

    def __init__(self, ctx: Any, saved: tuple[Any, ...] | None = None) -> None:
        self._ctx = ctx
        self.saved_tensors = ctx.saved_tensors if saved is None else saved

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ctx, name)


def record_of(ctx: Any) -> Record:
    """The record on a context, or on a node of the graph."""
    return Record(Saved(*ctx.saved_tensors), ctx.facts)


# ---- the hard read ---------------------------------------------------------------------------------------------------


def remember_lut(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    """Of `lut`: x, weight, anchors, and how -> y, and `Detected`."""
    x, weight, anchors, start, targets, meta, how, _ = inputs
    _, indices, min_delta, min_delta_index = output
    ctx.facts = Facts(how, tuple(weight.shape), weight.dtype, x.shape[1], x.dtype)
    saved = Saved(indices, start=start, targets=targets, meta=meta)
    if ctx.needs_input_grad[0]:
        saved = saved._replace(min_delta=min_delta, min_delta_index=min_delta_index, weight=weight, anchors=anchors)
    ctx.save_for_backward(*saved)


def lut_to_inputs(ctx: Any, to_weight: bool, grad: Tensor, *_: None) -> list[Tensor | None]:
    """grad [B, O] -> dx [B, I] where it is wanted, with it dW, and nothing for anchors."""
    if not ctx.needs_input_grad[0]:
        return [None, None, None]
    s, f = record_of(ctx)
    run, rest = op("lut_gradients", grad, s.weight), (f.n_inputs, f.dtype, to_weight)  # type: ignore[arg-type]
    dx, dw = run(grad, s.weight, *s[:3], s.anchors, *rest, *s.wires, f.how)
    return [dx, dw if to_weight else None, None]


def rows_to_weight(ctx: Any, grad: Tensor) -> Tensor:
    """grad [B, O] or [B, S, O] -> dW, dense."""
    s, f = record_of(ctx)
    bits = (f.n_anchors, f.positions_shape[2] if f.positions_shape else 0)
    rows = (s.indices, s.a, s.b, s.alternatives if f.two else None, s.pe_indices)
    return op("lut_weight_gradients", grad)(grad, *rows, *bits, f.size, f.weight_dtype, *s.wires, f.how)


# ---- reads -----------------------------------------------------------------------------------------------------------


def remember_read(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    """Of `read_detectors`. The margins are recomputed from x: they take N_c times the memory of anything else."""
    x, anchors, *logs, _, _, _, ctx.how, thresholds = inputs
    one_row = how_of(ctx.how).read == "confidence"
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(*output[2:], *([output[1]] if one_row else []))
    ctx.save_for_backward(x, anchors, *logs, thresholds)


def read_to_inputs(ctx: Any, _: bool, da: Tensor | None, db: Tensor | None, *__: None) -> list[Tensor | None]:
    """da, db [B, N_t] -> dx [B, I], nothing for anchors, the gradients of the scalars []."""
    if da is None and db is None:
        return [None] * 5
    x, anchors, *logs, thresholds = ctx.saved_tensors
    to_x, wanted = ctx.needs_input_grad[0], ctx.needs_input_grad[2:5]
    run, rest = op("read_detectors_gradients", x), (None, None, None, ctx.how, thresholds)
    dx, learned = run(x, anchors, *logs, da, db, to_x, *rest)
    parts = zip(logs, learned.unbind(), wanted, strict=True)
    return [dx if to_x else None, None, *(part.to(log.dtype) if want else None for log, part, want in parts)]


def remember_rows(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    """Of `weigh_rows`: weight, indices, alternatives, a, b, two, dtype, and how -> y."""
    weight, indices, alternatives, a, b, two, _, start, targets, meta, how = inputs
    ctx.facts = Facts(how, tuple(weight.shape), weight.dtype, two=two)
    ctx.dtypes = (a.dtype, b.dtype)
    # A second row that is not added still has a gain: the slope of the hard read comes from it.
    second = alternatives if alternatives.numel() or not indices.numel() else None
    saved = Saved(indices, a=a, b=b if two else None, alternatives=second, start=start, targets=targets, meta=meta)
    ctx.save_for_backward(*(saved._replace(weight=weight) if any(ctx.needs_input_grad[3:5]) else saved))


def rows_to_inputs(ctx: Any, to_weight: bool, grad: Tensor) -> list[Tensor | None]:
    """grad [B, O] -> dW, nothing for indices and alternatives, da, db [B, N_t]; where they are wanted."""
    to_a, to_b = ctx.needs_input_grad[3:5]
    if not (to_a or to_b):
        return [None] * 5
    s, f = record_of(ctx)
    rows = (s.indices, s.alternatives, s.a, s.b)
    da, db, dw = op("weigh_rows_gradients", grad)(grad, s.weight, *rows, to_b, f.two, to_weight, *s.wires, f.how)
    gains = (da.to(ctx.dtypes[0]) if to_a else None, db.to(ctx.dtypes[1]) if to_b else None)
    return [dw if to_weight else None, None, None, *gains]


# ---- sequences -------------------------------------------------------------------------------------------------------


def remember_attention(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    """Of `lut_attention`: x, weight, anchors, positions, and how -> y, and `Detected`."""
    x, weight, anchors, positions, start, targets, meta, how = inputs
    shape = (tuple(positions.shape), positions.dtype)
    ctx.facts = Facts(how, tuple(weight.shape), weight.dtype, x.shape[2], x.dtype, anchors.shape[1], *shape)
    saved = Saved(output[1], pe_indices=output[4], start=start, targets=targets, meta=meta)
    if ctx.needs_input_grad[0] or ctx.needs_input_grad[3]:
        saved = Saved(*output[1:])._replace(weight=weight, anchors=anchors, start=start, targets=targets, meta=meta)
    ctx.save_for_backward(*saved)


def attention_to_inputs(ctx: Any, to_weight: bool, grad: Tensor, *_: None) -> list[Tensor | None]:
    """grad [B, S, O] -> dx [B, S, I], dW, nothing for anchors, dpositions; where they are wanted."""
    to_x, to_positions = ctx.needs_input_grad[0], ctx.needs_input_grad[3]
    if not (to_x or to_positions):
        return [None] * 4
    s, f = record_of(ctx)
    numbers = (f.n_inputs, f.positions_shape, f.dtype, f.positions_dtype, to_weight)
    run = op("lut_attention_gradients", grad)
    dx, dpositions, dw = run(grad, s.weight, *s[:6], s.anchors, *numbers, *s.wires, f.how)
    return [dx if to_x else None, dw if to_weight else None, None, dpositions if to_positions else None]


# ---- registration ----------------------------------------------------------------------------------------------------


class Formula(NamedTuple):
    """How one training op is differentiated, whatever becomes of the gradient of its weight."""

    op: str
    remember: Callable[[Any, tuple[Any, ...], Any], None]
    # ctx, whether the weight's is wanted, gradients of the outputs -> those of the tensors that come first; with that of the
    # weight, where one op gives both.
    to_inputs: Callable[..., list[Tensor | None]]
    weight_at: int = -1  # the place of the weight among the inputs; -1 where there is none

    def backward(self, ctx: Any, grads: tuple[Any, ...], to_weight: bool) -> tuple[Tensor | None, ...]:
        """The gradients of all inputs, that of the weight dense, where it is wanted."""
        refuse_batches(*grads)
        gradients: list[Tensor | None] = []
        if any(grad is not None for grad in grads):
            ctx = Unpacked(ctx)
            with torch.no_grad():
                gradients = self.to_inputs(ctx, to_weight, *grads)
                if to_weight and gradients[self.weight_at] is None:
                    gradients[self.weight_at] = rows_to_weight(ctx, grads[0])
        if torch.is_grad_enabled():  # in a pass that makes a graph of itself each says that it has none of its own
            kept = ctx.saved_tensors if isinstance(ctx, Unpacked) else ()
            sources = [each for each in (*grads, *kept) if each is not None and each.requires_grad]
            gradients = [None if each is None else Once.apply(each.requires_grad_(), ONCE, *sources) for each in gradients]
        return *gradients, *[None] * (len(ctx.needs_input_grad) - len(gradients))


LUT = Formula("lut", remember_lut, lut_to_inputs, 1)
READ = Formula("read_detectors", remember_read, read_to_inputs)
ROWS = Formula("weigh_rows", remember_rows, rows_to_inputs, 0)
ATTENTION = Formula("lut_attention", remember_attention, attention_to_inputs, 1)


def _register(formula: Formula) -> None:
    has_weight = formula.weight_at >= 0

    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.set_materialize_grads(False)
        if has_weight and isinstance(output, tuple):  # y, and `Detected`
            ctx.mark_non_differentiable(*output[1:])
        formula.remember(ctx, inputs, output)

    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        return formula.backward(ctx, grads, has_weight and ctx.needs_input_grad[formula.weight_at])

    torch.library.register_autograd(f"lutetia::{formula.op}", backward, setup_context=setup_context, lib=LIBRARY)
    show_alone(formula.op)


for _formula in (LUT, READ, ROWS, ATTENTION):
    _register(_formula)
