"""Two small byte-level language models, trained on the source of Python's standard library, and the text they generate."""

from __future__ import annotations

import copy
import time
from typing import Any

from lutetia import models, training
from lutetia.demo import attend
from lutetia.demo.learn import metric, trained
from lutetia.demo.telling import Context, Told
from lutetia.models import LUTTransformer, SoftmaxAttention
from lutetia.report import CellTable, Curve, PartFlow, Training, Writing

STEPS = 600  # half a minute on two cores: enough for words and indentation, not for meaning
NGRAMS: dict[str, Any] = {"ngrams": [2, 3, 4], "ngram_word": True, "ngram_rows": 8192, "ngram_width": 32}
PLAIN = 8  # bytes also generated without the cache, for comparison
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
    "train": {"batch_size": 12, "steps": STEPS, "clip": 1.0, "eval_every": 50, "eval_batches": 10, "log_every": 10},
    "checkpoint": {"every": 5000, "keep": 1},
}  # fmt: skip


def tell(context: Context) -> Told:
    """Tables everywhere: LUT attention and LUT feed-forward."""
    model, summary = _trained(context, "text", "A language model made of tables", CONFIG)
    text, cached, plain = _write(model)
    context.writer = model
    pace = {"bytes per second": f"{1 / cached:.0f}"}
    context.wrote.append(Writing("LUT attention, with its index cache", PROMPT, text, pace))
    rows = [("with the index cache", f"{cached * 1e3:.2f}", "1.0x"),
            ("recomputing the context for each byte", f"{plain * 1e3:.2f}", f"{plain / cached:.1f}x")]  # fmt: skip
    note = f"Measured on this machine, one text at a time. The second row is the mean of the last {PLAIN} bytes."
    context.speed.append(CellTable(("how", "ms per byte", "relative time"), rows, note, "Generating text"))
    bits = summary["valid"]["bits_per_byte"]
    context.figures["per byte of unseen Python; guessing takes 8"] = f"{bits:.2f} bits"
    return Told(
        f"a language model made of tables needs {bits:.2f} bits per byte of unseen Python (guessing takes 8); it wrote:",
        (context.out / "text" / "loss.png",),
        PROMPT + text,
    )


def tell_softmax(context: Context) -> Told:
    """Softmax attention and n-gram tables; decoding steps run on two simulated cores."""
    from lutetia.flow import record

    config = copy.deepcopy(CONFIG)
    config["model"] |= {"attention": "softmax", "n_kv_heads": 2, **NGRAMS}
    model, summary = _trained(context, "softmax", "The same with softmax attention and n-gram tables", config)
    alone = model.generate(PROMPT, 40, temperature=0.0)
    for block in model.modules():
        if isinstance(block, SoftmaxAttention):
            block.cores, block.shard = 2, "sequence"  # each core holds half of the bytes read so far
    together = model.generate(PROMPT, 40, temperature=0.0)
    with record() as recorded:
        model.generate(PROMPT, 2, temperature=0.0)  # the first byte comes from the prompt, the second is decoded
    messages = sum(int(step.attributes.get("messages") or 0) for step in recorded.steps)
    about = "Generating one byte with decode attention. Each core has its own lane."
    context.flows.append(PartFlow("One byte on two cores", recorded, about))
    context.wrote.append(Writing("Softmax attention on two cores", PROMPT, together, {"messages per byte": str(messages)}))
    context.speed.append(attend.compare())
    bits = summary["valid"]["bits_per_byte"]
    same = "the same text as one core" if together == alone else "a text that differs from one core's by rounding"
    return Told(
        f"with softmax attention and n-gram tables ({bits:.2f} bits per byte) two cores share each byte, "
        f"with {messages} messages per byte, and write {same}:",
        files=(context.out / "softmax" / "loss.png",),
        text=PROMPT + together,
    )


def _trained(context: Context, name: str, title: str, config: dict[str, Any]) -> tuple[LUTTransformer, dict[str, Any]]:
    folder = context.out / name
    context.say("training on the standard library")
    summary = trained(training.make_config(config, "the demo's text"), folder)
    model: Any = models.load(folder).eval()
    weights = sum(parameter.numel() for parameter in model.parameters())
    facts = {"weights": f"{weights:,}", "training steps": f"{summary['step']:,}", "training took": f"{summary['seconds']:.0f} s"}
    said = f"{summary['valid']['bits_per_byte']:.2f} bits per byte of source code it has not seen; guessing takes 8."
    curves = [
        Curve(name, *metric(folder, kind, "bits_per_byte")) for kind, name in (("train", "training"), ("valid", "validation"))
    ]
    context.trained.append(Training(title, curves, said, facts, unit="bits per byte"))
    return model, summary


def _write(model: LUTTransformer) -> tuple[str, float, float]:
    """A text, the seconds per byte with the cache, and the seconds per byte of the last few without it."""
    how: dict[str, Any] = {"temperature": 0.7, "top_k": 40, "seed": 1}
    room = model.config.context - len(PROMPT)
    model.generate(PROMPT, 2, **how)  # the first call compiles
    begun = time.perf_counter()
    text = model.generate(PROMPT, room, **how)
    cached = (time.perf_counter() - begun) / room
    begun = time.perf_counter()
    for end in range(len(PROMPT) + room - PLAIN, len(PROMPT) + room):
        model.generate((PROMPT + text).encode()[:end], 1, **how)
    return text, cached, (time.perf_counter() - begun) / PLAIN
