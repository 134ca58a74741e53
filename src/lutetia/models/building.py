"""What all models share: how they are made from a config, counted, saved and loaded."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar, Generic, Self, TypeVar

import torch
from torch import nn

from lutetia.errors import fail
from lutetia.models.fields import ModelConfig
from lutetia.models.sizes import ModelSize

STD = 0.02  # of the initial weights of linear layers and, before a norm, of the embedding

C = TypeVar("C", bound=ModelConfig)
KINDS: dict[str, type[Model[Any]]] = {}  # by what `config.toml` calls them


class Model(nn.Module, Generic[C]):
    """A network that its config defines completely: `Model(config)`, or `Model(**fields)`."""

    kind: ClassVar[str]
    config_class: ClassVar[type[Any]]
    config: C
    metadata: dict[str, Any]  # what is known of the data it was trained on: see lutetia.models.metadata

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "kind" in cls.__dict__:
            KINDS[cls.kind] = cls

    def __init__(
        self,
        config: C | None = None,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **fields: Any,
    ) -> None:
        super().__init__()
        self.metadata = {}
        self.config = _config(self.config_class, config, fields)
        with _drawn_from(self.config.seed):  # type: ignore[attr-defined]
            self._build(self.config)
        self._move(device, dtype)  # afterwards, so that the same seed gives the same numbers everywhere

    def _build(self, config: C) -> None:
        raise NotImplementedError

    @classmethod
    def least_size(cls, config: C) -> ModelSize:
        """The minimum size of the model of a config."""
        raise NotImplementedError

    def _move(self, device: torch.device | str | None, dtype: torch.dtype | None) -> None:
        self.to(device=device, dtype=dtype)
        for parameter in self.parameters():
            if not parameter.dim() and parameter.dtype.itemsize < 4:  # learned scalars of a read, whose steps halves would lose
                parameter.data = parameter.data.float()

    @property
    def n_parameters(self) -> int:
        """The number of learned parameters."""
        return sum(parameter.numel() for parameter in self.parameters())

    def save_pretrained(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write the model to a folder: `config.toml`, `model.safetensors`, and `manifest.json` with their checksums.

        An earlier model there is replaced. A file of one of these names that no model wrote is refused, unless `overwrite`.
        """
        from lutetia.models.saving import save

        save(self, path, overwrite=overwrite)

    @classmethod
    def from_pretrained(cls, path: str | os.PathLike[str], *, device: torch.device | str | None = None) -> Self:
        """The model in such a folder, with exactly the weights that were saved, in eval mode."""
        from lutetia.models.saving import load

        return load(path, device=device, expected=cls)


def _config(kind: type[C], config: C | None, fields: Mapping[str, Any]) -> C:
    """The config that a model was given as such, as fields, or as both: the fields then replace those of the config."""
    if config is None:
        return kind.from_dict(fields)
    if not isinstance(config, kind):
        fail("config", config, f"a {kind.__name__}")
    return kind.from_dict({**config.to_dict(), **fields}) if fields else config


@contextmanager
def _drawn_from(seed: int | None) -> Iterator[None]:
    """Draw from `seed` inside the block and restore torch's generator afterwards; without a seed, draw from torch's generator."""
    if seed is None:
        yield
        return
    before = torch.get_rng_state()
    torch.default_generator.manual_seed(seed)  # not torch.manual_seed, which reaches the devices too
    try:
        yield
    finally:
        torch.set_rng_state(before)


def linear(n_inputs: int, n_outputs: int, *, bias: bool = True, std: float = STD) -> nn.Linear:
    """A linear layer with weights from N(0, std) and no offset."""
    layer = nn.Linear(n_inputs, n_outputs, bias=bias)
    nn.init.normal_(layer.weight, std=std)
    if bias:
        nn.init.zeros_(layer.bias)
    return layer


def norm_of(name: str, width: int) -> nn.Module:
    """The norm of that name over the last dimension."""
    if name == "none":
        return nn.Identity()
    return nn.RMSNorm(width, eps=1e-6) if name == "rms" else nn.LayerNorm(width)
