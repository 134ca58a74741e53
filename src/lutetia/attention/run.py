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
from lutetia.attention.arguments import DecodeCall, How, check_call, check_how, check_values
from lutetia.attention.choose import choose_for
from lutetia.errors import ArgumentError, MissingFeatureError, fail, require


def run(*arguments: Any) -> tuple[Tensor, Tensor]:
    """`decode_attention`, without a gradient; `arguments` are all of its, in the order of `DecodeCall` and then `How`."""
    of_call = len(DecodeCall._fields)
    if not torch.is_grad_enabled():  # as in a loop that writes: to say so again takes as long as the checks
        return _run(arguments[:of_call], How(*arguments[of_call:]))
    with torch.no_grad():
        return _run(arguments[:of_call], How(*arguments[of_call:]))


def _run(given: tuple[Any, ...], how: How) -> tuple[Tensor, Tensor]:
    check_how(how)
    call = check_call(*given)
    check_values(call)
    executor = executor_of(call, how.cores, how.backend)
    if executor == "cores":
        return _on_cores(call, how)
    if not flow.recording():
        return _execute(executor, call, how)
    names = ("q", "k_cache", "v_cache", "seq_lens", "k_new", "v_new", "sink", "page_table")
    inputs = {name: value for name in names if (value := getattr(call, name)) is not None}
    with flow.step("decode_attention", part="attention", inputs=inputs, backend=executor, **_notes(executor, call, how)) as step:
        out, lse = _execute(executor, call, how)
        written = {} if call.k_new is None else {"k_cache": call.k_cache, "v_cache": call.v_cache}
        step.outputs(out=out, lse=lse, **written)
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


def _execute(executor: str, call: DecodeCall, how: How) -> tuple[Tensor, Tensor]:
    if executor == "triton":
        from lutetia.attention import triton

        return triton.decode(call, how.cores, how.shard, how.batch_invariant)
    if executor == "cpu":
        from lutetia.attention import cpu

        return cpu.decode(call, how.cores, how.shard, how.batch_invariant)
    return reference.decode(call)


def _on_cores(call: DecodeCall, how: How) -> tuple[Tensor, Tensor]:
    """On the core model, sharded as `choose_shard` says."""
    choice = choose_for(call, how.cores, how.shard, how.sync, how.policy)
    owner = "batch" if choice.shard == "none" else choice.shard
    cores_module = import_module("lutetia.attention.cores")
    return cores_module.decode_on_cores(call, cores=choice.cores, shard=owner, sync=how.sync, tile=choice.tile)


def _notes(executor: str, call: DecodeCall, how: How) -> dict[str, Any]:
    """What a recording says of a launch."""
    read = 2 * call.n_kv_heads * call.head_dim * call.k_cache.element_size()
    notes: dict[str, Any] = {"bytes_per_key": read, "batch_invariant": how.batch_invariant}
    if executor == "triton":
        from lutetia.attention import triton

        return notes | triton.configure(call, how.cores, how.shard, how.batch_invariant)._asdict()
    lengths = call.seq_lens.tolist()
    return notes | {"live_keys": sum(lengths), "cache_bytes_read": read * sum(lengths)}
