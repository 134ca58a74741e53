"""MNIST from training to gates: a network of one-bit tables, trained, checked sample by sample, simulated and synthesised.

    python examples/mnist_gates.py DATA --out gates

DATA holds the four files of MNIST as they are published (.gz). Some 25 minutes on two CPU cores:
twelve epochs take 20, yosys takes 5.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor

from lutetia.precompute import Votes

CHOICE_EVERY = 4  # the choice of inputs costs most and needs the fewest steps


def read(folder: Path, name: str, header: int) -> np.ndarray:
    """The bytes of one file behind its header."""
    return np.frombuffer(gzip.decompress((folder / f"{name}-ubyte.gz").read_bytes()), np.uint8, offset=header)


def split(folder: Path, name: str) -> tuple[Tensor, Tensor]:
    """Images [n, 28, 28] and labels [n]."""
    images = read(folder, f"{name}-images-idx3", 16).reshape(-1, 28, 28)
    return torch.from_numpy(images.copy()), torch.from_numpy(read(folder, f"{name}-labels-idx1", 8).astype(np.int64))


def train(model: Votes, images: Tensor, labels: Tensor, epochs: int, batch: int = 256) -> None:
    """Cross-entropy of the counts, Adam, a cosine; images are shifted by up to one pixel."""
    tables = torch.optim.Adam([model.weight], lr=1e-2, betas=(0.9, 0.99))
    choice = torch.optim.Adam([model.choice], lr=2e-2, betas=(0.9, 0.99))
    steps = epochs * (len(images) // batch)
    for step in range(steps):
        if step % (len(images) // batch) == 0:
            order = torch.randperm(len(images))
        rate = 0.5 * (1 + math.cos(math.pi * step / steps)) + 0.005
        learn_choice = step % CHOICE_EVERY == 0
        model.choice.requires_grad_(learn_choice)
        for optimizer, base in ((tables, 1e-2), (choice, 2e-2)):
            optimizer.param_groups[0]["lr"] = base * rate
            optimizer.zero_grad()
        at = step % (len(images) // batch) * batch
        own = order[at : at + batch]
        shift = torch.randint(-1, 2, (2,)).tolist()
        loss = F.cross_entropy(model(torch.roll(images[own], shift, (1, 2))), labels[own])
        loss.backward()
        tables.step()
        if learn_choice:
            choice.step()
        model.clamp_()
        if step % 100 == 99:
            print(f"step {step + 1} of {steps}, loss {loss.item():.4f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("out/gates"))
    parser.add_argument("--tables", type=int, default=2000)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--weights", type=Path, help="use these weights (.safetensors) in place of training")
    parser.add_argument("--simulate", type=int, default=1000, help="test images that go through the simulator")
    given = parser.parse_args()
    torch.manual_seed(0)
    model = Votes(784, 10, given.tables, shape=(28, 28), seed=0)
    test, wanted = split(given.data, "t10k")
    if given.weights is None:
        train(model, *split(given.data, "train"), given.epochs)
        given.out.parent.mkdir(parents=True, exist_ok=True)
        save_file(model.state_dict(), given.out.with_suffix(".safetensors"))
    else:
        model.load_state_dict(load_file(given.weights))
    report = {"test_images": len(test)}
    with torch.no_grad():
        scores = torch.cat([model(part) for part in test.split(1000)])
    report["float_accuracy"] = (scores.argmax(1) == wanted).double().mean().item()
    net = model.graph()
    x = test.flatten(1).long()
    answers = net(x)[:, 0]
    report["integer_accuracy"] = (answers == wanted).double().mean().item()
    report["integer_and_float_agree"] = (answers == scores.argmax(1)).double().mean().item()
    print(json.dumps(report, indent=2), flush=True)
    hardware = net.emit("verilog")
    hardware.save(given.out)
    simulated = hardware.simulate(x[: given.simulate])  # raises where one differs
    report["simulated_equal"] = len(simulated)
    print(f"{len(simulated)} images through the simulator, all equal", flush=True)
    made = hardware.synthesize("lut6")
    report["synthesis"] = made.to_dict()
    print(made)
    given.out.with_suffix(".json").write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
