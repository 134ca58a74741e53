"""Gates that are broadcast, as in squeeze-and-excitation, count as constants."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import slow_engine
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lutetia import relevance
from lutetia.relevance import Rules, Uniform, presets

GATES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "sigmoid": lambda x, z: x * z.sigmoid(),
    "sigmoid first": lambda x, z: z.sigmoid() * x,
    "hard sigmoid": lambda x, z: x * F.hardsigmoid(z),
    "hard sigmoid by parts": lambda x, z: x * (F.relu6(z + 3) / 6),
    "expanded": lambda x, z: x * z.sigmoid().expand_as(x),
    "viewed": lambda x, z: x * z.flatten(1).sigmoid()[:, :, None, None].expand_as(x),
}


class Block(nn.Module):
    """A convolution and squeeze-and-excitation beside a shortcut, on images [B, C, H, W]."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels)
        self.squeeze, self.excite = nn.Conv2d(channels, channels // 4, 1), nn.Conv2d(channels // 4, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.conv(x))
        gate = torch.sigmoid(self.excite(torch.relu(self.squeeze(y.mean((2, 3), keepdim=True)))))
        return torch.relu(x + gate * y)


def net(blocks: int) -> tuple[nn.Module, Tensor]:
    """Blocks whose batch norms have the statistics of eight random images, and one image [1, 3, 8, 8]."""
    torch.manual_seed(0)
    pool = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 5)]
    model = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), *(Block(16) for _ in range(blocks)), *pool).double()
    images = torch.randn(8, 3, 8, 8).double()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = 1.0
    model(images)
    return model.eval(), images[:1]


@pytest.mark.parametrize("form", GATES)
def test_the_signal_gets_everything(form: str) -> None:
    x = torch.randn(2, 3, 4, 5).double().requires_grad_()
    z = torch.randn(2, 3, 1, 1).double().requires_grad_()
    seed = torch.randn(2, 3, 4, 5).double()
    y = GATES[form](x, z)
    r = relevance.explain(y, seed, wrt=[x, z])
    torch.testing.assert_close(r[x], seed)
    assert not r[z].any()
    shared = relevance.explain(y, seed, wrt=[x, z], rules=Rules(product=Uniform(gates=True)))
    torch.testing.assert_close(shared[x], seed / 2)
    assert shared[z].any()


def test_other_factors_get_their_half() -> None:
    """A gate of the same shape, and what is broadcast and no gate."""
    x, z = (torch.randn(2, 3, 4, 5).double().requires_grad_() for _ in range(2))
    w = torch.randn(2, 3, 1, 1).double().requires_grad_()
    seed = torch.randn(2, 3, 4, 5).double()
    for y in (x * z.sigmoid(), x * w.tanh(), x * F.relu6(w)):
        torch.testing.assert_close(relevance.explain(y, seed, wrt=[x])[x], seed / 2)


def test_logits_near_zero_do_not_matter() -> None:
    """Their gates are near 1/2, and none of their relevance is divided by a logit."""
    model, x = net(blocks=3)

    def cancel(module: nn.Conv2d, inputs: tuple[Tensor]) -> None:
        assert module.bias is not None
        module.bias.copy_(1e-5 - F.conv2d(inputs[0], module.weight).flatten())

    with torch.no_grad():
        hooks = [block.excite.register_forward_pre_hook(cancel) for block in model if isinstance(block, Block)]
        model(x)
    for hook in hooks:
        hook.remove()
    for rules in (None, presets.attnlrp(), presets.gamma()):
        r = relevance.attribute(model, x, 1, rules)
        assert r[x].abs().sum() < 10 * r.seed.abs().sum()
    halves = relevance.attribute(model, x, 1, Rules(product=Uniform(gates=True)))
    assert halves[x].abs().sum() > 1e3 * halves.seed.abs().sum()


def test_the_slow_engine_agrees() -> None:
    model, x = net(blocks=2)
    x.requires_grad_()
    with slow_engine.Recorder() as recorder, relevance.watch(model):
        output = model(x)
    seed = torch.randn_like(output)
    expected = slow_engine.relevance(recorder, output, seed, 1e-6)
    torch.testing.assert_close(relevance.explain(output, seed, wrt=[x])[x], expected[x], rtol=1e-6, atol=1e-9)
