"""Relevance costs at most 1.5 times a forward and a full backward pass, planned at most 1.2 times, and 1.5 times its memory.

Six architectures, one thread, float32. zennit and captum are measured beside it where they run. Everything starts from the inputs
and includes the forward pass. A full backward is the gradient of every parameter and the input; *planned* is a call of a plan.
Times are of the processor, medians of some rounds, taken in turn; only ratios of one run mean anything. Memory is what a process
of its own reaches beyond its model (Linux only). Deep graphs have a time per node, which does not grow with their length.

    lutetia bench relevance [--quick] [--json] [--save] [-- --rounds 7 --only bert --deep]
"""

from __future__ import annotations

import argparse
import os
import sys
import types
from collections.abc import Callable
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
import torch
from torch import Tensor, nn

from lutetia import relevance
from results import Row, finish, options_of, peer, progress, result, table, version_of
from timing import on_two_clocks, peak_beyond, peak_of

NEEDS = ("transformers",)
EPS = 1e-6
UNIT = "forward and backward"
CLAIMS = {"attribute": 1.5, "planned": 1.2, "peak memory": 1.5}  # times that, at most
NAMES = {
    "mlp": "perceptron, 7 layers of 512",
    "vgg": "VGG-like, 6 convolutions",
    "resnet": "ResNet-like, 8 residual blocks",
    "vit": "vision transformer, 6 layers of 256",
    "bert": "BERT, 6 layers of 384",
    "gpt2": "GPT-2, 6 layers of 384",
}


def mlp() -> tuple[nn.Module, Any]:
    layers: list[nn.Module] = []
    for _ in range(6):
        layers += [nn.Linear(512, 512), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(512, 10)), torch.randn(256, 512)


def vgg() -> tuple[nn.Module, Any]:
    layers: list[nn.Module] = []
    for before, after in ((3, 32), (32, 64), (64, 128)):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.ReLU(), nn.Conv2d(after, after, 3, padding=1), nn.ReLU()]
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10)), torch.randn(4, 3, 64, 64)


class Residual(nn.Module):
    """Two convolutions with batch norms, and the input added; x [B, C, H, W] -> the same."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for _ in range(2):
            layers += [nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels), nn.ReLU()]
        self.inner = nn.Sequential(*layers[:-1])

    def forward(self, x: Tensor) -> Tensor:
        """x [B, C, H, W] -> the same."""
        return torch.relu(x + self.inner(x))


def resnet() -> tuple[nn.Module, Any]:
    stem = [nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)]
    return nn.Sequential(*stem, *(Residual(64) for _ in range(8)), *head), torch.randn(4, 3, 64, 64)


class ViT(nn.Module):
    """images [B, 3, H, W] -> scores [B, 10], by patches of 8 x 8."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 256, 8, stride=8)
        layer = nn.TransformerEncoderLayer(256, 4, 1024, activation="gelu", batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 6, norm=nn.LayerNorm(256), enable_nested_tensor=False)
        self.head = nn.Linear(256, 10)

    def forward(self, x: Tensor) -> Tensor:
        """x [B, 3, H, W] -> [B, 10]."""
        scores: Tensor = self.head(self.layers(self.patches(x).flatten(2).mT).mean(1))
        return scores


def vit() -> tuple[nn.Module, Any]:
    return ViT(), torch.randn(8, 3, 64, 64)


def bert() -> tuple[nn.Module, Any]:
    from transformers import BertConfig, BertForSequenceClassification

    sizes = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 6, "intermediate_size": 1536, "vocab_size": 1000}
    return BertForSequenceClassification(BertConfig(**sizes)), {"input_ids": torch.randint(1000, (4, 128))}


def gpt2() -> tuple[nn.Module, Any]:
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {
        "n_embd": 384,
        "n_layer": 6,
        "n_head": 6,
        "vocab_size": 1000,
        "n_positions": 128,
        "bos_token_id": 0,
        "eos_token_id": 0,
    }
    return GPT2LMHeadModel(GPT2Config(**sizes, use_cache=False)), {"input_ids": torch.randint(1000, (4, 128))}


MODELS = {"mlp": mlp, "vgg": vgg, "resnet": resnet, "vit": vit, "bert": bert, "gpt2": gpt2}


def make(name: str) -> tuple[nn.Module, Any]:
    torch.manual_seed(0)
    model, inputs = MODELS[name]()
    return model.eval(), inputs


def train(model: nn.Module, inputs: Any) -> None:
    """A forward and a full backward pass."""
    output = model(**inputs).logits if isinstance(inputs, dict) else model(inputs.detach().requires_grad_())
    output.backward(torch.ones_like(output))
    model.zero_grad()


def attribute(model: nn.Module, inputs: Any) -> None:
    """The largest outputs explained, as `attribute` does without being told more."""
    relevance.attribute(model, inputs)


def with_zennit(model: nn.Module, inputs: Any) -> Callable[[], Any] | None:
    """zennit's epsilon rule, forward pass included: it changes the modules as they run. It has no rule for attention."""
    if not isinstance(model, nn.Sequential) or version_of("zennit") is None:
        return None
    names = ("torchvision", "torchvision.models", "torchvision.models.resnet")
    for name in names:
        sys.modules.setdefault(name, types.ModuleType(name))
    for name in ("Bottleneck", "BasicBlock"):  # zennit wants their names only
        setattr(sys.modules[names[2]], name, type(name, (), {}))
    from zennit.attribution import Gradient
    from zennit.composites import LayerMapComposite
    from zennit.rules import Epsilon, Norm, Pass
    from zennit.types import Activation, AvgPool, Linear

    for name in names:  # others ask whether torchvision is there, and it is not
        sys.modules.pop(name, None)
    composite = LayerMapComposite([(Activation, Pass()), (AvgPool, Norm()), (Linear, Epsilon(EPS))])

    def call() -> None:
        with Gradient(model, composite) as attributor:
            attributor(inputs.clone().requires_grad_(), lambda output: torch.ones_like(output))

    return call


def with_captum(model: nn.Module, inputs: Any) -> Callable[[], Any] | None:
    """captum's LRP with its epsilon rule, both forward passes included; it has no rule for Flatten."""
    has_flatten = any(isinstance(module, nn.Flatten) for module in model.modules())
    if not isinstance(model, nn.Sequential) or has_flatten or version_of("captum") is None:
        return None
    from captum.attr import LRP

    return lambda: LRP(model).attribute(inputs.clone().requires_grad_(), target=0)


def compare(name: str, rounds: int) -> Row:
    """The processor time of each call, as a multiple of a forward and a backward pass."""
    model, inputs = make(name)
    plan = relevance.compile(model, inputs)
    calls: dict[str, Callable[[], Any] | None] = {
        UNIT: lambda: train(model, inputs),
        "attribute": lambda: attribute(model, inputs),
        "planned": lambda: plan(inputs),
        "zennit": with_zennit(model, inputs),
        "captum": with_captum(model, inputs),
    }
    times = {kind: taken for kind, (_, taken) in on_two_clocks({k: c for k, c in calls.items() if c is not None}, rounds).items()}
    unit = times.pop(UNIT)
    memory = {kind: peak_of(__file__, "--memory", name, kind) for kind in ("train", "attribute")}
    ratios = {kind: taken / unit for kind, taken in times.items()}
    return {"model": NAMES[name], UNIT: unit, **ratios, "peak memory": memory["attribute"] / memory["train"]}


def measure_memory(name: str, kind: str) -> None:
    pass_ = train if kind == "train" else attribute
    model, inputs = make(name)
    small = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Conv1d(1, 1, 1))  # what is loaded once is loaded before
    pass_(small, torch.randn(1, 1, 4))
    print(peak_beyond(lambda: pass_(model, inputs)))


class Steps(nn.Module):
    """x + 0.1 tanh x, so many times; x [B, C] -> the same."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.steps = steps

    def forward(self, x: Tensor) -> Tensor:
        """x [B, C] -> the same."""
        for _ in range(self.steps):
            x = x + 0.1 * torch.tanh(x)
        return x


class Scan(nn.Module):
    """h = a·h + (1 - a)·u, step by step; u [B, T, C] -> the last h [B, C]."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.gate = nn.Linear(channels, channels)

    def forward(self, u: Tensor) -> Tensor:
        """u [B, T, C] -> [B, C]."""
        a, h = torch.sigmoid(self.gate(u)), torch.zeros_like(u[:, 0])
        for step in range(u.shape[1]):
            h = a[:, step] * h + (1 - a[:, step]) * u[:, step]
        return h


def deep_graphs(quick: bool) -> list[Row]:
    """Processor time per node where tensors are tiny and Python decides, and where they are not."""
    short, long = (20, 40) if quick else (600, 8000)
    graphs = {
        f"scan, {short} steps, 16 x 512": (Scan(512), torch.randn(16, short, 512)),
        f"scan, {short} steps, 8 x 32": (Scan(32), torch.randn(8, short, 32)),
        f"x + 0.1 tanh x, {long // 4:,} times, 8 x 32": (Steps(long // 4), torch.randn(8, 32)),
        f"x + 0.1 tanh x, {long:,} times, 8 x 32": (Steps(long), torch.randn(8, 32)),
    }
    rows: list[Row] = []
    for name, (model, x) in graphs.items():
        nodes = len(relevance.attribute(model, x).report)
        calls = {"train": lambda m=model, x=x: train(m, x), "attribute": lambda m=model, x=x: attribute(m, x)}
        times = {kind: 1e3 * taken / nodes for kind, (_, taken) in on_two_clocks(calls, 1 if quick else 3).items()}
        ratio = times["attribute"] / times["train"]
        rows.append({"graph": name, "nodes": nodes, UNIT: times["train"], "attribute": times["attribute"], "ratio": ratio})
    return rows


def claims(rows: list[Row]) -> list[str]:
    """What was claimed and is not so."""
    return [
        f"{row['model']}: {what} {row[what]:.2f} times a forward and backward pass, at most {most} claimed"
        for row in rows
        for what, most in CLAIMS.items()
        if row[what] > most
    ]


def main(argv: list[str] | None = None) -> int:
    """Run the models and the deep graphs; 1 when one costs more than claimed."""
    parser = options_of(__doc__)
    parser.add_argument("--rounds", type=int, default=7, help="of which the median counts (default 7)")
    parser.add_argument("--only", choices=MODELS, help="one model")
    parser.add_argument("--deep", action="store_true", help="only the deep graphs")
    parser.add_argument("--memory", nargs=2, metavar=("MODEL", "PASS"), help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    if options.memory:
        measure_memory(*options.memory)
        return 0
    names = ["mlp"] if options.quick else [options.only] if options.only else list(MODELS)
    rows = []
    for name in [] if options.deep else names:
        progress(NAMES[name])
        rows.append(compare(name, 1 if options.quick else options.rounds))
    progress("deep graphs")
    times = dict.fromkeys(("attribute", "planned", "peak memory", "zennit", "captum"), "x")
    tables = [table("models", {"model": None, UNIT: "ms", **times}, rows)] if rows else []
    per_node = {"graph": None, "nodes": None, UNIT: "µs", "attribute": "µs", "ratio": "x"}
    tables.append(table("deep graphs", per_node, deep_graphs(options.quick)))
    packages = ["transformers", "zennit", "captum"]
    peers = [peer(name, name, "epsilon rule, forward pass included") for name in ("zennit", "captum")]
    settings = {"threads": 1, "dtype": "float32", "rounds": options.rounds}
    found = result(__doc__, "relevance", settings, tables, peers=peers, packages=packages, missed=claims(rows))
    return finish(found, options)


if __name__ == "__main__":
    sys.exit(main())
