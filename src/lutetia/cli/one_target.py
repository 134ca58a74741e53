"""Commands that take one target of a model of several: the one that --output names."""

from __future__ import annotations

from typing import Any

from lutetia.cli.guard import UsageError
from lutetia.cli.show import one_line
from lutetia.errors import ArgumentError
from lutetia.models import Targets


def one_output(model: Any, output: str | None, what: str) -> Any:
    """The model of the target that --output names; any other model as it is."""
    if not isinstance(model, Targets):
        if output is not None:
            raise UsageError(f"--output is {output}, and the model has one target: leave it out")
        return model
    if output is None:
        names = [one_line(name) for name in model.names]
        raise UsageError(f"{what} takes one target, and the model predicts {', '.join(names)}: --output {names[0]}")
    try:
        return model.part(model.number_of(output))
    except ArgumentError as error:
        raise UsageError(f"--{error}") from error


def only_one(model: Any, what: str) -> Any:
    """A model of one target; of several there is no such thing."""
    if isinstance(model, Targets):
        raise UsageError(f"{what} is for models of one target, and this one predicts {', '.join(map(one_line, model.names))}")
    return model
