"""Generate with a language model: a batch of prompts of any length, token by token, at once or as a stream of pieces."""

from __future__ import annotations

import codecs
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor

from lutetia._shared.dtypes import INTEGER_DTYPES
from lutetia.errors import ArgumentError, check_int, check_memory, check_tensor, fail
from lutetia.models.fields import check_bool
from lutetia.models.sampling import Sampling, choose, uniform

if TYPE_CHECKING:
    from lutetia.models.transformer import LUTTransformer

Prompt: TypeAlias = str | bytes | Tensor
Prompts: TypeAlias = Prompt | Sequence[Prompt]
Stop: TypeAlias = str | bytes | Sequence[str | bytes]
BYTES = 256


def generate(model: LUTTransformer, prompts: Prompts, max_new_tokens: int, how: Sampling, stop: Stop | None, stream: bool) -> Any:
    """See `LUTTransformer.generate`."""
    check_int("max_new_tokens", max_new_tokens)
    how.check()
    stops = _stops(stop)
    check_bool("stream", stream)
    single = isinstance(prompts, str | bytes) or (isinstance(prompts, Tensor) and prompts.dim() == 1)
    given = [prompts] if single else prompts
    if not isinstance(given, Tensor | list | tuple) or (isinstance(given, Tensor) and not given.dim()):
        fail("prompts", prompts, "a str, bytes, a tensor of tokens, or a list of them")
    rows = [_Row(f"prompt {at}", prompt, stops, model.config.vocab) for at, prompt in enumerate(given)]
    pieces = _write(model, rows, max_new_tokens, how)
    if stream:
        return (piece for _, piece in pieces) if single else pieces
    parts: list[list[Any]] = [[] for _ in rows]
    for at, piece in pieces:
        parts[at].append(piece)
    whole = [row.join(part) for row, part in zip(rows, parts, strict=True)]
    return whole[0] if single else whole


def _write(model: LUTTransformer, rows: list[_Row], max_new_tokens: int, how: Sampling) -> Iterator[tuple[int, Any]]:
    """Pairs (row, piece) as they come."""
    window, generator = _Window(model, [row.tokens for row in rows], max_new_tokens), how.draws()
    live = list(range(len(rows))) if max_new_tokens else []
    for n_left in range(max_new_tokens - 1, -1, -1):
        if not live:
            break
        logits = window.logits(live)
        # One number for every row, ended or not: when one ends, what the others draw stays the same.
        drawn = uniform(len(rows), generator)[live] if how.temperature else logits
        for at, token in zip(live, choose(logits, how, drawn).tolist(), strict=True):
            piece = rows[at].add(token, last=not n_left)
            if piece is not None:
                yield at, piece
        live = [at for at in live if not rows[at].ended]


class _Window:
    """The logits of what follows each row, through a cache for the rows that fit the context."""

    def __init__(self, model: LUTTransformer, rows: list[list[int]], max_new_tokens: int) -> None:
        self.model, self.rows, self.context, self.most = model, rows, model.config.context, max_new_tokens
        self.device = model.embedding.weight.device
        self.cached: list[int] | None = None  # the rows that the cache holds, in its order; None before the first step

    @torch.no_grad()
    def logits(self, live: list[int]) -> Tensor:
        """logits [n, vocab] of the rows `live`, in the memory of the host; each has one token more than the last time."""
        with _evaluating(self.model):
            if self.cached is None:
                return self._first(live).cpu()
            fit = [at for at in live if len(self.rows[at]) <= self.context]
            slid = [at for at in live if len(self.rows[at]) > self.context]
            found = [self._step(fit)] if fit else []
            if slid:
                found.append(self._recompute(slid))
            if not fit or not slid:
                return found[0].cpu()
            order = torch.tensor(fit + slid).argsort()  # live is in ascending order
            return torch.cat(found).cpu()[order]

    def _first(self, live: list[int]) -> Tensor:
        """Read the prompts, or their last `context` tokens, into a new cache."""
        windows = [self.rows[at][-self.context :] for at in live]
        lengths = torch.tensor([len(window) for window in windows])
        tokens = torch.zeros(len(live), int(lengths.max()), dtype=torch.int64)
        for line, window in zip(tokens, windows, strict=True):
            line[: len(window)] = torch.tensor(window)
        room = min(self.context, int(lengths.max()) + self.most)
        self.cache, self.cached = self.model.new_cache(len(live), room), live
        ragged = None if bool((lengths == lengths[0]).all()) else lengths.to(self.device)
        logits = self.model(tokens.to(self.device), ragged, self.cache)
        return logits[torch.arange(len(live)), lengths - 1]

    def _step(self, fit: list[int]) -> Tensor:
        assert self.cached is not None
        if fit != self.cached:  # rows have ended, or no longer fit
            self.cache.reorder(torch.tensor([self.cached.index(at) for at in fit]))
            self.cached = fit
        newest = torch.tensor([self.rows[at][-1:] for at in fit], device=self.device)
        return self.model(newest, cache=self.cache)[:, 0]

    def _recompute(self, slid: list[int]) -> Tensor:
        """The window has moved: every position now sees different tokens, so the cache is no longer valid."""
        windows = torch.tensor([self.rows[at][-self.context :] for at in slid], device=self.device)
        return self.model(windows)[:, -1]


@contextmanager
def _evaluating(model: torch.nn.Module) -> Iterator[None]:
    """The model in evaluation mode, for one step at a time: between two pieces of a stream its owner may train it."""
    training = model.training
    if training:
        model.eval()
    try:
        yield
    finally:
        if training:
            model.train()


class _Row:
    """One prompt and its continuation, in the type of the prompt."""

    def __init__(self, name: str, prompt: object, stops: list[tuple[int, ...]], vocab: int) -> None:
        self.tokens, self.is_text = _tokens(name, prompt, vocab), not isinstance(prompt, Tensor)
        self.stops, self.ended = stops, False
        self.new: list[int] = []  # all that was written
        self.told = 0  # how many of them were given out
        self.device = prompt.device if isinstance(prompt, Tensor) else None
        self.decoder: Any = codecs.getincrementaldecoder("utf-8")("replace") if isinstance(prompt, str) else None

    def add(self, token: int, last: bool) -> Any:
        """Take a token; the next piece of the continuation, None when there is none yet."""
        self.tokens.append(token)
        if self.is_text and token >= BYTES:
            self.ended = True
        else:
            self.new.append(token)
            found = max((len(stop) for stop in self.stops if self._ends_with(stop)), default=0)
            if found:
                del self.new[len(self.new) - found :]
            self.ended = last or bool(found)
        piece = self.new[self.told : len(self.new) - (0 if self.ended else self._held_back())]
        self.told += len(piece)
        return self._kind(piece)

    def _ends_with(self, stop: tuple[int, ...]) -> bool:
        return tuple(self.new[-len(stop) :]) == stop

    def _held_back(self) -> int:
        """How many tokens at the end may be the start of a stop string, and so must wait."""
        if not self.stops:
            return 0
        longest = max(len(stop) for stop in self.stops) - 1
        for n in range(min(longest, len(self.new)), 0, -1):
            end = tuple(self.new[-n:])
            if any(stop[:n] == end for stop in self.stops if len(stop) > n):
                return n
        return 0

    def _kind(self, piece: list[int]) -> Any:
        """Tokens in the type of the prompt; None if there are none."""
        if self.decoder is not None:
            return self.decoder.decode(bytes(piece), final=self.ended) or None
        if not piece:
            return None
        return bytes(piece) if self.is_text else torch.tensor(piece, device=self.device)

    def join(self, pieces: list[Any]) -> Any:
        """The whole continuation."""
        if self.decoder is not None:
            return "".join(pieces)
        if self.is_text:
            return b"".join(pieces)
        return torch.cat([torch.empty(0, dtype=torch.int64, device=self.device), *pieces])


def _tokens(name: str, prompt: object, vocab: int) -> list[int]:
    """A prompt as a list of tokens."""
    if isinstance(prompt, str):
        prompt = _encode(name, prompt)
    if isinstance(prompt, bytes):
        tokens = list(prompt)
    elif isinstance(prompt, Tensor):
        check_tensor(name, prompt, ["S"], INTEGER_DTYPES)
        check_memory(name, prompt)
        tokens = prompt.tolist()
    else:
        fail(name, prompt, "a str, bytes or a tensor of tokens")
    if not tokens:
        raise ArgumentError(f'{name} is empty, expected at least one token to continue from, such as "\\n"')
    if min(tokens) < 0 or max(tokens) >= vocab:
        bad = next(token for token in tokens if not 0 <= token < vocab)
        raise ArgumentError(f"{name} has the token {bad}, expected 0 to {vocab - 1}, the vocabulary of the model")
    return tokens


def _stops(stop: Stop | None) -> list[tuple[int, ...]]:
    """The stop strings as tokens."""
    given = [] if stop is None else [stop] if isinstance(stop, str | bytes) else stop
    if not isinstance(given, list | tuple) or not all(isinstance(each, str | bytes) for each in given):
        fail("stop", stop, "a str, bytes, or a list of them")
    if any(not each for each in given):
        fail("stop", stop, "strings that are not empty")
    return [tuple(_encode("stop", each) if isinstance(each, str) else each) for each in given]


def _encode(name: str, text: str) -> bytes:
    try:
        return text.encode("utf-8", "surrogateescape")  # bytes that the shell could not decode come back as they were
    except UnicodeEncodeError as error:
        fail(name, text, f"text that UTF-8 can encode ({error.reason})")
