"""A cache is used again: the next turn of a conversation goes on where the last one ended, anything else is a clear error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from lutetia.errors import ArgumentError

pytest.importorskip("transformers")

from integrations.decoders import build, ragged
from lutetia.integrations.transformers import LutetiaCache, PagedCache, register

CACHES: dict[str, Callable[[Any], Any]] = {
    "lutetia": LutetiaCache,
    "paged": lambda config: PagedCache(config, 100, page_len=4),
}


@pytest.fixture(autouse=True)
def registered() -> None:
    register()


def write(model: Any, ids: Tensor, mask: Tensor, cache: Any = None) -> Tensor:
    """Five more tokens for each row of ids [B, S]."""
    written: Tensor = model.generate(input_ids=ids, attention_mask=mask, max_new_tokens=5, do_sample=False, past_key_values=cache)
    return written


@pytest.mark.parametrize(
    ("name", "kind"), [("llama", "lutetia"), ("llama", "paged"), ("gemma3", "lutetia"), ("mistral", "lutetia")]
)
def test_turns_of_a_conversation(name: str, kind: str) -> None:
    """Turns of 1, 3 and 20 tokens, in a batch padded on the left: as if all were read again."""
    model, batch = build(name, "lutetia"), ragged((6, 2))
    ids, mask, cache = batch["input_ids"], batch["attention_mask"], CACHES[kind](model.config)
    plain = build(name, "sdpa")
    for said in (1, 3, 20, 0):
        answered = write(model, ids, mask, cache)
        assert torch.equal(answered, write(plain, ids, mask))
        ids = torch.cat([answered, ragged((20, 20))["input_ids"][:, :said]], 1)
        mask = torch.cat([mask, mask.new_ones(2, ids.shape[1] - mask.shape[1])], 1)


@pytest.mark.parametrize("kind", CACHES)
def test_another_text_is_an_error_until_the_cache_is_reset(kind: str) -> None:
    model, ids = build("llama", "lutetia"), ragged((9,))["input_ids"]
    cache = CACHES[kind](model.config)
    write(model, ids, torch.ones_like(ids), cache)
    short = ids[:, :4]
    with pytest.raises(ArgumentError, match=r"^the cache holds 13 tokens and the prompt has none after them, .* its reset\(\)$"):
        write(model, short, torch.ones_like(short), cache)
    two = ids.repeat(2, 3)
    with pytest.raises(ArgumentError, match=r"^the new tokens are a batch of 2, expected 1, the batch that the cache holds: "):
        write(model, two, torch.ones_like(two), cache)
    assert cache.get_seq_length() == 13
    cache.reset()
    assert torch.equal(write(model, two, torch.ones_like(two), cache), write(model, two, torch.ones_like(two)))
