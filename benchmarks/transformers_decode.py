"""A decoder of transformers generates at least as many tokens a second through Lutetia as through SDPA, on a CPU.

One token for each row against a context of 1,024, in a model of SmolLM2's sizes (30 layers, 135 M weights). Weights and the keys
of the context are random: they cost what real ones cost. A ragged batch is padded on the left, its lengths evenly spaced over
10..100% of the context. Contestants take turns step by step, each with a cache of its own that grows by a token a step; SDPA has
the library's DynamicCache. Figures are of medians: tokens per second, and the ratio of processor times, which hardly change with
the load of the machine. With `--device cuda` weights are bfloat16 and steps are launched without CUDA graphs.

    lutetia bench transformers_decode [--quick] [--json] [--save] [-- --repeats N --threads N --device cuda]
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lutetia.errors import require
from results import Row, finish, options_of, peer, progress, result, table
from timing import on_two_clocks

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
OURS, RATIO, PROCESSOR = "Lutetia", "Lutetia / SDPA", "by processor time"


def models(sizes: dict[str, int], vocab: int) -> dict[str, Any]:
    """The same weights with each attention."""
    from transformers import AutoModelForCausalLM, LlamaConfig

    built = {}
    for attention in ("lutetia", "sdpa"):
        config = LlamaConfig(vocab_size=vocab, max_position_embeddings=8192, tie_word_embeddings=True, **sizes)
        built[attention] = AutoModelForCausalLM.from_config(config, attn_implementation=attention, dtype=torch.float32).eval()
    built["sdpa"].load_state_dict(built["lutetia"].state_dict(), assign=True)
    return built


def filled(cache: Any, config: Any, batch: int, context: int, like: Tensor) -> Any:
    """The cache with the random keys and values of `context` tokens in every layer; `like` has their dtype and device."""
    shape = (batch, config.num_key_value_heads, context, config.hidden_size // config.num_attention_heads)
    for layer in range(config.num_hidden_layers):
        cache.update(torch.randn(shape).to(like), torch.randn(shape).to(like), layer)
    return cache


def stepper(model: Any, cache: Any, mask: Tensor) -> Callable[[], Tensor]:
    """The function that decodes one more token of each row, after those of the mask [B, S], which the cache holds."""
    state = {"mask": mask}
    token = torch.ones_like(mask[:, :1])

    def step() -> Tensor:
        grown = torch.cat([state["mask"], token], 1)
        state["mask"] = grown
        position = grown.sum(1, keepdim=True) - 1
        logits: Tensor = model(input_ids=token, attention_mask=grown, position_ids=position, past_key_values=cache).logits
        if logits.is_cuda:
            torch.cuda.synchronize()
        return logits

    return step


@torch.no_grad()
def measure(name: str, batch: int, built: dict[str, Any], context: int, repeats: int) -> Row:
    """Tokens a second of each contestant, all rows together."""
    from transformers import DynamicCache

    from lutetia.integrations.transformers import LutetiaCache

    config, like = built["sdpa"].config, built["sdpa"].get_input_embeddings().weight
    lengths = (context * torch.linspace(0.1, 1.0, batch)).int() if batch > 1 else torch.tensor([context])
    mask = (torch.arange(context) >= context - lengths[:, None]).long().to(like.device)
    contestants = {
        OURS: (built["lutetia"], LutetiaCache(config)),
        "SDPA": (built["sdpa"], DynamicCache(config=config)),
        "SDPA, our cache": (built["sdpa"], LutetiaCache(config)),
    }
    steps = {
        who: stepper(model, filled(cache, config, batch, context, like), mask) for who, (model, cache) in contestants.items()
    }
    times = on_two_clocks(steps, repeats)
    rates = {who: 1e3 * batch / wall for who, (wall, _) in times.items()}
    return {"kind": name, **rates, RATIO: rates[OURS] / rates["SDPA"], PROCESSOR: times["SDPA"][1] / times[OURS][1]}


def main(argv: list[str] | None = None) -> int:
    """Run both batches; 1 when one misses its claim."""
    parser = options_of(__doc__)
    parser.add_argument("--repeats", type=int, default=21, help="steps per contestant (default 21)")
    parser.add_argument("--threads", type=int, help="of torch and of our kernels (default: all cores)")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    options = parser.parse_args(argv)
    require("transformers", "this benchmark")
    from lutetia.integrations.transformers import register

    register()
    if options.threads:
        torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    repeats, context = (3, 64) if options.quick else (options.repeats, 1024)
    built = models(QUICK if options.quick else SIZES, 100 if options.quick else 49152)
    dtype = torch.bfloat16 if options.device == "cuda" else torch.float32
    for model in built.values():
        model.to(options.device, dtype)
    rows = []
    for name, batch in BATCHES.items():
        progress(name)
        rows.append(measure(name, batch, built, context, repeats))
    missed = [f"{row['kind']}: {row[RATIO]:.2f}, {CLAIM} claimed" for row in rows if row[RATIO] < CLAIM]
    columns = {"kind": None, **dict.fromkeys((OURS, "SDPA", "SDPA, our cache"), "tokens/s"), RATIO: "x", PROCESSOR: "x"}
    peers = [peer("SDPA", "torch", 'attn_implementation="sdpa", eager, DynamicCache'), peer("transformers", "transformers")]
    settings = {"repeats": repeats, "context": context, "dtype": str(dtype).removeprefix("torch.")}
    tables = [table("decode", columns, rows)]
    found = result(__doc__, "transformers_decode", settings, tables, peers=peers, packages=["transformers"], missed=missed)
    return finish(found, options)


if __name__ == "__main__":
    sys.exit(main())
