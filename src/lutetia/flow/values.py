"""Which value a tensor is: its memory, watched through weak references, and who wrote which bytes of it.

A tensor is known by its storage, not by its Python object, so views keep the link. A weak reference keeps the
storage's address from being used again while its data are freed as usual, so nothing is held alive and no new
tensor is ever mistaken for an old one.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.weak import WeakIdRef

UNKNOWN = -1  # a symbolic size that has no number yet
REMEMBERED = 256  # writes remembered per storage: a bound on the work for buffers filled slice by slice


class Owner(NamedTuple):
    """The owner of the bytes: a storage, or an object if no storage is available."""

    kind: str  # first, so that references of two kinds are never compared with each other
    ref: StorageWeakRef | WeakIdRef

    def expired(self) -> bool:
        return self.ref.expired() if isinstance(self.ref, StorageWeakRef) else self.ref() is None


class Piece(NamedTuple):
    """The bytes of one strided array within its owner."""

    owner: Owner
    low: int  # all of its bytes lie in [low, high)
    high: int
    item: int  # bytes per element
    dims: tuple[tuple[int, int], ...]  # (stride in bytes, size), smallest stride first
    solid: bool  # every byte of [low, high) belongs to it


class TensorFacts(NamedTuple):
    """A tensor as plain facts; holding this holds no data."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    bytes: int
    device: str
    pieces: tuple[Piece, ...]


class WrittenBytes(NamedTuple):
    """Bytes that a step wrote, and that no later step has written over."""

    low: int  # the part of the piece that can still be seen
    high: int
    piece: Piece
    step: int
    name: str
    value: int


def text(name: object) -> str:
    """A name that every file can hold: lone surrogates, as file names may have, are spelled out."""
    name = str(name)
    return name if name.isascii() else name.encode("utf-8", "backslashreplace").decode("utf-8")


def look(named: Mapping[str, Any]) -> list[TensorFacts]:
    """The tensors and arrays among some named things; lists and mappings are opened, anything else is left out."""
    found: list[TensorFacts] = []
    with torch._C.DisableTorchFunction():  # a tensor subclass or a mode need not know that we looked
        for name, thing in named.items():
            _look(text(name), thing, found)
    return found


def _look(name: str, thing: object, found: list[TensorFacts]) -> None:
    if isinstance(thing, torch.Tensor):
        found.append(_seen_tensor(name, thing))
    elif isinstance(thing, np.ndarray):
        found.append(TensorFacts(name, thing.shape, str(thing.dtype), thing.nbytes, "cpu", (_array_piece(thing),)))
    elif isinstance(thing, list | tuple | Mapping):
        for key, inner in thing.items() if isinstance(thing, Mapping) else enumerate(thing):
            _look(f"{name}.{text(key)}", inner, found)


def _seen_tensor(name: str, tensor: torch.Tensor) -> TensorFacts:
    arrays = _arrays(tensor)
    pieces = tuple(_tensor_piece(array) for array in arrays)
    held = sum(math.prod(shape) * array.element_size() for array in arrays if UNKNOWN not in (shape := _shape(array)))
    return TensorFacts(name, _shape(tensor), str(tensor.dtype).removeprefix("torch."), held, str(tensor.device), pieces)


def _arrays(tensor: torch.Tensor) -> Sequence[torch.Tensor]:
    """The strided arrays a tensor is made of: itself, or the indices and values of a sparse one."""
    layout = tensor.layout
    if layout is torch.sparse_coo:
        return tensor._indices(), tensor._values()
    if layout in (torch.sparse_csr, torch.sparse_bsr):
        return tensor.crow_indices(), tensor.col_indices(), tensor.values()
    if layout in (torch.sparse_csc, torch.sparse_bsc):
        return tensor.ccol_indices(), tensor.row_indices(), tensor.values()
    return (tensor,)


def _shape(tensor: torch.Tensor) -> tuple[int, ...]:
    try:
        return tuple(map(_size, tensor.shape))
    except RuntimeError:  # nested tensors have no sizes
        return (UNKNOWN,) * tensor.dim()


def _size(size: Any) -> int:
    """A size as a plain number; int() of a symbolic one would fix it in the trace."""
    if type(size) is int:
        return size
    try:
        hint = size.node.hint
    except Exception:  # symbols of every kind come here, and none may stop the run that is watched
        return UNKNOWN
    return hint if type(hint) is int else UNKNOWN


def _tensor_piece(tensor: torch.Tensor) -> Piece:
    try:
        owner = Owner("storage", StorageWeakRef(tensor.untyped_storage()))
    except (RuntimeError, NotImplementedError):  # vmap and the like: the object is all there is
        return Piece(Owner("object", WeakIdRef(tensor)), 0, 1, 1, (), True)
    try:
        item = tensor.element_size()
        strides = [_size(stride) * item for stride in tensor.stride()]
        offset = _size(tensor.storage_offset()) * item
    except RuntimeError:  # nested tensors have no strides either
        return Piece(owner, 0, 1 << 62, 1, (), True)
    return _piece(owner, offset, item, _shape(tensor), strides)


def _array_piece(array: np.ndarray) -> Piece:
    root = array
    while isinstance(root.base, np.ndarray):
        root = root.base
    low, _ = np.lib.array_utils.byte_bounds(array)
    if isinstance(root.base, torch.Tensor):  # made by tensor.numpy()
        storage = root.base.untyped_storage()
        owner, origin = Owner("storage", StorageWeakRef(storage)), storage.data_ptr()
    else:
        owner, origin = Owner("object", WeakIdRef(root)), np.lib.array_utils.byte_bounds(root)[0]
    return _piece(owner, low - origin, array.itemsize, array.shape, [abs(stride) for stride in array.strides])


def _piece(owner: Owner, low: int, item: int, shape: Sequence[int], strides: Iterable[int]) -> Piece:
    if 0 in shape:  # no bytes, but still a thing that moves from step to step: give it a place of one byte
        return Piece(owner, low, low + 1, 1, (), False)
    if min(shape, default=0) < 0 or low < 0:
        return Piece(owner, 0, 1 << 62, 1, (), True)
    # A dimension of one element, or of one element repeated, adds no bytes.
    dims = tuple(sorted((stride, size) for stride, size in zip(strides, shape, strict=True) if size > 1 and stride))
    high = low + item + sum((size - 1) * stride for stride, size in dims)
    packed = item
    solid = True
    for stride, size in dims:
        solid = solid and stride == packed
        packed *= size
    return Piece(owner, low, high, item, dims, solid)


def overlap(a: Piece, b: Piece) -> bool:
    """Whether two pieces may share a byte; False is certain, True may err for unusual strides."""
    return a.owner == b.owner and a.low < b.high and b.low < a.high and not _interleaved(a, b)


def _interleaved(a: Piece, b: Piece) -> bool:
    """Whether two pieces keep apart within rows of one length, as the columns of a matrix do."""
    if a.solid and b.solid:
        return False
    for pitch in {stride for piece in (a, b) for stride, _ in piece.dims}:
        window_a, window_b = _window(a, pitch), _window(b, pitch)
        if window_a and window_b and (window_a[1] <= window_b[0] or window_b[1] <= window_a[0]):
            return True
    return False


def _window(piece: Piece, pitch: int) -> tuple[int, int] | None:
    """The bytes a piece uses of each row of `pitch` bytes, or None when it does not keep to such rows."""
    used = piece.item
    for stride, size in piece.dims:
        if stride < pitch:
            used += (size - 1) * stride
        elif stride % pitch:
            return None
    start = piece.low % pitch
    return (start, start + used) if start + used <= pitch else None


def _left_of(write: WrittenBytes, cover: Piece) -> list[WrittenBytes]:
    """What can still be seen of a write when `cover` is written over it."""
    if cover.high <= write.low or write.high <= cover.low:
        return [write]
    if not cover.solid:  # it has gaps: it hides only what lies exactly under it
        return [] if cover == write.piece else [write]
    ends = (write.low, min(write.high, cover.low)), (max(write.low, cover.high), write.high)
    return [write._replace(low=low, high=high) for low, high in ends if low < high]


class Memory:
    """Which step wrote which bytes, and which number every value has; one per recording."""

    def __init__(self) -> None:
        self._writes: dict[Owner, list[WrittenBytes]] = {}
        self._outside: dict[Owner, list[tuple[Piece, int]]] = {}
        self._numbers = itertools.count()
        self._many = 1024

    def writers(self, pieces: Sequence[Piece]) -> list[WrittenBytes]:
        """The writes that a read of these pieces sees, one per value, the latest last."""
        seen = {
            (write.value, write.step, write.name): write
            for piece in pieces
            for write in self._writes.get(piece.owner, ())
            if piece.low < write.high and write.low < piece.high and not _interleaved(piece, write.piece)
        }
        return [seen[key] for key in sorted(seen)]

    def outside(self, pieces: Sequence[Piece]) -> int:
        """The number of a value that no step made: the same for all views of it."""
        known = (value for piece in pieces for other, value in self._outside.get(piece.owner, ()) if overlap(piece, other))
        value = next(known, None)
        if value is None:
            value = next(self._numbers)
        for piece in pieces:
            readings = self._entry(self._outside, piece.owner)
            if (piece, value) not in readings:
                readings.append((piece, value))
                del readings[:-REMEMBERED]
        return value

    def write(self, pieces: Sequence[Piece], step: int, name: str) -> tuple[int, int]:
        """Note that a step wrote these pieces; the number of the value and the step that made it.

        What a step that began within this one has written stays as it is: the inner step made the value,
        the outer one passes it on.
        """
        within = [write for write in self.writers(pieces) if write.step >= step]
        value, maker = (within[-1].value, within[-1].step) if within else (next(self._numbers), step)
        for piece in pieces:
            writes = self._entry(self._writes, piece.owner)
            older = [left for write in writes if write.step < step for left in _left_of(write, piece)]
            newer = [write for write in writes if write.step >= step]
            own = [WrittenBytes(piece.low, piece.high, piece, step, name, value)]
            for write in newer:
                own = [left for part in own for left in _left_of(part, write.piece)]
            writes[:] = (older + own + newer)[-REMEMBERED:]
        return value, maker

    def _entry(self, table: dict[Owner, list[Any]], owner: Owner) -> list[Any]:
        entry = table.get(owner)
        if entry is None:
            if len(table) >= self._many:
                for gone in [known for known in table if known.expired()]:
                    del table[gone]
                self._many = max(self._many, 2 * len(table))
            entry = table[owner] = []
        return entry
