"""Memory: how much there is, and large blocks of it for gradients, which are as large as the tables.

malloc gives blocks of 32 MiB and more back to the system when they are freed, and takes fresh ones the next time: pages that the
system clears one by one when they are first written to, 1 µs each. A gradient of 33 MB takes 9 ms to make that way and 0.5 ms to
clear. So large blocks are kept here, and reused once nothing refers to them.
"""

from __future__ import annotations

import threading
import weakref
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

KEPT_BY_MALLOC = 32 << 20  # bytes below which malloc itself keeps what is freed
KEPT_HERE = 1 << 30  # bytes in all


@dataclass
class KeptMemory:
    """A kept block of memory, and the view of it that is in use; a tensor, and everything derived from it, keeps it alive."""

    memory: np.ndarray
    lent: weakref.ref[np.ndarray] | None = None

    def lend(self) -> Tensor:
        view = self.memory.view()
        self.lent = weakref.ref(view)
        return torch.from_numpy(view)

    def is_idle(self) -> bool:
        return self.lent is None or self.lent() is None


_kept: list[KeptMemory] = []
_lock = threading.Lock()


def uncleared(n: int, dtype: torch.dtype) -> Tensor:
    """An uninitialised tensor [n], in reused memory if there is some."""
    if n * dtype.itemsize < KEPT_BY_MALLOC:
        return torch.empty(n, dtype=dtype)
    numbers = np.dtype(np.float64 if dtype == torch.float64 else np.float32)
    with _lock:
        for block in _kept:
            if block.memory.size == n and block.memory.dtype == numbers and block.is_idle():
                return block.lend()
        return _keep(n, numbers).lend()


def _keep(n: int, numbers: np.dtype) -> KeptMemory:
    """A new block, kept; the oldest beyond the limit are dropped."""
    block = KeptMemory(np.empty(n, numbers))
    _kept.append(block)
    while sum(kept.memory.nbytes for kept in _kept) > KEPT_HERE:
        _kept.pop(0)
    return block


def free_memory(device: torch.device) -> int:
    """Bytes that could be allocated now: free on the device, or cached by torch's allocator; 4 GiB if the system does not say."""
    if device.type != "cuda":
        try:
            with open("/proc/meminfo") as file:
                return next(int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable"))
        except (OSError, StopIteration):
            return 4 << 30
    if torch.cuda.is_current_stream_capturing():
        return torch.cuda.get_device_properties(device).total_memory // 4
    free, _ = torch.cuda.mem_get_info(device)
    stats = torch.cuda.memory_stats_as_nested_dict(device)  # 10 µs, where `memory_reserved` and `memory_allocated` take 70 each
    if not stats:  # nothing was allocated
        return free
    return free + stats["reserved_bytes"]["all"]["current"] - stats["allocated_bytes"]["all"]["current"]
