"""The search for the anchors of tables: against a search by hand, over odd numbers of samples, inputs and cells."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from lutetia._shared.elementary import exp_double
from lutetia._shared.loops import entry
from lutetia.training.anchor_loops import pack, room_of, words_of
from lutetia.training.anchors import AnchorSearch, constrained, drawer, missing_asked, row_drawer
from lutetia.training.boosting import Boosting, boost
from lutetia.training.goal_loops import CHUNK
from lutetia.training.goals import Classes, Numbers


def gain(cells: np.ndarray, bits: np.ndarray, target: np.ndarray, weight: np.ndarray, way: int) -> float:
    """Σ over cells and their halves of (Σ target)² / (Σ weight + 1); halves that go against `way` count as one."""
    total = 0.0
    for cell in set(cells.tolist()):
        halves = [(cells == cell) & (bits == bit) for bit in (False, True)]
        sums, held = [target[half].sum() for half in halves], [weight[half].sum() + 1 for half in halves]
        is_split = way * (sums[1] / held[1] - sums[0] / held[0]) >= 0
        total += sum(s * s / h for s, h in zip(sums, held, strict=True)) if is_split else sum(sums) ** 2 / (sum(held) - 1)
    return total


def answers(codes: np.ndarray, anchor: np.ndarray) -> np.ndarray:
    return codes[anchor[0]] > (codes[anchor[1]] if anchor[1] < len(codes) else anchor[1] - len(codes))


@pytest.mark.parametrize(
    ("n_inputs", "n", "m", "is_weighted", "is_bound"),
    [(1, 1, 1, False, False), (3, 101, 67, True, True), (9, 300, 300, False, True), (17, 96, 32, True, False)],
)
def test_each_anchor_is_the_best_of_its_candidates(n_inputs: int, n: int, m: int, is_weighted: bool, is_bound: bool) -> None:
    random = np.random.default_rng(n)
    codes = random.integers(0, 256, (n_inputs, n)).astype(np.uint8)
    drawn = np.stack([random.integers(0, n_inputs, (6, 20)), random.integers(0, n_inputs + 255, (6, 20))], 2)
    drawn[:, 7] = drawn[:, 3]  # again
    ways = random.integers(-1, 2, (6, 20)).astype(np.int8) if is_bound else np.zeros((6, 20), np.int8)
    missing = random.integers(-9, 10, (n, 3)).astype(np.float64)  # with 13 bits these are exact but for one part in thousands
    direction = np.array([1.0, -2.0, 0.5])
    held = random.integers(0, 5, n).astype(np.float32) if is_weighted else np.full(n, 1.5, np.float32)
    rows = random.permutation(n)[:m].astype(np.uint32)
    every = np.tile(drawn, (100, 1, 1))  # as many as are asked for at once
    chosen = AnchorSearch(codes, 6, lambda k: every[:k], lambda each: np.tile(ways, (len(each) // 6, 1))).choose(
        rows, missing, direction, held
    )
    target, cells, own = (missing @ direction)[rows], np.zeros(m, np.int64), codes[:, rows]
    for place, anchor in enumerate(chosen):
        number = int(np.flatnonzero((drawn[place] == anchor).all(1))[0])
        gains = [
            gain(cells, answers(own, each), target, held[rows], way) for each, way in zip(drawn[place], ways[place], strict=True)
        ]
        assert gains[number] >= max(gains) * (1 - 1e-3)
        cells = 2 * cells + answers(own, anchor)


def test_smoothing_is_not_lost_beside_weights_of_any_size() -> None:
    """Sums of weights of 1e15 were off by more than the smoothing, by which samples of no weight are divided."""
    random, n = np.random.default_rng(0), 300
    light = np.arange(n) < 9
    codes = np.stack([np.where(light, 0, 9), random.integers(0, 250, n)]).astype(np.uint8)
    held = np.where(light, 0, random.uniform(1e15, 2e15, n)).astype(np.float32)
    missing = np.where(light, -1.0, codes[1] / 250.0)[:, None]
    drawn = np.array([[[1, 2 + 174], [0, 2 + 4]]] * 100)
    for seed in range(20):
        rows = np.random.default_rng(seed).permutation(n)[: 200 + seed].astype(np.uint32)
        chosen = AnchorSearch(codes, 1, lambda k: drawn[:k]).choose(rows, missing, np.ones(1), held)
        assert chosen.tolist() == [[0, 6]]  # what parts those without a weight from the others


@pytest.mark.parametrize("is_weighted", [False, True])
def test_sums_of_many_large_targets_do_not_overflow(is_weighted: bool) -> None:
    """Sums have 16 bits for a while: of targets that are all near the largest, and of weights."""
    random, n = np.random.default_rng(0), 3000
    codes = random.integers(0, 256, (2, n)).astype(np.uint8)
    held = random.choice([4094.0, 4095.0], n).astype(np.float32) if is_weighted else np.ones(n, np.float32)
    for limit in range(20, 240, 20):
        missing = held * np.where(codes[0] > limit, 1.0, 0.9)
        drawn = np.array([[[1, 2 + limit], [0, 2 + limit], [0, 2 + limit // 2]]] * 100)
        chosen = AnchorSearch(codes, 1, lambda k, drawn=drawn: drawn[:k])
        assert chosen.choose(np.arange(n, dtype=np.uint32), missing[:, None], np.ones(1), held).tolist() == [[0, 2 + limit]]


def test_words_hold_eight_codes_each() -> None:
    codes = np.random.default_rng(0).integers(0, 256, (11, 5)).astype(np.uint8)
    words = words_of(codes)
    for number, sample in itertools.product(range(11), range(5)):
        assert int(words[number // 8, sample]) >> 8 * (number % 8) & 255 == codes[number, sample]
    assert words.shape == (2, 5)


@pytest.mark.parametrize(
    ("held", "unit", "whole"),
    [([2.5, 2.5, 2.5], 2.5, [1, 1, 1]), ([3.0, 0.0, 7.0], 1.0, [3, 0, 7]), ([0.0, 0.5, 0.25], 0.5 / 4095, [0, 4095, 2048])],
)
def test_weights_become_whole_numbers(held: list[float], unit: float, whole: list[int]) -> None:
    sample, rows = room_of(3, 1), np.array([2, 0, 1], np.uint32)
    missing = np.array([[-1.0], [0.5], [0.0]])
    found = pack(missing, np.ones(1), np.array(held, np.float32), rows, sample)
    assert found == pytest.approx(unit)
    assert (sample.entries >> np.uint64(32)).tolist() == [2, 0, 1]
    assert sample.entries.astype(np.uint16).tolist() == [whole[2], whole[0], whole[1]]
    assert (sample.entries >> np.uint64(16)).astype(np.uint16).view(np.int16).tolist() == [0, -4095, 2048]


def test_targets_without_a_size_choose_the_first_candidate() -> None:
    """Nothing is missing, or so little that its square is 0."""
    codes = np.arange(20, dtype=np.uint8).reshape(2, 10)
    for size in (0.0, 1e-310):
        drawn = np.array([[[1, 2 + 14], [0, 2 + 4]]] * 100)
        found = AnchorSearch(codes, 1, lambda k, drawn=drawn: drawn[:k]).choose(
            np.arange(10, dtype=np.uint32), np.full((10, 1), size), np.ones(1), np.ones(10, np.float32)
        )
        assert found.tolist() == [[1, 16]]


def test_candidates_are_of_inputs_that_vary_as_many_of_each_kind() -> None:
    random, tops = np.random.default_rng(0), np.array([3, 0, 9, 1, 0, 200])
    drawn = drawer(random, tops, 40, 0.25, (3,))(50)
    assert drawn.shape == (50, 40, 2)
    left, right = drawn[..., 0], drawn[..., 1]
    assert set(np.unique(left)) == {0, 2, 3, 5}
    assert set(np.unique(left[:, :20])) == {0, 2}
    is_pair = right < 6
    assert 0.2 < is_pair.mean() < 0.3
    assert (right != left).all()
    assert set(map(tuple, np.sort(drawn[is_pair], 1).tolist())) == {(0, 2), (3, 5)}
    assert (right - 6 < np.maximum(tops[left], 1))[~is_pair].all()


def test_constrained_candidates_ask_what_signs_allow() -> None:
    random, tops, signs = np.random.default_rng(0), np.array([9, 9, 9]), np.array([1, 1, 0], np.int8)
    codes = np.array([[0, 5, 9], [1, 5, 9], [0, 5, 9]], np.uint8)
    asked = missing_asked(codes, signs)
    assert asked.tolist() == [0.1, 0.0, 0.0]
    drawn = constrained(drawer(random, tops, 40, 0.5), random, tops, signs, asked)(100).reshape(-1, 2)
    assert not any({left, right} == {0, 1} for left, right in drawn.tolist())
    is_missing = drawn[:, 1] == 3
    assert 0.1 < is_missing[drawn[:, 0] == 0].mean() < 0.2 < (drawn[:, 1] < 3).mean()


@pytest.mark.parametrize(("n", "count"), [(1, 5), (12, 7), (97, 96), (360, 100)])
def test_no_row_is_drawn_twice_and_each_as_often(n: int, count: int) -> None:
    draw, times = row_drawer(np.random.default_rng(0), n, count), np.zeros(n)
    for _ in range(2000):
        rows = draw()
        assert len(rows) == min(n, count)
        assert len(np.unique(rows)) == len(rows)
        times[rows] += 1 / len(rows)
    np.testing.assert_allclose(times * n / 2000, 1, atol=0.15)


@pytest.mark.parametrize("n_classes", [1, 2, 3])
def test_sums_over_more_samples_than_a_chunk_are_those_of_numpy(n_classes: int) -> None:
    random, n = np.random.default_rng(0), CHUNK + 300
    cells, scores = random.integers(0, 8, n).astype(np.uint16), random.normal(size=(n, n_classes))
    y, weight = random.integers(0, max(n_classes, 2), n), random.random(n).astype(np.float32)
    powers = np.exp(scores)
    chance, lacking = powers / powers.sum(1, keepdims=True), np.eye(max(n_classes, 2))[y][:, :n_classes]
    if n_classes == 1:
        goal, missing, curved = Numbers(y.astype(np.float64), weight), y[:, None] - scores, np.ones((n, 1))
    else:
        goal, missing, curved = Classes(y, n_classes, weight), lacking - chance, chance * (1 - chance)
        loss = -np.average(np.log(chance[np.arange(n), y]), weights=weight)
        assert goal.loss(scores) == pytest.approx(loss, rel=1e-9)
    found = goal.sums(cells, goal.residuals(scores), 8)
    for values, sums in zip((missing, curved), found, strict=True):
        wanted = [np.bincount(cells, column * weight, 8) for column in values.T]
        np.testing.assert_allclose(sums, np.stack(wanted, 1), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("n_classes", [1, 2, 3])
def test_two_threads_fit_the_same_tables(n_classes: int) -> None:
    random = np.random.default_rng(0)
    codes = random.integers(0, 50, (3, 2 * CHUNK + 77)).astype(np.uint8)
    y, weight = (codes[0] > 20).astype(np.int64) * (n_classes - 1), np.ones(codes.shape[1], np.float32)
    made = []
    for threads in (1, 2):
        goal = Numbers(y + codes[1] / 7.0, weight, threads=threads) if n_classes == 1 else Classes(y, n_classes, weight, threads)
        made.append(boost(codes, np.full(3, 49), goal, Boosting(n_tables=3, n_anchors=3, threads=threads)))
    np.testing.assert_array_equal(made[0].anchors, made[1].anchors)
    np.testing.assert_array_equal(made[0].weight, made[1].weight)
    assert made[0].losses == made[1].losses


def test_exponentials_of_float64_are_those_of_numpy() -> None:
    @entry
    def powers(z, found):  # type: ignore[no-untyped-def]
        for at in range(len(z)):
            found[at] = exp_double(z[at])

    z = np.concatenate([[0.0, -1e-300, -708.0], -np.random.default_rng(0).exponential(30, 1000)])
    found = np.empty_like(z)
    powers(z, found)
    np.testing.assert_allclose(found, np.exp(z), rtol=5e-16)
    powers(np.array([-800.0, -np.inf]), found[:2])
    np.testing.assert_allclose(found[:2], np.exp(-708.0))
