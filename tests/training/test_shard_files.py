"""Checkpoints that every rank writes its own part of."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from pathlib import Path

import pytest
import torch
from torch import distributed, nn

import lutetia
import warm
from lutetia.errors import DataError
from lutetia.training.shard_files import load_shards, save_shards
from ports import free_port
from training.shard_files_worker import build

WORKER = str(Path(__file__).with_name("shard_files_worker.py"))
needs_gloo = pytest.mark.skipif(
    not distributed.is_available() or not distributed.is_gloo_available(), reason="torch was built without gloo"
)


def run(n: int, *words: str, worker: str = WORKER) -> None:
    together = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(n)}
    path = {"PYTHONPATH": str(Path(lutetia.__file__).parents[1]), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    ranks = [
        warm.Process([worker, *words], env={**os.environ, **path, **together, "RANK": str(rank)}, **pipes) for rank in range(n)
    ]
    try:
        for rank in ranks:
            said, wrong = rank.communicate(timeout=240)
            assert rank.returncode == 0, wrong[-4000:]
            assert "done" in said
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()


@needs_gloo
@pytest.mark.slow
def test_any_number_of_ranks_reads_what_another_wrote(tmp_path: Path) -> None:
    folder = tmp_path / "tables"
    run(2, "save", str(folder))
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["ranks"] == 2
    assert len(manifest["files"]) == 2  # one from each
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tables"]
    run(3, "load", str(folder))
    model = build(2)
    load_shards(model, folder)  # whole, in one process
    assert all(torch.equal(model.state_dict()[name], tensor) for name, tensor in build(1).state_dict().items())
    run(3, "save", str(folder))  # in its place
    run(2, "load", str(folder))


def test_one_process(tmp_path: Path) -> None:
    save_shards(build(1), tmp_path / "tables")
    model = build(2)
    load_shards(model, tmp_path / "tables")
    assert all(torch.equal(model.state_dict()[name], tensor) for name, tensor in build(1).state_dict().items())


def test_what_does_not_fit_changes_nothing(tmp_path: Path) -> None:
    save_shards(nn.Linear(3, 2), tmp_path / "a")
    for model, reason in (
        (nn.Linear(3, 4), r"tensor weight of shape \[2, 3\], expected \[4, 3\]"),
        (nn.LSTM(3, 2), "has no tensor"),
    ):
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        with pytest.raises(DataError, match=reason):
            load_shards(model, tmp_path / "a")
        assert all(torch.equal(model.state_dict()[name], tensor) for name, tensor in before.items())


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    save_shards(nn.Linear(3, 2), tmp_path / "a")
    (file,) = (tmp_path / "a").glob("*.safetensors")
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    with pytest.raises(DataError, match="does not have the checksum"):
        load_shards(nn.Linear(3, 2), tmp_path / "a")


def test_a_file_with_another_header_is_refused(tmp_path: Path) -> None:
    """Signed anew, so that the checksum does not tell."""
    save_shards(nn.Linear(3, 2), tmp_path / "a")
    (file,) = (tmp_path / "a").glob("*.safetensors")
    file.write_bytes(file.read_bytes()[:40])
    manifest = tmp_path / "a" / "manifest.json"
    facts = json.loads(manifest.read_text())
    facts["files"][file.name] = {"bytes": 40, "sha256": hashlib.sha256(file.read_bytes()).hexdigest()}
    manifest.write_text(json.dumps(facts))
    with pytest.raises(DataError, match="cannot be read: it is damaged, or was changed by hand"):
        load_shards(nn.Linear(3, 2), tmp_path / "a")


def test_another_folder_beside_it_stays(tmp_path: Path) -> None:
    (tmp_path / ".a.shards").mkdir()
    (tmp_path / ".a.shards" / "thesis.txt").write_text("years of work")
    save_shards(nn.Linear(3, 2), tmp_path / "a")
    assert sorted(path.name for path in tmp_path.rglob("*.txt")) == ["thesis.txt"]


def test_a_folder_of_somebody_else_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(lutetia.errors.LutetiaError):
        save_shards(nn.Linear(3, 2), tmp_path)
    assert (tmp_path / "thesis.txt").read_text() == "years of work"
