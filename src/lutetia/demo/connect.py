"""Other libraries' models: a decoder of `transformers` generates through decode attention, the same tokens as through SDPA."""

from __future__ import annotations

import importlib.util
from typing import Any

import torch

from lutetia.demo.telling import Context, Told

SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
LENGTHS = (5, 12)  # tokens of two prompts, generated in one batch
TOKENS = 24
MISSING = "pip install 'lutetia[transformers]' adds decoders of transformers, which generate and are explained here: left out"


def tell(context: Context) -> Told:
    """A small Llama with random weights: two prompts of different lengths, through both attentions."""
    if importlib.util.find_spec("transformers") is None:
        return Told(MISSING)
    from transformers import AutoModelForCausalLM, LlamaConfig

    from lutetia.integrations.transformers import LutetiaCache, register

    context.say("a Llama of transformers")
    register()
    config = LlamaConfig(vocab_size=256, **SIZES, initializer_range=0.2, pad_token_id=0, bos_token_id=1, eos_token_id=None)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float64).eval()
        ids = torch.randint(2, 256, (len(LENGTHS), max(LENGTHS)))
    mask = torch.arange(max(LENGTHS)) >= max(LENGTHS) - torch.tensor(LENGTHS)[:, None]
    prompts = {"input_ids": ids.where(mask, 0), "attention_mask": mask.long()}
    written = {}
    for attention, cache in (("lutetia", LutetiaCache(config)), ("sdpa", None)):
        model.set_attn_implementation(attention)
        written[attention] = model.generate(**prompts, max_new_tokens=TOKENS, do_sample=False, past_key_values=cache)
    same = "the same" if torch.equal(written["lutetia"], written["sdpa"]) else "NOT the same"
    return Told(
        f"a Llama of transformers generates {TOKENS} tokens for two prompts through decode attention, {same} as through SDPA; "
        "lutetia explain --hf FOLDER explains one of yours, with --rule integrated by integrated gradients, to compare"
    )
