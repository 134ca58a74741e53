"""`generate`: cached equals recomputed, a batch equals its rows alone, and every option does what it says."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lutetia.errors import ArgumentError
from lutetia.models import LUTTransformer, TransformerConfig
from lutetia.models.sampling import Sampling, choose, kept
from tools import require_module

require_module("numba")

SMALL: dict[str, Any] = {
    "context": 16,
    "width": 12,
    "n_layers": 2,
    "n_heads": 2,
    "n_detectors": 3,
    "n_anchors": 2,
    "positional_dim": 2,
    "ff_detectors": 5,
    "ff_anchors": 3,
    "initial_noise": 1.0,
    "seed": 0,
}
KINDS: dict[str, dict[str, Any]] = {
    "lut": {"unembedding": "lut"},
    "lut, linear": {},
    "softmax": {"attention": "softmax", "n_kv_heads": 1},
    "n-grams": {"feed_forward": "none", "ngrams": (1, 3), "ngram_word": True, "ngram_rows": 50, "ngram_width": 3},
}
EVERY = pytest.mark.parametrize("kind", KINDS)
PROMPTS = [b"a", b"hello", b"\xff\x00\x80", b"sixteen bytes xx", b"many more bytes than the context"]


def make(kind: str = "lut, linear", **more: Any) -> LUTTransformer:
    model = LUTTransformer(**{**SMALL, **KINDS[kind], **more}, dtype=torch.float64)
    generator = torch.Generator().manual_seed(5)
    for parameter in model.parameters():  # sharp and varied scores
        if parameter.dim() == 2:
            torch.nn.init.normal_(parameter, generator=generator)
    return model


@torch.no_grad()
def greedy(model: LUTTransformer, prompt: bytes, n: int) -> bytes:
    """The slow way: the last tokens of the whole text through the model, anew for every token."""
    text = prompt
    for _ in range(n):
        window = torch.tensor([list(text[-model.config.context :])])
        text += bytes([int(model(window)[0, -1].argmax())])
    return text[len(prompt) :]


class Script(LUTTransformer):
    """A model whose best next token is fixed by how many tokens came before: what it writes is known."""

    def __init__(self, text: bytes | list[int], vocab: int = 256) -> None:
        super().__init__(**{**SMALL, "context": 64, "n_layers": 1, "vocab": vocab})
        self.text = list(text)

    def forward(self, tokens: Any, lengths: Any = None, cache: Any = None) -> Any:
        before = cache.lengths.clone() if cache is not None else torch.zeros(len(tokens), dtype=torch.int64)
        logits = super().forward(tokens, lengths, cache) * 0
        for row in range(len(tokens)):
            for at in range(tokens.shape[1]):
                logits[row, at, self.text[(int(before[row]) + at + 1) % len(self.text)]] = 9
        return logits


# ---- cached, batched, sliding ----------------------------------------------------------------------------------------


@EVERY
@pytest.mark.parametrize("prompt", PROMPTS)
def test_greedy_is_what_recomputing_gives(kind: str, prompt: bytes) -> None:
    model = make(kind)
    written = model.generate(prompt, 30, temperature=0)  # past the context of 16
    assert written == greedy(model, prompt, 30)
    assert len(set(written)) > 2  # not the same byte over and over, which any model could write


@EVERY
def test_a_batch_writes_what_each_row_writes_alone(kind: str) -> None:
    model = make(kind)
    together = model.generate(PROMPTS, 20, temperature=0)
    assert together == [model.generate(prompt, 20, temperature=0) for prompt in PROMPTS]


def test_exact_sums_write_the_same_in_float32() -> None:
    model = LUTTransformer(**{**SMALL, **KINDS["lut"]}, sums="fixed", norm="none")
    written = model.generate(PROMPTS, 24, temperature=0)
    assert written == [greedy(model, prompt, 24) for prompt in PROMPTS]


def test_rows_that_end_leave_the_others_alone() -> None:
    model = make()
    free = model.generate(PROMPTS, 20, temperature=0)
    stops = [free[1][4:6], free[3][9:11]]
    ended = model.generate(PROMPTS, 20, temperature=0, stop=stops)
    for got, whole in zip(ended, free, strict=True):
        ends = [whole.find(stop) for stop in stops if stop in whole]
        assert got == whole[: min(ends, default=20)]
    assert ended[1] != free[1]
    drawn = [model.generate(PROMPTS[:2], 12, seed=3, stop=stop)[1] for stop in (None, [bytes([b]) for b in range(128)])]
    assert drawn[0].startswith(drawn[1])


def test_training_mode_is_kept_and_not_used() -> None:
    model = make(table_dropout=0.5)
    model.train()
    stream = model.generate(b"ab", 6, temperature=0, stream=True)
    first = next(stream)
    assert model.training
    assert first + b"".join(stream) == model.eval().generate(b"ab", 6, temperature=0)
    assert not model.training
    assert not any(parameter.grad is not None for parameter in model.parameters())


# ---- kinds of prompts and pieces -------------------------------------------------------------------------------------


def test_a_continuation_is_of_the_kind_of_its_prompt() -> None:
    model = make()
    as_bytes = model.generate(b"ab", 7, temperature=0)
    assert isinstance(as_bytes, bytes)
    assert len(as_bytes) == 7
    assert model.generate("ab", 7, temperature=0) == as_bytes.decode("utf-8", "replace")
    tokens = model.generate(torch.tensor([97, 98]), 7, temperature=0)
    assert tokens.dtype == torch.int64
    assert bytes(tokens.tolist()) == as_bytes
    rows = model.generate(torch.tensor([[97, 98], [98, 99]], dtype=torch.uint8), 7, temperature=0)
    assert [bytes(row.tolist()) for row in rows] == [as_bytes, model.generate(b"bc", 7, temperature=0)]
    mixed = model.generate(["ab", b"ab", torch.tensor([97, 98])], 7, temperature=0)
    assert [type(each) for each in mixed] == [str, bytes, torch.Tensor]
    assert model.generate(["ab"], 0) == [""]
    assert model.generate(b"ab", 0) == b""
    assert model.generate(torch.tensor([1]), 0).tolist() == []
    assert model.generate([], 5) == []


@pytest.mark.parametrize("how", [{"temperature": 0}, {"seed": 4}, {"seed": 4, "stop": ["\n", b"ab"]}])
def test_pieces_make_up_the_whole(how: dict[str, Any]) -> None:
    model = make()
    for prompt in ("é", b"x", torch.tensor([5, 6])):
        whole, stream = model.generate(prompt, 25, **how), model.generate(prompt, 25, **how, stream=True)
        assert isinstance(stream, Iterator)
        pieces = list(stream)
        if isinstance(prompt, torch.Tensor):
            assert torch.cat(pieces).tolist() == whole.tolist()
        else:
            assert type(whole)().join(pieces) == whole
            assert all(pieces)
    rows: dict[int, bytes] = {0: b"", 1: b""}
    for row, piece in model.generate([b"x", b"long"], 25, **how, stream=True):
        rows[row] += piece
    assert list(rows.values()) == model.generate([b"x", b"long"], 25, **how)


def test_a_stream_holds_back_half_a_character() -> None:
    model = Script("ßaé€".encode() * 9)
    assert list(model.generate("x", 7, temperature=0, stream=True)) == ["\ufffd", "a", "é", "€"]  # it starts at the second byte
    assert list(model.generate("x", 6, temperature=0, stream=True)) == ["\ufffd", "a", "é", "\ufffd"]  # and is cut in the €


# ---- stop ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stop", "written"),
    [
        (None, "bcdabcxabcd"),
        ("cx", "bcdab"),
        (b"cx", "bcdab"),
        (["zz", "d"], "bc"),
        (["cda", "bcdab"], "b"),  # the first to be complete
        (["a", "da"], "bc"),  # complete at once: the longer
        ("b", ""),
        ("not there", "bcdabcxabcd"),
    ],
)
def test_stop_strings(stop: Any, written: str) -> None:
    model = Script(b"abcdabcxabcdyyyy")
    for prompt in ("a", b"a", torch.tensor([97])):
        whole = model.generate(prompt, 11, temperature=0, stop=stop)
        text = bytes(whole.tolist()).decode() if isinstance(whole, torch.Tensor) else whole
        assert (text if isinstance(text, str) else text.decode()) == written
    assert "".join(model.generate("a", 11, temperature=0, stop=stop, stream=True)) == written


def test_what_may_become_a_stop_string_waits() -> None:
    model = Script(b"abcdabcxabcdyyyy")
    assert list(model.generate(b"a", 7, temperature=0, stop="bcx", stream=True)) == [b"bcd", b"a"]
    assert list(model.generate(b"a", 6, temperature=0, stop="bcx", stream=True)) == [b"bcd", b"a", b"bc"]  # the last are let go


def test_a_token_that_is_no_byte_ends_a_text() -> None:
    model = Script([1, 97, 98, 300, 99, 300], vocab=301)
    assert model.generate(b"x", 5, temperature=0) == b"ab"
    assert model.generate("x", 5, temperature=0) == "ab"
    assert model.generate(torch.tensor([120]), 4, temperature=0).tolist() == [97, 98, 300, 99]


# ---- sampling --------------------------------------------------------------------------------------------------------


def slowly_kept(logits: list[float], how: Sampling) -> dict[int, float]:
    """Token to probability, by sorting and counting in plain Python."""
    import math

    best = max(logits)
    weights = {token: math.exp((value - best) / how.temperature) for token, value in enumerate(logits)}
    order = sorted(weights, key=lambda token: (-logits[token], token))
    if how.top_k is not None:
        order = order[: how.top_k]
    if how.top_p is not None:
        total, chosen, reached = sum(weights[token] for token in order), [], 0.0
        for token in order:
            chosen.append(token)
            reached += weights[token] / total
            if reached >= how.top_p:
                break
        order = chosen
    total = sum(weights[token] for token in order)
    return {token: weights[token] / total for token in order}


@given(
    logits=st.lists(st.integers(-40, 40).map(lambda n: n / 7), min_size=1, max_size=12),
    temperature=st.sampled_from([0.05, 0.7, 1.0, 3.0]),
    top_k=st.one_of(st.none(), st.integers(1, 14)),
    top_p=st.one_of(st.none(), st.sampled_from([1e-9, 0.1, 0.333, 0.77, 0.999])),
)
def test_filters_keep_what_a_slow_one_keeps(
    logits: list[float], temperature: float, top_k: int | None, top_p: float | None
) -> None:
    how = Sampling(temperature, top_k, top_p)
    probabilities, tokens = kept(torch.tensor([logits], dtype=torch.float64), how)
    found = {t: p for t, p in zip(tokens[0].tolist(), probabilities[0].tolist(), strict=True) if p > 0}
    wanted = {t: p for t, p in slowly_kept(logits, how).items() if p > 0}
    assert found == pytest.approx(wanted, rel=1e-9, abs=1e-12)


def test_draws_follow_the_probabilities() -> None:
    logits = torch.randn(1, 6, dtype=torch.float64)
    how = Sampling(0.8, 4, 0.95)
    n = 20_000
    drawn = torch.rand(n, dtype=torch.float64)
    counts = choose(logits.expand(n, -1), how, drawn).bincount(minlength=6) / n
    for token, probability in slowly_kept(logits[0].tolist(), how).items():
        assert counts[token].item() == pytest.approx(probability, abs=4 * (probability * (1 - probability) / n) ** 0.5)
    assert counts.sum().item() == pytest.approx(1)
    assert (counts > 0).sum() == len(slowly_kept(logits[0].tolist(), how))


def test_the_edges_of_a_draw() -> None:
    logits = torch.tensor([[0.0, 1e4, -1e4]], dtype=torch.float32)
    for drawn in (0.0, 1 - 2**-53):
        assert choose(logits, Sampling(1e-3), torch.tensor([drawn], dtype=torch.float64)).tolist() == [1]
    even = torch.zeros(1, 4)
    assert [choose(even, Sampling(), torch.tensor([u]).double()).item() for u in (0, 0.24, 0.26, 0.51, 0.76, 1 - 2**-53)] == [
        0,
        0,
        1,
        2,
        3,
        3,
    ]
    assert choose(even, Sampling(0), even[:, 0]).tolist() == [0]


def test_seeds_and_generators() -> None:
    model = make()
    one = model.generate(PROMPTS, 12, seed=1)
    assert one == model.generate(PROMPTS, 12, seed=1)
    assert one == model.generate(PROMPTS, 12, generator=torch.Generator().manual_seed(1))
    assert one != model.generate(PROMPTS, 12, seed=2)
    torch.manual_seed(1)
    state = torch.get_rng_state()
    model.generate(PROMPTS, 12, seed=1)
    assert torch.equal(torch.get_rng_state(), state)
    assert model.generate(b"abc", 12) != model.generate(b"abc", 12)
    assert model.generate(b"abc", 12, top_k=1) == model.generate(b"abc", 12, temperature=0)
    assert model.generate(b"abc", 12, top_p=1e-9, temperature=5) == model.generate(b"abc", 12, temperature=0)
    same = model.generate([b"abc"] * 4, 12, seed=random.Random(0).randrange(100))
    assert len(set(same)) == 4  # rows of one call draw their own numbers


@pytest.mark.parametrize(
    ("arguments", "options", "said"),
    [
        (("", 1), {}, "prompt 0 is empty"),
        ((["a", b""], 1), {}, "prompt 1 is empty"),
        ((["a", 3], 1), {}, "prompt 1 is 3"),
        ((3, 1), {}, "prompts is 3"),
        ((torch.zeros(2), 1), {}, "prompt 0 is float32"),
        ((torch.zeros(1, 1, 1, dtype=torch.int64), 1), {}, "expected shape"),
        ((torch.tensor([1, 256]), 1), {}, "prompt 0 has the token 256"),
        (("\ud800", 1), {}, "UTF-8"),
        (("a", -1), {}, "max_new_tokens is -1"),
        (("a", 1.5), {}, "max_new_tokens is 1.5"),
        (("a", 1), {"temperature": -1}, "temperature is -1"),
        (("a", 1), {"temperature": float("nan")}, "temperature is nan"),
        (("a", 1), {"top_k": 0}, "top_k is 0"),
        (("a", 1), {"top_p": 0.0}, "top_p is 0.0"),
        (("a", 1), {"top_p": 1.1}, "top_p is 1.1"),
        (("a", 1), {"stop": ""}, "stop is ''"),
        (("a", 1), {"stop": [3]}, r"stop is \[3\]"),
        (("a", 1), {"seed": "x"}, "seed is 'x'"),
        (("a", 1), {"generator": 3}, "generator is 3"),
        (("a", 1), {"seed": 1, "generator": torch.Generator()}, "seed and generator are both given"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_bad_arguments_are_named_at_once(arguments: Any, options: dict[str, Any], said: str, stream: bool) -> None:
    with pytest.raises(ArgumentError, match=said):
        make().generate(*arguments, **options, stream=stream)


@pytest.mark.parametrize("attention", ["lut", "softmax"])
def test_a_cache_is_that_of_one_model_and_counts_as_its_layers_do(attention: str) -> None:
    def model(seed: int, context: int = 8) -> LUTTransformer:
        torch.manual_seed(seed)
        config = TransformerConfig(
            width=8, n_layers=2, context=context, attention=attention, n_heads=2, ff_detectors=4, ff_anchors=2
        )
        return LUTTransformer(config)

    one, other, longer = model(0), model(1), model(0, context=9)
    tokens = torch.zeros(2, 3, dtype=torch.int64)
    cache = one.new_cache(2)
    expected = one(tokens, cache=cache)
    with pytest.raises(ArgumentError, match=r"filled, and no other|other anchors"):
        other(tokens[:, :1], cache=cache)
    with pytest.raises(ArgumentError, match="filled, and no other"):
        longer(tokens[:, :1], cache=cache)
    with pytest.raises(ArgumentError, match="context of at most 8"):
        one(tokens, cache=longer.new_cache(2))
    cache.lengths.zero_()  # not reset(): the layers know nothing of it
    with pytest.raises(ArgumentError, match=r"layer 0 holds .* reset\(\) forgets"):
        one(tokens[:, :1], cache=cache)
    cache.reset()
    torch.testing.assert_close(one(tokens, cache=cache), expected)
    for layer in cache.layers:
        layer.lengths.zero_()
    with pytest.raises(ArgumentError, match=r"reset\(\) forgets"):
        one(tokens[:, :1], cache=cache)


@EVERY
def test_a_shorter_cache_gives_the_same_logits(kind: str) -> None:
    model = make(kind).eval()
    tokens = torch.tensor([list(b"ten bytes!")])
    with torch.no_grad():
        whole, cache = model(tokens), model.new_cache(1, 10)
        steps = [model(piece, cache=cache) for piece in tokens.split([1, 4, 1, 1, 3], 1)]
    torch.testing.assert_close(torch.cat(steps, 1), whole, rtol=1e-9, atol=1e-9)
    with pytest.raises(ArgumentError, match="expected no more than the context of 10 in total"):
        model(tokens[:, :1], cache=cache)
    with pytest.raises(ArgumentError, match="length is 17, expected"):
        model.new_cache(1, 17)


def test_a_context_that_no_text_reaches_takes_no_memory() -> None:
    """A file of a few kilobytes may say any context: what is kept follows the text."""
    sizes: dict[str, Any] = {"width": 8, "n_heads": 2, "n_layers": 1, "feed_forward": "dense", "attention": "softmax"}
    model = LUTTransformer(context=2**31 - 1, **sizes, seed=0)
    attention = model.blocks[0].attention
    assert attention.turns.shape[1] == 8192
    assert model.generate(b"ab", 3, temperature=0) == LUTTransformer(context=64, **sizes, seed=0).generate(
        b"ab", 3, temperature=0
    )
    assert model.new_cache(1, 5).nbytes == 2 * 5 * 8 * 4
    with torch.no_grad():
        tokens = torch.randint(256, (1, 9000), generator=torch.Generator().manual_seed(0))
        torch.testing.assert_close(model(tokens)[:, :100], model(tokens[:, :100]))
    assert attention.turns.shape[1] == 16384
