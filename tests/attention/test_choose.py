"""How work is shared out: the rule of the original, and costs derived by hand."""

from __future__ import annotations

from typing import Any

import pytest

from lutetia.attention import Machine, choose_shard, explain_choice
from lutetia.attention import choose as module
from lutetia.attention.choose import choose_splits, exchanges
from lutetia.errors import ArgumentError

SIZES: dict[str, Any] = {"n_q_heads": 4, "n_kv_heads": 2, "head_dim": 8}


@pytest.mark.parametrize(
    ("batch", "heads", "s_active", "length", "shard"),
    [
        (2, 64, 1, 4096, "sequence"),  # 128 rows are not more than 128
        (2, 65, 1, 4096, "batch"),
        (2, 33, 2, 4096, "batch"),
        (2, 4, 1, 255, "batch"),
        (2, 4, 1, 256, "sequence"),
        (3, 64, 1, 4096, "sequence"),  # odd
        (3, 64, 1, 255, "none"),
        (1, 4, 1, 256, "sequence"),
        (1, 4, 1, 255, "none"),
        (4, 32, 1, 100, "batch"),
    ],
)
def test_the_rule_of_the_original(batch: int, heads: int, s_active: int, length: int, shard: str) -> None:
    sizes = {"n_q_heads": heads, "n_kv_heads": 1, "head_dim": 128, "s_active": s_active}
    choice = choose_shard([length] * batch, cores=2, policy="neuron", **sizes)
    assert choice.shard == shard
    assert choice.cores == (1 if shard == "none" else 2)


@pytest.mark.parametrize(
    ("capacity", "shard", "tile"), [(16384, "sequence", 8192), (16386, "sequence", 8192), (9000, "sequence", 4500)]
)
def test_flash_tiles_when_a_core_holds_more_than_8192(capacity: int, shard: str, tile: int) -> None:
    choice = choose_shard([10], cores=2, capacity=capacity, policy="neuron", **SIZES)
    assert (choice.shard, choice.tile) == (shard, tile)
    assert choose_shard([10], cores=2, capacity=9000, shard="batch", **SIZES).tile == 8192


def test_costs_by_hand() -> None:
    machine = Machine(bandwidth=1000.0, link=100.0, latency=3.0, combine=10.0)
    lengths = [100, 20, 30]
    none, batch, sequence = choose_shard(lengths, cores=2, machine=machine, element_bytes=2, **SIZES).candidates
    key = 2 * 2 * 8 * 2 / 1000  # seconds: key and value, two heads of eight, two bytes
    assert none.seconds == pytest.approx(150 * key)
    assert batch.keys == 100  # rows [0, 1) and [1, 3)
    assert batch.seconds == pytest.approx(100 * key)
    assert sequence.keys == 50 + 10 + 15
    sent = 3 * 4 * 4 * (8 + 2)  # rows, heads, float32: the output, m and l
    assert (sequence.messages, sequence.message_bytes) == (1, sent)
    assert sequence.seconds == pytest.approx(75 * key + 3.0 + sent / 100 + 2 * sent / 10)


def test_the_least_seconds_win() -> None:
    free = Machine(latency=0.0, link=1e30, combine=1e30)
    assert choose_shard([4000, 4000], cores=2, **SIZES).shard == "batch"
    assert choose_shard([4000, 1], cores=2, machine=free, **SIZES).shard == "sequence"
    assert choose_shard([4000, 1], cores=2, machine=free._replace(latency=1.0), **SIZES).shard == "batch"
    assert choose_shard([5], cores=2, machine=Machine(latency=1.0), **SIZES).shard == "none"
    assert choose_shard([4000, 4000], cores=1, **SIZES).shard == "none"


def test_exchanges() -> None:
    assert [exchanges(sync, 5) for sync in ("lockstep", "deferred", "lse")] == [11, 3, 1]
    for sync, messages in (("lockstep", 2 * 2 + 1), ("deferred", 3), ("lse", 1)):
        sequence = choose_shard([20000], cores=2, sync=sync, **SIZES).candidates[2]
        assert (sequence.tiles, sequence.messages) == (2, messages)
    batch = choose_shard([10, 10], cores=2, out_in_sb=True, **SIZES).candidates[1]
    assert (batch.messages, batch.message_bytes) == (1, 4 * 8 * 4)


@pytest.mark.parametrize("lengths", [[], [0], [0, 0, 0], [7], [1, 2]])
@pytest.mark.parametrize("cores", [1, 2, 3, 5])
def test_few_rows_and_short_ones(lengths: list[int], cores: int) -> None:
    choice = choose_shard(lengths, cores=cores, **SIZES)
    assert choice.tile >= 1
    assert all(each.seconds >= 0 for each in choice.candidates)


def test_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    choice = choose_shard([100, 100], cores=2, policy="neuron", **SIZES)
    text = explain_choice()
    assert capsys.readouterr().out == text + "\n"
    head, headings, *lines = text.splitlines()
    assert head == "batch over 2 cores, tiles of 100 keys (policy neuron: B 2 is even and 100 keys < 256)"
    assert headings.split()[:3] == ["shard", "cores", "keys"]
    assert [line.split()[0] for line in lines] == ["none", "→", "sequence"]
    choose_shard([300], cores=2, **SIZES)
    assert explain_choice(choice) == text
    assert explain_choice() != text


def test_nothing_chosen_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_last", None)
    with pytest.raises(ArgumentError, match="no choice was made yet"):
        explain_choice()


def test_bad_arguments() -> None:
    for change, message in (({"cores": 0}, "cores is 0"), ({"policy": "x"}, "policy is 'x'"), ({"sync": "x"}, "sync is 'x'")):
        with pytest.raises(ArgumentError, match=message):
            choose_shard([1], **{"cores": 2, **SIZES, **change})
    with pytest.raises(ArgumentError, match="lengths is -1"):
        choose_shard([3, -1], cores=2, **SIZES)


def test_splits_on_a_gpu() -> None:
    """One wave of programs where that fills a device of 132 multiprocessors, more where one would leave many idle."""
    assert [choose_splits(owners, 131072, 132) for owners in (8, 64, 132, 512)] == [16, 2, 1, 1]
    assert choose_splits(100, 131072, 132) == 5
    assert choose_splits(1, 100, 132) == 1
    assert choose_splits(1, 512, 132) == 4
    assert choose_splits(0, 0, 132) == 1
