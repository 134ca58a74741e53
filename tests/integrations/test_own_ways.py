"""Models of `transformers` that do more than hand their keys and masks on: the same as by eager attention, or a clear refusal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from lutetia.errors import ArgumentError

pytest.importorskip("transformers")

import transformers

from integrations.decoders import SMALL, build, ragged
from lutetia.integrations.transformers import LutetiaCache, PagedCache, attention, register

LATENT = {
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 8,
    "num_key_value_heads": 4,
    "n_group": 1,
    "topk_group": 1,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
}
PICKING = {**LATENT, "index_topk": 4, "index_n_heads": 2, "index_head_dim": 16}
SPLIT = {"decoder_layers": 2, "decoder_attention_heads": 4, "decoder_ffn_dim": 40, "d_model": 32}
BOTH = {**SPLIT, "encoder_layers": 2, "encoder_attention_heads": 4, "encoder_ffn_dim": 40, "decoder_start_token_id": 1}
COMPRESSED = ["heavily_compressed_attention", "compressed_sparse_attention"]
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "picks keys": ("DeepseekV32Config", {**PICKING, "first_k_dense_replace": 1}),
    "picks keys, beside sinks": ("HYV4Config", PICKING),
    "adds to its mask": (
        "DeepseekV4Config",
        {"num_key_value_heads": 1, "q_lora_rank": 16, "sliding_window": 5, "layer_types": COMPRESSED, "num_experts_per_tok": 2},
    ),
    "does not say that it is causal": ("BigBirdPegasusConfig", SPLIT),
}
SINKS_AND_CAPS = ("gpt_oss", "gemma2")


@pytest.fixture(autouse=True)
def registered() -> None:
    register()


def made(kind: str, options: dict[str, Any], attention: str, auto: str = "AutoModelForCausalLM") -> Any:
    """A model with the same weights every time, in float32."""
    config = getattr(transformers, kind)(**{**SMALL, **options})
    torch.manual_seed(5)
    model = getattr(transformers, auto).from_config(config, attn_implementation=attention).eval()
    generator = torch.Generator().manual_seed(7)
    for parameter in model.parameters():
        parameter.data = 0.25 * torch.randn(parameter.shape, generator=generator)
    return model


def scores(model: Any, **options: Any) -> Tensor:
    """What a model found for each of six new tokens, [6, vocabulary]."""
    ids = ragged((13,))["input_ids"]
    how = {"max_new_tokens": 6, "do_sample": False, "return_dict_in_generate": True, "output_logits": True}
    return torch.cat(model.generate(input_ids=ids, **how, **options).logits)


@pytest.mark.parametrize("name", MODELS)
def test_the_same_scores_as_by_eager_attention(name: str) -> None:
    kind, options = MODELS[name]
    torch.testing.assert_close(scores(made(kind, options, "lutetia")), scores(made(kind, options, "eager")), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", SINKS_AND_CAPS)
def test_a_static_cache(name: str) -> None:
    """It has room behind the prompt, which the prompt does not see."""
    static = {"cache_implementation": "static", "disable_compile": True}
    torch.testing.assert_close(scores(build(name, "lutetia"), **static), scores(build(name, "eager")), rtol=1e-4, atol=1e-4)


def test_an_encoder_with_a_mask_and_a_decoder() -> None:
    """BigBird's encoder adds its mask to its scores."""
    ids = ragged((9, 9))["input_ids"]
    mask = torch.ones_like(ids)
    mask[1, 5:] = 0
    found, wanted = (
        made("BigBirdPegasusConfig", BOTH, attention, "AutoModelForSeq2SeqLM")(input_ids=ids, attention_mask=mask).logits
        for attention in ("lutetia", "eager")
    )
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


# ---- refused ---------------------------------------------------------------------------------------------------------


def run(kind: str, options: dict[str, Any]) -> Callable[[], object]:
    return lambda: made(kind, options, "lutetia")(ragged((13,))["input_ids"])


BLOCKS = {"layer_types": ["minimax_m3_sparse"] * 2, "index_topk_blocks": 1, "index_block_size": 2, "num_key_value_heads": 2}
VISION = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
OWN_WAY = "computes attention in its own way, expected a model that takes another: load it without attn_implementation='lutetia'$"
REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "a model of no base class": (run("TrOCRConfig", SPLIT), f"trocr {OWN_WAY}"),
    "a table without ours": (lambda: made("GitConfig", {"vision_config": VISION}, "lutetia"), f"git {OWN_WAY}"),
    "picked blocks": (run("MiniMaxM3VLTextConfig", BLOCKS), f"minimax_m3_vl_text {OWN_WAY}"),
    "pages": (lambda: PagedCache(made("TrOCRConfig", SPLIT, "lutetia").config, 9), f"trocr {OWN_WAY}"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused(name: str) -> None:
    call, words = REFUSED[name]
    with pytest.raises(ArgumentError, match=f"^{words}"):
        call()


def test_a_class_of_a_users_own_does_not_speak_for_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one that was typed into a prompt, transformers cannot read what it does with its attention."""
    monkeypatch.setattr(attention, "MODELS", {})
    options = {"__module__": "nowhere", "_supports_sdpa": False}
    mine = [
        type("Mine", (transformers.LlamaPreTrainedModel,), options),
        type("Other", (transformers.PreTrainedModel,), {**options, "config_class": transformers.LlamaConfig}),
    ]
    assert [each.config_class for each in mine] == [transformers.LlamaConfig] * 2
    assert attention.may_be_named(transformers.LlamaConfig)
    assert attention.supports_sdpa(transformers.LlamaConfig)


# ---- caches ----------------------------------------------------------------------------------------------------------

CACHES: dict[str, Callable[[Any], Any]] = {"lutetia": LutetiaCache, "paged": lambda config: PagedCache(config, 60)}


def generate(model: Any, cache: Any, ids: Tensor) -> Tensor:
    written: Tensor = model.generate(input_ids=ids, max_new_tokens=4, do_sample=False, past_key_values=cache)
    return written


@pytest.mark.parametrize("cache", CACHES)
def test_an_encoder_decoder_needs_two_caches(cache: str) -> None:
    """With one, the library reads the text as if it had been written, and says nothing."""
    model, ids = made("BartConfig", BOTH, "lutetia", "AutoModelForSeq2SeqLM"), ragged((9,))["input_ids"]
    wanted = generate(made("BartConfig", BOTH, "sdpa", "AutoModelForSeq2SeqLM"), None, ids)
    with pytest.raises(
        ArgumentError, match=r"^the model is an encoder-decoder, expected EncoderDecoderCache\((Lutetia|Paged)Cache"
    ):
        generate(model, CACHES[cache](model.config), ids)
    two = transformers.EncoderDecoderCache(CACHES[cache](model.config), transformers.DynamicCache(config=model.config))
    assert torch.equal(generate(model, two, ids), wanted)


@pytest.mark.parametrize("cache", CACHES)
def test_the_cache_of_another_model(cache: str) -> None:
    model, ids = build("llama", "lutetia"), ragged((9,))["input_ids"]
    held = CACHES[cache](model.config)
    generate(model, held, ids)
    more = ids.repeat(1, 3)
    with pytest.raises(ArgumentError, match=r"^the new keys are of 4 heads of 8 elements, expected 2 of 8, as the cache holds"):
        generate(build("llama", "lutetia", num_key_value_heads=4), held, more)
    with pytest.raises(ArgumentError, match=r"^the model has more layers than the cache, expected 2: "):
        generate(build("llama", "lutetia", num_hidden_layers=3), CACHES[cache](model.config), ids)
    if cache == "lutetia":
        with pytest.raises(ArgumentError, match=r"^the new keys are torch\.float32, expected torch\.float64, as the cache holds"):
            generate(build("llama", "lutetia", torch.float32), held, more)


@pytest.mark.parametrize("cache", CACHES)
def test_a_cache_begun_in_inference_mode_goes_on_outside_of_it(cache: str) -> None:
    model, ids = build("llama", "lutetia"), ragged((9,))["input_ids"]
    held = CACHES[cache](model.config)
    with torch.inference_mode():
        answered = generate(model, held, ids)
    more = torch.cat([answered.clone(), ids], 1)
    assert torch.equal(generate(model, held, more), generate(model, None, more))


def test_keys_and_values_of_two_sizes_are_no_pages() -> None:
    model, ids = made("DeepseekV3Config", LATENT, "lutetia"), ragged((9,))["input_ids"]
    wanted = generate(made("DeepseekV3Config", LATENT, "eager"), None, ids)
    assert torch.equal(generate(model, LutetiaCache(model.config), ids), wanted)
    with pytest.raises(
        ArgumentError, match=r"^the model has keys of 16 elements and values of 8, expected the same for a PagedCache"
    ):
        generate(model, PagedCache(model.config, 60), ids)
