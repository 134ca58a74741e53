"""Teachers of a network: what several of them answer together, and which are refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from lutetia.errors import ArgumentError
from lutetia.models import VotesClassifier, save
from lutetia.training.config import make_config
from lutetia.training.task import distilled, load_teachers, loss_of

CPU = torch.device("cpu")


def network(seed: int, n_classes: int = 3) -> VotesClassifier:
    return VotesClassifier(input_shape=(5,), n_classes=n_classes, n_tables=4 * n_classes, k=2, temperature=2.0, seed=seed)


@pytest.fixture
def saved(tmp_path: Path) -> list[str]:
    folders = [str(tmp_path / f"{seed}") for seed in range(2)]
    for seed, folder in enumerate(folders):
        save(network(seed), folder)
    return folders


def test_several_teachers_answer_with_their_mean_probabilities(saved: list[str]) -> None:
    x, y = torch.rand(7, 5, generator=torch.Generator().manual_seed(0)), torch.arange(7) % 3
    student = network(5)
    teachers = load_teachers(saved, student, CPU)
    assert teachers is not None
    logits = [network(seed)(x).double() for seed in range(2)]
    wanted = sum(each.exp() / each.exp().sum(1, keepdim=True) for each in logits) / 2  # by hand
    assert not torch.allclose(logits[0], logits[1])
    torch.testing.assert_close(teachers(x).double(), wanted, rtol=1e-5, atol=1e-6)
    scores = student(x)
    crossed = -(wanted * scores.double().log_softmax(1)).sum(1).mean()
    found = distilled(loss_of(scores, y), scores, teachers(x), 0.75)
    torch.testing.assert_close(found.double(), 0.25 * loss_of(scores, y).double() + 0.75 * crossed, rtol=1e-5, atol=1e-6)


def test_one_teacher_is_a_list_of_one(saved: list[str]) -> None:
    x = torch.rand(3, 5, generator=torch.Generator().manual_seed(0))
    alone, listed = (load_teachers(given, network(5), CPU) for given in (saved[0], saved[:1]))
    assert alone is not None
    assert listed is not None
    assert torch.equal(alone(x), listed(x))
    assert load_teachers(None, network(5), CPU) is None
    assert load_teachers([], network(5), CPU) is None


def test_teachers_of_other_classes_and_no_checkpoints_are_refused(saved: list[str]) -> None:
    with pytest.raises(ArgumentError, match="has n_classes 3, expected 4"):
        load_teachers(saved, network(5, n_classes=4), CPU)
    with pytest.raises(ArgumentError, match="holds 3, expected a checkpoint"):
        load_teachers([saved[0], 3], network(5), CPU)  # type: ignore[list-item]


def test_a_config_takes_one_teacher_or_a_list() -> None:
    tables = {"model": {"kind": "votes"}, "data": {"kind": "digits"}, "train": {"steps": 1}}
    for teacher in ("a", ["a", "b"]):
        assert make_config({**tables, "regularize": {"teacher": teacher}}).regularize.teacher == teacher
    with pytest.raises(ArgumentError, match=r"regularize\.teacher is 3, expected a string or a list"):
        make_config({**tables, "regularize": {"teacher": 3}})
