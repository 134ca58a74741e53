"""Layers whose anchors compare inputs with thresholds: made, saved, compiled, explained and built."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lutetia import flow, relevance
from lutetia.errors import ArgumentError, DataError
from lutetia.lut import use_backend
from lutetia.nn import LUT, LUTAttention

THRESHOLDS = torch.tensor([0.25, -0.5, 1.0])
ANCHORS = torch.tensor([[[0, 4], [1, 2]], [[3, 5], [0, 6]]])  # n_inputs is 4


def layer_of(**options: Any) -> LUT:
    """A small layer of given anchors, with weights that are not small."""
    layer = LUT(4, 3, 2, 2, anchors=ANCHORS, thresholds=THRESHOLDS, seed=1, **options)
    nn.init.normal_(layer.weight, generator=torch.Generator().manual_seed(0))
    return layer


def widened(layer: LUT, x: Tensor) -> tuple[LUT, Tensor]:
    """The same layer of pairs, over inputs that end with its thresholds."""
    assert layer.thresholds is not None
    wide = LUT(layer.n_inputs + len(layer.thresholds), 3, 2, 2, anchors=layer.anchors, read=layer.read, dtype=layer.weight.dtype)
    wide.load_state_dict({name: value for name, value in layer.state_dict().items() if name != "thresholds"})
    return wide, torch.cat([x, layer.thresholds.to(x.dtype).expand(len(x), -1)], 1)


# ---- made, saved -----------------------------------------------------------------------------------------------------


def test_pairs_are_the_default() -> None:
    drawn, named = LUT(5, 2, 3, 2, seed=4), LUT(5, 2, 3, 2, seed=4, anchors="pairs")
    assert torch.equal(drawn.anchors, named.anchors)
    assert drawn.thresholds is None
    assert "thresholds" not in drawn.state_dict()
    torch.manual_seed(5)
    first = LUT(5, 2, 3, 2)
    torch.manual_seed(5)
    assert torch.equal(LUT(5, 2, 3, 2, anchors="pairs").anchors, first.anchors)


@pytest.mark.parametrize("kind", ["thresholds", "mixed"])
def test_a_drawn_layer(kind: str) -> None:
    layer = LUT(5, 2, 3, 4, anchors=kind, seed=4, dtype=torch.bfloat16)
    assert layer.thresholds is not None
    assert layer.thresholds.dtype == torch.float32
    assert f"n_thresholds={12 if kind == 'thresholds' else 6}" in repr(layer)
    assert layer.describe().thresholds is layer.thresholds
    again = LUT(5, 2, 3, 4, anchors=kind, seed=5)
    assert not torch.equal(again.thresholds, layer.thresholds)
    again.load_state_dict(layer.state_dict())
    x = torch.randn(6, 5)
    assert torch.equal(again(x), layer.float()(x))
    assert LUT(1, 2, 3, 2, anchors="thresholds")(torch.randn(3, 1)).shape == (3, 2)  # one input is enough


def test_given_thresholds_are_copied() -> None:
    given = THRESHOLDS.clone()
    layer = LUT(4, 3, 2, 2, anchors=ANCHORS, thresholds=given)
    given.zero_()
    assert torch.equal(layer.thresholds, THRESHOLDS)


def test_assigned_thresholds_count() -> None:
    layer, x = layer_of(), torch.full((1, 4), 0.3)
    before = layer(x)
    layer.thresholds = torch.tensor([0.5, 0.5, 0.5])
    assert not torch.equal(layer(x), before)
    layer.thresholds = torch.tensor([0.5])
    with pytest.raises(ArgumentError, match="one of 1 thresholds"):
        layer(x)


def test_thresholds_from_data() -> None:
    layer = LUT(3, 2, 8, 4, anchors="thresholds", seed=0)
    x = torch.randn(500, 3, generator=torch.Generator().manual_seed(0)) * 9 + 4
    layer.set_thresholds_from(x)
    assert layer.thresholds is not None
    share = (x[:, layer.anchors[:, :, 0].flatten().long()] > layer.thresholds).double().mean(0).sort().values
    assert 0.02 < share[0] < 0.15
    assert 0.85 < share[-1] < 0.98
    assert abs(share.mean() - 0.5) < 0.02
    with pytest.raises(ArgumentError, match='constants to set: make the layer with anchors="thresholds"'):
        LUT(3, 2, 8, 4).set_thresholds_from(x)
    with pytest.raises(ArgumentError, match="x is float32"):
        layer.set_thresholds_from(x[:, :2])


def test_what_is_refused() -> None:
    with pytest.raises(ArgumentError, match="anchors is 'threshold', expected one of 'pairs', 'thresholds', 'mixed'"):
        LUT(4, 3, 2, 2, anchors="threshold")
    with pytest.raises(ArgumentError, match="None where anchors are drawn"):
        LUT(4, 3, 2, 2, anchors="thresholds", thresholds=THRESHOLDS)
    with pytest.raises(ArgumentError, match="anchor 0 of detector 0 compares inputs 0 and 4, expected inputs from 0 to 3"):
        LUT(4, 3, 2, 2, anchors=ANCHORS)
    with pytest.raises(ArgumentError, match="threshold 2 is nan"):
        LUT(4, 3, 2, 2, anchors=ANCHORS, thresholds=torch.tensor([0.0, 0.0, float("nan")]))
    with pytest.raises(ArgumentError, match="attention has no thresholds"):
        LUTAttention(4, 3, 2, 2, 1, 8, anchors="mixed")
    with pytest.raises(ArgumentError, match="n_inputs is 1, expected an integer from 2"):
        LUT(1, 3, 2, 2)


def test_a_layer_on_meta_and_in_halves() -> None:
    layer = LUT(4, 3, 2, 2, anchors="thresholds", device="meta", seed=0)
    assert layer.thresholds is not None
    assert layer.thresholds.is_meta
    assert layer(torch.empty(5, 4, device="meta")).shape == (5, 3)
    half = layer_of().bfloat16()
    assert half(torch.randn(5, 4, dtype=torch.bfloat16)).dtype == torch.bfloat16
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert layer_of()(torch.randn(5, 4)).dtype == torch.float32


# ---- compiled, recorded ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("read", ["hard", "confidence2"])
def test_compile_and_export(read: str) -> None:
    layer, x = layer_of(read=read), torch.randn(5, 4, requires_grad=True)
    with use_backend("reference"):
        compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
        y = compiled(x)
        (dx,) = torch.autograd.grad(y.sum(), x)
        (expected,) = torch.autograd.grad(layer(x).sum(), x)
        torch.testing.assert_close(y, layer(x))
        torch.testing.assert_close(dx, expected)
        program = torch.export.export(layer, (x.detach(),), dynamic_shapes=({0: torch.export.Dim("batch")},))
        more = torch.randn(7, 4)
        torch.testing.assert_close(program.module()(more), layer(more))
    saved = io.BytesIO()
    torch.save(layer.state_dict(), saved)
    saved.seek(0)
    assert torch.equal(torch.load(saved, weights_only=True)["thresholds"], THRESHOLDS)


def test_a_recorded_flow_shows_the_thresholds() -> None:
    layer = layer_of()
    for backend in ("reference", "cpu"):
        with use_backend(backend), flow.record() as recorded, torch.no_grad():
            layer(torch.randn(5, 4))
        assert "thresholds" in [each.name for each in recorded.steps[0].inputs], backend


# ---- relevance -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("read", ["hard", "blend", "confidence2"])
@pytest.mark.parametrize("preset", ["epsilon", "decisive"])
def test_a_constant_gets_no_relevance(read: str, preset: str) -> None:
    layer = layer_of(read=read, dtype=torch.float64)
    x = torch.randn(6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    wide, long = widened(layer, x)
    rules = getattr(relevance.presets, preset)(1e-9)
    x.requires_grad_()
    long.requires_grad_()
    R = torch.randn(6, 3, dtype=torch.float64)
    mine = relevance.explain(layer(x), R, wrt=[x], rules=rules)[x]
    its = relevance.explain(wide(long), R, wrt=[long], rules=rules)[long]
    torch.testing.assert_close(mine.sum(1), its.sum(1))  # conserved, whoever gets it
    torch.testing.assert_close(mine.sum(1), R.sum(1))
    # What a constant would get as an input goes to the input it is compared with: each of these three has one.
    for constant, (a, _) in enumerate([(0, 4), (3, 5), (0, 6)]):
        its[:, a] += its[:, 4 + constant]
    torch.testing.assert_close(mine, its[:, :4])


def test_explained_tables_name_their_thresholds() -> None:
    from lutetia.models import LUTClassifier
    from lutetia.models.classifier_config import LUTLayer
    from lutetia.report.reasons import detectors

    layers = [LUTLayer(n_outputs=3, n_detectors=2, n_anchors=2, anchors="mixed")]
    model = LUTClassifier(input_shape=(4,), n_classes=3, layers=layers, readout="none", seed=0)
    layer: Any = model.layers[0]
    layer.anchors.copy_(torch.tensor([[[0, 4], [1, 2]], [[3, 5], [0, 1]]]))
    layer.thresholds.copy_(torch.tensor([0.25, -0.5]))
    x = torch.tensor([0.42, 1.0, 2.0, -0.75])
    names = [f"x{number}" for number in range(4)]
    found = {each.number: each.comparisons(names) for each in detectors(model, x, 0, 2)}
    assert found == {0: ["x0 > 0.25", "x1 ≤ x2"], 1: ["x3 ≤ -0.5", "x0 ≤ x1"]}


def test_a_model_with_thresholds_is_saved_with_them(tmp_path: Path) -> None:
    from lutetia.models import LUTClassifier, load, save
    from lutetia.models.classifier_config import LUTLayer

    layers = [LUTLayer(n_outputs=8, n_detectors=4, n_anchors=3, anchors="thresholds")]
    model = LUTClassifier(input_shape=(5,), n_classes=3, layers=layers, seed=1)
    x = torch.randn(50, 5)
    model.set_thresholds_from(x)
    save(model, tmp_path / "model")
    again: Any = load(tmp_path / "model")
    assert again.config.layers[0].anchors == "thresholds"
    assert torch.equal(again(x), model(x))
    layer: Any = model.layers[0]
    layer.thresholds[3] = float("nan")
    save(model, tmp_path / "damaged")
    with pytest.raises(DataError, match=r"layers\.0: threshold 3 is nan"):
        load(tmp_path / "damaged")
    with pytest.raises(ArgumentError, match="anchors is 'constants'"):
        LUTLayer(n_outputs=8, n_detectors=4, n_anchors=3, anchors="constants")
