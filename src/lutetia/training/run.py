"""`train`: from a config to a trained model in its own folder."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from lutetia.errors import DataError, MissingFeatureError
from lutetia.files import write_atomically
from lutetia.training import checkpoint, distributed
from lutetia.training.config import Config, read_config
from lutetia.training.data import open_data
from lutetia.training.distributed import World
from lutetia.training.folder import RunFolder
from lutetia.training.loop import Trainer
from lutetia.training.metrics import FILE, draw
from lutetia.training.progress import Display, Silent
from lutetia.training.signals import Caught, catch_signals
from lutetia.training.state import seed_all
from lutetia.training.task import build_model, check_fit, metadata_of, table_of
from lutetia.training.watch import is_lost

RESTART_PATIENCE = 60.0  # seconds that a restarted run waits for the one before it to be gone


def train(
    config: str | Path | Config,
    out: str | Path,
    *,
    resume: bool = False,
    device: str | None = None,
    data: str | Path | None = None,
    overrides: Sequence[str] = (),
    show: Display | None = None,
) -> dict[str, Any]:
    """Train what a config file, or a `Config`, describes, in the folder `out`; returns the summary.

    `resume` continues from the newest intact checkpoint in `out`, or starts at step 0. `data` is the folder that data paths are
    relative to, by default that of the config file. Under torchrun every process makes the same call, and a restart resumes
    automatically. The summary's `stopped` is "steps", "minutes", "patience", or "interrupted" by Ctrl-C, SIGTERM or SIGHUP.
    """
    show = show or Silent()
    name = "config" if isinstance(config, Config) else str(config)
    settings = config if isinstance(config, Config) else read_config(config, overrides)
    place = Path(data) if data is not None else (Path() if isinstance(config, Config) else Path(config).parent)
    opened = open_data(settings.data, place, checkpoint.classes_in(RunFolder(Path(out)).checkpoints) if resume else ())
    seed_all(settings.train.seed)  # before the model, which may be drawn from torch's own generator
    model = build_model(settings.model, name)
    settings = dataclasses.replace(settings, model=table_of(model))
    check_fit(model, opened)
    model.metadata = metadata_of(model, opened)
    with catch_signals() as caught:
        world = distributed.start(device, settings.parallel.detectors, settings.parallel.timeout)
        if world.watch is not None and world.is_first:
            world.watch.say = show.say
        if world.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(world.device)  # a run before this one does not count
        folder = RunFolder(Path(out))
        try:
            summary = _train(Trainer(settings, opened, model, world, folder, show), resume or world.restarts > 0, caught)
        except BaseException as error:
            folder.abandon()
            if world.watch is not None and isinstance(error, RuntimeError) and is_lost(error):
                raise world.watch.lost(error) from error
            raise
        folder.close()
        distributed.finish(world)  # not after an error: the other ranks may be gone, and shutting down would wait forever
        return summary


def _train(trainer: Trainer, again: bool, caught: Caught) -> dict[str, Any]:
    """Claim the folder, now that everything fits, and train to the end."""
    world = trainer.world
    if world.is_first:
        changes = trainer.folder.open(trainer.config, again, RESTART_PATIENCE if world.restarts else 0.0)
        if changes:
            trainer.show.say(f"{trainer.folder.path} continues with a changed config: {', '.join(changes)}")
    distributed.wait_for_all(world)
    if again:
        _go_on(trainer)
    return _finish(trainer, trainer.run(caught))


def _go_on(trainer: Trainer) -> None:
    """Restore the newest intact checkpoint, the same on all ranks: the first rank finds it, and sets damaged ones aside."""
    world, folder = trainer.world, trainer.folder.checkpoints
    say = trainer.show.say if world.is_first else lambda text: None
    newest = checkpoint.newest(folder, say) if world.is_first else None
    (step,) = distributed.largest([-1.0 if newest is None else float(checkpoint.step_of(newest[0]))], world)
    if step < 0:
        say(f"{trainer.folder.path} has no checkpoint to resume from: starting at step 0")
        return
    path = folder / checkpoint.name_of(int(step))
    trainer.restore(checkpoint.read(path) if newest is None else newest[1], str(path))
    say(f"resuming from {path}")


def _finish(trainer: Trainer, stopped: str) -> dict[str, Any]:
    """Evaluate the best weights in full, draw the picture, and return the summary."""
    at, folder, world = trainer.position, trainer.folder, trainer.world
    summary: dict[str, Any] = {
        "out": str(folder.path),
        "task": trainer.metadata["task"],
        "stopped": stopped,
        "step": at.step,
        "epoch": at.step / trainer.batches.per_epoch,
        "seconds": at.elapsed,
        "weights": trainer.n_weights,
        "checkpoint": str(folder.checkpoints / checkpoint.name_of(at.step)),
        **_device_facts(world),
        "processes": world.size,
        "fingerprint": trainer.data.fingerprint,
    }
    if stopped == "interrupted":
        return summary
    step = _restore_best(trainer)
    summary |= {"checkpoint": str(folder.checkpoints / checkpoint.name_of(step)), "evaluated_step": step}
    summary |= {split: trainer.evaluate(split) for split in ("valid", "test") if split in trainer.data.splits}
    if world.is_first:
        _leave(trainer, summary)
    return summary


def _restore_best(trainer: Trainer) -> int:
    """Restore the weights of the best evaluation; the step they are of, which is the last where that checkpoint is damaged."""
    at, world = trainer.position, trainer.world
    if at.best is None or at.best["step"] == at.step:
        return at.step
    path = trainer.folder.checkpoints / checkpoint.name_of(at.best["step"])
    try:
        best, why = checkpoint.read(path), ""
    except DataError as error:
        best, why = None, str(error)
    (damaged,) = distributed.largest([float(best is None)], world)
    if best is None or damaged:
        if world.is_first:
            aside = checkpoint.set_aside(path).name if path.exists() else "missing"
            trainer.show.say(f"{why or path}: the best checkpoint cannot be read ({aside}), so the last one is evaluated")
        return at.step
    trainer.restore_weights(best)
    return int(at.best["step"])


def _leave(trainer: Trainer, summary: dict[str, Any]) -> None:
    """Write the final files of a run to its folder."""
    folder = trainer.folder.path
    if "test" in summary:
        with open(folder / FILE, "a", encoding="utf-8") as file:
            file.write(json.dumps({"kind": "test", "step": summary["evaluated_step"], **summary["test"]}) + "\n")
    try:
        summary["picture"] = str(draw(folder, folder.name))
    except MissingFeatureError as error:
        trainer.show.say(f"{error}; the run has no picture")
    with write_atomically(folder / "summary.json") as file:
        file.write((json.dumps(summary, indent=2) + "\n").encode())


def _device_facts(world: World) -> dict[str, Any]:
    """The device of this process, and the most bytes of a GPU that the run's tensors have taken at a time."""
    if world.device.type != "cuda":
        return {"device": "cpu"}
    return {
        "device": torch.cuda.get_device_name(world.device),
        "peak_memory": torch.cuda.max_memory_allocated(world.device),
    }
