"""Operands that `watch` keeps leave nothing to search for: in half of the tests it keeps none, so that promises bring them."""

from __future__ import annotations

import pytest

from lutetia.relevance import seen

SEARCHING = ("test_api", "test_disputed_models", "test_engine", "test_found", "test_transformers", "test_walks", "test_gated")


@pytest.fixture(autouse=True)
def search_in_small_tensors(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.module.__name__.rpartition(".")[2] in SEARCHING:
        monkeypatch.setattr(seen, "SMALL", 0)
