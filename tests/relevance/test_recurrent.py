"""Recurrent layers: bounded, conserving, the same fused and written out, padded and packed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from lutetia import relevance
from lutetia.errors import ArgumentError
from lutetia.relevance import Epsilon, Identity, Rules, presets
from lutetia.relevance.inside import by_parts
from lutetia.relevance.rules import recurrent


class Reader(nn.Module):
    """Sequences [T, B, 5], or packed ones, -> 3 classes of the last step."""

    def __init__(self, kind: Any, bias: bool = True, **more: Any) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.cell = kind(5, 6, bias=bias, **more)
        self.head = nn.Linear(6 * (1 + self.cell.bidirectional), 3, bias=bias)

    def forward(self, x: Any) -> Tensor:
        states = self.cell(x)[0]
        return self.head((states if isinstance(states, Tensor) else pad_packed_sequence(states)[0])[-1])


CELLS: list[tuple[Any, dict[str, Any]]] = [
    (nn.GRU, {}),
    (nn.RNN, {}),
    (nn.LSTM, {}),
    (nn.LSTM, {"num_layers": 2, "bidirectional": True}),
    (nn.GRU, {"num_layers": 2, "bidirectional": True}),
]


@pytest.mark.parametrize(("kind", "more"), CELLS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_it_stays_bounded_and_conserves(kind: Any, more: dict[str, Any], dtype: torch.dtype) -> None:
    model = Reader(kind, bias=False, **more).to(dtype)
    x = torch.randn(40, 3, 5, dtype=dtype, generator=torch.Generator().manual_seed(2))
    r = relevance.attribute(model, x, 1, presets.epsilon(1e-9), wrt="cell")
    assert float(r[x].abs().sum()) <= float(r["cell"].abs().sum()) * (1 + 1e-4)
    # Without biases all of it goes on to the inputs: the state before the first step is zero.
    assert float(r[x].sum()) == pytest.approx(float(r.seed.sum()), rel=1e-3)
    unbounded = relevance.attribute(model, x, 1, Rules(recurrent=Epsilon()))
    assert float(unbounded[x].abs().sum()) > 1.2 * float(r[x].abs().sum())


def test_fused_is_written_out() -> None:
    """In float32 torch runs LSTMs as one node per layer and direction, in float64 step by step."""
    x = torch.randn(7, 3, 5, generator=torch.Generator().manual_seed(3))
    model = Reader(nn.LSTM, num_layers=2, bidirectional=True)
    fused = relevance.attribute(model, x, 1)
    assert any(row.name == "MkldnnRnnLayerBackward0" for row in fused.report) or not torch.backends.mkldnn.is_available()
    wide = x.double()
    apart = relevance.attribute(model.double(), wide, 1)
    torch.testing.assert_close(fused[x].double(), apart[wide], rtol=1e-3, atol=1e-5)


def test_a_gate_gets_nothing_and_parts_their_sizes() -> None:
    """One step of a GRU, by hand: h' = (h - n)·z + n, n = tanh(Wx + r·Uh)."""
    cell = nn.GRUCell(3, 2).double()
    x, h = (torch.randn(1, size, dtype=torch.float64, requires_grad=True) for size in (3, 2))
    with relevance.watch(cell):
        out = cell(x, h)
    seed = torch.tensor([[2.0, -1.0]]).double()
    r = relevance.explain(out, seed, wrt=[x, h], rules=Rules(recurrent=relevance.Absolute(1e-12)))

    def share(R: Tensor, *parts: Tensor) -> list[Tensor]:
        return [R * part.abs() / sum(p.abs() for p in parts) for part in parts]

    with torch.no_grad():
        wr, wz, wn = (x @ cell.weight_ih.t() + cell.bias_ih).chunk(3, 1)
        ur, uz, un = (h @ cell.weight_hh.t() + cell.bias_hh).chunk(3, 1)
        reset, gate = torch.sigmoid(wr + ur), torch.sigmoid(wz + uz)
        n = torch.tanh(wn + reset * un)
        R_difference, R_n = share(seed, (h - n) * gate, n)
        R_h, more = share(R_difference, h, n)
        R_w, R_u = share(R_n + more, wn, reset * un)

        def through(R: Tensor, a: Tensor, w: Tensor, b: Tensor) -> Tensor:
            sizes = a.abs() * w.abs()
            return (R.t() / (sizes.sum(1, keepdim=True) + b.abs()[:, None]) * sizes).sum(0, keepdim=True)

        expected_x = through(R_w, x, cell.weight_ih[4:], cell.bias_ih[4:])
        expected_h = R_h + through(R_u, h, cell.weight_hh[4:], cell.bias_hh[4:])
    torch.testing.assert_close(r[x], expected_x)
    torch.testing.assert_close(r[h], expected_h)


def test_packed_sequences() -> None:
    model = Reader(nn.GRU).double()
    x, lengths = torch.randn(6, 3, 5, dtype=torch.float64), torch.tensor([6, 6, 4])
    packed = pack_padded_sequence(x, lengths)
    r = relevance.attribute(model, packed, 1)
    assert r[packed.data].shape == packed.data.shape
    whole = relevance.attribute(model, x, 1)
    torch.testing.assert_close(pad_packed_sequence(packed._replace(data=r[packed.data]))[0][:, :2], whole[x][:, :2])
    with pytest.raises(ArgumentError, match="recurrent"):
        Rules(recurrent=Identity())


def test_gates_elsewhere_by_choice() -> None:
    x = torch.randn(4, 6, dtype=torch.float64, requires_grad=True)
    y = 2 * x.flip(1) * torch.sigmoid(x)
    r = relevance.explain(y, torch.ones(4, 6).double(), rules=Rules(product=relevance.Signal()))
    torch.testing.assert_close(r[x], torch.ones(4, 6).double())
    halves = relevance.explain(y, torch.arange(24.0).view(4, 6).double(), rules=Rules())
    torch.testing.assert_close(halves[x], (torch.arange(24.0).view(4, 6) + torch.arange(24.0).view(4, 6).flip(1)).double() / 2)
    gated = relevance.explain(y, torch.arange(24.0).view(4, 6).double(), rules=Rules(product=relevance.Signal()))
    torch.testing.assert_close(gated[x], torch.arange(24.0).view(4, 6).flip(1).double())


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("outputs", ["states", "h", "c", "all"])
def test_all_steps_at_once_are_the_walk(bias: bool, outputs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fused LSTM against the walk over its parts: both directions, every output, and the states before the first step."""
    torch.manual_seed(4)
    cell = nn.LSTM(5, 6, num_layers=2, bidirectional=True, bias=bias)
    x, h, c = torch.randn(9, 3, 5), torch.randn(4, 3, 6), torch.randn(4, 3, 6)

    class Outputs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = cell

        def forward(self, x: Tensor, h: Tensor, c: Tensor) -> Tensor:
            states, (last_h, last_c) = self.cell(x, (h, c))
            parts = {"states": states, "h": last_h, "c": last_c}
            return torch.cat([part.flatten() for name, part in parts.items() if outputs in (name, "all")])[None]

    def explained() -> relevance.Result:
        return relevance.attribute(Outputs(), (x, h, c), target=lambda y: y * torch.linspace(-1, 1, y.shape[1]))

    at_once = explained()
    calls: list[Any] = []

    def walk(*args: Any, **kwargs: Any) -> Any:
        calls.append(args)
        return by_parts(*args, **kwargs)

    monkeypatch.setattr(recurrent, "WEIGHTS", range(7))  # as if weights were asked for: then the parts are walked
    monkeypatch.setattr(recurrent, "by_parts", walk)
    walked = explained()
    assert len(calls) == 4 or not torch.backends.mkldnn.is_available()
    for tensor in (x, h, c):
        torch.testing.assert_close(at_once[tensor], walked[tensor], rtol=1e-4, atol=1e-6)
    assert float(walked[x].abs().max()) > 1e-3
