"""Units: what is found, that they are right, and that a wrong claim is caught."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import prune

from lutetia.errors import ArgumentError
from lutetia.flow import record
from lutetia.precompute import (
    Binary,
    Int,
    PlusMinus,
    Quantise,
    SparseLinear,
    Stream,
    Ternary,
    UInt,
    decompose,
    precomputable,
    trace,
)


def assert_tables_give_the_block(module: nn.Module, domain) -> None:  # type: ignore[no-untyped-def]
    """The tables of all units, put together, are the module: compared over random windows, in float64."""
    units = decompose(module)
    block = units.block
    x = domain.values()[torch.randint(domain.radix, (50, block.n_inputs))]
    found = torch.full((50, block.out_channels), 99)
    for unit, table in zip(units, units.tables(domain), strict=True):
        assert table == unit.table(domain)  # one at a time by calling the block, together by a matrix product
        found[:, list(unit.outputs)] = table(x[:, list(unit.inputs)])
    assert torch.equal(found, reference(module, x, block).long())


def reference(module: nn.Module, x: Tensor, block) -> Tensor:  # type: ignore[no-untyped-def]
    """PyTorch's own answer to windows given as rows."""
    module = module.double().eval()
    first = next(layer for layer in module.modules() if isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Linear | SparseLinear))
    if isinstance(first, nn.Linear | SparseLinear):
        return module(x.double())
    kernel, dilation = first.kernel_size, first.dilation
    field = torch.zeros(len(x), first.in_channels, *((k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)))
    field[(..., *(slice(None, None, d) for d in dilation))] = x.reshape(len(x), first.in_channels, *kernel).float()
    first.padding = (0,) * len(kernel)
    return module(field.double()).flatten(1)


def scrambled_blocks(sizes: list[tuple[int, int]]) -> nn.Linear:
    """A linear layer whose weights are block-diagonal after a permutation that nobody knows."""
    blocks = torch.block_diag(*(torch.rand(height, width) + 0.5 for width, height in sizes))
    layer = nn.Linear(blocks.shape[1], blocks.shape[0])
    with torch.no_grad():
        layer.weight.copy_(blocks[torch.randperm(len(blocks))][:, torch.randperm(blocks.shape[1])])
    return layer


def test_permuted_blocks_are_found() -> None:
    sizes = [(3, 2), (2, 4), (4, 1), (1, 1)]
    layer = nn.Sequential(scrambled_blocks(sizes), Quantise(Int(3)))
    assert sorted(decompose(layer).sizes) == sorted(sizes)
    assert_tables_give_the_block(layer, Int(2))


class MaskedLinear(nn.Linear):
    """The usual way to have a sparse layer."""

    def __init__(self, mask: Tensor) -> None:
        super().__init__(mask.shape[1], mask.shape[0])
        self.register_buffer("mask", mask)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.weight * self.mask, self.bias)


def test_a_mask_decides() -> None:
    mask = torch.tensor([[1.0, 0, 0, 1], [0, 1, 1, 0], [1, 0, 0, 1], [0, 0, 0, 0], [0, 1, 0, 0]])
    units = decompose(nn.Sequential(MaskedLinear(mask), Quantise(Ternary())))
    assert [(unit.inputs, unit.outputs) for unit in units] == [((0, 3), (0, 2)), ((1, 2), (1,)), ((), (3,)), ((1,), (4,))]
    assert units.components() == ((0,), (1, 3), (2,))
    assert_tables_give_the_block(nn.Sequential(MaskedLinear(mask), Quantise(Ternary())), PlusMinus())


def test_pruned_layers() -> None:
    layer = nn.Linear(4, 2)
    prune.custom_from_mask(layer, "weight", torch.tensor([[1, 0, 1, 0], [0, 1, 0, 0]]))
    model = nn.Sequential(layer, Quantise(Int(4), 0.25))
    assert decompose(model).sizes == ((2, 1), (1, 1))
    net = trace(model, Stream(4, UInt(2))).precompute()
    x = torch.randint(0, 4, (50, 4))
    assert torch.equal(net.real(x), model.double()(x.double()))


def test_channels_per_group_and_taps_keep_their_order() -> None:
    conv = nn.Conv1d(4, 4, kernel_size=3, groups=2)
    units = decompose(conv)
    assert units.sizes == ((6, 2), (6, 2))
    assert units[1].inputs == (6, 7, 8, 9, 10, 11)  # channel 2 taps 0 to 2, channel 3 taps 0 to 2
    assert_tables_give_the_block(nn.Sequential(conv, Quantise(Int(4), 0.5), nn.Hardtanh(-1, 1), Quantise(Int(2))), UInt(2))


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv1d(3, 6, 2, stride=2, padding=1, dilation=3, groups=3),
        nn.Conv1d(2, 3, 1),
        nn.Conv2d(2, 4, (2, 3), stride=(1, 2), padding=(1, 0), dilation=(2, 1), groups=2),
        nn.Linear(5, 3, bias=False),
        SparseLinear(9, 7, 3, seed=0),
    ],
    ids=str,
)
def test_tables_of_layers(layer: nn.Module) -> None:
    norm = (nn.BatchNorm2d if isinstance(layer, nn.Conv2d) else nn.BatchNorm1d)(layer.weight.shape[0])
    norm.weight.data = torch.randn(len(norm.weight))
    norm.running_mean.normal_()
    assert_tables_give_the_block(nn.Sequential(layer, norm, nn.Tanh(), Quantise(PlusMinus())), Binary())


def test_windows_within_windows() -> None:
    block = nn.Sequential(nn.Conv1d(2, 2, 2, groups=2), nn.ReLU(), Quantise(Binary()), nn.MaxPool1d(3, 2))
    units = decompose(block)
    assert units.sizes == ((4, 1), (4, 1))  # three windows of two samples, one apart
    table = units[1].table(Int(2))
    x = torch.randint(-2, 2, (20, 2, 4))
    assert torch.equal(table(x[:, 1]), block.double()(x.double())[:, 1].long())
    wider = nn.Sequential(nn.Conv1d(2, 6, 2, groups=2), nn.BatchNorm1d(6), Quantise(Ternary()), nn.MaxPool1d(2)).eval()
    assert decompose(wider).sizes == ((3, 3), (3, 3))
    x = torch.randint(-2, 2, (20, 2, 3))
    assert torch.equal(decompose(wider)[1].table(Int(2))(x[:, 1]), wider.double()(x.double())[:, 3:, 0].long())
    strided = nn.Sequential(nn.Conv1d(1, 1, 2, stride=3), Quantise(Ternary()), nn.AvgPool1d(2), Quantise(Ternary()))
    assert decompose(strided).sizes == ((4, 1),)  # samples 0, 1, 3, 4: what lies between is not read
    x = torch.randint(-2, 2, (20, 1, 5))
    expected = strided.double()(x.double())[:, 0].long()
    assert torch.equal(decompose(strided)[0].table(Int(2))(x[:, 0, [0, 1, 3, 4]]), expected)


def test_layers_that_do_not_know_their_channels() -> None:
    assert decompose(nn.MaxPool1d(3), n_inputs=6).sizes == ((3, 1), (3, 1))
    assert decompose(nn.AvgPool2d(2), n_inputs=8).sizes == ((4, 1), (4, 1))
    assert decompose(nn.BatchNorm1d(3)).sizes == ((1, 1),) * 3
    assert decompose(nn.Sequential(nn.ReLU(), nn.Linear(2, 1))).sizes == ((2, 1),)
    with pytest.raises(ArgumentError, match="ReLU does not fix its number of channels"):
        decompose(nn.ReLU())
    with pytest.raises(ArgumentError, match="n_inputs is 7, expected a multiple of 3"):
        decompose(nn.MaxPool1d(3), n_inputs=7)


# ---- claims ----------------------------------------------------------------------------------------------------------


class Parity(nn.Module):
    """Something that no weight tells about: the parity of pairs of bits."""

    def __init__(self, leak: bool = False) -> None:
        super().__init__()
        self.leak = leak

    def forward(self, x: Tensor) -> Tensor:
        a = (x[:, 0] + x[:, 1]) % 2
        b = (x[:, 2] * x[:, 3]) + (x[:, 0] * x[:, 1] * x[:, 2] * x[:, 3] if self.leak else 0)
        return torch.stack([a, b], 1)


@pytest.mark.parametrize("groups", [((2, 1), (2, 1)), (([0, 1], [0]), ([2, 3], [1]))])
def test_a_claim_says_what_cannot_be_seen(groups) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ArgumentError, match="Parity is not a supported layer"):
        decompose(Parity())
    units = decompose(precomputable(domain=Binary(), groups=groups)(Parity()))
    assert units.sizes == ((2, 1), (2, 1))
    assert [table.outputs.flatten().tolist() for table in units.tables()] == [[0, 1, 1, 0], [0, 0, 0, 1]]
    assert units[1].table().to_dict() == {(0, 0): (0,), (0, 1): (0,), (1, 0): (0,), (1, 1): (1,)}


def test_a_claim_that_the_module_contradicts_is_refused() -> None:
    # The leak shows at one of sixteen inputs only.
    claimed = precomputable(domain=Binary(), groups=((2, 1), (2, 1)))(Parity(leak=True))
    with pytest.raises(
        ArgumentError, match=r"output 1 of .*Parity.* depends on input 0, which is not in its unit: not what was claimed"
    ):
        decompose(claimed)


def test_claims_about_known_layers_override_their_looks() -> None:
    @precomputable(domain=UInt(2), groups=3)
    class Conv(nn.Conv1d):
        pass

    conv = Conv(3, 3, 3, bias=False)  # not grouped, and most weights are zero
    with torch.no_grad():
        conv.weight.zero_()
        conv.weight[[0, 1, 2], [0, 1, 2]] = torch.tensor([1.0, 0.0, 2.0])
    assert decompose(conv).sizes == ((3, 1), (3, 1), (3, 1))  # without the claim: (2, 1) each, for the middle tap is zero
    assert decompose(conv)[2].table()[(1, 3, 2)] == (5,)
    with torch.no_grad():
        conv.weight[0, 2, 1] = 0.5
    with pytest.raises(ArgumentError, match=r"output 0 of .* depends on input 7"):
        decompose(conv)
    with pytest.raises(ArgumentError, match="groups is 2, which does not divide the 9 inputs"):
        decompose(precomputable(groups=2)(nn.Conv1d(3, 4, 3)))


@pytest.mark.parametrize("groups", [0, "three", ((1, 2, 3),), ((1, "a"),), True])
def test_claims_that_are_none(groups) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ArgumentError, match="groups"):
        precomputable(groups=groups)
    with pytest.raises(ArgumentError, match="expected each of 0 to 1 once"):
        decompose(precomputable(groups=(([0], [0]), ([1], [0])))(nn.Linear(2, 2)))
    with pytest.raises(ArgumentError, match="reads input 2, expected inputs from 0 to 1"):
        decompose(precomputable(groups=(([0], [0]), ([2], [1])))(nn.Linear(2, 2)))


def test_a_mask_that_the_forward_ignores_is_noticed() -> None:
    layer = nn.Linear(4, 2)
    layer.register_buffer("mask", torch.tensor([[1.0, 1, 0, 0], [0, 0, 1, 1]]))
    with pytest.raises(ArgumentError, match="not what its weights say"):
        decompose(layer)


def test_steps_are_recorded() -> None:
    with record() as flow:
        decompose(nn.Sequential(nn.Linear(3, 2), Quantise(Binary()))).tables(Binary())
    assert [step.name for step in flow.part("precompute")] == ["decompose", "io_tables"]
    assert flow.steps[0].attributes == {"units": 1, "inputs": 3, "outputs": 2}
