"""A decoder of transformers generates at least as many tokens a second through Lutetia as through SDPA, on a CPU.

One token for each row against a context of 1,024, in a model of SmolLM2's sizes (135 M weights, random: they cost what real ones
cost). A ragged batch is padded on the left, its lengths evenly spaced over 10..100% of the context. Medians of steps in which the
contestants take turns, each with a cache of its own that grows by a token a step; SDPA has the library's DynamicCache.

    lutetia bench transformers_decode [--quick] [--json] [--save] [-- --repeats N]
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lutetia.errors import require
from results import Row, finish, options_of, peer, progress, result, table
from timing import in_turns

SIZES = {
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
}
QUICK = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
BATCHES = {"batch 1": 1, "batch 4, ragged": 4}
CLAIM = 1.0
RATIO = "Lutetia / SDPA"


def models(sizes: dict[str, int], vocab: int) -> dict[str, Any]:
    """The same weights with each attention."""
    from transformers import AutoModelForCausalLM, LlamaConfig

    built = {}
    for attention in ("lutetia", "sdpa"):
        config = LlamaConfig(vocab_size=vocab, max_position_embeddings=8192, tie_word_embeddings=True, **sizes)
        built[attention] = AutoModelForCausalLM.from_config(config, attn_implementation=attention, dtype=torch.float32).eval()
    built["sdpa"].load_state_dict(built["lutetia"].state_dict(), assign=True)
    return built


def stepper(model: Any, cache: Any, prompt: Tensor, mask: Tensor) -> Callable[[], Tensor]:
    """Fill the cache with prompts [B, S]; the function that decodes one more token of each row."""
    state = {"mask": mask}
    model(input_ids=prompt, attention_mask=mask, position_ids=(mask.cumsum(1) - 1).clamp(min=0), past_key_values=cache)

    def step() -> Tensor:
        grown = torch.cat([state["mask"], torch.ones_like(mask[:, :1])], 1)
        state["mask"] = grown
        position = grown.sum(1, keepdim=True) - 1
        return model(input_ids=prompt[:, :1], attention_mask=grown, position_ids=position, past_key_values=cache).logits

    return step


@torch.no_grad()
def measure(name: str, batch: int, built: dict[str, Any], context: int, repeats: int) -> Row:
    """Tokens a second of each contestant, all rows together."""
    from transformers import DynamicCache

    from lutetia.integrations.transformers import LutetiaCache

    lengths = (context * torch.linspace(0.1, 1.0, batch)).int() if batch > 1 else torch.tensor([context])
    mask = (torch.arange(context) >= context - lengths[:, None]).long()
    prompt = torch.randint(1, built["sdpa"].config.vocab_size, (batch, context))
    steps = {
        "Lutetia": stepper(built["lutetia"], LutetiaCache(built["lutetia"].config), prompt, mask),
        "SDPA": stepper(built["sdpa"], DynamicCache(config=built["sdpa"].config), prompt, mask),
        "SDPA, our cache": stepper(built["sdpa"], LutetiaCache(built["sdpa"].config), prompt, mask),
    }
    rates = {who: 1e3 * batch / milliseconds for who, milliseconds in in_turns(steps, repeats).items()}
    return {"kind": name, **rates, RATIO: rates["Lutetia"] / rates["SDPA"]}


def main(argv: list[str] | None = None) -> int:
    """Run both batches; 1 when one misses its claim."""
    parser = options_of(__doc__)
    parser.add_argument("--repeats", type=int, default=21, help="steps per contestant (default 21)")
    options = parser.parse_args(argv)
    require("transformers", "this benchmark")
    from lutetia.integrations.transformers import register

    register()
    torch.manual_seed(0)
    repeats, context = (3, 64) if options.quick else (options.repeats, 1024)
    built = models(QUICK if options.quick else SIZES, 100 if options.quick else 49152)
    rows = []
    for name, batch in BATCHES.items():
        progress(name)
        rows.append(measure(name, batch, built, context, repeats))
    missed = [f"{row['kind']}: {row[RATIO]:.2f}, {CLAIM} claimed" for row in rows if row[RATIO] < CLAIM]
    columns = {"kind": None, **dict.fromkeys(("Lutetia", "SDPA", "SDPA, our cache"), "tokens/s"), RATIO: "x"}
    peers = [peer("SDPA", "torch", 'attn_implementation="sdpa", eager, DynamicCache'), peer("transformers", "transformers")]
    settings = {"repeats": repeats, "context": context, "dtype": "float32"}
    tables = [table("decode", columns, rows)]
    found = result(__doc__, "transformers_decode", settings, tables, peers=peers, packages=["transformers"], missed=missed)
    return finish(found, options)


if __name__ == "__main__":
    sys.exit(main())
