"""Models of tables, end to end: relevance is conserved at every layer, and what it names is what a trained model used.

Conservation is checked in float64 and without ε: each layer hands its inputs what stands at its outputs. What may take a share
is named: biases, the constant term of a softmax's expansion, and the learned positions of LUT attention, which can be asked for.
"""

from __future__ import annotations

import importlib.util
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from lutetia import relevance
from lutetia.models import LUTClassifier, LUTTransformer

PATH = Path(__file__).parents[2] / "benchmarks" / "lut_faithfulness.py"
sys.path.append(str(PATH.parent))  # last: beside it lie names that tests use for other things
spec = importlib.util.spec_from_file_location("lut_faithfulness", PATH)
assert spec is not None
assert spec.loader is not None
faithful = importlib.util.module_from_spec(spec)
spec.loader.exec_module(faithful)

READS = ("hard", "blend", "confidence", "confidence2")
EXACT = relevance.presets.epsilon(0.0)
BIAS = "AddmmBackward0"
SOFTMAX = "ScaledDotProductFlashAttentionForCpuBackward0"
POSITIONS = "GeneratedBackwardFor_lutetia_lut_attention_defaultBackward"


def lively(model: Any) -> Any:
    """Weights and biases that matter, in place of those that training starts with; the scalars of the reads stay."""
    model = model.double().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim():
                parameter.uniform_(0.5, 2.0) if "norm" in name else parameter.normal_()
    return model


def absorbed(r: relevance.Result, layer: str) -> dict[str, float]:
    """What ended inside a layer, by the kind of node."""
    found: dict[str, float] = {}
    for row in r.report:
        if row.module == layer or row.module.startswith(f"{layer}."):
            found[row.name] = found.get(row.name, 0.0) + row.absorbed
    return found


def check_layers(r: relevance.Result, places: list[Any], layers: list[str], takers: set[str]) -> None:
    """Between each two places lies a layer; what its input and its output hold differs by what the takers took, nobody else."""
    for (before, after), layer in zip(pairwise(places), layers, strict=True):
        out = r.seed if after is None else r[after]
        taken = absorbed(r, layer)
        size = float(out.abs().sum())
        assert size > 1e-3, layer
        for name, amount in taken.items():
            assert name in takers or abs(amount) < 1e-8 * size, (layer, name)
        given = float(r[before].sum()) + sum(taken.get(name, 0.0) for name in takers)
        assert given == pytest.approx(float(out.sum()), rel=1e-8, abs=1e-8 * size), layer


# ---- classifiers -----------------------------------------------------------------------------------------------------


def classifier(read: str, readout: str) -> tuple[LUTClassifier, Tensor]:
    windows = {"receptive_field": 3, "n_anchors": 3, "read": read}
    layers = [
        {"kind": "projection2d", "out_shape": [2, 5, 5], "projection": 3, "stride": 1, "detectors_per_position": 2, **windows},
        {"kind": "projection2d", "out_shape": [4, 4], "projection": 2, "grid": 3, **windows},
        {"kind": "lut", "n_outputs": 9, "n_detectors": 10, "n_anchors": 4, "read": read},
    ]
    model = LUTClassifier(input_shape=(6, 6), n_classes=4, layers=layers, readout=readout, readout_read=read, seed=1)
    return lively(model), torch.rand(5, 6, 6, dtype=torch.float64)


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("readout", ["lut", "linear"])
def test_a_classifier_conserves_at_every_layer(read: str, readout: str) -> None:
    model, x = classifier(read, readout)
    names = ["layers.0", "layers.1", "layers.2"]
    r = relevance.attribute(model, x, rules=EXACT, wrt=names)
    check_layers(r, [x, *names, None], [*names, "readout"], {BIAS} if readout == "linear" else set())
    for before, after in pairwise([x, *names, None]):  # each sample for itself
        if after is not None or readout == "lut":
            out = (r.seed if after is None else r[after]).flatten(1).sum(1)
            torch.testing.assert_close(r[before].flatten(1).sum(1), out, rtol=1e-8, atol=1e-8 * float(r.seed.abs().max()))


# ---- language models -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("attention", ["lut", "softmax"])
@pytest.mark.parametrize("feed_forward", ["lut", "projected"])
def test_a_language_model_conserves_at_every_layer(attention: str, feed_forward: str, read: str) -> None:
    options: dict[str, Any] = {"vocab": 20, "context": 6, "width": 8, "n_layers": 2, "n_heads": 2, "n_detectors": 3,
        "n_anchors": 2, "positional_dim": 2, "ff_detectors": 6, "ff_anchors": 3, "ff_heads": 2, "ff_head_width": 4}  # fmt: skip
    model = lively(LUTTransformer(attention=attention, feed_forward=feed_forward, read=read, seed=1, **options))
    tokens = torch.randint(20, (2, 6))
    seed = torch.zeros(2, 6, 20, dtype=torch.float64)
    seed[:, -1, 3] = 1.0
    names = ["embedding", "blocks.0", "blocks.1", "norm"]
    positions = [block.attention.positions for block in model.blocks] if attention == "lut" else []
    r = relevance.attribute(model, tokens, seed, EXACT, wrt=[*names, *positions])
    takers = {SOFTMAX if attention == "softmax" else POSITIONS} | ({BIAS} if feed_forward == "projected" else set())
    check_layers(r, [*names, None], ["blocks.0", "blocks.1", "norm", "unembedding"], takers)
    torch.testing.assert_close(r[tokens], r["embedding"].sum(-1))
    for at, learned in enumerate(positions):  # the share of the positions is theirs: nobody else takes any of it
        assert float(r[learned].sum()) == pytest.approx(absorbed(r, f"blocks.{at}")[POSITIONS], rel=1e-8)


# ---- trained models --------------------------------------------------------------------------------------------------


def check_faithful(areas: dict[str, Any], margins: dict[str, float]) -> None:
    """What is relevant, disturbed first, changes the decision sooner than the other orders do: by more than three standard
    errors, and by a margin in the area itself."""
    for other, margin in margins.items():
        for measure in ("probability", "same"):
            worse, better = getattr(areas[other], measure), getattr(areas["decisive"], measure)
            assert faithful.z_of(worse, better) > 3, (other, measure)
            assert float((worse - better).mean()) > margin, (other, measure)


OTHERS = [kind for kind in faithful.MODELS if kind != "one-hard" and not kind.startswith("text")]


def rules(*names: str) -> dict[str, Any]:
    return {name: faithful.rule_named(name) for name in names}


# The means of the pixels are what they are replaced with; neither a rule nor gradient × input knows them.
@pytest.mark.parametrize("kind", ["one-hard", *(pytest.param(kind, marks=pytest.mark.slow) for kind in OTHERS)])
def test_pixels_that_are_relevant_decide(kind: str) -> None:
    areas = faithful.measure(kind, 120, [0, 1], rules("gradient", "decisive"))
    check_faithful(areas, {"random order": 0.2, "gradient": 0.2})


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["text-lut", "text-softmax"])
def test_bytes_that_are_relevant_decide(kind: str) -> None:
    areas = faithful.measure(kind, 100, [0], rules("gradient", "decisive"))
    check_faithful(areas, {"random order": 0.05, "gradient": 0.05})


@pytest.mark.slow
def test_numbers_near_zero_do_not_carry_half_a_pair() -> None:
    """In a stack of tables the rules below divide by what a comparison saw: sharing in halves there loses most of the way from a
    random order."""
    model, data = faithful.trained("stack-hard", 0)
    x, means = faithful.digits_of(data, 120)
    ways = {"decisive": "D/n and the rest by |D|, by |x|", "halves": "D/n and the rest by |D|, halves"}
    areas = faithful.compare(model, x, means, {name: faithful.with_shares(*faithful.SHARES[way]) for name, way in ways.items()})
    check_faithful(areas, {"halves": 0.1})
