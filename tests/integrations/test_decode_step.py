"""One new token on a CPU: `decode` calls the kernel without the checks of `decode_attention`, and gives what those would give."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("transformers")
pytest.importorskip("numba")

from lutetia import flow
from lutetia.integrations.transformers import attention as ours
from lutetia.integrations.transformers.attention import Seen
from lutetia.integrations.transformers.cache import GrowingLayer, GrowingWindowLayer

KEYS = 300  # more than one item of work
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "scaled": {"scaling": 0.3},
    "softcap": {"softcap": 2.0},
    "sink": {"s_aux": torch.tensor([0.5, -1.0, 2.0, 0.0])},
}


def shown(layer: GrowingLayer | GrowingWindowLayer, batch: int, n_new: int) -> tuple[Tensor, Tensor, Tensor]:
    """A query [B, 4, n_new, 16] and what the layer shows after a prompt and single tokens: keys, values [B, 2, n, 16]."""
    generator = torch.Generator().manual_seed(3)
    states = torch.randn(2, batch, 2, KEYS, 16, generator=generator)
    steps = [KEYS - n_new - 20, *[1] * 20, n_new]
    with torch.no_grad():
        for k, v in zip(*(each.split(steps, 2) for each in states), strict=True):
            keys, values = layer.update(k, v)
    return torch.randn(batch, 4, n_new, 16, generator=generator), keys, values


def by_hand(query: Tensor, key: Tensor, value: Tensor, seen: Seen, options: dict[str, Any]) -> Tensor:
    """The definition in float64: query [B, 4, s, d], key, value [B, 2, n, d] -> [B, 4, s, d]."""
    q, k, v = (each.double() for each in (query, key, value))
    k, v = k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)
    scores = options.get("scaling", q.shape[3] ** -0.5) * q @ k.mT
    if "softcap" in options:
        scores = options["softcap"] * torch.tanh(scores / options["softcap"])
    n, position = k.shape[2], torch.arange(k.shape[2] - q.shape[2], k.shape[2])[:, None]
    visible = torch.arange(n) <= position
    if seen.window is not None:
        visible = visible & (torch.arange(n) > position - seen.window)
    if seen.starts is not None:
        visible = visible & (torch.arange(n) >= seen.starts[:, None, None, None])
    scores = scores.masked_fill(~visible, -torch.inf)
    if "s_aux" in options:
        sink = options["s_aux"].double()[None, :, None, None].expand(*scores.shape[:3], 1)
        return torch.cat([scores, sink], -1).softmax(-1)[..., :-1] @ v
    return scores.softmax(-1) @ v


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """`decode_attention` must not be called."""
    monkeypatch.setattr(ours, "decode_attention", lambda *_, **__: pytest.fail("went through the checks"))


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize(("batch", "n_new"), [(1, 1), (1, 3), (3, 1)])
@pytest.mark.usefixtures("unchecked")
def test_the_whole_context(batch: int, n_new: int, option: str) -> None:
    query, key, value = shown(GrowingLayer(), batch, n_new)
    starts = None if batch == 1 else torch.tensor([0, 7, KEYS - n_new - 1], dtype=torch.int32)
    seen, options = Seen(starts, None), OPTIONS[option]
    found = ours.decode(query, key, value, seen, options)
    torch.testing.assert_close(found.double(), by_hand(query, key, value, seen, options), rtol=0, atol=1e-5)


@pytest.mark.parametrize(("batch", "n_new"), [(1, 1), (1, 3), (3, 1)])
@pytest.mark.usefixtures("unchecked")
def test_a_window_that_begins_inside_of_its_buffer(batch: int, n_new: int) -> None:
    query, key, value = shown(GrowingWindowLayer(40), batch, n_new)
    assert key.lutetia_held.first > 0  # type: ignore[attr-defined]
    assert key.shape[2] == 39 + n_new
    starts = None if batch == 1 else torch.tensor([0, 5, 30], dtype=torch.int32)
    seen = Seen(starts, 40 if n_new > 1 else None)
    found = ours.decode(query, key, value, seen, {})
    torch.testing.assert_close(found.double(), by_hand(query, key, value, seen, {}), rtol=0, atol=1e-5)


def test_a_recorded_step_is_checked_and_the_same() -> None:
    query, key, value = shown(GrowingLayer(), 1, 1)
    plain = ours.decode(query, key, value, Seen(None, None), {})
    with flow.record() as recorded:
        found = ours.decode(query, key, value, Seen(None, None), {})
    assert recorded.steps
    assert torch.equal(found, plain)
