"""Who runs a call: the checks, the executor, and the step that a recording shows."""

from __future__ import annotations

import os
import warnings
from functools import cache
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from lutetia import flow
from lutetia.attention import reference
from lutetia.attention.arguments import DecodeCall, check_call, check_how, check_values
from lutetia.attention.choose import choose_for
from lutetia.errors import ArgumentError, MissingFeatureError, fail, require


def run(*arguments: Any) -> tuple[Tensor, Tensor]:
    """`decode_attention`, without a gradient; `arguments` are those of `_run`."""
    if not torch.is_grad_enabled():  # as in a loop that writes: to say so again takes as long as the checks
        return _run(*arguments)
    with torch.no_grad():
        return _run(*arguments)


def _run(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    seq_lens: Tensor,
    k_new: Tensor | None,
    v_new: Tensor | None,
    scale: float | None,
    window: int | None,
    sink: Tensor | None,
    page_table: Tensor | None,
    k_scale: Any,
    v_scale: Any,
    cores: int,
    shard: str,
    sync: str,
    backend: str,
    batch_invariant: bool,
    policy: str,
) -> tuple[Tensor, Tensor]:
    """The arguments of `decode_attention`, with its shapes."""
    check_how(cores, shard, sync, backend, policy)
    if not isinstance(batch_invariant, bool):
        fail("batch_invariant", batch_invariant, "True or False")
    call = check_call(q, k_cache, v_cache, seq_lens, k_new, v_new, scale, window, sink, page_table, k_scale, v_scale)
    check_values(call)
    executor = executor_of(call, cores, backend)
    if executor == "cores":
        return _on_cores(call, cores, shard, sync, policy)
    if not flow.recording():
        return _execute(executor, call, cores, shard, batch_invariant)
    names = ("q", "k_cache", "v_cache", "seq_lens", "k_new", "v_new", "sink", "page_table")
    inputs = {name: value for name in names if (value := getattr(call, name)) is not None}
    notes = _notes(executor, call, cores, shard, batch_invariant)
    with flow.step("decode_attention", part="attention", inputs=inputs, backend=executor, **notes) as step:
        out, lse = _execute(executor, call, cores, shard, batch_invariant)
        step.outputs(out=out, lse=lse, **({} if k_new is None else {"k_cache": k_cache, "v_cache": v_cache}))
    return out, lse


def executor_of(call: DecodeCall, cores: int, backend: str) -> str:
    """ "cores", "cpu", "triton" or "reference": the one that was asked for, or the fastest one for the device."""
    device = call.q.device
    if backend == "auto":
        if cores > 1:
            return "cores"  # only there do cores talk to each other
        if device.type == "cuda":
            return "reference" if call.q.dtype == torch.float64 else "triton"
        return _cpu_executor() if device.type == "cpu" else "reference"
    if backend == "cpu":
        if device.type != "cpu":
            raise ArgumentError(f"backend is 'cpu' and q is on {device}, expected a CPU tensor")
        require("numba", "the cpu backend of lutetia.attention")
    if backend == "triton":
        if device.type != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
            raise ArgumentError(
                f"backend is 'triton' and q is on {device}, expected a CUDA tensor "
                "(or TRITON_INTERPRET=1 in the environment, set before triton is imported)"
            )
        for name, tensor in (("q", call.q), ("k_cache", call.k_cache)):
            if tensor.dtype == torch.float64:
                fail(name, tensor, "bfloat16, float16 or float32 for the triton backend")
    return backend


@cache
def _cpu_executor() -> str:
    try:
        require("numba", "the cpu backend of lutetia.attention")
    except MissingFeatureError as error:
        warnings.warn(f"decode attention runs in plain torch: {error}", RuntimeWarning, stacklevel=2)
        return "reference"
    return "cpu"


def _execute(executor: str, call: DecodeCall, cores: int, shard: str, batch_invariant: bool) -> tuple[Tensor, Tensor]:
    if executor == "triton":
        from lutetia.attention import triton

        return triton.decode(call, cores, shard, batch_invariant)
    if executor == "cpu":
        from lutetia.attention import cpu

        return cpu.decode(call, cores, shard, batch_invariant)
    return reference.decode(call)


def _on_cores(call: DecodeCall, cores: int, shard: str, sync: str, policy: str) -> tuple[Tensor, Tensor]:
    """On the core model, sharded as `choose_shard` says."""
    choice = choose_for(call, cores, shard, sync, policy)
    owner = "batch" if choice.shard == "none" else choice.shard
    cores_module = import_module("lutetia.attention.cores")
    return cores_module.decode_on_cores(call, cores=choice.cores, shard=owner, sync=sync, tile=choice.tile)


def _notes(executor: str, call: DecodeCall, cores: int, shard: str, batch_invariant: bool) -> dict[str, Any]:
    """What a recording says of a launch."""
    read = 2 * call.n_kv_heads * call.head_dim * call.k_cache.element_size()
    notes: dict[str, Any] = {"bytes_per_key": read, "batch_invariant": batch_invariant}
    if executor == "triton":
        from lutetia.attention import triton

        return notes | triton.configure(call, cores, shard, batch_invariant)._asdict()
    lengths = call.seq_lens.tolist()
    return notes | {"live_keys": sum(lengths), "cache_bytes_read": read * sum(lengths)}
