"""Int8 tables equal the layer whose weight is codes times scale, on every backend, and come back from a file bit for bit."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from lutetia import models
from lutetia.cli import main
from lutetia.errors import ArgumentError, DataError
from lutetia.lut import SynapseMeta, lut, use_backend
from lutetia.models import LUTClassifier, LUTLayer, LUTTransformer
from lutetia.nn import LUT, LUTAttention, LUTProjection2d, NgramTables, ProjectedLUT, int8_tables
from lutetia.nn.int8 import power_of_two, quantised
from lutetia.relevance import attribute
from lutetia.report.attribution import attribute_token

READS = ("hard", "blend", "confidence", "confidence2")
NOISE = SynapseMeta(initial_noise=0.3)
SIZES: dict[str, Any] = {
    "context": 16,
    "width": 16,
    "n_layers": 2,
    "n_heads": 2,
    "n_detectors": 3,
    "n_anchors": 2,
    "ff_anchors": 3,
}
SIZES |= {"ff_detectors": 4, "ff_heads": 2, "ff_head_width": 8, "seed": 0, "initial_noise": 0.3}
NGRAMS: dict[str, Any] = {"ngrams": (2, 3), "ngram_word": True, "ngram_rows": 64}
WINDOWS: dict[str, Any] = {"receptive_field": 3, "projection": 2, "grid": 3, "n_anchors": 3, "keep": 0.6}
MODELS: dict[str, Callable[[], Any]] = {
    "tables": lambda: LUTTransformer(**SIZES, unembedding="lut", norm="none"),
    "sparse": lambda: LUTTransformer(**SIZES, gradient="sparse"),
    "projected": lambda: LUTTransformer(**SIZES, attention="softmax", feed_forward="projected", read="confidence2"),
    "ngrams": lambda: LUTTransformer(
        **SIZES, attention="softmax", feed_forward="none", ngrams=(2, 3), ngram_word=True, ngram_rows=64
    ),
    "classifier": lambda: LUTClassifier(
        input_shape=(5,), layers=(LUTLayer(6, 4, 2),), readout="lut", readout_detectors=3, initial_noise=0.3
    ),
}


def trained(name: str) -> Any:
    """A model whose tables have numbers of many sizes, in eval mode."""
    torch.manual_seed(0)
    model = MODELS[name]().eval()
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, NgramTables):
                module.weight.copy_(torch.randn_like(module.weight) * torch.rand(len(module.weight), 1).pow(4))
    return model


def some_input(model: Any) -> Tensor:
    return torch.randint(256, (3, 11)) if hasattr(model, "embedding") else torch.randn(3, 5)


def layers(read: str) -> list[Any]:
    """Layers of full, shared and threshold connectivity."""
    return [
        LUT(11, 7, 13, 4, read=read, meta=NOISE, seed=1),
        LUT(11, 48, 9, 3, read=read, meta=NOISE, seed=2, anchors="mixed"),
        LUTProjection2d((6, 5), (4, 4), **WINDOWS, read=read, meta=NOISE, seed=3),
    ]


CASES = [("reference", read) for read in READS] + [(backend, read) for backend in ("cpu", "triton") for read in READS[::3]]


@pytest.mark.parametrize(("backend", "read"), CASES)
def test_an_int8_layer_is_the_layer_with_its_weight(backend: str, read: str) -> None:
    for layer in layers(read)[: 2 if backend == "triton" else 3]:
        x = torch.randn(5, 30).unflatten(1, (6, 5)) if isinstance(layer, LUTProjection2d) else torch.randn(2, 5, 11)
        whole = int8_tables(copy.deepcopy(layer)).eval()
        tables = getattr(whole, "lut", whole)
        twin = copy.deepcopy(layer).eval()
        with torch.no_grad(), use_backend(backend):
            getattr(twin, "lut", twin).weight.copy_(tables.weight)
            assert tables.codes.dtype == torch.int8
            torch.testing.assert_close(whole(x), twin(x), rtol=1e-5, atol=1e-5)


def test_the_output_has_the_dtype_of_the_input() -> None:
    whole = int8_tables(LUT(11, 7, 13, 4, meta=NOISE, seed=1)).eval()
    x = torch.randn(3, 11)
    with torch.no_grad(), use_backend("reference"):
        for dtype in (torch.float64, torch.bfloat16, torch.float32):
            assert whole(x.to(dtype)).dtype == dtype
        assert whole(x.half()).isfinite().all()  # sums of codes would not be


def test_codes_are_the_nearest_and_the_scale_a_power_of_two() -> None:
    weight = torch.randn(1000) * 3
    codes, scale = quantised(weight)
    assert torch.frexp(scale).mantissa == 0.5
    error = (codes * scale - weight).square().mean()
    for other in (scale / 2, scale * 2):
        assert error <= ((weight / other).round().clamp(-127, 127) * other - weight).square().mean()
    kept = weight.abs() <= 127 * scale
    assert ((codes * scale - weight).abs()[kept] <= scale / 2).all()
    assert quantised(torch.zeros(4))[0].tolist() == [0] * 4
    assert quantised(torch.zeros(0))[0].numel() == 0
    exponents = torch.arange(-126, 128)
    assert power_of_two(exponents).tolist() == [2.0**e for e in exponents.tolist()]


def test_each_row_of_ngram_tables_has_its_own_scale() -> None:
    layer = NgramTables((1, 2), n_rows=32, width=5).eval()
    with torch.no_grad():
        layer.weight.copy_(torch.randn_like(layer.weight) * torch.logspace(-6, 3, 64)[:, None])
        layer.weight[3] = 0
    whole: Any = int8_tables(copy.deepcopy(layer))
    largest = layer.weight.abs().amax(1)
    error = (whole.weight - layer.weight).abs().amax(1)
    assert (error <= largest / 127 + 1e-12).all()
    tokens = torch.randint(256, (2, 9))
    for backend in ("reference", "cpu", "triton"):
        with use_backend(backend), torch.no_grad():
            assert torch.equal(whole(tokens), whole.weight[whole.addresses(tokens)].flatten(-2))


@pytest.mark.parametrize("name", MODELS)
def test_models_come_back_with_the_same_answers_and_a_quarter_of_the_tables(name: str, tmp_path: Path) -> None:
    model = trained(name)
    x, before = some_input(model), copy.deepcopy(model)
    int8_tables(model)
    with torch.no_grad():
        wanted = model(x)
    model.save_pretrained(tmp_path / "int8")
    again: Any = models.load(tmp_path / "int8")
    with torch.no_grad():
        assert torch.equal(again(x), wanted)
    twin = copy.deepcopy(before)
    tables = {each for each, module in model.named_modules() if hasattr(module, "codes")}
    assert tables == {each for each, module in before.named_modules() if isinstance(module, LUT | NgramTables)}
    with torch.no_grad():
        for each in tables:
            twin.get_submodule(each).weight.copy_(model.get_submodule(each).weight)
        torch.testing.assert_close(wanted, twin(x), rtol=1e-4, atol=1e-4)
    assert again.n_parameters - before.n_parameters <= len(tables)  # a scale each
    if hasattr(again, "generate"):
        assert again.generate(b"the ", 6, temperature=0) == twin.generate(b"the ", 6, temperature=0)


def test_int8_tables_are_explained_like_their_floats() -> None:
    layer = LUT(11, 7, 13, 4, read="confidence2", meta=NOISE, seed=1).eval()
    twin, whole = copy.deepcopy(layer), int8_tables(layer)
    twin.weight.data.copy_(whole.weight)
    x = torch.randn(3, 11)
    torch.testing.assert_close(*(attribute(module, x, target=2)[x] for module in (whole, twin)))


@pytest.mark.parametrize("rule", ["decisive", "gradient"])
def test_a_model_with_int8_rows_is_explained_like_its_floats(rule: str) -> None:
    model = trained("ngrams")
    twin, tokens = copy.deepcopy(model), torch.tensor(list(b"the cat sat"))
    int8_tables(model)
    twin.ngrams.weight.data.copy_(model.ngrams.weight)
    found, wanted = (attribute_token(each, tokens, 32, rule).relevance for each in (model, twin))
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-6)


def test_gradients_of_inputs_are_those_of_the_floats() -> None:
    model: Any = int8_tables(ProjectedLUT(8, 8, heads=2, head_width=4, n_detectors=3, n_anchors=2, seed=0).double())
    torch.nn.init.normal_(model.decompress.weight)
    x = torch.randn(4, 8, dtype=torch.float64, requires_grad=True)
    with use_backend("reference"):
        assert torch.autograd.gradcheck(model, (x,))


def test_what_is_wrong_is_said(tmp_path: Path) -> None:
    layer = LUT(4, 3, 2, 2, seed=0)
    codes = torch.zeros(2, 4, 3, dtype=torch.int8)
    with pytest.raises(ArgumentError, match="int8 tables are for inference only"):
        lut(torch.randn(2, 4, requires_grad=True), codes, layer.anchors)
    with pytest.raises(ArgumentError, match="cannot draw new weights"):
        int8_tables(ProjectedLUT(8, 8, heads=2, head_width=4, n_detectors=3, n_anchors=2)).reset_parameters()
    attention = LUTAttention(4, 3, 2, 1, 0, 5)
    attention.weight = torch.nn.Parameter(attention.weight.to(torch.int8), requires_grad=False)
    with pytest.raises(ArgumentError, match="weight is"):
        attention(torch.randn(1, 3, 4))
    model = trained("classifier")
    int8_tables(model).save_pretrained(tmp_path / "int8")
    from safetensors.torch import load_file, save_file

    from lutetia.models import saving

    state = load_file(tmp_path / "int8" / saving.TENSORS)
    name = next(each for each in state if each.endswith(".codes"))
    loaded = copy.deepcopy(state)
    loaded[name] = state[name].float()
    save_file(loaded, tmp_path / "wrong.safetensors")
    (tmp_path / "wrong.safetensors").replace(tmp_path / "int8" / saving.TENSORS)
    with pytest.raises(DataError):
        models.load(tmp_path / "int8")


def test_the_command_writes_a_model_that_evaluates(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = trained("ngrams")
    model.save_pretrained(tmp_path / "floats")
    assert main(["quantize", str(tmp_path / "floats"), "--out", str(tmp_path / "int8"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["layers"] == 1
    assert told["weights"] == 3 * 64 * 64
    assert told["bytes_before"] - told["bytes"] > 0.7 * 4 * told["weights"]
    assert main(["quantize", str(tmp_path / "int8"), "--out", str(tmp_path / "again")]) == 1
    assert "int8 tables already" in capsys.readouterr().err
    assert not (tmp_path / "again").exists()
    assert main(["quantize", str(tmp_path / "floats"), "--out", str(tmp_path / "floats")]) == 1
    assert "expected another folder" in capsys.readouterr().err
    trained("ngrams").save_pretrained(tmp_path / "other")
    before = (tmp_path / "other" / "model.safetensors").read_bytes()
    (tmp_path / "loop").symlink_to("loop")
    for out, why in (("other", "holds another model"), ("loop", "cannot be written to")):
        assert main(["quantize", str(tmp_path / "floats"), "--out", str(tmp_path / out)]) == 1
        assert why in capsys.readouterr().err
    assert (tmp_path / "other" / "model.safetensors").read_bytes() == before
    assert main(["quantize", str(tmp_path / "floats"), "--out", str(tmp_path / "int8")]) == 0  # its own, once more
    capsys.readouterr()
    assert main(["generate", str(tmp_path / "int8"), "--max-new", "3", "--seed", "0"]) == 0


@pytest.mark.gpu
def test_on_the_gpu_as_by_the_definition() -> None:
    tokens = torch.randint(256, (2, 9))
    rows: Any = int8_tables(trained("ngrams").ngrams)
    for read in READS:
        for layer in layers(read)[:2]:
            whole, x = int8_tables(layer).eval(), torch.randn(50, 11)
            with torch.no_grad():
                with use_backend("reference"):
                    wanted = whole(x)
                torch.testing.assert_close(copy.deepcopy(whole).cuda()(x.cuda()).cpu(), wanted, rtol=1e-4, atol=1e-4)
    with torch.no_grad():
        wanted = rows(tokens)
        assert torch.equal(rows.cuda()(tokens.cuda()).cpu(), wanted)
