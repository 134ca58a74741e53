"""A cache over several processes gives the tokens of one."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from torch import distributed

import lutetia
import warm
from ports import free_port

pytest.importorskip("transformers")

from integrations import sharded_worker
from integrations.decoders import build
from lutetia.errors import ArgumentError
from lutetia.integrations.transformers import ShardedCache

WORKER = str(Path(__file__).with_name("sharded_worker.py"))


needs_gloo = pytest.mark.skipif(
    not distributed.is_available() or not distributed.is_gloo_available(), reason="torch was built without gloo"
)


@needs_gloo
def test_a_group_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"MASTER_ADDR": "localhost", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "1", "RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    sharded_worker.main()


def test_without_a_group() -> None:
    with pytest.raises(ArgumentError, match="no process group; call init_process_group first"):
        ShardedCache(build("llama", "lutetia").config, 8)


@pytest.mark.slow
@needs_gloo
@pytest.mark.parametrize("n", [2, 3])
def test_ranks_generate_what_one_process_does(n: int) -> None:
    path = os.pathsep.join(filter(None, [str(Path(lutetia.__file__).parents[1]), os.environ.get("PYTHONPATH")]))
    together = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(n)}
    environment = {**os.environ, **together, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    ranks = [warm.Process([WORKER], env={**environment, "RANK": str(rank)}, **pipes) for rank in range(n)]
    try:
        for number, rank in enumerate(ranks):
            said, wrong = rank.communicate(timeout=240)
            assert rank.returncode == 0, wrong[-4000:]
            assert f"rank {number} agrees" in said
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()
