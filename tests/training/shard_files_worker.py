"""What each rank runs in the tests of checkpoints in shards: `python shard_files_worker.py save|load FOLDER`."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh

from lutetia.nn import LUT, ProjectedLUT
from lutetia.training.resharding import full_state_dict
from lutetia.training.shard_files import load_shards, save_shards
from lutetia.training.sharding import shard_detectors


def build(seed: int) -> nn.Module:
    """Tables without and with synapses, and a dense layer."""
    torch.manual_seed(seed)
    model = nn.Sequential(LUT(8, 6, 7, 3), nn.Linear(6, 6), ProjectedLUT(6, 4, heads=2, head_width=4, n_detectors=5, n_anchors=2))
    for parameter in model.parameters():
        if parameter.dim():
            nn.init.normal_(parameter)
    return model


def main() -> None:
    """Save the model of seed 1, or load it into that of seed 2, whose anchors differ too."""
    what, folder = sys.argv[1], Path(sys.argv[2])
    distributed.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (distributed.get_world_size(),))
    if what == "save":
        save_shards(shard_detectors(build(1), mesh), folder)
    else:
        model = shard_detectors(build(2), mesh)
        load_shards(model, folder)
        found, wanted = full_state_dict(model), build(1).state_dict()
        if distributed.get_rank() == 0:
            assert all(torch.equal(found[name], tensor) for name, tensor in wanted.items())
    print("done")
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
