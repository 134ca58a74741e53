"""The end of decode attention on a core: agree on m and l if that was deferred, divide, combine, store."""

from __future__ import annotations

from functools import reduce

import torch
from torch import Tensor

from lutetia.attention.arguments import DecodeCall
from lutetia.attention.messages import Core, Exchange, Program
from lutetia.attention.steps import FABuffers, exchange, finite


def fa_finalize_and_store(
    core: Core,
    call: DecodeCall,
    fa: FABuffers,
    sync: str | None,
    batch_parts: list[int] | None,
    out: Tensor | None,
    lse: Tensor | None,
) -> Program[Tensor | None]:
    """out = O / l into `out` [B, H_q, s_active, d] and lse [B, H_q, s_active] where given, both of the rows of this core.

    `sync` is how the cores that share the keys agree, None where keys are not shared. `batch_parts`, rows of each core, asks for
    the whole result on every core (out_in_sb). Returns the output that this core holds at the end, in the statistics' dtype.
    """
    with core.step("fa_finalize_and_store"):
        if sync == "deferred":
            yield from agree(core, fa)
        elif sync == "lse":
            yield from combine(core, fa)
        if call.sink is not None:
            add_sink(core, call, fa)
        normalize(core, fa)
        if sync in ("lockstep", "deferred"):
            yield from add_outputs(core, fa)
        held = fa.running_output.reshape(call.out_shape)
        if out is not None and lse is not None:
            dma_copy(core, fa, out, lse)
        if batch_parts is not None:
            held = yield from gather_rows(core, held, batch_parts)
    return held


def agree(core: Core, fa: FABuffers) -> Program[None]:
    """Local m and l into global ones, after the last tile: two exchanges."""
    running_max = reduce(torch.maximum, (yield from exchange(core, fa.running_max, "fa_running_max")))
    with core.step("rescale_to_global_max", {"fa_running_max": running_max}) as step:
        rescale = torch.exp(fa.running_max - finite(running_max))
        fa.running_max.copy_(running_max)
        fa.running_sum.mul_(rescale)
        fa.running_output.mul_(rescale[..., None])
        step.outputs(fa_running_max=fa.running_max, fa_running_sum=fa.running_sum, fa_running_output=fa.running_output)
    fa.running_sum = reduce(torch.add, (yield from exchange(core, fa.running_sum, "fa_running_sum")))


def combine(core: Core, fa: FABuffers) -> Program[None]:
    """out = Σ_c e^{m_c - M} O_c / Σ_c e^{m_c - M} l_c, before the division: one exchange of (O, m, l)."""
    with core.step("pack_partial", {"fa_running_output": fa.running_output}) as step:
        mine = torch.cat([fa.running_output, fa.running_max[..., None], fa.running_sum[..., None]], -1)
        step.outputs(partial=mine)
    partials = yield from exchange(core, mine, "partial")
    with core.step("combine_partials", {"partials": partials}) as step:
        top = reduce(torch.maximum, (partial[..., -2] for partial in partials))
        weights = [torch.exp(partial[..., -2] - finite(top)) for partial in partials]
        pairs = list(zip(weights, partials, strict=True))
        fa.running_max.copy_(top)
        fa.running_sum.copy_(reduce(torch.add, (weight * partial[..., -1] for weight, partial in pairs)))
        fa.running_output.copy_(reduce(torch.add, (weight[..., None] * partial[..., :-2] for weight, partial in pairs)))
        step.outputs(fa_running_max=fa.running_max, fa_running_sum=fa.running_sum, fa_running_output=fa.running_output)


def add_sink(core: Core, call: DecodeCall, fa: FABuffers) -> None:
    """The sink [H_q] joins the sum: once, since m and l are those of all cores by now."""
    assert call.sink is not None
    with core.step("add_sink", {"sink": call.sink}) as step:
        sink = call.sink.to(fa.running_max.dtype).reshape(call.n_kv_heads, call.group, 1)
        sink = sink.expand(-1, -1, call.s_active).reshape(1, *fa.running_max.shape[1:])
        new = torch.maximum(fa.running_max, sink)
        rescale = torch.exp(fa.running_max - finite(new))
        fa.running_sum = fa.running_sum * rescale + torch.exp(sink - finite(new))
        fa.running_output.mul_(rescale[..., None])
        fa.running_max.copy_(new)
        step.outputs(fa_running_max=fa.running_max, fa_running_sum=fa.running_sum, fa_running_output=fa.running_output)


def normalize(core: Core, fa: FABuffers) -> None:
    """O · (1 / l); rows that saw nothing stay 0."""
    with core.step("reciprocal", {"fa_running_sum": fa.running_sum}) as step:
        reciprocal = torch.where(fa.running_sum == 0, fa.running_sum, fa.running_sum.reciprocal())
        fa.running_output.mul_(reciprocal[..., None])
        step.outputs(fa_running_output=fa.running_output)


def add_outputs(core: Core, fa: FABuffers) -> Program[None]:
    """The normalised partial outputs of all cores, added in core order: one exchange."""
    parts = yield from exchange(core, fa.running_output, "fa_running_output")
    with core.step("add_partial_outputs", {"parts": parts}) as step:
        fa.running_output = reduce(torch.add, parts)
        step.outputs(fa_running_output=fa.running_output)


def dma_copy(core: Core, fa: FABuffers, out: Tensor, lse: Tensor) -> None:
    """Store the result: out [B, H_q, s_active, d], lse = m + log l [B, H_q, s_active]."""
    inputs = {"fa_running_output": fa.running_output, "fa_running_max": fa.running_max, "fa_running_sum": fa.running_sum}
    with core.step("dma_copy", inputs) as step:
        out.copy_(fa.running_output.reshape(out.shape))
        lse.copy_((fa.running_max + fa.running_sum.log()).reshape(lse.shape))
        step.outputs(out=out, lse=lse)


def gather_rows(core: Core, held: Tensor, batch_parts: list[int]) -> Program[Tensor]:
    """The rows of all cores, on every core: one exchange; held [B, H_q, s_active, d] are this core's."""
    shapes = [(rows, *held.shape[1:]) for rows in batch_parts]
    parts = yield Exchange(held, shapes, "out")
    with core.step("hold_whole_output", {"parts": parts}) as step:
        whole = core.scratch.allocate("out", (sum(batch_parts), *held.shape[1:]), held.dtype)
        torch.cat(list(parts), out=whole)
        step.outputs(out=whole)
    return whole
