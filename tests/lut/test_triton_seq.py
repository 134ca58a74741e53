"""What only the Triton kernels for sequences can get wrong: tiles, counts, orders, and what a GPU shows. See test_kernels.py."""

from __future__ import annotations

from copy import copy
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from lut.oracle import make_sequence
from lutetia._shared.triton_order import sort_columns
from lutetia.errors import ArgumentError
from lutetia.lut import Sequence, Sums, growth, kernels, lut_attention, random_anchors, use_backend
from lutetia.lut.connectivity.parts import SynapseMeta
from lutetia.lut.kernels.protocol import Detected, Products
from lutetia.lut.kernels.reference import sequences as walk
from lutetia.lut.kernels.triton import pairs
from lutetia.lut.kernels.triton.sequences import count_cells, walks_pairs

fast, reference = kernels("triton"), kernels("reference")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# B, S, I, O, N_t, N_c, N_pe: small, because the interpreter takes about a millisecond per program.
SHAPES = [(1, 1, 3, 2, 1, 1, 0), (1, 2, 4, 3, 2, 1, 1), (2, 5, 5, 3, 2, 2, 2), (1, 7, 7, 5, 3, 2, 0), (1, 18, 4, 2, 1, 1, 4)]
LARGE = [(3, 17, 8, 7, 3, 5, 0), (3, 64, 8, 11, 5, 4, 3), (1, 129, 16, 67, 2, 3, 4)]


class Case:
    """One layer, one batch, and what the reference makes of them."""

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> None:
        made = make_sequence(shape)
        tensors = {k: (v.to(dtype) if v.is_floating_point() else v).to(DEVICE) for k, v in made.items()}
        self.x, self.positions, self.anchors, self.weight, self.grad = (
            tensors[name] for name in ("x", "positions", "anchors", "weight", "grad")
        )
        self.n_inputs, self.positional_dim, self.n_rows = shape[2], shape[6], self.weight.shape[1]
        self.found = reference.check_detectors(self.x, self.anchors)
        self.pe = reference.check_positions(self.positions)

    def double(self) -> Case:
        """The same in float64."""
        exact = copy(self)
        for name in ("x", "positions", "weight", "grad"):
            setattr(exact, name, getattr(self, name).double())
        exact.found = reference.check_detectors(exact.x, exact.anchors)
        exact.pe = reference.check_positions(exact.positions)
        return exact

    def all(self, kernels: Any, kind: str, **how: Any) -> list[torch.Tensor]:
        """y, dx, dpositions and dW by one backend: kind is "detectors" (pairs) or "cells"."""
        fill, propagate, gather = (
            getattr(kernels, name)
            for name in (
                ("fill_outputs_seq_fc", "propagate_through_detectors_seq_fc", "gather_weight_gradients_seq_fc")
                if kind == "pairs"
                else ("fill_outputs_cells_fc", "propagate_through_cells_fc", "gather_weight_gradients_cells_fc")
            )
        )
        places = (self.found[0], self.pe[0], self.positional_dim)
        return [
            fill(self.weight, *places, **how),
            *propagate(self.grad, self.weight, *self.found, *self.pe, self.anchors, self.n_inputs, self.positional_dim, **how),
            gather(self.grad, *places, self.n_rows, **how),
        ]


def same(mine: list[torch.Tensor], expected: list[torch.Tensor], sums: str, tolerance: float = 1e-5) -> None:
    for one, its in zip(mine, expected, strict=True):
        assert one.dtype == its.dtype
        if sums == "fixed":
            assert torch.equal(one, its)
        else:
            scale = max(1.0, float(its.abs().max()) if its.numel() else 1.0)
            torch.testing.assert_close(one, its, rtol=tolerance, atol=tolerance * scale)


def test_a_small_budget_gives_the_same_in_tiles() -> None:
    case = Case((3, 5, 5, 3, 2, 1, 1))
    least = 5 * 4 * 8  # S · C · 8 bytes
    expected = case.all(reference, "pairs")
    for budget in (least, 5 * least):  # one sequence and detector; two of each
        same(case.all(fast, "cells", budget=budget), expected, "float")
    with pytest.raises(ArgumentError, match=f"expected at least {least}"):
        case.all(fast, "cells", budget=least - 1)


def test_counts_of_more_than_eight_bits() -> None:
    case = Case((1, 300, 3, 2, 1, 1, 0))
    case.x[:] = torch.tensor([3.0, 1.0, 2.0])  # every position has the same index
    case.found = reference.check_detectors(case.x, case.anchors)
    stat, wide = count_cells(Sequence(Detected(case.found[0]), Detected(case.pe[0]), 1, 0), torch.int16)
    assert (int(stat.max()), bool(wide)) == (299, True)
    exact, places = case.double(), (case.found[0], case.pe[0], 0)
    mine = [fast.fill_outputs_cells_fc(case.weight, *places), fast.gather_weight_gradients_cells_fc(case.grad, *places, 4)]
    wanted = [
        reference.fill_outputs_seq_fc(exact.weight, *places),
        reference.gather_weight_gradients_seq_fc(exact.grad, *places, 4),
    ]
    same(mine, [tensor.float() for tensor in wanted], "float", 2e-6)
    for length, walks in ((2**16, False), (2**16 + 1, True)):
        sequence = Sequence(Detected(torch.empty(0, length, 1)), Detected(torch.empty(0, 1)), 1, 0, Products())
        assert walks_pairs(Sums(), sequence, case.weight) is walks


@pytest.mark.parametrize(("n_places", "n_values"), [(1, 2), (130, 8), (257, 64), (20, 256)])
def test_places_in_order_of_their_index(n_places: int, n_values: int) -> None:
    indices = torch.randint(0, n_values, (n_places, 3), generator=torch.Generator().manual_seed(0), dtype=torch.int32)
    order, end, count, _ = sort_columns(indices.to(DEVICE), n_values)
    for t in range(3):
        mine = indices[:, t].long()
        assert torch.equal(mine[order[t].long().cpu()], mine.sort().values)
        assert sorted(order[t].tolist()) == list(range(n_places))
        assert torch.equal(count[t].long().cpu(), torch.bincount(mine, minlength=n_values))
        assert torch.equal(end[t].long().cpu(), torch.bincount(mine, minlength=n_values).cumsum(0))


@pytest.mark.parametrize("kind", ["pairs", "cells"])
def test_in_place_step(kind: str) -> None:
    case = Case(SHAPES[2])
    meta = SynapseMeta(lr_scale=0.5, max_weight=0.5)
    gather = fast.gather_weight_gradients_seq_fc if kind == "pairs" else fast.gather_weight_gradients_cells_fc
    places = (case.found[0], case.pe[0], case.positional_dim)
    gradient = reference.gather_weight_gradients_seq_fc(case.grad, *places, case.n_rows, meta=meta)
    weight = case.weight.clone()
    returned = gather(case.grad, *places, case.n_rows, meta=meta, external_lr=0.1, weight=weight)
    assert returned.data_ptr() == weight.data_ptr()
    torch.testing.assert_close(weight, (case.weight - 0.1 * gradient).clamp(max=0.5))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
class TestOnTheGpu:
    @pytest.mark.parametrize("shared", [False, True])
    def test_fixed_sums_of_sparse_connectivity_in_a_graph(self, shared: bool) -> None:
        synapses = growth.random(4, 8, 37, 0.5, seed=0, shared=shared).to("cuda")
        made = {name: each.cuda() for name, each in make_sequence((3, 21, 8, 37, 4, 3, 2)).items()}
        weight = torch.randn(synapses.n_weights, device="cuda")
        learned = [each.requires_grad_() for each in (made["x"].float(), made["positions"].float(), weight)]

        def step() -> list[torch.Tensor]:
            y = lut_attention(learned[0], weight, made["anchors"], learned[1], synapses=synapses, sums="fixed", int_rescaler=0.1)
            # Nothing of autograd's graph may live on: its nodes belong to the stream they were made on.
            return [y.detach(), *torch.autograd.grad(y, learned, made["grad"].float())]

        with use_backend("reference"):
            wanted = step()
        same(step(), wanted, "fixed")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = step()
        graph.replay()
        same(captured, wanted, "fixed")

    @pytest.mark.parametrize("shape", LARGE)
    @pytest.mark.parametrize("kind", ["pairs", "cells"])
    def test_larger_shapes(self, shape: tuple[int, ...], kind: str) -> None:
        case, exact = Case(shape), Case(shape, torch.float64)
        expected = [tensor.float() for tensor in exact.all(reference, "pairs")]
        same(case.all(fast, kind), expected, "float")

    def test_counts_of_more_than_eight_bits(self) -> None:
        case = Case((2, 600, 3, 37, 3, 2, 1))
        case.x[0] = torch.tensor([3.0, 1.0, 2.0])
        case.found = reference.check_detectors(case.x, case.anchors)
        wanted = [tensor.float() for tensor in case.double().all(reference, "pairs")]
        same(case.all(fast, "cells"), wanted, "float")

    def test_fixed_sums_equal_the_cpu(self) -> None:
        case = Case(LARGE[0])
        on_gpu = case.all(fast, "pairs", sums="fixed")
        for name in ("x", "positions", "anchors", "weight", "grad"):
            setattr(case, name, getattr(case, name).cpu())
        case.found, case.pe = tuple(t.cpu() for t in case.found), tuple(t.cpu() for t in case.pe)
        same([tensor.cpu() for tensor in on_gpu], case.all(reference, "pairs", sums="fixed"), "fixed")

    def test_less_precise_products_by_choice(self) -> None:
        case = Case(LARGE[1])
        expected = case.all(fast, "cells")[0]
        errors = [float((case.all(fast, "cells", precision=p)[0] - expected).abs().max()) for p in ("tf32", "bf16")]
        assert 0 < errors[0] < errors[1] < 0.05 * float(expected.abs().max())


@pytest.mark.parametrize("sums", ["float", "fixed"])
@pytest.mark.parametrize("shared", [False, True])
def test_sparse_connectivity_takes_its_pairs_in_parts(shared: bool, sums: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """y and every gradient, with a synapse of another rate, and no tables filled up with zeros; fixed sums bit for bit."""
    monkeypatch.setattr(walk, "NUMBERS_AT_ONCE", 13)
    for name in ("fill", "propagate", "gather"):
        monkeypatch.setattr(pairs, name, None)
    metas = (SynapseMeta(), SynapseMeta(lr_scale=0.5))
    synapses = growth.random(3, 5, 5, 0.5, seed=0, shared=shared, metas=metas).to(DEVICE)
    made = {name: each.to(DEVICE) for name, each in make_sequence((2, 4, 6, 5, 3, 2, 1)).items()}
    weight = torch.randn(synapses.n_weights, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    learned = [each.requires_grad_() for each in (made["x"].float(), made["positions"].float(), weight)]
    results = []
    for backend in ("reference", "triton"):
        with use_backend(backend):
            y = lut_attention(learned[0], weight, made["anchors"], learned[1], synapses=synapses, sums=sums)
            results.append([y.detach(), *torch.autograd.grad(y, learned, made["grad"].float())])
    same(results[1], results[0], sums)


@pytest.mark.parametrize("shared", [False, True])
def test_no_sequences_through_sparse_connectivity(shared: bool) -> None:
    synapses = growth.random(2, 4, 3, 0.6, shared=shared, seed=0).to(DEVICE)
    x = torch.randn(0, 5, 4, device=DEVICE, requires_grad=True)
    weight = torch.randn(synapses.n_weights, device=DEVICE, requires_grad=True)
    positions, anchors = torch.randn(4, 2, 2, device=DEVICE), random_anchors(4, 2, 1, seed=0).to(DEVICE)
    with use_backend("triton"):
        y = lut_attention(x, weight, anchors, positions, synapses=synapses)
        y.sum().backward()
    assert y.shape == (0, 5, 3)
    assert x.grad is not None
    assert x.grad.shape == x.shape
    assert weight.grad is not None
    assert not weight.grad.any()
