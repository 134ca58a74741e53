"""Tables that vote: beside a plain loop, gradients beside finite differences of the relaxed table, learning, hardware."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from lutetia.cli import build, main
from lutetia.errors import ArgumentError
from lutetia.models import Votes, VotesClassifier, load
from lutetia.report.attribution import contrast
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


# ---- as a model ------------------------------------------------------------------------------------------------------


CONFIG = """
[model]
kind = "votes"
input_shape = [8, 8]
n_tables = 200
k = 4
bits = 4
thresholds = [4, 9]
[data]
kind = "digits"
shuffle = true
valid = 0.1
test = 0.2
[optimizer.rest]
kind = "adamw"
lr = 0.02
[train]
batch_size = 64
epochs = 6
seed = 0
"""


def test_it_is_trained_and_built_by_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "votes.toml").write_text(CONFIG)
    assert main(["train", str(tmp_path / "votes.toml"), "--out", str(tmp_path / "run"), "--json"]) == 0
    trained = json.loads(capsys.readouterr().out)["test"]["accuracy"]
    assert trained > 0.85
    model = load(tmp_path / "run")
    assert isinstance(model, VotesClassifier)
    monkeypatch.setattr(build, "CHECK", ())
    assert main(["build", str(tmp_path / "run"), "--out", str(tmp_path / "built"), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["accuracy"]["float_accuracy"] == pytest.approx(trained)
    assert report["accuracy"]["agreement"] == 1.0  # it is gates by construction
    assert report["model"] == "VotesClassifier"
    assert report["input_bits"] == 4
    _is_explained(model, tmp_path, capsys)


def _is_explained(model: VotesClassifier, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Reasons are what the class loses without a pixel; predict and evaluate know the model too."""
    x = torch.linspace(0, 1, 64).reshape(8, 8)
    np.save(folder / "digit.npy", x.numpy())
    given = [str(folder / "run"), str(folder / "digit.npy")]
    assert main(["explain", *given, "--json", "--html", str(folder / "why.html")]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["kind"], told["rule"]) == ("votes", "occlusion")
    with torch.no_grad():
        scores = model(x[None])[0]
        held = x.clone()
        held[3, 4] = 0
        without = model(held[None])[0]
    target = int(scores.argmax())
    lost = (scores - without) @ contrast(scores, target)
    assert told["prediction"] == target
    assert told["relevance"][3][4] == pytest.approx(lost.item(), abs=1e-5)
    assert main(["explain", *given, "--rule", "epsilon"]) == 2
    assert "expected occlusion" in capsys.readouterr().err
    assert main(["predict", *given, "--json"]) == 0
    capsys.readouterr()
    assert main(["evaluate", str(folder / "run"), "--json"]) == 0


def test_a_model_of_votes_is_votes() -> None:
    model = VotesClassifier(input_shape=(6,), n_classes=2, n_tables=8, k=3, bits=3, thresholds=(2, 4), low=-1.0, high=1.0, seed=0)
    x = torch.rand(9, 6) * 3 - 1.5
    codes = ((x.double() + 1) / 2 * 7).round().clamp(0, 7).long()
    assert torch.equal(model(x), model.votes(codes))
    with torch.no_grad():
        model.votes.weight[0] = 5.0
    model.train()(x)
    assert model.votes.weight.max() <= 1
    pixels = torch.randint(0, 256, (4, 6), dtype=torch.uint8)
    assert torch.equal(VotesClassifier(input_shape=(6,), n_tables=10).quantise(pixels), pixels.long())


def test_the_old_name_still_works() -> None:
    from lutetia import precompute

    assert precompute.Votes is Votes


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"n_tables": 15}, "n_tables is 15, expected a multiple of n_classes=10"),
        ({"thresholds": []}, "thresholds is"),
        ({"thresholds": [255]}, "each of thresholds is 255"),
        ({"low": 1.0}, "low is 1.0 and high is 1.0, expected low < high"),
        ({"temperature": 0.0}, "temperature is 0.0"),
        ({"depth": 3}, "has no field 'depth'"),
    ],
)
def test_configs_that_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=re.escape(message)):
        VotesClassifier(**fields)
