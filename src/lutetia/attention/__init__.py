"""Decode attention: one new token, or a few, against a long cache, over N cores."""

from lutetia.attention.arguments import FEW_ACTIVE as FEW_ACTIVE
from lutetia.attention.arguments import MAX_ACTIVE as MAX_ACTIVE
from lutetia.attention.arguments import MAX_HEAD_DIM as MAX_HEAD_DIM
from lutetia.attention.arguments import DecodeCall as DecodeCall
from lutetia.attention.arguments import check_int as check_int
from lutetia.attention.cache import KVCache
from lutetia.attention.choose import Choice, Machine, choose_shard, explain_choice
from lutetia.attention.decode import decode_attention
from lutetia.attention.paged import PagedKVCache
from lutetia.attention.prefill import prefill
from lutetia.attention.rotary import turn as turn
from lutetia.attention.run import executor_of as executor_of

__all__ = ["Choice", "KVCache", "Machine", "PagedKVCache", "choose_shard", "decode_attention", "explain_choice", "prefill"]
