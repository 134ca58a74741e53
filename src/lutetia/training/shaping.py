"""Pruning and freezing of a network of gates in steps, while it is trained.

A pruned table is a constant for good, so it costs no LUT, and tables that read it become simpler. The tables that cost the least
loss, to first order, go first: the gradient of the loss with respect to a table's answers, times the change that the constant
makes. The remaining tables have the rest of the run to adapt. Frozen wiring no longer changes, layer by layer, which saves the
longest part of a step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lutetia.errors import ArgumentError
from lutetia.models import GateNetwork, Gates
from lutetia.training.config import Regularize

ROUNDS = 8
BEGIN, END = 0.2, 0.6  # between these parts of the run tables are pruned
Samples = Iterable[tuple[Tensor, Tensor]]


class Shaping:
    """`prune` is the fraction of tables to remove, `freeze` the fraction of the run after which no wiring is learned. Called
    before each step with the fraction of the run that is done; returns whether the step's computation has changed.
    """

    def __init__(self, gates: Gates, prune: float, freeze: float, samples: Callable[[], Samples]) -> None:
        self.gates, self.prune, self.freeze, self.samples = gates, prune, freeze, samples
        self.round = 0  # of pruning

    def __call__(self, done: float) -> bool:
        """Prune and freeze what is due."""
        due = rounds_due(done)
        if self.prune and due > self.round:  # in a run that goes on, what was pruned before counts
            prune(self.gates, self.prune * due / ROUNDS, self.samples())
        self.round = due
        return freeze_wiring(self.gates, done, self.freeze)


def rounds_due(done: float) -> int:
    """How many rounds of pruning are due by now."""
    return min(max(0, int(ROUNDS * (done - BEGIN) / (END - BEGIN)) + 1), ROUNDS) if done >= BEGIN else 0


def freeze_wiring(gates: Gates, done: float, freeze: float) -> bool:
    """Layer n of L keeps its wiring from n / L of `freeze` on; whether any layer has changed."""
    layers = gates.layers()
    changed = False
    for number, (choice, _) in enumerate(layers, 1):
        learns = freeze >= 1 or done < freeze * number / len(layers)
        changed |= choice.requires_grad != learns
        choice.requires_grad_(learns)
    return changed


def prune(gates: Gates, share: float, samples: Samples) -> None:
    """Make the least useful tables of each layer constants, until this share of them is."""
    harms, usual = _harms(gates, samples)
    for number, (harm, out, value) in enumerate(zip(harms, gates.pruned(), usual, strict=True)):
        wanted = round(share * len(out)) - int(out.sum())
        if wanted > 0:
            chosen = harm.masked_fill(out, torch.inf).argsort()[:wanted]
            gates.prune_(number, chosen, value[chosen])


def _harms(gates: Gates, samples: Samples) -> tuple[list[Tensor], list[Tensor]]:
    """Roughly how much the loss would grow if each table were constant, [n_tables], and that constant, its usual answer."""
    batches = [(x, y) for x, y in samples]
    with torch.no_grad():
        given = [gates.answers(x) for x, _ in batches]
        highs = [torch.cat([layer > 0 for layer in layers]).double().mean(0) > 0.5 for layers in zip(*given, strict=True)]
    lows = [0.0] * (len(highs) - 1) + [-1.0]
    harms = [torch.zeros(len(high), device=high.device) for high in highs]
    for x, y in batches:
        answers = gates.answers(x)
        slopes = torch.autograd.grad(F.cross_entropy(gates.count(answers[-1]), y), answers)
        for harm, answer, slope, high, low in zip(harms, answers, slopes, highs, lows, strict=True):
            harm += (slope * (torch.where(high, 1.0, low) - answer.detach())).sum(0)
    return harms, highs


def shaping_of(
    model: nn.Module, wanted: Regularize, n_processes: int, batches: Callable[[], Samples] = lambda: ()
) -> Shaping | None:
    """The pruning and freezing that [regularize] asks for, or None. Refuses settings that are only for gates."""
    given = {"area": wanted.area, "prune": wanted.prune, "freeze": wanted.freeze}
    for name, nothing in (("area", 0.0), ("prune", 0.0), ("freeze", 1.0)):
        if given[name] != nothing and not isinstance(model, GateNetwork):
            raise ArgumentError(f'regularize.{name} is {given[name]}, expected {nothing:g}: it is only for kind = "gates"')
    if not isinstance(model, GateNetwork) or (not wanted.prune and wanted.freeze >= 1):
        return None
    if n_processes > 1:
        raise ArgumentError("regularize.prune and regularize.freeze are for one process, expected 0 and 1 for several")
    gates = model.votes
    assert isinstance(gates, Gates)
    return Shaping(gates, wanted.prune, wanted.freeze, lambda: ((model.quantise(x), y) for x, y in batches()))
