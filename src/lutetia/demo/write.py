"""Two small language models of bytes that read the source of Python's standard library, and what they write after that."""

from __future__ import annotations

import copy
import time
from typing import Any

from lutetia import models, training
from lutetia.demo.learn import curves, trained
from lutetia.demo.telling import Context, Told
from lutetia.models import LUTTransformer
from lutetia.models.softmax_attention import SoftmaxAttention
from lutetia.report import PartFlow, Table, Training, Writing

MINUTES = 0.5  # of training for each model: enough for words and indentation, not for sense
PLAIN = 8  # bytes that are written without the cache too, for comparison
PROMPT = "    def __init__(self"
CONFIG: dict[str, Any] = {
    "model": {
        "kind": "transformer", "context": 96, "width": 64, "n_layers": 1, "seed": 0,
        "attention": "lut", "n_heads": 4, "n_detectors": 4, "n_anchors": 3, "positional_dim": 3,
        "feed_forward": "lut", "ff_detectors": 64, "ff_anchors": 6, "read": "confidence2",
    },
    "data": {"kind": "stdlib", "valid": 40_000},
    "optimizer": {"tables": {"kind": "adamw", "lr": 3e-3}, "rest": {"kind": "adamw", "lr": 1e-2, "weight_decay": 0.01}},
    "schedule": {"kind": "cosine", "warmup": 0.05, "floor": 0.1},
    "train": {"batch_size": 12, "minutes": MINUTES, "clip": 1.0, "eval_every": 200, "eval_batches": 20, "log_every": 10},
    "checkpoint": {"every": 5000, "keep": 1},
}  # fmt: skip


def tell(context: Context) -> Told:
    """Tables everywhere: LUT attention and LUT feed-forward."""
    model, summary = _trained(context, "text", "A language model of tables", CONFIG)
    text, cached, plain = _write(model)
    context.writer, context.line = model, PROMPT + text
    pace = {"bytes per second": f"{1 / cached:.0f}"}
    context.wrote.append(Writing("LUT attention, from its index cache", PROMPT, text, pace))
    rows = [("from the index cache", f"{cached * 1e3:.2f}", "1.0x"),
            ("computing the context anew", f"{plain * 1e3:.2f}", f"{plain / cached:.1f}x")]  # fmt: skip
    context.speed.append(
        Table(("way", "ms per byte", "time"), rows, f"The second for the last {PLAIN} bytes alone.", "Writing at batch 1")
    )
    bits = summary["valid"]["bits_per_byte"]
    context.figures["bits per byte of unseen Python"] = f"{bits:.2f}"
    return Told(
        f"a language model of tables read Python for {summary['seconds']:.0f} s ({bits:.2f} bits per unseen byte) and wrote "
        f"{len(text)} letters from its index cache, {plain / cached:.1f} times as fast as without:",
        (context.out / "text" / "loss.png",),
        PROMPT + text,
    )


def tell_softmax(context: Context) -> Told:
    """Softmax attention, whose steps of decoding run on the two cores of the core model."""
    from lutetia.flow import record

    config = copy.deepcopy(CONFIG)
    config["model"] |= {"attention": "softmax", "n_kv_heads": 2}
    model, summary = _trained(context, "softmax", "Softmax attention, tables in the feed-forward", config)
    alone = model.generate(PROMPT, 40, temperature=0.0)
    for block in model.modules():
        if isinstance(block, SoftmaxAttention):
            block.cores, block.shard = 2, "sequence"  # each core holds half of the bytes read so far
    together = model.generate(PROMPT, 40, temperature=0.0)
    with record() as recorded:
        model.generate(PROMPT, 2, temperature=0.0)  # the first byte comes of the prompt itself, the second is decoded
    messages = sum(int(step.attributes.get("messages") or 0) for step in recorded.steps)
    context.flows.append(PartFlow("One byte through decode attention on two cores", recorded, "Each core is a lane of its own."))
    context.wrote.append(Writing("Softmax attention over two cores", PROMPT, together, {"cores": "2"}))
    bits = summary["valid"]["bits_per_byte"]
    same = "the same text as on one" if together == alone else "a text that parts from that on one by a rounding"
    return Told(
        f"with softmax attention instead ({bits:.2f} bits per byte) each byte was decoded on two cores, "
        f"{messages} messages a byte, {same}:",
        text=PROMPT + together,
    )


def _trained(context: Context, name: str, title: str, config: dict[str, Any]) -> tuple[LUTTransformer, dict[str, Any]]:
    folder = context.out / name
    context.say("reading the standard library")
    summary = trained(training.make_config(config, "the demo's text"), folder)
    model: Any = models.load(folder)
    weights = sum(parameter.numel() for parameter in model.parameters())
    facts = {"weights": f"{weights:,}", "steps": f"{summary['step']:,}", "training took": f"{summary['seconds']:.0f} s"}
    said = f"{summary['valid']['bits_per_byte']:.2f} bits per byte of source that it had not seen; 8 would be knowing nothing."
    context.trained.append(Training(title, curves(folder), said, facts))
    return model, summary


def _write(model: LUTTransformer) -> tuple[str, float, float]:
    """A text, the seconds that each byte took, and those it takes when the last few compute their context anew."""
    how: dict[str, Any] = {"temperature": 0.7, "top_k": 40, "seed": 1}
    room = model.config.context - len(PROMPT)
    model.generate(PROMPT, 2, **how)  # compiles, on a machine that has never written before
    begun = time.perf_counter()
    text = model.generate(PROMPT, room, **how)
    cached = (time.perf_counter() - begun) / room
    begun = time.perf_counter()
    for end in range(len(PROMPT) + room - PLAIN, len(PROMPT) + room):
        model.generate((PROMPT + text).encode()[:end], 1, **how)
    return text, cached, (time.perf_counter() - begun) / PLAIN
