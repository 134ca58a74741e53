"""The loop: it resumes bit for bit, accumulates to the same gradients, stops when it should, and keeps the best."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from lutetia import models
from lutetia.errors import ArgumentError, DataError, JobError
from lutetia.nn import LUT, cell_total_variation
from lutetia.training import Config, checkpoint, loop, make_config, read_config, run, train
from lutetia.training import folder as folder_module
from lutetia.training.folder import RunFolder
from lutetia.training.metrics import draw, read_metrics
from lutetia.training.progress import Silent
from small import classifier_config, classifier_tables, transformer_config, write_samples, write_text
from tools import require_module

SPARSE = {"gradient": "sparse"}


class Loud(Silent):
    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self, text: str) -> None:
        self.said.append(text)


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_samples(tmp_path)
    write_text(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run, "draw", lambda folder, title: folder / "loss.png")  # it takes as long as the runs


def tensors_of(out: str | Path, step: int) -> dict[str, torch.Tensor]:
    """Every tensor of a checkpoint, and its plain values."""
    path = Path(out) / "checkpoints" / checkpoint.name_of(step)
    files = ("model", "optimizer", "rng")
    return {f"{file}/{name}": tensor for file in files for name, tensor in load_file(path / f"{file}.safetensors").items()}


def assert_same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    different = [name for name in one if not torch.equal(one[name], other[name])]
    assert different == []


def state_of(out: str | Path, step: int) -> dict[str, Any]:
    return json.loads((Path(out) / "checkpoints" / checkpoint.name_of(step) / "state.json").read_text())


RUNS: dict[str, Config] = {
    "adamw": classifier_config(),
    "sgd": classifier_config(optimizer={"tables": {"kind": "sgd", "momentum": 0.9}, "rest": {"kind": "sgd", "momentum": 0.5}}),
    "sparse_adam": classifier_config(model=SPARSE, optimizer={"tables": {"kind": "sparse_adam"}}, train={"clip": 0.1}),
    "sparse sgd": classifier_config(model=SPARSE, optimizer={"tables": {"kind": "sgd", "momentum": 0.9}}),
    "lion": classifier_config(optimizer={"tables": {"kind": "lion", "lr": 0.01}}),
    "in place": classifier_config(model={"gradient": "in_place"}),
    "dropout": classifier_config(
        model={"layers": [{"kind": "lut", "n_outputs": 6, "n_detectors": 5, "n_anchors": 3, "table_dropout": 0.4}]},
        train={"accumulate": 2, "precision": "bf16"},
        regularize={"cell_variation": 10.0},
    ),
    "text": transformer_config(train={"steps": 12}, optimizer={"tables": {"kind": "lion"}}),
    "softmax": transformer_config(
        model={"attention": "softmax", "feed_forward": "projected", "read": "confidence2", "ff_heads": 2, "ff_head_width": 4},
        train={"steps": 12},
    ),
    "n-grams": transformer_config(
        model={"ngrams": [2, 3], "ngram_word": True, "ngram_rows": 64, "ngram_width": 4, "ngram_dropout": 0.2},
        optimizer={"ngrams": {"lr": 0.01, "weight_decay": 0.5}},
        train={"steps": 12, "clip": 0.5, "accumulate": 2},
    ),
    "dense twin": transformer_config(model={"dense": True, "ngrams": [2]}, train={"steps": 12}),
}


@pytest.mark.parametrize("name", RUNS)
def test_a_run_that_was_stopped_ends_as_one_that_was_not(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config = RUNS[name]
    summary = train(config, "whole")
    assert (summary["step"], summary["stopped"]) == (12, "steps")
    steps = []
    step = loop.Trainer.step

    def stop_at_seven(self: loop.Trainer) -> None:
        step(self)
        steps.append(self.position.step)
        if self.position.step == 7:
            raise RuntimeError("killed")

    monkeypatch.setattr(loop.Trainer, "step", stop_at_seven)
    with pytest.raises(RuntimeError, match="killed"):
        train(config, "parts")
    monkeypatch.setattr(loop.Trainer, "step", step)
    torch.manual_seed(99)  # nothing may hang on what was drawn outside of the run
    resumed = train(config, "parts", resume=True)
    assert steps[-1] == 7
    assert_same(tensors_of("parts", 12), tensors_of("whole", 12))
    assert {key: resumed[key] for key in ("valid", "test", "evaluated_step")} == {
        key: summary[key] for key in ("valid", "test", "evaluated_step")
    }
    untimed = [{key: line[key] for key in ("kind", "step", "loss")} for line in read_metrics(Path("parts/metrics.jsonl"))]
    wanted = [{key: line[key] for key in ("kind", "step", "loss")} for line in read_metrics(Path("whole/metrics.jsonl"))]
    assert untimed == wanted
    assert [line["step"] for line in wanted] == [*sorted(line["step"] for line in wanted[:-1]), wanted[-1]["step"]]


def test_a_checkpoint_is_a_model() -> None:
    train(RUNS["text"], "out")
    for path in ("out/checkpoints/last", "out/checkpoints/step-000012"):
        model = models.load(path)
        assert isinstance(model, models.LUTTransformer)
        saved = load_file(Path(path) / "model.safetensors")
        assert all(torch.equal(tensor, saved[name]) for name, tensor in model.state_dict().items())
    config = read_config("out/checkpoints/last/config.toml")
    assert config.train == RUNS["text"].train
    assert config == read_config("out/config.toml")
    train(RUNS["dense twin"], "twin")
    assert isinstance(models.load("twin/checkpoints/best"), models.DenseTransformer)


@pytest.mark.parametrize("gradient", ["dense", "sparse"])
def test_parts_of_a_batch_add_up_to_it(gradient: str) -> None:
    kind = {"tables": {"kind": "sgd"}, "rest": {"kind": "sgd"}}
    for parts in (1, 4):
        config = classifier_config(model={"gradient": gradient}, optimizer=kind, train={"accumulate": parts, "clip": 0.5})
        train(config, f"out{parts}")
    one, four = (load_file(f"out{parts}/checkpoints/last/model.safetensors") for parts in (1, 4))
    for name in one:
        torch.testing.assert_close(four[name], one[name], rtol=1e-4, atol=1e-6)


def by_hand(config: Config, steps: int) -> torch.nn.Module:
    """The same training written out plainly: AdamW by its formula, on the batches of the run."""
    from lutetia.nn import table_parameters
    from lutetia.training.batches import Batches
    from lutetia.training.data import open_data
    from lutetia.training.schedule import factor
    from lutetia.training.state import seed_all
    from lutetia.training.task import build_model

    seed_all(config.train.seed)
    model = build_model(config.model)
    batches = Batches(open_data(config.data, ".").splits["train"], config.train.batch_size, seed=config.train.seed)
    tables = {id(p) for p in table_parameters(model)}
    memory = {id(p): (torch.zeros_like(p), torch.zeros_like(p)) for p in model.parameters()}
    for step in range(steps):
        ((x, y),) = batches.take(*batches.at(step))
        scores = model(x)
        loss = (scores.logsumexp(-1) - scores[torch.arange(len(y)), y]).mean()
        loss = loss + config.regularize.cell_variation * cell_total_variation(model.layers[0])
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        scale = min(1.0, config.train.clip / (sum(float(g.square().sum()) for g in gradients) ** 0.5 + 1e-6))
        with torch.no_grad():
            for p, g in zip(model.parameters(), gradients, strict=True):
                options = config.optimizer.tables if id(p) in tables else config.optimizer.rest
                rate = options.lr * factor(config.schedule, step / steps, 1 / steps)
                decay = options.weight_decay if p.dim() > 1 and id(p) not in tables else 0.0
                first, second = memory[id(p)]
                first.lerp_(g * scale, 0.1)
                second.lerp_((g * scale) ** 2, 0.05)
                hat1, hat2 = first / (1 - 0.9 ** (step + 1)), second / (1 - 0.95 ** (step + 1))
                p.sub_(rate * decay * p + rate * hat1 / (hat2.sqrt() + 1e-8))
    return model


def test_the_run_is_the_one_written_out_by_hand() -> None:
    config = classifier_config(train={"clip": 0.3}, regularize={"cell_variation": 2.0})
    train(config, "out")
    trained = load_file("out/checkpoints/last/model.safetensors")
    wanted = by_hand(config, 12).state_dict()
    for name, tensor in trained.items():
        torch.testing.assert_close(tensor, wanted[name], rtol=2e-4, atol=2e-6)


def test_evaluation_is_over_all_of_a_split() -> None:
    summary = train(classifier_config(), "out")
    model = models.load(summary["checkpoint"]).eval()
    import numpy as np

    arrays = np.load("samples.npz")
    for split, part in (("valid", slice(35, 45)), ("test", slice(45, 50))):
        with torch.no_grad():
            scores = model(torch.from_numpy(arrays["x"][part]))
        y = torch.from_numpy(arrays["y"][part])
        assert summary[split]["accuracy"] == pytest.approx((scores.argmax(-1) == y).float().mean().item())
        assert summary[split]["loss"] == pytest.approx(torch.nn.functional.cross_entropy(scores, y).item(), rel=1e-5)
    text = train(RUNS["text"], "text")
    assert text["test"]["bits_per_byte"] == pytest.approx(text["test"]["loss"] / 0.6931471805599453)


def test_patience_ends_a_run_and_the_best_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    losses = iter([3.0, 1.0, 2.0, 1.5, 1.2, 1.1])
    evaluate = loop.Trainer.evaluate

    def scripted(self: loop.Trainer, split: str, limit: int | None = None) -> dict[str, float]:
        return {"loss": next(losses)} if limit else evaluate(self, split, limit)

    monkeypatch.setattr(loop.Trainer, "evaluate", scripted)
    config = classifier_config(train={"steps": 100, "patience": 3, "eval_batches": 1}, checkpoint={"every": 2, "keep": 1})
    summary = train(config, "out")
    assert (summary["stopped"], summary["step"], summary["evaluated_step"]) == ("patience", 20, 8)
    assert checkpoint.steps_in(Path("out/checkpoints")) == [8, 20]
    assert state_of("out", 20)["best"] == {"step": 8, "loss": 1.0}
    assert summary["checkpoint"] == "out/checkpoints/step-000008"
    again = train(config, "out", resume=True)
    assert (again["stopped"], again["step"], again["test"]) == ("patience", 20, summary["test"])


def test_minutes_end_a_run_and_drive_its_schedule(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    step = loop.Trainer.step

    def slow(self: loop.Trainer) -> None:
        now[0] += 1.0
        step(self)

    monkeypatch.setattr(loop.Trainer, "step", slow)
    monkeypatch.setattr(loop.time, "perf_counter", lambda: now[0])
    tables = classifier_tables(train={"minutes": 0.2, "log_every": 1}, schedule={"kind": "linear", "warmup": 0.0, "floor": 0.0})
    del tables["train"]["steps"]
    summary = train(make_config(tables), "out")
    assert (summary["stopped"], summary["step"], summary["seconds"]) == ("minutes", 13, 12.0)  # the first step is not counted
    rates = [line["lr_tables"] for line in read_metrics(Path("out/metrics.jsonl")) if line["kind"] == "train"]
    assert rates == pytest.approx([0.05 * (1 - max(n - 1, 0) / 12) for n in range(13)])


def test_a_loss_that_is_no_number_ends_the_run() -> None:
    config = classifier_config(optimizer={"rest": {"kind": "sgd", "lr": 1e30}, "tables": {"kind": "sgd", "lr": 1e30}})
    with pytest.raises(JobError, match=r"the loss is nan at step \d+: a lower rate"):
        train(config, "out")
    for step in checkpoint.steps_in(Path("out/checkpoints")):
        assert state_of("out", step)["loss_sum"] < float("inf")


def test_weights_that_are_no_numbers_are_never_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    step = loop.Trainer.step

    def spoil(self: loop.Trainer) -> None:
        step(self)
        if self.position.step == 10:  # the losses so far are finite
            next(self.model.parameters()).data.flatten()[3] = float("nan")

    monkeypatch.setattr(loop.Trainer, "step", spoil)
    with pytest.raises(JobError, match=r"the weights are not finite at step 10: a lower rate .* step 8, .* continue .* --resume"):
        train(classifier_config(train={"log_every": 100}), "out")
    assert checkpoint.steps_in(Path("out/checkpoints"))[-1] < 10
    monkeypatch.setattr(loop.Trainer, "step", step)
    loud = Loud()
    lower = classifier_config(
        optimizer={"tables": {"lr": 0.01}, "rest": {"lr": 0.002}}, train={"clip": 1.0, "log_every": 100}, schedule={"warmup": 0.5}
    )
    assert train(lower, "out", resume=True, show=loud)["step"] == 12
    assert loud.said[0].startswith("out continues with a changed config: ")
    for change in (
        "optimizer.tables.lr was 0.05 and is 0.01 now",
        "optimizer.rest.lr was 0.02 and is 0.002 now",
        "train.clip was None and is 1.0 now",
        "schedule.warmup was 0.2 and is 0.5 now",
    ):
        assert change in loud.said[0]
    assert read_config("out/config.toml").optimizer.tables.lr == 0.01
    rates = [line["lr_tables"] for line in read_metrics(Path("out/metrics.jsonl")) if line["kind"] == "train"]
    assert 0 < rates[-1] <= 0.01


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_a_signal_saves_and_resumes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    number = getattr(signal, name)
    train(RUNS["adamw"], "whole")
    step = loop.Trainer.step

    def interrupted(self: loop.Trainer) -> None:
        step(self)
        if self.position.step == 3:
            os.kill(os.getpid(), number)
            if name == "SIGHUP":  # a terminal may send it twice
                os.kill(os.getpid(), number)

    before = signal.signal(number, signal.SIG_DFL)  # under nohup the tests inherit that it is ignored
    monkeypatch.setattr(loop.Trainer, "step", interrupted)
    try:
        summary = train(RUNS["adamw"], "out")
        assert signal.getsignal(number) is signal.SIG_DFL
    finally:
        signal.signal(number, before)
    assert (summary["stopped"], summary["step"]) == ("interrupted", 3)
    assert checkpoint.steps_in(Path("out/checkpoints")) == [3]
    assert [line["step"] for line in read_metrics(Path("out/metrics.jsonl"))] == [3]
    monkeypatch.setattr(loop.Trainer, "step", step)
    train(RUNS["adamw"], "out", resume=True)
    assert_same(tensors_of("out", 12), tensors_of("whole", 12))


def test_a_run_under_nohup_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    step = loop.Trainer.step

    def hung_up(self: loop.Trainer) -> None:
        step(self)
        os.kill(os.getpid(), signal.SIGHUP)

    monkeypatch.setattr(loop.Trainer, "step", hung_up)
    try:
        assert train(RUNS["adamw"], "out")["stopped"] == "steps"
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_good_checkpoints_outlive_a_damaged_one() -> None:
    """The damaged one has the highest number until the run has come as far again."""
    config = classifier_config(checkpoint={"keep": 1, "every": 2}, train={"eval_every": 0})
    train(config, "out")
    shutil.copytree("out/checkpoints/step-000012", "out/checkpoints/step-000999")
    (Path("out/checkpoints/step-000999/model.safetensors")).write_bytes(b"no")
    loud = Loud()
    summary = train(
        classifier_config(checkpoint={"keep": 1}, train={"eval_every": 0, "steps": 15}), "out", resume=True, show=loud
    )
    assert "set aside as damaged-step-000999" in loud.said[1]
    assert summary["step"] == 15
    assert checkpoint.steps_in(Path("out/checkpoints")) == [15]
    assert models.load("out").config == models.load("out/checkpoints/last").config
    assert Path("out/checkpoints/last").readlink() == Path("step-000015")
    assert Path("out/checkpoints/damaged-step-000999").is_dir()


def test_a_damaged_best_checkpoint_is_told_and_the_last_one_evaluated(monkeypatch: pytest.MonkeyPatch) -> None:
    losses = iter([1.0, 2.0, 3.0])
    evaluate, step = loop.Trainer.evaluate, loop.Trainer.step

    def scripted(self: loop.Trainer, split: str, limit: int | None = None) -> dict[str, float]:
        return {"loss": next(losses)} if limit else evaluate(self, split, limit)

    def damage(self: loop.Trainer) -> None:
        step(self)
        if self.position.step == 12:
            (Path("out/checkpoints") / checkpoint.name_of(4) / "model.safetensors").write_bytes(b"no")

    monkeypatch.setattr(loop.Trainer, "evaluate", scripted)
    monkeypatch.setattr(loop.Trainer, "step", damage)
    loud = Loud()
    summary = train(classifier_config(train={"eval_batches": 1}), "out", show=loud)
    assert (summary["evaluated_step"], summary["checkpoint"]) == (12, "out/checkpoints/step-000012")
    assert len(loud.said) == 1
    assert "model.safetensors has 2 bytes" in loud.said[0]
    assert "(damaged-step-000004), so the last one is evaluated" in loud.said[0]


TAMPERED: dict[str, tuple[dict[str, Any], str]] = {
    "no step": ({"step": None}, "step in state.json is None"),
    "a step in words": ({"step": "seven"}, "step in state.json is 'seven'"),
    "a negative step": ({"step": -3}, "step in state.json is -3"),
    "time without end": ({"elapsed": float("inf")}, "elapsed in state.json is inf"),
    "a best of nothing": ({"best": {}}, "step-000012 cannot be used: KeyError: 'step'"),
    "no optimiser": ({"optimizer": 3}, "step-000012 cannot be used: AttributeError"),
}


@pytest.mark.parametrize("change", TAMPERED)
def test_a_state_that_was_tampered_with_is_refused(change: str) -> None:
    values, said = TAMPERED[change]
    config = classifier_config()
    train(config, "out")
    path = Path("out/checkpoints/step-000012")
    content = checkpoint.read(path)
    content.texts["state.json"] = json.dumps(content.state | values)
    checkpoint.write(path.parent, 12, content)
    with pytest.raises(DataError, match=said):
        train(config, "out", resume=True)


def test_weights_of_another_shape_are_refused() -> None:
    config = classifier_config()
    train(config, "out")
    path = Path("out/checkpoints/step-000012")
    content = checkpoint.read(path)
    name = next(iter(content.tensors["model.safetensors"]))
    content.tensors["model.safetensors"][name] = torch.zeros(1)
    checkpoint.write(path.parent, 12, content)
    with pytest.raises(DataError, match=rf"step-000012 cannot be used: .*{name}"):
        train(config, "out", resume=True)


def test_a_damaged_checkpoint_is_said_and_the_one_before_it_used() -> None:
    config = classifier_config(checkpoint={"keep": 3})
    train(config, "out")
    shutil.copytree("out", "whole")
    (Path("out/checkpoints") / checkpoint.name_of(12) / "optimizer.safetensors").write_bytes(b"no")
    loud = Loud()
    train(config, "out", resume=True, show=loud)
    assert "step-000012" in loud.said[0]
    assert "going back to the checkpoint before it" in loud.said[0]
    assert loud.said[1] == "resuming from out/checkpoints/step-000010"
    assert_same(tensors_of("out", 12), tensors_of("whole", 12))


def test_other_data_is_refused(tmp_path: Path) -> None:
    config = classifier_config()
    train(config, "out")
    write_samples(tmp_path, n=60)
    with pytest.raises(DataError, match=r"step-000012 was trained on other data: its fingerprint is sha256:"):
        train(config, "out", resume=True)


def test_a_folder_that_is_taken_is_refused(tmp_path: Path) -> None:
    config = classifier_config()
    train(config, "out")
    before = sorted((path, path.stat().st_mtime_ns) for path in Path("out").rglob("*") if path.name != ".lock")
    with pytest.raises(DataError, match="out already holds a run: continue it with --resume"):
        train(config, "out")
    with pytest.raises(DataError, match=r"another config: optimizer\.rest\.weight_decay was 0\.01 and is 0\.02 now"):
        train(classifier_config(optimizer={"rest": {"weight_decay": 0.02}}), "out", resume=True)
    with pytest.raises(DataError, match=r"another config: model\.initial_noise was 0\.1 and is 0\.2 now"):
        train(classifier_config(model={"initial_noise": 0.2}), "out", resume=True)
    folder = RunFolder(Path("out"))
    folder._take(0.0)
    with pytest.raises(DataError, match="out is in use by another run"):
        train(config, "out", resume=True)
    folder.close()
    assert sorted((path, path.stat().st_mtime_ns) for path in Path("out").rglob("*") if path.name != ".lock") == before
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine.txt").write_text("mine")
    with pytest.raises(DataError, match=r"other holds mine\.txt and no run"):
        train(config, "other")
    with pytest.raises(DataError, match="is a file, or lies in one"):
        train(config, "other/mine.txt")


def test_a_lock_that_another_run_just_took_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """One run takes the folder while another has looked for the lock and not opened it yet."""
    first, second, third = (RunFolder(Path("out")) for _ in range(3))
    opened = os.open

    def slow(*arguments: Any) -> int:
        monkeypatch.setattr(os, "open", opened)
        first._take(0.0)
        return opened(*arguments)

    monkeypatch.setattr(os, "open", slow)
    with pytest.raises(DataError, match="out is in use by another run"):
        second.open(classifier_config(), resume=False)
    second.abandon()
    with pytest.raises(DataError, match="out is in use by another run"):
        third.open(classifier_config(), resume=False)
    third.abandon()
    assert os.listdir("out") == [".lock"]
    first.abandon()
    assert os.listdir("out") == []


def test_who_waits_for_a_folder_gets_it_though_the_last_user_removes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = RunFolder(Path("out")), RunFolder(Path("out"))
    assert first.open(classifier_config(), resume=False) == []
    monkeypatch.setattr(folder_module.time, "sleep", lambda _: first.abandon())
    assert second.open(classifier_config(), resume=False, patience=60.0) == []
    third = RunFolder(Path("out"))
    with pytest.raises(DataError, match="out is in use by another run"):
        third._take(0.0)
    second.abandon()
    assert not Path("out").exists()


def test_a_longer_run_may_go_on() -> None:
    train(classifier_config(), "out")
    summary = train(classifier_config(train={"steps": 15}), "out", resume=True)
    assert summary["step"] == 15


def test_resume_of_nothing_starts_and_says_so() -> None:
    loud = Loud()
    summary = train(classifier_config(), "out", resume=True, show=loud)
    assert summary["step"] == 12
    assert loud.said == ["out has no checkpoint to resume from: starting at step 0"]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"train": {"precision": "fp16"}}, 'train.precision is "fp16", expected "bf16" or "float32" on a CPU'),
        ({"train": {"batch_size": 100}}, "train.batch_size is 100, expected at most the 35 samples"),
        (
            {"model": SPARSE, "optimizer": {"tables": {"kind": "sgd"}}, "regularize": {"cell_variation": 1}},
            "has a dense gradient",
        ),
        ({"model": {"input_shape": [8]}}, "[model] does not take samples of shape [7], as [data] has"),
        ({"model": {"n_classes": 2}}, "[model] scores 2 classes, expected the 3 that [data] has"),
        ({"data": {"kind": "bytes", "path": "text.txt", "test": 9}}, "[model] needs samples with classes, but [data] has text"),
    ],
)
def test_what_does_not_fit_is_refused_before_a_folder_is_made(more: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        train(classifier_config(**more), "out")
    assert message in str(caught.value)
    assert not Path("out").exists()


def test_a_text_shorter_than_the_context_is_named() -> None:
    with pytest.raises(ArgumentError, match=r"the valid text has 8 bytes, expected more than model\.context, 8"):
        train(transformer_config(data={"valid": 8}), "out")


@pytest.mark.slow
def test_compiled_steps_are_the_same_steps() -> None:
    require_module("torch._inductor")
    for compiled in (False, True):
        train(classifier_config(train={"compile": compiled, "steps": 3}), f"out{compiled}")
    one, other = (load_file(f"out{compiled}/checkpoints/last/model.safetensors") for compiled in (False, True))
    for name in one:
        torch.testing.assert_close(other[name], one[name], rtol=1e-4, atol=1e-5)


def test_tensorboard_and_the_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    require_module("tensorboard")
    require_module("matplotlib")
    monkeypatch.setattr(run, "draw", draw)
    summary = train(classifier_config(train={"tensorboard": True}), "$o_{ut}")
    assert summary["picture"] == "$o_{ut}/loss.png"
    assert Path("$o_{ut}/loss.png").read_bytes().startswith(b"\x89PNG")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator("$o_{ut}/tensorboard")
    events.Reload()
    lines = [line for line in read_metrics(Path("$o_{ut}/metrics.jsonl")) if line["kind"] == "train"]
    found = events.Scalars("loss/train")
    assert [event.step for event in found] == [line["step"] for line in lines] == [3, 6, 9, 12]
    assert [event.value for event in found] == pytest.approx([line["loss"] for line in lines])
    assert json.loads(Path("$o_{ut}/summary.json").read_text()) == summary


def test_without_tensorboard_it_says_so_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    loud = Loud()
    summary = train(classifier_config(train={"tensorboard": True}), "out", show=loud)
    assert summary["step"] == 12
    assert len(loud.said) == 1
    assert "train.tensorboard needs tensorboard" in loud.said[0]


def test_layers_in_place_step_at_the_rate_of_the_schedule() -> None:
    rates = []
    step = LUT.forward

    config = classifier_config(model={"gradient": "in_place"}, schedule={"kind": "linear", "warmup": 0.0, "floor": 0.0})

    def watch(self: LUT, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            rates.append(self.external_lr)
        return step(self, x)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LUT, "forward", watch)
        train(config, "out")
    assert rates == pytest.approx([0.05 * (1 - n / 12) for n in range(12)])
    before = models.LUTClassifier(**{key: value for key, value in config.model.items() if key != "kind"}, seed=0)
    assert not torch.equal(models.load("out/checkpoints/last").layers[0].weight, before.layers[0].weight)
