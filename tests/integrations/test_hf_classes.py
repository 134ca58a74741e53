"""Why a classifier of texts or images of transformers says this class, and what a masked model puts in place of the mask."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lutetia.cli import main
from lutetia.errors import ArgumentError, DataError

pytest.importorskip("transformers")

import transformers

from integrations.hf_folders import NAMES, SIZES, TEXT, WORDS, save, tiny, word_tokenizer
from lutetia import relevance
from lutetia.integrations.transformers import (
    explain_image_class,
    explain_masked_token,
    explain_text_class,
    explain_text_classes,
    leave_out,
    load_model,
)

Capture = pytest.CaptureFixture[str]
RULES = relevance.presets.attnlrp()


def test_the_class_of_a_text_is_a_contrast_of_two_scores() -> None:
    model, tokenizer = tiny("classes"), word_tokenizer()
    found = explain_text_class(model, tokenizer, TEXT)
    inputs = dict(tokenizer(TEXT, return_tensors="pt"))
    first, second, _ = model(**inputs).logits[0].argsort(descending=True).tolist()
    assert (found.prediction, found.target, found.against) == (first, first, second)
    assert found.names == list(NAMES.values())
    plain = relevance.attribute(model, inputs, target=relevance.Contrast(first, second), rules=RULES)
    torch.testing.assert_close(found.relevance.double(), plain[inputs["input_ids"]][0], rtol=1e-3, atol=1e-4)
    added = float(found.relevance.sum()) + found.absorbed + found.elsewhere
    assert added == pytest.approx(found.explained, rel=1e-4)
    assert abs(found.elsewhere) > 1e-3  # embeddings of positions and kinds
    assert found.layers.shape == (2, len(found.tokens))
    assert float(found.layers[-1].sum()) == pytest.approx(found.explained, rel=1e-2)
    pair = explain_text_class(model, tokenizer, ("the cat", "a dog"), "Good", 0)
    assert (pair.target, pair.against) == (2, 0)
    assert pair.pieces == ["<s>", "the", "cat", "</s>", "a", "dog", "</s>"]


@pytest.mark.parametrize("labels", [{"problem_type": "multi_label_classification"}, {"num_labels": 1}])
def test_scores_that_do_not_exclude_each_other_are_explained_alone(labels: dict[str, Any]) -> None:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.BertConfig(vocab_size=len(WORDS), **sizes, **{"num_labels": 3, **labels})
    model, tokenizer = transformers.BertForSequenceClassification(config).eval(), word_tokenizer()
    found = explain_text_class(model, tokenizer, TEXT)
    assert found.against is None
    assert found.explained == pytest.approx(float(found.logits.max()))
    torch.testing.assert_close(found.probabilities, found.logits.double().sigmoid())
    if "num_labels" not in labels:
        assert not explain_text_class(model, tokenizer, TEXT, 0, 1).exclusive
    assert leave_out(model, tokenizer, found).log_probability == pytest.approx(float(found.probabilities.max().log()), rel=1e-4)


def test_a_predicted_number_has_no_probability() -> None:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2}
    for n in (1, 2):
        config = transformers.BertConfig(vocab_size=len(WORDS), **sizes, num_labels=n, problem_type="regression")
        model, tokenizer = transformers.BertForSequenceClassification(config).eval(), word_tokenizer()
        found = explain_text_class(model, tokenizer, TEXT)
        assert (found.is_number, found.probabilities, found.against) == (True, None, None)
        assert found.explained == pytest.approx(float(model(**tokenizer(TEXT, return_tensors="pt")).logits.max()), rel=1e-5)
        with pytest.raises(ArgumentError, match="a predicted number"):
            leave_out(model, tokenizer, found)
        many = explain_text_classes(model, tokenizer, [TEXT])
        assert many.texts[0].probability is None
        assert f"read as {found.explained:.4g} for LABEL_{found.target}" in many.to_html()


def test_classes_by_name() -> None:
    model, tokenizer = tiny("classes"), word_tokenizer()
    assert explain_text_class(model, tokenizer, TEXT, "GOOD", "0").against == 0
    for target, against, reason in (
        ("godo", None, "did you mean good"),
        (3, None, "target is 3"),
        (1, "so-so", "are both class 'so-so'"),
    ):
        with pytest.raises(ArgumentError, match=reason):
            explain_text_class(model, tokenizer, TEXT, target, against)
    for text, reason in ((" ", "the text is empty"), ("cat " * 40, "42 tokens long, expected at most 32")):
        with pytest.raises(ArgumentError, match=reason):
            explain_text_class(model, tokenizer, text)


def test_the_class_of_an_image() -> None:
    model = tiny("images")
    processor = transformers.ViTImageProcessor(size={"height": 16, "width": 16})
    image = np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8)
    found = explain_image_class(model, processor, image, "so-so", "bad")
    pixels = processor(images=image, return_tensors="pt")["pixel_values"].double()
    plain = relevance.attribute(model, {"pixel_values": pixels}, target=relevance.Contrast(1, 0), rules=RULES)
    torch.testing.assert_close(found.relevance.double(), plain[pixels][0].sum(0), rtol=1e-3, atol=1e-4)
    assert found.pixels is not None
    torch.testing.assert_close(found.pixels.double(), pixels[0])
    assert float(found.relevance.sum()) + found.absorbed + found.elsewhere == pytest.approx(found.explained, rel=1e-4, abs=1e-5)


def test_gradient_times_input_of_pixels_and_of_a_text() -> None:
    model = tiny("images")
    processor = transformers.ViTImageProcessor(size={"height": 16, "width": 16})
    image = np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8)
    found = explain_image_class(model, processor, image, 1, 0, "gradient")
    pixels = processor(images=image, return_tensors="pt")["pixel_values"].double().requires_grad_()
    logits = model(pixel_values=pixels).logits[0]
    (grad,) = torch.autograd.grad(logits[1] - logits[0], pixels)
    torch.testing.assert_close(found.relevance.double(), (pixels * grad).detach()[0].sum(0), rtol=1e-4, atol=1e-6)

    reader, tokenizer = tiny("classes"), word_tokenizer()
    text = explain_text_class(reader, tokenizer, TEXT, 1, 0, "gradient")
    inputs = dict(tokenizer(TEXT, return_tensors="pt"))
    embedded = reader.get_input_embeddings()(inputs.pop("input_ids")).detach().requires_grad_()
    logits = reader(inputs_embeds=embedded, **inputs).logits[0]
    (grad,) = torch.autograd.grad(logits[1] - logits[0], embedded)
    torch.testing.assert_close(text.relevance.double(), (embedded * grad).detach()[0].sum(-1), rtol=1e-4, atol=1e-6)
    assert float(text.relevance.sum()) + text.absorbed + text.elsewhere == pytest.approx(text.explained, abs=1e-5)
    assert text.layers.numel() == 0


def test_the_token_in_place_of_a_mask() -> None:
    model, tokenizer = tiny("masked"), word_tokenizer()
    text = "the cat <mask> on the mat"
    found = explain_masked_token(model, tokenizer, text, "sat", "ran")
    inputs = dict(tokenizer(text, return_tensors="pt"))
    logits = model(**inputs).logits[0, 3].detach()
    sat, ran = WORDS.index("sat"), WORDS.index("ran")
    assert found.explained == pytest.approx(float(logits[sat] - logits[ran]), rel=1e-5)
    assert found.prediction == int(logits.argmax())
    assert float(found.relevance.sum()) + found.absorbed + found.elsewhere == pytest.approx(found.explained, rel=1e-4)
    assert leave_out(model, tokenizer, found).log_probability == pytest.approx(float(logits.log_softmax(0)[sat]), rel=1e-5)
    for wrong, count in (("the cat", 0), ("<mask> cat <mask>", 2)):
        with pytest.raises(ArgumentError, match=f"has {count} masks, expected one: write <mask>"):
            explain_masked_token(model, tokenizer, wrong)
    tokenizer.mask_token = None
    with pytest.raises(ArgumentError, match="without a mask token"):
        explain_masked_token(model, tokenizer, text)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("models")
    for kind in ("classes", "masked", "images", "t5", "tags"):
        save(kind, place / kind)
    return place


def test_a_folder_says_what_its_model_is_for(folders: Path) -> None:
    expected = {"classes": "text class", "masked": "masked token", "images": "image class", "t5": "answer"}
    assert {kind: load_model(folders / kind).task for kind in expected} == expected
    with pytest.raises(DataError, match=r"holds a BertForTokenClassification, expected .*\.attribute explains any model"):
        load_model(folders / "tags")
    sizes = {"d_model": 8, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 2}
    config = transformers.WhisperConfig(**sizes, vocab_size=9, pad_token_id=0, bos_token_id=1, eos_token_id=2)
    transformers.WhisperForConditionalGeneration(config).save_pretrained(folders / "speech")
    with pytest.raises(DataError, match="holds a WhisperForConditionalGeneration, expected a language model"):
        load_model(folders / "speech")


def test_the_command_explains_each_kind(folders: Path, tmp_path: Path, capsys: Capture) -> None:
    from PIL import Image

    image = tmp_path / "image.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8)).save(image)
    for kind, given, words in (
        ("classes", "the <b> cat", "predicted "),
        ("masked", "the <mask> <b> cat", "in the mask comes "),
        ("images", str(image), "predicted "),
        ("t5", "the <b> cat", "shown: what put each token above"),
    ):
        page, picture = tmp_path / f"{kind}.html", tmp_path / f"{kind}.png"
        command = ["explain", "--hf", str(folders / kind), given]
        assert main([*command, "--html", str(page), "--png", str(picture), "--json"]) == 0
        told = json.loads(capsys.readouterr().out)
        assert told["kind"] == "transformers"
        assert "<b>" not in page.read_text().replace("<body>", "")
        assert picture.read_bytes().startswith(b"\x89PNG")
        assert main(command) == 0
        said = capsys.readouterr()
        assert words in said.out
        assert "Loading weights" not in said.err


def test_the_command_tells_a_predicted_number(folders: Path, tmp_path: Path, capsys: Capture) -> None:
    rating = shutil.copytree(folders / "classes", tmp_path / "rating")
    config = json.loads((rating / "config.json").read_text())
    (rating / "config.json").write_text(json.dumps(config | {"problem_type": "regression"}))
    assert main(["explain", "--hf", str(rating), TEXT, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["probability"], told["against"]) == (None, None)
    assert main(["explain", "--hf", str(rating), TEXT]) == 0
    assert f"predicted {told['explained']:.4g} for {told['prediction_name']}; shown: " in capsys.readouterr().out
    assert main(["explain", "--hf", str(rating), TEXT, "--check"]) == 2
    assert "this model predicts a number" in capsys.readouterr().err


def test_what_the_command_refuses_of_other_kinds(folders: Path, capsys: Capture, tmp_path: Path) -> None:
    for words, code, reason in (
        (
            [str(folders / "classes"), "x", "--answer", "3"],
            2,
            "--answer is for models that write text, and this one gives a text",
        ),
        ([str(folders / "classes"), "x", "--chat"], 2, "--chat is for models that write text"),
        ([str(folders / "images"), "x.png", "--check"], 2, "--check leaves out tokens"),
        ([str(folders / "images"), str(tmp_path / "x.png")], 1, "does not exist, expected an image"),
        ([str(folders / "tags"), "x"], 1, "holds a BertForTokenClassification"),
    ):
        assert main(["explain", "--hf", *words]) == code
        assert reason in capsys.readouterr().err


@pytest.mark.parametrize("shape", [(1, 1, 3), (3, 5, 3), (3, 1, 3)])
def test_an_image_a_few_pixels_high(shape: tuple[int, int, int]) -> None:
    """As an array [H, W, C], and as the same array, enlarged so that its first dimension says nothing."""
    pixels = torch.arange(shape[0] * shape[1] * 3, dtype=torch.uint8).reshape(shape).numpy()
    processor = transformers.ViTImageProcessor(size={"height": 16, "width": 16}, resample=0)  # the nearest pixel
    small, large = (explain_image_class(tiny("images"), processor, each) for each in (pixels, pixels.repeat(16, 0).repeat(16, 1)))
    torch.testing.assert_close(small.pixels, large.pixels)


OTHER_WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "it pads its tokens": ("LongformerForSequenceClassification", {"attention_window": 6, "max_position_embeddings": 40}),
    "it turns them around": ("XLNetForSequenceClassification", {"d_model": 16, "n_layer": 2, "n_head": 2, "d_inner": 24}),
    "its layers are not seen": ("SqueezeBertForSequenceClassification", {"embedding_size": 16}),
}


@pytest.mark.parametrize("name", OTHER_WAYS)
def test_models_that_read_in_their_own_way(name: str) -> None:
    kind, options = OTHER_WAYS[name]
    made = getattr(transformers, kind)
    torch.manual_seed(3)
    model = made(made.config_class(**{**SIZES, "vocab_size": len(WORDS), "pad_token_id": 0, **options})).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=0.3)
    found = explain_text_class(model, word_tokenizer(), "the cat sat on the mat")
    assert float(found.relevance.sum()) + found.absorbed + found.elsewhere == pytest.approx(found.explained, rel=1e-3, abs=1e-3)
    assert found.relevance.shape == (8,)
    assert found.relevance.abs().min() > 0
    many = explain_text_classes(model, word_tokenizer(), ["the cat sat on the mat", "a good dog"])
    torch.testing.assert_close(many.texts[0].relevance, found.relevance, rtol=1e-3, atol=1e-3)


def test_a_model_that_embeds_no_tokens_is_refused() -> None:
    sizes = {**SIZES, "num_hash_buckets": 16, "num_hash_functions": 2, "downsampling_rate": 2, "local_transformer_stride": 4}
    model = transformers.CanineForSequenceClassification(transformers.CanineConfig(**sizes, max_position_embeddings=32)).eval()
    with pytest.raises(ArgumentError, match=r"^model is CanineFor.*, expected one that embeds its tokens; lutetia\.relevance"):
        explain_text_class(model, word_tokenizer(), "the cat sat")
