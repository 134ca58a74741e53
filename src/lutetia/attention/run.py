"""Running a call: the checks, the executor, and the step that a recording shows."""

from __future__ import annotations

import os
import warnings
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

import torch
from torch import Tensor

import lutetia
from lutetia import flow
from lutetia._shared.direct import PLAIN
from lutetia.attention import reference
from lutetia.attention.arguments import (
    DecodeCall,
    Prefix,
    RunOptions,
    angles_of,
    check_call,
    check_how,
    check_values,
    factor_of,
    narrow,
    tree_bits,
)
from lutetia.attention.cascade import cascade
from lutetia.attention.choose import choose_for
from lutetia.errors import ArgumentError, MissingFeatureError, fail, require

FACTORS = slice(DecodeCall._fields.index("k_scale"), DecodeCall._fields.index("v_scale") + 1)
OF_CALL = FACTORS.stop  # arguments that begin a DecodeCall; then come those of a RunOptions, and those that end the DecodeCall
OF_HOW = OF_CALL + len(RunOptions._fields)


def run(*arguments: Any) -> tuple[Tensor, Tensor]:
    """`decode_attention`, without a gradient. `arguments` are all of its arguments: first those of `DecodeCall`, in its order,
    then those from `cores` on.

    A call like an earlier one, on CUDA or on the CPU's compiled loops, runs the same way. Only values are checked again.
    """
    q, key, known = arguments[0], None, None
    on_cuda = getattr(q, "is_cuda", False)
    if (on_cuda or (type(q) in PLAIN and q.is_cpu)) and not (lutetia.debug or flow.recording()):
        try:
            key = signature(arguments)
            known = _plans.get(key)
        except (TypeError, RuntimeError):  # of what cannot be a key, or has no strides: the checks will refuse it by name
            key = None
        if known is not None and on_cuda:
            return known.start(arguments[:OF_CALL], arguments[OF_HOW:])
    if not torch.is_grad_enabled():  # as in a loop that writes: to say so again takes as long as the checks
        return _run(arguments, key, known)
    with torch.no_grad():
        return _run(arguments, key, known)


def _run(arguments: tuple[Any, ...], key: Any, known: KnownCall | None) -> tuple[Tensor, Tensor]:
    """Check a call and run it, unless it is known; what was worked out is kept under `key`, if there is one."""
    if known is not None:
        return known.start(arguments[:OF_CALL], arguments[OF_HOW:])
    how = RunOptions(*arguments[OF_CALL:OF_HOW])
    check_how(how)
    call = check_call(*arguments[:OF_CALL], *arguments[OF_HOW:])
    check_values(call)
    if call.prefix is not None and how.batch_invariant:
        raise ArgumentError(
            "prefix and batch_invariant are both given, expected one of them: a prefix is read for all rows at once"
        )
    executor = executor_of(call, how.cores, how.backend)
    if executor == "cores":
        return _on_cores(call, how)
    if key is not None and (executor == "cpu" or (executor == "triton" and call.q.is_cuda)):
        if len(_plans) >= MOST_PLANS:
            _plans.clear()
        _plans[key] = KnownCall.of(call, arguments, how, executor)
        return _plans[key].start(arguments[:OF_CALL], arguments[OF_HOW:])
    if not flow.recording():
        return _execute(executor, call, how)
    names = ("q", "k_cache", "v_cache", "seq_lens", "k_new", "v_new", "sink", "page_table", "starts", "alibi", "rotary", "tree")
    inputs = {name: value for name in names if (value := getattr(call, name)) is not None}
    with flow.step("decode_attention", part="attention", inputs=inputs, backend=executor, **_notes(executor, call, how)) as step:
        out, lse = _execute(executor, call, how)
        written = {} if call.k_new is None else {"k_cache": call.k_cache, "v_cache": call.v_cache}
        step.outputs(out=out, lse=lse, **written)
    return out, lse


# ---- calls like one before -------------------------------------------------------------------------------------------


def signature(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """All that decides how a call is checked and launched: everything but the addresses and contents of tensors, and whether
    values are part of the keys."""
    k, v = arguments[1:3]
    shared = isinstance(k, Tensor) and isinstance(v, Tensor) and k.data_ptr() == v.data_ptr()
    known = [  # a list is made faster than by a generator, and most arguments are None
        one
        if one is None or not isinstance(one, Tensor)
        else (one.shape, one.stride(), one.dtype, one.get_device(), one.data_ptr() & 15)
        for one in arguments
    ]
    return (shared, *known)


class OnLoops(NamedTuple):
    """How the CPU's compiled loops run a call whose shapes were checked."""

    how: RunOptions

    def start(self, call: DecodeCall) -> tuple[Tensor, Tensor]:
        """Check the values, and run it."""
        check_values(call)
        return _execute("cpu", call, self.how)


class KnownCall(NamedTuple):
    """What was worked out for calls of one signature."""

    plan: Any  # triton.LaunchPlan, latent.LatentPlan, or OnLoops
    scale: float
    window: int | None
    factors: tuple[Tensor | None, Tensor | None]  # k_scale and v_scale where they are numbers
    softcap: float | None = None
    shared: bool = False  # values are part of the keys

    @staticmethod
    def of(call: DecodeCall, arguments: tuple[Any, ...], how: RunOptions, executor: str) -> KnownCall:
        """From a call that was checked."""
        plan: Any = plan_on_gpu(call, how) if executor == "triton" else OnLoops(how)
        pairs = zip(arguments[FACTORS], (call.k_scale, call.v_scale), strict=True)
        factors = [None if isinstance(one, Tensor) else kept for one, kept in pairs]
        return KnownCall(plan, call.scale, call.window, tuple(factors), call.softcap, call.shared)  # type: ignore[arg-type]

    def start(self, given: tuple[Any, ...], more: tuple[Any, ...] = ()) -> tuple[Tensor, Tensor]:
        """Launch it with other tensors: the arguments of a DecodeCall up to v_scale, and those after it."""
        q, k_cache, v_cache, seq_lens, k_new, v_new, _, _, sink, page_table, *factors = given
        starts, _, prefix, alibi, rotary, tree = (*more, *(None,) * 6)[:6]
        if seq_lens.dtype != torch.int32:
            seq_lens = narrow("seq_lens", seq_lens)
        if starts is not None and starts.dtype != torch.int32:
            starts = narrow("starts", starts)
        k_scale, v_scale = self.factors
        if factors[0] is not None and isinstance(factors[0], Tensor):
            k_scale = factor_of(factors[0], k_cache.shape[1 if page_table is None else 2])
        if factors[1] is not None and isinstance(factors[1], Tensor):
            v_scale = factor_of(factors[1], k_cache.shape[1 if page_table is None else 2])
        if self.shared:
            v_scale, v_new = k_scale, None if k_new is None else k_new[..., : v_cache.shape[3]]
        call = DecodeCall(
            q, k_cache, v_cache, seq_lens, k_new, v_new, self.scale, self.window, sink, page_table, k_scale, v_scale,
            starts, self.softcap, Prefix(prefix, k_cache, v_cache, page_table, k_scale, v_scale) if prefix else None,
            None if alibi is None else alibi.float().contiguous(), None if rotary is None else angles_of(rotary, q),
            None if tree is None else tree_bits(tree, q.shape[0]),
        )  # fmt: skip
        return self.plan.start(call)


MOST_PLANS = 4096  # calls that are remembered, before all are forgotten
_plans: dict[Any, KnownCall] = {}


# ---- who runs it -----------------------------------------------------------------------------------------------------


def executor_of(call: DecodeCall, cores: int, backend: str) -> str:
    """ "cores", "cpu", "triton" or "reference": the one requested, or the fastest one for the device."""
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


def plan_on_gpu(call: DecodeCall, how: RunOptions) -> Any:
    """The launch of a call, without its tensors: of the kernel for latent attention where that fits, or of Triton's."""
    latent = import_module("lutetia.attention.cuda.latent")
    if latent.fits(call, how.cores):
        return latent.plan_of(call, how.batch_invariant)
    triton = import_module("lutetia.attention.triton")
    return triton.plan_of(call, triton.configure(call, how.cores, how.shard, how.batch_invariant))


def _execute(executor: str, call: DecodeCall, how: RunOptions) -> tuple[Tensor, Tensor]:
    if executor == "triton":
        return plan_on_gpu(call, how).start(call)
    if executor == "cpu":
        from lutetia.attention import cpu

        if call.prefix is not None:
            return cascade(call, lambda part: cpu.decode_on_cpu(part, how.cores, how.shard, how.batch_invariant))
        return cpu.decode_on_cpu(call, how.cores, how.shard, how.batch_invariant)
    return reference.decode(call)


def _on_cores(call: DecodeCall, how: RunOptions) -> tuple[Tensor, Tensor]:
    """On the core model, sharded as `choose_shard` says."""
    choice = choose_for(call, how.cores, how.shard, how.sync, how.policy)
    owner = "batch" if choice.shard == "none" else choice.shard
    cores_module = import_module("lutetia.attention.cores")
    return cores_module.decode_on_cores(call, cores=choice.cores, shard=owner, sync=how.sync, tile=choice.tile)


def _notes(executor: str, call: DecodeCall, how: RunOptions) -> dict[str, Any]:
    """What a recording says about a launch."""
    read = 2 * call.n_kv_heads * call.head_dim * call.k_cache.element_size()
    notes: dict[str, Any] = {"bytes_per_key": read, "batch_invariant": how.batch_invariant}
    if executor == "triton":
        from lutetia.attention import triton
        from lutetia.attention.cuda import latent

        if latent.fits(call, how.cores):
            return notes | {"kernel": "latent"}
        return notes | triton.configure(call, how.cores, how.shard, how.batch_invariant)._asdict()
    lengths = call.seq_lens.tolist()
    return notes | {"live_keys": sum(lengths), "cache_bytes_read": read * sum(lengths)}
