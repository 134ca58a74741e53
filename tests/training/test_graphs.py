"""Steps that are captured as CUDA graphs end where steps launched from Python end; and who cannot be captured."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from lutetia.training import Config, loop, run, train
from lutetia.training.graphs import hinders_capture
from lutetia.training.metrics import read_metrics
from lutetia.training.optimizers import make_optimizers
from small import classifier_config, transformer_config, write_samples, write_text


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_samples(tmp_path)
    write_text(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run, "draw", lambda folder, title: folder / "loss.png")


def reason(config: Config, device: str = "cuda", size: int = 1, **kinds: Any) -> str | None:
    """Why not, for a model of one table and one matrix."""
    world = SimpleNamespace(device=torch.device(device), size=size)
    model = torch.nn.Linear(3, 3)
    optimizers = make_optimizers(model, config.optimizer)
    optimizers.in_place = kinds.get("in_place", [])
    return hinders_capture(config, world, optimizers)  # type: ignore[arg-type]


def test_who_is_captured() -> None:
    assert reason(classifier_config()) is None
    assert reason(classifier_config(), device="cpu") == ""
    assert reason(classifier_config(train={"graph": False})) == ""
    assert reason(classifier_config(), size=2) == "there are several processes"
    assert "fp16" in str(reason(classifier_config(train={"precision": "fp16"})))
    assert "in_place" in str(reason(classifier_config(), in_place=[torch.nn.Identity()]))
    assert reason(classifier_config(optimizer={"rest": {"kind": "sgd"}})) == "SGD cannot be captured"


def test_rates_that_a_captured_step_reads() -> None:
    """They are tensors that stay where they are."""
    optimizers = make_optimizers(torch.nn.Linear(3, 3), classifier_config().optimizer)
    optimizers.keep_rates_on_device()
    groups = [group for optimizer in optimizers.by_name.values() for group in optimizer.param_groups]
    before = [group["lr"] for group in groups]
    optimizers.set_rates(0.25)
    assert all(group["lr"] is rate for group, rate in zip(groups, before, strict=True))
    assert all(float(rate) == pytest.approx(0.25 * optimizers.peaks["rest"]) for rate in before)


def test_a_summary_has_the_peak_of_its_own_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "peak_memory" not in train(classifier_config(), "out", device="cpu")
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"number {device.index}")
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 100 + device.index)
    facts = run._device_facts(run.World(torch.device("cuda", 3)))
    assert facts == {"device": "number 3", "peak_memory": 103}


CAPTURED = {
    "classifier": classifier_config(train={"clip": 0.5, "steps": 12}),
    "two parts": classifier_config(train={"accumulate": 2, "steps": 12}, regularize={"cell_variation": 1.0}),
    "language model": transformer_config(
        model={"attention": "softmax", "feed_forward": "projected", "read": "confidence2", "ff_heads": 2, "ff_head_width": 4},
        train={"steps": 12, "clip": 1.0},
    ),
    "n-grams": transformer_config(
        model={"attention": "softmax", "feed_forward": "dense", "ngrams": [2, 3], "ngram_word": True, "ngram_rows": 64},
        train={"steps": 12, "clip": 1.0},
    ),
}


def losses_of(out: str) -> list[float]:
    return [line["loss"] for line in read_metrics(Path(out) / "metrics.jsonl") if line["kind"] == "train"]


@pytest.mark.gpu
@pytest.mark.parametrize("name", CAPTURED)
def test_captured_steps_end_where_others_do(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config, replays = CAPTURED[name], []
    replay = torch.cuda.CUDAGraph.replay
    monkeypatch.setattr(torch.cuda.CUDAGraph, "replay", lambda graph: (replays.append(1), replay(graph)))
    train(config, "graph", device="cuda")
    assert len(replays) == 9  # of 12 steps, three of which come before
    monkeypatch.setattr(loop, "hinders_capture", lambda *_: "")
    train(config, "plain", device="cuda")
    assert len(replays) == 9
    assert len(losses_of("plain")) > 3
    torch.testing.assert_close(losses_of("graph"), losses_of("plain"), rtol=1e-4, atol=1e-5)


@pytest.mark.gpu
def test_a_captured_run_resumes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rates that are tensors, and the states of the optimisers, come back."""
    config = CAPTURED["classifier"]
    train(config, "whole", device="cuda")
    step = loop.Trainer.step

    def stop(trainer: loop.Trainer) -> None:
        step(trainer)
        if trainer.position.step == 7:
            raise RuntimeError("killed")

    monkeypatch.setattr(loop.Trainer, "step", stop)
    with pytest.raises(RuntimeError, match="killed"):
        train(config, "parts", device="cuda")
    monkeypatch.setattr(loop.Trainer, "step", step)
    train(config, "parts", device="cuda", resume=True)
    torch.testing.assert_close(losses_of("parts"), losses_of("whole"), rtol=1e-3, atol=1e-4)


@pytest.mark.gpu
def test_a_summary_has_the_memory_of_its_own_run() -> None:
    """On a GPU: at least weights, gradients and AdamW's two moments in float32, and nothing of what was freed before.

    Workspaces that cuBLAS keeps for the streams of earlier runs do count: 0.6 GB after nine.
    """
    del [torch.empty(2**30, device="cuda")][0]  # 4 GiB
    summary = train(CAPTURED["language model"], "out", device="cuda")
    assert 16 * summary["weights"] <= summary["peak_memory"] < 2**31
