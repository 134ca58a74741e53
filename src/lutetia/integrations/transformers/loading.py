"""A decoder and its tokenizer from a folder on disk: safetensors, or one GGUF file. Nothing is downloaded or unpickled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

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
        if "gguf_file" not in options:
            _check_size(folder, AutoConfig.from_pretrained(folder, **options))
        tokenizer = AutoTokenizer.from_pretrained(folder, **options)
        weights = {} if "gguf_file" in options else {"use_safetensors": True}
        model, told = AutoModelForCausalLM.from_pretrained(
            folder, attn_implementation=attn_implementation, dtype=dtype, output_loading_info=True, **options, **weights
        )
        if told["missing_keys"]:  # transformers would draw them
            raise DataError(f"its files lack {min(told['missing_keys'])}, which its config asks for")
    except Exception as error:  # transformers, tokenizers and safetensors raise nearly anything for a damaged file
        raise DataError(f"{folder} cannot be read as a model of transformers: {error or type(error).__name__}") from error
    tokenizer.padding_side = "left"
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return model.eval(), tokenizer


def _check_size(folder: Path, config: Any) -> None:
    """Refuse a config whose model the weights cannot hold, before spending memory and time on building it."""
    files = list(folder.glob("*.safetensors"))
    n_tensors = 0
    for path in files:
        with safe_open(path, framework="pt") as file:
            n_tensors += len(file.keys())
    sizes = config.get_text_config()
    n_layers, width, inner, vocab = (
        value if isinstance(value, int) else 0
        for value in (getattr(sizes, name, 0) for name in ("num_hidden_layers", "hidden_size", "intermediate_size", "vocab_size"))
    )
    most = 8 * sum(path.stat().st_size for path in files)  # numbers, of a bit at least
    if n_layers > n_tensors or width * max(n_layers, inner, vocab) > most:
        wanted = f"{n_layers:,} layers of width {width:,} and {inner:,}, and {vocab:,} tokens"
        raise DataError(f"config.json describes {wanted}, but the weights are {n_tensors:,} tensors in {most // 8:,} bytes")


def gguf_in(folder: Path) -> str:
    """The name of the one GGUF file of a folder."""
    files = sorted(folder.glob("*.gguf"))
    if len(files) != 1:
        raise DataError(f"{folder} has no config.json and {len(files)} GGUF files, expected one of either")
    require("gguf", "a GGUF file")
    return files[0].name
