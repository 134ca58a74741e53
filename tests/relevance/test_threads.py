"""Several threads explain models at once, and others run them meanwhile."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator

import pytest
import torch
import torch._dynamo
from torch import Tensor, nn

from lutetia import relevance
from lutetia.relevance.replaced import replaced, watching
from relevance.residual import data

PATCHED = (
    (torch.nn.functional, "has_torch_function"),
    (torch.autograd.function._SingleLevelFunction, "apply"),
    (torch.jit.ScriptFunction, "__call__"),
    (torch._C.ScriptMethod, "__call__"),
)


@pytest.fixture(autouse=True)
def frequent_switches() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def together(*jobs: Callable[[], None]) -> None:
    """Run jobs in threads of their own; an error in one is raised here."""
    errors: list[BaseException] = []

    def run(job: Callable[[], None]) -> None:
        try:
            job()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(job,)) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def test_threads_explain_a_frozen_model_at_once() -> None:
    """Each finds what it finds alone, another thread runs the model meanwhile, and nothing of torch stays replaced."""
    before = [vars(holder).get(name) for holder, name in PATCHED]
    model = nn.TransformerEncoderLayer(8, 2, 9, 0.0, batch_first=True).double().eval().requires_grad_(False)
    inputs = [data(2, 3, 8) + at for at in range(3)]
    alone = [relevance.attribute(model, x, wrt=["linear1"]) for x in inputs]

    def explain(at: int) -> Callable[[], None]:
        def job() -> None:
            for _ in range(8):
                r = relevance.attribute(model, inputs[at], wrt=["linear1"])
                torch.testing.assert_close(r[inputs[at]], alone[at][inputs[at]])
                torch.testing.assert_close(r["linear1"], alone[at]["linear1"])
                assert not r.report.unseen

        return job

    def use() -> None:
        for _ in range(40):
            model(inputs[0])

    together(*map(explain, range(3)), use)
    assert [vars(holder).get(name) for holder, name in PATCHED] == before
    assert not any(parameter.requires_grad for parameter in model.parameters())
    graphs: list[object] = []
    torch.compile(lambda x: x + 1, backend=lambda graph, _: graphs.append(graph) or graph.forward)(inputs[0])
    assert len(graphs) == 1  # what is compiled is compiled again


def test_what_is_replaced_for_one_thread_acts_in_no_other() -> None:
    class Holder:
        @staticmethod
        def said() -> str:
            return "as it was"

    inside, done = threading.Event(), threading.Event()
    said: list[str] = []

    def make(original: Callable[[], str]) -> Callable[[], str]:
        return lambda: "replaced" if watching() else original()

    def first() -> None:
        with replaced(Holder, "said", make), relevance.watch(nn.Linear(2, 2)):
            said.append(Holder.said())
            inside.set()
            done.wait(10)

    def second() -> None:
        inside.wait(10)
        with replaced(Holder, "said", make):
            said.append(Holder.said())
            done.set()

    together(first, second)
    assert said == ["replaced", "as it was"]
    assert Holder.said() == "as it was"


def test_a_full_backward_hook_changes_nothing() -> None:
    """It puts nodes of its own around a module, also one that gives several tensors."""

    class Two(nn.Module):
        def forward(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
            return a * 2, (a + b).relu()

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.line, self.two, self.last = nn.Linear(4, 4), Two(), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            one, other = self.two(self.line(x), x)
            return self.last(one + other)

    model, x = Model().double(), data(3, 4)
    plain = relevance.attribute(model, x)[x]
    for module in model.modules():
        module.register_full_backward_hook(lambda *_: None)
    torch.testing.assert_close(relevance.attribute(model, x)[x], plain)
