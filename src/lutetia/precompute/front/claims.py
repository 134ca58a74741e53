"""`@precomputable`: what a developer declares about a module when inspection is not enough."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from lutetia.errors import ArgumentError, fail
from lutetia.precompute.tables.domains import Domain, as_domain, check_whole

T = TypeVar("T")
Structure: TypeAlias = tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]  # per unit: its inputs and its outputs
NAME = "__precomputable__"
INPUTS = ("in_features", "in_channels", "n_inputs")
LARGEST = 4096  # of a claimed kernel, stride, dilation or padding
OUTPUTS = ("out_features", "out_channels", "n_outputs")


@dataclass(frozen=True)
class ClaimedWindow:
    """What a module reads of a sequence (one number each) or of an image (two): as in PyTorch's convolutions."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    padding: tuple[int, ...]


@dataclass(frozen=True)
class Claim:
    """The domain of the inputs, how the module splits, and the window that it reads."""

    domain: Domain | None = None
    groups: Any = None
    window: ClaimedWindow | None = None

    def structure(self, n_inputs: int | None, n_outputs: int | None) -> Structure:
        """Per unit, its inputs and outputs, in a module of these sizes; a size may be unknown."""
        if isinstance(self.groups, int):
            if n_inputs is None or n_outputs is None:
                raise ArgumentError(
                    "groups is a number and the module does not declare its sizes: write ((n_inputs, n_outputs), ..)"
                )
            units = _even(self.groups, n_inputs, n_outputs)
        elif any(isinstance(part, tuple) for unit in self.groups for part in unit):
            units = tuple((tuple(map(int, inputs)), tuple(map(int, outputs))) for inputs, outputs in self.groups)
        else:
            units = _consecutive(self.groups)
        _check_structure(units, n_inputs, n_outputs)
        return units


def precomputable(
    *,
    domain: object = None,
    groups: int | Sequence[Any] | None = None,
    kernel: int | Sequence[int] | None = None,
    stride: int | Sequence[int] = 1,
    dilation: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
) -> Callable[[T], T]:
    """Declare the domain of the inputs of a module class, or of one module, and how it splits. @precomputable(domain=Binary(),
    groups=((3, 1), (3, 1), (3, 1))) class MyLayer(nn.Module): ...

    `groups` is a number of equal groups, or per unit its (n_inputs, n_outputs) one after the other, or per unit its (inputs,
    outputs) as two lists of indices. It overrides what inspection finds; `decompose` then probes the module and refuses the claim
    if the module contradicts it.

    `kernel` says that the module slides over a sequence, or with two numbers over an image, as a convolution with this stride,
    dilation and padding by zeros does. Inputs then count taps: input c · taps + t is tap t of channel c.
    """
    window = None if kernel is None else _window(kernel, stride, dilation, padding)
    if window is not None and groups is None:
        raise ArgumentError("kernel is given without groups: declare how each window splits, groups=((n_inputs, n_outputs), ..)")
    claim = Claim(None if domain is None else as_domain("domain", domain), _checked(groups), window)

    def mark(target: T) -> T:
        setattr(target, NAME, claim)
        return target

    return mark


def claim_of(module: object) -> Claim | None:
    """The claim about a module, if there is one."""
    found = getattr(module, NAME, None)
    return found if isinstance(found, Claim) else None


def speaks_for(module: object) -> bool:
    """Whether a claim says how a module splits, so that it need not be inspected; a claim about the domain alone does not."""
    claim = claim_of(module)
    return claim is not None and claim.groups is not None


def _window(kernel: Any, stride: Any, dilation: Any, padding: Any) -> ClaimedWindow:
    rank = len(kernel) if isinstance(kernel, tuple | list) else 1
    if rank not in (1, 2):
        fail("kernel", kernel, "a number, or two for an image")
    sizes = []
    for name, value in (("kernel", kernel), ("stride", stride), ("dilation", dilation), ("padding", padding)):
        own = tuple(value) if isinstance(value, tuple | list) else (value,) * rank
        if len(own) != rank:
            fail(name, value, f"a number, or {rank}")
        for each in own:
            check_whole(name, each, 0 if name == "padding" else 1, LARGEST)
        sizes.append(own)
    return ClaimedWindow(*sizes)


def _checked(groups: Any) -> Any:
    if groups is None:
        return None
    if isinstance(groups, int) and not isinstance(groups, bool) and groups >= 1:
        return groups
    try:
        units = tuple((inputs, outputs) for inputs, outputs in groups)
    except (TypeError, ValueError):
        fail("groups", groups, "a number, or a pair for each unit: (3, 1), or ([0, 1, 2], [0])")
    for unit in units:
        plain = all(isinstance(size, int) and size >= 0 for size in unit)
        if not plain and not all(isinstance(part, Sequence) and not isinstance(part, str) for part in unit):
            fail("a unit of groups", unit, "two sizes, or two lists of indices")
        if not plain and not all(isinstance(index, int) for part in unit for index in part):
            fail("a unit of groups", unit, "whole numbers as indices")
    if len({isinstance(unit[0], int) for unit in units}) > 1:
        fail("groups", groups, "two sizes for each unit, or two lists of indices for each")
    return tuple(tuple(part if isinstance(part, int) else tuple(part) for part in unit) for unit in units)


def _check_structure(units: Structure, n_inputs: int | None, n_outputs: int | None) -> None:
    outputs = sorted(output for _, made in units for output in made)
    if outputs != list(range(len(outputs))) or n_outputs not in (None, len(outputs)):
        expected = len(outputs) if n_outputs is None else n_outputs
        raise ArgumentError(f"groups makes the outputs {outputs}, expected each of 0 to {expected - 1} once")
    last = max((max(inputs, default=-1) for inputs, _ in units), default=-1)
    if n_inputs is not None and last >= n_inputs:
        raise ArgumentError(f"groups reads input {last}, expected inputs from 0 to {n_inputs - 1}")


def size_of(module: object, names: Sequence[str]) -> int | None:
    """The first of these attributes that is a number."""
    return next((size for name in names if isinstance(size := getattr(module, name, None), int)), None)


def _consecutive(sizes: Sequence[tuple[int, int]]) -> Structure:
    units, at_input, at_output = [], 0, 0
    for n_inputs, n_outputs in sizes:
        units.append((tuple(range(at_input, at_input + n_inputs)), tuple(range(at_output, at_output + n_outputs))))
        at_input, at_output = at_input + n_inputs, at_output + n_outputs
    return tuple(units)


def _even(groups: int, n_inputs: int, n_outputs: int) -> Structure:
    for what, size in (("inputs", n_inputs), ("outputs", n_outputs)):
        if size % groups:
            raise ArgumentError(f"groups is {groups}, which does not divide the {size} {what} of the module")
    return _consecutive([(n_inputs // groups, n_outputs // groups)] * groups)
