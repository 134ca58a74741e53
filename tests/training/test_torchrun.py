"""Whole runs over several processes that share detectors: they end where one process does, and reshard on the way."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import distributed

import lutetia
import warm
from lutetia.errors import ArgumentError
from lutetia.training import Config, checkpoint, train
from ports import free_port
from small import LAYER, classifier_config, transformer_config, write_samples, write_text

pytestmark = pytest.mark.skipif(
    not distributed.is_available() or not distributed.is_gloo_available(), reason="torch was built without gloo"
)
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(lutetia.__file__).parent.parent), "OMP_NUM_THREADS": "1"}
MOMENTUM = {"tables": {"kind": "sgd", "lr": 0.1, "momentum": 0.9}, "rest": {"kind": "sgd", "lr": 0.1, "momentum": 0.9}}
NGRAMS = {"ngrams": [2], "ngram_word": True, "ngram_rows": 50, "ngram_width": 4}
SHORT = {"train": {"steps": 4, "eval_every": 3}, "checkpoint": {"every": 2, "keep": 9}}


def samples(model: dict[str, Any], **more: Any) -> Config:
    layers = [{**LAYER, "n_detectors": 9, **model.pop("layer", {})}, {**LAYER, "n_detectors": 8, "n_outputs": 5}]
    more["train"] = {**SHORT["train"], **more.get("train", {})}
    return classifier_config(model={"layers": layers, **model}, checkpoint=SHORT["checkpoint"], **more)


# With how many ranks that share detectors, of four.
RUNS: dict[str, tuple[int, Config]] = {
    "dense": (2, samples({}, train={"accumulate": 2, "clip": 0.5}, regularize={"cell_variation": 0.1})),
    "sparse": (4, samples({"gradient": "sparse"}, optimizer=MOMENTUM, train={"clip": 0.5})),
    "adam": (2, samples({"gradient": "sparse", "layer": {"read": "confidence2"}}, optimizer={"tables": {"kind": "sparse_adam"}})),
    "text": (4, transformer_config(model=NGRAMS, optimizer={"rest": {"weight_decay": 0.1}}, **SHORT)),
}


def parallel(config: Config, detectors: int) -> Config:
    tables = config.to_dict()
    tables["parallel"] = {"detectors": detectors}
    return lutetia.training.make_config(tables)


def cut_short(source: str, target: str) -> None:
    """The folder of a run as a kill after step 3 would have left it."""
    shutil.copytree(source, target, symlinks=True)
    shutil.rmtree(f"{target}/checkpoints/step-000004")
    shutil.rmtree(f"{target}/checkpoints/step-000003", ignore_errors=True)


def work(rank: int, ports: list[int], folder: str) -> None:
    torch.set_num_threads(1)
    os.chdir(folder)
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), MASTER_ADDR="localhost")
    for name, (detectors, config) in RUNS.items():
        os.environ.update(MASTER_PORT=str(ports.pop()), WORLD_SIZE="4")
        summary = train(parallel(config, detectors), f"four-{name}")
        Path(f"four-{name}-{rank}.json").write_text(json.dumps(summary))
        os.environ.update(MASTER_PORT=str(ports.pop()), WORLD_SIZE="2")
        if rank == 0:
            cut_short(f"four-{name}", f"two-{name}")
        if rank < 2:
            train(parallel(config, 2), f"two-{name}", resume=True)


def test_runs_end_where_one_process_does_and_go_on_with_fewer_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four ranks, of which 2 or 4 share detectors; then from their checkpoint on 2, and on 1."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.chdir(tmp_path)
    write_samples(tmp_path)
    write_text(tmp_path)
    summaries = {
        name: train(config, f"one-{name}") for name, (_, config) in RUNS.items()
    }  # first: it compiles what all need, once
    warm.spawn(work, ([free_port() for _ in range(2 * len(RUNS))], str(tmp_path)), 4)
    for name, (detectors, config) in RUNS.items():
        cut_short(f"four-{name}", f"back-{name}")
        alone, back = summaries[name], train(config, f"back-{name}", resume=True)
        ends = {
            count: checkpoint.read(Path(f"{count}-{name}/checkpoints/step-000004")) for count in ("one", "four", "two", "back")
        }
        one = ends.pop("one")
        for count, end in ends.items():
            for file in ("model.safetensors", "optimizer.safetensors"):
                assert end.tensors[file].keys() == one.tensors[file].keys()
                for key, wanted in one.tensors[file].items():
                    if "indices" in key or ("values" in key and "momentum" in key):
                        continue  # of a sparse momentum: in another order, and what follows from it is compared
                    torch.testing.assert_close(end.tensors[file][key], wanted, rtol=1e-4, atol=1e-4, msg=f"{count} {name} {key}")
        assert (ends["four"].state["world"], ends["four"].state["detectors"]) == (4, detectors)
        assert (ends["back"].state["world"], ends["back"].state["detectors"]) == (1, 1)
        for rank in range(4):
            summary = json.loads(Path(f"four-{name}-{rank}.json").read_text())
            assert summary["weights"] == alone["weights"]
            assert summary["test"] == pytest.approx(alone["test"], rel=1e-3)
        assert back["test"] == pytest.approx(alone["test"], rel=1e-3)
        rng = ends["four"].tensors["rng.safetensors"]
        alike = [torch.equal(rng["0/torch"], rng[f"{rank}/torch"]) for rank in range(4)]
        assert alike == [True, True, detectors == 4, detectors == 4]  # those that share detectors draw alike


@pytest.mark.slow
def test_a_killed_rank_comes_back_with_its_share_of_the_detectors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_samples(tmp_path)
    config = samples({}, train={"steps": 8}, optimizer=MOMENTUM)
    (tmp_path / "config.toml").write_text(config.to_toml())
    (tmp_path / "job.py").write_text(
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from lutetia.cli import main\n"
        "from lutetia.training import loop\n"
        "step = loop.Trainer.step\n"
        "def killed(self):\n"
        "    step(self)\n"
        "    if self.position.step == 5 and self.world.rank == 3 and self.world.restarts == 0:\n"
        "        Path('killed').write_text('')\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "loop.Trainer.step = killed\n"
        "sys.argv = ['lutetia', 'train', 'config.toml', '--out', 'out', '--set', 'parallel.detectors=2']\n"
        "sys.exit(main())\n"
    )
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=4", "--max-restarts=2", "--log-dir=logs"]
    command = [*torchrun, f"--master-port={free_port()}", "job.py"]
    environment = {**ENVIRONMENT, "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "killed").exists()
    assert "resuming from out/checkpoints/step-000004" in done.stderr
    monkeypatch.chdir(tmp_path)
    train(config, "alone")
    one, four = (load_file(f"{name}/checkpoints/step-000008/model.safetensors") for name in ("alone", "out"))
    for key in one:
        torch.testing.assert_close(four[key], one[key], rtol=1e-4, atol=1e-5, msg=key)


def test_a_number_of_ranks_that_does_not_fit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_samples(tmp_path)
    expected = "parallel.detectors is 2 and there are 1 processes, expected a multiple of 2: start them with torchrun"
    with pytest.raises(ArgumentError, match=expected):
        train(parallel(samples({}), 2), "out")
    assert not Path("out").exists()
