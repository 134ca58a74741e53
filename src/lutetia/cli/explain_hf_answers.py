"""`lutetia explain --hf --answer N`: what each token of an answer was made from."""

from __future__ import annotations

from typing import Any

from rich.text import Text

from lutetia.cli.hf_shared import HfRequest, left_out, rules_of, show_left_out
from lutetia.cli.pictures import token_strip
from lutetia.cli.show import Progress, console
from lutetia.relevance import answer_pictures, layer_pictures
from lutetia.report import PRESETS, RULES

SOURCES = 3  # tokens named beside each token of an answer


def explain_hf_answer(model: Any, tokenizer: Any, text: str, request: HfRequest, show: bool) -> dict[str, Any]:
    """Write an answer to a text, and explain each of its tokens."""
    from lutetia.integrations.transformers import explain_answer

    prompt: Any = [{"role": "user", "content": text}] if request.chat and text else text
    assert request.answer is not None
    with Progress("tokens", request.answer, show) as bar:
        found = explain_answer(
            model, tokenizer, prompt, request.answer, rules_of(request), lambda done, _: bar.advance(done - bar.done)
        )
    told = {
        "kind": "transformers",
        "model": model.config.model_type,
        "rule": request.rule,
        "tokens": found.tokens,
        "pieces": found.pieces,
        "answer": found.answer,
        "answer_pieces": found.answer_pieces,
        "answer_text": tokenizer.decode(found.answer, skip_special_tokens=True),
        "probabilities": found.probabilities.tolist(),
        "rivals": found.rivals,
        "rival_pieces": found.rival_pieces,
        "explained": found.explained.tolist(),
        "absorbed": found.absorbed.tolist(),
        "elsewhere": found.elsewhere.tolist(),
        "relevance": found.relevance.tolist(),
        "total": found.total.tolist(),
        "left_out": left_out(model, tokenizer, found, request),
    }
    every = [*found.pieces, *found.answer_pieces]
    if request.html is not None:
        whole = "Coloured by the sum over the answer: red spoke for it, blue against it."
        shown = answer_pictures.AnsweredText(
            found.pieces, found.answer_pieces, found.relevance, _notes(found, request.rule), whole
        )
        answer_pictures.answer_page(
            shown, title="What the answer was made from", caption=RULES[request.rule].about, path=request.html
        )
    if request.png is not None:
        rows = {
            f"{at + 1} {piece!r}": row for at, (piece, row) in enumerate(zip(found.answer_pieces, found.relevance, strict=True))
        }
        layer_pictures.layer_picture(every, rows, path=request.png, title="What the answer was made from")
    if show:
        _show(told, every, found)
    return told


def _notes(found: Any, rule: str) -> list[str]:
    """What a page says of each token of an answer."""
    notes = []
    for at, piece in enumerate(found.answer_pieces):
        score = f"{piece!r} had a probability of {found.probabilities[at]:.1%}; its score is {found.explained[at]:.3g} above that"
        rest = f"biases and other constants made {found.absorbed[at]:.3g} of this, positions {found.elsewhere[at]:.3g}"
        if rule not in PRESETS:
            rest = f"gradients miss {found.absorbed[at]:.3g} of this"
        notes.append(f"{score} of {found.rival_pieces[at]!r}. Of what is before it, red spoke for it, blue against it; {rest}.")
    return notes


def _show(told: dict[str, Any], every: list[str], found: Any) -> None:
    """The prompt, coloured by what it did for the whole answer; then the answer, and where each of its tokens came from."""
    screen = console()
    screen.print(token_strip(screen, told["pieces"], told["total"]), end="", soft_wrap=True)
    widest = max(len(repr(piece)) for piece in told["answer_pieces"])
    for at, piece in enumerate(told["answer_pieces"]):
        row = found.relevance[at]
        best = row.topk(min(SOURCES, len(told["tokens"]) + at)).indices.tolist()
        sources = ", ".join(f"{every[place]!r} {float(row[place]):+.3g}" for place in best if float(row[place]) > 0)
        line = f"{piece!r:<{widest}} {told['probabilities'][at]:>6.1%}  from {sources or 'nothing that spoke for it'}"
        screen.print(Text(line), soft_wrap=True)
    screen.print(Text(f"shown: what put each token above its strongest rival (rule {told['rule']})"), soft_wrap=True)
    show_left_out(told)
