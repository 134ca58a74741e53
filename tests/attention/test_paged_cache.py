"""The paged cache against plain lists of tokens, whatever is done to it in whatever order."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("hypothesis")

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from lutetia.attention import PagedKVCache, decode_attention
from lutetia.errors import ArgumentError

PAGES, PAGE_LEN = 7, 3


class Paged(RuleBasedStateMachine):
    """Every token is a number; each sequence is also kept as a list."""

    sequences = Bundle("sequences")

    def __init__(self) -> None:
        super().__init__()
        self.cache = PagedKVCache(PAGES, PAGE_LEN, 1, 1)
        self.tokens: dict[int, list[float]] = {}
        self.counter = 0.0

    @rule(target=sequences, length=st.integers(0, 2 * PAGE_LEN))
    def allocate(self, length: int) -> int:
        free = self.cache.n_free
        try:
            made = self.cache.allocate(length)
        except ArgumentError:
            assert -(-length // PAGE_LEN) > free
            assert self.cache.n_free == free
            return -1
        self.tokens[made] = []
        return made

    @rule(target=sequences, parent=sequences)
    def fork(self, parent: int) -> int:
        if parent not in self.tokens:
            return -1
        made = self.cache.fork(parent)
        self.tokens[made] = list(self.tokens[parent])
        return made

    @rule(sequence=consumes(sequences))
    def free(self, sequence: int) -> None:
        if sequence not in self.tokens:
            with pytest.raises(ArgumentError, match="expected one of the"):
                self.cache.free(sequence)
            return
        self.cache.free(sequence)
        del self.tokens[sequence]

    @rule(
        some=st.lists(sequences, min_size=1, max_size=3, unique=True), counts=st.lists(st.integers(0, 4), min_size=3, max_size=3)
    )
    def append(self, some: list[int], counts: list[int]) -> None:
        some = [each for each in some if each in self.tokens]
        if not some:
            return
        lengths = torch.tensor(counts[: len(some)])
        k = self.counter + torch.arange(4.0 * len(some)).reshape(len(some), 1, 4, 1)
        before = self.state()
        try:
            self.cache.append(some, k, -k, lengths)
        except ArgumentError:
            assert self.state() == before, "nothing is changed"
            assert self.pages_for(some, counts) > self.cache.n_free
            return
        assert self.cache.n_free >= 0
        self.counter += 4 * len(some)
        for row, each in enumerate(some):
            self.tokens[each] += k[row, 0, : counts[row], 0].tolist()

    def pages_for(self, some: list[int], counts: list[int]) -> int:
        """How many pages an append takes, counted anew: fresh ones, and copies of half-filled ones that others hold too."""
        wanted, copied = 0, []
        for each, count in zip(some, counts, strict=False):
            (pages,) = self.cache.page_table([each]).tolist()
            length = len(self.tokens[each])
            wanted += max(0, -(-(length + count) // PAGE_LEN) - len(pages))
            if count and length % PAGE_LEN:
                page = pages[length // PAGE_LEN]
                users = sum(page in self.cache.page_table([other]).tolist()[0] for other in self.tokens)
                if users - copied.count(page) > 1:
                    copied.append(page)
        return wanted + len(copied)

    def state(self) -> tuple[object, ...]:
        tables = [self.cache.page_table([each]).tolist() for each in self.tokens]
        return self.cache.n_free, tables, self.cache.lengths(list(self.tokens)).tolist(), self.cache.k.tolist()

    @invariant()
    def every_token_is_where_it_belongs(self) -> None:
        held: dict[int, list[tuple[int, int]]] = {}
        for each, tokens in self.tokens.items():
            (pages,) = self.cache.page_table([each]).tolist()
            assert self.cache.lengths([each]).tolist() == [len(tokens)]
            for position, token in enumerate(tokens):
                page, slot = pages[position // PAGE_LEN], position % PAGE_LEN
                assert self.cache.k[page, slot, 0, 0] == token
                assert self.cache.v[page, slot, 0, 0] == -token
            for place, page in enumerate(pages):
                held.setdefault(page, []).append((each, place))
        assert len(held) + self.cache.n_free == PAGES, "no page is lost, none is both free and held"
        for users in held.values():  # who shares a page has the same tokens up to its end
            if len(users) > 1:
                place = users[0][1]
                begin = {tuple(self.tokens[each][: PAGE_LEN * (place + 1)]) for each, _ in users}
                assert {at for _, at in users} == {place}
                assert len({tokens[: min(map(len, begin))] for tokens in begin}) == 1


Paged.TestCase.settings = settings(max_examples=60, stateful_step_count=25, deadline=None, derandomize=True)
TestPaged = Paged.TestCase


def test_a_fork_writes_into_pages_of_its_own() -> None:
    cache = PagedKVCache(4, 2, 1, 1)
    first = cache.allocate()
    k = torch.arange(3.0).reshape(1, 1, 3, 1)
    cache.append([first], k, k)
    second = cache.fork(first)
    assert cache.n_free == 2
    cache.append([second], k[:, :, :1] + 10, k[:, :, :1] + 10)
    assert cache.n_free == 1, "the half-filled page was copied, the full one is shared"
    one, other = cache.page_table([first, second]).tolist()
    assert one[0] == other[0]
    assert one[1] != other[1]
    assert cache.k[one[1], :, 0, 0].tolist()[0] == cache.k[other[1], :, 0, 0].tolist()[0] == 2.0
    assert cache.k[other[1], 1, 0, 0] == 10.0
    cache.free(first)
    cache.append([second], k[:, :, :1], k[:, :, :1])
    assert cache.n_free == 1
    cache.free(second)
    assert cache.n_free == 4


def test_two_forks_in_one_append_take_one_copy() -> None:
    cache = PagedKVCache(2, 4, 1, 1)
    first = cache.allocate()
    token = torch.ones(1, 1, 1, 1)
    cache.append([first], token, token)
    second = cache.fork(first)
    cache.append([first, second], torch.full((2, 1, 1, 1), 2.0), torch.full((2, 1, 1, 1), 2.0))
    assert cache.n_free == 0
    assert cache.page_table([first])[0, 0] != cache.page_table([second])[0, 0]


def test_it_is_what_decode_attention_reads() -> None:
    cache = PagedKVCache(12, 4, 2, 8)
    k, v = torch.randn(2, 2, 9, 8), torch.randn(2, 2, 9, 8)
    some = [cache.allocate(9), cache.allocate()]
    cache.append(some, k, v, torch.tensor([9, 5]))
    q = torch.randn(2, 4, 1, 8)
    lengths = cache.lengths(some)
    found = decode_attention(q, cache.k, cache.v, seq_lens=lengths, page_table=cache.page_table(some))
    torch.testing.assert_close(found, decode_attention(q, k, v, seq_lens=lengths))
    assert repr(cache) == "PagedKVCache(2 sequences, 5 of 12 pages of 4 tokens in use)"


def test_forks_know_what_they_share() -> None:
    """Whole pages, or what there is of a page that nobody has written to since; and attention with it is that without."""
    cache = PagedKVCache(20, 4, 2, 8)
    prompt = cache.allocate()
    cache.append([prompt], torch.randn(1, 2, 10, 8), torch.randn(1, 2, 10, 8))
    beams = [prompt, cache.fork(prompt), cache.fork(prompt)]
    assert cache.prefix(beams) == 10
    cache.append(beams, torch.randn(3, 2, 3, 8), torch.randn(3, 2, 3, 8), torch.tensor([1, 3, 2]))
    assert cache.prefix(beams) == 8
    assert cache.prefix(beams[:1]) == 11
    assert cache.prefix([*beams, cache.allocate(12)]) == cache.prefix([]) == 0
    q = torch.randn(3, 4, 1, 8)
    given = {"seq_lens": cache.lengths(beams), "page_table": cache.page_table(beams)}
    found = decode_attention(q, cache.k, cache.v, **given, prefix=cache.prefix(beams))
    torch.testing.assert_close(found, decode_attention(q, cache.k, cache.v, **given))


def test_a_beam_alone_shares_nothing_with_its_new_tokens() -> None:
    cache = PagedKVCache(20, 4, 2, 8)
    beam = [cache.allocate()]
    cache.append(beam, torch.randn(1, 2, 11, 8), torch.randn(1, 2, 11, 8))
    assert [cache.prefix(beam, new=new) for new in (0, 3, 11, 12)] == [11, 8, 0, 0]
    q = torch.randn(1, 4, 3, 8)
    tree = torch.tensor([[1, 0, 0], [1, 1, 0], [1, 0, 1]]).bool()
    given = {"seq_lens": cache.lengths(beam), "page_table": cache.page_table(beam), "tree": tree}
    found = decode_attention(q, cache.k, cache.v, **given, prefix=cache.prefix(beam, new=3))
    torch.testing.assert_close(found, decode_attention(q, cache.k, cache.v, **given))
    with pytest.raises(ArgumentError, match="new is -1"):
        cache.prefix(beam, new=-1)


def test_what_does_not_fit_is_refused() -> None:
    cache = PagedKVCache(2, 2, 1, 1)
    one = cache.allocate()
    token = torch.ones(1, 1, 1, 1)
    for wrong, message in (
        (lambda: cache.append([one, one], token.expand(2, 1, 1, 1), token.expand(2, 1, 1, 1)), "expected each sequence once"),
        (lambda: cache.append([one], token.expand(2, 1, 1, 1), token), "k_new is .* expected shape"),
        (lambda: cache.append([one], token, token, torch.tensor([2])), "lengths has 2 in row 0, expected 0 to 1"),
        (lambda: cache.append([9], token, token), "sequence is 9, expected one of the 1 sequences"),
        (lambda: cache.fork(9), "sequence is 9"),
        (lambda: cache.allocate(5), "the cache is full: a sequence of 5 tokens would take 3 pages and 2 of 2 are free"),
        (lambda: PagedKVCache(0, 1, 1, 1), "n_pages is 0"),
    ):
        with pytest.raises(ArgumentError, match=message):
            wrong()


def test_truncating() -> None:
    """Pages without a token are free again; one that is shared is copied before it is written."""
    cache = PagedKVCache(8, 4, 1, 2, dtype=torch.float32)
    first = cache.allocate()
    cache.append([first], torch.ones(1, 1, 10, 2), torch.ones(1, 1, 10, 2))
    second = cache.fork(first)
    cache.truncate(first, 5)
    assert cache.lengths([first, second]).tolist() == [5, 10]
    assert cache.n_free == 5
    cache.append([first], torch.full((1, 1, 2, 2), 3.0), torch.zeros(1, 1, 2, 2))
    assert cache.n_free == 4
    kept = cache.k[cache.page_table([second])[0].long()].flatten(0, 1)[:10]
    assert torch.equal(kept, torch.ones(10, 1, 2))
    with pytest.raises(ArgumentError, match="length is 8, expected"):
        cache.truncate(first, 8)
