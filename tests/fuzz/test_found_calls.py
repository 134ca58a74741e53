"""Calls that once ended in an exception that was not ours: each is now refused, and says what was expected."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lutetia import models, nn, precompute
from lutetia.attention import KVCache, PagedKVCache, decode_attention, prefill
from lutetia.errors import DataError, LutetiaError
from lutetia.lut import kernels
from lutetia.precompute import Int, TableData
from lutetia.precompute.tools.find import time_limit
from lutetia.training.table_files import make_table, read_table_file
from tools import require_module

require_module("numba")
X, NOTHING, NUMBERS, CLASSES = torch.randn(9, 4), torch.zeros(9, 0), torch.zeros(2), torch.arange(9) % 3
CACHE = torch.zeros(1, 1, 4, 2)
LENGTHS = torch.ones(1, dtype=torch.int32)
LANGUAGE = {"vocab": 12, "context": 6, "width": 4, "n_layers": 1, "n_detectors": 2, "ff_detectors": 2, "ff_anchors": 2}
GATES = {"n_inputs": 4, "n_classes": 2, "n_tables": 4, "k": 2, "bits": 3, "thresholds": (3,)}


def save(**options: Any) -> None:
    models.save(models.LUTTransformer(**LANGUAGE), options.pop("path", "never"), **options)


def votes() -> models.VotesClassifier:
    return models.VotesClassifier(input_shape=(4,), n_classes=2, n_tables=4, k=2, bits=3, thresholds=(3,))


def pages() -> PagedKVCache:
    cache = PagedKVCache(4, 2, 1, 2)
    cache.allocate(1)
    return cache


def changed(**tensors: Any) -> None:
    """A cache that somebody gave other tensors."""
    cache = KVCache(1, 1, 4, 2)
    vars(cache).update(tensors)
    cache.append(CACHE[:, :, :1], CACHE[:, :, :1])


def step(seconds: Any) -> None:
    with time_limit(seconds):
        pass


CALLS: dict[str, tuple[Callable[[], object], str]] = {
    "a prompt without memory": (lambda: models.LUTTransformer(**LANGUAGE).generate(CLASSES.to("meta"), 1), "prompt 0 is"),
    "votes of nothing": (lambda: votes()(torch.empty(2, 4, device="meta")), "x is float32"),
    "columns of nothing": (
        lambda: models.Tabular(input_shape=(3,), n_classes=2)(torch.empty(2, 3, device="meta")),
        "x is float32",
    ),
    "lengths of nothing": (lambda: prefill(CACHE, CACHE, CACHE, lengths=LENGTHS.to("meta")), "lengths is int32"),
    "starts of nothing": (lambda: prefill(CACHE, CACHE, CACHE, start=LENGTHS.to("meta")), "start is int32"),
    "new lengths of nothing": (lambda: KVCache(1, 1, 4, 2).append(CACHE, CACHE, LENGTHS.to("meta")), "lengths is int32"),
    "new lengths of pages": (lambda: pages().append([0], CACHE, CACHE, LENGTHS.to("meta")), "lengths is int32"),
    "a cache whose keys are a list": (lambda: changed(k=CACHE.tolist()), "k of the cache is"),
    "a cache whose values are one": (lambda: changed(v=CACHE[:, :, :1].expand(CACHE.shape)), "v of the cache is"),
    "a cache of fewer values": (lambda: changed(v=CACHE[:, :, 1:]), "v of the cache is"),
    "a cache whose lengths are real": (lambda: changed(lengths=torch.zeros(1)), "lengths of the cache is"),
    "a cache whose lengths are few": (lambda: changed(lengths=LENGTHS[0]), "lengths of the cache is"),
    "rows of 64 bits without a sign": (lambda: KVCache(1, 1, 4, 2).reset(torch.zeros(1, dtype=torch.uint64)), "rows is uint64"),
    "a scale past float32": (lambda: decode_attention(CACHE[:, :, :1], CACHE, CACHE, seq_lens=LENGTHS, scale=1e300), "scale"),
    "gates without a list": (lambda: models.Gates(**GATES, hidden=5), "hidden is 5"),
    "gates of bits": (lambda: models.Gates(**GATES, learn_thresholds=True, threshold_bits=4), "threshold_bits is 4"),
    "gates of a number": (lambda: models.Gates(**GATES, learn_thresholds=True)(0.5), "x is 0.5"),
    "codes": (lambda: models.TabularConfig(core="gates", gate_codes=7), "gate_codes is 7"),
    "a path": (lambda: save(path=3), "path is 3"),
    "files": (lambda: save(files=5), "files is 5"),
    "a file of numbers": (lambda: save(files={"a": {"b": 1}}), "the file a"),
    "a config": (lambda: save(config=[1]), "config is"),
    "lengths": (lambda: nn.NgramTables((2,), n_rows=3, width=2).recent(CLASSES[None], None, torch.tensor([-1])), "lengths holds"),
    "parameters": (lambda: nn.RowAdam([3]), "params is"),
    "a group": (lambda: nn.RowAdam([{}]), "params is"),
    "a rate": (lambda: nn.RowAdam([X.requires_grad_()], lr="x"), "lr is 'x'"),
    "no classes": (lambda: nn.choose_anchors(X.detach(), CLASSES - 5, 2, 2), "target holds classes from -5"),
    "no inputs": (
        lambda: nn.choose_anchors(NOTHING, CLASSES, 2, 2, kind="thresholds", thresholds=NUMBERS),
        "x is",
    ),
    "rows": (lambda: nn.choose_anchors(X.detach(), CLASSES, 2, 2, rows=0.5), "rows is 0.5"),
    "no model": (lambda: nn.table_parameters(3), "model is 3"),
    "no module": (lambda: nn.ngram_tables("x"), "model is 'x'"),
    "no optimiser": (lambda: nn.clamp_after_step(3, torch.nn.Linear(1, 1)), "optimizer is 3"),
    "bits": (lambda: precompute.quantise(torch.tensor([True]), Int(3)), "x is bool"),
    "no table": (lambda: precompute.minimise_tables([3]), "one of tables is 3"),
    "no rows": (lambda: precompute.minimise_tables([TableData(np.zeros((3, 1), np.int64), (1,))]), "one of tables"),
    "bits without end": (lambda: precompute.minimise_tables([TableData(np.zeros((2, 1), np.int64), (2**31,))]), "one of tables"),
    "no votes": (lambda: precompute.votes_graph(3), "model is 3"),
    "no gates": (lambda: precompute.gates_graph(torch.nn.Linear(1, 1)), "model is Linear"),
    "seconds": (lambda: step("x"), "time_limit is 'x'"),
    "no graph": (lambda: precompute.Build(3), "graph is 3"),
    "a table's path": (lambda: precompute.IOTable.load(3), "path is 3"),
    "a core's path": (lambda: precompute.LanguageHardware.load(3), "path is 3"),
}


@pytest.mark.parametrize("name", CALLS)
def test_it_is_refused(name: str) -> None:
    call, words = CALLS[name]
    with pytest.raises(LutetiaError, match=rf"^{words}"):
        call()
    assert not Path("never").exists()


def test_a_table_without_rows(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("a,b,c\n")
    with pytest.raises(DataError, match="no rows"):
        make_table(read_table_file(tmp_path / "rows.csv"), None, None)


def test_detectors_that_reach_nothing_have_no_variation() -> None:
    """Shared lists of different widths, one of them empty."""
    from lutetia.lut import growth

    synapses = growth.from_edges(3, 2, 4, [(0, 1), (0, 2), (1, 3)])
    assert nn.cell_total_variation(nn.LUT(5, 4, 3, 2, synapses=synapses, seed=0)).item() >= 0


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_indices_of_64_bits_are_counted(backend: str) -> None:
    indices, places = torch.randint(0, 4, (2, 3, 4)).int(), torch.randint(0, 4, (2, 4)).int()
    count = kernels(backend).fill_firing_stat
    assert torch.equal(count(indices.long(), places.long(), 2, 2), count(indices, places, 2, 2))
