"""The slow engine: every activation is recorded as it is made, so relevance can be handed down without any promise.

Autograd numbers its nodes as it creates them, just before the operation runs: the dispatch mode reads that number and
files the call under it. The rules are written again, plainly: by autograd itself where an operation is linear.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import _get_sequence_nr
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map_only, tree_unflatten


class Recorder(TorchDispatchMode):
    """Files every call under the number of the autograd node it belongs to: function, arguments, outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: dict[int, tuple[Any, Any, Any, tuple[Any, ...]]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        number = _get_sequence_nr() - 1
        if func.__name__.split(".")[0].endswith("_") and number in self.calls and number - 1 not in self.calls:
            number -= 1  # in place, autograd may first clone what it has to keep, which takes a number as well
        new = number not in self.calls
        copies = tree_map_only(Tensor, lambda t: t.detach().clone(), (args, kwargs)) if new else ()
        out = func(*args, **kwargs)
        if new:
            outs = tuple(
                o.detach().clone() if isinstance(o, Tensor) else o for o in (out if isinstance(out, (tuple, list)) else (out,))
            )
            self.calls[number] = (func, *copies, outs)
        return out


MOVES = {
    "view", "_unsafe_view", "reshape", "transpose", "t", "permute", "expand", "unsqueeze", "squeeze", "slice", "select", "split",
    "split_with_sizes", "unbind", "cat", "stack", "flip", "roll", "clone", "alias", "index_select", "gather", "max", "amax",
    "where", "constant_pad_nd", "_reshape_alias", "max_pool2d_with_indices", "repeat", "_to_copy", "detach", "masked_fill",
    "unsafe_split", "index", "as_strided", "topk", "masked_scatter", "index_put", "sort", "unfold", "upsample_nearest2d",
}  # fmt: skip
PASSES = {
    "relu", "tanh", "sigmoid", "gelu", "silu", "exp", "leaky_relu", "neg", "abs", "pow", "log", "rsqrt", "sqrt", "hardtanh",
    "softplus", "native_dropout", "hardsigmoid", "hardswish", "log1p", "sin", "cos", "erf", "elu", "clamp", "clamp_min",
    "acos",
}  # fmt: skip
LINEAR = {
    "add", "sub", "rsub", "sum", "mean", "mm", "addmm", "bmm", "baddbmm", "convolution", "cumsum", "avg_pool2d", "mv", "dot",
    "index_add", "_adaptive_avg_pool2d",
}  # fmt: skip


def relevance(recorder: Recorder, output: Tensor, seed: Tensor, eps: float, watched: bool = True) -> dict[Tensor, Tensor]:
    """The relevance of every leaf that is no parameter; `watched`: constants are known, and those that are 0 take nothing."""
    order = topological(output.grad_fn)
    is_weight: dict[Any, bool] = {}
    for fn in reversed(order):
        children = [child for child, _ in fn.next_functions if child is not None]
        variable = getattr(fn, "variable", None)
        is_weight[fn] = isinstance(variable, nn.Parameter) if variable is not None else all(is_weight[c] for c in children)
        if fn.name() == "EmbeddingBackward0":  # which rows is not the table's doing
            is_weight[fn] = False
        if "mm" in fn.name().lower() and any(child is None for child, _ in fn.next_functions):
            is_weight[fn] = False
    stands: dict[Any, dict[int, Tensor]] = defaultdict(dict)
    stands[output.grad_fn][output.output_nr] = seed
    found: dict[Tensor, Tensor] = {}
    for fn in order:
        if is_weight[fn] or not stands[fn]:
            continue
        if hasattr(fn, "variable"):
            found[fn.variable] = stands[fn][0]
            continue
        given = step(fn, recorder.calls[fn._sequence_nr()], stands.pop(fn), is_weight, eps, watched)
        for (child, nr), tensor in zip(fn.next_functions, given, strict=True):
            if child is not None and tensor is not None and not is_weight[child]:
                held = stands[child].get(nr)
                stands[child][nr] = tensor if held is None else held + tensor
    return found


def step(fn: Any, call: Any, R: dict[int, Tensor], is_weight: dict[Any, bool], eps: float, watched: bool) -> list[Tensor | None]:
    func, args, kwargs, outs = call
    name = func.__name__.split(".")[0]
    if name.endswith("_"):  # in place: the same function of the same arguments
        name = name.removesuffix("_")
        func = getattr(getattr(torch.ops.aten, name), func.__name__.split(".")[1])
    active = [child is not None and not is_weight[child] for child, _ in fn.next_functions]
    flat, spec = tree_flatten((args, kwargs))
    # The inputs with a gradient are the floating tensors among the arguments, in order.
    places = [i for i, a in enumerate(flat) if isinstance(a, Tensor) and a.is_floating_point()]
    if name in ("native_layer_norm", "native_batch_norm"):
        places = places[:3]
    places = places[: len(active)]

    def vjp(grads: dict[int, Tensor]) -> list[Tensor]:
        leaves = [flat[i].detach().requires_grad_() for i in places]
        mixed = list(flat)
        for i, leaf in zip(places, leaves, strict=True):
            mixed[i] = leaf
        with torch.enable_grad():
            a, k = tree_unflatten(mixed, spec)
            made = func(*a, **k)
        made = made if isinstance(made, (tuple, list)) else (made,)
        asked = sorted(grads)
        got = torch.autograd.grad([made[nr] for nr in asked], leaves, [grads[nr] for nr in asked], allow_unused=True)
        return [torch.zeros_like(leaf) if g is None else g for g, leaf in zip(got, leaves, strict=True)]

    def stable(z: Tensor) -> Tensor:
        return z + torch.where(z < 0, z.new_tensor(-eps), z.new_tensor(eps))

    inputs = [flat[i] for i in places]
    pad: list[Tensor | None] = [None] * (len(active) - len(places))
    if name == "embedding":
        return [None]
    if name in MOVES:
        return vjp(R) + pad
    (nr, r), *more = R.items()
    assert (nr, more) == (0, []), name
    if name == "glu":  # half to each half
        return [torch.cat([r / 2, r / 2], args[1] if len(args) > 1 else -1)]
    if name in PASSES:
        return [r, *[None] * (len(active) - 1)]
    if name in ("mul", "div"):
        takers = [i for i, on in enumerate(active) if on][:1] if name == "div" else [i for i, on in enumerate(active) if on]
        if name == "mul" and len(takers) == 2:
            still = [i for i in takers if "Rsqrt" not in fn.next_functions[i][0].name() and not is_gate(fn, i, inputs[i], r)]
            takers = still or takers
        whole: list[Tensor | None] = [None] * len(active)
        for i in takers:
            whole[i] = (r / len(takers)).sum_to_size(inputs[i].shape)
        return whole
    if name in LINEAR:
        factor = 0.5 if name in ("mm", "bmm", "mv", "dot") and all(active) else 1.0
        if name == "baddbmm" and active[1] and active[2]:
            g = vjp({0: r / stable(outs[0])})
            return [inputs[0] * g[0], 0.5 * inputs[1] * g[1], 0.5 * inputs[2] * g[2]]
        g = vjp({0: r / stable(outs[0])})
        shares = [factor * x * gradient for x, gradient in zip(inputs, g, strict=True)]
        if (
            watched
            and name in ("add", "sub")
            and len(inputs) == 2
            and [child is None for child, _ in fn.next_functions].count(True) == 1
        ):
            i = next(i for i, (child, _) in enumerate(fn.next_functions) if child is not None)
            if inputs[i].shape == r.shape:  # a constant 0 takes nothing, not even an ε
                shares[i] = torch.where(inputs[1 - i] == 0, r, shares[i])
        return shares + pad
    if name == "logsumexp":  # as its parts: exp and log pass everything on, the sum between shares
        kept = len(args) > 2 and args[2]
        r, z = (t if kept else t.unsqueeze(args[1][0]) for t in (r, outs[0]))
        return [torch.exp(inputs[0] - z) * r]
    if name in ("_softmax", "_safe_softmax"):
        x, s = inputs[0], outs[0]
        masked = (s == 0) | (x < torch.finfo(x.dtype).min / 2)
        return [torch.where(masked, 0.0, x * (r - s * r.sum(args[1], keepdim=True)))]
    if name in ("native_batch_norm", "cudnn_batch_norm"):  # in evaluation: the statistics are constants
        x, y, shape = inputs[0], outs[0], (1, -1, *[1] * (inputs[0].dim() - 2))
        scale = args[1].view(shape) * torch.rsqrt(args[4].view(shape) + args[7])
        return [x * scale * r / stable(y), *[None] * (len(active) - 1)]
    if name == "native_layer_norm":
        x, y, rstd = inputs[0], outs[0], outs[2]
        gamma = 1.0 if args[2] is None else args[2]
        return [x * rstd * gamma * r / stable(y), *[None] * (len(active) - 1)]
    raise NotImplementedError(name)


def is_gate(fn: Any, i: int, factor: Tensor, r: Tensor) -> bool:
    """Whether a factor is a sigmoid that is broadcast to the shape of the relevance."""
    return factor.shape != r.shape and "igmoid" in fn.next_functions[i][0].name()


def topological(root: Any) -> list[Any]:
    order: list[Any] = []
    seen: set[Any] = set()
    stack = [(root, False)]
    while stack:
        fn, done = stack.pop()
        if done:
            order.append(fn)
        elif fn not in seen:
            seen.add(fn)
            stack.append((fn, True))
            stack.extend((child, False) for child, _ in fn.next_functions if child is not None and child not in seen)
    return order[::-1]
