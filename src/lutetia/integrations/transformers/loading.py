"""A model and its tokenizer from a folder on disk: safetensors, or one GGUF file. Nothing is downloaded or unpickled."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from safetensors import safe_open
from transformers import AutoConfig, AutoTokenizer

from lutetia.errors import DataError, require
from lutetia.integrations.transformers import tables
from lutetia.integrations.transformers.attention import NAME, register_attention
from lutetia.integrations.transformers.checks import NAMED, check_folder
from lutetia.integrations.transformers.models import register_models
from lutetia.integrations.transformers.pooling import MODULES

NEXT_TOKEN, MASKED_TOKEN, ANSWER, TEXT_CLASS, IMAGE_CLASS = "next token", "masked token", "answer", "text class", "image class"
EMBEDDING = "embedding"
TASKS = {  # by the end of the name of an architecture: what such a model gives, and the class of transformers that loads it
    "ForCausalLM": (NEXT_TOKEN, "AutoModelForCausalLM"),
    "LMHeadModel": (NEXT_TOKEN, "AutoModelForCausalLM"),
    "ForMaskedLM": (MASKED_TOKEN, "AutoModelForMaskedLM"),
    "ForConditionalGeneration": (ANSWER, "AutoModelForSeq2SeqLM"),
    "MTModel": (ANSWER, "AutoModelForSeq2SeqLM"),
    "ForSequenceClassification": (TEXT_CLASS, "AutoModelForSequenceClassification"),
    "ForImageClassification": (IMAGE_CLASS, "AutoModelForImageClassification"),
    "EncoderModel": (EMBEDDING, "AutoModelForTextEncoding"),
    "Model": (EMBEDDING, "AutoModel"),
}


def with_article(task: str) -> str:
    """What a model gives, in a sentence."""
    return f"{'an' if task[0] in 'aeiou' else 'a'} {task}"


class LoadedModel(NamedTuple):
    """What `load_model` found in a folder."""

    task: str  # one of those above
    model: Any  # in eval mode
    reader: Any  # its tokenizer, or its image processor


def load_decoder(folder: str | Path, attn_implementation: str = NAME, dtype: torch.dtype = torch.float32) -> tuple[Any, Any]:
    """The model, in eval mode, and its tokenizer, which pads on the left. Lutetia's attention is registered for it.

    `folder` is what `save_pretrained` wrote, with a tokenizer in it, or has a single GGUF file, which needs the package gguf.
    """
    register_attention()
    register_models()
    folder = check_folder(folder)
    options = _options(folder)
    model, tokenizer = _read(folder, "AutoModelForCausalLM", options, attn_implementation=attn_implementation, dtype=dtype)
    tokenizer.padding_side = "left"
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return model, tokenizer


def load_model(folder: str | Path) -> LoadedModel:
    """A language model, a classifier of texts or images, or an encoder of texts, in float32: what its config says it is."""
    register_attention()
    register_models()
    folder = check_folder(folder)
    options = _options(folder)
    task, loader = (NEXT_TOKEN, "") if "gguf_file" in options else _task_of(folder, options)
    if task == NEXT_TOKEN:
        return LoadedModel(task, *load_decoder(folder))
    return LoadedModel(task, *_read(folder, loader, options, dtype=torch.float32))


def _task_of(folder: Path, options: dict[str, Any]) -> tuple[str, str]:
    """What a model gives, and who loads it."""
    try:
        config = AutoConfig.from_pretrained(folder, **options)
    except Exception as error:
        raise _unreadable(folder, error) from error
    named = config.architectures[0] if config.architectures else "ForCausalLM"
    named = "Model" if (folder / MODULES).is_file() else named  # of sentence-transformers: an encoder, whatever it was before
    task, loader = next((found for end, found in TASKS.items() if str(named).endswith(end)), ("", ""))
    both = config.is_encoder_decoder
    is_known = bool(task) and type(config) in getattr(transformers, loader)._model_mapping  # models of speech are not
    if not is_known or (task == ANSWER and not both) or (loader == "AutoModel" and both):
        raise DataError(
            f"{folder} holds a {named}, expected a language model, a masked or a sequence-to-sequence one, a classifier of texts "
            "or images, or an encoder of texts; in Python, lutetia.relevance.attribute explains any model"
        )
    return task, loader


def _options(folder: Path) -> dict[str, Any]:
    """How transformers reads a folder: from disk, without running code from it."""
    if not os.path.isdir(folder):  # which is false, too, for a name that the system refuses
        expected = "expected one with config.json and model.safetensors, or with a GGUF file"
        named = f"; `hf download {folder}` fetches a model of that name" if NAMED.fullmatch(str(folder)) else ""
        raise DataError(f"{folder} is not a folder{', nor a model that was downloaded' if named else ''}, {expected}{named}")
    # False, and not left out: transformers would ask on the terminal whether to run code from the folder.
    options: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    if not (folder / "config.json").is_file():
        options["gguf_file"] = gguf_in(folder)
    elif not any(folder.glob("*.safetensors")):
        raise DataError(f"{folder} has no .safetensors file, expected weights in that format: others may run code when read")
    return options


def _read(folder: Path, loader: str, options: dict[str, Any], **how: Any) -> tuple[Any, Any]:
    """The model, in eval mode, and its tokenizer or image processor."""
    reader = transformers.AutoImageProcessor if loader == "AutoModelForImageClassification" else AutoTokenizer
    try:
        with _quiet(), _parsed_once() if "gguf_file" in options else nullcontext():
            if "gguf_file" not in options:
                _check_size(folder, AutoConfig.from_pretrained(folder, **options))
                how["use_safetensors"] = True
            read = reader.from_pretrained(folder, **options)
            model, told = _loaded(getattr(transformers, loader), folder, {**options, **how})
        missing = {name for name in told["missing_keys"] if loader != "AutoModel" or not name.startswith("pooler.")}
        if missing:  # transformers would draw them; a pooler is no part of the states of tokens
            raise DataError(f"its files lack {min(missing)}, which its config asks for")
    except Exception as error:  # transformers, tokenizers and safetensors raise nearly anything for a damaged file
        raise _unreadable(folder, error) from error
    return model.eval(), read


def _loaded(auto: Any, folder: Path, how: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The model, with an attention of its own where it has no place for another, and what was missing from its files."""
    try:
        model, told = auto.from_pretrained(folder, output_loading_info=True, **how)
        if "attn_implementation" not in how or takes_attention(model):
            return model, told
    except KeyError as error:  # of a table of attention classes
        if error.args != (how.get("attn_implementation"),):
            raise
    own = {name: value for name, value in how.items() if name != "attn_implementation"}
    model, told = auto.from_pretrained(folder, output_loading_info=True, **own)
    return model, told


def takes_attention(model: Any) -> bool:
    """Whether every part of a model takes the attention that its config names; BLOOM and others only take its kind of mask."""
    parts = [module for module in model.modules() if isinstance(module, transformers.PreTrainedModel)]
    return all(tables.takes_attention(type(part)) for part in parts)


def _unreadable(folder: Path, error: Exception) -> DataError:
    return DataError(f"{folder} cannot be read as a model of transformers: {error or type(error).__name__}")


@contextmanager
def _quiet() -> Iterator[None]:
    """Neither a table of the weights that were found or not, nor, outside a terminal, a bar of those that were loaded."""
    logging = transformers.logging
    level, bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    if not sys.stderr.isatty():
        logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bar:
            logging.enable_progress_bar()


@contextmanager
def _parsed_once() -> Iterator[None]:
    """A GGUF file is parsed once: transformers does it three times, and lists its names for every module (17 s instead of 6).

    Outside a terminal without its bar, which is none of those that transformers can switch off.
    """
    import gguf
    from transformers import modeling_gguf_pytorch_utils as reading

    with ExitStack() as stack:
        for name in ("GGUFReader", "get_tensor_name_map"):
            stack.callback(setattr, gguf, name, getattr(gguf, name))
            setattr(gguf, name, functools.cache(getattr(gguf, name)))
        if not sys.stderr.isatty():
            stack.callback(setattr, reading, "tqdm", reading.tqdm)
            reading.tqdm = functools.partial(reading.tqdm, disable=True)
        yield


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
