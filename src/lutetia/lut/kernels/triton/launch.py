"""What the launches of all Triton kernels share: grids, the case a kernel is compiled for, and buffers for sums.

Block sizes were measured on an H200. Under TRITON_INTERPRET=1 everything runs on CPU tensors too, which is how it is tested
without a GPU.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lutetia._shared.numbers import cdiv
from lutetia.errors import require
from lutetia.lut.kernels.triton.layout import Layout
from lutetia.lut.sums import Sums, hold, sum_dtype

triton = require("triton", "the triton backend of lutetia.lut")
from lutetia._shared.launches import planned  # noqa: E402  (needs triton)
from lutetia._shared.triton_fixed import convert_kernel  # noqa: E402
from lutetia.lut.kernels.triton.source import basics  # noqa: E402
from lutetia.lut.kernels.triton.source.basics import Case, Sizes, TableArguments, Target  # noqa: E402

KIND = {"fc": basics.FC.value, "shared": basics.SHARED.value, "general": basics.GENERAL.value}
ACC = {torch.float32: triton.language.float32, torch.float64: triton.language.float64}


def case_of(layout: Layout, sums: Sums, dtype: torch.dtype, **more: Any) -> Case:
    """What a kernel over the rows of a layer is compiled for."""
    return Case(layout.n_rows, KIND[layout.kind], layout.width, layout.wide, scale_of(sums), ACC[dtype], **more)


def tables_of(layout: Layout, weight: Tensor | None, lr: Tensor | None = None) -> TableArguments:
    return TableArguments(weight, layout.start, layout.targets, layout.block_start, layout.block_detectors, lr)


def sizes_of(layout: Layout, n_inputs: int | None = None) -> Sizes:
    return Sizes(n_inputs, layout.n_detectors, layout.n_outputs, layout.n_blocks)


def fusion(sums: Sums) -> dict[str, bool]:
    """A launch option: a fused multiply-add would round the float64 addends of fixed sums otherwise."""
    return {"enable_fp_fusion": not sums.exact}


def scale_of(sums: Sums) -> float:
    """Units per 1.0 in fixed sums, 0 for float."""
    return sums.scale if sums.exact else 0.0


def target_of(shape: list[int], sums: Sums, *operands: Tensor, zero: bool = True) -> Target:
    """A buffer for sums of these operands, and in fixed sums the flag."""
    make = operands[0].new_zeros if zero else operands[0].new_empty
    if not sums.exact:
        return Target(make(shape, dtype=sum_dtype(*operands)))
    return Target(make(shape, dtype=torch.int64), operands[0].new_zeros(1, dtype=torch.int32))


def finish(target: Target, sums: Sums, dtype: torch.dtype) -> Tensor:
    """The sums in floating point, or fixed ones as integers if `dtype` is that; raise when one left the range."""
    if not sums.exact:
        return target.out
    if dtype == torch.int64:
        check_overflow(target, sums)
        return target.out
    out, total = torch.empty_like(target.out, dtype=dtype, memory_format=torch.contiguous_format), target.out.numel()
    if total:
        planned(convert_kernel, (cdiv(total, 1024),))(
            target.out.contiguous(), out, target.overflow, total, SCALE=sums.scale, BLOCK=1024
        )
    check_overflow(target, sums)
    return out


def check_overflow(target: Target, sums: Sums) -> None:
    """Raise when the flag of fixed sums is up."""
    if sums.exact:
        hold(target.overflow == 0, sums)
