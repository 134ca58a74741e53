"""`lutetia generate --hf`: a decoder of `transformers` writes to the terminal, token by token, through decode attention."""

from __future__ import annotations

import inspect
import sys
import time
from pathlib import Path
from typing import Any

import torch

from lutetia.cli.generate import GenerateRequest, safe
from lutetia.cli.guard import UsageError, stop_if_interrupted
from lutetia.cli.hf_shared import prompt_of
from lutetia.errors import ArgumentError, check_int, check_range, require

COLDEST = 1e-6  # the temperature up to which the best token is taken: divided by less, scores overflow


def write_hf(folder: Path, request: GenerateRequest, chat: bool, show: bool) -> dict[str, Any]:
    """Continue a prompt, and with `show` print the text as it comes. Returns what `--json` prints."""
    if request.stop:
        raise UsageError("--stop is not for --hf: a model of transformers stops at its own end of text")
    _check(request)
    transformers: Any = require("transformers", "lutetia generate --hf")
    from lutetia.integrations.transformers import explaining, load_model, loading

    task, model, tokenizer = load_model(folder)
    if task != loading.NEXT_TOKEN:
        raise ArgumentError(
            f"{folder} holds a model that gives {loading.with_article(task)}, expected a decoder, which continues a text"
        )
    tokens = explaining.prompt_tokens(tokenizer, prompt_of(request.prompt, chat, tokenizer))
    count, most = tokens.shape[1], explaining.positions_of(model)
    if most is not None and count >= most:
        raise ArgumentError(f"the prompt has {count:,} tokens, expected at most {most - 1:,}: the model reads {most:,}")
    room = request.max_new if most is None else min(request.max_new, most - count)
    draws = {"temperature": request.temperature, "top_k": request.top_k or 0, "top_p": request.top_p or 1.0}
    ends = {"eos_token_id": model.generation_config.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    is_drawn = request.temperature > COLDEST
    how = transformers.GenerationConfig(max_new_tokens=room, do_sample=is_drawn, **(draws if is_drawn else {}), **ends)
    started = time.perf_counter()
    with torch.random.fork_rng(devices=[]), torch.inference_mode():
        if request.seed is not None:
            torch.manual_seed(request.seed)
        screen = _streamer(transformers, tokenizer, skip_prompt=chat) if show else None
        written = model.generate(
            input_ids=tokens,
            attention_mask=torch.ones_like(tokens),
            generation_config=how,
            past_key_values=_cache(model),
            streamer=screen,
        )[0, count:].tolist()
    seconds = time.perf_counter() - started
    if show and len(written) == room < request.max_new:
        print(f"stopped after {room:,} tokens: the model reads {most:,}, prompt included", file=sys.stderr)
    text = tokenizer.decode(written, skip_special_tokens=True)
    told = {"prompt": request.prompt, "text": text, "tokens": written, "seconds": seconds}
    return {**told, "tokens_per_second": len(written) / seconds, "backend": "transformers"}


def _cache(model: Any) -> Any:
    """A cache of ours, or None for a model that keeps something other than keys and values, or nothing."""
    from lutetia.integrations.transformers import LutetiaCache

    takes = "past_key_values" in inspect.signature(model.forward).parameters and model._supports_default_dynamic_cache()
    try:
        return LutetiaCache(model.config) if takes else None
    except ArgumentError:
        return None


def _check(request: GenerateRequest) -> None:
    check_int("--max-new", request.max_new, 1)
    check_range("--temperature", request.temperature, 0)
    if request.seed is not None:
        check_int("--seed", request.seed, 0, 2**63 - 1)
    if request.top_k is not None:
        check_int("--top-k", request.top_k, 1)
    if request.top_p is not None:
        check_range("--top-p", request.top_p, 1e-6, 1)


def _streamer(transformers: Any, tokenizer: Any, skip_prompt: bool) -> Any:
    """Shows the prompt, then what is written, in whole words, without control characters that could steer the terminal.

    The prompt of a chat is left out: most of it would be the template's.
    """

    class Screen(transformers.TextStreamer):
        def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
            stop_if_interrupted()
            sys.stdout.write(safe(text) + ("\n" if stream_end else ""))
            sys.stdout.flush()

    return Screen(tokenizer, skip_prompt, skip_special_tokens=True)
