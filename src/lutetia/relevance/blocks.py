"""The repeated blocks of a model, and running them so that they can be recomputed.

A recomputed block is one node of the graph, which keeps only its inputs. When relevance reaches it, it runs once more, with
gradients, and the walk continues inside: memory holds the activations of one block at a time.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from lutetia.errors import ArgumentError, fail
from lutetia.relevance.autocast import autocast_as, autocast_states
from lutetia.relevance.opened import INSIDE, GradientsStayOn


def blocks(model: nn.Module) -> list[str]:
    """The names of a model's repeated blocks, such as "model.layers.0": the outermost lists of modules of one kind."""
    names: list[str] = []
    for name, module in model.named_modules():
        if any(name == held or name.startswith(f"{held}.") for held in names):
            continue
        children = list(module.named_children())
        kinds = {type(child) for _, child in children}
        if isinstance(module, (nn.ModuleList, nn.Sequential)) and len(children) > 1 and len(kinds) == 1:
            (kind,) = kinds
            if any(True for _ in children[0][1].children()) and not issubclass(kind, (nn.ModuleList, nn.ModuleDict)):
                names += [f"{name}.{child}" if name else child for child, _ in children]
    return names


class RecomputedBlock(torch.autograd.Function):
    """One call of a block, as one node that keeps the inputs that require grad and nothing else."""

    @staticmethod
    def forward(ctx: Any, call: BlockCall, *inputs: Tensor) -> tuple[Tensor, ...]:
        ctx.call = call
        ctx.save_for_backward(*inputs)
        outputs = call.run(inputs)
        ctx.mark_non_differentiable(*(tensor for tensor in outputs if not tensor.is_floating_point()))
        return outputs


class BlockCall:
    """A block's forward with everything but its differentiable inputs filled in."""

    def __init__(self, forward: Callable[..., Any], leaves: list[Any], spec: Any, watched: Callable[[], Any]) -> None:
        self._forward, self._leaves, self._spec, self._watched = forward, leaves, spec, watched
        self.places = [at for at, leaf in enumerate(leaves) if _differentiable(leaf)]
        self.tensors = [leaves[at] for at in self.places]
        for at in self.places:  # the graph keeps them
            leaves[at] = None
        self._opened = INSIDE.get()
        self._autocast = autocast_states()
        self._random = torch.get_rng_state()
        self._devices = sorted({tensor.device.index for tensor in self.tensors if tensor.device.type == "cuda"})
        self._random_cuda = [torch.cuda.get_rng_state(device) for device in self._devices]
        self._structure: Any = None
        self._returned: list[Any] = []  # the outputs, None for tensors
        self._are_tensors: list[bool] = []

    def run(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The tensors among the outputs of the block, for these differentiable inputs."""
        leaves = list(self._leaves)
        for at, tensor in zip(self.places, inputs, strict=True):
            leaves[at] = tensor
        args, kwargs = tree_unflatten(leaves, self._spec)
        flat, self._structure = tree_flatten(self._forward(*args, **kwargs))
        self._returned = [None if isinstance(each, Tensor) else each for each in flat]
        self._are_tensors = [isinstance(each, Tensor) for each in flat]
        return tuple(each for each in flat if isinstance(each, Tensor))

    def run_again(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The same outputs as before, dropout included, with the names of the modules inside noted."""
        gradients = GradientsStayOn() if self._opened else nullcontext()
        with torch.random.fork_rng(devices=self._devices), autocast_as(self._autocast), self._watched(), gradients:
            torch.set_rng_state(self._random)
            for device, state in zip(self._devices, self._random_cuda, strict=True):
                torch.cuda.set_rng_state(state, device)
            return self.run(inputs)

    def whole(self, tensors: Sequence[Tensor]) -> Any:
        """What the block returned, around these tensors."""
        each = iter(tensors)
        flat = [next(each) if is_tensor else other for is_tensor, other in zip(self._are_tensors, self._returned, strict=True)]
        return tree_unflatten(flat, self._structure)


@functools.cache
def _trim() -> Callable[[int], int] | None:
    """glibc's malloc_trim, where there is one."""
    try:
        return ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError, TypeError):
        return None


def give_memory_back() -> None:
    """Return freed memory to the system: the heap would otherwise grow by 80 MB per block (2,048 tokens of width 576)."""
    trim = _trim()
    if trim is not None:
        trim(0)


def _differentiable(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.requires_grad


@contextmanager
def computed_again(model: nn.Module, names: Sequence[str], watched: Callable[[], Any]) -> Iterator[None]:
    """While active, calls of these blocks keep only their inputs. `watched` records names when a block runs again."""
    modules = dict(model.named_modules())
    for name in names:
        if name not in modules:
            fail("recompute", name, "names of the model's modules")
    changed = []
    try:
        for name in names:
            module = modules[name]
            if "forward" not in module.__dict__:
                module.__dict__["forward"] = _as_block(name, module.forward, watched)
                changed.append(module)
        yield
    finally:
        for module in changed:
            del module.__dict__["forward"]


def _as_block(name: str, forward: Callable[..., Any], watched: Callable[[], Any]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        leaves, spec = tree_flatten((args, kwargs))
        call = BlockCall(forward, leaves, spec, watched)
        if not torch.is_grad_enabled() or not call.tensors:
            return forward(*args, **kwargs)
        versions = [tensor._version for tensor in call.tensors]
        inputs = call.tensors
        call.tensors = []
        outputs = RecomputedBlock.apply(call, *inputs)
        if versions != [tensor._version for tensor in inputs]:
            raise ArgumentError(f"recompute: the block {name!r} changes its inputs in place, so it cannot be recomputed")
        return call.whole(outputs)

    return run
