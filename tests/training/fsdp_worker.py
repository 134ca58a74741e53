"""What each rank runs in the test of FSDP2: tables shared out by detectors, everything else by `fully_shard`."""

from __future__ import annotations

import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from lutetia.models import LUTTransformer
from lutetia.nn import LUT
from lutetia.training import shard_detectors


def train(model: nn.Module, tokens: Tensor) -> nn.Module:
    """Three steps on tokens [B, S]."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(3):
        optimizer.zero_grad()
        scores = model(tokens[:, :-1])
        nn.functional.cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten()).backward()
        optimizer.step()
    return model


def build() -> LUTTransformer:
    torch.manual_seed(0)
    return LUTTransformer(width=16, n_layers=2, context=16, n_heads=2, ff_detectors=6, attention="softmax")


def main() -> None:
    """After the same steps the model is that of one process; every rank holds about its share of it."""
    distributed.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (distributed.get_world_size(),))
    tokens = torch.randint(256, (4, 16), generator=torch.Generator().manual_seed(1))
    alone, model = train(build(), tokens), build()
    shard_detectors(model, mesh)
    tables = {parameter for module in model.modules() if isinstance(module, LUT) for parameter in module.parameters()}
    for block in model.blocks:
        fully_shard(block, mesh=mesh, ignored_params=tables)
    fully_shard(model, mesh=mesh, ignored_params=tables)
    train(model, tokens)
    held = 0
    for name, parameter in model.named_parameters():
        whole = parameter.detach().full_tensor()  # type: ignore[operator]
        torch.testing.assert_close(whole, alone.get_parameter(name).detach(), rtol=1e-5, atol=1e-6)
        held += parameter.to_local().numel()  # type: ignore[operator]
    everything = sum(parameter.numel() for parameter in alone.parameters())
    assert held <= 0.51 * everything, f"{held} of {everything} weights on one rank"
    print("done")
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
