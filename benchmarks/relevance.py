"""What relevance costs beside a full backward pass: fresh, planned, in memory; zennit and captum beside it where they run.

    python benchmarks/relevance.py [--rounds 7] [--only bert] [--chains]

One thread, float32. A full backward is the gradient of every parameter and the input, on a graph that is there already; *fresh*
is `relevance.explain` on that graph; *planned* is a call of a plan, less the forward pass in it. Each number is the fastest of
some rounds, taken in turn, and only ratios of one run mean anything. Memory is what a process of its own reaches beyond its
model (Linux only).
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import time
import types
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
import torch
from torch import Tensor, nn

from lutetia import relevance

EPS = 1e-6


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


MODELS = {"mlp": mlp, "vgg": vgg, "bert": bert, "gpt2": gpt2}


def make(name: str) -> tuple[nn.Module, Any]:
    torch.manual_seed(0)
    model, inputs = MODELS[name]()
    return model.eval(), inputs


def run(model: nn.Module, inputs: Any) -> tuple[Tensor, Any]:
    """The output, and the leaves or tokens that relevance is asked for."""
    if isinstance(inputs, dict):
        return model(**inputs).logits, list(inputs.values())
    leaf = inputs.detach().requires_grad_()
    return model(leaf), [leaf]


def backward(model: nn.Module, inputs: Any) -> float:
    output, _ = run(model, inputs)
    seed = torch.ones_like(output)
    started = time.perf_counter()
    output.backward(seed)
    taken = time.perf_counter() - started
    model.zero_grad()
    return taken


def fresh(model: nn.Module, inputs: Any) -> float:
    output, wanted = run(model, inputs)
    started = time.perf_counter()
    relevance.explain(output, wrt=wanted)
    return time.perf_counter() - started


def planner(model: nn.Module, inputs: Any) -> Callable[[], float]:
    plan = relevance.compile(model, inputs)

    def planned() -> float:
        started = time.perf_counter()
        run(model, inputs)
        forward = time.perf_counter() - started
        started = time.perf_counter()
        plan(inputs)
        return time.perf_counter() - started - forward

    return planned


def with_zennit(model: nn.Module, inputs: Any) -> Callable[[], float] | None:
    """zennit's epsilon rule, forward pass included: it changes the modules as they run."""
    if isinstance(inputs, dict):
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

    def call() -> float:
        started = time.perf_counter()
        with Gradient(model, composite) as attributor:
            attributor(inputs.clone().requires_grad_(), lambda output: torch.ones_like(output))
        return time.perf_counter() - started

    return call


def with_captum(model: nn.Module, inputs: Any) -> Callable[[], float] | None:
    """captum's LRP with its epsilon rule, both forward passes included; it has no rule for Flatten."""
    if isinstance(inputs, dict) or any(isinstance(module, nn.Flatten) for module in model.modules()):
        return None
    from captum.attr import LRP

    def call() -> float:
        started = time.perf_counter()
        LRP(model).attribute(inputs.clone().requires_grad_(), target=0)
        return time.perf_counter() - started

    return call


def attribute(model: nn.Module, inputs: Any) -> float:
    started = time.perf_counter()
    relevance.attribute(model, inputs)
    return time.perf_counter() - started


def compare(name: str, rounds: int) -> None:
    model, inputs = make(name)
    calls: dict[str, Callable[[], float] | None] = {
        "backward": lambda: backward(model, inputs),
        "fresh": lambda: fresh(model, inputs),
        "planned": planner(model, inputs),
        "attribute": lambda: attribute(model, inputs),
        "zennit": with_zennit(model, inputs),
        "captum": with_captum(model, inputs),
    }
    best: dict[str, float] = {}
    for _ in range(rounds):
        for kind, call in calls.items():
            if call is not None:
                best[kind] = min(best.get(kind, float("inf")), call())
    unit = best["backward"]
    memory = {kind: peak(name, kind) for kind in ("backward", "fresh")}
    line = (
        f"{name:>5}: backward {unit * 1e3:7.1f} ms · fresh {best['fresh'] / unit:4.2f}x · planned {best['planned'] / unit:4.2f}x"
    )
    line += f" · peak memory {memory['fresh'] / memory['backward']:4.2f}x of {memory['backward']:.0f} MiB"
    line += f" · with the forward pass: attribute {best['attribute'] / unit:4.2f}x"
    for peer in ("zennit", "captum"):
        if peer in best:
            line += f", {peer} {version(peer)} {best[peer] / unit:4.2f}x"
    print(line, flush=True)


def peak(name: str, kind: str) -> float:
    """What a process of its own needs for one pass beyond its model, in MiB."""
    command = [sys.executable, __file__, "--memory", name, kind]
    # Large blocks go back at once, so that what was freed does not count.
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
    return float(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.split()[-1])


def measure_memory(name: str, kind: str) -> None:
    pass_ = backward if kind == "backward" else fresh
    model, inputs = make(name)
    small = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Conv1d(1, 1, 1))  # what is loaded once is loaded before
    pass_(small, torch.randn(1, 1, 4))
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts anew
    before = status("VmRSS")
    pass_(model, inputs)
    print((status("VmHWM") - before) / 1024)


def status(name: str) -> int:
    """A number of this process, in KiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name))


def chains() -> None:
    """Time per node of chains with a promise at each third node: it should not grow with the length."""
    for length in (1000, 3000, 10000):
        x = torch.randn(8, requires_grad=True)
        y = x
        for _ in range(length // 3):
            y = (y * 1.01 + x).tanh()
        taken = []
        for _ in range(3):
            started = time.perf_counter()
            r = relevance.explain(y, torch.ones(8))
            taken.append(time.perf_counter() - started)
        print(
            f"{len(r.report):6d} nodes: {min(taken) * 1e3:7.1f} ms, {min(taken) / len(r.report) * 1e6:5.1f} µs a node", flush=True
        )


def main(argv: list[str] | None = None) -> int:
    """Run the models and the chains, print ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", choices=MODELS)
    parser.add_argument("--chains", action="store_true", help="only the chains of 1,000, 3,000 and 10,000 nodes")
    parser.add_argument("--memory", nargs=2, metavar=("MODEL", "PASS"), help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    if options.memory:
        measure_memory(*options.memory)
        return 0
    print(f"{platform.processor() or platform.machine()}, one thread, torch {torch.__version__}")
    if not options.chains:
        for name in [options.only] if options.only else MODELS:
            compare(name, options.rounds)
    chains()
    return 0


if __name__ == "__main__":
    sys.exit(main())
