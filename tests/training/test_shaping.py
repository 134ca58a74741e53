"""Pruning and freezing of gates: which tables go, that they stay away, and when wiring stays."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from lutetia.errors import ArgumentError
from lutetia.models import GateNetwork, Gates, VotesClassifier
from lutetia.training.config import Regularize
from lutetia.training.shaping import ROUNDS, Shaping, freeze_wiring, prune, rounds_due, shaping_of


def gates() -> Gates:
    return Gates(6, 2, 8, hidden=(10,), k=3, bits=2, thresholds=(1,), temperature=1.0, seed=0)


def samples(n: int = 64) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randint(0, 4, (n, 6), generator=torch.Generator().manual_seed(1))
    return x, (x[:, 0] > 1).long()


def test_the_table_that_decides_stays_and_the_one_that_harms_goes() -> None:
    model = Gates(6, 2, 4, k=3, bits=2, thresholds=(1,), temperature=1.0, seed=0)
    with torch.no_grad():
        model.choice.zero_()
        model.choice[:, :, 0] = 1.0  # all read the first input, which is the class
        says = torch.tensor([-1.0, 1, 1, 1, 1, 1, 1, 1])  # one where the bit is set
        model.weight.copy_(torch.stack([says, says, -says, -says]) * 0.5)
        model.weight[0].neg_()  # class 0 is where the bit is not set; table 3 votes for class 1 there, too
    x, y = samples()
    votes = model.answers(x)[-1]
    right = [float(((votes[:, table] > 0) == (y == table % 2)).double().mean()) for table in range(4)]
    assert right == [1.0, 1.0, 1.0, 0.0]
    prune(model, 0.25, [(x, y)])
    assert model.pruned()[0].tolist() == [False, False, False, True]


def test_pruned_tables_are_the_constants_they_said_most_and_stay_so() -> None:
    model = gates()
    x, y = samples()
    before = [answers > 0 for answers in model.answers(x)]
    prune(model, 0.5, [(x, y)])
    assert [int(out.sum()) for out in model.pruned()] == [5, 4]
    out = model.pruned()
    for number, answers in enumerate(model.answers(x)):
        for table in out[number].nonzero().flatten().tolist():
            usual = bool(before[number][:, table].double().mean() > 0.5) if number == 0 else None
            values = set((answers[:, table] > 0).tolist())
            assert len(values) == 1
            assert usual is None or values == {usual}
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for _ in range(40):
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        model.clamp_()
    assert all(torch.equal(a, b) for a, b in zip(out, model.pruned(), strict=True))
    assert all(float(weight[~own].detach().abs().max()) <= 1 for (_, weight), own in zip(model.layers(), out, strict=True))
    prune(model, 0.5, [(x, y)])  # as a run does that goes on
    assert [int(each.sum()) for each in model.pruned()] == [5, 4]
    assert torch.equal(model.graph()(x)[:, 0], model(x).argmax(1))


def test_pruning_goes_in_rounds() -> None:
    assert [rounds_due(done) for done in (0.0, 0.19, 0.2, 0.39, 0.41, 0.6, 1.0)] == [0, 0, 1, 4, 5, ROUNDS, ROUNDS]
    model = gates()
    asked = []

    def given() -> list[tuple[torch.Tensor, torch.Tensor]]:
        asked.append(len(asked))
        return [samples()]

    shaping = Shaping(model, 0.8, 1.0, given)
    counts = []
    for done in (0.0, 0.1, 0.21, 0.22, 0.31, 0.46, 0.7, 0.9):
        shaping(done)
        counts.append(int(model.pruned()[0].sum()))
    assert counts == [0, 0, 1, 1, 3, 6, 8, 8]
    assert len(asked) == 4


def test_wiring_is_frozen_layer_by_layer() -> None:
    model = gates()
    changed = []
    learns = []
    for done in (0.0, 0.2, 0.3, 0.59, 0.6, 0.9):
        changed.append(freeze_wiring(model, done, 0.6))
        learns.append([choice.requires_grad for choice, _ in model.layers()])
    assert learns == [[True, True], [True, True], [False, True], [False, True], [False, False], [False, False]]
    assert changed == [False, False, True, False, True, False]
    F.cross_entropy(model(samples()[0]), samples()[1]).backward()
    assert model.choice.grad is None
    assert model.weight.grad is not None


def test_what_is_refused() -> None:
    network = GateNetwork(input_shape=(6,), n_classes=2, n_tables=8, k=3, hidden=(4,))
    votes = VotesClassifier(input_shape=(6,), n_classes=2, n_tables=8, k=3)
    assert shaping_of(network, Regularize(), 2) is None
    for options in ({"area": 1.0}, {"prune": 0.1}, {"freeze": 0.5}):
        with pytest.raises(ArgumentError, match=f'regularize.{next(iter(options))} is .* only for kind = "gates"'):
            shaping_of(votes, Regularize(**options), 1)
    with pytest.raises(ArgumentError, match="for one process"):
        shaping_of(network, Regularize(prune=0.1), 2)
