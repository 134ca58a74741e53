"""Files of tensors: safetensors, with words beside them. Nothing is ever unpickled."""

from __future__ import annotations

import os
from collections.abc import Mapping

from safetensors import safe_open
from safetensors.torch import save as to_safetensors
from torch import Tensor

from lutetia.files import check_file, write_atomically


def write_tensors(path: str | os.PathLike[str], tensors: Mapping[str, Tensor], words: Mapping[str, str]) -> None:
    """Write a file that appears whole or not at all."""
    content = to_safetensors({name: tensor.cpu() for name, tensor in tensors.items()}, dict(words))
    with write_atomically(path) as file:
        file.write(content)


def read_tensors(path: str | os.PathLike[str], what: str) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors and the words of a file; `what` says what was expected. safetensors has errors of its own for a damaged one."""
    check_file(path, what)
    with safe_open(str(path), framework="pt") as file:
        # Cloned: what safe_open returns may still be the file's own pages.
        return {name: file.get_tensor(name).clone() for name in file.keys()}, file.metadata() or {}  # noqa: SIM118
