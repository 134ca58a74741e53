"""The torch.library ops: opcheck, torch.compile, torch.export, and what they remember of tensors."""

from __future__ import annotations

import gc
import io
import threading
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch

from lut.oracle import META, WIRINGS, Case, gradients, make_case
from lutetia import flow
from lutetia._shared.memo import Memo
from lutetia.errors import ArgumentError
from lutetia.lut import lut, use_backend
from lutetia.lut.autograd.how import NO_WIRES, How, how_of, text_of
from lutetia.lut.connectivity.anchors import anchors_seen
from lutetia.lut.connectivity.full import synapses_of, synapses_seen
from lutetia.lut.kernels import choice

OPS = ("lut_eval", "lut", "lut_weight_gradients", "lut_gradients")


def how_arguments(case: Case) -> tuple[Any, ...]:
    """What every op ends with."""
    if case.synapses is None:
        return (*NO_WIRES, text_of(How(backend="reference", meta=META)))
    return (*case.synapses.tensors().values(), text_of(How(backend="reference", header=case.synapses.header_text)))


def op_and_arguments(name: str, case: Case) -> tuple[Any, tuple[Any, ...]]:
    """An op, and arguments for it."""
    how, named = how_arguments(case), getattr(torch.ops.lutetia, name.split()[0]).default
    tensors = (case.x, case.weight, case.anchors)
    if name == "lut_eval":
        return named, (*tensors, *how)
    if name == "lut":
        case.x.requires_grad_()
        case.weight.requires_grad_()
        return named, (*tensors, *how)
    _, indices, *deltas = torch.ops.lutetia.lut(*tensors, *how)
    if name.startswith("lut_gradients"):
        found = (case.grad, case.weight, indices, *deltas, case.anchors)
        return named, (*found, case.x.shape[1], case.x.dtype, name == "lut_gradients", *how)
    return named, (case.grad, indices, None, None, None, None, 0, 0, list(case.weight.shape), case.weight.dtype, *how)


@pytest.mark.parametrize("name", [*OPS, "lut_gradients of x"])
@pytest.mark.parametrize(("wiring", "dtype"), [*((wiring, torch.float32) for wiring in WIRINGS), ("fc", torch.bfloat16)])
def test_opcheck(name: str, wiring: str, dtype: torch.dtype) -> None:
    op, arguments = op_and_arguments(name, make_case(wiring, dtype=dtype))
    done = torch.library.opcheck(op, arguments)
    assert set(done) == {"test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic"}
    assert set(done.values()) == {"SUCCESS"}


def test_every_op_is_checked_above() -> None:
    made = {
        name.split("::")[1].split(".")[0] for name in map(str, torch._C._dispatch_get_all_op_names()) if "lutetia::lut" in name
    }
    made = {name for name in made if "attention" not in name}
    # The last two are checked in test_plain.py; `lut_alone` is `lut` without its formula.
    assert made == {*OPS, "lut_alone", "lut_layer", "lut_layer_gradients"}


# ---- compiled --------------------------------------------------------------------------------------------------------


def run_and_differentiate(layer: Callable[..., torch.Tensor], case: Case) -> tuple[torch.Tensor, ...]:
    x, weight = case.x.clone().requires_grad_(), case.weight.clone().requires_grad_()
    y = layer(x, weight)
    y.backward(case.grad)
    assert x.grad is not None
    assert weight.grad is not None
    return y.detach(), x.grad, weight.grad


@pytest.mark.parametrize("compiler", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
@pytest.mark.parametrize("wiring", WIRINGS)
def test_one_graph_compiles(compiler: str, wiring: str) -> None:
    case = make_case(wiring)

    def layer(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return lut(x * 2, weight, case.anchors, **case.options) + 1

    torch._dynamo.reset()
    compiled = torch.compile(layer, backend=compiler, fullgraph=True, dynamic=True)
    other = make_case(wiring, (5, 8, 5, 3, 4))
    with use_backend("reference"):
        torch.testing.assert_close(run_and_differentiate(compiled, case), run_and_differentiate(layer, case))
        with torch.no_grad():
            torch.testing.assert_close(compiled(other.x, case.weight), layer(other.x, case.weight))


@pytest.mark.parametrize("sums", ["float", "fixed"])  # the usual options take a shorter way
def test_one_function_is_compiled_for_layers_of_several_sizes(sums: str) -> None:
    """The compiler makes sizes that change symbols. A power of one is more than the code generator of torch 2.11 can write."""
    symbols: list[set[int]] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        symbols.append({each.node.hint for each in inputs if isinstance(each, torch.SymInt)})
        return graph

    torch._dynamo.reset()
    compiled = torch.compile(lambda x, weight, anchors: lut(x, weight, anchors, sums=sums), backend=backend, fullgraph=True)
    for sizes in ((6, 11, 5, 7, 2), (6, 12, 5, 8, 3), (6, 13, 5, 9, 4)):
        case = make_case("fc", sizes)
        torch.testing.assert_close(compiled(case.x, case.weight, case.anchors), lut(case.x, case.weight, case.anchors, sums=sums))
    assert symbols[0] == set()
    assert symbols[1]  # some sizes are
    assert 3 not in symbols[1]
    assert 4 not in symbols[2]


def test_a_compiled_layer_follows_use_backend() -> None:
    case = make_case("fc", (3, 5, 3, 2, 2))
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: lut(x, case.weight, case.anchors), backend="aot_eager", fullgraph=True)
    for name in ("reference", "triton", "reference"):
        with use_backend(name), flow.record() as recorded:
            torch.testing.assert_close(compiled(case.x), lut(case.x, case.weight, case.anchors))
        assert {step.attributes["backend"] for step in recorded.steps} == {name}


# ---- exported --------------------------------------------------------------------------------------------------------


class Layer(torch.nn.Module):
    def __init__(self, case: Case) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(case.weight.clone())
        self.register_buffer("anchors", case.anchors)
        self.case = case

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return lut(x, self.weight, self.anchors, **self.case.options)  # type: ignore[arg-type]


@pytest.mark.parametrize("learning", [False, True])
@pytest.mark.parametrize("wiring", WIRINGS)
def test_an_exported_layer_takes_any_batch_and_survives_a_file(wiring: str, learning: bool) -> None:
    case = make_case(wiring)
    with use_backend("reference"), torch.set_grad_enabled(learning):
        program = torch.export.export(Layer(case), (case.x,), dynamic_shapes=({0: torch.export.Dim("batch")},))
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    loaded = torch.export.load(file).module()
    for batch in (1, 4, 11):
        x = make_case(wiring, (batch, 8, 5, 3, 4), seed=batch).x
        want = gradients(x, case.dense(), case.anchors, torch.ones(batch, 5))[0]
        torch.testing.assert_close(loaded(x).detach(), want)


@pytest.mark.parametrize("gradient", ["sparse", "in_place"])
def test_export_treats_every_policy_as_dense(gradient: str) -> None:
    case = make_case("fc")

    class Policy(Layer):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return lut(x, self.weight, self.anchors, gradient=gradient, external_lr=0.1)  # type: ignore[arg-type]

    program = torch.export.export(Policy(case), (case.x,))
    assert torch.ops.lutetia.lut.default in [node.target for node in program.graph.nodes]


# ---- what is remembered ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wiring", ["general", "shared"])
def test_synapses_are_rebuilt_once_and_forgotten_with_their_tensors(wiring: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = make_case(wiring)
    assert case.synapses is not None
    tensors = tuple(tensor.clone() for tensor in case.synapses.tensors().values())
    header = case.synapses.header_text
    gc.collect()
    known = len(synapses_seen.known)
    first = synapses_of(*tensors, header)
    assert first == case.synapses
    assert synapses_of(*tensors, header) is first
    assert synapses_of(*tensors, header.replace("0.25", "0.5")) is not first
    tensors[2][0] = tensors[2][0]
    assert synapses_of(*tensors, header) is not first, "a tensor that was written to may hold something else"
    del tensors
    gc.collect()
    assert len(synapses_seen.known) == known


def test_synapses_that_are_damaged_are_refused() -> None:
    case = make_case("general")
    start, targets, meta, how = how_arguments(case)
    targets = targets.clone()
    targets[3] = 99
    with pytest.raises(ValueError, match="has output 99, expected 0 to 4"):
        torch.ops.lutetia.lut_eval(case.x, case.weight, case.anchors, start, targets, meta, how)


def test_checked_anchors_are_forgotten_with_their_tensor() -> None:
    case = make_case("fc")
    gc.collect()
    known = len(anchors_seen.known)
    anchors = case.anchors.clone()
    with use_backend("reference"):
        lut(case.x, case.weight, anchors)
    assert len(anchors_seen.known) == known + 1
    del anchors
    gc.collect()
    assert len(anchors_seen.known) == known


def test_what_is_kept_on_cuda_is_made_by_a_thread_that_has_no_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where torch.compile warms a graph up: what this thread allocates goes to the pool of the graph, another's does not."""
    used: list[tuple[str, int]] = []
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: "ours")
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext(used.append((stream, threading.get_ident()))))
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    memo, tensor = Memo(lambda tensor, extra: threading.get_ident()), torch.zeros(1)
    maker = memo.get((tensor,), None)
    assert used == [("ours", maker)]  # in the stream of this thread: nobody has to wait
    assert maker != threading.get_ident()
    assert memo.get((tensor,), None) == maker

    def refuse(tensor: torch.Tensor, extra: object) -> None:
        raise ArgumentError("no")

    with pytest.raises(ArgumentError, match="no"):
        Memo(refuse).get((tensor,), None)


def test_the_default_backend_is_left_open_in_a_graph() -> None:
    """A program that was exported on a CPU must choose again on a GPU."""
    assert choice.chosen == ""
    case = make_case("fc")
    program = torch.export.export(Layer(case), (case.x,))
    (node,) = (node for node in program.graph.nodes if node.target is torch.ops.lutetia.lut.default)
    assert how_of(node.args[-1]).backend == ""
