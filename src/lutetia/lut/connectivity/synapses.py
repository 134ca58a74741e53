"""Which lookup neuron reaches which outputs: the connectivity of a sparse LUT layer.

A detector t has a table of `n_rows` rows; row r of it is the lookup neuron n = t·n_rows + r. A synapse joins a neuron to an
output and has one weight; the weights of a layer are one flat tensor [n_weights] without padding.
Synapses are listed by owner, and within an owner by meta, then by output:

    general   the owner is the lookup neuron: each has its own outputs
    shared    the owner is the detector: all its rows reach the same outputs

Both keep the weights in the same order (neuron by neuron), so `to_general()` never moves a weight.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from safetensors import SafetensorError

from lutetia._shared.ragged import listed, runs_of
from lutetia._shared.tensor_files import read_tensors, write_tensors
from lutetia.errors import ArgumentError, DataError, check_choice, check_int, check_tensor, fail
from lutetia.lut.connectivity.anchors import MAX_ANCHORS
from lutetia.lut.connectivity.parts import Blocks, Groups, SynapseMeta, SynapseStatistics, is_bounded, meta_from

Layout: TypeAlias = Literal["general", "shared"]

GROUP_SIZE = 32
FILE_KIND = "lutetia.synapses/1"
TENSOR_NAMES = {"general": ("row_start", "targets", "meta_of"), "shared": ("det_start", "det_targets", "det_meta")}
SIZES = ("n_detectors", "n_rows", "n_outputs", "group_size")


@dataclass(frozen=True, eq=False, repr=False)
class Synapses:
    """The connectivity of one layer. Build it with `lutetia.lut.growth`, or load it; `dataclasses.replace` changes a field."""

    n_detectors: int
    n_rows: int
    n_outputs: int
    layout: Layout
    owner_start: torch.Tensor  # int64 [n_owners + 1]: the synapses of owner i are owner_start[i] to owner_start[i + 1]
    owner_targets: torch.Tensor  # int32 [n_listed]: the output of each synapse listed
    owner_meta: torch.Tensor  # int32 [n_listed]: its index in metas
    metas: tuple[SynapseMeta, ...] = (SynapseMeta(),)
    group_size: int = GROUP_SIZE
    layouts: dict[Any, Any] = field(default_factory=dict, init=False, repr=False, compare=False)  # see `parts.layout_for`
    header_text: str = field(default="", init=False, repr=False, compare=False)  # made here: the compiler reads it as a constant

    def __post_init__(self) -> None:
        check_choice("layout", self.layout, tuple(TENSOR_NAMES))
        if not isinstance(self.metas, tuple) or not self.metas or not all(isinstance(m, SynapseMeta) for m in self.metas):
            fail("metas", self.metas, "a tuple of at least one SynapseMeta")
        object.__setattr__(self, "header_text", json.dumps(self.header(), default=repr))

    def __getattr__(self, name: str) -> torch.Tensor:
        """The three tensors under the names of their layout, those of `tensors()`. The other layout has others.

        General: neuron n owns weights row_start[n] to row_start[n + 1]. Shared: detector t reaches the c_t = det_start[t + 1] -
        det_start[t] outputs det_targets[det_start[t] : det_start[t + 1]]; its weights are the block [n_rows, c_t] at
        n_rows·det_start[t].
        """
        layout = next((layout for layout, names in TENSOR_NAMES.items() if name in names), None)
        if layout is None:
            raise AttributeError(f"synapses have no attribute {name!r}")
        if layout != self.layout:
            raise ArgumentError(f"{name} belongs to the {layout} layout, but these synapses are {self.layout}")
        return self.tensors()[name]

    # Sizes.

    @property
    def device(self) -> torch.device:
        """Where the tensors are."""
        return self.owner_targets.device

    @property
    def n_neurons(self) -> int:
        """Lookup neurons: one per row of every detector."""
        return self.n_detectors * self.n_rows

    @property
    def n_owners(self) -> int:
        """Lookup neurons (general) or detectors (shared)."""
        return self.n_neurons if self.layout == "general" else self.n_detectors

    @property
    def n_weights(self) -> int:
        """Length of the flat weight tensor: one weight per synapse."""
        listed = self.owner_targets.shape[0]
        return listed if self.layout == "general" else listed * self.n_rows

    @property
    def weight_shape(self) -> tuple[int, ...]:
        """The shape of the weight."""
        return (self.n_weights,)

    # Groups and blocks, made on first use.

    @cached_property
    def groups(self) -> Groups:
        """The forward synapse groups of all owners, in order."""
        start, count = runs_of(self.owner_start, self.owner_meta, self.group_size)
        return Groups(start, count.int(), self.owner_meta[start], torch.searchsorted(start, self.owner_start))

    @property
    def n_groups(self) -> int:
        """How many forward synapse groups there are."""
        return self.groups.start.shape[0]

    @cached_property
    def max_fan_out(self) -> int:
        """The largest number of synapses of one lookup neuron."""
        return int(self.owner_start.diff().max())

    @cached_property
    def blocks(self) -> Blocks:
        """Shared: detectors with the same list of targets, blocks in order of first appearance (metas may differ)."""
        start, targets = self.det_start.tolist(), self.det_targets.cpu().numpy()
        known: dict[bytes, int] = {}
        block_of = torch.tensor([known.setdefault(targets[a:b].tobytes(), len(known)) for a, b in pairwise(start)])
        lists = [np.frombuffer(key, targets.dtype) for key in known]
        ends = torch.bincount(block_of).cumsum(0)
        every = np.concatenate(lists)
        return Blocks(
            of_detector=block_of.int().to(self.device),
            detectors=block_of.argsort(stable=True).int().to(self.device),
            start=torch.cat([ends.new_zeros(1), ends]).int().to(self.device),
            width=torch.tensor([len(outputs) for outputs in lists], dtype=torch.int32, device=self.device),
            disjoint=len(np.unique(every)) == len(every),
        )

    # Weights.

    def neuron_widths(self, device: torch.device | None = None) -> torch.Tensor:
        """How many weights each lookup neuron has, int64 [n_neurons]."""
        widths = self.owner_start.diff().to(device)
        return widths if self.layout == "general" else widths.repeat_interleave(self.n_rows)

    def _listing(self) -> torch.Tensor:
        """Where each weight's synapse stands in the owners' list, int64 [n_weights]."""
        if self.layout == "general":
            return torch.arange(self.n_weights, device=self.device)
        neuron, nth = listed(self.neuron_widths(), self.n_weights)
        return self.det_start[neuron // self.n_rows] + nth

    def _dense_index(self) -> torch.Tensor:
        """Where each weight stands in the flattened dense table, int64 [n_weights]."""
        neuron, _ = listed(self.neuron_widths(), self.n_weights)
        return neuron * self.n_outputs + self.owner_targets[self._listing()]

    @cached_property
    def weight_meta(self) -> torch.Tensor:
        """The index in `metas` of each weight, int32 [n_weights]."""
        return self.owner_meta if self.layout == "general" else self.owner_meta[self._listing()]

    def _each(self, name: str, meta_of: torch.Tensor, dtype: torch.dtype, device: torch.device) -> float | torch.Tensor:
        """One field of the metas for each of meta_of [n]: a number when all metas agree, else [n]."""
        values = [float(getattr(meta, name)) for meta in self.metas]
        if len(set(values)) == 1:
            return values[0]
        return torch.tensor(values, dtype=dtype, device=self.device)[meta_of.long()].to(device)

    def initial_weights(
        self,
        seed: int | torch.Generator | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> torch.Tensor:
        """Fresh weights [n_weights]: initial_weight ± initial_noise of each synapse's meta, within its bounds.

        A seed gives the same weights on every device; without one, torch's global generator is used.
        """
        if seed is not None and not isinstance(seed, torch.Generator):
            check_int("seed", seed, 0, 2**63 - 1)
            seed = torch.Generator().manual_seed(seed)
        dtype = dtype or torch.get_default_dtype()
        work = torch.float64 if dtype == torch.float64 else torch.float32
        where = torch.device("cpu") if seed is None else seed.device
        weight = torch.rand(self.n_weights, generator=seed, dtype=work, device=where).mul_(2).sub_(1)
        noise, middle = (self._each(name, self.weight_meta, work, where) for name in ("initial_noise", "initial_weight"))
        weight.mul_(noise).add_(middle)
        return self.clamp_(weight.to(device=device or self.device, dtype=dtype))

    def clamp_(self, weight: torch.Tensor) -> torch.Tensor:
        """Bring weight [n_weights] within the bounds of each synapse's meta, in place."""
        check_tensor("weight", weight, [self.n_weights])
        if not any(map(is_bounded, self.metas)):
            return weight
        bounds = (self._each(name, self.weight_meta, weight.dtype, weight.device) for name in ("min_weight", "max_weight"))
        low, high = bounds
        with torch.no_grad():
            # One bound may be a number and the other a tensor: clamp takes only two of a kind.
            return weight.clamp_(min=low).clamp_(max=high)

    @cached_property
    def rates(self) -> float | torch.Tensor:
        """The lr_scale of each synapse listed, float64 [n_listed]; one number when all metas agree."""
        return self._each("lr_scale", self.owner_meta, torch.float64, self.device)

    def expand(self, weight: torch.Tensor) -> torch.Tensor:
        """weight [n_weights] as a dense table [n_detectors, n_rows, n_outputs], zero where there is no synapse."""
        check_tensor("weight", weight, [self.n_weights])
        dense = weight.new_zeros(self.n_neurons * self.n_outputs)
        dense = dense.index_copy(0, self._dense_index().to(weight.device), weight)
        return dense.view(self.n_detectors, self.n_rows, self.n_outputs)

    def places_of(self, neurons: torch.Tensor) -> torch.Tensor:
        """Where the weights of these lookup neurons, int64 [n], stand, one neuron after the other: int64 [all of them]."""
        widths = self.neuron_widths()
        which, nth = listed(widths[neurons])
        return (widths.cumsum(0) - widths)[neurons][which] + nth

    def flatten(self, dense: torch.Tensor) -> torch.Tensor:
        """The weights [n_weights] of a dense table [n_detectors, n_rows, n_outputs]; what has no synapse is dropped."""
        check_tensor("dense", dense, [self.n_detectors, self.n_rows, self.n_outputs])
        return dense.reshape(-1).index_select(0, self._dense_index().to(dense.device))

    def dense_mask(self) -> torch.Tensor:
        """Where there is a synapse, bool [n_detectors, n_rows, n_outputs]."""
        return self.expand(torch.ones(self.n_weights, dtype=torch.bool, device=self.device))

    # The whole as a value.

    def to(self, device: torch.device | str) -> Synapses:
        """The same synapses on another device; themselves when they are already there."""
        start, targets, meta = (array.to(device) for array in self.tensors().values())
        if targets is self.owner_targets:
            return self
        return replace(self, owner_start=start, owner_targets=targets, owner_meta=meta)

    def to_general(self) -> Synapses:
        """The same synapses in the general layout; every weight keeps its place."""
        if self.layout == "general":
            return self
        listing = self._listing()
        start = torch.cat([self.owner_start.new_zeros(1), self.neuron_widths().cumsum(0)])
        targets, meta = self.owner_targets[listing], self.owner_meta[listing]
        return replace(self, layout="general", owner_start=start, owner_targets=targets, owner_meta=meta)

    def __eq__(self, other: object) -> bool:
        """Equal in every field, on whatever device."""
        if not isinstance(other, Synapses):
            return NotImplemented
        pairs = zip(self.tensors().values(), other.tensors().values(), strict=True)
        return self.header() == other.header() and all(torch.equal(mine.cpu(), its.cpu()) for mine, its in pairs)

    def __hash__(self) -> int:
        return hash((self.layout, self.metas, self.n_weights, *(getattr(self, name) for name in SIZES)))

    def __repr__(self) -> str:
        sizes = f"{self.n_detectors} detectors × {self.n_rows} rows -> {self.n_outputs} outputs"
        kinds = f"{len(self.metas)} meta{'s' * (len(self.metas) > 1)}"
        return f"Synapses({self.layout}, {sizes}, {self.n_weights} weights, {kinds}, {self.device})"

    def statistics(self) -> SynapseStatistics:
        """Counts, fan-out, fan-in, how full the groups are, bytes."""
        fan_in = torch.bincount(self.owner_targets, minlength=self.n_outputs)
        fan_in = fan_in if self.layout == "general" else fan_in * self.n_rows
        tensors = (*self.tensors().values(), *self.groups)
        places = self.n_groups * self.group_size
        return SynapseStatistics(
            n_weights=self.n_weights,
            n_neurons=self.n_neurons,
            n_groups=self.n_groups,
            fan_out=_spread(self.owner_start.diff()),
            fan_in=_spread(fan_in),
            group_fill=self.owner_targets.shape[0] / places if places else 1.0,
            bytes=sum(tensor.numel() * tensor.element_size() for tensor in tensors),
        )

    # Checks.

    def validate(self) -> Synapses:
        """Check every invariant; raise ArgumentError naming the first offender, or return these synapses."""
        self._check_sizes()
        start, targets, meta = TENSOR_NAMES[self.layout]
        check_tensor(targets, self.owner_targets, ["n"], torch.int32)
        n = self.owner_targets.shape[0]
        check_tensor(meta, self.owner_meta, [n], torch.int32, self.device)
        check_tensor(start, self.owner_start, [self.n_owners + 1], torch.int64, self.device)
        first, last = int(self.owner_start[0]), int(self.owner_start[-1])
        if (first, last) != (0, n):
            raise ArgumentError(f"{start} runs from {first} to {last}, expected 0 to {n}, the length of {targets}")
        falling = self.owner_start.diff() < 0
        if falling.any():
            raise ArgumentError(f"{start} falls at {self._owner_name(_first(falling))}, expected it never to fall")
        for name, array, end in (("output", self.owner_targets, self.n_outputs), ("meta", self.owner_meta, len(self.metas))):
            outside = (array < 0) | (array >= end)
            if outside.any():
                k = _first(outside)
                raise ArgumentError(f"{self._synapse_name(k)} has {name} {int(array[k])}, expected 0 to {end - 1}")
        self._check_order()
        return self

    def _check_sizes(self) -> None:
        for name in SIZES:
            check_int(name, getattr(self, name), 1)
        if self.n_rows not in [2**bits for bits in range(1, MAX_ANCHORS + 1)]:
            fail("n_rows", self.n_rows, f"a power of two from 2 to {2**MAX_ANCHORS}")
        # Keys (neuron, meta, output) are int64.
        if self.n_neurons * self.n_outputs * len(self.metas) >= 2**63:
            raise ArgumentError(f"{self.n_neurons} neurons × {self.n_outputs} outputs are too many to number in 63 bits")

    def _check_order(self) -> None:
        """Within an owner: by meta, then by output, and no output twice."""
        owner, _ = listed(self.owner_start.diff(), self.owner_targets.shape[0])
        key = (owner * len(self.metas) + self.owner_meta) * self.n_outputs + self.owner_targets
        unordered = key.diff() < 0
        if unordered.any():
            k = _first(unordered) + 1
            raise ArgumentError(f"{self._synapse_name(k)} is out of order, expected synapses by meta, then by output")
        pair = owner * self.n_outputs + self.owner_targets
        pair = pair if len(self.metas) == 1 else pair.sort().values
        repeated = pair.diff() == 0
        if repeated.any():
            i, output = divmod(int(pair[_first(repeated)]), self.n_outputs)
            raise ArgumentError(f"{self._owner_name(i)} reaches output {output} twice, expected once at most")

    def _owner_name(self, owner: int) -> str:
        if self.layout == "shared":
            return f"detector {owner}"
        return f"detector {owner // self.n_rows}, row {owner % self.n_rows}"

    def _synapse_name(self, k: int) -> str:
        owner = int(torch.searchsorted(self.owner_start, k, right=True)) - 1
        return f"synapse {k - int(self.owner_start[owner])} of {self._owner_name(owner)}"

    # Files and state.

    def tensors(self) -> dict[str, torch.Tensor]:
        """The three tensors under the names of the layout."""
        arrays = (self.owner_start, self.owner_targets, self.owner_meta)
        return dict(zip(TENSOR_NAMES[self.layout], arrays, strict=True))

    def header(self) -> dict[str, Any]:
        """All but the tensors, fit for JSON (an infinite bound is left out)."""
        metas = [{name: value for name, value in asdict(meta).items() if math.isfinite(value)} for meta in self.metas]
        return {"layout": self.layout, **{name: getattr(self, name) for name in SIZES}, "metas": metas}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, torch.Tensor], header: Mapping[str, Any]) -> Synapses:
        """What `tensors()` and `header()` gave, checked."""
        layout, metas = header.get("layout"), header.get("metas")
        check_choice("layout", layout, tuple(TENSOR_NAMES))
        names = TENSOR_NAMES[str(layout)]
        if set(tensors) != set(names):
            fail("tensors", sorted(tensors), f"tensors named {', '.join(names)}")
        if not isinstance(metas, list):
            fail("metas", metas, "a list of metas")
        start, targets, meta = (tensors[name] for name in names)
        sizes = {name: header.get(name) for name in SIZES}
        made = tuple(meta_from(entry) for entry in metas)
        arrays = {"owner_start": start, "owner_targets": targets, "owner_meta": meta}
        return cls(layout=layout, metas=made, **arrays, **sizes).validate()  # type: ignore[arg-type]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a safetensors file; the file appears whole or not at all."""
        write_tensors(path, self.tensors(), {"kind": FILE_KIND, "header": json.dumps(self.header(), allow_nan=False)})

    @classmethod
    def load(cls, path: str | os.PathLike[str], device: torch.device | str = "cpu") -> Synapses:
        """Read and check what `save` wrote."""
        try:
            tensors, words = read_tensors(path, "saved synapses")
            if words.get("kind") != FILE_KIND:
                raise DataError(f"{path} is of kind {words.get('kind')!r}, expected {FILE_KIND!r}")
            header = json.loads(words.get("header", ""))
            return cls.from_tensors(tensors, header if isinstance(header, dict) else {}).to(device)
        except (OSError, SafetensorError, ValueError, RecursionError) as error:
            raise DataError(f"{path} cannot be read as synapses: {error}") from error


def _first(flags: torch.Tensor) -> int:
    """Place of the first True of flags [n]."""
    return int(flags.nonzero()[0])


def _spread(counts: torch.Tensor) -> tuple[int, float, int]:
    """Smallest, mean and largest of counts [n]."""
    return int(counts.min()), float(counts.double().mean()), int(counts.max())
