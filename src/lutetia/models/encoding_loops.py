"""The compiled loop of `lutetia.models.encoding`."""

from __future__ import annotations

import numpy as np

from lutetia._shared.compiled import jit


@jit(nogil=True)
def encode(x, source, edges, counts, ranks, is_category, codes, begin, end):  # type: ignore[no-untyped-def]
    """A range of samples, input by input."""
    for number in range(len(source)):
        own = edges[number]
        for sample in range(begin, end):
            value = x[sample, source[number]]
            code = 0
            if is_category[number]:
                if 0 <= value < ranks.shape[1] and value == np.floor(value):
                    code = ranks[number, np.int64(value)]
            elif value == value:
                low, high = 0, counts[number]
                while low < high:
                    middle = (low + high) >> 1
                    if own[middle] < value:
                        low = middle + 1
                    else:
                        high = middle
                code = low + 1
            codes[number, sample] = code
