"""A decoder and its tokenizer from a folder on disk: safetensors, or one GGUF file. Nothing is fetched, and nothing unpickled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from lutetia.errors import DataError, require
from lutetia.integrations.transformers.attention import NAME


def load_decoder(folder: str | Path, attn_implementation: str = NAME, dtype: torch.dtype = torch.float32) -> tuple[Any, Any]:
    """The model, in eval mode, and its tokenizer, which pads on the left.

    `folder` is what `save_pretrained` wrote, with a tokenizer in it, or has a single GGUF file, which needs the package gguf.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder, expected one with config.json and model.safetensors, or with a GGUF file")
    # False, and not left out: transformers would ask on the terminal whether to run code from the folder.
    options: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    if not (folder / "config.json").is_file():
        options["gguf_file"] = gguf_in(folder)
    elif not any(folder.glob("*.safetensors")):
        raise DataError(f"{folder} has no .safetensors file, expected weights in that format: others may run code when read")
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, **options)
        weights = {} if "gguf_file" in options else {"use_safetensors": True}
        model = AutoModelForCausalLM.from_pretrained(
            folder, attn_implementation=attn_implementation, dtype=dtype, **options, **weights
        )
    except Exception as error:  # transformers, tokenizers and safetensors raise nearly anything for a damaged file
        raise DataError(f"{folder} cannot be read as a model of transformers: {error or type(error).__name__}") from error
    tokenizer.padding_side = "left"
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return model.eval(), tokenizer


def gguf_in(folder: Path) -> str:
    """The name of the one GGUF file of a folder."""
    files = sorted(folder.glob("*.gguf"))
    if len(files) != 1:
        raise DataError(f"{folder} has no config.json and {len(files)} GGUF files, expected one of either")
    require("gguf", "a GGUF file")
    return files[0].name
