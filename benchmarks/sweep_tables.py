"""In a short run, tables on the whole width learn more than those of heads, and than a dense feed-forward, in the same time.

Small language models of two blocks that differ in their feed-forward alone: how rows are read, how many tables and anchors,
bfloat16 tables (whose steps are rounded, too). A few steps of each are timed, in turns, on one thread; then each takes as many as
fit into the same seconds. Bits per byte of held-out text. The text is the source of Python's standard library, or that of
`--text FILE`.

    lutetia bench sweep_tables [--quick] [--json] [--save] [-- --seconds 25 --text FILE]
"""

from __future__ import annotations

import math
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lutetia.models import LUTTransformer
from lutetia.nn import LUT
from lutetia.training import DataConfig, open_data
from results import Row, finish, options_of, progress, result, table

WIDTH, CONTEXT, BATCH, BLOCKS, VALID = 128, 128, 16, 2, 50_000
SIZES: dict[str, Any] = {"context": CONTEXT, "width": WIDTH, "n_layers": BLOCKS, "n_heads": 4, "attention": "softmax", "seed": 0}
HEADS: dict[str, Any] = {"ff_heads": 4, "ff_head_width": 32, "ff_detectors": 16, "ff_anchors": 6, "read": "confidence2"}
BASE: dict[str, Any] = {"feed_forward": "projected", **HEADS}
WHOLE = "on the whole width"  # 64 tables
CHANGES: dict[str, dict[str, Any]] = {
    "base": {},
    **{f"read {read}": {"read": read} for read in ("hard", "blend", "confidence")},
    **{f"{n} tables a head": {"ff_detectors": n} for n in (4, 32)},
    **{f"{n} anchors": {"ff_anchors": n} for n in (4, 8)},
    "bfloat16 tables": {"dtype": torch.bfloat16},
    WHOLE: {"feed_forward": "lut", "ff_detectors": 64},
    "dense": {"feed_forward": "dense"},
    "none": {"feed_forward": "none"},
}
RATE, REST = 3e-3, 2e-3  # of tables, of the rest
ROUNDS, TIMED = 2, 3


def model_of(change: dict[str, Any]) -> LUTTransformer:
    options = {**BASE, **change}
    dtype = options.pop("dtype", None)
    torch.manual_seed(0)
    model = LUTTransformer(**SIZES, **options)
    if dtype is not None:
        for module in model.modules():
            if isinstance(module, LUT):
                module.weight.data = module.weight.data.to(dtype)
    return model


class Run:
    """One model, its optimiser and its batches."""

    def __init__(self, change: dict[str, Any], text: Tensor) -> None:
        self.model, self.text = model_of(change), text
        self.draw = torch.Generator().manual_seed(1)
        tables = [module.weight for module in self.model.modules() if isinstance(module, LUT)]
        others = [each for each in self.model.parameters() if not any(each is own for own in tables)]
        groups = [{"params": others, "lr": REST}, *([{"params": tables, "lr": RATE, "weight_decay": 0.0}] if tables else [])]
        self.optimizer = torch.optim.AdamW(groups, weight_decay=0.1)
        self.peaks = [group["lr"] for group in groups]

    def steps(self, first: int, count: int, total: int) -> float:
        """Take some steps of a cosine over `total`; the processor seconds of each."""
        begun = time.process_time()
        for step in range(first, first + count):
            factor = min(1.0, (step + 1) / (0.1 * total)) * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * step / total)))
            for group, peak in zip(self.optimizer.param_groups, self.peaks, strict=True):
                group["lr"] = peak * factor
            starts = torch.randint(len(self.text) - CONTEXT, (BATCH,), generator=self.draw)
            window = self.text[starts[:, None] + torch.arange(CONTEXT + 1)].long()
            self.model.loss(window[:, :-1], window[:, 1:]).backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.optimizer.zero_grad()
        return (time.process_time() - begun) / count

    @torch.no_grad()
    def bits(self, text: Tensor) -> float:
        """Bits per byte of a text, in windows."""
        n = (len(text) - 1) // CONTEXT
        x, y = (text[at : at + n * CONTEXT].long().view(n, CONTEXT) for at in (0, 1))
        self.model.eval()
        losses = [float(self.model.loss(*part)) * len(part[0]) for part in zip(x.split(64), y.split(64), strict=True)]
        return sum(losses) / n / math.log(2)


def main(argv: list[str] | None = None) -> int:
    """Train all; 1 when another one is better."""
    parser = options_of(__doc__)
    parser.add_argument("--seconds", type=float, default=25.0, help="of processor time, of each run (default 25)")
    parser.add_argument("--text", type=Path, help="a text to learn from")
    options = parser.parse_args(argv)
    seconds = 0.1 if options.quick else options.seconds
    torch.set_num_threads(1)
    data = {"kind": "stdlib"} if options.text is None else {"kind": "bytes", "path": str(options.text.resolve())}
    splits: Any = open_data(DataConfig(**data, valid=VALID), Path()).splits
    train, valid = (torch.from_numpy(np.array(splits[name].bytes)) for name in ("train", "valid"))
    valid = valid[:2000] if options.quick else valid
    times: dict[str, float] = dict.fromkeys(CHANGES, math.inf)
    for _ in range(1 if options.quick else ROUNDS):
        for name, change in CHANGES.items():
            progress(f"timing {name}")
            run = Run(change, train)
            run.steps(0, 1, 100)  # compiles, and makes what the optimiser remembers
            times[name] = min(times[name], run.steps(1, TIMED, 100))
    rows: list[Row] = []
    for name, change in CHANGES.items():
        steps = max(1, round(seconds / times[name]))
        progress(f"{name}, {steps} steps")
        run = Run(change, train)
        run.steps(0, steps, steps)
        row = {"feed-forward": name, "weights": sum(each.numel() for each in run.model.parameters()), "steps": steps}
        rows.append({**row, "time of a step": 1e3 * times[name], "bits per byte": run.bits(valid)})
        progress(f"{rows[-1]['bits per byte']:.4f} bits per byte")
    sizes = {"width": WIDTH, "blocks": BLOCKS, "context": CONTEXT, "bytes per step": BATCH * CONTEXT}
    text = options.text.name if options.text else "stdlib"
    settings = {"base": HEADS, **sizes, "seconds": seconds, "time": "of the processor, one thread", "text": text, "seeds": 1}
    units = {"time of a step": "ms", "bits per byte": "bits/byte"}
    columns: dict[str, str | None] = {"feed-forward": None, "weights": None, "steps": None, **units}
    best = min(rows, key=lambda row: row["bits per byte"])
    missed = [] if best["feed-forward"] == WHOLE else [f"{best['feed-forward']} has the lowest loss, {WHOLE} claimed"]
    return finish(result(__doc__, "sweep_tables", settings, [table("models", columns, rows)], missed=missed), options)


if __name__ == "__main__":
    sys.exit(main())
