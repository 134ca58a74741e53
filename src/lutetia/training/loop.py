"""The training loop: steps, evaluations, checkpoints, and an end."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from lutetia.errors import ArgumentError, DataError, JobError
from lutetia.models import METADATA_FILE, Model, area_of, check_metadata, dump_metadata
from lutetia.nn import LUT
from lutetia.training import checkpoint, distributed
from lutetia.training.batches import Batches, derive, in_order
from lutetia.training.config import Config
from lutetia.training.data import Data
from lutetia.training.distributed import World
from lutetia.training.evaluate import autocast, evaluation_sums
from lutetia.training.folder import RunFolder
from lutetia.training.graphs import GraphedStep, hinders_capture
from lutetia.training.metrics import Metrics
from lutetia.training.optimizers import clip_gradients, make_optimizers
from lutetia.training.progress import Display
from lutetia.training.resharding import full_state_dict, load_full_state_dict, spread_parameters
from lutetia.training.rounding import check_rounding, rounded_tables
from lutetia.training.schedule import factor
from lutetia.training.shaping import shaping_of
from lutetia.training.sharding import shard_detectors
from lutetia.training.signals import Caught
from lutetia.training.state import pack_optimizer, pack_rng, seed_all, unpack_optimizer, unpack_rng
from lutetia.training.task import context_of, distilled, is_better, load_teachers, loss_of, metrics_of, set_thresholds, variation

FORMAT = 1  # of state.json


@dataclass
class Position:
    """The progress of a run: what a checkpoint holds besides weights, optimisers and random generators."""

    step: int = 0
    elapsed: float = 0.0  # seconds of training, without evaluations, checkpoints and the first step of each process
    best: dict[str, Any] | None = None  # the best evaluation, with its step
    waited: int = 0  # evaluations since then
    loss_sum: float = 0.0  # since the last line of metrics
    loss_count: int = 0


def make_position(state: dict[str, Any]) -> Position:
    """The progress in state.json, whose values must be non-negative numbers."""
    position = Position(**{key: state[key] for key in Position.__dataclass_fields__})
    for name, kind in (
        ("step", int),
        ("elapsed", (int, float)),
        ("waited", int),
        ("loss_sum", (int, float)),
        ("loss_count", int),
    ):
        value = getattr(position, name)
        if isinstance(value, bool) or not isinstance(value, kind) or not 0 <= value < math.inf:
            raise ValueError(f"{name} in state.json is {value!r}, expected a number of at least 0")
    best = position.best
    if best is not None and not (isinstance(best["step"], int) and isinstance(best["loss"], float)):
        raise ValueError(f"best in state.json is {best!r}, expected a step and a loss")
    return position


class Trainer:
    """One run of one config on one process; `run` trains to an end and returns which one."""

    def __init__(self, config: Config, data: Data, model: Model[Any], world: World, folder: RunFolder, show: Display) -> None:
        self.config, self.data, self.world, self.folder, self.show = config, data, world, folder, show
        train = config.train
        self.metadata = check_metadata(model.metadata, model.config)  # now, and not when the first checkpoint is due
        self.model = model.to(world.device)
        set_thresholds(self.model, data)  # a checkpoint to resume from brings its own
        self.n_weights = sum(parameter.numel() for parameter in model.parameters())
        if world.mesh is not None:
            shard_detectors(self.model, world.mesh)
        self.spread = spread_parameters(self.model)
        self.context = context_of(model)
        shares: dict[str, Any] = {"rank": world.data_rank, "world": world.data_size, "parts": train.accumulate}
        options: dict[str, Any] = {
            "context": self.context,
            "seed": train.seed,
            "shift": config.data.shift,
            "warp": config.data.warp,
            "device": world.device,
        }
        self.batches = Batches(data.splits["train"], train.batch_size, **options, **shares)
        self.optimizers = make_optimizers(self.model, config.optimizer)
        self._check()
        self.position = Position()
        self.shaping = shaping_of(self.model, config.regularize, world.size, lambda: self.batches.ahead(self.position.step))
        self.total_steps = train.epochs * self.batches.per_epoch if train.epochs else train.steps
        self.scaler = torch.amp.GradScaler(world.device.type, enabled=train.precision == "fp16")
        self.by_hand = distributed.averages_by_hand(self.model, world)
        wrapped = distributed.parallel(self.model, world)
        self.fast: Callable[[Tensor], Tensor] = torch.compile(wrapped) if train.compile else wrapped
        self.wrapped = wrapped
        self.teacher = load_teachers(self.config.regularize.teacher, self.model, world.device)
        self._loss = torch.zeros((), device=world.device)
        self._norm = torch.zeros(())
        self._metrics: Metrics | None = None
        self._graphed = self._make_graphed()
        # Drop-out must differ between ranks that see other data; those that share detectors must draw alike.
        seed_all(derive(train.seed, "rank", world.data_rank))

    def _check(self) -> None:
        train = self.config.train
        check_rounding(train.table_bits, bool(self.optimizers.in_place), self.world.mesh is not None)
        if train.precision == "fp16" and self.world.device.type != "cuda":
            raise ArgumentError('train.precision is "fp16", expected "bf16" or "float32" on a CPU')
        if train.precision == "fp16" and self.world.mesh is not None:
            raise ArgumentError('train.precision is "fp16", expected "bf16" or "float32" with parallel.detectors: each rank '
                                "would have its own loss scale")  # fmt: skip
        if self.optimizers.in_place:
            if self.world.size > 1:
                raise ArgumentError('[model] gradient is "in_place", expected "dense" or "sparse" for several processes')
            if train.precision == "fp16":
                raise ArgumentError('[model] gradient is "in_place", whose steps know no loss scale: expected precision "bf16"')
        if self.config.regularize.cell_variation and any(
            isinstance(module, LUT) and module.gradient != "dense" for module in self.model.modules()
        ):
            raise ArgumentError('regularize.cell_variation has a dense gradient, expected gradient = "dense" in [model]')

    # ---- the loop ----------------------------------------------------------------------------------------------------

    def run(self, caught: Caught) -> str:
        """Train to an end: "steps", "minutes", "patience" or "interrupted". A checkpoint holds where it stopped."""
        first = self.world.is_first
        tensorboard = self.config.train.tensorboard
        self._metrics = Metrics(self.folder.path, self.position.step, tensorboard, self.show.say) if first else None
        try:
            return self._run(caught)
        finally:
            if self._metrics is not None:
                self._metrics.close()

    def _run(self, caught: Caught) -> str:
        at, train, every = self.position, self.config.train, self.config.checkpoint.every
        reason = self._reason(caught)
        fresh = True  # compiling belongs to the first step, and not to the time of training
        mark, marked = time.perf_counter(), at.step
        while reason is None:
            begun = time.perf_counter()
            self.step()
            if train.minutes is not None and at.step % train.log_every == 0:
                self._synchronize()
            at.elapsed += 0.0 if fresh else time.perf_counter() - begun
            if fresh:
                self._synchronize()
                mark, marked, fresh = time.perf_counter(), at.step, False
            reason = self._reason(caught)
            logs = at.step % train.log_every == 0 or reason not in (None, "interrupted")
            if logs and at.loss_count:
                speed = (at.step - marked) / max(time.perf_counter() - mark, 1e-9)
                self._log(speed)
                mark, marked = time.perf_counter(), at.step
            elif not logs:
                self.show.update(self.done(), at.step, {})
            paused = time.perf_counter()
            improved = False
            if reason != "interrupted" and self._evaluates(reason):
                improved = self._evaluate_on_the_way()
                reason = reason or self._reason(caught)
            if improved or reason is not None or at.step % every == 0:
                self.save()
            mark += time.perf_counter() - paused
        return reason

    def _reason(self, caught: Caught) -> str | None:
        """The reason to stop now, or None. All ranks get the same answer."""
        at, train = self.position, self.config.train
        at.elapsed, signal = distributed.largest([at.elapsed, float(caught.signal is not None)], self.world)
        if self.total_steps is not None and at.step >= self.total_steps:
            return "steps"
        if train.minutes is not None and at.elapsed >= 60 * train.minutes:
            return "minutes"
        if train.patience is not None and at.waited >= train.patience:
            return "patience"
        return "interrupted" if signal else None

    def done(self) -> float:
        """The fraction of the run that is done."""
        parts = [self.position.step / self.total_steps] if self.total_steps else []
        if self.config.train.minutes:
            parts.append(self.position.elapsed / (60 * self.config.train.minutes))
        return min(max(parts), 1.0)

    def step(self) -> None:
        """One step of the optimisers, on one batch in the configured number of parts."""
        at = self.position
        if not self.model.training:
            self.model.train()
        rate = factor(self.config.schedule, self.done(), 1 / self.total_steps if self.total_steps else 0.0)
        self.optimizers.set_rates(rate)
        if self.shaping is not None and self.shaping(self.done()):  # a captured step would go on as before
            self._graphed = self._make_graphed()
        parts = self.batches.take(*self.batches.at(at.step))
        if self._graphed is None:
            self._work(parts)
        else:
            self._graphed(list(parts))
        at.step += 1
        at.loss_count += 1
        if self.world.watch is not None:
            self.world.watch.moved(at.step)

    def _make_graphed(self) -> GraphedStep | None:
        """What captures the steps, where that can be done."""
        hindrance = hinders_capture(self.config, self.world, self.optimizers)
        if hindrance is not None:
            if hindrance:
                self.show.say(f"train.graph: {hindrance}; steps are launched from Python")
            return None
        self.optimizers.keep_rates_on_device()
        return GraphedStep(self._work, self.optimizers.zero_grad, self.show.say)

    def _work(self, parts: Iterable[tuple[Tensor, Tensor]]) -> None:
        """What one step computes."""
        # On this thread: to hand a backward pass to torch's thread of the device can take as long as to launch it.
        with rounded_tables(self.model, self.config.train.table_bits), torch.autograd.set_multithreading_enabled(False):
            self._backward(parts)
        self._apply()

    def _backward(self, parts: Iterable[tuple[Tensor, Tensor]]) -> None:
        train = self.config.train
        for number, (x, target) in enumerate(parts):
            last = number == train.accumulate - 1
            with distributed.without_sync(self.wrapped, last):
                with autocast(self.world.device.type, train.precision):
                    scores = self.fast(x)
                loss = loss_of(scores, target)
                if self.teacher is not None:
                    with torch.no_grad():
                        taught = self.teacher(x)
                    loss = distilled(loss, scores, taught, self.config.regularize.distil)
                loss = loss / train.accumulate
                self._loss += loss.detach()
                if last and self.config.regularize.cell_variation:
                    loss = loss + self.config.regularize.cell_variation * variation(self.model)
                if last and self.config.regularize.area:
                    loss = loss + self.config.regularize.area / 1000 * area_of(self.model)  # type: ignore[operator]
                self.scaler.scale(loss).backward()

    def _apply(self) -> None:
        parameters = self.optimizers.parameters()
        if self.by_hand:
            distributed.average_gradients(parameters, self.world)
        if self.config.train.clip is not None:
            for optimizer in self.optimizers.by_name.values():
                self.scaler.unscale_(optimizer)
            group = None if self.world.mesh is None else self.world.mesh.get_group()
            self._norm = clip_gradients(self.optimizers.clipped(), self.config.train.clip, self.spread, group)
        for optimizer in self.optimizers.by_name.values():
            self.scaler.step(optimizer)
        self.scaler.update()
        self.optimizers.zero_grad()

    def _synchronize(self) -> None:
        if self.world.device.type == "cuda":
            torch.cuda.synchronize(self.world.device)

    # ---- telling -----------------------------------------------------------------------------------------------------

    def _mean_loss(self) -> float:
        """The mean loss since the last line; a loss that is not finite ends the run."""
        at = self.position
        mean = (at.loss_sum + float(distributed.total(self._loss, self.world)) / self.world.data_size) / at.loss_count
        if not math.isfinite(mean):
            raise self._diverged(f"the loss is {mean}")
        return mean

    def _diverged(self, what: str) -> JobError:
        kept = checkpoint.steps_in(self.folder.checkpoints)
        before = (
            f"step {kept[-1]}, the last checkpoint, precedes it: continue from it with --resume" if kept else "no step was saved"
        )
        return JobError(
            f"{what} at step {self.position.step}: a lower rate (optimizer.tables.lr, optimizer.rest.lr), a longer "
            f"schedule.warmup or train.clip may help; {before}"
        )

    def _check_weights(self) -> None:
        """Refuse to save weights that are not finite, on all ranks."""
        bad = torch.zeros((), dtype=torch.bool, device=self.world.device)
        for parameter in self.model.parameters():
            own = parameter.to_local() if isinstance(parameter, DTensor) else parameter
            bad |= ~torch.isfinite(own.detach()).all()
        if distributed.largest([float(bad)], self.world)[0]:
            raise self._diverged("the weights are not finite")

    def _log(self, steps_per_second: float) -> None:
        at, train = self.position, self.config.train
        loss = self._mean_loss()
        self._loss.zero_()
        at.loss_sum, at.loss_count = 0.0, 0
        count = train.batch_size * (self.context or 1)
        values: dict[str, Any] = {"loss": loss, "epoch": at.step / self.batches.per_epoch}
        if self.context:
            values["bits_per_byte"] = loss / math.log(2)
        for name, optimizer in self.optimizers.by_name.items():
            values[f"lr_{name}"] = float(optimizer.param_groups[0]["lr"])
        if train.clip is not None:
            values["gradient_norm"] = float(self._norm)
        values |= {"per_second": steps_per_second * count, "elapsed": at.elapsed}
        if self._metrics is not None:
            self._metrics.write("train", at.step, values)
        done = self.done()
        left = (1 - done) / done * at.elapsed if done else 0.0
        self.show.update(done, at.step, {**values, "left": left})

    # ---- evaluation --------------------------------------------------------------------------------------------------

    def _evaluates(self, reason: str | None) -> bool:
        every = self.config.train.eval_every
        return "valid" in self.data.splits and bool(every) and (self.position.step % every == 0 or reason is not None)

    def _evaluate_on_the_way(self) -> bool:
        """Evaluate on the validation data; whether that was the best so far."""
        at = self.position
        if at.best is not None and at.best["step"] == at.step:
            return False  # done before a restart
        found = self.evaluate("valid", self.config.train.eval_batches)
        rounding = {"table_bits": bits} if (bits := self.config.train.table_bits) else {}
        comparable = at.best if at.best and at.best.get("table_bits") == bits else None  # a resumed run may round to other bits
        improved = is_better(found, comparable)
        at.best, at.waited = ({"step": at.step, **rounding, **found}, 0) if improved else (at.best, at.waited + 1)
        if self._metrics is not None:
            self._metrics.write("valid", at.step, found)
        self.show.update(self.done(), at.step, found)
        return improved

    def evaluate(self, split: str, limit: int | None = None) -> dict[str, float]:
        """The metrics of a split; `limit` counts batches."""
        world, train = self.world, self.config.train
        shares: dict[str, Any] = {"device": world.device, "rank": world.data_rank, "world": world.data_size}
        batches = in_order(self.data.splits[split], train.batch_size, context=self.context, limit=limit, **shares)
        with rounded_tables(self.model, train.table_bits):
            sums = evaluation_sums(self.model, batches, world.device, train.precision)
        return metrics_of(distributed.total(sums, world), self.context is not None)

    # ---- checkpoints -------------------------------------------------------------------------------------------------

    def save(self) -> None:
        """Write a checkpoint of the current state, and delete the ones no longer needed."""
        content = self.collect()
        if self.world.is_first:
            folder, best = self.folder.checkpoints, self.position.best
            checkpoint.write(folder, self.position.step, content)
            checkpoint.prune(folder, self.config.checkpoint.keep, best["step"] if best else None)
        distributed.wait_for_all(self.world)

    def collect(self) -> checkpoint.Content:
        """Everything a checkpoint holds; every rank must call this."""
        at = self.position
        self._check_weights()
        if at.loss_count:
            at.loss_sum = self._mean_loss() * at.loss_count
            self._loss.zero_()
        epoch, index = self.batches.at(at.step)
        state: dict[str, Any] = {"format": FORMAT, **asdict(at), "epoch": epoch, "index": index}
        state |= {"data_folder": os.path.abspath(self.data.folder), "fingerprint": self.data.fingerprint}
        state |= {
            "world": self.world.size,
            "threads": torch.get_num_threads(),
            "detectors": self.world.detectors,
            "device": self.world.device.type,
            "torch": torch.__version__,
            "scaler": self.scaler.state_dict(),
        }
        rng = distributed.gather(pack_rng(self.world.device), self.world)
        tensors: dict[str, Tensor] = {}
        weights: dict[str, Tensor] = {}
        state["optimizer"] = {}
        if self.world.data_rank == 0:  # the others have the same, and would fill the memory of their hosts with it
            for name, optimizer in self.optimizers.by_name.items():
                found, state["optimizer"][name] = pack_optimizer(self.model, optimizer)
                tensors |= {f"{name}/{key}": tensor for key, tensor in found.items()}
            weights = full_state_dict(self.model)
        return checkpoint.Content(
            {"model.safetensors": weights, "optimizer.safetensors": tensors, "rng.safetensors": rng},
            {
                "config.toml": self.config.to_toml(),
                METADATA_FILE: dump_metadata(self.metadata),
                "state.json": json.dumps(state, indent=2) + "\n",
            },
        )

    def restore(self, content: checkpoint.Content, name: str) -> None:
        """Restore the run from a checkpoint; `name` is its name in messages."""
        state = content.state
        if state.get("format") != FORMAT:
            raise DataError(f"{name} has the format {state.get('format')!r}, expected {FORMAT}: another version has written it")
        if state.get("fingerprint") != self.data.fingerprint:
            raise DataError(f"{name} was trained on other data: its fingerprint is {state.get('fingerprint')}, "
                            f"that of [data] is {self.data.fingerprint}")  # fmt: skip
        try:
            position = make_position(state)
            self._changed(state, name)
            self.restore_weights(content)
            self._restore_optimizers(content.tensors["optimizer.safetensors"], state["optimizer"])
            if state["scaler"]:
                self.scaler.load_state_dict(state["scaler"])
            self._restore_rng(content.tensors["rng.safetensors"], state)
        except (KeyError, TypeError, ValueError, AttributeError, RuntimeError, OverflowError) as error:
            raise DataError(f"{name} cannot be used: {type(error).__name__}: {' '.join(str(error).split())}") from error
        self.position = position

    def _restore_optimizers(self, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
        for kind, optimizer in self.optimizers.by_name.items():
            prefix = f"{kind}/"
            own = {key.removeprefix(prefix): tensor for key, tensor in tensors.items() if key.startswith(prefix)}
            unpack_optimizer(self.model, optimizer, own, values.get(kind, {}))

    def _restore_rng(self, rng: dict[str, Tensor], state: dict[str, Any]) -> None:
        prefix = f"{self.world.rank}/"
        if (state["world"], state.get("detectors", 1)) == (self.world.size, self.world.detectors):
            unpack_rng({key.removeprefix(prefix): each for key, each in rng.items() if key.startswith(prefix)}, self.world.device)
        else:  # no process had this rank before
            seed_all(derive(self.config.train.seed, "rank", self.world.data_rank, state["step"]))

    def restore_weights(self, content: checkpoint.Content) -> None:
        """Load the weights of a checkpoint."""
        load_full_state_dict(self.model, content.tensors["model.safetensors"])

    def _changed(self, state: dict[str, Any], name: str) -> None:
        """Report what may change the last bits of the numbers from here on."""
        state = {"detectors": 1, **state}
        now = {"world": self.world.size, "detectors": self.world.detectors, "threads": torch.get_num_threads(),
               "device": self.world.device.type, "torch": torch.__version__}  # fmt: skip
        words = {
            "world": "processes",
            "detectors": "processes that share detectors",
            "threads": "threads",
            "device": "device",
            "torch": "torch",
        }
        changed = [f"{words[key]} {state[key]} then, {now[key]} now" for key in now if state[key] != now[key]]
        if changed and self.world.is_first:
            self.show.say(f"{name}: {', '.join(changed)}; the run continues, but not bit for bit as it would have")
