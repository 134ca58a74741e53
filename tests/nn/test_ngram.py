"""N-gram tables: addresses and steps of all backends against the definition, and the definition against a slow oracle."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lutetia.errors import ArgumentError
from lutetia.lut import use_backend
from lutetia.nn import NgramTables, RowAdam

BACKENDS = ("reference", "cpu", "triton")
TEXT = b"`a{z@A[Z/0:9; The cat, the caterpillar and 42 caf\xc3\xa9s; averyveryveryverylongword_x y!"


def text(batch: int, length: int) -> Tensor:
    """Windows of a text with words, digits and signs."""
    whole = torch.tensor(list(TEXT * (1 + (3 * batch + length) // len(TEXT))))
    return torch.stack([whole[3 * b : 3 * b + length] for b in range(batch)])


def oracle(layer: NgramTables, tokens: list[int], s: int) -> list[int]:
    """The addresses of one place, with Python's whole numbers."""

    def in_word(at: int) -> bool:
        return at >= 0 and ((chr(tokens[at]).isascii() and chr(tokens[at]).isalnum()) or tokens[at] >= 128)

    found = []
    multipliers = layer.multipliers.tolist()
    for table in range(layer.n_tables):
        is_word = table == len(layer.orders)
        members = []
        for at in range(s, max(s - (16 if is_word else layer.orders[table]), -1), -1):
            members.append(tokens[at])
            if is_word and in_word(at) and not in_word(at - 1):
                break
        h = sum((token + 1) * m for token, m in zip(members, multipliers[table], strict=False)) % 2**64
        h = ((h ^ (h >> 31)) * (2**64 - 7046029254386353131)) % 2**64
        found.append(table * layer.n_rows + ((h >> 32) * layer.n_rows >> 32))
    return found


@pytest.mark.parametrize("backend", BACKENDS)
def test_addresses_are_those_of_the_oracle(backend: str) -> None:
    layer = NgramTables((1, 2, 5), word=True, n_rows=1009, width=2, seed=3)
    tokens = text(3, 61)
    with use_backend(backend):
        found = layer.addresses(tokens)
    wanted = [[oracle(layer, row, s) for s in range(61)] for row in tokens.tolist()]
    assert found.tolist() == wanted


@pytest.mark.parametrize("backend", BACKENDS)
def test_addresses_of_pieces_are_those_of_the_whole(backend: str) -> None:
    layer = NgramTables((2, 6), word=True, n_rows=512, width=2)
    tokens = text(2, 40)
    with use_backend(backend):
        whole, past, pieces = layer.addresses(tokens), None, []
        for piece in tokens.split([1, 1, 7, 20, 11], 1):
            pieces.append(layer.addresses(piece, past))
            past = layer.recent(piece, past)
    assert torch.equal(torch.cat(pieces, 1), whole)


def test_recent_of_ragged_rows_is_that_of_each_row_alone() -> None:
    layer = NgramTables((4,), n_rows=64, width=2)
    tokens, lengths = text(3, 9), torch.tensor([9, 1, 5])
    together = layer.recent(tokens, None, lengths)
    alone = [layer.recent(row[None, :n])[0] for row, n in zip(tokens, lengths.tolist(), strict=True)]
    assert torch.equal(together, torch.stack(alone))


def test_addresses_are_causal_and_do_not_cross_the_border() -> None:
    layer = NgramTables((3,), word=True, n_rows=4096, width=2)
    tokens = text(1, 30)
    changed = tokens.clone()
    changed[0, 20:] = 7
    assert torch.equal(layer.addresses(tokens)[:, :20], layer.addresses(changed)[:, :20])
    assert not torch.equal(layer.addresses(tokens)[:, 20:], layer.addresses(changed)[:, 20:])
    assert torch.equal(layer.addresses(tokens[:, 10:]), NgramTables((3,), word=True, n_rows=4096).addresses(tokens[:, 10:]))


def test_rows_are_spread_evenly() -> None:
    layer = NgramTables((3,), n_rows=256, width=2)
    tokens = torch.randint(256, (64, 512), generator=torch.Generator().manual_seed(0))
    counts = layer.addresses(tokens)[:, 2:].flatten().bincount(minlength=256).double()
    mean = counts.mean()
    assert float(((counts - mean) ** 2 / mean).sum()) < 255 + 5 * (2 * 255) ** 0.5  # chi² of 255 degrees of freedom


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("backend", BACKENDS)
def test_forward_is_the_rows_and_the_gradient_is_sparse(backend: str, compiled: bool) -> None:
    layer = NgramTables((1, 2), n_rows=32, width=3, dtype=torch.float64)
    torch.nn.init.normal_(layer.weight)
    tokens = text(2, 5)
    index = torch.tensor([[oracle(layer, row, s) for s in range(5)] for row in tokens.tolist()])
    with use_backend(backend):
        y = (torch.compile(layer, backend="aot_eager") if compiled else layer)(tokens)
    assert torch.equal(y, layer.weight[index].flatten(-2))
    (y * y).sum().backward()
    assert layer.weight.grad is not None
    assert layer.weight.grad.is_sparse
    dense = layer.weight.detach().clone().requires_grad_()
    dense[index].square().sum().backward()
    torch.testing.assert_close(layer.weight.grad.to_dense(), dense.grad)


def rows_of(backend: str, dtype: torch.dtype, width: int) -> tuple[Tensor, RowAdam]:
    """Seven steps with gradients that name rows more than once."""
    draw = torch.Generator().manual_seed(1)
    weight = torch.nn.Parameter(torch.randn(40, width, generator=draw, dtype=torch.float64).to(dtype))
    optimizer = RowAdam([weight], lr=0.1, beta=0.9, weight_decay=0.3)
    with use_backend(backend):
        for _ in range(7):
            rows = torch.randint(20, (1, 33), generator=draw)
            values = torch.randn(33, width, generator=draw, dtype=torch.float64).to(dtype)
            weight.grad = torch.sparse_coo_tensor(rows, values, weight.shape, check_invariants=True)
            optimizer.step()
    return weight.detach(), optimizer


@pytest.mark.parametrize(
    ("backend", "dtype", "width"), [("cpu", torch.float64, 5), ("cpu", torch.float32, 8), ("triton", torch.float32, 5)]
)
def test_row_steps_are_those_of_the_reference(backend: str, dtype: torch.dtype, width: int) -> None:
    wanted, reference = rows_of("reference", dtype, width)
    found, optimizer = rows_of(backend, dtype, width)
    near = {"rtol": 1e-12, "atol": 1e-12} if dtype == torch.float64 else {"rtol": 1e-5, "atol": 1e-6}
    torch.testing.assert_close(found, wanted, **near)
    for name in ("exp_avg_sq", "count"):
        (one,), (other,) = (each.state.values() for each in (optimizer, reference))
        torch.testing.assert_close(one[name], other[name], **near)


def test_one_row_is_stepped_as_adam_without_momentum_steps_it() -> None:
    start = torch.randn(3, 4, dtype=torch.float64)
    weight, twin = torch.nn.Parameter(start.clone()), torch.nn.Parameter(start[1:2].clone())
    ours = RowAdam([weight], lr=0.05, beta=0.95, weight_decay=0.1)
    theirs = torch.optim.AdamW([twin], lr=0.05, betas=(0.0, 0.95), weight_decay=0.1)
    for _ in range(5):
        gradient = torch.randn(1, 4, dtype=torch.float64)
        weight.grad, twin.grad = torch.sparse_coo_tensor([[1]], gradient, (3, 4), check_invariants=True), gradient
        ours.step(), theirs.step()
    torch.testing.assert_close(weight[1:2], twin)
    assert torch.equal(weight[::2], start[::2])  # not read: not stepped, not decayed


def test_the_rate_may_be_a_tensor() -> None:
    found = []
    for rate in (0.1, torch.tensor(0.1)):
        weight = torch.nn.Parameter(torch.ones(2, 2))
        weight.grad = torch.sparse_coo_tensor([[0, 0]], torch.ones(2, 2), (2, 2), check_invariants=True)
        RowAdam([weight], lr=rate).step()
        found.append(weight.detach())
    torch.testing.assert_close(*found)


def test_dropout_is_of_numbers_and_of_orders() -> None:
    layer = NgramTables((1, 2, 3), n_rows=8, width=4, order_dropout=0.5)
    torch.nn.init.ones_(layer.weight)
    tokens = text(40, 20)
    kept = layer(tokens).unflatten(-1, (3, 4))
    assert torch.equal(layer.eval()(tokens), torch.ones(40, 20, 12))
    levels = kept.mean(-1).sum(-1)  # how many tables are left
    assert torch.equal(kept, (torch.arange(3)[:, None] < levels[..., None, None]).float().expand_as(kept))
    shares = [float((levels == n).float().mean()) for n in range(4)]
    assert all(abs(share - wanted) < 0.07 for share, wanted in zip(shares, (1 / 6, 1 / 6, 1 / 6, 1 / 2), strict=True)), shares
    layer.train().order_dropout, layer.dropout = 0.0, 0.25
    dropped = layer(tokens).detach()
    assert abs(float((dropped == 0).float().mean()) - 0.25) < 0.03
    assert float(dropped.max()) == pytest.approx(1 / 0.75)


def test_relevance_goes_in_equal_parts_to_the_tokens_of_a_row() -> None:
    layer = NgramTables((1, 3), word=True, n_rows=8, width=2)
    tokens = torch.tensor([list(b"a bcd")])
    relevance = torch.zeros(1, 5, 6)
    relevance[0, 4] = torch.tensor([1.0, 0.0, 3.0, 0.0, 4.0, 2.0])  # at "d": 1 of "d", 3 of "bcd", 6 of the word "bcd"
    relevance[0, 1, 2] = 2.0  # at " ": of the two tokens that there are
    shares = layer.token_shares(relevance, tokens)
    torch.testing.assert_close(shares, torch.tensor([[1.0, 1.0, 3.0, 3.0, 4.0]]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"orders": (3, 2)}, "ascending"),
        ({"orders": (0,)}, "an order is 0"),
        ({"orders": (17,)}, "an order is 17"),
        ({"orders": ()}, "at least one order"),
        ({"orders": "23"}, "a list of numbers of tokens"),
        ({"word": 1}, "word is 1"),
        ({"n_rows": 0}, "n_rows is 0"),
        ({"dropout": 1.5}, "dropout is 1.5"),
        ({"gradient": "in_place"}, "gradient is 'in_place'"),
    ],
)
def test_bad_options_are_named(options: dict[str, object], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        NgramTables(**{"n_rows": 8, "width": 2, **options})  # type: ignore[arg-type]


def test_bad_tokens_and_gradients_are_named() -> None:
    layer = NgramTables((2,), n_rows=8, width=2)
    with pytest.raises(ArgumentError, match="tokens"):
        layer(torch.zeros(3))
    with pytest.raises(ArgumentError, match="past"):
        layer(text(2, 3), torch.zeros(2, 5, dtype=torch.int64))
    layer.weight.grad = torch.ones_like(layer.weight)
    with pytest.raises(ArgumentError, match="a dense gradient"):
        RowAdam(layer.parameters()).step()
    rows, values = torch.tensor([[0, 8]]), torch.ones(2, 2)
    layer.weight.grad = torch.sparse_coo_tensor(rows, values, (8, 2), check_invariants=False)
    with use_backend("cpu"), pytest.raises(ArgumentError, match="names row 8"):
        RowAdam(layer.parameters()).step()
    with pytest.raises(ArgumentError, match="beta is 1"):
        RowAdam(layer.parameters(), beta=1.0)


@pytest.mark.gpu
def test_on_cuda_addresses_and_steps_are_those_of_the_cpu() -> None:
    layer = NgramTables((2, 3, 5), word=True, n_rows=5000, width=48)
    tokens = text(16, 200)
    there = NgramTables((2, 3, 5), word=True, n_rows=5000, width=48, device="cuda")
    assert torch.equal(there.addresses(tokens.cuda()).cpu(), layer.addresses(tokens))
    steps = [RowAdam(each.parameters(), weight_decay=0.1) for each in (layer, there)]
    for n in range(3):
        target = torch.randn(16, 200, layer.n_outputs, generator=torch.Generator().manual_seed(n))
        for each, optimizer, device in zip((layer, there), steps, ("cpu", "cuda"), strict=True):
            optimizer.zero_grad()
            (each(tokens.to(device)) - target.to(device)).square().sum().backward()
            optimizer.step()
    torch.testing.assert_close(there.weight.detach().cpu(), layer.weight.detach(), rtol=1e-4, atol=1e-5)
