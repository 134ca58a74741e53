"""A whole training step as one CUDA graph, so that Python launches no kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from lutetia.training.config import Config
from lutetia.training.distributed import World
from lutetia.training.optimizers import Optimizers

WARM_STEPS = 3  # launched from Python, before the capture: they compile kernels and make what optimisers remember
Part = tuple[Tensor, Tensor]  # x, target


class GraphedStep:
    """Steps that are launched from Python at first, then captured, then replayed with other batches.

    `work` computes one step from the parts of a batch. It must always do the same on the device, whatever the numbers are.
    """

    def __init__(self, work: Callable[[Sequence[Part]], None], forget: Callable[[], None], say: Callable[[str], None]) -> None:
        self.work, self.forget, self.say = work, forget, say
        self.graph: torch.cuda.CUDAGraph | None = None
        self.warm, self.refused = 0, False
        self.parts: list[Part] = []  # where the graph finds its batch
        self.stream = torch.cuda.Stream()

    def __call__(self, parts: Sequence[Part]) -> None:
        """Take one step."""
        if self.graph is None and self.warm == WARM_STEPS and not self.refused:
            self._capture(parts)
        if self.graph is None:
            self._launch(parts)
            return
        for kept, given in zip(self.parts, parts, strict=True):
            for place, tensor in zip(kept, given, strict=True):
                place.copy_(tensor)
        self.graph.replay()

    def _launch(self, parts: Sequence[Part]) -> None:
        """From Python, on the stream of the capture: memory and gradients then belong to it."""
        self.warm = min(self.warm + 1, WARM_STEPS)
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            self.work(parts)
        torch.cuda.current_stream().wait_stream(self.stream)

    def _capture(self, parts: Sequence[Part]) -> None:
        """Capture a step, which does not take it."""
        self.parts = [(x.clone(), target.clone()) for x, target in parts]
        self.forget()  # gradients of the step before: the graph makes its own
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, stream=self.stream):
                self.work(self.parts)
        except RuntimeError as error:
            self.refused, self.parts = True, []
            torch.cuda.synchronize()
            self.forget()
            reason = str(error).splitlines()[0]
            self.say(f"train.graph: this step cannot be captured ({reason}); it is launched from Python instead")
            return
        self.graph = graph


def hinders_capture(config: Config, world: World, optimizers: Optimizers) -> str | None:
    """Why the steps of this run are not captured: "" where it goes without saying, a reason to show, or None if they are."""
    if world.device.type != "cuda" or not config.train.graph:
        return ""
    if world.size > 1:
        return "there are several processes"
    if config.train.precision == "fp16":
        return 'the loss scale of precision "fp16" is decided on the host'
    if optimizers.in_place:
        return 'tables with gradient = "in_place" take their rate from the host'
    kinds = {type(optimizer).__name__ for optimizer in optimizers.by_name.values()} - {"AdamW", "RowAdam"}
    return f"{' and '.join(sorted(kinds))} cannot be captured" if kinds else None
