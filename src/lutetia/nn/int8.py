"""Tables of int8 for inference: each number is a whole one from -127 to 127 times a power of two.

A layer of tables has one scale, n-gram tables have one for each row. An int8 layer equals the layer it was made from with the
weight `codes · scale`, which `weight` returns: code that explains, builds or exports a layer uses that.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any

import torch
from torch import Tensor, nn

from lutetia._shared.threads import spread
from lutetia.errors import ArgumentError, check_module
from lutetia.lut import backend_name
from lutetia.nn.lut import LUT
from lutetia.nn.lut_attention import LUTAttention
from lutetia.nn.ngram.layer import NgramTables

TOP = 127  # the largest code
FINER = 3  # powers of two below the one that fits the largest number: a few clipped numbers may cost less than coarse steps
LOW, HIGH = -100, 100  # exponents of scales: far from where float32 ends
ALONE = 1 << 16  # numbers that one thread reads sooner than several would start
FLOAT32_BIAS, FLOAT32_FRACTION = 127, 23


def int8_tables(model: nn.Module) -> nn.Module:
    """Make the tables of a model int8, for inference: layers are replaced inside the model, which is returned.

    The rest of the model stays as it is. Tables no longer learn; gradients still reach the inputs.
    """
    check_module("model", model)
    return _replace(model, None)


def hold_int8(model: nn.Module, names: Container[str]) -> nn.Module:
    """Give a model int8 layers where `names`, those of the tensors in a file, has their codes; the numbers are loaded later."""
    return _replace(model, names)


def _replace(model: nn.Module, names: Container[str] | None) -> nn.Module:
    for name, module in list(model.named_modules()):
        kind = next((kinds for base, kinds in KINDS.items() if isinstance(module, base)), None)
        if kind is None or isinstance(module, _Int8) or (names is not None and _joined(name, "codes") not in names):
            continue
        if module.share is not None:
            raise ArgumentError(f"{name or 'the layer'} is sharded over processes, expected a whole layer: gather it first")
        made = kind(module, quantise=names is None)
        if not name:
            return made
        parent, _, own = name.rpartition(".")
        setattr(model.get_submodule(parent), own, made)
    return model


def _joined(name: str, own: str) -> str:
    return f"{name}.{own}" if name else own


class _Int8(nn.Module):
    """What int8 layers share: everything of the original layer except its weight."""

    table_names: Any = ()  # nothing that learns
    codes: nn.Parameter
    scale: nn.Parameter
    gradient: str

    def __init__(self, layer: nn.Module) -> None:
        nn.Module.__init__(self)
        self.__dict__.update({name: value for name, value in vars(layer).items() if name not in self.__dict__})
        self.training, self.gradient = layer.training, "dense"
        for name, buffer in layer._buffers.items():
            self.register_buffer(name, buffer, persistent=name not in layer._non_persistent_buffers_set)

    def _hold(self, layer: nn.Module, codes: Tensor) -> None:
        """Keep the codes, and the other parameters of the layer."""
        self.codes = nn.Parameter(codes, requires_grad=False)
        for name, parameter in layer._parameters.items():
            if name != "weight":
                self.register_parameter(name, parameter)

    def _hold_scaled(self, layer: LUT, quantise: bool) -> None:
        """Keep codes and one scale, of the layer's weight or uninitialised."""
        weight = layer.weight.detach()
        codes, scale = quantised(weight) if quantise else (torch.empty_like(weight, dtype=torch.int8), torch.ones(()))
        # A parameter, and before the codes: the first parameter of a model says in which dtype it computes.
        self.scale = nn.Parameter(scale.to(weight.device), requires_grad=False)
        self._hold(layer, codes)

    def reset_parameters(self) -> None:
        """Refused: new weights would have to be converted to int8 again."""
        raise ArgumentError("int8 tables cannot draw new weights, expected a floating-point layer: they are for inference only")

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, int8"


class Int8LUT(_Int8, LUT):
    """A `LUT` with int8 tables: codes, an int8 Parameter shaped as the weight, and scale, a power of two []."""

    def __init__(self, layer: LUT, quantise: bool = True) -> None:
        _Int8.__init__(self, layer)
        self._hold_scaled(layer, quantise)

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        """The weight in floating point, shaped as that of `LUT`."""
        return self.codes * self.scale

    def forward(self, x: Tensor) -> Tensor:
        """x [..., n_inputs] -> y [..., n_outputs]."""
        wants_gradient = not isinstance(x, Tensor) or (x.requires_grad and torch.is_grad_enabled())
        # Sums of codes may be too large for fixed sums and for halves.
        if wants_gradient or self.training or self.sums == "fixed" or x.dtype == torch.float16:
            return LUT.forward(self, x)
        own: dict[str, Any] = self._parameters  # a lookup each: through the module both would take 1 µs
        return self._look_up(x, own["codes"]) * own["scale"]


class Int8LUTAttention(_Int8, LUTAttention):
    """A `LUTAttention` with int8 tables in its file; in memory it also holds them as floats, which its products need."""

    def __init__(self, layer: LUTAttention, quantise: bool = True) -> None:
        _Int8.__init__(self, layer)
        self._floats: tuple[Any, Tensor] | None = None
        self._hold_scaled(layer, quantise)

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        """The weight in floating point, shaped as that of `LUTAttention`; made once."""
        source = (self.codes.data_ptr(), self.codes._version, self.codes.device, self.scale.dtype, self.scale._version)
        if self._floats is None or self._floats[0] != source:
            self._floats = source, self.codes * self.scale
        return self._floats[1]


class Int8NgramTables(_Int8, NgramTables):
    """`NgramTables` of int8: codes, an int8 Parameter shaped as the weight, and exponents, an int8 buffer [rows, 1]."""

    exponents: Tensor

    def __init__(self, layer: NgramTables, quantise: bool = True) -> None:
        _Int8.__init__(self, layer)
        weight = layer.weight.detach()
        if quantise:
            exponents = exponents_of(weight)
            codes = codes_of(weight, power_of_two(exponents))
        else:
            exponents = torch.zeros(len(weight), 1, dtype=torch.int32, device=weight.device)
            codes = torch.empty_like(weight, dtype=torch.int8)
        self.register_buffer("exponents", exponents.to(torch.int8))
        self._hold(layer, codes)

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        """The weight in floating point, shaped as that of `NgramTables`."""
        return self.codes * power_of_two(self.exponents)

    def rows(self, index: Tensor) -> Tensor:
        """The rows of these numbers: index int64 [...] -> [..., width], float32."""
        if backend_name(index) == "cpu":
            rows = _rows_cpu(self.codes, self.exponents, index)
        else:
            rows = self.codes[index] * power_of_two(self.exponents[index])
        return rows.requires_grad_() if torch.is_grad_enabled() else rows  # so that what explains a model finds them in its graph


def _rows_cpu(codes: Tensor, exponents: Tensor, index: Tensor) -> Tensor:
    from lutetia.nn.ngram import loops

    out = torch.empty(*index.shape, codes.shape[1])
    arrays = [each.detach().contiguous().numpy() for each in (codes, exponents.view(-1), index.view(-1))]
    threads = torch.get_num_threads() if out.numel() > ALONE else 1
    spread(threads, index.numel(), loops.read_codes, *arrays, out.view(-1, codes.shape[1]).numpy())
    return out


KINDS: dict[type, Any] = {LUTAttention: Int8LUTAttention, LUT: Int8LUT, NgramTables: Int8NgramTables}  # LUT last of its two


@torch.no_grad()
def quantised(weight: Tensor) -> tuple[Tensor, Tensor]:
    """A weight of any shape as int8 codes and one scale [], the power of two with the least squared error."""
    first = exponents_of(weight.reshape(1, -1)).view(())
    scales = [power_of_two(first - finer) for finer in range(FINER + 1)]
    errors = [float((codes_of(weight, scale) * scale - weight).square().sum(dtype=torch.float64)) for scale in scales]
    scale = scales[errors.index(min(errors))]
    return codes_of(weight, scale), scale.to(torch.promote_types(weight.dtype, torch.float32))


def exponents_of(rows: Tensor) -> Tensor:
    """For each row the smallest power of two at which a code reaches its largest number: rows [n, m] -> int32 [n, 1]."""
    largest = rows.abs().amax(-1, keepdim=True) if rows.numel() else rows.new_zeros(len(rows), 1)
    exponents = torch.frexp(largest.double() / TOP).exponent  # of m · 2**e with m below 1
    return exponents.clamp(LOW, HIGH).to(torch.int32)


def codes_of(weight: Tensor, scale: Tensor) -> Tensor:
    """The codes nearest to a weight, shaped as it."""
    return (weight / scale).round().clamp(-TOP, TOP).to(torch.int8)


def power_of_two(exponents: Tensor) -> Tensor:
    """2**e, exactly: integers of -126 to 127 [...] -> float32 [...]."""
    return ((exponents.to(torch.int32) + FLOAT32_BIAS) << FLOAT32_FRACTION).view(torch.float32)
