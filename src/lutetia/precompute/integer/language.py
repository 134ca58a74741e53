"""A language model in whole numbers: compare, look up, add.

# Definition

All numbers are whole. The stream x of a position has `width` channels in units of 2**-fraction. For position j of the window:

    x            = embedding[byte j] << embedding_shift
    each block:  x += attention(x) << shift, then x += feed_forward(x) << shift
    scores       = unembedding(x), in units of 2**-unembedding.fraction

A layer of tables compares channels of the stream, each times the gain of the norm before the layer:

    s[c]         = x[c] · gain[c]                  (the divisor of an RMS norm is positive, so no comparison changes)
    index_t      = Σ_r (s[a_r] > s[b_r]) << r      for each detector t, with its anchors (a_r, b_r)
    tables(x)    = Σ_t numbers[t, index_t]

In attention Q is the index of position j, K that of an earlier position i, and PE the signs of the learned position of their
distance j - i. Only K, a small number for each detector, is kept of earlier positions: the index cache.

    attention(x) = Σ_{i<j} Σ_t numbers[t, Q << (anchors + bits) | K << bits | PE]

The next byte is the one of the highest score, the lowest of equals. While the window has fewer than `context` bytes a new byte
joins it. After that the oldest byte leaves, and its contributions to the others are removed: every byte depends on the last
`context` bytes and on nothing else, as in `LUTTransformer.generate`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from lutetia.errors import ArgumentError, check_choice, fail
from lutetia.precompute.integer.sampling import Draws, choose
from lutetia.precompute.integer.scales import signed_bits

if TYPE_CHECKING:
    from lutetia.precompute.integer.hardware import LanguageHardware

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class TableLayer:
    """A layer of tables.

    numbers    int8 [T, rows, outputs], in units of 2**-fraction
    anchors    int64 [T, A, 2]
    gains      int64 [width] of the norm before the layer; None: all the same
    positions  int64 [context - 1, T], of attention: the code PE of each distance, 1 first; `position_bits` of them
    shift      to the left, into the units of the stream
    """

    numbers: Array
    fraction: int
    anchors: Array
    gains: Array | None
    shift: int = 0
    positions: Array | None = None
    position_bits: int = 0

    @property
    def reach(self) -> Array:
        """The largest sum of one row of every detector, without its sign: int64 [outputs]."""
        return np.abs(self.numbers.astype(np.int64)).max(1).sum(0)

    def indices(self, stream: Array) -> Array:
        """The index of each detector: int64 [..., width] -> int64 [..., T]."""
        s = stream if self.gains is None else stream * self.gains
        bits = s[..., self.anchors[:, :, 0]] > s[..., self.anchors[:, :, 1]]
        return (bits.astype(np.int64) << np.arange(self.anchors.shape[1])).sum(-1)

    def sums(self, indices: Array) -> Array:
        """The rows of all detectors, added up: int64 [..., T] -> int64 [..., outputs]."""
        return self.numbers[np.arange(len(self.numbers)), indices].sum(-2, dtype=np.int64)

    def attended(self, query: Array, keys: Array) -> Array:
        """What earlier positions add to one: query int64 [..., T], keys [..., n, T], oldest first -> int64 [..., outputs]."""
        assert self.positions is not None
        n, n_anchors = keys.shape[-2], self.anchors.shape[1]
        cells = (query[..., None, :] << (n_anchors + self.position_bits)) | (keys << self.position_bits)
        return self.sums(cells | self.positions[:n][::-1]).sum(-2)


@dataclass(frozen=True, eq=False)
class IntegerBlock:
    """One block: attention, then the feed-forward."""

    attention: TableLayer
    feed_forward: TableLayer


@dataclass(frozen=True, eq=False)
class IntegerTransformer:
    """A `LUTTransformer` in whole numbers: see the definition above. Made by `integer_model`."""

    context: int
    embedding: Array  # int16 [vocab, width]
    embedding_shift: int
    fraction: int  # of the stream
    blocks: tuple[IntegerBlock, ...]
    unembedding: TableLayer
    model: Any = field(default=None, repr=False)  # the model it was made from

    @property
    def vocab(self) -> int:
        return len(self.embedding)

    @property
    def width(self) -> int:
        return int(self.embedding.shape[1])

    @property
    def layers(self) -> dict[str, TableLayer]:
        """Every layer of tables by the name that it has in the model."""
        named = {}
        for number, block in enumerate(self.blocks):
            named[f"blocks.{number}.attention"] = block.attention
            named[f"blocks.{number}.feed_forward"] = block.feed_forward
        return {**named, "unembedding": self.unembedding}

    def widths(self) -> dict[str, int]:
        """The bits of two's complement that each sum provably needs, whatever the text."""
        bits = {}
        stream = np.abs(self.embedding.astype(np.int64)).max(0) << self.embedding_shift
        compared = 0
        for name, layer in self.layers.items():
            compared = max(compared, int((stream * (1 if layer.gains is None else np.abs(layer.gains))).max()))
            reach = layer.reach * (self.context - 1 if layer.positions is not None else 1)
            bits[name] = signed_bits(int(reach.max()))
            if layer is not self.unembedding:
                stream = stream + (reach << layer.shift)
        return {**bits, "stream": signed_bits(int(stream.max())), "compared": signed_bits(compared)}

    def n_bytes(self) -> int:
        """Bytes of all tables, and of the embedding."""
        return self.embedding.nbytes + sum(layer.numbers.nbytes for layer in self.layers.values())

    # ---- what it computes --------------------------------------------------------------------------------------------

    def scores(self, tokens: Array, indices: dict[str, Array] | None = None) -> Array:
        """Scores of the byte that follows each byte of a window: int [..., S <= context] -> int64 [..., S, vocab].

        `indices` is filled with those of every layer, by its name: int64 [..., S, T].
        """
        indices = {} if indices is None else indices
        stream = self._embed(tokens)
        for name, layer in self.layers.items():
            found = indices[name] = layer.indices(stream)
            if layer.positions is None:
                sums = layer.sums(found)
            else:
                sums = np.stack([layer.attended(found[..., j, :], found[..., :j, :]) for j in range(found.shape[-2])], -2)
            if layer is self.unembedding:
                return sums
            stream = stream + (sums << layer.shift)
        raise AssertionError("the unembedding is the last layer")

    def report(self, data: bytes, most_windows: int = 64) -> dict[str, Any]:
        """Bits per byte beside those of the float model, and by layer the share of equal indices: see `measure.report`."""
        from lutetia.precompute.integer.measure import report

        return report(self, data, most_windows)

    def emit(
        self, language: str = "verilog", *, detectors_per_cycle: int = 4, temperature: float | None = None
    ) -> LanguageHardware:
        """The model as a core with a byte-in, byte-out port: `hardware.generate(prompt, n)` simulates it.

        With a `temperature` the core can also draw: it has a port for the seed, and `generate(prompt, n, seed=1)` uses it.
        """
        from lutetia.precompute.integer.hardware import emit_language

        check_choice("language", language, ("verilog",))
        return emit_language(self, detectors_per_cycle, temperature)

    def reader(self) -> Reader:
        """An empty window, to read bytes into."""
        return Reader(self)

    def generate(self, prompt: bytes, n: int, *, seed: int | None = None, temperature: float = 1.0) -> bytes:
        """The n bytes that the model writes after a prompt: the best each time, or with a `seed` drawn (see `sampling`)."""
        return bytes(self.stream(prompt, n, seed=seed, temperature=temperature))

    def stream(self, prompt: bytes, n: int, *, seed: int | None = None, temperature: float = 1.0) -> Iterator[int]:
        """The bytes of `generate`, one at a time."""
        check_prompt(prompt, self.vocab)
        if isinstance(n, bool) or not isinstance(n, int) or n < 0:
            fail("n", n, "how many bytes to write, 0 or more")
        draws = None if seed is None else Draws(seed, temperature, self.unembedding.fraction)
        return self._write(prompt, n, draws)

    def _write(self, prompt: bytes, n: int, draws: Draws | None) -> Iterator[int]:
        reader = self.reader()
        for byte in prompt[-self.context :]:
            reader.put(byte)
        for left in range(n - 1, -1, -1):
            byte = choose(reader.scores(), draws)
            if left:
                reader.put(byte)
            yield byte

    def _embed(self, tokens: Array) -> Array:
        return self.embedding[tokens].astype(np.int64) << self.embedding_shift

    def _fed(self, block: IntegerBlock, stream: Array) -> Array:
        feed_forward = block.feed_forward
        return feed_forward.sums(feed_forward.indices(stream)) << feed_forward.shift


class Reader:
    """The window of a model while it reads and writes: its bytes, and the index cache, K of every position and block."""

    def __init__(self, model: IntegerTransformer) -> None:
        self.model = model
        self.reset()

    def reset(self) -> None:
        """Forget all bytes."""
        self.bytes: list[int] = []
        self.keys: list[Array] = [np.zeros((0, len(block.attention.numbers)), dtype=np.int64) for block in self.model.blocks]
        self._stream = np.zeros(self.model.width, dtype=np.int64)

    def put(self, byte: int) -> None:
        """Read one byte; when the window is full its oldest byte leaves."""
        if not 0 <= byte < self.model.vocab:
            fail("byte", byte, f"0 to {self.model.vocab - 1}, the vocabulary of the model")
        is_full = len(self.bytes) == self.model.context
        self.bytes = [*self.bytes, byte][-self.model.context :]
        if is_full:  # what every position has seen is other than it was
            self._recompute()
        else:
            self._step(byte)

    def scores(self) -> Array:
        """The score of every byte that may follow: int64 [vocab]."""
        if not self.bytes:
            raise ArgumentError("no byte was read, expected at least one to continue from")
        unembedding = self.model.unembedding
        return unembedding.sums(unembedding.indices(self._stream))

    def _step(self, byte: int) -> None:
        stream = self.model._embed(np.array(byte))
        for number, block in enumerate(self.model.blocks):
            query = block.attention.indices(stream)
            stream = stream + (block.attention.attended(query, self.keys[number]) << block.attention.shift)
            self.keys[number] = np.concatenate([self.keys[number], query[None]])
            stream = stream + self.model._fed(block, stream)
        self._stream = stream

    def _recompute(self) -> None:
        """Recompute the whole window; of the last block only the last position is needed."""
        stream = self.model._embed(np.array(self.bytes))
        for number, block in enumerate(self.model.blocks):
            keys = self.keys[number] = block.attention.indices(stream)
            last = number == len(self.model.blocks) - 1
            wanted = range(len(keys) - 1, len(keys)) if last else range(len(keys))
            seen = [block.attention.attended(keys[j], keys[:j]) for j in wanted]
            stream = stream[wanted.start :] + (np.stack(seen) << block.attention.shift)
            stream = stream + self.model._fed(block, stream)
        self._stream = stream[-1]


def check_prompt(prompt: object, vocab: int) -> None:
    """Check that a model can continue from this prompt."""
    if not isinstance(prompt, bytes | bytearray):
        fail("prompt", prompt, 'bytes, such as b"def "')
    if not prompt:
        raise ArgumentError('prompt is empty, expected at least one byte to continue from, such as b"\\n"')
    if max(prompt) >= vocab:
        raise ArgumentError(f"prompt has the byte {max(prompt)}, expected 0 to {vocab - 1}, the vocabulary of the model")
