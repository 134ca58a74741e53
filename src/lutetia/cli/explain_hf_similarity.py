"""`lutetia explain --hf --with TEXT`: which tokens make an encoder find two texts alike."""

from __future__ import annotations

from typing import Any

from rich.text import Text
from torch import Tensor

from lutetia.cli import hf_shared
from lutetia.cli.pictures import bars, token_strip
from lutetia.cli.show import Progress, console
from lutetia.relevance import pictures

PAIRS = 10  # shown in the terminal


def explain_hf_similarity(
    model: Any, tokenizer: Any, texts: tuple[str, str], request: hf_shared.HfRequest, show: bool
) -> dict[str, Any]:
    """The cosine of the embeddings of two texts."""
    from lutetia.integrations.transformers import explain_similarity

    with Progress("numbers of the embeddings", 0, show) as bar:

        def advance(done: int, count: int) -> None:
            bar.total = count
            bar.advance(done - bar.done)

        found = explain_similarity(
            model,
            tokenizer,
            texts,
            pairs=request.pairs,
            rules=hf_shared.rules_of(request, tokenizer),
            advance=advance,
        )
    shown = [hf_shared.shown_tokens(tokenizer, tokens) for tokens in found.tokens]
    values = [each.pieces.summed(part) for each, part in zip(shown, found.relevance, strict=True)]
    told = {
        "kind": "transformers",
        "model": model.config.model_type,
        **hf_shared.rule_told(request),
        "pooling": found.pooling,
        "similarity": found.similarity,
        "absorbed": found.absorbed,
        "elsewhere": found.elsewhere,
        "gap": found.gap,
        "texts": [
            {
                "tokens": found.tokens[at],
                "pieces": found.pieces[at],
                "relevance": found.relevance[at].tolist(),
                "layers": found.layers[at].tolist(),
                "shown": each.told(values[at]),
            }
            for at, each in enumerate(shown)
        ],
        "pairs": None if found.pairs is None else found.pairs.tolist(),
        "rest_of_pairs": None if found.pairs is None else found.rest,
    }
    pairs = None if found.pairs is None else shown[0].pieces.summed(shown[1].pieces.summed(found.pairs).T).T
    if request.html is not None:
        _write_page(request, found.said(), shown, values, pairs)
    if show:
        _show(told, shown, values, pairs)
    return told


def _write_page(request: hf_shared.HfRequest, said: str, shown: list[hf_shared.Shown], values: list[Tensor], pairs: Any) -> None:
    """Both texts, and the pairs of their tokens."""
    from lutetia.integrations.transformers import pairs_table

    limit = _limit(shown, values)
    captions = (f"{said}. {hf_shared.about(request)} {shown[0].legend()}", "")
    parts = [
        pictures.token_strip(each.texts, part, caption, limit)
        for each, part, caption in zip(shown, values, captions, strict=True)
    ]
    if pairs is not None:
        parts.append(pairs_table([each.texts for each in shown], pairs, _largest(shown, pairs)))
    pictures.page(*parts, title="Why these two texts are alike", path=request.html)


def _limit(shown: list[hf_shared.Shown], values: list[Tensor]) -> float | None:
    """The magnitude of full colour in both texts: the largest outside of special tokens."""
    return max((each.limit(part) or 0.0 for each, part in zip(shown, values, strict=True)), default=0.0) or None


def _largest(shown: list[hf_shared.Shown], pairs: Tensor) -> float | None:
    """The same for pairs of tokens."""
    plain = [place for place in range(len(shown[0].texts)) if place not in set(shown[0].special)]
    return shown[1].limit(pairs[plain]) if plain else None


def _show(told: dict[str, Any], shown: list[hf_shared.Shown], values: list[Tensor], pairs: Tensor | None) -> None:
    """Both texts, the strongest pairs of their tokens, and the numbers."""
    from lutetia.integrations.transformers import strongest_pairs

    screen, limit = console(), _limit(shown, values)
    for each, part in zip(shown, values, strict=True):
        screen.print(token_strip(screen, each.texts, part.tolist(), each.special, limit), end="", soft_wrap=True)
    hf_shared.show_legend(shown[0])
    if pairs is not None:
        best = strongest_pairs(pairs, (shown[0].special, shown[1].special), PAIRS)
        names = [f"{shown[0].texts[one]!r} and {shown[1].texts[two]!r}" for one, two, _ in best]
        screen.print(Text("tokens that go together:" if best else "no two tokens go together"), soft_wrap=True)
        screen.print(bars(screen, names, [value for _, _, value in best]), end="", soft_wrap=True)
        screen.print(Text(f"all pairs make {told['similarity'] - told['rest_of_pairs']:.3g} of the similarity"), soft_wrap=True)
    apart = hf_shared.apart({**told, "explained": told["similarity"]})
    halves = f"similarity {told['similarity']:.3f}, half of it by each text"
    screen.print(Text(f"{halves}; {apart} (rule {told['rule']}, pooling {told['pooling']})"), soft_wrap=True)
