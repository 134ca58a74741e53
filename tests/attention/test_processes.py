"""Cores as processes: real ranks under torchrun, and what happens when one of them is lost."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest
import torch
from torch import distributed

import lutetia
import warm
from lutetia.attention import decode_attention, processes
from lutetia.errors import ArgumentError
from ports import free_port

WORKER = str(Path(__file__).with_name("processes_worker.py"))
needs_gloo = pytest.mark.skipif(
    not distributed.is_available() or not distributed.is_gloo_available(), reason="torch was built without gloo"
)


def environment() -> dict[str, str]:
    path = str(Path(lutetia.__file__).parents[1])
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}


# Cases × (batch, and sequence in chunks and stretches), those with pages or a prefix, the ring; each with steps and without.
CALLS = 2 * (13 * (1 + 3 * 2) + 5 * (1 + 3) + 1)


@needs_gloo
def test_ranks_under_torchrun(tmp_path: Path) -> None:
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", f"--log-dir={tmp_path}", "--no-python"]
    command = [*launcher, *shlex.split(warm.command()), WORKER, "check some"]
    done = warm.run(command, env=environment(), timeout=240)
    assert done.returncode == 0, done.stderr[-4000:]
    assert len(set(re.findall(r"rank \d of 2: [1-9]\d* calls agree", done.stdout))) == 2, done.stdout


@needs_gloo
def test_three_ranks() -> None:
    meeting = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "3"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    ranks = [
        warm.Process([WORKER, "check"], env={**environment(), **meeting, "RANK": str(rank), "LOCAL_RANK": str(rank)}, **pipes)
        for rank in range(3)
    ]
    try:
        for number, rank in enumerate(ranks):
            said, wrong = rank.communicate(timeout=240)
            assert rank.returncode == 0, wrong[-4000:]
            assert f"rank {number} of 3: {CALLS} calls agree" in said
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()


@needs_gloo
@pytest.mark.parametrize("how", ["ends", "stays away"])
def test_a_lost_rank_is_an_error_in_time(tmp_path: Path, how: str) -> None:
    """Within the time-out of two seconds; and the process that raised it can end."""
    n = 2
    ranks = [
        warm.Process(
            [WORKER, how],
            env={**environment(), "RANK": str(rank), "WORLD_SIZE": str(n), "MEET": str(tmp_path / "meet"), warm.WHOLE_END: "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(n)
    ]
    try:
        said, wrong = ranks[0].communicate(timeout=120)
        waiting = ranks[1].poll() is None
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()
    assert ranks[0].returncode == 0, wrong[-4000:]
    found = re.search(
        r"after ([\d.]+) s: rank 0 of 2 \(at fa_finalize_and_store, all_gather\) did not get 'partial' from every", said
    )
    assert found, said
    assert float(found[1]) < 10
    assert waiting or how == "ends"  # it did not wait for the other to end


def test_without_a_group() -> None:
    if distributed.is_available() and distributed.is_initialized():
        pytest.skip("there is a process group")
    zeros = torch.zeros(1, 1, 1, 4)
    with pytest.raises(ArgumentError, match="no process group; call init_process_group first"):
        processes.decode_attention(zeros, zeros, zeros, seq_lens=torch.tensor([1]))


@needs_gloo
@pytest.mark.parametrize("sync", ["lse", "deferred", "lockstep"])
def test_everything_is_made_where_the_queries_are(sync: str) -> None:
    """On a GPU, say. Here whatever does not say where it is made has no memory at all, and fails."""
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 4, 1, 8), torch.randn(3, 2, 20, 8), torch.randn(3, 2, 20, 8)
    lengths = torch.tensor([20, 0, 7])
    expected = decode_attention(q, k, v, seq_lens=lengths, backend="cores")
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        with torch.device("meta"):
            found = processes.decode_attention(q, k, v, seq_lens=lengths, sync=sync, tile=8)
    finally:
        distributed.destroy_process_group()
    torch.testing.assert_close(found, expected)
