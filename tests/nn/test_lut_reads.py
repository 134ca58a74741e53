"""Reads, table dropout, table parameters, cell total variation and ProjectedLUT, as modules."""

from __future__ import annotations

import copy
import io

import pytest
import torch
from torch import Tensor, nn

from lutetia.errors import ArgumentError
from lutetia.lut import growth, lut, use_backend
from lutetia.nn import LUT, LUTAttention, LUTProjection2d, ProjectedLUT, cell_total_variation, regularise, table_parameters
from tools import require_module

READS = ("hard", "blend", "confidence", "confidence2")
NAMES = {"hard": [], "blend": [], "confidence": ["log_beta", "log_gamma"], "confidence2": ["log_beta", "log_gamma", "log_tau"]}


def make(wiring: str = "fc", **options: object) -> LUT:
    synapses = None if wiring == "fc" else growth.random(5, 3, 6, 0.6, seed=0, shared=wiring == "shared")
    layer = LUT(7, 6, 5, 3, synapses=synapses, seed=0, dtype=torch.float64, **options)  # type: ignore[arg-type]
    torch.nn.init.normal_(layer.weight, generator=torch.Generator().manual_seed(1))
    return layer


# ---- the layer -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("read", READS)
def test_a_layer_learns_the_scalars_of_its_read(read: str) -> None:
    layer = make(read=read)
    assert [name for name, _ in layer.named_parameters()] == ["weight", *NAMES[read]]
    starts = {"log_beta": 2.0, "log_gamma": 1.0, "log_tau": 0.5}
    for name in NAMES[read]:
        scalar = getattr(layer, name)
        assert scalar.shape == ()
        assert scalar.exp().item() == pytest.approx(starts[name])
    assert layer.log_tau is None or read == "confidence2"
    x = torch.randn(4, 3, 7, dtype=torch.float64)
    logs = {name: getattr(layer, name) for name in NAMES[read]}
    y = layer(x)
    torch.testing.assert_close(y, lut(x, layer.weight, layer.anchors, read=read, **logs))
    y.square().sum().backward()
    assert all(parameter.grad is not None and bool(parameter.grad.any()) for parameter in layer.parameters())


@pytest.mark.parametrize("read", READS)
def test_it_is_saved_copied_and_reset(read: str) -> None:
    layer, other = make(read=read), make(read=read)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.25)
    other.load_state_dict(layer.state_dict())
    x = torch.randn(4, 7, dtype=torch.float64)
    assert torch.equal(other(x), layer(x))
    assert torch.equal(copy.deepcopy(layer)(x), layer(x))
    before = layer(x)
    layer.reset_parameters()
    assert not torch.equal(layer(x), before)
    fresh = LUT(7, 6, 5, 3, seed=0, dtype=torch.float64, read=read)
    assert all(torch.equal(mine, its) for mine, its in zip(layer.parameters(), fresh.parameters(), strict=True))


def test_halves_keep_their_scalars_in_float32() -> None:
    layer = LUT(7, 6, 5, 3, dtype=torch.bfloat16, read="confidence2")
    assert layer.weight.dtype == torch.bfloat16
    assert layer.log_beta is not None
    assert layer.log_beta.dtype == torch.float32
    assert layer(torch.randn(2, 7)).dtype == torch.float32
    assert layer(torch.randn(2, 7).bfloat16()).dtype == torch.bfloat16


def test_autocast_changes_nothing() -> None:
    layer = LUT(7, 6, 5, 3, read="confidence2", seed=0)
    x = torch.randn(3, 7)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = layer(x)
    assert y.dtype == torch.float32
    assert torch.equal(y, layer(x))


@pytest.mark.parametrize("read", READS)
def test_what_it_says_of_itself(read: str) -> None:
    text = repr(make(read=read, table_dropout=0.25))
    assert ("read=" in text) == (read != "hard")
    assert "table_dropout=0.25" in text


def test_bad_options() -> None:
    with pytest.raises(ArgumentError, match="read is 'soft', expected one of"):
        make(read="soft")
    with pytest.raises(ArgumentError, match=r"table_dropout is -0\.1, expected a number from 0\.0 to 1\.0"):
        make(table_dropout=-0.1)
    with pytest.raises(ArgumentError, match=r"table_dropout is 1\.0, expected less than 1"):
        make(table_dropout=1.0)


@pytest.mark.parametrize("read", ["blend", "confidence2"])
def test_it_exports_with_any_batch(read: str) -> None:
    layer = make("shared", read=read).eval()
    x = torch.randn(5, 7, dtype=torch.float64)
    with use_backend("reference"):
        program = torch.export.export(layer, (x,), dynamic_shapes=({0: torch.export.Dim("batch")},))
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    loaded = torch.export.load(file).module()
    for batch in (2, 9):
        x = torch.randn(batch, 7, dtype=torch.float64)
        torch.testing.assert_close(loaded(x), layer(x))


def test_it_compiles_in_one_graph_with_dropout() -> None:
    layer = make(read="confidence2", table_dropout=0.5)
    torch._dynamo.reset()
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    x = torch.randn(3, 7, dtype=torch.float64)
    compiled(x).sum().backward()
    assert layer.weight.grad is not None
    layer.eval()
    torch.testing.assert_close(compiled(x), layer(x))


@pytest.mark.parametrize("read", READS)
def test_windows_read_too(read: str) -> None:
    options = {"receptive_field": 3, "projection": 2, "n_anchors": 3, "stride": 2, "seed": 0}
    layer = LUTProjection2d((6, 6), (4, 4), read=read, table_dropout=0.5, **options)  # type: ignore[arg-type]
    assert layer.lut.read == read
    assert layer.lut.table_dropout == 0.5
    x = torch.randn(3, 6, 6, requires_grad=True)
    layer(x).sum().backward()
    assert x.grad is not None
    assert [name for name, _ in layer.named_parameters()] == ["lut.weight", *(f"lut.{name}" for name in NAMES[read])]


# ---- table dropout ---------------------------------------------------------------------------------------------------


def mask_of(layer: LUT, x: Tensor, seed: int) -> Tensor:
    """The factors [B, N_t] of a call after this seed, read off a twin whose every detector writes to an output of its own."""
    table = torch.eye(layer.n_detectors, dtype=torch.float64)[:, None].expand(-1, layer.n_rows, -1).contiguous()
    twin = LUT(layer.n_inputs, layer.n_detectors, layer.n_detectors, layer.n_anchors, anchors=layer.anchors,
               table_dropout=layer.table_dropout, dtype=torch.float64)  # fmt: skip
    with torch.no_grad():
        twin.weight.copy_(table)
        torch.manual_seed(seed)
        return twin(x)


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("wiring", ["fc", "general", "shared"])
@pytest.mark.parametrize("gradient", ["dense", "sparse"])
def test_dropped_detectors_are_as_if_they_had_no_table(read: str, wiring: str, gradient: str) -> None:
    layer = make(wiring, read=read, table_dropout=0.4, gradient=gradient)
    x = torch.randn(6, 7, dtype=torch.float64)
    factors = mask_of(layer, x, 5)
    assert set(factors.unique().tolist()) == {0.0, 1 / 0.6}
    torch.manual_seed(5)
    rows = x.clone().requires_grad_()
    y = layer(rows)
    grad = torch.randn(6, 6, dtype=torch.float64)
    y.backward(grad)

    # The same row by row and detector by detector, on layers of one detector without dropout.
    dense = layer.weight.detach() if layer.synapses is None else layer.synapses.expand(layer.weight.detach())
    logs = {name: getattr(layer, name).detach().clone().requires_grad_() for name in NAMES[read]}
    tables, inputs = dense.clone().requires_grad_(), x.clone().requires_grad_()
    parts = []
    for t in range(5):
        part = lut(inputs, tables[t : t + 1], layer.anchors[t : t + 1], read=read, **logs)
        parts.append(part * factors[:, t : t + 1])
    want = torch.stack(parts).sum(0)
    want.backward(grad)
    torch.testing.assert_close(y, want)
    torch.testing.assert_close(rows.grad, inputs.grad)
    assert layer.weight.grad is not None
    assert tables.grad is not None
    expected = tables.grad if layer.synapses is None else layer.synapses.flatten(tables.grad)
    torch.testing.assert_close(layer.weight.grad.to_dense(), expected)
    for name, log in logs.items():
        torch.testing.assert_close(getattr(layer, name).grad, log.grad)


def test_dropout_is_for_training_and_keeps_the_mean() -> None:
    layer = make(table_dropout=0.3)
    x = torch.randn(2, 7, dtype=torch.float64)
    layer.eval()
    full = layer(x)
    assert torch.equal(full, make()(x))
    layer.train()
    mean = layer(x[:1].expand(20_000, -1)).mean(0)
    torch.testing.assert_close(mean, full[0], rtol=0.0, atol=0.1)


def test_dropout_with_steps_in_place() -> None:
    layer = make(read="blend", table_dropout=0.4, gradient="in_place")
    twin = make(read="blend", table_dropout=0.4)
    layer.external_lr = 0.1
    x = torch.randn(6, 7, dtype=torch.float64)
    for each in (layer, twin):
        torch.manual_seed(3)
        each(x).square().sum().backward()
    assert twin.weight.grad is not None
    torch.testing.assert_close(layer.weight.detach(), twin.weight.detach() - 0.1 * twin.weight.grad)


# ---- cell total variation --------------------------------------------------------------------------------------------


def by_loops(table: Tensor) -> Tensor:
    """mean ‖W_c - W_c'‖² over pairs of cells one bit apart: table [N_t, R, O]."""
    found = []
    for cells in table:
        for c in range(len(cells)):
            for other in range(c + 1, len(cells)):
                if (c ^ other).bit_count() == 1:
                    found.append((cells[c] - cells[other]).square().sum())
    return torch.stack(found).mean()


@pytest.mark.parametrize("wiring", ["fc", "general", "shared", "heads"])
@pytest.mark.parametrize("chunk", [1, 100, 2**22])
def test_cell_total_variation_by_loops(wiring: str, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regularise, "CHUNK", chunk)
    if wiring == "heads":
        layer = ProjectedLUT(9, 9, heads=2, head_width=3, n_detectors=2, n_anchors=3, dtype=torch.float64).tables
        torch.nn.init.normal_(layer.weight)
    else:
        layer = make(wiring)
    weight = layer.weight.detach().clone().requires_grad_()
    want = by_loops(weight if layer.synapses is None else layer.synapses.expand(weight))
    value = cell_total_variation(layer)
    (3 * value).backward()
    (3 * want).backward()
    torch.testing.assert_close(value, want)
    torch.testing.assert_close(layer.weight.grad, weight.grad)
    if wiring == "fc":
        torch.testing.assert_close(cell_total_variation(layer.weight), want)


def test_cell_total_variation_in_halves_and_of_nonsense() -> None:
    weight = torch.randn(3, 4, 5)
    torch.testing.assert_close(cell_total_variation(weight.bfloat16()), by_loops(weight.bfloat16().float()))
    with pytest.raises(ArgumentError, match="expected a power of two of rows"):
        cell_total_variation(torch.randn(3, 5, 2))
    with pytest.raises(ArgumentError, match="weight is"):
        cell_total_variation(torch.randn(3))


# ---- which parameters are tables -------------------------------------------------------------------------------------


def test_tables_are_named_by_their_modules() -> None:
    shared = LUT(4, 4, 2, 2, read="confidence2")
    model = nn.ModuleList([nn.Linear(4, 4), shared, ProjectedLUT(4, 4, heads=1, head_width=4, n_detectors=2, n_anchors=2), shared,
                           LUTAttention(4, 4, 2, 2, 1, 5)])  # fmt: skip
    tables = table_parameters(copy.deepcopy(model))
    assert [tuple(table.shape) for table in tables] == [(2, 4, 4), (2 * 4 * 4,), (2, 32, 4)]
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    assert [names[id(table)] for table in table_parameters(model)] == ["1.weight", "2.tables.weight", "4.weight"]
    assert table_parameters(nn.Linear(2, 2)) == []


def test_lion_steps_tables_as_derived_by_hand() -> None:
    """sign(β1 m + (1 - β1) g) · lr, then m = β2 m + (1 - β2) g: the optimiser that the docs name for tables."""
    lion = require_module("lion_pytorch")
    layer = make(read="blend")
    optimizer = lion.Lion(table_parameters(layer), lr=2e-2, betas=(0.9, 0.95))
    weight, momentum = layer.weight.detach().clone(), torch.zeros_like(layer.weight)
    for _ in range(3):
        optimizer.zero_grad()
        layer(torch.randn(8, 7, dtype=torch.float64)).square().sum().backward()
        assert layer.weight.grad is not None
        gradient = layer.weight.grad.clone()
        optimizer.step()
        weight -= 2e-2 * torch.sign(0.9 * momentum + 0.1 * gradient)
        momentum = 0.95 * momentum + 0.05 * gradient
        torch.testing.assert_close(layer.weight.detach(), weight)


# ---- ProjectedLUT ----------------------------------------------------------------------------------------------------


def test_heads_keep_to_themselves() -> None:
    layer = ProjectedLUT(10, 11, heads=3, head_width=5, n_detectors=4, n_anchors=3, seed=0, dtype=torch.float64)
    tables = layer.tables
    torch.nn.init.normal_(tables.weight)
    assert (tables.n_inputs, tables.n_outputs, tables.n_detectors) == (15, 15, 12)
    assert torch.equal(tables.anchors.long() // 5, (torch.arange(12) // 4)[:, None, None].expand(12, 3, 2))
    hidden = torch.randn(6, 15, dtype=torch.float64)
    logs = {name: getattr(tables, name) for name in NAMES["confidence2"]}
    heads = []
    for h in range(3):
        weight = tables.weight.view(3, 4, 8, 5)[h]
        anchors = (tables.anchors[4 * h : 4 * h + 4] - 5 * h).contiguous()
        heads.append(lut(hidden[:, 5 * h : 5 * h + 5], weight, anchors, read="confidence2", **logs))
    torch.testing.assert_close(tables(hidden), torch.cat(heads, 1))


def test_a_projection_starts_as_the_design_has_it() -> None:
    layer = ProjectedLUT(64, 32, seed=0)
    assert layer.tables.weight.shape == (8 * 64 * 256 * 48,)
    assert layer.compress.bias is None
    assert layer.compress.weight.shape == (384, 64)
    assert layer.compress.weight.std().item() == pytest.approx(0.02, rel=0.05)
    assert not layer.decompress.weight.any()
    assert layer.tables.weight.abs().max().item() <= 1e-3
    assert layer.tables.weight.std().item() == pytest.approx(1e-3 / 3**0.5, rel=0.01)
    assert layer.tables.read == "confidence2"
    assert not layer(torch.randn(2, 3, 64)).any()


def test_a_seed_makes_the_same_and_other_parts_differ() -> None:
    sizes = {"heads": 2, "head_width": 4, "n_detectors": 3, "n_anchors": 2}
    torch.manual_seed(1)
    one = ProjectedLUT(6, 6, seed=3, **sizes)
    torch.manual_seed(2)
    two, other = ProjectedLUT(6, 6, seed=3, **sizes), ProjectedLUT(6, 6, **sizes)
    for name, value in one.state_dict().items():
        assert torch.equal(two.state_dict()[name], value), name
    assert not torch.equal(one.compress.weight, other.compress.weight)
    assert not torch.equal(one.tables.weight, other.tables.weight)
    with torch.no_grad():
        one.compress.weight.zero_()
        one.decompress.weight.fill_(1.0)
    one.reset_parameters()
    assert all(torch.equal(mine, its) for mine, its in zip(one.parameters(), two.parameters(), strict=True))


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("gradient", ["dense", "sparse", "in_place"])
def test_it_learns(read: str, gradient: str) -> None:
    layer = ProjectedLUT(6, 2, heads=2, head_width=4, n_detectors=8, n_anchors=3, read=read, gradient=gradient, seed=0)
    layer.tables.external_lr = 0.05
    x = torch.randn(256, 6, generator=torch.Generator().manual_seed(0))
    target = torch.stack([(x[:, 0] > x[:, 1]).float(), x[:, 2].abs()], 1)
    dense = [parameter for name, parameter in layer.named_parameters() if name != "tables.weight"]
    optimizers: list[torch.optim.Optimizer] = [torch.optim.Adam(dense, lr=1e-2)]
    if gradient != "in_place":
        optimizers.append((torch.optim.SparseAdam if gradient == "sparse" else torch.optim.Adam)([layer.tables.weight], lr=1e-2))
    losses = []
    for _ in range(60):
        loss = (layer(x) - target).square().mean()
        losses.append(loss.item())
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
    assert losses[-1] < 0.6 * losses[0]


def test_bad_sizes_of_a_projection() -> None:
    with pytest.raises(ArgumentError, match="heads is 0, expected"):
        ProjectedLUT(4, 4, heads=0)
    with pytest.raises(ArgumentError, match="head_width is 1, expected"):
        ProjectedLUT(4, 4, head_width=1)
    with pytest.raises(ArgumentError, match=r"x is float32 \[2, 5\] on cpu, expected shape \[\.\.\., 4\]"):
        ProjectedLUT(4, 4, heads=1, head_width=4, n_detectors=2, n_anchors=2)(torch.randn(2, 5))
