"""`GateNetwork`: gradients against a slow oracle, its circuit against the network, files, area, a teacher."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from lutetia.cli import build, main
from lutetia.errors import ArgumentError
from lutetia.models import GateNetwork, Gates, VotesClassifier, load
from lutetia.models import votes as votes_module
from lutetia.models.gates import GateLayer, window_pixels
from lutetia.models.votes import ReadTables
from lutetia.precompute.front.voting import voting
from lutetia.precompute.ir.stream import Compare, Table


def small(**options: object) -> GateNetwork:
    fields = {"input_shape": (4, 4), "n_classes": 3, "hidden": (14, 9), "n_tables": 12, "k": 3, "bits": 4, "thresholds": (3, 9)}
    return GateNetwork(**{**fields, "seed": 1, **options})  # type: ignore[arg-type]


def slow_read(bits: Tensor, choice: Tensor, weight: Tensor) -> Tensor:
    """Each table by itself, one sample at a time."""
    answers = []
    for sample in bits:
        row = []
        for wires, rows in zip(choice.argmax(2), weight, strict=True):
            address = sum(int(sample[wire]) << place for place, wire in enumerate(wires))
            row.append(1.0 if rows[address] >= 0 else -1.0)
        answers.append(row)
    return torch.tensor(answers)


def slow_gradients(bits: Tensor, choice: Tensor, weight: Tensor, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    of_bits, of_choice, of_weight = (torch.zeros_like(each) for each in (bits, choice, weight))
    for number, sample in enumerate(bits):
        for table, wires in enumerate(choice.argmax(2)):
            address = sum(int(sample[wire]) << place for place, wire in enumerate(wires))
            of_weight[table, address] += grad[number, table]
            for place, wire in enumerate(wires):
                change = weight[table, address | 1 << place] - weight[table, address & ~(1 << place)]
                of_bits[number, wire] += grad[number, table] * change
                of_choice[table, place] += grad[number, table] * change * (2 * sample - 1)
    return of_bits, of_choice, of_weight


@pytest.mark.parametrize("plain", [False, True])
def test_a_layer_and_its_gradients(plain: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if plain:  # what other devices run
        monkeypatch.setattr(votes_module, "_row_gradients", votes_module.plain_row_gradients)
    generator = torch.Generator().manual_seed(0)
    layer = GateLayer(7, 5, 3, generator)
    bits = torch.randint(0, 2, (6, 7), generator=generator).float().requires_grad_()
    answers = ReadTables.apply(bits, layer.choice, layer.weight)
    assert torch.equal(answers, slow_read(bits.detach(), layer.choice.detach(), layer.weight.detach()))
    grad = torch.randn(6, 5, generator=generator)
    answers.backward(grad)
    wanted = slow_gradients(bits.detach(), layer.choice.detach(), layer.weight.detach(), grad)
    for found, expected in zip((bits.grad, layer.choice.grad, layer.weight.grad), wanted, strict=True):
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"hidden": ()},
        {"skip": True},
        {"skip": True, "hidden": (8, 7, 6)},
        {"learn_thresholds": True, "threshold_bits": 2},
        {"windows": 2},
        {"windows": 3, "skip": True},
        {"windows": 4, "hidden": ()},
    ],
)
def test_the_circuit_is_the_network(options: dict[str, object]) -> None:
    model = small(**options).eval()
    with torch.no_grad():
        for choice, _ in model.votes.layers():
            choice.copy_(torch.rand(choice.shape, generator=torch.Generator().manual_seed(2)))  # any bit, of any layer before
        if model.votes.cut is not None:
            model.votes.cut.copy_(torch.rand(16, 2) * 15)
    x = torch.rand(200, 4, 4)
    graph = model.graph()
    assert torch.equal(graph(model.quantise(x))[:, 0], model(x).argmax(1))
    assert len(graph.of_kind(Table)) <= 1 + len(model.config.hidden)
    if model.votes.cut is not None:
        compare = graph.nodes[graph.of_kind(Compare)[0]]
        assert isinstance(compare, Compare)
        assert set(compare.constant.tolist()) <= {3, 7, 11}  # two bits decide


def test_with_skip_a_layer_reads_every_layer_before_it() -> None:
    model = small(skip=True, hidden=(8, 7), thresholds=(3, 9))
    assert [choice.shape[2] for choice, _ in model.votes.layers()] == [32, 40, 47]
    for (choice, _), first in zip(model.votes.layers()[1:], (32, 40), strict=True):
        assert (choice.argmax(2) >= first).double().mean() > 0.6  # most start with the newest bits
    assert sum(parameter.numel() for parameter in model.parameters()) + 12 == GateNetwork.least_size(model.config).numbers


@pytest.mark.parametrize("skip", [False, True])
def test_a_table_sees_its_window_and_all_tables_before_it(skip: bool) -> None:
    model = small(windows=2, skip=skip)
    pixels = [[(row + r) * 4 + column + c for r in range(2) for c in range(2)] for row in range(3) for column in range(3)]
    first, second, last = model.votes.hidden[0].seen, model.votes.hidden[1].seen, model.votes.seen
    for seen in first.tolist():
        assert seen[:4] in pixels
        assert seen[4:] == [pixel + 16 for pixel in seen[:4]]  # the same pixels, by the other threshold
    assert len({tuple(seen) for seen in first.tolist()}) >= 8  # of the nine places
    if skip:
        assert all(seen[8:] == list(range(32, 46)) for seen in second.tolist())
        assert all(seen[8:] == list(range(32, 55)) for seen in last.tolist())
    else:
        assert second is None
        assert last is None
    assert sum(parameter.numel() for parameter in model.parameters()) + 12 == GateNetwork.least_size(model.config).numbers
    for wired, seen in zip(model.votes.wired(), (first, second, last), strict=True):
        assert seen is None or all(set(read) <= set(own) for read, own in zip(wired.tolist(), seen.tolist(), strict=True))


@pytest.mark.parametrize("sparse", [0, 8])  # by the bits that each table sees, and by all
def test_the_gradients_of_a_layer_with_windows(sparse: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(votes_module, "SPARSE", sparse)
    generator = torch.Generator().manual_seed(0)
    seen = torch.stack([torch.randperm(7, generator=generator)[:4] for _ in range(5)])
    layer = GateLayer(4, 5, 3, generator, seen=seen)
    bits = torch.randint(0, 2, (6, 7), generator=generator).float().requires_grad_()
    grad = torch.randn(6, 5, generator=generator)
    answers = ReadTables.apply(bits, layer.choice, layer.weight, seen)
    answers.backward(grad)
    whole = torch.full((5, 3, 7), -100.0).scatter(2, seen[:, None].expand(-1, 3, -1), layer.choice.detach())
    assert torch.equal(answers, slow_read(bits.detach(), whole, layer.weight.detach()))
    of_bits, of_choice, of_weight = slow_gradients(bits.detach(), whole, layer.weight.detach(), grad)
    torch.testing.assert_close(bits.grad, of_bits)
    torch.testing.assert_close(layer.choice.grad, of_choice.gather(2, seen[:, None].expand(-1, 3, -1)))
    torch.testing.assert_close(layer.weight.grad, of_weight)


def test_windows_are_spread_over_the_image() -> None:
    pixels = window_pixels((9, 6), 3, 28)
    corners = pixels[:, 0]
    assert corners.min() == 0
    assert int((corners // 6).max()) == 6
    assert int((corners % 6).max()) == 3
    assert len(set(corners.tolist())) > 20  # of 28 places


def test_thresholds_and_hidden_layers_learn() -> None:
    model = small(learn_thresholds=True, windows=2)
    loss = F.cross_entropy(model(torch.rand(32, 4, 4)), torch.randint(0, 3, (32,)))
    loss.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert bool(parameter.grad.any()), name


def test_area_counts_tables_that_are_neither_constant_nor_wires() -> None:
    gates = Gates(4, 2, 2, k=2, bits=2, thresholds=(1,), seed=0)
    with torch.no_grad():
        gates.weight.copy_(torch.tensor([[1.0, 1, 1, 1], [-1.0, 1, -1, 1]]))  # a constant, a wire
    assert gates.area_loss().item() < 0.01
    with torch.no_grad():
        gates.weight.copy_(torch.tensor([[1.0, -1, -1, 1], [-1.0, -1, -1, 1]]))  # xor, and
    assert 1.4 < gates.area_loss().item() < 1.6
    gates.area_loss().backward()
    assert bool(gates.weight.grad.any())


@pytest.mark.parametrize("skip", [False, True])
def test_voting_counts_the_winning_tables_that_read_an_input(skip: bool) -> None:
    model = small(skip=skip).eval()
    x = model.quantise(torch.rand(9, 4, 4))
    votes = voting(model.graph(), x)
    assert np.array_equal(votes.answers, model.votes(x).argmax(1).numpy())
    bits = model.votes.encode(x)
    behind = [torch.eye(16, dtype=torch.bool).repeat(2, 1)]  # of each bit, the inputs it depends on; two thresholds
    given = [bits]
    for choice, weight in model.votes.layers():
        source, reads = (torch.cat(given, 1), torch.cat(behind)) if skip else (given[-1], behind[-1])
        given.append((slow_read(source, choice.detach(), weight.detach()) + 1) / 2)
        behind.append(reads[choice.argmax(2)].any(1))
    for sample, answer in enumerate(votes.answers):
        own = torch.arange(12) % 3 == int(answer)
        assert votes.counts[sample].tolist() == [int(given[-1][sample][torch.arange(12) % 3 == each].sum()) for each in range(3)]
        wanted = (behind[-1][own] * given[-1][sample][own, None]).sum(0)
        assert (votes.reads[sample] <= wanted.numpy()).all()  # inputs that decide nothing are left out of the circuit
        assert (votes.reads[sample] == wanted.numpy()).mean() > 0.5


def test_voting_refuses_other_graphs() -> None:
    from lutetia.precompute import Stream, UInt, trace

    graph = trace(torch.nn.Sequential(torch.nn.MaxPool1d(2)), input=Stream(channels=2, dtype=UInt(2), length=4))
    with pytest.raises(ArgumentError, match="that of Votes or Gates"):
        voting(graph, torch.zeros(1, 2, 4, dtype=torch.long))


def test_a_gate_network_is_saved_and_loaded(tmp_path: Path) -> None:
    model = small(learn_thresholds=True, windows=3).eval()
    model.save_pretrained(tmp_path / "gates")
    again = load(tmp_path / "gates")
    assert isinstance(again, GateNetwork)
    assert isinstance(again, VotesClassifier)
    x = torch.rand(20, 4, 4)
    assert torch.equal(again(x), model(x))


def test_what_is_refused() -> None:
    for options, message in (
        ({"hidden": 5}, "hidden is 5"),
        ({"hidden": (0,)}, "each of hidden"),
        ({"threshold_bits": 9}, "threshold_bits"),
        ({"learn_thresholds": 1}, "learn_thresholds"),
        ({"skip": 1}, "skip"),
        ({"spread": 0.0}, "spread"),
        ({"windows": 5}, "windows is 5, expected at most the sides of the image, 4 x 4"),
        ({"windows": -1}, "windows is -1"),
        ({"windows": 2, "input_shape": (16,)}, "windows is 2, expected 0: the inputs are not an image"),
        ({"n_tables": 13}, "multiple of n_classes"),
    ):
        with pytest.raises(ArgumentError, match=message):
            small(**options)


CONFIG = """
[model]
kind = "gates"
input_shape = [8, 8]
hidden = [80]
n_tables = 60
k = 4
bits = 4
thresholds = [4, 9]
temperature = 2.0
learn_thresholds = true
[data]
kind = "digits"
shuffle = true
valid = 0.1
test = 0.2
shift = 1
[regularize]
area = 0.2
[optimizer.rest]
kind = "adamw"
lr = 0.02
[train]
batch_size = 64
epochs = 4
seed = 0
"""


def test_it_is_trained_by_a_teacher_and_built_by_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gates.toml").write_text(CONFIG)
    assert main(["train", str(tmp_path / "gates.toml"), "--out", str(tmp_path / "first"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["test"]["accuracy"] > 0.5
    teacher = ["--set", f"regularize.teacher={tmp_path / 'first'}", "--set", "train.epochs=1"]
    teacher += ["--set", "model.windows=5", "--set", "regularize.prune=0.1", "--set", "regularize.freeze=0.8"]
    assert main(["train", str(tmp_path / "gates.toml"), *teacher, "--out", str(tmp_path / "run"), "--json"]) == 0
    capsys.readouterr()
    monkeypatch.setattr(build, "CHECK", ())
    assert main(["build", str(tmp_path / "run"), "--out", str(tmp_path / "built"), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["accuracy"]["agreement"] == 1.0
    assert report["model"] == "GateNetwork"
    assert report["unseen"] is None
    gates = load(tmp_path / "run")
    assert [int(out.sum()) for out in gates.votes.pruned()] == [8, 6]  # a tenth of 80 and of 60
    shown = report["votes"]["items"]
    assert len(shown) == 6
    assert all(item["counts"][item["answer"]] == max(item["counts"]) for item in shown)
    assert "where the winning votes looked" in (tmp_path / "built" / "summary.html").read_text()
    assert main(["build", str(tmp_path / "run"), "--drop-unseen", "--out", str(tmp_path / "less"), "--json"]) == 0
    less = json.loads(capsys.readouterr().out)
    assert less["unseen"]["luts_after"] < less["unseen"]["luts_before"]
    assert less["unseen"]["accuracy_before"] == report["accuracy"]["integer_accuracy"]
    assert less["unseen"]["accuracy_after"] == less["accuracy"]["integer_accuracy"]
    assert "--drop-unseen" in (tmp_path / "less" / "summary.html").read_text()
    wrong = ["--set", f"regularize.teacher={tmp_path / 'first'}", "--set", "model.n_classes=12"]
    assert main(["train", str(tmp_path / "gates.toml"), *wrong, "--out", str(tmp_path / "other")]) != 0
    assert "has n_classes 10, expected 12" in capsys.readouterr().err


def test_the_estimator_has_hidden_layers_too() -> None:
    from sklearn.datasets import load_iris

    from lutetia.sklearn import GateClassifier

    x, y = load_iris(return_X_y=True)
    options = {"n_thresholds": 5, "max_epochs": 25, "random_state": 0}
    estimator = GateClassifier(30, 4, hidden=(40,), prune=0.2, freeze=0.7, **options).fit(x, y)
    assert estimator.score(x, y) > 0.85
    assert [int(out.sum()) for out in estimator.model_.core.pruned()] == [8, 6]
    network = estimator.model_.network()
    assert (network.classes(torch.from_numpy(x)).numpy() == estimator.predict(x)).all()
    assert len(network.graph.of_kind(Table)) == 2


@pytest.mark.parametrize("spread", [None, 0.0, -1.0, float("nan"), "wide"])
def test_the_spread_is_a_positive_number(spread: object) -> None:
    with pytest.raises(ArgumentError, match="spread is"):
        Gates(4, 2, 4, k=2, bits=3, thresholds=(3,), spread=spread)  # type: ignore[arg-type]


def test_the_estimator_sees_windows_of_an_image(tmp_path: Path) -> None:
    from sklearn.datasets import load_digits

    from lutetia.sklearn import GateClassifier

    x, y = load_digits(return_X_y=True)
    estimator = GateClassifier(100, 5, image_shape=(8, 8), windows=4, n_thresholds=3, max_epochs=6, random_state=0)
    estimator.fit(x[:1200], y[:1200])
    assert estimator.score(x[1200:], y[1200:]) > 0.7
    assert estimator.model_.core.choice.shape == (100, 5, 4 * 4 * len(estimator.model_.config.gate_codes))
    estimator.model_.save_pretrained(tmp_path / "digits")
    again = load(tmp_path / "digits")
    assert torch.equal(again.network().classes(torch.from_numpy(x[:50])), torch.from_numpy(estimator.predict(x[:50])))
    for options, message in (
        ({"windows": 4}, "windows is 4, expected 0: the inputs are not an image"),
        ({"windows": 4, "image_shape": (4, 4)}, "the image is 4 x 4, expected the 64 columns"),
        ({"image_shape": 8}, "image_shape"),
        ({"prune": 0.5}, "prune is 0.5, expected 0 without hidden layers or windows"),
    ):
        with pytest.raises(ArgumentError, match=message):
            GateClassifier(100, 5, n_thresholds=3, max_epochs=1, **options).fit(x[:100], y[:100])
