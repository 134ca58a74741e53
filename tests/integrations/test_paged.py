"""A cache in pages generates what the library's own does, and beams share pages."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from lutetia.errors import ArgumentError

pytest.importorskip("transformers")

from integrations.decoders import CHANGING, EAGER, build, ragged
from lutetia.integrations.transformers import PagedCache, register

GREEDY: dict[str, Any] = {"max_new_tokens": 20, "do_sample": False}


@pytest.fixture(autouse=True)
def registered() -> None:
    register()


def peer(name: str) -> Any:
    return build(name, "eager" if name in EAGER else "sdpa")


@pytest.mark.parametrize("options", [{}, {"num_beams": 3}], ids=["greedy", "beams"])
@pytest.mark.parametrize("name", ["llama", "falcon", "gpt_neo"])
def test_the_same_tokens(name: str, options: dict[str, Any]) -> None:
    batch, model = ragged(), build(name, "lutetia")
    cache = PagedCache(model.config, batch["input_ids"].shape[1] + 20, page_len=4)
    found = model.generate(**batch, **GREEDY, **options, past_key_values=cache)
    assert torch.equal(found, peer(name).generate(**batch, **GREEDY, **options))


def test_assisted_generation() -> None:
    """Tokens that are not accepted are forgotten, with their pages."""
    ids, model = ragged((13,))["input_ids"], build("llama", "lutetia")
    assistant = build("llama", "lutetia", num_hidden_layers=1)
    cache = PagedCache(model.config, 60, page_len=3)
    found = model.generate(input_ids=ids, **GREEDY, assistant_model=assistant, past_key_values=cache)
    assert torch.equal(found, build("llama", "sdpa").generate(input_ids=ids, **GREEDY))
    layer = cache.layers[0]
    assert layer.pool.n_free == 20 - -(-layer.length // 3)


def test_rows_share_the_pages_of_their_prompt() -> None:
    cache = PagedCache(build("llama", "lutetia").config, 64, page_len=4)
    states = torch.randn(4, 2, 40, 8)
    cache.update(states, states, 0)
    pool = cache.layers[0].pool
    cache.reorder_cache(torch.tensor([2, 2, 2, 0]))
    assert len(pool.k) - pool.n_free == 2 * 10
    cache.update(states[:, :, :1], states[:, :, :1], 0)
    assert len(pool.k) - pool.n_free == 2 * 10 + 4
    rows = pool.page_table(cache.layers[0].rows).long()
    held = pool.k[rows].flatten(1, 2)[:, :41].transpose(1, 2)
    assert torch.equal(held, torch.cat([states[[2, 2, 2, 0]], states[:, :, :1]], 2))


def test_what_is_refused() -> None:
    with pytest.raises(ArgumentError, match="attn_implementation is 'sdpa', expected 'lutetia' for a PagedCache"):
        PagedCache(build("llama", "sdpa").config, 20)
    with pytest.raises(ArgumentError, match="layers of type sliding_attention, expected full_attention for a PagedCache"):
        PagedCache(build("mistral", "lutetia").config, 20)
    cache = PagedCache(build("llama", "lutetia").config, 20)
    states = torch.randn(1, 2, 19, 8)
    cache.update(states, states, 0)
    with pytest.raises(ArgumentError, match="it holds 19 tokens and 2 more were given, expected no more than max_length 20"):
        cache.update(states[:, :, :2], states[:, :, :2], 0)
    with pytest.raises(ArgumentError, match="tokens_to_remove is -20, expected -19 to 0"):
        cache.crop(-20)
    with pytest.raises(ArgumentError, match="row 1 is chosen, expected 0 to 0"):
        cache.reorder_cache(torch.tensor([0, 1]))
    pool = cache.layers[0].pool
    assert (cache.get_seq_length(), len(pool.sequences), pool.n_free) == (19, 1, 0)  # as before


@pytest.mark.parametrize("name", CHANGING)
def test_models_that_change_what_the_cache_gives_are_refused(name: str) -> None:
    """The one changes values and keeps keys, the other changes both."""
    model = build(name, "lutetia")
    prompt = torch.tensor([[3, 4, 5, 6]])  # no padding: nothing but the cache knows how many keys there are
    with pytest.raises(ArgumentError, match="a PagedCache gives it"):
        model.generate(prompt, max_new_tokens=2, past_key_values=PagedCache(model.config, 16))
