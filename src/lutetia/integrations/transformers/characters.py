"""Characters that a tokenizer splits over several tokens, as byte-level ones split é, emoji and Chinese: together again."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lutetia.errors import check_int, check_tensor, fail
from lutetia.integrations.transformers.checks import check_tokenizer

BROKEN = "\N{REPLACEMENT CHARACTER}"  # what most tokenizers write for a part of a character; some write nothing
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
MOST = 16  # tokens put together: a character has four bytes at most, but a token may end one and begin the next
# What two characters must be for a word to go on from one to the other: letters, digits, apostrophes, but for scripts that put no
# space between words.
_JOINS = re.compile(r"[\w'’]")
_ALONE = re.compile(r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")


class WholePieces(NamedTuple):
    """The text of S tokens in P pieces that can be read: a token, or the tokens of one character."""

    texts: list[str]  # P
    sizes: list[int]  # P: tokens in each, S in all

    def summed(self, relevance: Tensor) -> Tensor:
        """Relevance [..., S] of the tokens, added up to that of the pieces [..., P]."""
        check_tensor("relevance", relevance, dtype=FLOATS)
        if not relevance.dim() or relevance.shape[-1] != sum(self.sizes):
            fail("relevance", relevance, f"that of {sum(self.sizes)} tokens in its last dimension")
        places = torch.repeat_interleave(torch.tensor(self.sizes, dtype=torch.long, device=relevance.device))
        return relevance.new_zeros(*relevance.shape[:-1], len(self.sizes)).index_add(-1, places, relevance)


def whole_pieces(tokenizer: Any, tokens: Sequence[int]) -> WholePieces:
    """The text of each token; tokens that are parts of one character are one piece. Any tokenizer: it is asked to decode."""
    check_tokenizer(tokenizer)
    if not isinstance(tokens, list | tuple):
        fail("tokens", tokens, "a list of whole numbers")
    for token in tokens:
        check_int("one of tokens", token)
    single = [str(tokenizer.decode([token])) for token in tokens]
    texts, sizes, first = [], [], 0
    while first < len(tokens):
        end = first + 1
        while end < len(tokens) and _may_belong_together(single[end - 1], single[end]):
            end += 1
        while first < end:
            count = _together(tokenizer, tokens[first:end]) if end - first > 1 else 1
            texts.append(single[first] if count == 1 else tokenizer.decode(list(tokens[first : first + count])))
            sizes.append(count)
            first += count
    return WholePieces(texts, sizes)


def _may_belong_together(left: str, right: str) -> bool:
    """Whether a character may be cut between two tokens: neither could then be written."""
    return (left.endswith(BROKEN) and right.startswith(BROKEN)) or not (left or right)


def _together(tokenizer: Any, tokens: Sequence[int]) -> int:
    """How many of these tokens make the first text that can be read."""

    def text(first: int, end: int) -> str:
        return str(tokenizer.decode(list(tokens[first:end])))

    most = min(MOST, len(tokens))
    alone = text(0, 1)
    for count in range(1, most + 1):
        whole = text(0, count)
        if BROKEN not in whole and (whole.strip() or alone):
            return count
    # No character comes of them, or one that was typed as the sign for a broken one: go to where a cut changes nothing.
    everything = text(0, len(tokens))
    if not (alone or everything.strip()):  # spaces, of which a tokenizer leaves out the first
        return 1
    for count in range(1, most + 1):
        if text(0, count) + text(count, len(tokens)) == everything:
            return count
    return 1


def special_places(tokenizer: Any, tokens: Sequence[int], sizes: Sequence[int] | None = None) -> list[int]:
    """The places of special tokens among tokens, or among their pieces of these sizes.

    The token of unknown words is a word, unless it is also the one that begins or ends a text.
    """
    frame = {tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id}
    special = set(tokenizer.all_special_ids) - ({tokenizer.unk_token_id} - frame)
    sizes = [1] * len(tokens) if sizes is None else sizes
    firsts = [0, *accumulate(sizes)]
    return [place for place, size in enumerate(sizes) if size == 1 and tokens[firsts[place]] in special]


def goes_on(text: str, at: int) -> bool:
    """Whether a word goes on from the character before a place to the one at it."""
    both = text[at - 1 : at], text[at : at + 1]
    return all(_JOINS.match(each) and not _ALONE.match(each) for each in both)
