"""Tables that vote: beside a plain loop, gradients beside finite differences of the relaxed table, learning, hardware."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from lutetia.errors import ArgumentError
from lutetia.precompute.votes import Votes
from tools import require_tool


def counts(model: Votes, x: Tensor) -> Tensor:
    """Votes for, less votes against, one table after the other: x [batch, n_inputs] -> [batch, n_classes]."""
    found = torch.zeros(len(x), model.n_classes)
    for sample, row in enumerate(x.tolist()):
        bits = [int(value > threshold) for threshold in model.thresholds for value in row]
        for table in range(model.n_tables):
            read = model.choice[table].argmax(1).tolist()
            address = sum(bits[place] << at for at, place in enumerate(read))
            found[sample, table % model.n_classes] += 1 if model.weight[table, address] >= 0 else -1
    return found


@pytest.mark.parametrize(("k", "thresholds"), [(1, (2,)), (3, (1, 5)), (6, (3,))])
def test_scores_are_counts(k: int, thresholds: tuple[int, ...]) -> None:
    model = Votes(7, 3, 9, k=k, bits=3, thresholds=thresholds, temperature=2.0, seed=0)
    x = torch.randint(0, 8, (11, 7))
    assert torch.equal(model(x), counts(model, x) / 2)


def test_gradients_of_rows_and_choices() -> None:
    """A row gets what its votes get; a place gets the table's difference there, for each bit as ±1."""
    model = Votes(5, 2, 4, k=2, bits=2, thresholds=(1,), temperature=1.0, seed=0)
    x = torch.randint(0, 4, (6, 5))
    upstream = torch.randn(6, 2)
    (model(x) * upstream).sum().backward()
    bits = (x > 1).float()
    rows, choices = torch.zeros(4, 4), torch.zeros(4, 2, 5)
    for sample in range(6):
        for table in range(4):
            read = model.choice[table].argmax(1).tolist()
            address = sum(int(bits[sample, place]) << at for at, place in enumerate(read))
            own = upstream[sample, table % 2]
            rows[table, address] += own
            for at in range(2):
                step = model.weight[table, address | 1 << at] - model.weight[table, address & ~(1 << at)]
                choices[table, at] += (own * step * (2 * bits[sample] - 1)).detach()
    assert model.weight.grad is not None
    assert model.choice.grad is not None
    torch.testing.assert_close(model.weight.grad, rows)
    torch.testing.assert_close(model.choice.grad, choices)


def test_it_learns_which_bits_to_read() -> None:
    torch.manual_seed(0)
    x = torch.randint(0, 2, (600, 30))
    labels = x[:, 3] ^ x[:, 17]
    model = Votes(30, 2, 40, k=2, bits=1, thresholds=(0,), temperature=4.0, seed=0)
    before = (model(x).argmax(1) == labels).double().mean()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)
    for _ in range(150):
        loss = F.cross_entropy(model(x), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        model.clamp_()
    assert before < 0.8
    assert (model(x).argmax(1) == labels).double().mean() > 0.95
    assert model.weight.abs().max() <= 1


def test_the_graph_and_the_hardware_choose_the_same_class() -> None:
    require_tool("iverilog")
    model = Votes(20, 4, 48, k=4, bits=3, thresholds=(2, 5), shape=(4, 5), seed=0)
    x = torch.randint(0, 8, (60, 20))
    net = model.graph()
    scores = model(x)
    best = scores.max(1, keepdim=True).values
    first = (scores == best).double().argmax(1)  # the first of equals
    assert torch.equal(net(x)[:, 0], first)
    assert torch.equal(net.emit("verilog").simulate(x), net(x))


def test_what_is_refused() -> None:
    with pytest.raises(ArgumentError, match="n_tables is 7, expected a multiple of n_classes=2"):
        Votes(4, 2, 7)
    with pytest.raises(ArgumentError, match="thresholds is empty"):
        Votes(4, 2, 4, thresholds=())
    with pytest.raises(ArgumentError, match="each of thresholds is 255"):
        Votes(4, 2, 4, thresholds=(255,))
    with pytest.raises(ArgumentError, match=r"shape is \(2, 3\), expected height x width to be 4"):
        Votes(4, 2, 4, shape=(2, 3))
    with pytest.raises(ArgumentError, match="x is"):
        Votes(4, 2, 4)(torch.zeros(2, 5))
