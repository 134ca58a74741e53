"""Models on disk: they come back bit for bit, and what is damaged or foreign is refused by name."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from lutetia import models
from lutetia._shared import folders
from lutetia.errors import ArgumentError, DataError
from lutetia.lut import use_backend
from lutetia.models import LUTClassifier, LUTLayer, LUTTransformer, saving

TINY: dict[str, Any] = {
    "context": 8,
    "width": 8,
    "n_layers": 1,
    "n_heads": 2,
    "n_detectors": 2,
    "n_anchors": 2,
    "positional_dim": 1,
    "ff_detectors": 3,
    "ff_anchors": 2,
    "ff_heads": 2,
    "ff_head_width": 4,
}


def transformer(**fields: Any) -> LUTTransformer:
    return LUTTransformer(**{**TINY, **fields})


def classifier() -> LUTClassifier:
    return LUTClassifier(input_shape=(5,), layers=(LUTLayer(6, 4, 2, read="confidence2"),), readout="lut", readout_detectors=3)


MAKERS: dict[str, Callable[[], Any]] = {
    "transformer": transformer,
    "softmax": lambda: transformer(attention="softmax", feed_forward="projected", read="confidence2", n_kv_heads=1),
    "sparse": lambda: transformer(gradient="sparse", unembedding="lut"),
    "bfloat16": lambda: LUTTransformer(**TINY, attention="softmax", dtype=torch.bfloat16),
    "mixed": lambda: transformer().to(torch.float64),
    "dense_transformer": lambda: transformer().dense_twin(),
    "classifier": classifier,
    "dense_classifier": lambda: classifier().dense_twin(),
}


def some_input(model: Any) -> torch.Tensor:
    return torch.randint(256, (3, 8)) if hasattr(model, "embedding") else torch.randn(3, 5)


@pytest.mark.parametrize("name", MAKERS)
def test_a_model_comes_back_bit_for_bit(name: str, tmp_path: Path) -> None:
    model = MAKERS[name]()
    if name == "mixed":
        model.blocks[0].attention.positions.data = model.blocks[0].attention.positions.data.float()
    model.save_pretrained(tmp_path / "deep" / "model")
    for back in (models.load(tmp_path / "deep" / "model"), type(model).from_pretrained(tmp_path / "deep" / "model")):
        assert type(back) is type(model)
        assert back.config == model.config
        state = back.state_dict()
        assert list(state) == list(model.state_dict())
        for key, tensor in model.state_dict().items():
            assert state[key].dtype == tensor.dtype, key
            assert torch.equal(state[key], tensor), key
        x = some_input(model)
        with use_backend("reference"):  # nothing is compiled for number types that no other test has
            assert torch.equal(back(x), model(x))
        assert all(parameter.requires_grad for parameter in back.parameters())
        assert back(x).sum().backward() is None
    assert sorted(os.listdir(tmp_path / "deep" / "model")) == ["config.toml", "manifest.json", "model.safetensors"]
    assert os.listdir(tmp_path / "deep") == ["model"]  # no scraps


def test_the_files_are_what_they_say(tmp_path: Path) -> None:
    model = transformer(seed=4)
    models.save(
        model,
        tmp_path / "m",
        config={"training": {"steps": 3}},
        files={"more.bin": b"abc", "opt.safetensors": {"x": torch.ones(2)}},
    )
    tables = tomllib.loads((tmp_path / "m" / "config.toml").read_text())
    assert tables["kind"] == "transformer"
    assert tables["training"] == {"steps": 3}
    assert tables["model"] == model.config.to_dict()
    assert models.read_config(tmp_path / "m") == tables
    assert set(load_file(tmp_path / "m" / "model.safetensors")) == set(model.state_dict())
    listed = json.loads((tmp_path / "m" / "manifest.json").read_text())["files"]
    import hashlib

    for name, facts in listed.items():
        content = (tmp_path / "m" / name).read_bytes()
        assert facts == {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    assert models.verify(tmp_path / "m") == ["config.toml", "model.safetensors", "more.bin", "opt.safetensors"]
    assert load_file(tmp_path / "m" / "opt.safetensors")["x"].tolist() == [1, 1]


def test_saving_again_replaces_the_model_and_nothing_else(tmp_path: Path) -> None:
    one, two = transformer(seed=1), transformer(seed=2, width=10)
    one.save_pretrained(tmp_path / "m")
    (tmp_path / "m" / "notes.txt").write_text("mine")
    two.save_pretrained(tmp_path / "m")
    assert models.load(tmp_path / "m").config == two.config
    assert (tmp_path / "m" / "notes.txt").read_text() == "mine"
    assert len(os.listdir(tmp_path / "m")) == 4
    (tmp_path / "empty").mkdir()
    one.save_pretrained(tmp_path / "empty")
    assert models.load(tmp_path / "empty").config == one.config


def test_a_loaded_model_is_its_own(tmp_path: Path) -> None:
    transformer(seed=1).save_pretrained(tmp_path / "m")
    model = models.load(tmp_path / "m")
    before = model(torch.zeros(1, 3, dtype=torch.int64))
    (tmp_path / "m" / "model.safetensors").write_bytes(b"")  # in place, which would show through a mapping
    assert torch.equal(model(torch.zeros(1, 3, dtype=torch.int64)), before)


def test_a_save_that_fails_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = transformer(seed=1)
    model.save_pretrained(tmp_path / "m")

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(saving, "save_file", full)
    with pytest.raises(DataError, match=r"cannot be written to .*/m: No space left on device"):
        transformer(seed=2).save_pretrained(tmp_path / "m")
    with pytest.raises(DataError, match="No space left"):
        transformer(seed=2).save_pretrained(tmp_path / "n")
    assert os.listdir(tmp_path) == ["m"]
    assert models.load(tmp_path / "m").config == model.config


@pytest.mark.parametrize("moves", range(6))
@pytest.mark.parametrize("killed", [False, True])
def test_a_save_that_is_cut_short_leaves_the_old_model_or_is_found(
    killed: bool, moves: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = transformer(seed=1)
    old.save_pretrained(tmp_path / "m")
    (tmp_path / "m" / "notes.txt").write_text("mine")  # so that files are moved one by one: a folder of ours alone is exchanged
    rename, done = os.rename, 0

    def stop(source: Any, target: Any) -> None:
        nonlocal done
        done += 1
        if done == moves + 1 or (killed and done > moves):  # of a process that is killed nothing moves anything back
            raise KeyboardInterrupt
        rename(source, target)

    monkeypatch.setattr(os, "rename", stop)
    with pytest.raises(KeyboardInterrupt):
        transformer(seed=22).save_pretrained(tmp_path / "m")
    if killed and moves:
        with pytest.raises(DataError, match=r"it holds no config.toml|manifest.json, which holds the checksums, is missing"):
            models.load(tmp_path / "m")
    else:
        assert models.load(tmp_path / "m").config == old.config
        assert len(os.listdir(tmp_path / "m")) == 4
    assert (tmp_path / "m" / "notes.txt").read_text() == "mine"
    assert os.listdir(tmp_path) == ["m"]


@pytest.mark.parametrize("name", ["config.toml", "model.safetensors", "manifest.json"])
def test_files_of_others_are_not_overwritten_unasked(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / name).write_text('{"name": "web app"}')
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ArgumentError, match=rf"{name} is not from an earlier save: .* overwrite=True"):
        transformer(seed=1).save_pretrained(".")
    assert os.listdir(tmp_path) == [name]
    assert (tmp_path / name).read_text() == '{"name": "web app"}'
    transformer(seed=1).save_pretrained(".", overwrite=True)
    assert models.load(".").config == transformer(seed=1).config


def test_files_that_the_model_no_longer_has_are_gone(tmp_path: Path) -> None:
    models.save(transformer(seed=1), tmp_path / "m", files={"more.bin": b"abc"})
    transformer(seed=1).save_pretrained(tmp_path / "m")
    assert sorted(os.listdir(tmp_path / "m")) == ["config.toml", "manifest.json", "model.safetensors"]


# ---- damaged and foreign ---------------------------------------------------------------------------------------------


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def seal(folder: Path) -> None:
    """Write the manifest anew, as one who knows how."""
    files = [name for name in os.listdir(folder) if name != "manifest.json"]
    listed = {name: {"bytes": (folder / name).stat().st_size, "sha256": folders.sha256(folder / name)} for name in files}
    (folder / "manifest.json").write_text(json.dumps({"format": "lutetia.manifest/1", "files": listed}))


def edit(folder: Path, old: str, new: str) -> None:
    text = (folder / "config.toml").read_text()
    assert old in text
    (folder / "config.toml").write_text(text.replace(old, new))
    seal(folder)


def change_tensors(folder: Path, **change: torch.Tensor | None) -> None:
    tensors = load_file(folder / "model.safetensors")
    for name, tensor in change.items():
        name = name.replace("__", ".")
        if tensor is None:
            del tensors[name]
        else:
            tensors[name] = tensor
    save_file({name: tensor.clone() for name, tensor in tensors.items()}, folder / "model.safetensors")
    seal(folder)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def unpadded(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0{}  rest")
    seal(folder)


DAMAGES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "flipped bit": (lambda m: flip(m / "model.safetensors"), "model.safetensors does not have the checksum"),
    "flipped config": (lambda m: flip(m / "config.toml"), "config.toml does not have the checksum"),
    "truncated": (lambda m: truncate(m / "model.safetensors"), r"model.safetensors has \d+ bytes, expected \d+: it is damaged"),
    "no tensors": (lambda m: (m / "model.safetensors").unlink(), "model.safetensors is missing: the model is not complete"),
    "no config": (lambda m: (m / "config.toml").unlink(), "is not the folder of a saved model: it holds no config.toml"),
    "no manifest": (lambda m: (m / "manifest.json").unlink(), "manifest.json, which holds the checksums, is missing"),
    "torn manifest": (lambda m: truncate(m / "manifest.json"), "manifest.json cannot be read"),
    "binary manifest": (lambda m: (m / "manifest.json").write_bytes(b"\xff\xfe"), "manifest.json cannot be read"),
    "list manifest": (lambda m: (m / "manifest.json").write_text("[1]"), "manifest.json cannot be read"),
    "other manifest": (lambda m: (m / "manifest.json").write_text('{"format": 1, "files": {}}'), "does not list config.toml"),
    "escaping manifest": (
        lambda m: (m / "manifest.json").write_text(
            '{"format": "lutetia.manifest/1", "files": {"../x": {"bytes": 1, "sha256": ""}}}'
        ),
        "does not list config.toml",
    ),
    "no TOML": (lambda m: edit(m, "kind = ", "kind "), "config.toml is not TOML"),
    "other format": (lambda m: edit(m, "lutetia.model/1", "lutetia.model/9"), "has the format 'lutetia.model/9'"),
    "other kind": (
        lambda m: edit(m, '"transformer"', '"diffusion"'),
        "has the kind 'diffusion', expected one of .*dense_transformer",
    ),
    "unknown field": (lambda m: edit(m, "width = 8", "widht = 8"), "no field 'widht': did you mean width"),
    "bad field": (lambda m: edit(m, "width = 8", "width = 1"), "width is 1"),
    "other width": (lambda m: edit(m, "width = 8", "width = 6"), r"tensor \S+ of shape .* expected .* by config.toml"),
    "tensor too many": (lambda m: change_tensors(m, extra=torch.ones(1)), "has a tensor extra, unlike"),
    "tensor missing": (lambda m: change_tensors(m, embedding__weight=None), "has no tensor embedding.weight, unlike"),
    "no safetensors": (unpadded, "cannot be read"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_named(damage: str, tmp_path: Path) -> None:
    transformer(seed=0).save_pretrained(tmp_path / "m")
    hurt, said = DAMAGES[damage]
    hurt(tmp_path / "m")
    with pytest.raises(DataError, match=said):
        models.load(tmp_path / "m")


def test_what_is_no_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nothing does not exist, expected the folder of a saved model"):
        models.load(tmp_path / "nothing")
    (tmp_path / "file").write_text("x")
    with pytest.raises(DataError, match="file is a file, expected the folder"):
        models.load(tmp_path / "file")
    with pytest.raises(DataError, match="cannot be written to"):
        transformer().save_pretrained(tmp_path / "file")
    with pytest.raises(DataError, match=r"it holds no config.toml"):
        models.load(tmp_path)
    assert (tmp_path / "file").read_text() == "x"


def test_another_kind_is_refused(tmp_path: Path) -> None:
    classifier().save_pretrained(tmp_path / "m")
    with pytest.raises(DataError, match="holds a LUTClassifier, expected a LUTTransformer"):
        LUTTransformer.from_pretrained(tmp_path / "m")
    transformer().dense_twin().save_pretrained(tmp_path / "d")
    assert type(LUTTransformer.from_pretrained(tmp_path / "d")).__name__ == "DenseTransformer"  # which is one, by its class


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"config": {"kind": "x"}}, r"config is \['kind'\]"),
        ({"files": {"config.toml": b""}}, "files is 'config.toml'"),
        ({"files": {"a/b": b""}}, "files is 'a/b'"),
        ({"files": {"..": b""}}, r"files is '\.\.'"),
        ({"config": {"x": None}}, "x is None"),
    ],
)
def test_bad_additions_are_named_before_anything_is_written(options: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=said):
        models.save(transformer(), tmp_path / "m", **options)
    assert not os.listdir(tmp_path)
    with pytest.raises(ArgumentError, match=r"expected a model of lutetia.models"):
        models.save(torch.nn.Linear(2, 2), tmp_path / "m")  # type: ignore[arg-type]


def test_all_files_have_the_mode_that_the_umask_gives(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        classifier().save_pretrained(tmp_path / "m")
    finally:
        os.umask(before)
    assert {file.name: oct(file.stat().st_mode & 0o777) for file in (tmp_path / "m").iterdir()} == {
        name: "0o640" for name in ("config.toml", "model.safetensors", "manifest.json")
    }
