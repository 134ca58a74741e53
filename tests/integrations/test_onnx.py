"""Layers and models as ONNX: first as plain torch, which needs no package, then in onnxruntime."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lutetia.errors import ArgumentError, DataError
from lutetia.integrations.onnx import check_file, export, in_plain_torch
from lutetia.models import LUTClassifier, LUTTransformer
from lutetia.nn import LUT, LUTAttention, LUTProjection2d, ProjectedLUT
from tools import optional_module

Made = tuple[nn.Module, Tensor]
LAYERS = [{"kind": "lut", "n_outputs": 9, "n_detectors": 6, "n_anchors": 3}]
SMALL: dict[str, Any] = {"width": 16, "n_layers": 1, "context": 8, "n_heads": 2, "ff_detectors": 6, "initial_noise": 1.0}


def weighty(module: nn.Module) -> nn.Module:
    """Weights that differ: fresh tables are nearly zero, and fresh projections are."""
    for parameter in module.parameters():
        if parameter.dim():
            nn.init.normal_(parameter, std=0.7)
    return module.eval()


CASES: dict[str, Callable[[], Made]] = {
    **{
        read: lambda read=read: (LUT(20, 7, 9, 5, read=read), torch.randn(11, 20))  # type: ignore[misc]
        for read in ("hard", "blend", "confidence", "confidence2")
    },
    "thresholds": lambda: (LUT(20, 7, 9, 5, anchors="mixed"), torch.randn(11, 20)),
    "more dimensions": lambda: (LUT(20, 7, 9, 5), torch.randn(3, 2, 20)),
    "projected": lambda: (ProjectedLUT(20, 6, heads=2, head_width=6, n_detectors=5, n_anchors=3), torch.randn(5, 20)),
    "windows": lambda: (
        LUTProjection2d((6, 6), (4, 4), receptive_field=3, projection=2, n_anchors=3, stride=1),
        torch.randn(3, 6, 6),
    ),
    "attention": lambda: (LUTAttention(20, 7, 9, 3, 3, 12), torch.randn(3, 12, 20)),
    "attention without positions": lambda: (LUTAttention(20, 7, 9, 2, 0, 12, shared_positions=True), torch.randn(3, 5, 20)),
    "a classifier": lambda: (LUTClassifier(input_shape=(4, 4), n_classes=3, layers=LAYERS), torch.rand(5, 4, 4)),
    "a language model": lambda: (LUTTransformer(**SMALL), torch.randint(256, (3, 8))),
    "softmax attention": lambda: (LUTTransformer(**SMALL, attention="softmax", unembedding="lut"), torch.randint(256, (3, 8))),
}


def made(name: str) -> Made:
    torch.manual_seed(3)
    model, x = CASES[name]()
    return weighty(model), x


@pytest.mark.parametrize("name", CASES)
def test_plain_torch_is_the_same(name: str) -> None:
    model, x = made(name)
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    plain = in_plain_torch(model)
    with torch.no_grad():
        wanted = model(x)
        torch.testing.assert_close(plain(x), wanted, rtol=1e-5, atol=1e-5 * float(wanted.abs().max()))
    assert not any(isinstance(module, LUT) for module in plain.modules())
    assert all(torch.equal(model.state_dict()[key], tensor) for key, tensor in before.items())


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_onnxruntime_is_the_same(name: str, tmp_path: Path) -> None:
    """With a batch of another size than that of the example."""
    onnxruntime = optional_module("onnxruntime")
    optional_module("onnxscript")
    model, x = made(name)
    file = tmp_path / "model.onnx"
    export(model, x[:1], file)
    check_file(file)
    (found,) = onnxruntime.InferenceSession(file).run(["output"], {"input": x.numpy()})
    with torch.no_grad():
        wanted = model(x)
    torch.testing.assert_close(torch.from_numpy(found), wanted, rtol=1e-5, atol=1e-5 * float(wanted.abs().max()))
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]


def test_what_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"model adds in fixed point \(sums='fixed'\), expected sums='float'"):
        in_plain_torch(LUT(4, 2, 3, 2, sums="fixed"))
    with pytest.raises(ArgumentError, match="ngrams is a layer of n-gram tables"):
        in_plain_torch(LUTTransformer(width=8, context=8, n_layers=1, ngrams=(2,), ngram_rows=4))


def test_files_that_are_no_models_are_refused(tmp_path: Path) -> None:
    optional_module("onnxscript")
    with pytest.raises(ArgumentError, match="model is"):
        export(3, torch.zeros(1, 2), tmp_path / "x.onnx")  # type: ignore[arg-type]
    (tmp_path / "x.onnx").write_bytes(b"no model")
    with pytest.raises(DataError, match="is not a valid ONNX model"):
        check_file(tmp_path / "x.onnx")
