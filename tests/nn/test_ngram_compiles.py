"""The Triton kernels of n-gram tables compile for a GPU, and a step stores nothing before all warps have loaded."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("triton")

from gpu_code import compile_for_gpu

SCRIPT = """
from lutetia.nn import NgramTables
from lutetia.nn.ngram import kernels
from lutetia.nn.ngram.hashing import Hash

layer = NgramTables((2, 3), word=True, n_rows=64, width=8)
tokens = torch.zeros(2, 5, dtype=torch.int64)
hash_ = Hash(*layer.hashed, 64, layer.multipliers)
kernels.addresses(tokens, torch.zeros(2, 15, dtype=torch.int64), hash_, layer.lengths, layer.words)
rows, number = torch.zeros(9, dtype=torch.int64), torch.zeros(192, 1)
table = torch.zeros(192, 8)
memory = (table, table, number, table, torch.zeros(192, dtype=torch.int32), torch.zeros((), dtype=torch.int32), torch.zeros(()))
kernels.step_rows(rows, torch.zeros(9, 8), memory, (0.99, 1e-8, 0.1))
"""


def test_kernels_compile_and_stores_wait_for_loads() -> None:
    compiled = {name.strip(): ptx for name, ptx in compile_for_gpu(SCRIPT).items()}
    assert set(compiled) == {"address_kernel", "add_kernel", "step_kernel"}
    order = re.findall(r"(ld\.global|st\.global|bar\.sync)", compiled["step_kernel"])
    last_load, first_store = len(order) - 1 - order[::-1].index("ld.global"), order.index("st.global")
    assert last_load < first_store
    assert "bar.sync" in order[last_load:first_store]
