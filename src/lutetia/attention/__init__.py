"""Decode attention: one new token, or a few, against a long cache, over N cores."""

from typing import TYPE_CHECKING

from lutetia._shared.doors import lazy_door
from lutetia.attention.arguments import FEW_ACTIVE, MAX_ACTIVE, MAX_HEAD_DIM, DecodeCall, check_int
from lutetia.attention.cache import KVCache
from lutetia.attention.choose import Choice, Machine, choose_shard, explain_choice
from lutetia.attention.decode import decode_attention
from lutetia.attention.paged import PagedKVCache
from lutetia.attention.prefill import prefill
from lutetia.attention.rotary import turn
from lutetia.attention.run import executor_of

if TYPE_CHECKING:
    from lutetia.attention import processes
    from lutetia.attention.cpu import decode_on_cpu

__all__ = ["Choice", "KVCache", "Machine", "PagedKVCache", "choose_shard", "decode_attention", "explain_choice", "prefill"]

# What most calls do without: many processes, a module of its own, and the loops of a CPU, called past the checks.
__getattr__, __dir__ = lazy_door(__name__, {"cpu": "decode_on_cpu"})
