"""Many processes: what two learn from halves of a batch is what one learns from all of it, to rounding."""

from __future__ import annotations

import json
import os
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
from lutetia.errors import ArgumentError, RankError
from lutetia.training import Config, checkpoint, train
from lutetia.training.distributed import World, choose_device, mean_of_sparse, start
from ports import free_port
from small import classifier_config, transformer_config, write_samples, write_text

pytestmark = pytest.mark.skipif(
    not distributed.is_available() or not distributed.is_gloo_available(), reason="torch was built without gloo"
)
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(lutetia.__file__).parent.parent), "OMP_NUM_THREADS": "1"}
SGD = {"tables": {"kind": "sgd", "lr": 0.1, "momentum": 0.9}, "rest": {"kind": "sgd", "lr": 0.1}}
RUNS: dict[str, Config] = {
    "dense": classifier_config(optimizer=SGD, train={"accumulate": 2, "clip": 0.5}, regularize={"cell_variation": 0.1}),
    "sparse": classifier_config(model={"gradient": "sparse"}, optimizer=SGD, train={"accumulate": 2, "clip": 0.5}),
    "n-grams": transformer_config(model={"ngrams": [2], "ngram_word": True, "ngram_rows": 50, "ngram_width": 4}),
    "adam": classifier_config(model={"gradient": "sparse"}, optimizer={"tables": {"kind": "sparse_adam"}}),
    "text": transformer_config(optimizer=SGD),
}


def work(rank: int, ports: list[int], folder: str) -> None:
    torch.set_num_threads(1)
    os.chdir(folder)
    os.environ.update(RANK=str(rank), WORLD_SIZE="2", LOCAL_RANK=str(rank), MASTER_ADDR="localhost")
    for name, config in RUNS.items():
        os.environ["MASTER_PORT"] = str(ports.pop())
        summary = train(config, f"two-{name}")
        Path(f"two-{name}-{rank}.json").write_text(json.dumps(summary))
    # On the way of NCCL, which has no sum of sparse tensors.
    os.environ["MASTER_PORT"] = str(ports.pop())
    distributed.init_process_group("gloo", rank=rank, world_size=2)
    for shape, counts in (((5, 3), (4, 2)), ((5, 3), (0, 3)), ((7,), (1, 1))):
        mine = sparse_tensor(shape, counts[rank], rank)
        mean = mean_of_sparse(mine, World(torch.device("cpu"), rank, 2, 0, rank, 2))
        wanted = sum(sparse_tensor(shape, count, each).to_dense() for each, count in enumerate(counts)) / 2
        assert mean.is_coalesced()
        torch.testing.assert_close(mean.to_dense(), wanted)
    distributed.destroy_process_group()


def sparse_tensor(shape: tuple[int, ...], count: int, seed: int) -> torch.Tensor:
    draw = torch.Generator().manual_seed(seed)
    indices = torch.randint(shape[0], (1, count), generator=draw)
    return torch.sparse_coo_tensor(indices, torch.randn(count, *shape[1:], generator=draw), shape, check_invariants=True)


def test_two_processes_learn_what_one_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    monkeypatch.chdir(tmp_path)
    write_samples(tmp_path)
    write_text(tmp_path)
    summaries = {name: train(config, f"one-{name}") for name, config in RUNS.items()}  # first: it compiles what all need, once
    warm.spawn(work, ([free_port() for _ in range(len(RUNS) + 1)], str(tmp_path)), 2)
    for name, alone in summaries.items():
        one, two = (load_file(f"{count}-{name}/checkpoints/last/model.safetensors") for count in ("one", "two"))
        for key in one:
            # Adam divides by the root of a square: where a gradient is nearly 0 rounding is magnified.
            torch.testing.assert_close(two[key], one[key], rtol=1e-4, atol=1e-4 if name == "adam" else 1e-6, msg=f"{name} {key}")
        for rank in range(2):
            summary = json.loads(Path(f"two-{name}-{rank}.json").read_text())
            assert summary["processes"] == 2
            assert summary["test"] == pytest.approx(alone["test"], rel=1e-4)
        steps = [json.loads(line)["loss"] for line in Path(f"two-{name}/metrics.jsonl").read_text().splitlines()]
        wanted = [json.loads(line)["loss"] for line in Path(f"one-{name}/metrics.jsonl").read_text().splitlines()]
        assert steps == pytest.approx(wanted, rel=1e-4)
        content = checkpoint.read(Path(f"two-{name}/checkpoints/last"))
        rng = content.tensors["rng.safetensors"]
        assert content.state["world"] == 2
        assert not torch.equal(rng["0/torch"], rng["1/torch"])


@pytest.mark.slow
def test_a_killed_rank_comes_back_from_the_last_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torchrun starts all ranks anew; the killer is a rank that ends itself, once, in the middle of a step."""
    write_samples(tmp_path)
    config = classifier_config(train={"steps": 8}, checkpoint={"every": 3})
    (tmp_path / "config.toml").write_text(config.to_toml())
    (tmp_path / "job.py").write_text(
        "import os, signal\n"
        "from pathlib import Path\n"
        "from lutetia.training import loop, train\n"
        "step = loop.Trainer.step\n"
        "def killed(self):\n"
        "    step(self)\n"
        "    if self.position.step == 5 and self.world.rank == 1 and self.world.restarts == 0:\n"
        "        Path('killed').write_text('')\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "loop.Trainer.step = killed\n"
        "class Loud:\n"
        "    def update(self, *_): pass\n"
        "    def say(self, text): print(text, flush=True)\n"
        "train('config.toml', 'out', show=Loud())\n"
    )
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--max-restarts=2", "--log-dir=logs"]
    command = [*torchrun, f"--master-port={free_port()}", "job.py"]
    environment = {**ENVIRONMENT, "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "killed").exists()
    assert "resuming from out/checkpoints/step-000004" in done.stdout
    monkeypatch.chdir(tmp_path)
    train(config, "alone")
    one, two = (load_file(f"{name}/checkpoints/step-000008/model.safetensors") for name in ("alone", "out"))
    for key in one:
        torch.testing.assert_close(two[key], one[key], rtol=1e-4, atol=1e-4, msg=key)


LOSE = """
import os, signal, sys
from lutetia.cli import main
from lutetia.training import loop, watch
watch.WARN = 1.0
step = loop.Trainer.step
def lost(self):
    step(self)
    if self.position.step == 3 and self.world.rank == {rank}:
        print("gone", flush=True)
        os.kill(os.getpid(), signal.{name})
loop.Trainer.step = lost
sys.exit(main(["train", "config.toml", "--out", "out", "--set", "parallel.timeout={timeout}"]))
"""


@pytest.mark.parametrize(("name", "timeout"), [("SIGKILL", 300), ("SIGSTOP", 8)])
def test_a_lost_rank_is_named_in_time(name: str, timeout: int, tmp_path: Path) -> None:
    """One that is killed at once, long before the time limit; one that is stopped is told of, and then waited for no longer."""
    write_samples(tmp_path)
    (tmp_path / "config.toml").write_text(classifier_config(train={"steps": 9}, checkpoint={"every": 2}).to_toml())
    (tmp_path / "job.py").write_text(LOSE.format(rank=1, name=name, timeout=timeout))
    where = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2", "GLOO_SOCKET_IFNAME": "lo"}
    ranks = [
        warm.Process(
            ["job.py"],
            cwd=tmp_path,
            env={**ENVIRONMENT, **where, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        _, said = ranks[0].communicate(timeout=200)
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()
    assert ranks[0].returncode == 1, said
    lines = [line for line in said.splitlines() if "rank" in line]
    assert len(lines) > 1 or name == "SIGKILL", said
    assert all(line.startswith("step 4 waits for the other ranks: rank 1 does not respond") for line in lines[:-1])
    assert lines[-1].startswith("error: rank 0 of 2 did not hear from every other rank after step 3")
    assert "rank 1 does not respond: it was stopped, killed or cut off" in lines[-1]
    assert f"within {timeout} s (parallel.timeout)" in lines[-1]
    assert checkpoint.steps_in(tmp_path / "out" / "checkpoints") == [2]


def test_ranks_that_never_come_are_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "localhost"), ("MASTER_PORT", str(free_port()))):
        monkeypatch.setenv(name, value)
    with pytest.raises(RankError, match=r"rank 0 of 2 did not meet the others at localhost:\d+ within 1 s"):
        start("cpu", timeout=1.0)
    monkeypatch.delenv("MASTER_ADDR")
    with pytest.raises(ArgumentError, match=r"WORLD_SIZE is 2, and .*MASTER_ADDR.*: start the processes with torchrun"):
        start("cpu", timeout=1.0)
    assert not distributed.is_initialized()


@pytest.mark.parametrize("name", ["gpu", "cuda:99", "meta"])
def test_devices_that_are_not_there_are_refused(name: str) -> None:
    with pytest.raises(ArgumentError, match="the device is"):
        choose_device(name)


def test_cuda_without_cuda_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", None)
    with pytest.raises(ArgumentError, match="the device is cuda, but this torch is built without CUDA: expected cpu"):
        choose_device("cuda")
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    with pytest.raises(ArgumentError, match="the device is cuda:1, but torch finds no GPU: expected cpu"):
        choose_device("cuda:1")


def test_steps_in_place_are_for_one_process() -> None:
    from lutetia.training.loop import Trainer

    with pytest.raises(ArgumentError, match='gradient is "in_place", expected "dense" or "sparse" for several processes'):
        in_place(Trainer)


def in_place(kind: Any) -> None:
    from types import SimpleNamespace

    trainer = object.__new__(kind)
    trainer.config, trainer.world = classifier_config(), World(torch.device("cpu"), 0, 2)
    trainer.optimizers = SimpleNamespace(in_place=[object()])
    trainer._check()
