"""Models on a CUDA device give what they give on the CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from lutetia.models import LUTClassifier, LUTLayer, LUTTransformer, Projection2dLayer, load
from lutetia.models.votes import ReadTables

pytestmark = pytest.mark.gpu

SMALL: dict[str, Any] = {"context": 24, "width": 32, "n_layers": 2, "n_heads": 2, "n_detectors": 4, "ff_detectors": 8, "seed": 0}
KINDS: dict[str, dict[str, Any]] = {
    "lut": {"initial_noise": 0.5, "norm": "none", "unembedding": "lut"},
    "softmax": {"attention": "softmax", "n_kv_heads": 1, "feed_forward": "dense"},
}


@pytest.mark.parametrize("kind", KINDS)
def test_forward_steps_and_loss(kind: str) -> None:
    here, there = LUTTransformer(**SMALL, **KINDS[kind]), LUTTransformer(**SMALL, **KINDS[kind], device="cuda")
    tokens = torch.randint(256, (3, 24))
    lengths = torch.tensor([9, 4, 12])
    with torch.no_grad():
        wanted = here(tokens)
        torch.testing.assert_close(there(tokens.cuda()).cpu(), wanted, rtol=1e-3, atol=1e-3)
        cache = there.new_cache(3)
        there(tokens[:, :12].cuda(), lengths.cuda(), cache)
        for _ in range(5):
            at = cache.lengths.clone()
            logits = there(tokens[torch.arange(3), at][:, None].cuda(), cache=cache)
            torch.testing.assert_close(logits[:, 0].cpu(), wanted[torch.arange(3), at], rtol=1e-3, atol=1e-3)
    there.loss(tokens.cuda(), tokens.cuda()).backward()
    assert all(parameter.grad is not None for parameter in there.parameters())


@pytest.mark.parametrize("kind", KINDS)
def test_it_writes_the_same(kind: str, tmp_path: Any) -> None:
    here = LUTTransformer(**SMALL, **KINDS[kind], sums="fixed" if kind == "lut" else "float")
    here.save_pretrained(tmp_path / "m")
    there = load(tmp_path / "m", device="cuda")
    prompts = [b"a", b"some more", b"more than the context of this model"]
    assert there.generate(prompts, 30, temperature=0) == here.generate(prompts, 30, temperature=0)
    assert there.generate(torch.tensor([1, 2], device="cuda"), 3).is_cuda


def test_a_classifier() -> None:
    layers = (Projection2dLayer((10, 8), 3, (4, 2), n_anchors=3, grid=(3, 4)), LUTLayer(9, 6, 3, read="confidence2"))
    here = LUTClassifier(input_shape=(7, 6), layers=layers, initial_noise=0.5, seed=0)
    there = LUTClassifier(here.config, device="cuda")
    x = torch.randn(5, 7, 6)
    torch.testing.assert_close(there(x.cuda()).cpu(), here(x), rtol=1e-4, atol=1e-4)
    assert there.dense_twin()(x.cuda()).is_cuda


@pytest.mark.parametrize("n_seen", [None, 40])
def test_the_choice_gradient_of_gates_is_that_of_float32(n_seen: int | None) -> None:
    """On CUDA its factors are bfloat16: each addend may be off by half a unit in the eighth bit, and nothing else."""
    torch.manual_seed(0)
    n_tables, k, n_bits, batch = 37, 4, 50, 300
    bits, weight = torch.randint(0, 2, (batch, n_bits)).float(), 2 * torch.rand(n_tables, 2**k) - 1
    seen = None if n_seen is None else torch.stack([torch.randperm(n_bits)[:n_seen] for _ in range(n_tables)])
    choice, grad = torch.randn(n_tables, k, n_seen or n_bits), torch.randn(batch, n_tables)
    results = []
    for device in ("cpu", "cuda"):
        given = [each.to(device).requires_grad_() for each in (bits, choice, weight)]
        y = ReadTables.apply(*given, None if seen is None else seen.to(device))
        results.append([y.detach(), *torch.autograd.grad(y, given, grad.to(device))])
    (y, of_bits, of_choice, of_weight), on_gpu = results[0], [each.cpu() for each in results[1]]
    assert torch.equal(y, on_gpu[0])
    torch.testing.assert_close(on_gpu[1], of_bits)
    torch.testing.assert_close(on_gpu[3], of_weight)
    # The addends are g times what the weights differ by, 2 at most.
    moved = 2 * grad.abs().sum(0)[:, None, None]
    assert bool(((on_gpu[2] - of_choice).abs() <= moved / 256).all())
    assert float((on_gpu[2] - of_choice).norm() / of_choice.norm()) < 2**-8
