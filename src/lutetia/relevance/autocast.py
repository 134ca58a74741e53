"""Autocast and relevance: rules divide in the dtypes that the model computed in; blocks run again under what they had."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

import torch

DEVICES = ("cpu", "cuda")


class AutocastState(NamedTuple):
    """Autocast as it stands for one kind of device."""

    device: str
    enabled: bool
    dtype: torch.dtype


def autocast_states() -> list[AutocastState]:
    """What autocast does at the moment, by kind of device."""
    return [AutocastState(each, torch.is_autocast_enabled(each), torch.get_autocast_dtype(each)) for each in DEVICES]


def without_autocast() -> list[AutocastState]:
    """The same, switched off."""
    return [state._replace(enabled=False) for state in autocast_states()]


@contextmanager
def autocast_as(states: list[AutocastState]) -> Iterator[None]:
    """Autocast as it was, or as it should be; what already is so is left alone."""
    with ExitStack() as stack:
        for wanted, now in zip(states, autocast_states(), strict=True):
            if wanted != now:
                stack.enter_context(torch.autocast(wanted.device, wanted.dtype, wanted.enabled))
        yield
