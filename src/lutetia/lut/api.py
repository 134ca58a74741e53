"""`lut` and `lut_attention`: the layers as functions of their tensors."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lutetia._shared.backward import refuse_transforms
from lutetia._shared.direct import PLAIN, is_direct
from lutetia._shared.dtypes import FLOATS
from lutetia._shared.ops import op
from lutetia._shared.prepared import mark_as
from lutetia._shared.ragged import check_lengths
from lutetia._uncompiled import as_constant, is_exporting
from lutetia.errors import ArgumentError, check_choice, check_tensor, fail
from lutetia.lut.autograd.graphs import in_graph
from lutetia.lut.autograd.how import NO_WIRES, How, Wires, sizes_of, text_of
from lutetia.lut.autograd.ops import detect_and_fill, output_dtype
from lutetia.lut.autograd.policies import DENSE, SPARSE, Call, Rate, settle_call, start_quickly, with_step_in_place
from lutetia.lut.autograd.quick import quick_for
from lutetia.lut.autograd.saved import ATTENTION, LUT, READ, ROWS, Formula
from lutetia.lut.connectivity.anchors import MAX_ANCHORS
from lutetia.lut.connectivity.full import DEFAULT_META, Connectivity, Full, check_tensors
from lutetia.lut.connectivity.parts import SynapseMeta
from lutetia.lut.kernels import choice
from lutetia.lut.kernels.protocol import READS, SCALAR_NAMES, SCALARS, TWO_ROWS, Products, Read, Synapses
from lutetia.lut.sums import FLOAT, STORED, Sums, sum_dtype

GRADIENTS = ("dense", "sparse", "in_place")
MAX_BITS = MAX_ANCHORS  # a table has at most 2**24 rows: 2 N_c + N_pe bits


class Tables(NamedTuple):
    """The tensors of a layer: weight [n_detectors, n_rows, n_outputs], or flat with synapses; anchors; positions of attention;
    the constants [n_thresholds] that anchors may name. The ops take synapses as three tensors, and everything else as text."""

    weight: Tensor
    anchors: Tensor
    positions: Tensor | None = None
    thresholds: Tensor | None = None
    wires: Wires = NO_WIRES
    header: str = ""


def wired(synapses: Synapses | None) -> tuple[Wires, str]:
    """The last two of `Tables`, of an object."""
    return (NO_WIRES, "") if synapses is None else (check_tensors(synapses), synapses.header_text)


class Learning(NamedTuple):
    """How the weight learns: a gradient policy, the meta of full connectivity, and the rate of steps in place."""

    gradient: str = "dense"
    meta: SynapseMeta = DEFAULT_META
    external_lr: Rate | None = None
    settle: Callable[[Tensor], None] | None = None  # of a layer: what it does with a dense gradient of a compiled graph

    def check(self) -> Learning:
        """Return this, or raise an error that says what it should be."""
        check_choice("gradient", self.gradient, GRADIENTS)
        if not isinstance(self.meta, SynapseMeta):
            fail("meta", self.meta, "a SynapseMeta")
        return self


class LayerDescription(NamedTuple):
    """The parts of a layer, for code that explains, builds, shards or decodes it: the tensors themselves, not copies."""

    weight: Tensor  # [n_detectors, n_rows, n_outputs], or with synapses flat [n_weights]
    anchors: Tensor  # int32 [n_detectors, n_anchors, 2]
    connectivity: Connectivity
    positions: Tensor | None = None  # of attention: [max_length - 1, n_detectors or 1, positional_dim]
    read: Read = Read()
    thresholds: Tensor | None = None  # [n_thresholds]: the constants that anchors name by n_inputs, n_inputs + 1, ...
    in_shape: tuple[int, ...] = ()  # of one input: (n_inputs,), or the shape of an image

    @property
    def tables(self) -> Tables:
        """Its tensors, as the ops take them."""
        synapses = None if isinstance(self.connectivity, Full) else self.connectivity
        return Tables(self.weight, self.anchors, self.positions, self.thresholds, *wired(synapses))


# ---- one step --------------------------------------------------------------------------------------------------------


def lut(
    x: Tensor,
    weight: Tensor,
    anchors: Tensor,
    thresholds: Tensor | None = None,
    *,
    synapses: Synapses | None = None,
    meta: SynapseMeta = DEFAULT_META,
    gradient: str = "dense",
    sums: str = "float",
    int_rescaler: float = 1.0,
    external_lr: Rate | None = None,
    read: str = "hard",
    log_beta: Tensor | None = None,
    log_gamma: Tensor | None = None,
    log_tau: Tensor | None = None,
) -> Tensor:
    """y = Σ_t W[t, index_t]: x [..., n_inputs] -> y [..., n_outputs].

    weight is [n_detectors, 2**n_anchors, n_outputs], or with `synapses` flat [n_weights]; anchors is int32
    [n_detectors, n_anchors, 2]. y has the dtype to which those of x and weight promote; autocast changes neither.

    The second entry b of an anchor is an input, or with `thresholds`, finite numbers [n_thresholds], n_inputs or more: then the
    anchor compares x[a] > thresholds[b - n_inputs]. Thresholds have no gradient.

    `meta` is that of a fully connected layer (synapses carry their own). `gradient` says how the weight learns:

    - "dense": its gradient is a tensor like it.
    - "sparse": its gradient is a coalesced COO tensor of the rows that were read, for SGD and SparseAdam: sparse over
      detector and row, dense over the outputs (a flat weight is sparse throughout).
    - "in_place": it has no gradient. Each backward pass, when all of it is done, ends with
      `weight -= external_lr · lr_scale · gradient`, clamped to the bounds of the meta; `external_lr` is a number, or a function
      asked each time. A weight used twice in a graph takes one step with the sum, and what flows on to x comes from the
      weights as they were before. Every backward pass is a step, so accumulation over several takes several; without
      gradients (torch.no_grad, torch.autograd.grad for x alone) there is none; a second pass over a retained graph is refused
      by autograd where it would need the weights that have changed. Processes do not exchange these steps.

    `read` ("hard", "blend", "confidence", "confidence2") says how a detector weights the row it chose and that row's nearest
    neighbour. The two with confidence take the logarithms of their learned scalars, tensors []: log_beta and log_gamma, and
    log_tau for "confidence2"; by default these have their initial values, log 2, 0 and log 0.5.

    In a graph of torch.compile all gradients are dense, and "sparse" and "in_place" are applied to the finished gradient: the
    results are the same, the memory is that of "dense". torch.export treats all as "dense". With `sums="fixed"` every addend is
    rounded to a multiple of 1 / ((2**20 - 1) · int_rescaler) and the result is the same bit for bit on every backend. NaN in x
    compares as not greater, without an error unless `lutetia.debug` is on.
    """
    if read == "hard" and gradient == "dense" and sums == "float" and int_rescaler == 1.0 and thresholds is None:
        y = quickly(x, weight, anchors, meta if synapses is None else getattr(synapses, "owner_start", None))
        if y is not None:
            return y
    learning = Learning(gradient, meta, external_lr).check()
    check_tensor("x", x)
    how = read_of(read, (log_beta, log_gamma, log_tau), x)
    tables = Tables(weight, anchors, None, thresholds, *wired(synapses))
    return run(x, tables, Sums(sums, int_rescaler).check(), learning, how)


def read_of(name: str, scalars: tuple[Tensor | None, ...], like: Tensor) -> Read | None:
    """A read with these scalars, or their initial values where None; None for the hard read. `like` gives the device."""
    check_choice("read", name, READS)
    made = []
    for scalar, value in zip(SCALAR_NAMES, scalars, strict=True):
        start = SCALARS[name].get(scalar)
        if value is None and start is not None:
            value = torch.full((), start, device=like.device, dtype=sum_dtype(like))
        elif start is None and value is not None:
            fail(scalar, value, f"None: the {name} read has no such scalar")
        elif value is not None:
            check_tensor(scalar, value, [], FLOATS, like.device)
        made.append(value)
    return None if name == "hard" else Read(name, *made)


def quickly(x: Tensor, weight: Tensor, anchors: Tensor, mark: Any, n_inputs: int | None = None) -> Tensor | None:
    """y of a hard read with a dense gradient, where all was prepared by a call like it, or all is usual in a compiled graph.

    `mark` stands for the connectivity, `n_inputs` are those of a layer.
    """
    if torch.compiler.is_compiling():
        return in_graph(x, (weight, anchors), mark, n_inputs)
    try:
        # What `run` would have to copy is left to it.
        rows = x if type(x) not in PLAIN or x.dim() == 2 or not x.is_contiguous() else in_rows(x)
        quick = quick_for(rows, weight, anchors, mark)
    except RuntimeError:  # of layouts that have no memory to point at; refused by name later on
        return None
    if quick is None:
        return None
    if torch.is_grad_enabled() and (weight.requires_grad or x.requires_grad):
        y = start_quickly(rows, weight, anchors, quick) if quick.trains else None
    else:
        y = quick.launches.fill(rows, weight, None)
    return y if y is None or rows is x else y.view(*x.shape[:-1], y.shape[1])


def in_rows(x: Tensor) -> Tensor:
    """x [..., I] -> [B, I]."""
    return x if x.dim() == 2 else x.flatten(0, -2) if x.dim() > 2 else x[None]


def run(
    x: Tensor, tables: Tables, sums: Sums, learning: Learning, read: Read | None = None, table_dropout: float = 0.0
) -> Tensor:
    """`lut` after the checks that a layer makes once: x [..., n_inputs] -> y [..., n_outputs]; no `read` is the hard one."""
    refuse_transforms()
    _check(x, tables)
    weight, anchors, _, thresholds, wires, header = tables
    rows = in_rows(x)
    learned = torch.is_grad_enabled() and (weight.requires_grad or x.requires_grad)
    if weight.dtype == torch.int8 and learned:
        fail("weight", weight, "floats where a gradient is wanted: int8 tables are for inference only")
    how = How(sums, choice.chosen, learning.meta, header)
    direct = read is None and is_direct(x, weight)
    if read is not None:
        y = _weigh(rows, tables, how._replace(read=read.name), learning, read, table_dropout)
    elif direct and not learned and x.is_cpu:
        connectivity = how.connectivity(wires, weight.shape)
        y, _ = detect_and_fill(rows, (weight, anchors), how, connectivity, thresholds, False)
    else:
        layer, rest = (rows, weight, anchors), (*wires, text_of(how), thresholds)
        y = _learn(LUT, layer, rest, learning) if learned else op("lut_eval", x, weight)(*layer, *rest)
    if direct and thresholds is None and not (learned and learning.gradient != "dense"):
        mark, *others = wires if header else (learning.meta,)
        mark_as(mark, tuple(others), rows, (weight, anchors), how.connectivity(wires, weight.shape))  # type: ignore[arg-type]
    return y if x.dim() == 2 else y.view(*x.shape[:-1], y.shape[-1])


def _learn(formula: Formula, tensors: tuple[Tensor, ...], rest: tuple[Any, ...], learning: Learning) -> Tensor:
    """y of a training op, by the gradient policy."""
    weight, dense = tensors[formula.weight_at], learning.gradient == "dense"
    if dense or not weight.requires_grad or torch.compiler.is_compiling():
        if not dense and weight.requires_grad and not is_exporting():
            place = [isinstance(each, str) for each in rest].index(True)  # of the options, which follow the wires
            call = (learning.gradient, rest[place], rest[place - 3 : place], learning.external_lr)
            hook = partial(settle_call, *call) if learning.settle is None else learning.settle
            weight.register_post_accumulate_grad_hook(hook)
        if is_direct(*tensors[:2]):
            return DENSE[formula.op].apply(*tensors, Call(formula, rest))
        output = getattr(torch.ops.lutetia, formula.op)(*tensors, *rest)
        return output[0] if isinstance(output, tuple) else output
    if learning.gradient == "sparse":
        return SPARSE[formula.op].apply(*tensors, Call(formula, rest))
    return with_step_in_place(Call(formula, rest), tensors, learning.external_lr)


def _weigh(x: Tensor, tables: Tables, how: How, learning: Learning, read: Read, table_dropout: float) -> Tensor:
    """x [B, I] -> y [B, O] in two ops: the coefficients of the read, and the rows of the tables, weighted by them.

    The hard read without table dropout does not come here: its kernels know that the coefficients are 1 and 0.
    """
    weight, anchors, _, thresholds, wires, _ = tables
    rest = (*wires, text_of(how))
    learned = any(tensor is not None and tensor.requires_grad for tensor in (x, weight, *read.logs))
    if not (torch.is_grad_enabled() and learned) and not table_dropout:
        return op("read_eval", x, weight)(x, weight, anchors, *read.logs, *rest, thresholds)
    reads, options = (x, anchors, *read.logs), (*rest, thresholds)
    if is_direct(x):
        found = DENSE[READ.op].apply(*reads, Call(READ, options))
    else:
        found = torch.ops.lutetia.read_detectors(*reads, *options)
    a, b, indices, alternatives = found
    if table_dropout:
        kept = torch.empty_like(a, dtype=torch.float32).uniform_() >= table_dropout
        factor = kept.to(a.dtype) / (1 - table_dropout)
        a, b = a * factor, (b if read.name == "confidence" else b * factor)
    rows, how_added = (weight, indices, alternatives, a, b), (read.name in TWO_ROWS, output_dtype(x, weight), *rest)
    if not torch.is_grad_enabled():
        return op("weigh_rows", weight)(*rows, *how_added)
    return _learn(ROWS, rows, how_added, learning)


def _check(x: Any, tables: Tables) -> None:
    """Check that the tensors of a layer fit each other."""
    check_tensor("x", x, ["...", "n_inputs"], FLOATS)
    check_tensor("anchors", tables.anchors, ["n_detectors", "n_anchors", 2], torch.int32, x.device)
    if not 1 <= tables.anchors.shape[1] <= MAX_ANCHORS:
        fail("anchors", tables.anchors, f"1 to {MAX_ANCHORS} anchor pairs per detector")
    if tables.thresholds is not None:
        check_tensor("thresholds", tables.thresholds, ["n_thresholds"], FLOATS, x.device)
    _check_weight(x, tables, tables.anchors.shape[1], STORED)


def _check_weight(x: Tensor, tables: Tables, n_bits: int, dtypes: tuple[torch.dtype, ...] = FLOATS) -> None:
    """Check that a weight has the tables of the detectors, 2**n_bits rows each."""
    (start, targets, _), n_detectors = tables.wires, tables.anchors.shape[0]
    n_bits = as_constant(n_bits)  # torch 2.11 cannot write code for a power with a symbol in it
    if start is None or targets is None:
        check_tensor("weight", tables.weight, [n_detectors, 1 << n_bits, "n_outputs"], dtypes, x.device)
        return
    sizes = sizes_of(tables.header)
    if (sizes.n_detectors, sizes.n_rows) != (n_detectors, 1 << n_bits):
        given = f"{sizes.n_detectors} detectors × {sizes.n_rows} rows"
        fail("synapses", given, f"{n_detectors} detectors × {1 << n_bits} rows, as anchors have")
    check_tensor("synapses.targets", targets, ["n"])
    check_tensor("weight", tables.weight, [targets.shape[0] * sizes.rows_listed], dtypes, x.device)
    check_tensor("synapses", start, device=x.device)


# ---- sequences -------------------------------------------------------------------------------------------------------


def lut_attention(
    x: Tensor,
    weight: Tensor,
    anchors: Tensor,
    positions: Tensor,
    *,
    algorithm: str = "auto",
    lengths: Tensor | None = None,
    synapses: Synapses | None = None,
    meta: SynapseMeta = DEFAULT_META,
    gradient: str = "dense",
    sums: str = "float",
    int_rescaler: float = 1.0,
    external_lr: Rate | None = None,
    precision: str = "float32",
    budget: int | None = None,
) -> Tensor:
    """y[j] = Σ_{i < j} Σ_t W[t, Q_j K_i PE_{j-i}]: x [B, S, n_inputs] -> y [B, S, n_outputs], and y[0] = 0.

    weight is [n_detectors, 2**(2 n_anchors + positional_dim), n_outputs], or with `synapses` flat [n_weights]; anchors is int32
    [n_detectors, n_anchors, 2]; positions is [at least S-1, n_detectors, positional_dim], or [.., 1, ..] when all detectors
    share it. Gradients go to x, weight and positions.

    `algorithm` is "pairs" or "cells", which give the same answer, or "auto", the one expected to be faster. `lengths`, an integer
    tensor [B], says how long each sequence really is: y is zero past it. `precision` ("float32", "tf32", "bf16") is that of the
    products of cells on CUDA, `budget` how many bytes of scratch cells may use (by default a quarter of what is free).

    `meta`, `gradient`, `sums`, `int_rescaler` and `external_lr` are those of `lut`; a "sparse" gradient holds the rows that were
    read for a y whose gradient is not zero.
    """
    if torch.compiler.is_compiling() and lengths is None and synapses is None and gradient == "dense" and sums == "float":
        usual = (algorithm, int_rescaler, precision, budget) == ("auto", 1.0, "float32", None)
        y = in_graph(x, (weight, anchors, positions), meta) if usual else None
        if y is not None:
            return y
    how = How(Sums(sums, int_rescaler), meta=meta, algorithm=algorithm, products=Products(precision, budget))
    how.check(synapses is not None)
    learning = Learning(gradient, meta, external_lr).check()
    return run_attention(x, Tables(weight, anchors, positions, None, *wired(synapses)), lengths, how, learning)


def run_attention(x: Tensor, tables: Tables, lengths: Tensor | None, how: How, learning: Learning) -> Tensor:
    """`lut_attention` after the checks that a layer makes once."""
    plain = lengths is None and not tables.header and how.sums == FLOAT and how.algorithm != "cells"
    if plain and not torch.compiler.is_compiling() and not _learns(x, tables):
        quick = quick_for(x, tables.weight, tables.anchors, tables.positions)
        y = None if quick is None else quick.launches.fill(x, tables.weight, None)
        if y is not None:
            return y
    refuse_transforms()
    check_attention(x, tables)
    if lengths is not None:
        check_lengths(lengths, x)
    weight, anchors, positions, _, wires, header = tables
    assert positions is not None
    how = how._replace(backend=choice.chosen, meta=learning.meta, header=header)
    layer, rest = (x, weight, anchors, positions), (*wires, text_of(how))
    learns = _learns(x, tables)
    y = _learn(ATTENTION, layer, rest, learning) if learns else op("lut_attention_eval", x, weight)(*layer, *rest)
    if lengths is None:
        return y
    within = torch.arange(x.shape[1], device=x.device) < lengths.to(x.device)[:, None]  # [B, S]
    return y.where(within.unsqueeze(-1), 0)


def _learns(x: Tensor, tables: Tables) -> bool:
    """Whether a sequence, which may be unchecked, needs gradients."""
    wanted = (getattr(each, "requires_grad", False) for each in (x, tables.weight, tables.positions))
    return torch.is_grad_enabled() and any(wanted)


def check_attention(x: Any, tables: Tables) -> None:
    """Check that the tensors of a layer fit each other."""
    anchors, positions = tables.anchors, tables.positions
    check_tensor("x", x, ["B", "S", "n_inputs"], FLOATS)
    check_tensor("anchors", anchors, ["n_detectors", "n_anchors", 2], torch.int32, x.device)
    check_tensor("positions", positions, ["max_length - 1", "n_detectors", "positional_dim"], FLOATS, x.device)
    assert positions is not None
    n_detectors, n_anchors, _ = anchors.shape
    if positions.shape[1] not in (1, n_detectors):
        fail("positions", positions, f"shape [max_length - 1, {n_detectors} or 1, positional_dim]")
    n_bits = check_bits(n_anchors, positions.shape[2])
    if not 1 <= x.shape[1] <= positions.shape[0] + 1:
        fail("x", x, f"sequences of 1 to {positions.shape[0] + 1} positions, one more than positions has distances")
    _check_weight(x, tables, n_bits)


def check_bits(n_anchors: int, positional_dim: int) -> int:
    """The number of bits that select a row: 2 N_c + N_pe."""
    n_bits = 2 * n_anchors + positional_dim
    if n_anchors < 1 or n_bits > MAX_BITS:
        raise ArgumentError(
            f"n_anchors is {n_anchors} and positional_dim {positional_dim}, expected at least one anchor pair and "
            f"2 · n_anchors + positional_dim of at most {MAX_BITS}: a table has no more than 2**{MAX_BITS} rows"
        )
    return n_bits
