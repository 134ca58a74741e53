"""`lutetia generate`: a saved language model writes to the terminal, byte by byte."""

from __future__ import annotations

import codecs
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from lutetia.cli.guard import stop_if_interrupted
from lutetia.errors import ArgumentError

if TYPE_CHECKING:
    from lutetia.models import LUTTransformer


class GenerateRequest(NamedTuple):
    """What was asked for: the options of the command."""

    prompt: str
    max_new: int
    temperature: float
    top_k: int | None
    top_p: float | None
    stop: list[str] | None
    seed: int | None


def write(checkpoint: Path, request: GenerateRequest, show: bool) -> dict[str, Any]:
    """Generate text, and with `show` print it as it comes. Returns what `--json` prints."""
    from lutetia.cli.backend import generation_work, kernels_for
    from lutetia.models import LUTTransformer, load

    model: Any = load(checkpoint)
    if not isinstance(model, LUTTransformer):
        raise ArgumentError(f"{checkpoint} holds a {type(model).__name__}, which writes no text: expected a language model")
    prompt = request.prompt.encode("utf-8", "surrogateescape")  # bytes that are not UTF-8 come back as they were typed
    with kernels_for(model, generation_work(model, len(prompt), request.max_new)) as backend:
        return {**_write(model, prompt, request, show), "backend": backend}


def _write(model: LUTTransformer, prompt: bytes, request: GenerateRequest, show: bool) -> dict[str, Any]:
    started = time.perf_counter()
    pieces = model.generate(
        prompt,
        request.max_new,
        temperature=request.temperature,
        top_k=request.top_k,
        top_p=request.top_p,
        stop=request.stop or None,
        seed=request.seed,
        stream=True,
    )
    screen, written = _Screen(show), b""
    warm, before = started, 0  # when all kernels were loaded, and how many bytes were written by then
    screen.add(prompt)
    try:
        for number, piece in enumerate(pieces):
            stop_if_interrupted()
            written += piece
            screen.add(piece)
            if number == 1:  # the first piece came from the prompt, the second from the first step through the cache
                warm, before = time.perf_counter(), len(written)
    finally:
        screen.end()
    ended = time.perf_counter()
    if len(written) == before:
        warm, before = started, 0
    return {
        "prompt": prompt.decode("utf-8", "replace"),
        "text": written.decode("utf-8", "replace"),
        "tokens": list(written),
        "seconds": ended - started,
        "tokens_per_second": (len(written) - before) / (ended - warm),  # without loading or compiling the kernels
    }


class _Screen:
    """Shows bytes as they come: whole characters, and no control character that could steer the terminal."""

    def __init__(self, show: bool) -> None:
        self.show = show
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, piece: bytes) -> None:
        self._print(self.decoder.decode(piece))

    def end(self) -> None:
        self._print(self.decoder.decode(b"", final=True) + "\n")

    def _print(self, text: str) -> None:
        if self.show and text:
            sys.stdout.write(safe(text))
            sys.stdout.flush()


def safe(text: str) -> str:
    """The text with control characters, all but line feeds and tabs, written out."""
    return "".join(c if c.isprintable() or c in "\n\t" else repr(c)[1:-1] for c in text)
