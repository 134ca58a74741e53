"""Rotary positions: elements i and i + r of a query or key are rotated by an angle that depends on the position."""

from __future__ import annotations

import torch
from torch import Tensor

from lutetia.attention.arguments import DecodeCall


def turned(call: DecodeCall) -> DecodeCall:
    """The call with its queries and new keys rotated, and no angles left."""
    if call.rotary is None:
        return call
    at = call.seq_lens.long()[:, None] - call.s_active + torch.arange(call.s_active, device=call.q.device)  # [B, s_active]
    angles = call.rotary[:, at.clamp(min=0)]  # [2, B, s_active, r]
    k_new = None if call.k_new is None else turn(call.k_new, angles)
    return call._replace(q=turn(call.q, angles), k_new=k_new, rotary=None)


def turn(x: Tensor, angles: Tensor) -> Tensor:
    """x [B, heads, s, d] with its first 2r elements rotated by angles [2, B, s, r], cosines and sines; in the dtype of x."""
    cos, sin = angles[:, :, None].to(torch.promote_types(x.dtype, torch.float32)).unbind()
    r = cos.shape[-1]
    low, high = x[..., :r], x[..., r : 2 * r]
    return torch.cat([low * cos - high * sin, high * cos + low * sin, x[..., 2 * r :]], -1).to(x.dtype)
