"""Relevance of long texts: with blocks computed again, 2,048 tokens fit in 4 GiB on a CPU, and 8,192 on one GPU.

A decoder of SmolLM2's sizes (135 M weights, random: they cost what real ones cost) in plain torch, one text, float32, beside a
forward and a backward pass. `kept` is relevance that keeps all activations, as the backward pass does. Memory is the peak beyond
the model: on a GPU what torch allocated, on a CPU the process. Seconds on a CPU are those of the processor.

    lutetia bench relevance_long [--quick] [--json] [--save] [-- --tokens 2048 8192]
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lutetia import relevance
from relevance_survey import merged
from results import Row, finish, options_of, progress, result, table

WIDTH, HEADS, GROUPS, HIDDEN, LAYERS, VOCABULARY = 576, 9, 3, 1536, 30, 49152
GIB = 2**30
MOST_KEPT = 1024  # tokens whose activations are kept on a CPU: more would not fit on a small machine


class Block(nn.Module):
    """One layer: attention of grouped heads with rotary positions, then a gated feed-forward; x [B, S, WIDTH] -> the same."""

    def __init__(self) -> None:
        super().__init__()
        d = WIDTH // HEADS
        self.norm, self.second_norm = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.q = nn.Linear(WIDTH, HEADS * d, bias=False)
        self.kv = nn.Linear(WIDTH, 2 * GROUPS * d, bias=False)
        self.out = nn.Linear(HEADS * d, WIDTH, bias=False)
        self.gate, self.up = nn.Linear(WIDTH, HIDDEN, bias=False), nn.Linear(WIDTH, HIDDEN, bias=False)
        self.down = nn.Linear(HIDDEN, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """x [B, S, WIDTH] -> the same."""
        batch, length, _ = x.shape
        h = self.norm(x)
        q = turned(self.q(h).view(batch, length, HEADS, -1).transpose(1, 2))
        k, v = self.kv(h).view(batch, length, 2 * GROUPS, -1).transpose(1, 2).chunk(2, 1)
        mixed = F.scaled_dot_product_attention(q, turned(k), v, is_causal=True, enable_gqa=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        h = self.second_norm(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


def turned(x: Tensor) -> Tensor:
    """Rotary positions: x [B, H, S, d] -> the same."""
    length, half = x.shape[2], x.shape[3] // 2
    rates = 10000.0 ** (-torch.arange(half, device=x.device) / half)
    angles = torch.arange(length, device=x.device)[:, None] * rates
    a, b = x.split(half, -1)
    return torch.cat([a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()], -1)


class Decoder(nn.Module):
    """tokens [B, S] -> the scores of the next token [B, VOCABULARY]."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Block() for _ in range(layers))
        self.norm = nn.RMSNorm(WIDTH)

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens [B, S] -> [B, VOCABULARY]."""
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return F.linear(self.norm(x[:, -1]), self.embedding.weight)


def peak(run: Callable[[], object], device: torch.device) -> tuple[float, float]:
    """Seconds that a call takes, and GiB that it reaches beyond what was there before."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    clock = time.perf_counter if device.type == "cuda" else time.process_time
    before, began = highest(device), clock()
    run()
    most = highest(device)
    return clock() - began, (most - before) / GIB


def highest(device: torch.device) -> int:
    """The most bytes so far, once the device has finished: of tensors on a GPU, of the process on a CPU."""
    if device.type == "cuda":
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated()
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def measure(model: Decoder, length: int, device: torch.device) -> Row:
    """Time and memory for one text: recomputed relevance first, since a process's peak only rises."""
    tokens = torch.randint(0, VOCABULARY, (1, length), device=device)
    shares: list[float] = []

    def explained(recompute: bool = True) -> None:
        r = relevance.attribute(model, tokens, recompute=recompute)
        absorbed = float(r.seed.sum()) - float(r[tokens].sum())
        shares.append(abs(absorbed / float(r.seed.sum())))

    def trained() -> None:
        model(tokens).max().backward()
        model.zero_grad()

    for recompute in (True, False):  # the first call loads kernels
        relevance.attribute(model, tokens[:, :64], recompute=recompute)
    model(tokens[:, :64]).max().backward()
    seconds, memory = peak(explained, device)
    fits = length <= MOST_KEPT
    kept_seconds = peak(lambda: explained(False), device)[0] if fits else None
    plain_seconds, plain_memory = peak(trained, device) if fits or device.type == "cuda" else (None, None)
    threads = f"{torch.get_num_threads()} CPU threads".replace("1 CPU threads", "one CPU thread")
    return {
        "device": torch.cuda.get_device_name() if device.type == "cuda" else threads,
        "tokens": length,
        "relevance": seconds,
        "kept": kept_seconds,
        "forward and backward": plain_seconds,
        "ratio": None if plain_seconds is None else seconds / plain_seconds,
        "ratio, kept": None if kept_seconds is None or plain_seconds is None else kept_seconds / plain_seconds,
        "memory": memory,
        "memory of backward": plain_memory if device.type == "cuda" else None,
        "not conserved": shares[0],
    }


def main(argv: list[str] | None = None) -> int:
    """Measure each length."""
    parser = options_of(__doc__)
    parser.add_argument("--tokens", type=int, nargs="+", help="lengths (default 2048, on a GPU 2048 and 8192)")
    options = parser.parse_args(argv)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    lengths = options.tokens or ([32] if options.quick else [2048, 8192] if device.type == "cuda" else [2048])
    model = Decoder(2 if options.quick else LAYERS).to(device).eval()
    rows = []
    for length in lengths:
        progress(f"{length} tokens")
        rows.append(measure(model, length, device))
    columns = {
        "device": None, "tokens": None, "relevance": "s", "kept": "s", "forward and backward": "s", "ratio": "x",
        "ratio, kept": "x", "memory": "GiB", "memory of backward": "GiB", "not conserved": None,
    }  # fmt: skip
    settings = {"weights": sum(parameter.numel() for parameter in model.parameters()), "layers": len(model.layers)}
    found = result(__doc__, "relevance_long", settings, [table("lengths", columns, rows)])
    if options.save is not None and options.save.exists() and not options.quick:  # which has other devices and lengths
        found = merged(found, options.save, "lengths", ["device", "tokens"])
    return finish(found, options)


if __name__ == "__main__":
    sys.exit(main())
