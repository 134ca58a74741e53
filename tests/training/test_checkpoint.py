"""Checkpoints: whole or not there; damage is found and said, and the one before it is used."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from lutetia.errors import DataError
from lutetia.training import checkpoint
from lutetia.training.checkpoint import Content


def content(value: float = 1.0) -> Content:
    shared = torch.full((3,), value)
    tensors = {"model.safetensors": {"a": shared, "b": shared, "c": torch.arange(6).view(2, 3).T, "d": torch.empty(0, 2)}}
    return Content(tensors, {"config.toml": "x = 1\n", "state.json": json.dumps({"step": value})})


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = checkpoint.write(tmp_path / "deep" / "er", 12, content())
    assert path.name == "step-000012"
    read = checkpoint.read(path)
    assert read.texts["config.toml"] == "x = 1\n"
    assert read.state == {"step": 1.0}
    for name, tensor in content().tensors["model.safetensors"].items():
        assert torch.equal(read.tensors["model.safetensors"][name], tensor)
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_a_checkpoint_is_replaced_as_a_whole(tmp_path: Path) -> None:
    checkpoint.write(tmp_path, 1, content())
    path = checkpoint.write(tmp_path, 1, content(2.0))
    assert checkpoint.read(path).state == {"step": 2.0}
    assert len(list(tmp_path.iterdir())) == 1


DAMAGE = {
    "a changed byte": lambda path: flip(path / "model.safetensors"),
    "a file cut short": lambda path: (path / "model.safetensors").write_bytes((path / "model.safetensors").read_bytes()[:-1]),
    "a missing file": lambda path: (path / "state.json").unlink(),
    "a missing manifest": lambda path: (path / "manifest.json").unlink(),
    "an empty manifest": lambda path: (path / "manifest.json").write_text(""),
    "a manifest of something else": lambda path: (path / "manifest.json").write_text("[1]"),
}


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_checkpoint_is_said_and_the_one_before_used(damage: str, tmp_path: Path) -> None:
    good, bad = (checkpoint.write(tmp_path, step, content(step)) for step in (5, 10))
    DAMAGE[damage](bad)
    with pytest.raises(DataError):
        checkpoint.read(bad)
    said: list[str] = []
    found = checkpoint.newest(tmp_path, said.append)
    assert found is not None
    assert (found[0], found[1].state) == (good, {"step": 5})
    assert len(said) == 1
    assert str(bad) in said[0]
    assert "set aside as damaged-step-000010, going back to the checkpoint before it" in said[0]
    checkpoint.write(tmp_path, 10, content(10.0))  # the run comes by again, and mends it
    assert checkpoint.newest(tmp_path, said.append)[1].state == {"step": 10}
    assert len(said) == 1


def test_nothing_to_go_on_from(tmp_path: Path) -> None:
    assert checkpoint.newest(tmp_path / "none", print) is None
    (tmp_path / ".step-000003.abc.part").mkdir()  # what a kill leaves
    (tmp_path / "step-x").mkdir()
    for name in ("step-٠٠٠٠٠٣", "step-0000005"):  # not how a step is written
        (tmp_path / name).mkdir()
    assert checkpoint.newest(tmp_path, print) is None


def test_the_last_few_and_the_best_are_kept(tmp_path: Path) -> None:
    for step in (1, 2, 3, 4, 1_000_000):
        checkpoint.write(tmp_path, step, content(step))
    (tmp_path / ".step-000009.abc.part").mkdir()
    checkpoint.prune(tmp_path, 2, best=2)
    assert checkpoint.steps_in(tmp_path) == [2, 4, 1_000_000]
    names = {"step-000002", "step-000004", "step-1000000", "best", "last"}
    assert {path.name for path in tmp_path.iterdir()} == names
    assert checkpoint.read(tmp_path / "best").state == {"step": 2}
    assert checkpoint.read(tmp_path / "last").state == {"step": 1_000_000}
    checkpoint.prune(tmp_path, 1, best=1_000_000)
    assert checkpoint.steps_in(tmp_path) == [1_000_000]
    assert checkpoint.read(tmp_path / "best").state == {"step": 1_000_000}


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="step-000001 cannot be written"):
        checkpoint.write(tmp_path / "file", 1, content())


def test_good_checkpoints_outlive_damaged_ones(tmp_path: Path) -> None:
    for step in (5, 10, 15):
        checkpoint.write(tmp_path, step, content(step))
    for step in (10, 15):
        flip(tmp_path / checkpoint.name_of(step) / "model.safetensors")
    said: list[str] = []
    assert checkpoint.newest(tmp_path, said.append) is not None
    for step in (6, 7):  # the run goes on from step 5
        checkpoint.write(tmp_path, step, content(step))
        checkpoint.prune(tmp_path, 1, best=None)
        assert checkpoint.steps_in(tmp_path) == [step]
        assert checkpoint.read(tmp_path / "last").state == {"step": step}
    assert {path.name for path in tmp_path.iterdir()} == {
        "step-000007",
        "last",
        "damaged-step-000010",
        "damaged-step-000015",
    }
    checkpoint.write(tmp_path, 10, content(10))
    flip(tmp_path / checkpoint.name_of(10) / "model.safetensors")
    assert checkpoint.newest(tmp_path, said.append)[1].state == {"step": 7}
    assert (tmp_path / "damaged-step-000010-2").is_dir()


def test_a_kill_while_an_old_checkpoint_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left of it is not taken for a checkpoint, and goes with the next one that is written."""
    for step in (1, 2):
        checkpoint.write(tmp_path, step, content(step))
    with monkeypatch.context() as patch:
        unlink, done = Path.unlink, []

        def killed(self: Path, missing_ok: bool = False) -> None:
            if done:
                raise KeyboardInterrupt
            done.append(self)
            unlink(self, missing_ok)

        patch.setattr(Path, "unlink", killed)
        with pytest.raises(KeyboardInterrupt):
            checkpoint.prune(tmp_path, 1, best=None)
    assert checkpoint.steps_in(tmp_path) == [2]
    assert len(list(tmp_path.iterdir())) == 2
    checkpoint.prune(tmp_path, 1, best=None)
    assert {path.name for path in tmp_path.iterdir()} == {"step-000002", "last"}


def test_files_that_others_put_into_a_checkpoint_are_kept(tmp_path: Path) -> None:
    for step in (1, 2):
        (checkpoint.write(tmp_path, step, content(step)) / "notes.txt").write_text("mine")
    checkpoint.write(tmp_path, 2, content(2.0))
    checkpoint.write(tmp_path, 3, content(3.0))
    checkpoint.prune(tmp_path, 1, best=None)
    assert checkpoint.steps_in(tmp_path) == [3]
    assert len(list(tmp_path.glob("damaged-*/notes.txt"))) == 2


def test_damage_that_the_checksums_vouch_for(tmp_path: Path) -> None:
    broken = content()
    for text in ("[" * 100_000, "[1]", "no"):
        broken.texts["state.json"] = text
        with pytest.raises(DataError, match=r"state\.json of the checkpoint"):
            checkpoint.read(checkpoint.write(tmp_path, 1, broken)).state  # noqa: B018
