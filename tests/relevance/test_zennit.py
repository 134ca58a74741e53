"""zennit finds the same relevance, rule by rule, in nets that it can be used for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import peers
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from lutetia import relevance
from lutetia.relevance import AlphaBeta, Epsilon, Flat, Gamma, Rules, WSquare, ZBox, ZPlus
from lutetia.relevance.rules.choices import RuleChoice

zennit = peers.zennit()
EPS = 1e-4


def rules() -> dict[str, tuple[RuleChoice, Any]]:
    theirs = zennit.rules
    return {
        "epsilon": (Epsilon(EPS), theirs.Epsilon(EPS)),
        "gamma": (Gamma(0.3, EPS), theirs.Gamma(0.3, EPS)),
        "zplus": (ZPlus(EPS), theirs.ZPlus(EPS)),
        "alphabeta": (AlphaBeta(3.0, 2.0, EPS), theirs.AlphaBeta(3.0, 2.0, EPS)),
        "wsquare": (WSquare(EPS), theirs.WSquare(EPS)),
        "flat": (Flat(EPS), theirs.Flat(EPS)),
    }


def theirs(model: nn.Module, x: Tensor, seed: Tensor, rule: Any, first: Any = None, canonizers: Any = None) -> Tensor:
    layers = [
        (zennit.types.Activation, zennit.rules.Pass()),
        (zennit.types.AvgPool, zennit.rules.Norm(EPS)),
        (zennit.layer.Sum, zennit.rules.Norm(EPS)),
        (zennit.types.Linear, rule),
    ]
    make = zennit.composites.SpecialFirstLayerMapComposite if first is not None else zennit.composites.LayerMapComposite
    special = {} if first is None else {"first_map": [(zennit.types.Linear, first)]}
    composite = make(layers, **special, canonizers=canonizers or [])
    with zennit.attribution.Gradient(model, composite) as attributor:
        return attributor(x.clone().requires_grad_(), seed)[1].detach()


def same(model: nn.Module, x: Tensor, choice: RuleChoice, rule: Any, box: bool = False, model_of_theirs: nn.Module | None = None,
         canonizers: Any = None) -> None:  # fmt: skip
    """Both find one relevance for a seed that mixes signs."""
    seed = torch.randn_like(model(x)).detach()
    ours = Rules(choice, sum=Epsilon(EPS), pool=Epsilon(EPS))
    first = None
    if box:
        lo, hi = float(x.min()) - 0.1, float(x.max()) + 0.2
        ours = ours.first(ZBox(lo, hi, EPS))
        first = zennit.rules.ZBox(torch.full_like(x, lo), torch.full_like(x, hi), EPS)
    found = relevance.attribute(model, x, seed, ours)[x]
    expected = theirs(model_of_theirs or model, x, seed, rule, first, canonizers)
    assert expected.abs().max() > 1e-3
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-8 * float(expected.abs().max()))


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(7, 11), nn.ReLU(), nn.Linear(11, 5), nn.Tanh(), nn.Linear(5, 3)).double()


def vgg() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 6, 3, stride=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(6, 8, 3, padding=1, groups=2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(8, 9), nn.ReLU(), nn.Linear(9, 4),
    ).double()  # fmt: skip


class Block(nn.Module):
    """x + f(x), with the sum in a module of its own, as zennit wants it, and batch norms that it folds into convolutions."""

    plain = False

    def __init__(self) -> None:
        super().__init__()
        # After folding, zennit leaves a batch norm of variance 1 behind: it is the identity only without an eps of its own.
        self.conv1, self.norm1 = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4, eps=0)
        self.conv2, self.norm2 = nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4, eps=0)
        self.relu1, self.relu2 = nn.ReLU(), nn.ReLU()
        self.sum = zennit.layer.Sum()

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm2(self.conv2(self.relu1(self.norm1(self.conv1(x)))))
        return self.relu2(x + y if self.plain else self.sum(torch.stack([x, y], dim=-1)))


def residual() -> nn.Module:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), Block(), Block(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(16, 5))
    model = model.double()
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                for tensor in (module.weight, module.bias, module.running_mean):
                    tensor.normal_()
                module.running_var.uniform_(0.5, 2)
    return model.eval()


def folded(model: nn.Module) -> nn.Module:
    """The same net with its batch norms folded, and the sum written as a sum."""
    made = residual()
    made.load_state_dict(model.state_dict())
    for block in made:
        if isinstance(block, Block):
            block.conv1, block.norm1 = fuse_conv_bn_eval(block.conv1, block.norm1), nn.Identity()
            block.conv2, block.norm2 = fuse_conv_bn_eval(block.conv2, block.norm2), nn.Identity()
            block.plain = True
    return made


NETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {"MLP": (mlp, (5, 7)), "VGG": (vgg, (2, 3, 13, 13))}


@pytest.mark.parametrize("name", ["epsilon", "gamma", "zplus", "alphabeta", "wsquare", "flat"])
@pytest.mark.parametrize("net", NETS)
def test_plain_nets(net: str, name: str) -> None:
    make, shape = NETS[net]
    same(make(), torch.randn(shape, dtype=torch.float64), *rules()[name])


@pytest.mark.parametrize("name", ["epsilon", "gamma", "zplus", "alphabeta", "wsquare", "flat"])
def test_a_canonised_residual_net(name: str) -> None:
    model, x = residual(), torch.randn(2, 3, 6, 6, dtype=torch.float64)
    other = folded(model)
    torch.testing.assert_close(other(x), model(x))
    choice, rule = rules()[name]
    same(other, x, choice, rule, model_of_theirs=model, canonizers=[zennit.canonizers.SequentialMergeBatchNorm()])


@pytest.mark.parametrize("net", [*NETS, "residual"])
def test_the_box_rule_in_the_first_layer(net: str) -> None:
    if net == "residual":
        model, x = residual(), torch.randn(2, 3, 6, 6, dtype=torch.float64)
        canonizers = [zennit.canonizers.SequentialMergeBatchNorm()]
        same(folded(model), x, *rules()["epsilon"], box=True, model_of_theirs=model, canonizers=canonizers)
    else:
        make, shape = NETS[net]
        same(make(), torch.randn(shape, dtype=torch.float64), *rules()["gamma"], box=True)
