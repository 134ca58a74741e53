"""The gradient of `Votes`, as a compiled loop; a separate module, so that a trained model runs without loading numba."""

from __future__ import annotations

from lutetia.errors import require

numba = require("numba", "training a model of votes")


@numba.njit(parallel=True, cache=True)
def gradients(rows, weight, grad, of_weight, of_bits):  # type: ignore[no-untyped-def]
    """Gradients of each row, straight through its sign, and of each bit: the table's answer with it minus the answer without.

    rows, grad [n_tables, batch], weight [n_tables, 2**k]; written are of_weight, like weight, and of_bits [n_tables, k, batch].
    """
    for table in numba.prange(weight.shape[0]):
        for sample in range(rows.shape[1]):
            of_weight[table, rows[table, sample]] += grad[table, sample]
        for place in range(of_bits.shape[1]):
            for sample in range(rows.shape[1]):
                row = rows[table, sample]
                change = weight[table, row | (1 << place)] - weight[table, row & ~(1 << place)]
                of_bits[table, place, sample] = grad[table, sample] * change
