"""What explanations ask of their arguments, before a model runs; and what a model or a tokenizer says when it refuses them."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from lutetia.errors import ArgumentError, LutetiaError, check_int, fail

NAMED = re.compile(r"([\w-][\w.-]*/)?[\w-][\w.-]*")  # the owner of a model, and its name; the oldest have no owner


def refuse(name: str, value: Any, expected: str) -> NoReturn:
    """As `fail` does; what belongs to transformers is named by its class, for it describes itself in many lines."""
    kind = type(value)
    if isinstance(value, nn.Module) or kind.__module__.startswith("transformers."):
        raise ArgumentError(f"{name} is {kind.__name__}, expected {expected}")
    fail(name, value, expected)


def check_model(model: Any) -> None:
    """A model of transformers, also one that another package has wrapped."""
    if not isinstance(model, nn.Module) or not hasattr(model, "config"):
        refuse("model", model, "a model of transformers")


def check_writer(model: Any) -> None:
    """A decoder or a sequence-to-sequence model."""
    check_model(model)
    if not (hasattr(model, "can_generate") and model.can_generate()):
        refuse("model", model, "one that writes text: a decoder or a sequence-to-sequence model")


def check_tokenizer(tokenizer: Any) -> None:
    """It reads texts, and writes tokens as text."""
    if not callable(tokenizer) or not all(hasattr(tokenizer, name) for name in ("decode", "eos_token_id")):
        refuse("tokenizer", tokenizer, "a tokenizer of transformers")


def check_tokens(model: Any, tokens: Tensor) -> None:
    """Tokens [1, S] of this model's vocabulary: another model's tokenizer may know more of them."""
    try:
        table = model.get_input_embeddings() if hasattr(model, "get_input_embeddings") else None
    except NotImplementedError:
        refuse("model", model, "one that embeds its tokens; lutetia.relevance.attribute explains any, by the names of modules")
    count = getattr(table, "num_embeddings", None)
    if isinstance(count, int) and tokens.numel() and int(tokens.max()) >= count:
        raise ArgumentError(f"the text has token {int(tokens.max())}, and the model knows {count}, expected its own tokenizer")


def check_prompt(prompt: Any) -> None:
    """A text, or messages."""
    messages = isinstance(prompt, Sequence) and not isinstance(prompt, bytes)
    if not isinstance(prompt, str) and not (messages and all(isinstance(each, Mapping) for each in prompt)):
        fail("prompt", prompt, 'a text, or a list of messages such as {"role": "user", "content": "..."}')


def check_wanted(name: str, wanted: Any, highest: int) -> None:
    """A token or a class, by its number or by name."""
    if not isinstance(wanted, str):
        check_int(name, wanted, 0, highest)


def check_folder(folder: Any) -> Path:
    """A path; that it is one of a folder is seen later. The name of a model that was downloaded before is its folder."""
    if not isinstance(folder, str | os.PathLike):
        fail("folder", folder, "the path of a folder")
    path = Path(folder)
    return path if os.path.exists(path) else _downloaded(str(folder)) or path


def _downloaded(name: str) -> Path | None:
    """The folder of a model in the cache of Hugging Face, by its name; nothing is asked of the network."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    if not NAMED.fullmatch(name):
        return None
    try:
        found = try_to_load_from_cache(name, "config.json")
    except HFValidationError:
        return None
    return Path(found).parent if isinstance(found, str) else None


def tokenized(tokenizer: Any, *texts: str, **options: Any) -> Any:
    """What a tokenizer makes of texts, as tensors."""
    if isinstance(tokenizer, PreTrainedTokenizerBase):
        options["verbose"] = False  # that a text is too long is said in other words
    try:
        return tokenizer(*texts, return_tensors="pt", **options)
    except (TypeError, ValueError) as error:  # of a text that is no Unicode
        raise ArgumentError(f"the tokenizer refuses the text {texts[0][:80]!r}: {error}") from error


def logits_of(model: Any, inputs: Mapping[str, Any], dims: int) -> Tensor:
    """The scores that a model gives, with so many dimensions: [1, S, vocab], or [1, classes]."""
    try:
        output = model(**inputs)
        return checked_logits(model, output, dims)
    except LutetiaError:
        raise
    except (AttributeError, TypeError, ValueError) as error:  # of a model that reads something else
        raise ArgumentError(f"model is {type(model).__name__}, which refuses {', '.join(inputs)}: {error}") from error


def checked_logits(model: Any, output: Any, dims: int) -> Tensor:
    """The scores in an output, with so many dimensions."""
    logits: Tensor = output.logits
    if logits.dim() != dims:
        refuse("model", model, f"one that gives scores {'of tokens' if dims == 3 else 'of classes'}")
    return logits
