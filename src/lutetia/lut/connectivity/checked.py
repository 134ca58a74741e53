"""Synapses as kernels may trust them."""

from __future__ import annotations

import json
from typing import Any

from torch import Tensor

from lutetia._shared.memo import Memo, private_copy
from lutetia.errors import check_tensor, fail
from lutetia.lut.connectivity.synapses import TENSOR_NAMES, Synapses


def _rebuilt(start: Tensor, targets: Tensor, meta: Tensor, header: str) -> Synapses:
    facts = json.loads(header)
    arrays = [private_copy(each) if each.is_cuda else each.detach().clone() for each in (start, targets, meta)]
    return Synapses.from_tensors(dict(zip(TENSOR_NAMES[facts["layout"]], arrays, strict=True)), facts)


synapses_seen = Memo(_rebuilt)


def synapses_of(start: Tensor | None, targets: Tensor | None, meta: Tensor | None, header: str) -> Synapses:
    """The synapses of these tensors, built and checked once, so that the layouts in them are kept."""
    return synapses_seen.get((start, targets, meta), header)  # type: ignore[arg-type]


def checked_synapses(synapses: Any) -> Synapses:
    """Synapses that anyone may have made, as a kernel may use them."""
    if not isinstance(synapses, Synapses):
        fail("synapses", synapses, "Synapses, made with lutetia.lut.growth")
    tensors = (synapses.owner_start, synapses.owner_targets, synapses.owner_meta)
    for name, tensor in zip(TENSOR_NAMES[synapses.layout], tensors, strict=True):
        check_tensor(name, tensor)
    return synapses_of(*tensors, synapses.header_text)
