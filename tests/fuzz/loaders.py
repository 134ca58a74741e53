"""Every loader of a file, each with files that are whole and with what is done to what it has loaded.

A `Loader` makes its whole files in a folder, names those that are damaged, and uses them. Any outcome is right but an error that
is not Lutetia's, a crash, a hang, or memory beyond what the files explain. Files with checksums are signed again after the
damage, or nothing behind the checksums would ever be reached.
"""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import json
import math
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from loaders_foreign import (
    make_decoder,
    make_onnx,
    make_pooling,
    make_samples,
    make_spreadsheet,
    make_trees,
    use_all,
    use_decoder,
    use_onnx,
    use_pooling,
    use_table_file,
    use_trees,
)

from lutetia import flow, models, toml
from lutetia._shared import folders
from lutetia.cli import bench, board, build_data, evaluate, inputs, values
from lutetia.lut import Synapses, growth
from lutetia.models.building import KINDS
from lutetia.models.signal_shapes import SignalShape
from lutetia.models.texts import data_columns, text_columns, text_inputs
from lutetia.models.windows import SignalColumn, SignalWindows, signal_windows
from lutetia.nn import int8_tables
from lutetia.precompute import (
    Binary,
    Int,
    IntegerClassifier,
    IOTable,
    LanguageHardware,
    c_files,
    integer_model,
    read_board,
)
from lutetia.training import checkpoint, data, distributed, metrics, open_data, read_config
from lutetia.training.config import DataConfig
from lutetia.training.folder import RunFolder
from lutetia.training.loop import Trainer
from lutetia.training.progress import Silent
from lutetia.training.run import train
from lutetia.training.shard_files import load_shards, save_shards
from lutetia.training.task import build_model

LAYERS = [
    {"kind": "projection2d", "out_shape": [3, 3], "receptive_field": 2, "projection": 2, "n_anchors": 2, "grid": 2, "keep": 0.5},
    {"kind": "projected", "n_outputs": 4, "heads": 2, "head_width": 3, "n_detectors": 2, "n_anchors": 2},
    {"kind": "lut", "n_outputs": 3, "n_detectors": 2, "n_anchors": 2, "read": "confidence2"},
]
TRANSFORMER = {"vocab": 16, "context": 6, "width": 4, "n_layers": 1, "n_heads": 1, "n_detectors": 2, "n_anchors": 2}
SMALL = {**TRANSFORMER, "positional_dim": 1, "ff_detectors": 2, "ff_anchors": 2, "seed": 0}


@dataclasses.dataclass(frozen=True)
class Loader:
    """`make` writes whole files into a folder, `use` loads them; `damaged` are the files that mutations change, else all."""

    make: Callable[[Path], object]
    use: Callable[[Path], object]
    damaged: Sequence[str] = ()
    signed: bool = False  # whether the manifest gets the checksums of the damaged files
    needs: str = ""  # an optional package


def sign(folder: Path) -> None:
    """Give every manifest below a folder the sizes and checksums of the files as they are."""
    for manifest in folder.rglob(folders.MANIFEST):
        facts = json.loads(manifest.read_bytes())
        for name, known in facts["files"].items():
            content = (manifest.parent / name).read_bytes()
            digest = hashlib.sha256(content).hexdigest()
            facts["files"][name] = {"bytes": len(content), "sha256": digest} if isinstance(known, dict) else digest
        manifest.write_text(json.dumps(facts))


# ---- models ----------------------------------------------------------------------------------------------------------


def classifier(**fields: Any) -> models.LUTClassifier:
    model = models.LUTClassifier(input_shape=(4, 4), n_classes=3, layers=LAYERS, norm="rms", seed=0, **fields)
    model.metadata = {"classes": ["a", "b", "c"], "input_low": 0.0, "input_high": 1.0}
    return model


def tabular(**fields: Any) -> models.Tabular:
    model = models.Tabular(input_shape=(3,), n_tables=4, n_encoded=3, n_edges=2, n_categories=2, seed=0, **fields)
    if model.is_regression:
        dates = {"2": {"order": "day first", "times": True}}
        model.metadata = {"target": "c", "dates": dates, "error_90": 1.5, "spread_90": 1.5}
        return model
    model.metadata = {
        "classes": ["a", "b"],
        "categories": {"1": ["x", "y"]},
        "target": "c",
        "missing": ["-"],
        "resized": True,
        "unknown": "missing",
        "error_90": 1.5,
    }
    return model


def targets(**fields: Any) -> models.Targets:
    model = models.Targets(input_shape=(3,), n_tables=4, n_anchors=2, n_encoded=3, n_edges=2, seed=0, **fields)
    told = (
        [{"target": "a", "error_90": 1.5}, {"target": "b"}] if model.is_regression else [{"classes": ["x", "y"]}, {"target": "b"}]
    )
    model.metadata = {"targets": told, "features": ["p", "q", "r"]}
    return model


def patches() -> models.Tabular:
    fields: dict[str, Any] = {"patch_detectors": 2, "patch_pairs": 2, "patch_counts": 3}
    model = models.Tabular(input_shape=(8, 8), n_tables=4, n_anchors=2, n_encoded=67, n_edges=2, seed=0, **fields)
    model.encoding.source.copy_(torch.arange(67))
    assert model.patches is not None
    model.patches.pairs.copy_(torch.arange(16).reshape(2, 2, 4) % 5)
    model.patches.counted.copy_(torch.tensor([[0, 1, 0], [0, 3, 4], [1, 2, 20]]))
    return model


def worded() -> models.Tabular:
    model = models.Tabular(input_shape=(6,), n_tables=4, n_anchors=2, n_encoded=6, n_edges=2, seed=0)
    model.encoding.source.copy_(torch.arange(6))
    own = {"place": 1, "first": 1, "asked": 4, "tallies": [[1, "words"], [1, "pairs"]], "grams": ["a", "a b"]}
    own |= {"weights": [[16, 0], [0, -7]], "words": ["b", "a b"]}
    model.metadata = {"classes": ["x", "y"], "texts": {"review": own}}
    return model


def use_texts(model: models.Tabular) -> None:
    """What a model makes of a text, and where the relevance of its inputs lands."""
    texts = text_columns(model.metadata)
    made = text_inputs(texts, [each.read(["A b, a", None]) for each in texts])
    columns = data_columns(model.metadata, model.n_columns)
    model(torch.from_numpy(np.concatenate([np.zeros((2, model.n_columns - made.shape[1])), made], 1)))
    for each in texts:
        each.shares("A b, a", np.ones(model.n_columns))
    assert len(columns) == model.n_columns - made.shape[1] + len(texts)
    assert len(c_files(integer_model(model))["columns.c"]) > 0


def windowed() -> models.Tabular:
    shapes = (SignalShape(0, 3, 1, -20), SignalShape(1, 83, 1, 5))
    windows = SignalWindows(9, 4, (SignalColumn("a", 2), SignalColumn("b")), 16, "trial", shapes)
    n = len(windows.titles)
    model = models.Tabular(input_shape=(n,), n_tables=4, n_anchors=2, n_encoded=n, n_edges=2, seed=0)
    model.encoding.source.copy_(torch.arange(n))
    model.encoding.edges.copy_(torch.tensor([0.5, 1.5]))
    model.tables.anchors = torch.tensor([[[0, n], [each, n + 1]] for each in (1, 20, 40, n - 1)], dtype=torch.int32)
    model.metadata = {"classes": ["x", "y"], "features": windows.titles, "windows": windows.to_dict()}
    return model


def use_windows(model: models.Tabular) -> None:
    """The inputs that are made of samples, and the program that makes them."""
    windows = signal_windows(model.metadata)
    assert windows is not None
    samples = windows.samples(np.linspace(-9, 9, windows.length * len(windows.signals)).reshape(windows.length, -1))
    model(torch.from_numpy(windows.inputs(samples, np.zeros(1, np.int64))))
    assert len(data_columns(model.metadata, model.n_columns)) == len(windows.signals)
    whole = integer_model(model)
    assert isinstance(whole, IntegerClassifier)
    assert len(c_files(whole)["signals.c"]) > 0
    core = whole.emit_signals()
    assert torch.equal(core.interpret(samples), core.answers(samples))


def use_model(folder: Path) -> None:
    model = models.load(folder / "model")
    if isinstance(model, models.LUTTransformer):
        tokens = torch.zeros(1, 2, dtype=torch.int64)
        model(tokens)
        if model.config.context < 10_000:  # its cache is as long as it says
            model.generate(tokens[0], 2)
    elif math.prod(model.config.input_shape) < 10_000:  # its input is as large as it says
        model(torch.zeros(2, *model.config.input_shape))
        if isinstance(model, models.Targets):
            for part in model.all_parts:
                part(torch.zeros(2, *model.config.input_shape))
        if isinstance(model, models.Tabular):
            model.spreads(torch.zeros(2, *model.config.input_shape))
            if model.metadata.get("texts") and len(model.config.input_shape) == 1:
                use_texts(model)
            if "windows" in model.metadata:
                use_windows(model)


def model_loader(make: Callable[[], Any]) -> Loader:
    return Loader(
        lambda folder: make().save_pretrained(folder / "model"),
        use_model,
        ("model/config.toml", "model/metadata.json", "model/model.safetensors"),
        signed=True,
    )


# ---- training --------------------------------------------------------------------------------------------------------

RUN = {
    "model": {
        "kind": "classifier",
        "input_shape": [5],
        "n_classes": 3,
        "initial_noise": 0.1,
        "gradient": "sparse",
        "layers": [{"kind": "lut", "n_outputs": 4, "n_detectors": 2, "n_anchors": 2}],
    },
    "data": {"kind": "npz", "path": "samples.npz", "valid": 0.2},
    "optimizer": {"tables": {"kind": "sparse_adam", "lr": 0.05}, "rest": {"lr": 0.02}},
    "train": {"batch_size": 4, "steps": 2, "eval_every": 1, "log_every": 1},
    "checkpoint": {"every": 1, "keep": 1},
}


def write_samples(folder: Path) -> None:
    draw = np.random.default_rng(0)
    np.savez(folder / "samples.npz", x=draw.normal(size=(20, 5)).astype(np.float32), y=np.arange(20) % 3)


def make_run(folder: Path) -> None:
    write_samples(folder)
    (folder / "run.toml").write_text(toml.dumps(RUN))
    train(folder / "run.toml", folder / "out", device="cpu")
    for name in ("last", "best"):
        (folder / "out" / "checkpoints" / name).unlink(missing_ok=True)


def use_run(folder: Path) -> None:
    config = read_config(folder / "run.toml")
    opened = open_data(config.data, folder)
    newest = checkpoint.newest(folder / "out" / "checkpoints", lambda text: None)
    if newest is None:
        return
    checkpoint.read_state(newest[0])
    trainer = Trainer(
        config, opened, build_model(config.model, "run"), distributed.start("cpu"), RunFolder(folder / "out"), Silent()
    )
    trainer.restore(newest[1], "checkpoint")
    trainer.step()


def make_text_run(folder: Path) -> None:
    (folder / "run.toml").write_text(toml.dumps(RUN))


def use_config(folder: Path) -> None:
    table = dict(read_config(folder / "run.toml").model)
    kind = table.pop("kind", None)
    if kind in list(KINDS):  # what a user asks for may be large, so it is not built
        KINDS[kind].config_class.from_dict(table)


def use_metrics(folder: Path) -> None:
    metrics.read_metrics(folder / "metrics.jsonl")
    metrics.Metrics(folder, 3, tensorboard=False, say=print).close()


# ---- data ------------------------------------------------------------------------------------------------------------


def idx(shape: tuple[int, ...], code: int = 0x08) -> bytes:
    content = bytes(index % 3 for index in range(int(np.prod(shape))))
    return bytes([0, 0, code, len(shape)]) + struct.pack(f">{len(shape)}I", *shape) + content


def make_idx(folder: Path) -> None:
    (folder / "images").write_bytes(idx((6, 4, 4)))
    (folder / "labels.gz").write_bytes(gzip.compress(idx((6,)), mtime=0))


def make_csv(folder: Path) -> None:
    rows = [f"{number / 7:.3f},{-number},{number * 1e3:g},{'abc'[number % 3]}" for number in range(8)]
    (folder / "rows.csv").write_text("\n".join(["width,height,x,class", *rows]) + "\n")


def make_npz(folder: Path) -> None:
    write_samples(folder)
    x = np.arange(32, dtype=np.float64).reshape(2, 16)
    np.savez_compressed(folder / "compressed.npz", X_train=x, y_train=np.array(["a", "b"]), feature_names=np.array(["f"] * 16))


def use_npz(folder: Path) -> None:
    for name in ("samples.npz", "compressed.npz"):
        open_data(DataConfig("npz", path=name), folder)


def make_inputs(folder: Path) -> None:
    classifier().save_pretrained(folder / "model")
    np.save(folder / "x.npy", np.arange(16, dtype=np.int16).reshape(4, 4))
    np.savez(folder / "x.npz", x=np.ones((2, 16)))
    (folder / "x.csv").write_text("\n".join([",".join(map(str, range(16)))] * 2))
    (folder / "x.txt").write_bytes(bytes(range(16)))


def make_evaluation(folder: Path) -> None:
    classifier().save_pretrained(folder / "model")
    (folder / "x.csv").write_text("\n".join(",".join([*map(str, range(16)), name]) for name in "abcab"))


def make_images(folder: Path) -> None:
    from PIL import Image

    classifier().save_pretrained(folder / "model")
    image = Image.fromarray(np.arange(16, dtype=np.uint8).reshape(4, 4))
    for kind in ("png", "pgm", "jpg", "bmp", "gif", "webp", "tif"):
        image.save(folder / f"x.{kind}")


def use_inputs(folder: Path) -> None:
    model = models.load(folder / "model", expected=models.LUTClassifier)

    def use(file: Path) -> None:
        if file.suffix == ".txt":
            inputs.read_tokens(language_model(), str(file))
        else:
            for samples in inputs.read_inputs(model, [str(file)]):
                model(samples.x)

    use_all(sorted(folder.glob("x.*")), use)


def language_model() -> models.LUTTransformer:
    return models.LUTTransformer(SMALL_CONFIG)


SMALL_CONFIG = models.TransformerConfig.from_dict(SMALL)


def use_evaluation(folder: Path) -> None:
    model = models.load(folder / "model", expected=models.LUTClassifier)
    evaluate._csv(model, folder / "x.csv", None)


# ---- circuits and flows ----------------------------------------------------------------------------------------------


def make_tables(folder: Path) -> None:
    pairs = [((0, 1), (1, -5)), ((1, 0), (0, 3)), ((1, 1), (1, 1))]
    IOTable.from_pairs(pairs, default=(0, 0)).save(folder / "partial.json")
    IOTable.from_pairs(pairs, default=(0, 0)).save(folder / "partial.safetensors")
    IOTable.of(lambda x: x.sum(1, keepdim=True), (Int(2), Binary())).save(folder / "whole.safetensors")


def use_table(path: Path) -> None:
    table = IOTable.load(path)
    assert repr(table)
    if len(table):
        table(table.inputs[:2])
        assert table.output_domain


def make_flow(folder: Path) -> None:
    with flow.record() as recorded:
        language_model()(torch.zeros(1, 2, dtype=torch.int64))
    recorded.save(folder / "run.json")


def use_flow(folder: Path) -> None:
    recorded = flow.Flow.load(folder / "run.json")
    recorded.mermaid()
    recorded.save(folder / "run.html")


def make_hardware(folder: Path) -> None:
    folders.write(folder / "built", {"top.v": "module top; endmodule\n", "rtl/a.v": "\n"}, {"format": "lutetia.hardware/1"})


def use_hardware(folder: Path) -> None:
    folders.is_ours(folder / "built", "lutetia.hardware/1")
    folders.verify(folder / "built", "lutetia.hardware/1")


def make_core(folder: Path) -> None:
    sizes = {**SMALL, "vocab": 256, "context": 4, "n_anchors": 1, "positional_dim": 1, "unembedding": "lut"}
    model = models.LUTTransformer(**sizes, initial_noise=0.5)
    core = integer_model(model).emit(detectors_per_cycle=1)
    core.save(folder / "core")
    (folder / "core" / "core.json").write_text('{"context": 4, "vocab": 256, "detectors_per_cycle": 1}')


def make_board(folder: Path) -> None:
    """What a build for a board says of it, and a board of one's own."""
    talk = {"identity": "0x12345678", "question_bytes": 3, "answer_bytes": 1, "streams": True, "seconds": 0.001}
    recipe = {"kind": "circuit", "bits": 8, "weight_bits": 6, "low": 0.0, "high": 1.0, "readings": [], "reading_bits": None}
    facts = {"format": "lutetia.board/1", "board": {"name": "b", "title": "B", "port": "/dev/x"}, "talk": talk, "baud": 9600}
    files = {"board/board.json": json.dumps({**facts, "flash": "iceprog {file}", "recipe": recipe})}
    folders.write(folder / "built", files, {"format": "lutetia.build/1"})
    (folder / "mine.toml").write_text('like = "icebreaker"\nclock_hz = 12_000_000\nrx_pin = "6"\nled_is_low = true\n')


def use_board(folder: Path) -> None:
    facts = board.read_facts(folder / "built")
    board.talk_of(facts)
    "".join([facts["board"]["title"], facts["board"]["port"], facts["flash"], facts["recipe"]["kind"]])
    read_board(str(folder / "mine.toml"))


def make_source(folder: Path) -> None:
    (folder / "bench.py").write_text('"""One line."""\nNEEDS = ("torch",)\n\n\ndef main() -> None: ...\n')
    (folder / "pyproject.toml").write_text('[project]\nname = "lutetia"\n')
    (folder / "metadata.json").write_text('{"classes": ["a", "b"]}')
    (folder / "state.json").write_text('{"data_folder": "."}')


def use_source(folder: Path) -> None:
    bench.read_benchmark(folder / "bench.py")
    bench.is_checkout(folder)
    values.classes_of(folder)
    build_data._recorded(folder)


def use_text(folder: Path) -> None:
    opened = open_data(DataConfig("bytes", path="text.gz"), folder)
    data.fingerprint([opened.splits["train"].bytes])


LOADERS: dict[str, Loader] = {
    "classifier": model_loader(classifier),
    "transformer": model_loader(language_model),
    "softmax_transformer": model_loader(
        lambda: models.LUTTransformer(
            SMALL_CONFIG, attention="softmax", feed_forward="projected", ff_heads=1, ff_head_width=2, unembedding="lut"
        )
    ),
    "dense_transformer": model_loader(lambda: models.DenseTransformer(SMALL_CONFIG)),
    "dense_classifier": model_loader(lambda: models.DenseClassifier(input_shape=(4, 4), n_classes=3, layers=LAYERS[2:], seed=0)),
    "votes": model_loader(
        lambda: models.VotesClassifier(input_shape=(2, 2), n_classes=2, n_tables=4, k=2, bits=3, thresholds=(3,), seed=0)
    ),
    "gates": model_loader(
        lambda: models.GateNetwork(
            input_shape=(2, 2), n_classes=2, n_tables=4, hidden=(3,), k=2, bits=3, thresholds=(3,), learn_thresholds=True, seed=0
        )
    ),
    "ngrams": model_loader(lambda: int8_tables(models.LUTTransformer(**SMALL, ngrams=(2,), ngram_rows=5, ngram_width=2))),
    "int8": model_loader(lambda: int8_tables(language_model())),
    "tabular": model_loader(lambda: tabular(core="tables", n_anchors=2)),
    "tabular_spread": model_loader(
        lambda: tabular(
            n_classes=1,
            n_anchors=2,
            spread_tables=2,
            spread_anchors=2,
            parts=("", "", "month"),
            monotone=(1, 0, -1),
            column_groups=((0, 1), (2,)),
        )
    ),
    "tabular_patches": model_loader(patches),
    "targets": model_loader(lambda: targets(outputs=(2, 3))),
    "targets_spread": model_loader(lambda: targets(outputs=(1, 1), spread_tables=2, spread_anchors=1)),
    "tabular_texts": model_loader(worded),
    "tabular_windows": model_loader(windowed),
    "tabular_gates": model_loader(lambda: tabular(core="gates", n_anchors=2, gate_codes=(1, 2), gate_hidden=(3,))),
    "manifest": Loader(lambda folder: language_model().save_pretrained(folder / "model"), use_model, ("model/manifest.json",)),
    "checkpoint": Loader(
        make_run,
        use_run,
        tuple(
            f"out/checkpoints/step-000002/{name}"
            for name in ("state.json", "optimizer.safetensors", "rng.safetensors", "model.safetensors")
        ),
        signed=True,
    ),
    "config": Loader(make_text_run, use_config),
    "metrics": Loader(
        lambda folder: (folder / "metrics.jsonl").write_text(
            '{"kind": "train", "step": 1, "loss": 0.5}\n{"kind": "valid", "step": 2, "loss": 0.25}\n'
        ),
        use_metrics,
    ),
    "idx": Loader(make_idx, lambda folder: open_data(DataConfig("idx", images="images", labels="labels.gz"), folder)),
    "csv": Loader(make_csv, lambda folder: open_data(DataConfig("csv", path="rows.csv"), folder)),
    "npz": Loader(make_npz, use_npz),
    "text": Loader(
        lambda folder: (folder / "text.gz").write_bytes(gzip.compress(b"the cat sat on the mat\n" * 9, mtime=0)), use_text
    ),
    "inputs": Loader(make_inputs, use_inputs, ("x.npy", "x.npz", "x.csv", "x.txt")),
    "images": Loader(make_images, use_inputs, tuple(f"x.{kind}" for kind in ("png", "pgm", "jpg", "bmp", "gif", "webp", "tif"))),
    "evaluation": Loader(make_evaluation, use_evaluation, ("x.csv",)),
    "tables": Loader(make_tables, lambda folder: use_all(sorted(folder.iterdir()), use_table)),
    "flow": Loader(make_flow, use_flow),
    "hardware": Loader(make_hardware, use_hardware, ("built/manifest.json", "built/top.v")),
    "synapses": Loader(
        lambda folder: growth.random(4, 2, 3, 0.5, seed=0).save(folder / "synapses.safetensors"),
        lambda folder: Synapses.load(folder / "synapses.safetensors"),
    ),
    "sources": Loader(make_source, use_source),
    "core": Loader(
        make_core, lambda folder: LanguageHardware.load(folder / "core"), ("core/core.json", "core/manifest.json", "core/core.v")
    ),
    "board": Loader(make_board, use_board, ("built/board/board.json", "mine.toml"), signed=True),
    "spreadsheet": Loader(make_spreadsheet, lambda folder: use_all(sorted(folder.iterdir()), use_table_file), needs="pyarrow"),
    "samples": Loader(make_samples, lambda folder: use_all(sorted(folder.iterdir()), use_table_file)),
    "onnx": Loader(make_onnx, lambda folder: use_all(sorted(folder.iterdir()), use_onnx), needs="onnx"),
    "trees": Loader(make_trees, lambda folder: use_all(sorted(folder.iterdir()), use_trees)),
    "decoder": Loader(
        make_decoder,
        use_decoder,
        ("config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"),
        needs="transformers",
    ),
    "pooling": Loader(make_pooling, use_pooling, ("modules.json", "1_Pooling/config.json"), needs="transformers"),
    "shards": Loader(
        lambda folder: save_shards(classifier(), folder / "shards"),
        lambda folder: load_shards(classifier(), folder / "shards"),
        ("shards/shard-00001-model-00001-of-00001.safetensors",),
        signed=True,
    ),
}
