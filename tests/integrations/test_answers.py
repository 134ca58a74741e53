"""What each token of an answer was made from, and whether that is faithful."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from lutetia.cli import main
from lutetia.errors import ArgumentError

pytest.importorskip("transformers")

import transformers

from integrations.hf_folders import SIZES, TEXT, WORDS, save, tiny, word_tokenizer
from lutetia import relevance
from lutetia.integrations.transformers import ClassExplanation, answers, explain_answer, leave_out
from lutetia.integrations.transformers.explaining import prompt_tokens

Capture = pytest.CaptureFixture[str]


@pytest.mark.parametrize("kind", ["llama", "gpt2", "t5"])
def test_every_row_is_the_explanation_of_one_score_of_one_long_graph(kind: str) -> None:
    """The whole text in one run, nothing recomputed, and the seed given as numbers."""
    model, tokenizer = tiny(kind), word_tokenizer()
    found = explain_answer(model, tokenizer, TEXT, "a dog ran")
    n_prompt, n_answer = len(found.tokens), len(found.answer)
    assert found.answer == [WORDS.index(word) for word in ("a", "dog", "ran")]
    assert found.relevance.shape == (n_answer, n_prompt + n_answer)
    tokens = torch.tensor([found.tokens])
    if kind == "t5":
        decoder = torch.tensor([[0, *found.answer[:-1]]])
        inputs = {"input_ids": tokens, "decoder_input_ids": decoder}
    else:
        inputs = {"input_ids": torch.tensor([[*found.tokens, *found.answer[:-1]]])}
    for place, (token, rival) in enumerate(zip(found.answer, found.rivals, strict=True)):
        at = place if kind == "t5" else n_prompt - 1 + place
        logits = model(**inputs).logits.detach()
        assert rival == next(each for each in logits[0, at].argsort(descending=True).tolist() if each != token)
        seed = torch.zeros_like(logits)
        seed[0, at, token], seed[0, at, rival] = logits[0, at, token], -logits[0, at, rival]
        plain = relevance.attribute(model, inputs, target=seed, rules=relevance.presets.attnlrp())
        row = [plain[tokens][0], plain[decoder][0, 1:]] if kind == "t5" else [plain[inputs["input_ids"]][0]]
        expected = torch.cat([*row, torch.zeros(1)])
        expected[n_prompt + place :] = 0
        torch.testing.assert_close(found.relevance[place].double(), expected.double(), rtol=1e-3, atol=1e-4)
        assert float(found.probabilities[place]) == pytest.approx(float(logits[0, at].softmax(0)[token]), rel=1e-5)


@pytest.mark.parametrize("rules", [None, "gradient"])
@pytest.mark.parametrize("kind", ["llama", "gpt2", "t5"])
def test_tokens_explained_together_are_those_explained_alone(kind: str, rules: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokenizer = tiny(kind), word_tokenizer()
    calls: list[int] = []
    model.register_forward_hook(lambda *_: calls.append(1))
    found, runs = {}, {}
    for together in (16, 2, 1):
        monkeypatch.setattr(answers, "MOST_AT_ONCE", together)
        calls.clear()
        found[together] = explain_answer(model, tokenizer, TEXT, "a dog ran on", rules)
        runs[together] = len(calls)
    assert runs == {16: 2 + 1, 2: 2 + 2, 1: 2 + 4}  # two that see whether the model is causal, and one per walk
    for together in (16, 2):
        for name in ("relevance", "absorbed", "elsewhere", "explained", "probabilities"):
            both = getattr(found[together], name), getattr(found[1], name)
            torch.testing.assert_close(*both, rtol=1e-5, atol=1e-6, msg=lambda told, name=name: f"{name}: {told}")
        assert found[together].rivals == found[1].rivals


def test_tokens_of_a_model_that_reads_ahead_are_explained_alone() -> None:
    """As a decoder that was made from an encoder does, without a mask: what follows would change what came before."""
    torch.manual_seed(3)
    config = transformers.BertConfig(**SIZES, vocab_size=len(WORDS), is_decoder=False, pad_token_id=0)
    model, tokenizer = transformers.BertLMHeadModel(config).eval().double(), word_tokenizer()
    for parameter in model.parameters():
        parameter.data *= 10
    found = explain_answer(model, tokenizer, TEXT, "a dog ran")
    for place in range(3):
        inputs = {"input_ids": torch.tensor([[*found.tokens, *found.answer[:place]]])}
        logits = model(**inputs).logits[0, -1].detach()
        difference = logits[found.answer[place]] - logits[found.rivals[place]]
        assert float(found.explained[place]) == pytest.approx(float(difference), rel=1e-5)


def test_as_many_tokens_at_once_as_memory_allows() -> None:
    model = tiny("llama")
    assert answers.at_once(model, 10, 5) == 5
    assert answers.at_once(model, 10, 100) == 16
    assert answers.at_once(model, 3000, 100) == 1  # 2 heads with 9 million pairs each are more than fit
    assert answers.at_once(model, 1000, 100) == 2**24 // 2_000_000


@pytest.mark.parametrize("kind", ["llama", "gpt2", "t5"])
def test_what_tokens_positions_and_constants_got_adds_up(kind: str) -> None:
    found = explain_answer(tiny(kind), word_tokenizer(), TEXT, 4)
    added = found.relevance.sum(1) + found.absorbed + found.elsewhere
    torch.testing.assert_close(added, found.explained, rtol=1e-5, atol=1e-5)
    assert (found.elsewhere.abs() > 1e-3).any() == (kind != "llama")  # which has no embeddings of positions
    torch.testing.assert_close(found.total, found.relevance[:, : len(found.tokens)].sum(0))


@pytest.mark.parametrize("kind", ["llama", "t5"])
def test_the_answer_is_what_the_model_writes(kind: str) -> None:
    model, tokenizer = tiny(kind), word_tokenizer()
    seen: list[tuple[int, int]] = []
    found = explain_answer(model, tokenizer, TEXT, 3, advance=lambda done, count: seen.append((done, count)))
    tokens = torch.tensor([found.tokens])
    written: list[int] = []
    for _ in range(3):  # without a cache
        decoder = torch.tensor([[0, *written]])
        inputs = {"input_ids": tokens, "decoder_input_ids": decoder} if kind == "t5" else {"input_ids": decoder}
        if kind != "t5":
            inputs["input_ids"] = torch.cat([tokens, decoder[:, 1:]], 1)
        written.append(int(model(**inputs).logits[0, -1].argmax()))
    assert found.answer == written
    assert seen == [(1, 3), (2, 3), (3, 3)]
    assert (found.tokens[-1] == WORDS.index("</s>")) == (kind == "t5")  # an encoder reads the end of a text


def test_a_prompt_is_begun_as_the_model_wants_it_and_not_ended() -> None:
    tokenizer = word_tokenizer()
    assert prompt_tokens(tokenizer, "the cat")[0].tolist() == [WORDS.index(word) for word in ("<s>", "the", "cat")]
    typed = prompt_tokens(tokenizer, "the cat </s>")[0].tolist()
    assert typed[-1] == WORDS.index("</s>")
    with pytest.raises(ArgumentError, match="no chat template"):
        prompt_tokens(tokenizer, [{"role": "user", "content": "the cat"}])
    tokenizer.chat_template = "{% for m in messages %}{{ m['role'] }} {{ m['content'] }} {% endfor %}on"
    asked = prompt_tokens(tokenizer, [{"role": "the", "content": "cat"}])[0].tolist()
    assert [WORDS[token] for token in asked if WORDS[token] not in ("<s>", "</s>")] == ["the", "cat", "on"]


def test_what_is_refused() -> None:
    model, tokenizer = tiny("llama"), word_tokenizer()
    for prompt, answer, reason in (("", 3, "the prompt is empty"), (TEXT, "", "the answer is empty"), (TEXT, 0, "answer is 0")):
        with pytest.raises(ArgumentError, match=reason):
            explain_answer(model, tokenizer, prompt, answer)
    with pytest.raises(ArgumentError, match="37 tokens long, expected at most 32"):
        explain_answer(model, tokenizer, TEXT, " ".join(["cat"] * 30))
    with pytest.raises(ArgumentError, match="33 tokens long, expected at most 32"):
        explain_answer(tiny("gpt2"), tokenizer, "cat " * 31, 5)
    assert len(explain_answer(tiny("gpt2"), tokenizer, "cat " * 29, 5).answer) == 2  # after 30 tokens of 32


# ---- leaving tokens out ----------------------------------------------------------------------------------------------


class CountsSevens(torch.nn.Module):
    """Two classes; the score of the first is how often token 7 is in the text."""

    device = torch.device("cpu")

    def forward(self, input_ids: Tensor) -> Any:
        count = (input_ids == 7).sum(1).double()
        return SimpleNamespace(logits=torch.stack([count, torch.zeros_like(count)], 1))


def explained(tokens: list[int], values: list[float]) -> ClassExplanation:
    scores = CountsSevens()(torch.tensor([tokens])).logits[0]
    pieces = [str(token) for token in tokens]
    return ClassExplanation(
        ["yes", "no"], scores, 0, 1, True, 0, torch.tensor(values), 0.0, 0.0, tokens, pieces, torch.zeros(0, len(tokens))
    )


def test_leaving_out_is_what_a_hand_computes() -> None:
    tokenizer = SimpleNamespace(all_special_ids=[1], mask_token_id=None)
    right = leave_out(CountsSevens(), tokenizer, explained([1, 7, 4, 5, 6, 8], [9.0, 1.0, 0.1, 0.0, 0.0, -0.5]))
    with_it, without_it = math.log(math.e / (math.e + 1)), math.log(0.5)
    assert (right.n_left_out, right.n_tokens) == (1, 5)  # the special token stays, whatever its relevance
    assert right.log_probability == pytest.approx(with_it)
    assert right.most == pytest.approx(with_it - without_it)
    assert right.least == 0
    assert 0 <= right.random < right.most
    assert right.faithful
    wrong = leave_out(CountsSevens(), tokenizer, explained([1, 7, 4, 5, 6, 8], [9.0, -1.0, 0.1, 0.0, 0.0, 0.5]))
    assert (wrong.most, wrong.least) == (0, pytest.approx(with_it - without_it))
    assert not wrong.faithful
    half = leave_out(CountsSevens(), tokenizer, explained([7, 7, 4, 5], [1.0, 0.9, 0.0, 0.0]), fraction=0.5)
    assert half.most == pytest.approx(math.log(math.e**2 / (math.e**2 + 1)) - math.log(0.5))
    with pytest.raises(ArgumentError, match="expected at least two"):
        leave_out(CountsSevens(), tokenizer, explained([1, 7], [0.0, 1.0]))


@pytest.mark.parametrize("kind", ["llama", "t5"])
def test_the_probability_of_an_answer_is_the_product_over_its_tokens(kind: str) -> None:
    model, tokenizer = tiny(kind), word_tokenizer()
    found = explain_answer(model, tokenizer, TEXT, "a dog ran")
    left = leave_out(model, tokenizer, found)
    assert left.log_probability == pytest.approx(float(found.probabilities.double().log().sum()), rel=1e-5)
    order = sorted((p for p, token in enumerate(found.tokens) if token > 4), key=lambda p: -float(found.total[p]))
    short = [token for place, token in enumerate(found.tokens) if place not in order[: left.n_left_out]]
    text = " ".join(WORDS[token] for token in short if token > 4)
    again = explain_answer(model, tokenizer, text, "a dog ran")
    assert again.tokens == short
    assert left.most == pytest.approx(left.log_probability - float(again.probabilities.double().log().sum()), rel=1e-4, abs=1e-5)


# ---- the command -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save("llama", tmp_path_factory.mktemp("llama"))


def test_the_command(folder: Path, tmp_path: Path, capsys: Capture) -> None:
    page, picture = tmp_path / "why.html", tmp_path / "why.png"
    words = ["explain", "--hf", str(folder), "the <b> cat", "--answer", "3", "--check"]
    assert main([*words, "--html", str(page), "--png", str(picture), "--json"]) == 0
    said = capsys.readouterr()
    told = json.loads(said.out)
    assert said.err == ""
    assert told["pieces"] == ["<s>", "the", "<b>", "cat"]
    assert [len(row) for row in told["relevance"]] == [7, 7, 7]
    assert told["left_out"]["n_tokens"] == 3
    assert "<b>" not in page.read_text().replace("<body>", "")
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert main(words) == 0
    said = capsys.readouterr()
    lines = said.out.splitlines()
    assert sum(bool(re.search(r"% +from ", line)) for line in lines) == 3
    most, random, least = (f"{-told['left_out'][which]:+.3g}" for which in ("most", "random", "least"))
    assert lines[-1] == (
        f"check: without the 1 most relevant of 3 tokens the log-probability changes by {most}; "
        f"without as many at random by {random}, without the least relevant by {least}"
    )
    assert "--answer 3" in said.err


def test_a_message_in_the_chat_template(folder: Path, tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "asked.txt").write_text("the cat")
    for given in ("the cat", str(tmp_path / "asked.txt")):
        assert main(["explain", "--hf", str(folder), given, "--chat", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["pieces"][-3:] == ["the", "cat", "on"]


def test_what_the_command_refuses(folder: Path, capsys: Capture) -> None:
    for words, reason in (
        (["x", "--answer", "0"], "--answer is 0, expected 1 to 1,000 tokens"),
        (["x", "--answer", "2", "--target", "cat"], "--target is for one token"),
        (["x", "--row", "1"], "--row is not for"),
    ):
        assert main(["explain", "--hf", str(folder), *words]) == 2
        assert reason in capsys.readouterr().err
    for option in (["--answer", "3"], ["--chat"], ["--check"]):
        assert main(["explain", str(folder), "x", *option]) == 2
        assert f"{option[0]} is for models of transformers: --hf" in capsys.readouterr().err


# ---- gradients, for comparison ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["llama", "t5"])
def test_gradient_times_input_is_the_slope_along_the_embeddings(kind: str) -> None:
    """By differences: every embedding of one token is scaled by 1 ± h."""
    model, tokenizer = tiny(kind), word_tokenizer()
    found = explain_answer(model, tokenizer, TEXT, "a dog", rules="gradient")
    tokens, step = torch.tensor([found.tokens]), 1e-2  # their norms compute in float32
    table = model.get_input_embeddings()

    def score(place: int, scale: float) -> float:
        factors = torch.ones(1, len(found.tokens), 1, dtype=torch.float64)
        factors[0, place] = scale
        if kind == "t5":
            encoded = model.encoder(inputs_embeds=table(tokens) * factors)
            logits = model(encoder_outputs=encoded, decoder_input_ids=torch.tensor([[0]])).logits[0, -1]
        else:
            logits = model(inputs_embeds=table(tokens) * factors).logits[0, -1]
        return float(logits[found.answer[0]] - logits[found.rivals[0]])

    with torch.no_grad():
        slopes = [(score(at, 1 + step) - score(at, 1 - step)) / (2 * step) for at in range(len(found.tokens))]
    assert found.relevance[0, : len(slopes)].tolist() == pytest.approx(slopes, rel=1e-2, abs=2e-4)
    assert found.relevance[1, len(slopes)] != 0  # the first token of the answer counts for the second


def test_other_words_are_no_rules(folder: Path, capsys: Capture) -> None:
    with pytest.raises(ArgumentError, match="rules is 'slope', expected"):
        explain_answer(tiny("llama"), word_tokenizer(), TEXT, "a dog", rules="slope")
    assert main(["explain", "--hf", str(folder), TEXT, "--rule", "gradient", "--check"]) == 0
    said = capsys.readouterr().out
    assert "of which gradients miss" in said
    assert "check: without the 2 most relevant" in said
