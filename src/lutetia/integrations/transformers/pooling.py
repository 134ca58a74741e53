"""How an encoder of texts makes one embedding of the states of its tokens."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from torch import Tensor, nn
from torch.nn.functional import normalize

from lutetia.errors import DataError
from lutetia.files import read_json

MODULES = "modules.json"  # of sentence-transformers: what follows a model in its folder
POOLINGS: dict[str, Callable[[Tensor], Tensor]] = {  # of states [B, S, D]
    "mean": lambda states: states.mean(1),
    "first": lambda states: states[:, 0],
    "last": lambda states: states[:, -1],
    "max": lambda states: states.amax(1),
}
OWN_NAMES = {  # by their names in a folder; a mean over the root of the length has the direction of the mean
    "mean_tokens": "mean",
    "mean": "mean",
    "mean_sqrt_len_tokens": "mean",
    "cls_token": "first",
    "cls": "first",
    "lasttoken": "last",
    "max_tokens": "max",
    "max": "max",
}


class Embedding(nn.Module):
    """A model whose scores [1, D] are the embedding of a text: the states of its tokens, pooled, at length 1."""

    def __init__(self, model: Any, pooling: str) -> None:
        super().__init__()
        self.model, self.config, self.pooling = model, model.config, pooling
        self.train(model.training)

    def get_input_embeddings(self) -> Any:
        """The table of tokens."""
        return self.model.get_input_embeddings()

    def forward(self, **inputs: Any) -> Any:
        """Tokens and what goes with them, [B, S] each, without padding."""
        pooled = POOLINGS[self.pooling](self.model(**inputs).last_hidden_state)
        return SimpleNamespace(logits=normalize(pooled, dim=-1))


def pooling_of(folder: Path) -> str:
    """What the folder of a model says of pooling, as sentence-transformers writes it; the mean where it says nothing."""
    path = folder / MODULES
    if not path.is_file():
        return "mean"
    modules = read_json(path, "the modules of an encoder")
    if not isinstance(modules, list) or not all(isinstance(each, dict) for each in modules):
        raise DataError(f"{path} is not a list of modules")
    named = "mean"
    for module in modules:
        kind = str(module.get("type")).rpartition(".")[2]
        if kind == "Pooling":
            named = _named(folder, str(module.get("path")))
        elif kind not in ("Transformer", "Normalize"):
            raise DataError(f"{path} changes embeddings by a {kind}, expected pooling alone: Transformer, Pooling, Normalize")
    return named


def _named(folder: Path, within: str) -> str:
    """The pooling that a folder within the folder describes."""
    if within != Path(within).name or within == "..":
        raise DataError(f"{folder / MODULES} names the folder {within!r}, expected one inside of its own")
    path = folder / within / "config.json"
    told = read_json(path, "how states are pooled")
    told = told if isinstance(told, dict) else {}
    modes = [
        name.removeprefix("pooling_mode_") for name, value in told.items() if name.startswith("pooling_mode_") and value is True
    ]
    modes = [str(told["pooling_mode"])] if "pooling_mode" in told else modes
    if len(modes) != 1 or modes[0] not in OWN_NAMES:
        raise DataError(f"{path} pools by {' and '.join(modes) or 'nothing'}, expected one of {', '.join(OWN_NAMES)}")
    return OWN_NAMES[modes[0]]
