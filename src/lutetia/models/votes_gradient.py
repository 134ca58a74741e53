"""The gradient of `Votes`, as a compiled loop; a module of its own, so that a trained model is used without loading numba."""

from __future__ import annotations

from lutetia.errors import require

numba = require("numba", "training a model of votes")


@numba.njit(parallel=True, cache=True)
def gradients(rows, weight, grad, of_weight, of_bits):  # type: ignore[no-untyped-def]
    """Gradients of each row, straight through its sign, and of each bit: the table's answer with it minus the answer without.

    rows, grad [batch, n_tables], weight [n_tables, 2**k]; written are of_weight, like weight, and of_bits [batch, n_tables · k].
    """
    k = of_bits.shape[1] // weight.shape[0]
    for table in numba.prange(weight.shape[0]):
        for sample in range(rows.shape[0]):
            row, own = rows[sample, table], grad[sample, table]
            of_weight[table, row] += own
            for place in range(k):
                high, low = row | (1 << place), row & ~(1 << place)
                of_bits[sample, table * k + place] = own * (weight[table, high] - weight[table, low])
