"""Checkpoints from anybody: refused with a sentence before they cost time or memory, or loaded and sound."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from lutetia import models
from lutetia.errors import ArgumentError, DataError
from lutetia.models.building import KINDS, Model

SMALL: dict[str, Any] = {
    "vocab": 16, "context": 6, "width": 4, "n_layers": 2, "n_heads": 1, "n_detectors": 2, "n_anchors": 2, "positional_dim": 1,
    "ff_detectors": 2, "ff_anchors": 2, "ff_heads": 1, "ff_head_width": 2, "unembedding_detectors": 2, "unembedding_anchors": 2,
    "seed": 0,
}  # fmt: skip
WINDOWS = {"kind": "projection2d", "out_shape": [3, 3], "receptive_field": 2, "projection": 2, "n_anchors": 2}
LAYER = {"kind": "lut", "n_outputs": 3, "n_detectors": 4, "n_anchors": 2}


def transformer(**more: Any) -> Model[Any]:
    return models.LUTTransformer(**(SMALL | more))


def classifier(layer: dict[str, Any] = LAYER, **more: Any) -> Model[Any]:
    return models.LUTClassifier(**({"input_shape": (4, 4), "n_classes": 3, "layers": [layer], "seed": 0} | more))


def sign(folder: Path) -> None:
    """Give the manifest the sizes and checksums of the files as they are."""
    manifest = json.loads((folder / "manifest.json").read_text())
    for name in manifest["files"]:
        content = (folder / name).read_bytes()
        manifest["files"][name] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    (folder / "manifest.json").write_text(json.dumps(manifest))


def forged(folder: Path, model: Model[Any], old: str = "", new: str = "") -> Path:
    """A saved model whose config says something else, with checksums that agree."""
    model.save_pretrained(folder / "m")
    config = folder / "m" / "config.toml"
    assert old in config.read_text()
    config.write_text(config.read_text().replace(old, new))
    sign(folder / "m")
    return folder / "m"


@pytest.fixture
def no_large_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Building asks for memory through these; an honest small model needs a few thousand numbers at once."""

    def watched(make: Callable[..., Any]) -> Callable[..., Any]:
        def made(*sizes: Any, **options: Any) -> Any:
            value = make(*sizes, **options)
            assert value.nelement() < 1 << 22, f"{make.__name__} of {list(value.shape)}"
            return value

        return made

    for name in ("empty", "rand", "randn", "arange"):
        monkeypatch.setattr(torch, name, watched(getattr(torch, name)))


@pytest.mark.usefixtures("no_large_tensors")
@pytest.mark.parametrize(
    ("make", "old", "new"),
    [
        (transformer, "n_layers = 2", "n_layers = 100000"),
        (transformer, "vocab = 16", "vocab = 100000000"),
        (transformer, "width = 4", "width = 2000000000"),
        (transformer, "context = 6", "context = 100000000"),
        (transformer, "n_detectors = 2\n", "n_detectors = 100000000\n"),
        (transformer, "ff_anchors = 2", "ff_anchors = 24"),
        (transformer, "positional_dim = 1", "positional_dim = 20"),
        (lambda: transformer(feed_forward="projected"), "ff_heads = 1", "ff_heads = 100000000"),
        (lambda: transformer(feed_forward="dense"), "ff_multiple = 4", "ff_multiple = 100000000"),
        (lambda: transformer(unembedding="lut"), "unembedding_detectors = 2", "unembedding_detectors = 100000000"),
        (lambda: models.DenseTransformer(**SMALL), "width = 4", "width = 2000000000"),
        (lambda: models.DenseTransformer(**SMALL), "n_layers = 2", "n_layers = 2000000000"),
        (classifier, "n_detectors = 4", "n_detectors = 1000000000"),
        (classifier, "n_classes = 3", "n_classes = 1000000000"),
        (lambda: classifier({"kind": "projected", "n_outputs": 4, "heads": 2}), "heads = 2", "heads = 100000000"),
        (lambda: classifier(WINDOWS | {"grid": 2}), "grid = 2", "grid = 40000"),
        (lambda: classifier(WINDOWS | {"grid": 2}), "detectors_per_position = 1", "detectors_per_position = 1000000000"),
        (lambda: classifier(WINDOWS | {"stride": 1}), "[4, 4]", "[40000, 40000]"),
        (lambda: classifier(WINDOWS | {"grid": 1}), "[4, 4]\nn_classes = 3", "[40000, 40000]\nn_classes = 3"),
        (lambda: models.DenseClassifier(input_shape=(4,), n_classes=3, layers=[LAYER]), "n_outputs = 3", "n_outputs = 10000000"),
        (lambda: models.VotesClassifier(input_shape=(4,), n_classes=2, n_tables=4, k=2), "n_tables = 4", "n_tables = 2000000000"),
        (lambda: models.VotesClassifier(input_shape=(4,), n_classes=2, n_tables=4, k=2), "[4]", "[2000000000]"),
    ],
)  # fmt: skip
def test_a_config_cannot_ask_for_more_than_the_file_holds(make: Any, old: str, new: str, tmp_path: Path) -> None:
    folder = forged(tmp_path, make(), old, new)
    if "grid = 1" in (folder / "config.toml").read_text():  # one window of the whole image: no file holds windows
        config = folder / "config.toml"
        config.write_text(config.read_text().replace("receptive_field = 2", "receptive_field = 40000"))
        sign(folder)
    with pytest.raises(DataError):
        models.load(folder)


@pytest.mark.parametrize(
    "make",
    [
        transformer,
        lambda: transformer(attention="softmax", n_heads=2, n_kv_heads=1, feed_forward="projected", unembedding="lut"),
        lambda: transformer(shared_positions=True, feed_forward="dense", norm="layer", read="confidence2"),
        lambda: models.DenseTransformer(**SMALL),
        classifier,
        lambda: classifier(WINDOWS | {"grid": 2, "keep": 0.5}, readout="lut"),
        lambda: classifier(WINDOWS | {"stride": [1, 2], "placement": "sampled"}, norm="rms"),
        lambda: classifier({"kind": "projected", "n_outputs": 4, "heads": 2, "head_width": 3}),
        lambda: models.DenseClassifier(input_shape=(4, 4), n_classes=3, layers=[LAYER], readout="none"),
        lambda: models.VotesClassifier(input_shape=(2, 2), n_classes=2, n_tables=4, k=2, thresholds=(3, 9)),
    ],
)
def test_the_least_size_is_no_more_than_a_model_has(make: Any, tmp_path: Path) -> None:
    model = make()
    least = type(model).least_size(model.config)
    numbers = sum(tensor.numel() for tensor in model.state_dict().values())
    assert numbers / 2 < least.numbers <= numbers  # near enough to be a bound
    assert least.tensors <= len(model.state_dict())
    model.save_pretrained(tmp_path / "m")
    assert models.load(tmp_path / "m").config == model.config


def test_every_kind_has_a_least_size() -> None:
    for kind in KINDS.values():
        config = {"layers": [LAYER]} if "classifier" in kind.kind else {}
        assert kind.least_size(kind.config_class.from_dict(config)).numbers > 0


def edited(folder: Path, name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Path:
    state = load_file(folder / "model.safetensors")
    save_file({**state, name: change(state[name]).contiguous()}, folder / "model.safetensors")
    sign(folder)
    return folder


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("embedding.weight", lambda t: t.to(torch.int32), r"embedding.weight of type torch.int32, expected float32 or"),
        ("blocks.0.feed_forward.weight", lambda t: t.bool(), r"feed_forward.weight of type torch.bool"),
        ("blocks.0.feed_forward.weight", lambda t: t.to(torch.float8_e4m3fn), r"of type torch.float8_e4m3fn"),
        ("blocks.0.feed_forward.anchors", lambda t: t.long(), r"anchors of type torch.int64, expected int32"),
        ("blocks.0.feed_forward.anchors", lambda t: t + 1000, r"blocks.0.feed_forward: anchor 0 of detector 0 compares"),
        ("blocks.1.attention.anchors", lambda t: t * 0, r"blocks.1.attention: anchor 0 .* expected two different inputs"),
    ],
)
def test_tensors_of_another_type_or_that_point_elsewhere(name: str, change: Any, said: str, tmp_path: Path) -> None:
    folder = edited(forged(tmp_path, transformer()), name, change)
    with pytest.raises(DataError, match=said):
        models.load(folder)


def test_synapses_and_classes_that_point_elsewhere(tmp_path: Path) -> None:
    folder = edited(forged(tmp_path / "a", classifier(WINDOWS | {"grid": 2})), "layers.0.lut.synapse_targets", lambda t: t + 1000)
    with pytest.raises(DataError, match=r"layers\.0\.lut: "):
        models.load(folder)
    votes = models.VotesClassifier(input_shape=(4,), n_classes=2, n_tables=4, k=2)
    folder = edited(forged(tmp_path / "b", votes), "votes.classes", lambda t: t + 7)
    with pytest.raises(DataError, match="votes: classes holds other numbers"):
        models.load(folder)


def test_weights_that_are_not_finite_are_told_when_text_is_drawn(tmp_path: Path) -> None:
    folder = edited(forged(tmp_path, transformer()), "unembedding.weight", lambda t: t * float("nan"))
    for temperature in (0.0, 1.0):
        with pytest.raises(DataError, match="logits that are not finite"):
            models.load(folder).generate(torch.tensor([1, 2]), 2, temperature=temperature)  # type: ignore[operator]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('kind = "transformer"', "kind = [1]", r"has the kind \[1\], expected one of"),
        ('kind = "transformer"', "kind = {a = 1}", "has the kind"),
        ("width = 4", f"width = {'[' * 3000}", "is not TOML: its values are nested too deeply"),
        ("width = 4", f"width = {'9' * 5000}", "is not TOML: "),
        ("width = 4", f"{'a.' * 5000}a = 4", "is not TOML: a key has more than 64 parts"),
        ("rope_base = 10000.0", f"rope_base = 1{'0' * 400}", "rope_base is 1000"),
        ("[model]", "[model.more]", "is not TOML|has no field"),
    ],
)
def test_configs_that_break_parsers(old: str, new: str, said: str, tmp_path: Path) -> None:
    folder = forged(tmp_path, transformer(attention="softmax"), old, new)
    with pytest.raises(DataError, match=said):
        models.load(folder)


def test_a_range_without_a_list_costs_nothing_however_many_inputs_there_are(tmp_path: Path) -> None:
    from lutetia.models.metadata import check_metadata

    config = models.ClassifierConfig(input_shape=(30000, 30000), n_classes=2, layers=(LAYER,))  # type: ignore[arg-type]
    assert check_metadata({"input_low": 0, "input_high": 1.5}, config) == {"input_low": 0, "input_high": 1.5}
    with pytest.raises(ArgumentError, match="input_low is 2 for input 0"):
        check_metadata({"input_low": 2, "input_high": 1}, config)


@pytest.mark.parametrize("name", ["config.toml", "metadata.json", "manifest.json", "model.safetensors"])
@pytest.mark.parametrize("special", ["pipe", "/dev/zero", "folder", "socket"])
def test_special_files(name: str, special: str, tmp_path: Path) -> None:
    model = transformer()
    model.metadata = {"task": "language"}
    folder = forged(tmp_path, model)
    (folder / name).unlink()
    make_special(folder / name, special)
    with pytest.raises(DataError):
        models.load(folder)


def make_special(path: Path, special: str) -> None:
    if special == "pipe":
        os.mkfifo(path)
    elif special == "folder":
        path.mkdir()
    elif special == "socket":
        import socket

        before = os.getcwd()
        os.chdir(path.parent)  # the name of a socket must be short
        try:
            with socket.socket(socket.AF_UNIX) as end:
                end.bind(path.name)
        finally:
            os.chdir(before)
    else:
        path.symlink_to(special)


@pytest.mark.parametrize("path", [3, None, b"m", "a\0b", ["m"]])
def test_paths_that_are_none(path: Any) -> None:
    for read in (models.load, models.verify, models.read_config, models.in_run):
        with pytest.raises(ArgumentError, match="path is"):
            read(path)
