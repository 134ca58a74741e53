"""Random calls of what `lutetia.integrations.transformers` makes public to explain models; imported late: it takes seconds."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from wild import Made, Wild, small

KNOWN: dict[str, Any] = {}
TEXTS = ("the cat sat", "a", "<mask> ran", "", " ", "é😀你", "the " * 40)


def known() -> dict[str, Any]:
    """Tiny models of every kind, their tokenizers, and explanations by them, made once."""
    if not KNOWN:
        sys.path.insert(0, str(Path(__file__).parent.parent))
        import transformers

        from integrations.hf_folders import TEXT, byte_tokenizer, save, tiny, word_tokenizer
        from lutetia.integrations import transformers as ours

        KNOWN["ours"], KNOWN["words"], KNOWN["bytes"] = ours, word_tokenizer(), byte_tokenizer()
        for kind in ("llama", "gpt2", "t5", "masked", "classes", "images", "encoder"):
            KNOWN[kind] = tiny(kind).float()
        KNOWN["folder"] = save("gpt2", Path(tempfile.mkdtemp()))  # in the runner's scratch folder
        KNOWN["pixels"] = transformers.ViTImageProcessor(size={"height": 16, "width": 16})
        KNOWN["found"] = (
            ours.explain_answer(KNOWN["llama"], KNOWN["words"], TEXT, "a dog"),
            ours.explain_next_token(KNOWN["gpt2"], KNOWN["words"], TEXT),
            ours.explain_text_class(KNOWN["classes"], KNOWN["words"], TEXT),
            ours.explain_image_class(KNOWN["images"], KNOWN["pixels"], torch.rand(3, 16, 16)),
        )
    return KNOWN


def _reading(wild: Wild, *kinds: str) -> dict[str, Any]:
    """A model, mostly of a kind that is right, and a tokenizer."""
    kind = wild.one(*kinds * 30, "llama", "t5", "masked", "classes", "images")
    return {"model": known()[kind], "tokenizer": wild.one(*[known()["words"]] * 30, known()["bytes"], known()["pixels"])}


def _rules(wild: Wild) -> Any:
    from lutetia import relevance

    others = known()["ours"].IntegratedGradients(3), known()["ours"].ShapleyValues(2)
    return wild.one(None, "gradient", "integrated", "shapley", *others, relevance.presets.epsilon())


def _answer(wild: Wild) -> tuple[Callable[..., object], dict[str, Any]]:
    def use(answer: Any, **given: Any) -> None:
        if small(answer):
            known()["ours"].explain_answer(answer=answer, **given)

    prompt = wild.one(*TEXTS, *[TEXTS[0]] * 15, [{"role": "user", "content": "the cat"}])
    answer = wild.one(2, 1, "a dog", "é")
    return use, {
        **_reading(wild, "llama", "gpt2", "t5"),
        "prompt": prompt,
        "answer": answer,
        "rules": _rules(wild),
        "advance": None,
    }


def _token(name: str, *kinds: str) -> Made:
    def made(wild: Wild) -> tuple[Callable[..., object], dict[str, Any]]:
        text = "the <mask> sat" if name == "explain_masked_token" else TEXTS[0]
        return lambda **given: getattr(known()["ours"], name)(**given), {
            **_reading(wild, *kinds),
            "text" if name == "explain_masked_token" else "prompt": wild.one(*TEXTS, *[text] * 15),
            "target": wild.one(None, None, 3, "cat"),
            "against": wild.one(None, 5, "dog"),
            "rules": _rules(wild),
        }

    return made


def _text_class(wild: Wild) -> tuple[Callable[..., object], dict[str, Any]]:
    return lambda **given: known()["ours"].explain_text_class(**given), {
        **_reading(wild, "classes"),
        "text": wild.one(*TEXTS, *[TEXTS[0]] * 10, ("the cat", "a dog")),
        "target": wild.one(None, None, 0, 2, "good", "2", "Bad"),
        "against": wild.one(None, 1, "so-so"),
        "rules": _rules(wild),
    }


def _text_classes(wild: Wild) -> tuple[Callable[..., object], dict[str, Any]]:
    def explain(**given: Any) -> object:
        found = known()["ours"].explain_text_classes(**given)
        return found.summary(), found.table(), found.to_html()

    return explain, {
        **_reading(wild, "classes"),
        "texts": wild.one([TEXTS[0]], [TEXTS[0], "good", ""], [*TEXTS], (TEXTS[0],), TEXTS[0], [TEXTS[0], None], []),
        "target": wild.one(None, None, 0, 2, "good", "2", "Bad"),
        "against": wild.one(None, 1, "so-so"),
        "rules": _rules(wild),
    }


def _similarity(wild: Wild) -> tuple[Callable[..., object], dict[str, Any]]:
    def explain(**given: Any) -> object:
        found = known()["ours"].explain_similarity(**given)
        return found.to_html(), found.pairs is not None and found.strongest()

    return explain, {
        **_reading(wild, "encoder"),
        "texts": wild.one(
            *[(TEXTS[0], "a dog")] * 10, ["a", "a"], (wild.one(*TEXTS), wild.one(*TEXTS)), TEXTS[0], [], ("a", None)
        ),
        "pooling": wild.one(None, None, "mean", "first", "last", "max"),
        "pairs": wild.one(False, False, True),
        "rules": _rules(wild),
        "advance": None,
    }


def _image_class(wild: Wild) -> tuple[Callable[..., object], dict[str, Any]]:
    image = wild.one(torch.rand(3, 16, 16), torch.rand(20, 9, 3), torch.randint(0, 255, (16, 16, 3)).numpy().astype("uint8"))
    return lambda **given: known()["ours"].explain_image_class(**given), {
        "model": wild.one(*[known()["images"]] * 30, known()["classes"]),
        "processor": wild.one(*[known()["pixels"]] * 30, known()["words"]),
        "image": image,
        "target": wild.one(None, 0, "good"),
        "against": wild.one(None, 1, "so-so"),
        "rules": _rules(wild),
    }


def _leave_out(wild: Wild) -> tuple[Callable[..., object], dict[str, Any]]:
    def use(draws: Any, **given: Any) -> None:
        if small(draws):
            known()["ours"].leave_out(draws=draws, **given)

    place = wild.draw.randrange(4)
    model = known()[("llama", "gpt2", "classes", "images")[place]]
    given = {"model": model, "tokenizer": known()["words"], "found": known()["found"][place]}
    return use, {**given, "fraction": wild.one(0.2, 0.5, 0.0, 1.0), "draws": 2, "seed": 0}


def _load(name: str) -> Made:
    def made(wild: Wild) -> tuple[Callable[..., object], dict[str, Any]]:
        return lambda folder: getattr(known()["ours"], name)(folder), {
            "folder": wild.one("none", ".", "", "a" * 300, "/dev/null", *[known()["folder"]] * 20)
        }

    return made


def _pieces(wild: Wild) -> tuple[Callable[..., object], dict[str, Any]]:
    def use(relevance: Any, **given: Any) -> None:
        known()["ours"].whole_pieces(**given).summed(relevance)

    tokenizer = wild.one(known()["words"], known()["bytes"])
    tokens = [wild.draw.randrange(len(tokenizer)) for _ in range(wild.one(0, 1, 5, 30))]
    return use, {"tokenizer": tokenizer, "tokens": tokens, "relevance": torch.rand(len(tokens))}


def _integrated(wild: Wild) -> tuple[Callable[..., object], dict[str, Any]]:
    return lambda **given: known()["ours"].IntegratedGradients(**given), {
        "steps": wild.one(1, 50),
        "at_once": wild.one(1, 8),
        "baseline": wild.one("mean", "zero", 3),
    }


def _shapley(wild: Wild) -> tuple[Callable[..., object], dict[str, Any]]:
    return lambda **given: known()["ours"].ShapleyValues(**given), {
        "samples": wild.one(1, 25),
        "baseline": wild.one(None, "none", 3),
        "seed": 0,
        "at_once": wild.one(1, 8),
    }


def _settled(made: Made) -> Made:
    """Two calls in three keep the model and what reads for it, so that enough of them are answered."""

    def draw(wild: Wild) -> tuple[Callable[..., object], dict[str, Any]]:
        function, given = made(wild)
        kept = ("model", "tokenizer", "processor") if wild.one(True, True, False) else ()
        return partial(function, **{key: given.pop(key) for key in kept if key in given}), given

    return draw


CALLS: dict[str, Made] = {
    name: _settled(made)
    for name, made in {
        "IntegratedGradients": _integrated,
        "ShapleyValues": _shapley,
        "explain_answer": _answer,
        "explain_image_class": _image_class,
        "explain_masked_token": _token("explain_masked_token", "masked"),
        "explain_next_token": _token("explain_next_token", "llama", "gpt2"),
        "explain_similarity": _similarity,
        "explain_text_class": _text_class,
        "explain_text_classes": _text_classes,
        "leave_out": _leave_out,
        "load_decoder": _load("load_decoder"),
        "load_model": _load("load_model"),
        "whole_pieces": _pieces,
    }.items()
}
