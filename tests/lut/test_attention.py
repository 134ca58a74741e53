"""`lut_attention`: its value and gradients against the plain loop; policies, lengths, ops, graphs, checks, and its flow."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from lut.oracle import SEQUENCES, make_sequence, sequence_blend
from lutetia import flow
from lutetia.errors import ArgumentError, LutetiaError, OverflowInSumError
from lutetia.lut import SynapseMeta, Synapses, growth, kernels, lut_attention, random_anchors, use_backend
from lutetia.lut.algorithm import choose
from lutetia.lut.autograd.how import NO_WIRES, How, text_of
from lutetia.lut.kernels.names import NAMES
from lutetia.lut.sums import Sums

pytestmark = pytest.mark.filterwarnings("ignore:Converting a tensor with requires_grad")
SHAPE = SEQUENCES[3]  # B 2, S 17, I 6, O 3, N_t 2, N_c 2, N_pe 2
SMALL = (2, 5, 6, 3, 2, 2, 1)
ALGORITHMS = ("pairs", "cells")
META = SynapseMeta(lr_scale=0.75, min_weight=-0.5, max_weight=0.5)
METAS = (SynapseMeta(), SynapseMeta(lr_scale=0.25, min_weight=-0.5, max_weight=0.5))


@pytest.fixture(autouse=True)
def on_reference() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with use_backend("reference"):
        yield
    torch.set_num_threads(threads)


def leaves(case: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """x, positions, weight, each to be differentiated."""
    x, positions, weight = (case[name].clone().requires_grad_() for name in ("x", "positions", "weight"))
    return x, positions, weight


def oracle(case: dict[str, Tensor], grad: Tensor | None = None) -> tuple[Tensor, ...]:
    """y, dx, dpositions, dweight of the plain loop."""
    x, positions, weight = leaves(case)
    hard, smooth = sequence_blend(x, positions, case["anchors"], weight)
    wanted = (x, positions, weight)
    found = torch.autograd.grad(smooth, wanted, case["grad"] if grad is None else grad, allow_unused=True, materialize_grads=True)
    return hard.detach(), *found


def run(case: dict[str, Tensor], grad: Tensor | None = None, **options: Any) -> tuple[Tensor, ...]:
    """The same of the layer."""
    x, positions, weight = leaves(case)
    y = lut_attention(x, weight, case["anchors"], positions, **options)
    y.backward(case["grad"] if grad is None else grad)
    assert x.grad is not None
    assert positions.grad is not None
    assert weight.grad is not None
    return y.detach(), x.grad, positions.grad, weight.grad


def synapses_for(shape: tuple[int, ...], layout: str = "general") -> Synapses:
    *_, n_outputs, n_detectors, n_anchors, positional_dim = shape
    bits = 2 * n_anchors + positional_dim
    return growth.random(n_detectors, bits, n_outputs, 0.6, seed=1, shared=layout == "shared", metas=METAS)


def sparse_case(shape: tuple[int, ...], layout: str) -> tuple[dict[str, Tensor], dict[str, Tensor], Synapses]:
    """A case with a flat weight, and the dense one it stands for."""
    case, synapses = make_sequence(shape), synapses_for(shape, layout)
    flat = synapses.flatten(case["weight"])
    return case | {"weight": flat}, case | {"weight": synapses.expand(flat)}, synapses


# ---- value and gradients ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("shape", SEQUENCES)
def test_all_gradients_are_those_of_the_plain_loop(shape: tuple[int, ...], algorithm: str) -> None:
    case = make_sequence(shape)
    torch.testing.assert_close(run(case, algorithm=algorithm), oracle(case))


@pytest.mark.parametrize("backend", ["cpu", "triton"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_backend_gives_the_same(backend: str, algorithm: str) -> None:
    case = {name: tensor.float() if tensor.is_floating_point() else tensor for name, tensor in make_sequence(SMALL).items()}
    want = run(case, algorithm="pairs")
    with use_backend(backend):
        torch.testing.assert_close(run(case, algorithm=algorithm), want)


@pytest.mark.parametrize("layout", ["general", "shared"])
def test_missing_synapses(layout: str) -> None:
    case, dense, synapses = sparse_case(SMALL, layout)
    y, dx, dpositions, dweight = oracle(dense)
    scale = torch.tensor([meta.lr_scale for meta in METAS], dtype=torch.float64)[synapses.weight_meta.long()]
    want = (y, dx, dpositions, synapses.flatten(dweight) * scale)
    torch.testing.assert_close(run(case, synapses=synapses), want)


def test_positions_may_be_shared_by_all_detectors() -> None:
    case = make_sequence(SMALL)
    case["positions"] = case["positions"][:, :1]
    y, dx, dpositions, dweight = run(case)
    full = case | {"positions": case["positions"].expand(-1, 2, -1)}
    want = oracle(full)
    torch.testing.assert_close((y, dx, dpositions, dweight), (*want[:2], want[2].sum(1, keepdim=True), want[3]))


def test_longer_positions_than_the_sequence_learn_nothing_at_their_end() -> None:
    case = make_sequence(SMALL)
    want = run(case)
    longer = case | {"positions": torch.cat([case["positions"], torch.ones(3, 2, 1, dtype=torch.float64)])}
    y, dx, dpositions, dweight = run(longer)
    torch.testing.assert_close((y, dx, dpositions[:4], dweight), want)
    assert not dpositions[4:].any()


def test_lr_scale_is_for_the_weight_alone() -> None:
    case = make_sequence(SMALL)
    y, dx, dpositions, dweight = oracle(case)
    for algorithm in ALGORITHMS:
        torch.testing.assert_close(run(case, algorithm=algorithm, meta=META), (y, dx, dpositions, 0.75 * dweight))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_past_its_length_a_sequence_is_zero_and_silent(algorithm: str) -> None:
    case, lengths = make_sequence(SMALL), torch.tensor([3, 5])
    y, dx, dpositions, dweight = run(case, algorithm=algorithm, lengths=lengths)
    mask = (torch.arange(5) < lengths[:, None]).unsqueeze(-1)
    want = oracle(case, case["grad"] * mask)
    torch.testing.assert_close((y, dx, dpositions, dweight), (want[0] * mask, *want[1:]))
    assert not dx[0, 3:].any()
    alone = lut_attention(case["x"][:1, :3], case["weight"], case["anchors"], case["positions"])
    torch.testing.assert_close(y[:1, :3], alone)


def test_fixed_sums_are_the_same_bit_for_bit() -> None:
    case = {
        name: tensor.float() if tensor.is_floating_point() else tensor for name, tensor in make_sequence(SEQUENCES[5]).items()
    }
    want = run(case, sums="fixed", algorithm="pairs")
    torch.testing.assert_close(want, run(case), atol=1e-4, rtol=0)
    for backend in ("reference", "cpu"):
        for algorithm in ALGORITHMS:
            with use_backend(backend):
                got = run(case, sums="fixed", algorithm=algorithm)
            assert all(map(torch.equal, got, want)), (backend, algorithm)
    with pytest.raises(OverflowInSumError, match="a smaller int_rescaler"):
        lut_attention(case["x"], case["weight"] * 1e4, case["anchors"], case["positions"], sums="fixed")


@pytest.mark.parametrize(("of_x", "of_weight", "want"), [
    (torch.float32, torch.bfloat16, torch.float32),
    (torch.float16, torch.float16, torch.float16),
    (torch.float32, torch.float64, torch.float64),
])  # fmt: skip
def test_dtypes(of_x: torch.dtype, of_weight: torch.dtype, want: torch.dtype) -> None:
    case = make_sequence(SMALL)
    case["x"], case["weight"], case["positions"] = case["x"].to(of_x), case["weight"].to(of_weight), case["positions"].bfloat16()
    y, dx, dpositions, dweight = run(case, case["grad"].to(want))
    assert (y.dtype, dx.dtype, dpositions.dtype, dweight.dtype) == (want, of_x, torch.bfloat16, of_weight)
    exact = {name: tensor.double() if tensor.is_floating_point() else tensor for name, tensor in case.items()}
    torch.testing.assert_close(y.double(), oracle(exact)[0], rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("only", ["x", "positions", "weight"])
def test_only_what_is_asked_for_is_computed(only: str) -> None:
    case = make_sequence(SMALL)
    tensors = {name: case[name].clone().requires_grad_(name == only) for name in ("x", "positions", "weight")}
    with flow.record() as recorded:
        lut_attention(tensors["x"], tensors["weight"], case["anchors"], tensors["positions"]).backward(case["grad"])
    want = dict(zip(("x", "positions", "weight"), oracle(case)[1:], strict=True))[only]
    torch.testing.assert_close(tensors[only].grad, want)
    backward = [step.name for step in recorded.steps if step.name.startswith(("propagate", "gather"))]
    assert backward == ["gather_weight_gradients_seq_fc" if only == "weight" else "propagate_through_detectors_seq_fc"]


def test_no_second_derivative() -> None:
    case = make_sequence(SMALL)
    x, positions, weight = leaves(case)
    y = lut_attention(x, weight, case["anchors"], positions)
    (dx,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    with pytest.raises(LutetiaError, match="differentiated twice"):
        dx.sum().backward()


# ---- policies --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_sparse_gradient_holds_the_rows_that_were_read(algorithm: str) -> None:
    case, lengths = make_sequence(SMALL), torch.tensor([2, 5])
    case["grad"][1, 4] = 0.0  # read, and of no consequence
    *others, sparse = run(case, algorithm=algorithm, gradient="sparse", lengths=lengths, meta=META)
    *want, dense = run(case, algorithm=algorithm, lengths=lengths, meta=META)
    torch.testing.assert_close(others, want)
    assert sparse.is_coalesced()
    assert (sparse.sparse_dim(), sparse.dense_dim()) == (2, 1)
    torch.testing.assert_close(sparse.to_dense(), dense)
    assert torch.equal(sparse.indices(), (dense != 0).any(-1).nonzero().t())


@pytest.mark.parametrize("layout", ["general", "shared"])
def test_a_sparse_gradient_of_a_flat_weight(layout: str) -> None:
    case, _, synapses = sparse_case(SMALL, layout)
    *others, sparse = run(case, synapses=synapses, gradient="sparse")
    *want, dense = run(case, synapses=synapses)
    torch.testing.assert_close(others, want)
    assert sparse.is_coalesced()
    assert torch.equal(sparse.indices()[0], dense.nonzero().flatten())
    torch.testing.assert_close(sparse.to_dense(), dense)


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize("kind", ["pairs", "cells", "general", "shared"])
def test_a_step_in_place(kind: str, backend: str) -> None:
    case, synapses = make_sequence(SMALL), None
    if kind in ALGORITHMS:
        options: dict[str, Any] = {"algorithm": kind, "meta": META}
    else:
        case, _, synapses = sparse_case(SMALL, kind)
        options = {"synapses": synapses}
    if backend == "cpu":  # in float32, for which the kernels are compiled anyway
        case = {name: tensor.float() if tensor.is_floating_point() else tensor for name, tensor in case.items()}
    with use_backend("reference"):
        want = run(case, **options)
    x, positions, weight = leaves(case)
    with use_backend(backend):
        y = lut_attention(x, weight, case["anchors"], positions, gradient="in_place", external_lr=lambda: 0.1, **options)
    torch.autograd.grad(y, x, case["grad"], retain_graph=True)
    assert torch.equal(weight, case["weight"]), "no step when nobody asks for the weight's gradient"
    y.backward(case["grad"])
    torch.testing.assert_close((y.detach(), x.grad, positions.grad), want[:3])
    assert weight.grad is None
    after = case["weight"] - 0.1 * want[3]
    after = after.clamp(-0.5, 0.5) if synapses is None else synapses.clamp_(after)
    torch.testing.assert_close(weight.detach(), after)


@pytest.mark.parametrize("gradient", ["dense", "sparse", "in_place"])
def test_a_weight_may_learn_alone(gradient: str) -> None:
    case = make_sequence(SMALL)
    weight = case["weight"].clone().requires_grad_()
    y = lut_attention(case["x"], weight, case["anchors"], case["positions"], gradient=gradient, external_lr=1.0)
    y.backward(case["grad"])
    learned = case["weight"] - weight.detach() if weight.grad is None else weight.grad.to_dense()
    torch.testing.assert_close(learned, oracle(case)[3])


def test_two_uses_of_a_weight_take_one_step() -> None:
    case = make_sequence(SMALL)
    x, positions, weight = leaves(case)
    options: dict[str, Any] = {"meta": META, "gradient": "in_place", "external_lr": 0.1}
    long = lut_attention(x, weight, case["anchors"], positions, **options)
    short = lut_attention(x[:, :3], weight, case["anchors"], positions, **options)
    (long.sum() + short.sum()).backward()
    a = run(case, torch.ones_like(case["grad"]), meta=META)
    b = run(case | {"x": case["x"][:, :3]}, torch.ones_like(case["grad"][:, :3]), meta=META)
    dx = a[1].clone()
    dx[:, :3] += b[1]
    torch.testing.assert_close(x.grad, dx)
    torch.testing.assert_close(weight.detach(), (case["weight"] - 0.1 * (a[3] + b[3])).clamp(-0.5, 0.5))


def test_what_a_step_in_place_refuses() -> None:
    case = make_sequence(SMALL)
    x, positions, weight = leaves(case)
    call: Callable[..., Tensor] = lambda w, **o: lut_attention(x, w, case["anchors"], positions, gradient="in_place", **o)  # noqa: E731
    with pytest.raises(ArgumentError, match="external_lr is None"):
        call(weight)
    with pytest.raises(ArgumentError, match="external_lr is -1"):
        call(weight, external_lr=-1)
    with pytest.raises(ArgumentError, match="contiguous leaf"):
        call(weight * 2, external_lr=0.1)
    y = call(weight, external_lr=0.1)
    y.sum().backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


# ---- algorithm -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("length", "n_anchors", "positional_dim", "want"), [
    (512, 4, 4, "cells"), (1024, 4, 4, "cells"), (512, 3, 3, "cells"), (256, 4, 4, "cells"),
    (32, 6, 4, "pairs"), (128, 6, 4, "pairs"), (1, 1, 0, "pairs"),
])  # fmt: skip
def test_auto_counts_cells_when_they_are_fewer_than_positions(
    length: int, n_anchors: int, positional_dim: int, want: str
) -> None:
    sizes = (8, length, 64, 32, n_anchors, positional_dim)
    assert choose("auto", sizes, False, torch.float32, Sums("float")) == want
    assert choose("auto", sizes, True, torch.float32, Sums("float")) == "pairs"
    assert choose("auto", sizes, False, torch.float32, Sums("fixed")) == "pairs"
    assert choose("cells", sizes, False, torch.float32, Sums("float")) == "cells"


def test_products_are_cheaper_on_a_gpu() -> None:
    sizes = (32, 128, 32, 64, 4, 4)  # 256 cells, 128 positions
    assert [choose("auto", sizes, False, torch.float32, Sums("float"), device) for device in ("cpu", "cuda")] == [
        "pairs",
        "cells",
    ]
    sizes = (32, 128, 32, 64, 6, 4)
    assert choose("auto", sizes, False, torch.float32, Sums("float"), "cuda") == "pairs"


def test_the_choice_is_noted() -> None:
    x, anchors = torch.randn(1, 40, 4), random_anchors(4, 2, 2, seed=0)
    weight, positions = torch.randn(2, 2**4, 16), torch.randn(39, 2, 0)
    for algorithm, want in (("auto", "cells"), ("pairs", "pairs")):
        with use_backend("cpu"), flow.record() as recorded:
            lut_attention(x, weight, anchors, positions, algorithm=algorithm)
        assert recorded.steps[-1].attributes["algorithm"] == want


# ---- ops -------------------------------------------------------------------------------------------------------------


def op_and_arguments(name: str, sparse: bool) -> tuple[Any, tuple[Any, ...]]:
    case = make_sequence(SMALL)
    rest: tuple[Any, ...] = (*NO_WIRES, text_of(How(backend="reference", meta=SynapseMeta(lr_scale=0.75))))
    if sparse:
        case, _, synapses = sparse_case(SMALL, "general")
        rest = (*synapses.tensors().values(), text_of(How(backend="reference", header=synapses.header_text)))
    x, positions, weight = leaves(case)
    layer = (x, weight, case["anchors"], positions)
    op = getattr(torch.ops.lutetia, name).default
    if name == "lut_attention_eval":
        return op, (*(tensor.detach() for tensor in layer), *rest)
    if name == "lut_attention":
        return op, (*layer, *rest)
    found = [tensor.detach() for tensor in torch.ops.lutetia.lut_attention(*layer, *rest)[1:]]
    if name == "lut_attention_gradients":
        tensors = (case["grad"], weight.detach(), *found, case["anchors"])
        return op, (*tensors, 6, [4, 2, 1], torch.float64, torch.float64, sparse, *rest)
    return op, (case["grad"], found[0], None, None, None, found[3], 2, 1, list(weight.shape), torch.float64, *rest)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("name", ["lut_attention_eval", "lut_attention", "lut_attention_gradients", "lut_weight_gradients"])
def test_opcheck(name: str, sparse: bool) -> None:
    op, arguments = op_and_arguments(name, sparse)
    assert set(torch.library.opcheck(op, arguments).values()) == {"SUCCESS"}


@pytest.mark.parametrize("sparse", [False, True])
def test_one_graph_compiles_for_all_lengths(sparse: bool) -> None:
    case = make_sequence(SMALL)
    options: dict[str, Any] = {}
    if sparse:
        case, _, synapses = sparse_case(SMALL, "general")
        options = {"synapses": synapses}

    def layer(x: Tensor, positions: Tensor, weight: Tensor, lengths: Tensor) -> Tensor:
        return lut_attention(x * 2, weight, case["anchors"], positions, lengths=lengths, **options) + 1

    torch._dynamo.reset()
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True, dynamic=True)
    lengths, found = torch.tensor([3, 5]), []
    for call in (layer, compiled):
        x, positions, weight = leaves(case)
        y = call(x, positions, weight, lengths)
        y.backward(case["grad"])
        found.append((y.detach(), x.grad, positions.grad, weight.grad))
    torch.testing.assert_close(found[1], found[0])
    with torch.no_grad():
        shorter = (case["x"][:1, :4], case["positions"], case["weight"], lengths[:1])
        torch.testing.assert_close(compiled(*shorter), layer(*shorter))


# ---- flow ------------------------------------------------------------------------------------------------------------


def record(backend: str, algorithm: str) -> flow.Flow:
    case = {name: tensor.float() if tensor.is_floating_point() else tensor for name, tensor in make_sequence(SMALL).items()}
    with use_backend(backend), flow.record() as recorded:
        run(case, algorithm=algorithm)
    return recorded


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_a_training_step_by_pairs_is_drawn_as_in_the_diagrams(backend: str) -> None:
    recorded = record(backend, "pairs")
    names = [step.name for step in recorded.steps]
    fill, propagate, gather = "fill_outputs_seq_fc", "propagate_through_detectors_seq_fc", "gather_weight_gradients_seq_fc"
    assert names == ["check_detectors", "check_positions", fill, propagate, gather]
    assert all(step.parent is None and not step.failed for step in recorded.steps)
    steps = {step.name: step for step in recorded.steps}
    found = {"lookup_indices": (2, 5, 2), "min_anchor_deltas": (2, 5, 2), "min_anchor_delta_indices": (2, 5, 2)}
    pe = {name: (4, 2) for name in ("positional_lookup_indices", "positional_min_deltas", "positional_min_delta_indices")}
    shapes = lambda tensors: {info.name: info.shape for info in tensors}  # noqa: E731
    assert shapes(steps["check_detectors"].inputs) == {"input": (2, 5, 6), "anchors": (2, 2, 2)}
    assert shapes(steps["check_detectors"].outputs) == found
    assert shapes(steps["check_positions"].inputs) == {"positional_embeddings": (4, 2, 1)}
    assert shapes(steps["check_positions"].outputs) == pe
    assert shapes(steps[fill].outputs) == {"output": (2, 5, 3)}
    assert shapes(steps[propagate].outputs) == {"input_gradients": (2, 5, 6), "positional_gradients": (4, 2, 1)}
    assert shapes(steps[gather].outputs) == {"weight_gradients": (2, 32, 3)}
    edges = {(recorded.steps[e.source].name, e.input, recorded.steps[e.target].name) for e in recorded.edges}
    both = [("check_detectors", "lookup_indices"), ("check_positions", "positional_lookup_indices")]
    assert edges == {
        *((*source, target) for source in both for target in (fill, gather)),
        *(("check_detectors", name, propagate) for name in found),
        *(("check_positions", name, propagate) for name in pe),
    }


def test_cells_are_drawn_with_their_firing_statistics() -> None:
    recorded = record("reference", "cells")
    names = [step.name for step in recorded.steps]
    forward = ["check_detectors", "check_positions", "fill_firing_stat", "densify_firing_stat", "fill_outputs_by_firings"]
    assert names == [*forward, "propagate_through_cells_fc", "gather_weight_gradients_cells_fc"]
    edges = {(recorded.steps[edge.source].name, recorded.steps[edge.target].name) for edge in recorded.edges}
    assert {("fill_firing_stat", "densify_firing_stat"), ("densify_firing_stat", "fill_outputs_by_firings")} <= edges
    drawn = recorded.mermaid(symbols={"B": 2, "S": 5, "I": 6, "O": 3})
    assert "Firing Statistics" in drawn
    assert "Positional Lookup Indices" in drawn


def test_every_backend_has_every_kernel() -> None:
    for name in ("reference", "cpu", "triton"):
        assert all(callable(getattr(kernels(name), kernel)) for kernel in NAMES)


# ---- checks ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("change", "message"), [
    ({"x": torch.zeros(2, 6)}, r"x is float32 \[2, 6\] on cpu, expected shape \[B, S, n_inputs\]"),
    ({"x": torch.zeros(2, 9, 6)}, r"x is float32 \[2, 9, 6\] on cpu, expected sequences of 1 to 5 positions"),
    ({"x": torch.zeros(2, 0, 6)}, "expected sequences of 1 to 5 positions"),
    ({"x": torch.zeros(2, 5, 6, dtype=torch.int64)}, "x is int64 .*, expected dtype float32"),
    ({"x": torch.zeros(2, 5, 2)}, "compares inputs"),
    ({"x": torch.zeros(2, 5, 6, device="meta")}, "anchors is .* on cpu, expected a tensor on meta"),
    ({"weight": torch.zeros(2, 16, 3)}, r"weight is float32 \[2, 16, 3\] on cpu, expected shape \[2, 32, n_outputs\]"),
    ({"weight": torch.zeros(64, 3)}, r"expected shape \[2, 32, n_outputs\]"),
    ({"anchors": torch.zeros(2, 2, 2)}, "anchors is float32 .*, expected dtype int32"),
    ({"anchors": torch.ones(2, 2, 2, dtype=torch.int32)}, "two different inputs"),
    ({"anchors": torch.zeros(2, 13, 2, dtype=torch.int32)}, "n_anchors is 13 and positional_dim 1, .* than 2[*][*]24 rows"),
    ({"positions": torch.zeros(4, 3, 1)}, r"positions is float32 \[4, 3, 1\] on cpu, expected shape \[max_length - 1, 2 or 1, "),
    ({"positions": torch.zeros(4, 2)}, "positions is float32"),
    ({"positions": None}, "positions is None, expected a tensor"),
    ({"lengths": torch.tensor([3, 6])}, "lengths has 6 in row 1, expected 0 to 5"),
    ({"lengths": torch.tensor([-1, 5])}, "lengths has -1 in row 0, expected 0 to 5"),
    ({"lengths": torch.tensor([3])}, r"lengths is int64 \[1\] on cpu, expected shape \[2\]"),
    ({"lengths": [3, 5]}, r"lengths is \[3, 5\], expected a tensor"),
    ({"lengths": torch.tensor([3.0, 5.0])}, "lengths is float32"),
    ({"algorithm": "rows"}, "algorithm is 'rows', expected one of 'auto', 'pairs', 'cells'"),
    ({"gradient": "some"}, "gradient is 'some'"),
    ({"sums": "exact"}, "sums is 'exact'"),
    ({"int_rescaler": 0.0}, "int_rescaler is 0.0"),
    ({"precision": "fp8"}, "precision is 'fp8'"),
    ({"budget": 0}, "budget is 0, expected an integer from 1"),
    ({"meta": 1.0}, "meta is 1.0, expected a SynapseMeta"),
    ({"synapses": synapses_for(SMALL), "algorithm": "cells"}, "algorithm is 'cells', expected 'auto' or 'pairs' where there are"),
    ({"synapses": synapses_for(SMALL)}, "weight is float64"),
    ({"synapses": synapses_for(SHAPE)}, "synapses is '2 detectors × 64 rows', expected 2 detectors × 32 rows"),
])  # fmt: skip
def test_what_does_not_fit_is_named(change: dict[str, Any], message: str) -> None:
    case = make_sequence(SMALL)
    arguments = {name: case[name] for name in ("x", "weight", "anchors", "positions")} | change
    with pytest.raises(ArgumentError, match=message):
        lut_attention(**arguments)


def test_too_small_a_budget_says_what_it_takes() -> None:
    case = make_sequence(SMALL)
    with use_backend("cpu"), pytest.raises(ArgumentError, match="budget is 1 bytes, expected at least"):
        lut_attention(case["x"], case["weight"], case["anchors"], case["positions"], algorithm="cells", budget=1)


def test_nan_is_found_when_debug_is_on(monkeypatch: pytest.MonkeyPatch) -> None:
    case = make_sequence(SMALL)
    case["x"][1, 2, 0] = float("nan")
    lut_attention(case["x"], case["weight"], case["anchors"], case["positions"])
    monkeypatch.setattr("lutetia.debug", True)
    with pytest.raises(ArgumentError, match="x has NaN in row 7 of 10"):
        lut_attention(case["x"], case["weight"], case["anchors"], case["positions"])
