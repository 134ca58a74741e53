"""`LUT`: a layer of lookup tables in place of a linear one."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from lutetia._shared.dtypes import FLOATS, INTEGER_DTYPES
from lutetia.errors import ArgumentError, check_choice, check_int, check_module, check_range, check_tensor, fail
from lutetia.lut import (
    DEFAULT_META,
    GRADIENTS,
    MAX_ANCHORS,
    NO_WIRES,
    READS,
    SCALAR_NAMES,
    SCALARS,
    Connectivity,
    LayerDescription,
    Learning,
    Rate,
    Read,
    Sums,
    SynapseMeta,
    Synapses,
    Tables,
    Wires,
    check_anchors,
    check_thresholds,
    full,
    quickly,
    run,
    settle,
    synapses_of,
)
from lutetia.nn.thresholds import draw_comparisons, thresholds_of_data

MAX_ROWS = 2**MAX_ANCHORS
drawn: ContextVar[bool] = ContextVar("drawn", default=True)  # whether new layers draw their weights


@contextmanager
def without_draws() -> Iterator[None]:
    """Leave the weights of layers created in this block uninitialised: a file is about to supply them."""
    token = drawn.set(False)
    try:
        yield
    finally:
        drawn.reset(token)


class Share(Protocol):
    """One process's share of a layer that several processes divide, and how they work together: `lutetia.training.sharding`."""

    @property
    def n_own(self) -> int:
        """How many detectors this process has."""

    def own(self, layer: LUT) -> LUT:
        """These detectors as an ordinary layer."""

    def forward(self, layer: LUT, x: Tensor, *args: Any) -> Tensor:
        """The output of the whole layer."""


class LUT(nn.Module):
    """y = Σ_t W[t, index_t]: x [..., n_inputs] -> y [..., n_outputs].

    Each of `n_detectors` detectors compares `n_anchors` pairs of inputs; the answers, as bits, select which of the 2**n_anchors
    rows of its table it adds to the output.

        weight      Parameter [n_detectors, 2**n_anchors, n_outputs]; with `synapses` flat [n_weights]
        anchors     int32 buffer [n_detectors, n_anchors, 2]: the inputs each pair compares; drawn, given, or assigned
        thresholds  buffer [n_thresholds], or None: constants, which a pair (a, b) with b >= n_inputs compares x[a] with

    `anchors` are drawn as "pairs" of inputs (the default), as "thresholds", each input with a constant of its own from -1 to 1,
    or "mixed", every second one a threshold; or they are a tensor, with the `thresholds` that it names. Thresholds do not learn:
    `set_thresholds_from(x)` sets them to quantiles of data, or assign `layer.thresholds`.

    `meta` holds the options of all synapses of a fully connected layer; `synapses` carry their own. `seed` makes anchors and
    weights the same every time, on every device; without one they follow torch's global generator.
    `gradient` ("dense", "sparse", "in_place"), `sums` and `int_rescaler` are those of `lutetia.lut.lut`; "in_place" steps by
    `external_lr`, a number or a function asked at each backward pass.

    `read` weights the row that a detector selected and that row's nearest neighbour: "hard" (the row as it is),
    "blend", "confidence", "confidence2". The last two learn scalars of the layer, Parameters [] that hold logarithms: `log_beta`
    and `log_gamma`, and `log_tau` for the last. In training each detector's contribution to each row of the batch is left out
    with probability `table_dropout`, and the others are scaled by 1 / (1 - table_dropout).

    Optimisers do not respect the bounds in a meta: call `clamp_weights_()` after each step, or `clamp_after_step` once.
    Anchors and synapses never change in training, so DistributedDataParallel need not broadcast them at each step
    (`broadcast_buffers=False`, which later versions of torch call `forward_sync_buffers`); with gradient="sparse" it needs the
    gloo backend, and "in_place" does not reach other processes.
    """

    anchors: Tensor
    thresholds: Tensor | None
    log_beta: nn.Parameter | None
    log_gamma: nn.Parameter | None
    log_tau: nn.Parameter | None
    table_names = ("weight",)  # the parameters that are tables: see table_parameters
    share: Share | None = None  # where other processes have the rest of the detectors, all calls go through it

    def __new__(cls, *args: Any, gradient: str = "dense", **options: Any) -> LUT:
        """A layer of this class or, with sparse gradients, of a subclass that DistributedDataParallel recognises."""
        return super().__new__(SPARSE_CLASSES.get(cls, cls) if gradient == "sparse" else cls)

    def __init__(
        self,
        n_inputs: int,
        n_outputs: int,
        n_detectors: int,
        n_anchors: int,
        *,
        synapses: Synapses | None = None,
        meta: SynapseMeta = DEFAULT_META,
        gradient: str = "dense",
        sums: str = "float",
        int_rescaler: float = 1.0,
        seed: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        anchors: Tensor | str | None = None,
        thresholds: Tensor | None = None,
        read: str = "hard",
        table_dropout: float = 0.0,
    ) -> None:
        nn.Module.__init__(self)  # and not that of EmbeddingBag, which a subclass only claims to be
        _check_sizes(n_inputs, n_outputs, n_detectors, n_anchors)
        check_choice("gradient", gradient, GRADIENTS)
        Sums(sums, int_rescaler).check()
        check_choice("read", read, READS)
        check_dropout("table_dropout", table_dropout)
        dtype = dtype or torch.get_default_dtype()
        device = torch.get_default_device() if device is None else device  # also of the anchors
        check_choice("dtype", dtype, FLOATS)
        if not isinstance(meta, SynapseMeta):
            fail("meta", meta, "a SynapseMeta")
        self.n_inputs, self.n_outputs, self.n_detectors, self.n_anchors = n_inputs, n_outputs, n_detectors, n_anchors
        self.meta, self.gradient, self.seed = meta, gradient, seed
        self.sums, self.int_rescaler = sums, int_rescaler
        self.external_lr: Rate | None = None
        self.read, self.table_dropout = read, table_dropout
        self.compares = "given"  # or how the anchors were drawn

        work = torch.float64 if dtype == torch.float64 else torch.float32  # never halves: small differences would be lost
        if anchors is None or isinstance(anchors, str):
            if thresholds is not None:
                fail("thresholds", thresholds, "None where anchors are drawn, which come with their own")
            self.compares = anchors or "pairs"
            anchors, constants = draw_comparisons(self.compares, n_inputs, n_detectors, n_anchors, seed)
            thresholds = None if constants is None else constants.to(work)
        self._hold_anchors(anchors, thresholds, device)
        self._hold_synapses(synapses, meta, device)
        shape = (n_detectors, self.n_rows, n_outputs) if synapses is None else (synapses.n_weights,)
        self.weight = nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
        for name in SCALAR_NAMES:
            learned = name in SCALARS[read]
            self.register_parameter(name, nn.Parameter(torch.empty((), device=device, dtype=work)) if learned else None)
        if drawn.get():
            self._draw()

    def _hold_anchors(self, anchors: Tensor, thresholds: Tensor | None, device: torch.device | str | None) -> None:
        """Check anchors that were drawn or given, and keep copies of them and of their thresholds."""
        check_tensor("anchors", anchors, [self.n_detectors, self.n_anchors, 2], INTEGER_DTYPES)
        if thresholds is not None:
            check_thresholds(thresholds)
        check_anchors(anchors, self.n_inputs, 0 if thresholds is None else len(thresholds))
        self.register_buffer("anchors", anchors.to(torch.int32, copy=True).to(device))
        self.register_buffer("thresholds", None if thresholds is None else thresholds.detach().to(device, copy=True))

    @torch.no_grad()
    def set_thresholds_from(self, x: Tensor) -> None:
        """Set the thresholds to quantiles of data x [..., n_inputs]: those of one input, in their order, spread over its values.

        A threshold lies half-way between two values that occur. The layer must have thresholds, each for one input only.
        """
        check_tensor("x", x, ["...", self.n_inputs])
        if self.share is not None:  # which knows the anchors of its own detectors only
            raise ArgumentError("a sharded layer sets no thresholds: call set_thresholds_from before shard_detectors")
        if self.thresholds is None:
            fail("thresholds", None, 'constants to set: make the layer with anchors="thresholds" or "mixed"')
        self.thresholds.copy_(thresholds_of_data(x, self.anchors, self.thresholds))

    def _hold_synapses(self, synapses: Synapses | None, meta: SynapseMeta, device: torch.device | str | None) -> None:
        """Keep synapses as buffers, so that they move and are saved with the layer."""
        self._header: str | None = None
        arrays: list[Tensor | None] = [None] * 3
        if synapses is not None:
            _check_synapses(self, synapses, meta)
            self._header = synapses.header_text
            # Cloned: a state dict that is loaded here must not change the synapses of others.
            arrays = [array.to(device, copy=True) for array in synapses.tensors().values()]
        for name, array in zip(("synapse_start", "synapse_targets", "synapse_meta"), arrays, strict=True):
            self.register_buffer(name, array)
        self._n_weights = 0 if synapses is None else synapses.n_weights

    @property
    def n_rows(self) -> int:
        """Rows of each detector's table."""
        return 1 << self.n_anchors

    @property
    def synapses(self) -> Synapses | None:
        """The connectivity, None when every row reaches every output."""
        wires, header = self._wiring()
        return synapses_of(*wires, header) if header else None

    @property
    def connectivity(self) -> Connectivity:
        """Which rows reach which outputs."""
        synapses = self.synapses
        return full(self.n_detectors, self.n_rows, self.n_outputs, self.meta) if synapses is None else synapses

    def describe(self) -> LayerDescription:
        """The parts of the layer, for code that explains, builds, shards or decodes it."""
        read = Read(self.read, self.log_beta, self.log_gamma, self.log_tau)
        return LayerDescription(self.weight, self.anchors, self.connectivity, None, read, self.thresholds, (self.n_inputs,))

    def _wiring(self) -> tuple[Wires, str]:
        """The last two of `Tables`."""
        if self._header is None:
            return NO_WIRES, ""
        return (self.synapse_start, self.synapse_targets, self.synapse_meta), self._header  # type: ignore[return-value]

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw new weights, from `seed` when there is one; anchors and synapses stay."""
        if self.share is not None:  # a share cannot draw what the whole would have drawn
            raise ArgumentError("a sharded layer cannot draw new weights: call reset_parameters before shard_detectors")
        self._draw()

    @torch.no_grad()
    def _draw(self) -> None:
        if self.weight.is_meta:  # nor can synapses be read there
            return
        self.weight.copy_(self._initial_weights())
        for name, value in SCALARS[self.read].items():
            getattr(self, name).fill_(value)

    def _initial_weights(self) -> Tensor:
        """Fresh weights, like `weight`: initial_weight ± initial_noise, within the bounds of the meta."""
        where, dtype = self.weight.device, self.weight.dtype
        if self.synapses is not None:
            return self.synapses.initial_weights(self.seed, dtype, where)
        generator = None if self.seed is None else torch.Generator().manual_seed(self.seed)
        work = torch.float64 if dtype == torch.float64 else torch.float32
        weight = torch.rand(self.weight.shape, generator=generator, dtype=work, device="cpu").mul_(2).sub_(1)
        weight = weight.mul_(self.meta.initial_noise).add_(self.meta.initial_weight)
        return weight.clamp_(self.meta.min_weight, self.meta.max_weight).to(where, dtype)

    def forward(self, x: Tensor) -> Tensor:
        """x [..., n_inputs] -> y [..., n_outputs]."""
        if self.share is not None:
            return self.share.forward(self, x)
        weight = self._parameters.get("weight")
        return self._look_up(x, self.weight if weight is None else weight)

    def _look_up(self, x: Tensor, weight: Tensor) -> Tensor:
        """x [..., n_inputs] -> y [..., n_outputs], from tables shaped as `weight`."""
        buffers: dict[str, Any] = self._buffers  # a lookup each: through the module every one would take 0.5 µs
        dropout = self.table_dropout if self.training else 0.0
        if self.read == "hard" and self.gradient == "dense" and self.sums == "float" and self.int_rescaler == 1.0 and not dropout:
            mark = self.meta if self._header is None else buffers["synapse_start"]
            y = quickly(x, weight, buffers["anchors"], mark, self.n_inputs) if buffers["thresholds"] is None else None
            if y is not None:
                return y
        if not isinstance(x, Tensor) or x.is_nested or not x.dim() or x.shape[-1] != self.n_inputs:
            check_tensor("x", x, ["...", self.n_inputs])
        tables = Tables(weight, buffers["anchors"], None, buffers["thresholds"], *self._wiring())
        sums = Sums(self.sums, self.int_rescaler)
        if self.read == "hard" and not dropout:
            return run(x, tables, sums, self._learning())
        return run(x, tables, sums, self._learning(), Read(self.read, self.log_beta, self.log_gamma, self.log_tau), dropout)

    def _learning(self) -> Learning:
        """How the weight learns. A compiled graph reads the rate at each step: read here, each new rate would recompile it."""
        if self.gradient != "dense" and torch.compiler.is_compiling():
            return Learning(self.gradient, self.meta, None, self._settle)
        return Learning(self.gradient, self.meta, self.external_lr)

    def _settle(self, weight: Tensor) -> None:
        settle(self.gradient, self.connectivity, self.external_lr, weight)

    _settle.settles = True  # type: ignore[attr-defined]

    @torch.no_grad()
    def clamp_weights_(self) -> None:
        """Clamp the weights to the bounds of their metas; in a sharded layer those of this process."""
        own = self.own()
        if own.n_detectors:
            own.connectivity.clamp_(own.weight)

    def own(self) -> LUT:
        """This process's detectors as an ordinary layer that shares their memory: the layer itself, unless it is sharded."""
        return self if self.share is None else self.share.own(self)

    @property
    def n_own(self) -> int:
        """How many detectors this process has: all, unless the layer is sharded."""
        return self.n_detectors if self.share is None else self.share.n_own

    def extra_repr(self) -> str:
        """The sizes, and what differs from the defaults."""
        parts = [f"{self.n_inputs}, {self.n_outputs}, n_detectors={self.n_detectors}, n_anchors={self.n_anchors}"]
        if self.thresholds is not None:
            parts.append(f"n_thresholds={len(self.thresholds)}")
        if self._header is not None:
            parts.append(f"n_weights={self._n_weights}")
        if self.gradient != "dense":
            parts.append(f"gradient={self.gradient!r}")
        if self.sums != "float":
            parts.append(f"sums={self.sums!r}, int_rescaler={self.int_rescaler:g}")
        if self.read != "hard":
            parts.append(f"read={self.read!r}")
        if self.table_dropout:
            parts.append(f"table_dropout={self.table_dropout:g}")
        if self.share is not None:
            parts.append(f"n_own={self.n_own}")
        return ", ".join(parts)


LUT.__new__.__signature__ = inspect.signature(LUT.__init__)  # type: ignore[attr-defined]  # for help(), which would show *args


class _SparseLUT(LUT, nn.EmbeddingBag):  # type: ignore[misc]
    """A LUT with gradient="sparse", and an EmbeddingBag in name only: DistributedDataParallel detects sparse gradients through
    `EmbeddingBag.sparse`."""

    sparse = property(lambda self: self.gradient == "sparse" and self.share is None)  # DDP is not given the weight of a share

    def _get_name(self) -> str:
        return "LUT"


SPARSE_CLASSES: dict[type, type] = {LUT: _SparseLUT}


def clamp_after_step(optimizer: torch.optim.Optimizer, model: nn.Module) -> RemovableHandle:
    """Clamp the weights of every LUT layer in the model to the bounds of its metas after each step of the optimiser."""
    check_module("model", model)
    if not isinstance(optimizer, torch.optim.Optimizer):
        fail("optimizer", optimizer, "an optimiser of torch.optim")
    layers = [module for module in model.modules() if isinstance(module, LUT)]

    def clamp(*_: Any) -> None:
        for layer in layers:
            layer.clamp_weights_()

    return optimizer.register_step_post_hook(clamp)


def table_parameters(model: nn.Module) -> list[nn.Parameter]:
    """The parameters of a model that are lookup tables, each once, in order: they usually need an optimiser of their own.

    A module lists its own tables in `table_names`.
    """
    check_module("model", model)
    tables = [getattr(module, name) for module in model.modules() for name in getattr(module, "table_names", ())]
    return list({id(parameter): parameter for parameter in tables}.values())


def check_dropout(name: str, value: object) -> None:
    """Check a probability below 1."""
    check_range(name, value, 0.0, 1.0)
    if value == 1.0:
        fail(name, value, "less than 1: nothing would be left")


def _check_sizes(n_inputs: int, n_outputs: int, n_detectors: int, n_anchors: int) -> None:
    check_int("n_inputs", n_inputs, 1)
    check_int("n_outputs", n_outputs, 1)
    check_int("n_detectors", n_detectors, 1)
    if isinstance(n_anchors, int) and n_anchors > MAX_ANCHORS:
        raise ArgumentError(f"n_anchors is {n_anchors}, expected at most {MAX_ANCHORS}: a table has no more than {MAX_ROWS} rows")
    check_int("n_anchors", n_anchors, 1, MAX_ANCHORS)


def _check_synapses(layer: LUT, synapses: Synapses, meta: SynapseMeta) -> None:
    if not isinstance(synapses, Synapses):
        fail("synapses", synapses, "Synapses, made with lutetia.lut.growth")
    if meta != DEFAULT_META:
        fail("meta", meta, "the default where there are synapses, which carry their own")
    sizes = (synapses.n_detectors, synapses.n_rows, synapses.n_outputs)
    if sizes != (layer.n_detectors, layer.n_rows, layer.n_outputs):
        wanted = f"{layer.n_detectors} detectors × {layer.n_rows} rows -> {layer.n_outputs} outputs"
        fail("synapses", synapses, wanted)
