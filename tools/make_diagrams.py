"""Draw the diagrams of docs/notes/lut-flow.md from real runs, as files in docs/diagrams.

Usage: python tools/make_diagrams.py

A page links to the file of a diagram, and the site shows the diagram in place of the link (tools/site_hooks.py).
Run this after a change to what a kernel reports; a test compares the files with what would be drawn now.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
from torch import Tensor

from lutetia import flow
from lutetia.lut import lut, lut_attention, random_anchors, use_backend

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "diagrams"

# All different, and none of them 2 (a pair of anchors), so that each size in a picture has one name.
SIZES = {"B": 6, "I": 11, "O": 7, "N_t": 5, "N_c": 3, "R": 2**3}
SEQUENCE = SIZES | {"S": 13, "S-1": 12, "N_pe": 4, "C": 2**7, "R": 2**10}


def main() -> int:
    for name, drawn in diagrams().items():
        path = FOLDER / f"{name}.mmd"
        part = path.with_name(f".{path.name}.part")
        try:
            part.write_text(drawn, encoding="utf-8")
            os.replace(part, path)
        finally:
            part.unlink(missing_ok=True)
    return 0


def diagrams() -> dict[str, str]:
    """Every diagram by name, as Mermaid text."""
    forward, backward = training_step()
    drawn = {
        "forward-fc": forward.mermaid(symbols=SIZES),
        "backward-fc": backward.mermaid("LR", symbols=SIZES),  # many inputs: too wide to read from above
    }
    forward, _ = attention_step("cells")
    firings = {tensor.name: tensor.shape[0] for step in forward.steps for tensor in step.outputs if "firing" in tensor.name}
    drawn["forward-seq-cells"] = forward.mermaid(symbols=SEQUENCE | {"n_firings": firings["firing_counts"]})
    drawn["backward-seq-pairs"] = attention_step("pairs")[1].mermaid("LR", symbols=SEQUENCE)
    return drawn


def training_step() -> tuple[flow.Flow, flow.Flow]:
    """One forward and one backward pass, on the backend whose every kernel is a step of its own."""
    x, weight, anchors = tensors()
    x.requires_grad_()
    weight.requires_grad_()
    with use_backend("reference"):
        with flow.record() as forward:
            y = lut(x, weight, anchors)
        grad = torch.ones_like(y)  # as it is, so that both backward kernels read this very tensor
        with flow.record() as backward:
            y.backward(grad)
    return forward, backward


def attention_step(algorithm: str) -> tuple[flow.Flow, flow.Flow]:
    """The same of a LUT attention."""
    sizes, generator = SEQUENCE, torch.Generator().manual_seed(0)
    x = torch.randn(sizes["B"], sizes["S"], sizes["I"], generator=generator, requires_grad=True)
    weight = torch.zeros(sizes["N_t"], sizes["R"], sizes["O"], requires_grad=True)
    positions = torch.randn(sizes["S-1"], sizes["N_t"], sizes["N_pe"], generator=generator, requires_grad=True)
    anchors = random_anchors(sizes["I"], sizes["N_t"], sizes["N_c"], seed=0)
    with use_backend("reference"):
        with flow.record() as forward:
            y = lut_attention(x, weight, anchors, positions, algorithm=algorithm)
        grad = torch.ones_like(y)
        with flow.record() as backward:
            y.backward(grad)
    return forward, backward


def tensors() -> tuple[Tensor, Tensor, Tensor]:
    """x [B, I]; weight [N_t, R, O]; anchors [N_t, N_c, 2]."""
    anchors = random_anchors(SIZES["I"], SIZES["N_t"], SIZES["N_c"], seed=0)
    return torch.zeros(SIZES["B"], SIZES["I"]), torch.zeros(SIZES["N_t"], SIZES["R"], SIZES["O"]), anchors


if __name__ == "__main__":
    sys.exit(main())
