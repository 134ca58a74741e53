"""FSDP2 shares out what is dense, detectors share out the tables: together each rank holds its share of everything."""

from __future__ import annotations

from pathlib import Path

import pytest

from training.test_shard_files import needs_gloo, run


@needs_gloo
@pytest.mark.slow
def test_two_ranks_train_the_model_of_one() -> None:
    run(2, worker=str(Path(__file__).with_name("fsdp_worker.py")))
