"""An LSTM cell and a layer norm in fixed point: sums, tables and products of stated widths, which `trace` turns into hardware.

Every number lies on a grid of a power of two and every rounding is a `Quantise`, so the modules are their own definition: the
graph computes what they compute, bit for bit. They train like any other module, by straight-through gradients.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from lutetia.errors import ArgumentError, check_range, check_tensor, fail
from lutetia.precompute.front.quantise import Quantise, quantise
from lutetia.precompute.ir.stream import Stream
from lutetia.precompute.tables.domains import Int, UInt, check_whole


class FixedLSTMCell(nn.Module):
    """One step: z [batch, n_inputs + 2 · n_hidden], the input, the last output and the last state side by side
    -> [batch, 2 · n_hidden], the next output and the next state.

    Numbers are multiples of 2**-fraction: inputs and outputs of `fraction` + 1 bits, from -1 to 1, states of `state_bits`. Sums
    are rounded to `sum_bits` bits and steps four times as large, gates to `fraction` bits.
    """

    def __init__(
        self, cell: nn.LSTMCell, *, fraction: int = 4, sum_bits: int = 6, state_bits: int = 7, weight_bits: int = 6
    ) -> None:
        super().__init__()
        if not isinstance(cell, nn.LSTMCell):
            fail("cell", cell, "an nn.LSTMCell")
        for name, bits in (
            ("fraction", fraction),
            ("sum_bits", sum_bits),
            ("state_bits", state_bits),
            ("weight_bits", weight_bits),
        ):
            check_whole(name, bits, 2, 12)
        self.n_inputs, self.n_hidden, self.step = cell.input_size, cell.hidden_size, 2.0**-fraction
        self.sums = nn.Linear(self.n_inputs + self.n_hidden, 4 * self.n_hidden).to(cell.weight_ih)
        with torch.no_grad():
            weight = torch.cat([cell.weight_ih, cell.weight_hh], 1)
            if not all(bool(each.isfinite().all()) for each in cell.parameters()):
                raise ArgumentError("the cell has weights that are not finite, expected numbers")
            scale = 2.0 ** math.ceil(math.log2(max(float(weight.abs().max()), 2.0**-20) / Int(weight_bits).high))
            self.sums.weight.copy_(quantise(weight, Int(weight_bits), scale))
            bias = cell.bias_ih + cell.bias_hh if cell.bias else torch.zeros(4 * self.n_hidden)
            self.sums.bias.copy_((bias / (scale * self.step)).round() * scale * self.step)
        self.rounded = Quantise(Int(sum_bits), 4 * self.step)
        self.gate = Quantise(UInt(fraction), self.step)
        self.output = Quantise(Int(fraction + 1), self.step)
        self.state = Quantise(Int(state_bits), self.step)

    @property
    def stream(self) -> Stream:
        """The `Stream` of z, for `trace`."""
        outer, state = self.output.domain, self.state.domain
        domains = [outer] * (self.n_inputs + self.n_hidden) + [state] * self.n_hidden
        return Stream(len(domains), domains, scale=self.step)

    def forward(self, z: Tensor) -> Tensor:
        sums = self.rounded(self.sums(z[:, : self.n_inputs + self.n_hidden]))
        entered, kept, new, shown = sums.chunk(4, 1)
        held = self.gate(torch.sigmoid(kept)) * z[:, self.n_inputs + self.n_hidden :]
        state = self.state(held + self.gate(torch.sigmoid(entered)) * self.output(torch.tanh(new)))
        output = self.output(self.gate(torch.sigmoid(shown)) * self.output(torch.tanh(state)))
        return torch.cat([output, state], 1)

    def run(self, x: Tensor) -> Tensor:
        """A whole sequence from a state of zeros: x [batch, length, n_inputs] -> outputs [batch, length, n_hidden]."""
        check_tensor("x", x, ["batch", "length", self.n_inputs])
        after = x.new_zeros(len(x), 2 * self.n_hidden)
        outputs = []
        for now in self.output(x).unbind(1):
            after = self(torch.cat([now, after], 1))
            outputs.append(after[:, : self.n_hidden])
        return torch.stack(outputs, 1) if outputs else x.new_zeros(len(x), 0, self.n_hidden)


class FixedLayerNorm(nn.Module):
    """x [batch, n], multiples of `scale` -> [batch, n], multiples of 2**-(bits - 3), from -4 to 4; n is a power of two.

    x minus its mean is rounded to `bits` bits and steps of `scale`, the mean of its squares to 2 · bits - 2 bits, and one over
    the root of that to `bits` bits; the final product is rounded again.
    """

    def __init__(self, norm: nn.LayerNorm, *, scale: float, bits: int = 6) -> None:
        super().__init__()
        if not isinstance(norm, nn.LayerNorm) or len(norm.normalized_shape) != 1:
            fail("norm", norm, "an nn.LayerNorm over one axis")
        check_whole("bits", bits, 4, 8)
        check_range("scale", scale, 2.0**-20, 2.0**20)
        if not math.log2(scale).is_integer():
            fail("scale", scale, "a power of two")
        (n,) = norm.normalized_shape
        if n & (n - 1):
            raise ArgumentError(f"the norm is over {n} values, expected a power of two: the mean must be exact")
        self.eps, self.scale = norm.eps, scale
        self.centre, self.mean, self.spread = (nn.Linear(*sizes, bias=False) for sizes in ((n, n), (n, 1), (1, n)))
        self.affine = nn.BatchNorm1d(n, eps=0.0).eval()
        with torch.no_grad():
            self.centre.weight.copy_(torch.eye(n) - 1 / n)
            self.mean.weight.fill_(1 / n)
            self.spread.weight.fill_(1.0)
            if norm.elementwise_affine:
                self.affine.weight.copy_(norm.weight)
                self.affine.bias.copy_(norm.bias if norm.bias is not None else torch.zeros(n))
        self.rounded = Quantise(Int(bits), scale)
        self.variance = Quantise(UInt(2 * bits - 2), scale * scale)
        self.inverse = Quantise(UInt(bits), 2.0 ** -math.floor(math.log2(scale) + bits))
        self.output = Quantise(Int(bits), 2.0 ** (3 - bits))

    def forward(self, x: Tensor) -> Tensor:
        rest = self.rounded(self.centre(x))
        variance = self.variance(self.mean(rest * rest))
        inverse = self.inverse(torch.rsqrt(variance + max(self.eps, self.scale**2 / 4)))
        return self.output(self.affine(rest * self.spread(inverse)))
