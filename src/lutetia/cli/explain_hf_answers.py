"""`lutetia explain --hf --answer N`: what each token of an answer was made from."""

from __future__ import annotations

from itertools import accumulate
from typing import Any, NamedTuple

from rich.cells import cell_len, set_cell_size
from rich.text import Text
from torch import Tensor

from lutetia.cli.hf_shared import (
    HfRequest,
    Shown,
    about,
    left_out,
    prompt_of,
    quoted,
    rules_of,
    show_left_out,
    show_legend,
    shown_tokens,
    told_of,
)
from lutetia.cli.pictures import token_strip
from lutetia.cli.show import Progress, console
from lutetia.relevance import answer_pictures, layer_pictures
from lutetia.report import PRESETS

SOURCES = 3  # tokens named beside each token of an answer


class ShownAnswer(NamedTuple):
    """An answer as it is shown: P pieces of the prompt, Q of the answer, each a token or the tokens of one character."""

    prompt: Shown
    answer: Shown
    relevance: Tensor  # [Q, P + Q]: 0 from the piece itself on
    own: list[float]  # Q: what the first tokens of a split character did for its others
    firsts: list[int]  # Q: the first token of each piece of the answer
    probabilities: list[float]  # Q

    @property
    def every(self) -> Shown:
        """The prompt and the answer."""
        pieces = type(self.prompt.pieces)(
            *(this + that for this, that in zip(self.prompt.pieces, self.answer.pieces, strict=True))
        )
        return Shown(pieces, [*self.prompt.special, *(len(self.prompt.texts) + place for place in self.answer.special)])


def explain_hf_answer(model: Any, tokenizer: Any, text: str, request: HfRequest, show: bool) -> dict[str, Any]:
    """Write an answer to a text, and explain each of its tokens."""
    from lutetia.integrations.transformers import explain_answer

    prompt = prompt_of(text, request.chat, tokenizer)
    assert request.answer is not None
    with Progress("tokens", request.answer, show) as bar:
        found = explain_answer(
            model, tokenizer, prompt, request.answer, rules_of(request, tokenizer), lambda done, _: bar.advance(done - bar.done)
        )
    told = {
        **told_of(model, request, found),
        "answer": found.answer,
        "answer_pieces": found.answer_pieces,
        "answer_text": tokenizer.decode(found.answer, skip_special_tokens=True),
        "probabilities": found.probabilities.tolist(),
        "rivals": found.rivals,
        "rival_pieces": found.rival_pieces,
        "explained": found.explained.tolist(),
        "absorbed": found.absorbed.tolist(),
        "elsewhere": found.elsewhere.tolist(),
        "gap": found.gap.tolist(),
        "relevance": found.relevance.tolist(),
        "total": found.total.tolist(),
        "left_out": left_out(model, tokenizer, found, request),
    }
    shown = _shown(tokenizer, found)
    total = shown.prompt.pieces.summed(found.total)
    told["shown"] = shown.prompt.told(total)
    told["answer_shown"] = [
        {"text": text, "tokens": size, "probability": chance, "relevance": row, "own": own}
        for text, size, chance, row, own in zip(
            *shown.answer.pieces, shown.probabilities, shown.relevance.tolist(), shown.own, strict=True
        )
    ]
    if request.html is not None:
        whole = "Coloured by the sum over the answer: red spoke for it, blue against it."
        caption = f"{about(request)} {shown.every.legend()}".strip()
        page = answer_pictures.AnsweredText(
            shown.prompt.texts,
            shown.answer.texts,
            shown.relevance,
            _notes(shown, found, request.rule),
            whole,
            shown.every.special,
        )
        answer_pictures.answer_page(page, title="What the answer was made from", caption=caption, path=request.html)
    if request.png is not None:
        rows = {f"{at + 1} {text!r}": row for at, (text, row) in enumerate(zip(shown.answer.texts, shown.relevance, strict=True))}
        limit = shown.every.limit(shown.relevance)
        layer_pictures.layer_picture(
            shown.every.texts, rows, path=request.png, title="What the answer was made from", limit=limit
        )
    if show:
        _show(told, shown, total)
    return told


def _shown(tokenizer: Any, found: Any) -> ShownAnswer:
    """Relevance and probabilities of tokens as those of pieces: relevance is added up, probabilities are multiplied."""
    prompt, answer = shown_tokens(tokenizer, found.tokens), shown_tokens(tokenizer, found.answer)
    firsts = [0, *accumulate(answer.pieces.sizes)][:-1]
    chances = [
        float(found.probabilities[at : at + size].double().prod()) for at, size in zip(firsts, answer.pieces.sizes, strict=True)
    ]
    shown = ShownAnswer(prompt, answer, found.relevance, [], firsts, chances)
    whole = answer.pieces.summed(shown.every.pieces.summed(found.relevance).T).T
    count = len(prompt.texts)
    return shown._replace(relevance=whole.tril(count - 1), own=whole.diagonal(count).tolist())


def _notes(shown: ShownAnswer, found: Any, rule: str) -> list[str]:
    """What a page says of each piece of an answer."""
    notes = []
    for text, size, first, chance, own in zip(*shown.answer.pieces, shown.firsts, shown.probabilities, shown.own, strict=True):
        tokens = slice(first, first + size)
        above, constants, elsewhere = (float(part[tokens].sum()) for part in (found.explained, found.absorbed, found.elsewhere))
        had = f"{quoted(text, found.answer[first])} had a probability of {chance:.1%}"
        score = f"its score is {above:.3g} above that of {quoted(found.rival_pieces[first], found.rivals[first])}"
        if size > 1:
            score = f"the scores of its {size} tokens are {above:.3g} above those of their rivals, added up"
        rest = f"biases and other constants made {constants:.3g} of this, positions {elsewhere:.3g}"
        if rule == "integrated":
            rest = f"{constants:.3g} of this is there at the baseline, and the steps miss {float(found.gap[tokens].sum()):.3g}"
        elif rule not in PRESETS:
            rest = f"gradients miss {constants:.3g} of this"
        if size > 1:
            rest += f", its own tokens {own:.3g}" if rule in PRESETS else f", and its own tokens made {own:.3g}"
        notes.append(f"{had}; {score}. Of what is before it, red spoke for it, blue against it; {rest}.")
    return notes


def _show(told: dict[str, Any], shown: ShownAnswer, total: Tensor) -> None:
    """The prompt, coloured by what it did for the whole answer; then the answer, and where each of its pieces came from."""
    screen, prompt = console(), shown.prompt
    screen.print(token_strip(screen, prompt.texts, total.tolist(), prompt.special, prompt.limit(total)), end="", soft_wrap=True)
    show_legend(prompt)
    names = [quoted(text, told["answer"][first]) for text, first in zip(shown.answer.texts, shown.firsts, strict=True)]
    widest = max(map(cell_len, names))
    every = [*map(repr, prompt.texts), *names]
    for at, (name, chance) in enumerate(zip(names, shown.probabilities, strict=True)):
        row = shown.relevance[at, : len(prompt.texts) + at]
        best = row.topk(min(SOURCES, len(row))).indices.tolist()
        sources = ", ".join(f"{every[place]} {float(row[place]):+.3g}" for place in best if float(row[place]) > 0)
        line = f"{set_cell_size(name, widest)} {chance:>6.1%}  from {sources or 'nothing that spoke for it'}"
        screen.print(Text(line), soft_wrap=True)
    missed = f"; the {told['steps']} steps miss up to {max(map(abs, told['gap'])):.3g}" if told["rule"] == "integrated" else ""
    screen.print(Text(f"shown: what put each token above its strongest rival (rule {told['rule']}){missed}"), soft_wrap=True)
    show_left_out(told)
