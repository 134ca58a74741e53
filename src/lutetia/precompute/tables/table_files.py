"""IO tables as files: safetensors for tensors, JSON for reading. Nothing is ever unpickled."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors import SafetensorError

from lutetia._shared.tensor_files import read_tensors, write_tensors
from lutetia.errors import ArgumentError, DataError, fail
from lutetia.files import check_file, path_of, read_json, write_atomically
from lutetia.precompute.tables.domains import Domain

if TYPE_CHECKING:
    from lutetia.precompute.tables.table import IOTable

FILE_KIND = "lutetia.io_table/1"
FIELDS = ("bits", "signed", "low", "high", "step")


def save(table: IOTable, path: str | os.PathLike[str]) -> None:
    """Write a table; the ending of the name says how."""
    header = {
        "kind": FILE_KIND,
        "domains": [[getattr(domain, name) for name in FIELDS] for domain in table.domains],
        "default": table.default,
    }
    if Path(path).suffix == ".json":
        with write_atomically(path) as file:
            file.write(json.dumps({**header, "pairs": table.pairs()}).encode())
    elif Path(path).suffix == ".safetensors":
        tensors = {"outputs": table.outputs.contiguous()}
        if not table.is_complete:
            tensors["inputs"] = table.inputs.contiguous()
        write_tensors(path, tensors, {"lutetia": json.dumps(header)})
    else:
        fail("path", str(path), "a name that ends in .safetensors or .json")


def load(path: str | os.PathLike[str]) -> IOTable:
    """Read a table that `save` wrote."""
    suffix = path_of(path).suffix
    if suffix not in (".json", ".safetensors"):
        fail("path", str(path), "a name that ends in .safetensors or .json")
    check_file(path, "a saved table")
    try:
        return _load_json(path) if suffix == ".json" else _load_safetensors(path)
    except (OSError, SafetensorError, ArgumentError, KeyError, TypeError, ValueError, ArithmeticError, RuntimeError) as error:
        raise DataError(f"{path} is not a saved table, or is damaged: {type(error).__name__}: {error}") from error


def _load_json(path: str | os.PathLike[str]) -> IOTable:
    from lutetia.precompute.tables.table import IOTable

    data = read_json(path, "a saved table")
    domains, default = _header(data)
    pairs = data["pairs"]
    if not all(type(number) is int for pair in pairs for side in pair for number in side):
        raise ValueError("a pair is not made of whole numbers")
    inputs = torch.tensor([row for row, _ in pairs], dtype=torch.int64).reshape(len(pairs), len(domains))
    outputs = torch.tensor([answer for _, answer in pairs], dtype=torch.int64)
    return IOTable(inputs, outputs, domain=domains, default=default)


def _load_safetensors(path: str | os.PathLike[str]) -> IOTable:
    from lutetia.precompute.tables.table import IOTable

    tensors, words = read_tensors(path, "a saved table")
    domains, default = _header(json.loads(words.get("lutetia", "{}")))
    return IOTable(tensors.get("inputs"), tensors["outputs"], domain=domains, default=default)


def _header(data: object) -> tuple[tuple[Domain, ...], list[int] | None]:
    if not isinstance(data, dict) or data.get("kind") != FILE_KIND:
        raise ValueError(f"its kind is not {FILE_KIND}")
    domains = []
    for bits, signed, low, high, step in data["domains"]:
        if not all(type(number) is int for number in (bits, low, high, step)) or type(signed) is not bool:
            raise ValueError("a domain is not made of numbers")
        domains.append(Domain(bits, signed, low, high, step))
    default = data["default"]
    if default is not None and not (isinstance(default, list) and all(type(number) is int for number in default)):
        raise ValueError("its default is not made of whole numbers")
    return tuple(domains), default
