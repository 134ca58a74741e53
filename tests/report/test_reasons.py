"""Why models decided, against slow loops over the definition and against linear models, where every rule must say the same."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import stories
import torch
from torch import Tensor

from lutetia import report
from lutetia import sklearn as estimators
from lutetia.errors import ArgumentError
from lutetia.models import DenseClassifier, LUTClassifier, LUTTransformer
from lutetia.report.attribution import RULES, SHAPLEY, attribute_class, attribute_token, contrast, lead
from lutetia.report.comparisons import Comparison
from lutetia.report.reasons import detectors, input_texts, token_names
from tools import require_module

pandas = require_module("pandas")


def slow_lut_relevance(model: LUTClassifier, x: Tensor, target: int) -> Tensor:
    """The rule of a LUT layer by its definition, detector by detector, pair by pair: x [I] -> [I]."""
    layer = model.readout
    n_classes = model.config.n_classes
    rivals = [math.exp(score) * (o != target) for o, score in enumerate(model(x[None].view(1, 5, 7))[0].tolist())]
    c = [1.0 if o == target else -rivals[o] / sum(rivals) for o in range(n_classes)]  # R_o / y_o of the lead
    found = [0.0] * x.numel()
    for t in range(layer.n_detectors):
        pairs = layer.anchors[t].tolist()
        index = sum((x[a] > x[b]).item() << r for r, (a, b) in enumerate(pairs))

        def worth(row: int, t: int = t) -> float:
            return sum(c[o] * layer.weight[t, row, o].item() for o in range(n_classes))

        decided = [abs(worth(index) - worth(index ^ (1 << r))) for r in range(len(pairs))]
        for (a, b), part in zip(pairs, decided, strict=True):
            for end in (a, b):
                found[end] += 0.5 * worth(index) * part / sum(decided)
    return torch.tensor(found, dtype=torch.float64)


def test_epsilon_is_the_rule_of_tables() -> None:
    model, x = stories.classifier().double(), torch.rand(5, 7, dtype=torch.float64)
    for target in (0, 2):
        found = attribute_class(model, x, target, "epsilon").relevance
        assert torch.allclose(found.flatten(), slow_lut_relevance(model, x.flatten(), target), atol=1e-5)
        assert float(found.sum()) == pytest.approx(float(lead(model(x[None])[0].detach(), target)), abs=1e-4)


def test_the_lead_is_the_slope_of_the_log_odds() -> None:
    scores = torch.tensor([2.0, -1.0, 0.5], dtype=torch.float64, requires_grad=True)
    odds = scores[0] - scores[1:].logsumexp(0)
    (slope,) = torch.autograd.grad(odds, scores)
    assert torch.allclose(contrast(scores, 0), slope)
    scores = scores.detach()
    assert float(lead(scores, 0)) == pytest.approx(2.0 - float(scores[1:].softmax(0) @ scores[1:]))
    assert float(lead(scores + 7, 0)) == pytest.approx(float(lead(scores, 0)))  # as a softmax, it sees no common offset
    assert float(lead(scores, 0)) > 0 > float(lead(scores, 1))


@pytest.mark.parametrize("rule", ["epsilon", "attnlrp", "dynamic", "gradient", "occlusion"])
def test_of_a_linear_model_they_all_say_the_same(rule: str) -> None:
    model = DenseClassifier(input_shape=(5, 7), n_classes=4, layers=(), readout="linear", seed=0).double().eval()
    with torch.no_grad():
        model.readout.weight.copy_(torch.rand(4, 35))
    x = torch.rand(5, 7, dtype=torch.float64)
    weight = model.readout.weight.detach()
    others = model(x[None])[0].detach()[[0, 2, 3]].softmax(0)
    wanted = ((weight[1] - others @ weight[[0, 2, 3]]) * x.flatten()).view(5, 7)
    found = attribute_class(model, x, 1, rule)
    assert torch.allclose(found.relevance, wanted, atol=1e-4)
    assert (found.absorbed is None) == (rule in ("gradient", "occlusion"))


def test_every_rule_has_a_sentence_and_runs() -> None:
    model, x = stories.classifier(layers=({"kind": "lut", "n_outputs": 9, "n_detectors": 6, "n_anchors": 3},)), torch.rand(5, 7)
    assert len({rule.title for rule in RULES.values()}) == len(RULES)
    for name, rule in RULES.items():
        if name != SHAPLEY:  # of tables of data
            assert attribute_class(model, x, 0, name).relevance.shape == (5, 7)
        assert rule.about.endswith(".")
        assert name not in rule.title.lower() or name == "attnlrp"  # what it shows, not what it is called


def test_detectors_say_what_they_looked_up() -> None:
    model, x = stories.classifier(), torch.rand(5, 7)
    layer, flat = model.readout, x.flatten()
    found = detectors(model, x, 2, most=23)
    assert sorted(each.number for each in found) == list(range(23))
    sizes = [abs(each.contribution) for each in found]
    assert sizes == sorted(sizes, reverse=True)
    for each in found:
        assert [list(pair) for pair in each.anchors] == layer.anchors[each.number].tolist()
        assert each.bits == [bool(flat[a] > flat[b]) for a, b in each.anchors]
        assert each.row == sum(bit << r for r, bit in enumerate(each.bits))
        row = layer.weight[each.number, each.row].detach()
        assert each.values == pytest.approx(row.tolist())
        assert each.contribution == pytest.approx(float(row @ contrast(model(x[None])[0], 2)), abs=1e-4)
    assert sum(each.contribution for each in found) == pytest.approx(float(lead(model(x[None])[0].detach(), 2)), abs=1e-3)


@pytest.mark.parametrize(
    "layer",
    [
        {"kind": "lut", "n_outputs": 40, "n_detectors": 31, "n_anchors": 3},
        {"kind": "projection2d", "out_shape": (4, 10), "receptive_field": 3, "projection": 3, "n_anchors": 3, "grid": 3},
    ],
    ids=["dense", "sparse"],
)
def test_detectors_of_a_deeper_network_share_out_the_lead(layer: dict[str, object]) -> None:
    model, x = stories.classifier(layers=(layer,)), torch.rand(5, 7)
    found = detectors(model, x, 1, most=1000)
    # Of the lead, what stood at outputs that no table reaches has nowhere to go.
    reached = float(attribute_class(model, x, 1, "epsilon").relevance.sum())
    assert sum(each.contribution for each in found) == pytest.approx(reached, rel=1e-3, abs=1e-3)
    assert all(len(each.values) == len(each.outputs) == 32 for each in found)  # the weightiest of 40
    assert report.decide(model, x).detectors[0] == detectors(model, x, report.decide(model, x).prediction, 1)[0]


def test_where_tables_do_not_see_the_input_there_are_no_detectors() -> None:
    projected = stories.classifier(layers=({"kind": "projected", "n_outputs": 9, "heads": 2, "head_width": 4, "n_detectors": 3},))
    dense = DenseClassifier(input_shape=(5, 7), n_classes=4, layers=(), seed=0)
    assert report.decide(projected, torch.rand(5, 7), rules=["gradient"]).detectors == []
    assert report.decide(dense, torch.rand(5, 7)).detectors == []


def test_decisions_leave_the_model_as_it_was() -> None:
    model = stories.classifier().train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    decided = report.decisions(model, (255 * torch.rand(2, 5, 7)).byte(), torch.tensor([0, 1]), rules=["epsilon"])
    assert model.training
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert [item.label for item in decided.items] == [0, 1]
    assert max(decided.items[0].values) <= 1  # pixels from 0 to 1


def test_a_target_of_one_s_own() -> None:
    model, x = stories.classifier(), torch.rand(5, 7)
    item = report.decide(model, x, target=3, rules=["epsilon"])
    assert (item.target, item.prediction) == (3, int(model(x[None]).argmax()))
    assert sum(item.heat["epsilon"]) == pytest.approx(float(lead(torch.tensor(item.scores), 3)), abs=1e-4)
    with pytest.raises(ArgumentError, match="target is 4, expected a number from 0 to 3"):
        report.decide(model, x, target=4)
    with pytest.raises(ArgumentError, match="rule is 'zminus', expected one of"):
        report.decide(model, x, rules=["zminus"])


# ---- text ------------------------------------------------------------------------------------------------------------


def test_tokens_share_out_the_lead() -> None:
    model = stories.transformer().double()
    tokens = torch.tensor(list(b"def f(x)"))
    found = attribute_token(model, tokens, ord(":"), "epsilon")
    whole = float(lead(model(tokens[None])[0, -1], ord(":")))
    assert float(found.relevance.sum()) + float(found.absorbed or 0) == pytest.approx(whole, abs=1e-6)


@pytest.mark.parametrize("rule", ["epsilon", "gradient"])
def test_rows_of_n_grams_are_shared_out_to_their_tokens(rule: str) -> None:
    options: dict[str, Any] = {"ngrams": (2, 3), "ngram_word": True, "ngram_rows": 64, "ngram_width": 4, "feed_forward": "none"}
    model = LUTTransformer(context=8, width=12, n_layers=1, attention="softmax", n_heads=2, seed=0, **options).double().eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3, generator=torch.Generator().manual_seed(parameter.numel()))
    tokens = torch.tensor(list(b"def f(x)"))
    found = attribute_token(model, tokens, ord(":"), rule)
    if rule == "epsilon":
        whole = float(lead(model(tokens[None])[0, -1], ord(":")))
        assert float(found.relevance.sum()) + float(found.absorbed or 0) == pytest.approx(whole, abs=1e-6)
    without = attribute_token(model, tokens, ord(":"), rule).relevance - _embedding_part(model, tokens, rule)
    assert float(without.abs().max()) > 1e-3  # what the tables say reaches the tokens


def _embedding_part(model: LUTTransformer, tokens: torch.Tensor, rule: str) -> torch.Tensor:
    """The same with shares of the rows thrown away."""
    kept = model.ngrams.token_shares
    model.ngrams.token_shares = lambda relevance, tokens: relevance.new_zeros(tokens.shape)  # type: ignore[method-assign]
    try:
        return attribute_token(model, tokens, ord(":"), rule).relevance
    finally:
        model.ngrams.token_shares = kept  # type: ignore[method-assign]


def test_occlusion_of_tokens_is_a_loop() -> None:
    model, tokens = stories.transformer(), torch.tensor(list(b"def f(x)"))
    found = attribute_token(model, tokens, 58, "occlusion").relevance
    with torch.no_grad():
        whole = model(tokens[None])[0, -1]
        for at in range(len(tokens)):
            held = tokens.clone()
            held[at] = ord(" ")
            fallen = float((whole - model(held[None])[0, -1]) @ contrast(whole, 58))  # the rivals stay those of the whole text
            assert float(found[at]) == pytest.approx(fallen, abs=1e-5)


def test_gradient_of_tokens_is_that_of_their_embeddings() -> None:
    model, tokens = stories.transformer().double(), torch.tensor(list(b"abcabd"))  # a and b twice, at places of their own
    found = attribute_token(model, tokens, 58, "gradient").relevance
    model.zero_grad()
    lead(model(tokens[None])[0, -1], 58).backward()
    by_weight = (model.embedding.weight.grad * model.embedding.weight).sum(1)  # type: ignore[operator]
    for byte in b"abcd":
        assert float(found[tokens == byte].sum()) == pytest.approx(float(by_weight[byte]), abs=1e-12)


def test_a_strip_looks_at_the_end_of_a_long_text() -> None:
    model = stories.transformer()
    text = "x" * 30 + "def f(y"
    strip = report.strip(model, text, begin=35)
    assert "".join(strip.tokens) == text[-24:]
    assert sorted(strip.relevance) == [22, 23]
    assert [len(strip.relevance[at]) for at in (22, 23)] == [22, 23]
    alone = attribute_token(model, torch.tensor(list(text[-24:-1].encode())), ord("y"), "decisive")
    assert strip.relevance[23] == pytest.approx(alone.relevance.tolist())


def test_a_text_of_one_byte_has_no_strip() -> None:
    with pytest.raises(ArgumentError, match="text has 1 bytes, expected at least two"):
        report.strip(stories.transformer(), "x")


def test_bytes_that_are_no_ascii_stand_apart() -> None:
    assert token_names("aé\n".encode()) == ["a", "\\xc3", "\\xa9", "\n"]


def test_the_strip_opens_on_a_visible_byte_that_was_expected_from_afar() -> None:
    model, text = stories.transformer(), b"def f(x):\n  return x"
    strip = report.strip(model, text, begin=4)
    with torch.no_grad():
        chances = model(torch.tensor(list(text))[None])[0].softmax(-1)
    interest = {}
    for at in range(4, len(text)):
        far = sum(abs(value) for value in strip.relevance[at][: at - 3]) / sum(abs(value) for value in strip.relevance[at])
        if not chr(text[at]).isspace():
            interest[at] = float(chances[at - 1, text[at]]) * far
    assert strip.opened == max(interest, key=lambda at: interest[at])
    assert report.strip(model, "a \n").opened in (1, 2)  # nothing visible to explain


# ---- names -----------------------------------------------------------------------------------------------------------


def test_names_come_from_the_checkpoint() -> None:
    model = stories.classifier()
    assert report.decisions(model, torch.rand(1, 5, 7), rules=["epsilon"]).labels == []
    model.metadata = {"classes": ["ant", "bee", "cat", "dog"]}  # type: ignore[assignment]
    decided = report.decisions(model, torch.rand(1, 5, 7), rules=["epsilon"])
    assert decided.labels == ["ant", "bee", "cat", "dog"]
    assert decided.titles == {"epsilon": "What took part"}
    reading = report.reading(model, torch.rand(5, 7))
    assert reading is not None
    assert reading.labels == ["ant", "bee", "cat", "dog"]
    model.metadata = {"classes": ["ant"]}  # type: ignore[assignment]
    assert report.decisions(model, torch.rand(1, 5, 7), rules=["epsilon"]).labels == []
    assert report.decisions(model, torch.rand(1, 5, 7), rules=["epsilon"], labels="abcd").labels == "abcd"


@pytest.mark.parametrize(
    ("operator", "other", "text"),
    [
        (">", "755", "proline > 755"),
        ("<=", "hue by rank", "proline <= hue by rank"),
        (">", "missing", "proline is known"),
        ("<=", "missing", "proline is missing"),
        (">", "[missing]", "proline is known"),
        (">", "[missing, red]", "proline not in [missing, red]"),
        ("<=", "[missing, red]", "proline in [missing, red]"),
    ],
)
def test_a_comparison_reads_as_people_say_it(operator: str, other: str, text: str) -> None:
    assert Comparison("proline", operator, other, 0.25).text == text
    assert str(Comparison("proline", operator, other, 0.25)) == f"{text} (+0.25)"


def test_a_category_is_shown_by_its_name() -> None:
    colours = np.array(["red", "green", "blue"], dtype=object)[np.arange(60) % 3]
    rows = pandas.DataFrame({"size": np.arange(60.0) % 7, "colour": pandas.Categorical(colours)})
    model = estimators.LUTClassifier(n_tables=4, n_anchors=2, random_state=0).fit(rows, colours == "red").model_
    x = torch.tensor([[3.0, model.metadata["categories"]["1"].index("green")], [float("nan"), 9.0]], dtype=torch.float64)
    decided = report.decisions(model, x, rules=["decisive"])
    assert [list(each.texts) for each in decided.items] == [["size = 3", "colour = green"], ["size = missing", "colour = 9"]]
    assert any(each.feature == "colour" for each in decided.items[0].comparisons)
    assert input_texts(model, torch.tensor([30123.25, 0.0]))[0] == "size = 30123.2"


def test_two_orders_of_one_column_are_told_as_its_categories() -> None:
    colours = np.array(["red", "green", "blue", "grey"], dtype=object)[np.arange(80) % 4]
    rows = pandas.DataFrame({"size": np.arange(80.0) % 7, "colour": pandas.Categorical(colours)})
    labels = np.where(colours == "grey", np.arange(80) // 4 % 3, np.arange(80) % 4)
    model = estimators.LUTClassifier(n_tables=8, n_anchors=4, pairs=1.0, random_state=0).fit(rows, labels).model_
    names, told = model.metadata["categories"]["1"], []
    for number, name in enumerate(names):
        [decision] = report.decisions(model, torch.tensor([[3.0, number]], dtype=torch.float64), rules=["decisive"]).items
        for each in decision.comparisons:
            assert "colour by rank" not in each.other or each.feature != "colour"
            if each.other.startswith("[missing, "):
                assert (name in each.other[1:-1].split(", ")) == (each.operator == "<=")
                told.append(each.other)
    assert told
