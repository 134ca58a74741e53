"""What each rank runs in the tests of `ShardedCache`: `python sharded_worker.py`, with the environment of torchrun."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import torch
from torch import distributed

sys.path.insert(0, str(Path(__file__).parents[1]))

from integrations.decoders import build, ragged
from lutetia.errors import ArgumentError
from lutetia.integrations.transformers import ShardedCache, register


def main() -> None:
    """A ragged batch of a tiny model, the same tokens as without a cache of ours; and what is refused."""
    register()
    batch, options = ragged(), {"max_new_tokens": 24, "do_sample": False}
    wanted = build("llama", "sdpa").generate(**batch, **options)
    distributed.init_process_group("gloo")
    model = build("llama", "lutetia")
    cache = ShardedCache(model.config, max_length=37)
    found = model.generate(**batch, **options, past_key_values=cache)
    assert torch.equal(found, wanted)
    assert cache.layers[0].keys.shape[2] == -(-37 // distributed.get_world_size())
    with pytest.raises(ArgumentError, match="the cache is full: it holds 36 tokens and 9 more"):
        model(torch.ones(4, 9, dtype=torch.long), past_key_values=cache)
    cache.reset()  # then a conversation of one text in place of four, whose second turn is longer than decoding takes at once
    first = model.generate(input_ids=batch["input_ids"][:1], max_new_tokens=4, do_sample=False, past_key_values=cache)
    turn = torch.cat([first, batch["input_ids"][:1, :12]], 1)
    found = model.generate(input_ids=turn, max_new_tokens=4, do_sample=False, past_key_values=cache)
    assert torch.equal(found, model.generate(input_ids=turn, max_new_tokens=4, do_sample=False))
    with pytest.raises(ArgumentError, match="attn_implementation is 'sdpa', expected 'lutetia'"):
        ShardedCache(build("llama", "sdpa").config, 8)
    with pytest.raises(ArgumentError, match="layers of type sliding_attention"):
        ShardedCache(build("gemma3", "lutetia").config, 8)
    print(f"rank {os.environ['RANK']} agrees")
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
