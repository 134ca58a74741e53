"""Small models for the tests of whole-number models: made of random tables, so no training is needed."""

from __future__ import annotations

from typing import Any

import torch

from lutetia.models import GateNetwork, LUTClassifier, LUTLayer, LUTTransformer, Projection2dLayer, Tabular, VotesClassifier

SMALL: dict[str, Any] = {
    "vocab": 256, "context": 7, "width": 8, "n_layers": 2, "n_heads": 1, "n_detectors": 3, "n_anchors": 2, "positional_dim": 2,
    "feed_forward": "lut", "ff_detectors": 5, "ff_anchors": 3, "unembedding": "lut", "unembedding_detectors": 6,
    "unembedding_anchors": 4, "initial_noise": 1.0, "seed": 0,
}  # fmt: skip
PROMPTS = (b"\n", b"def f(x):", bytes(range(256)))


def language(gains: bool = True, **fields: Any) -> LUTTransformer:
    """A model of random tables; with `gains` its norms have random ones, of both signs, as a trained model has."""
    model = LUTTransformer(**{**SMALL, **fields}).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for module in model.modules():
            if gains and isinstance(module, torch.nn.RMSNorm):
                module.weight.copy_(torch.randn(module.weight.shape, generator=generator))
    return model


def languages() -> list[LUTTransformer]:
    """Three models that differ in every size: gains or none, one to three blocks, shared positions, no positions."""
    return [
        language(),
        language(width=5, n_layers=1, context=4, norm="none", shared_positions=True, seed=3),
        language(width=12, n_layers=3, context=9, positional_dim=0, vocab=256, n_detectors=2, seed=4),
    ]


def classifier(**fields: Any) -> LUTClassifier:
    """Two layers of tables on an image, with an RMS norm between them."""
    layers = [
        Projection2dLayer(out_shape=(4, 4), receptive_field=3, projection=2, n_anchors=4, stride=1, detectors_per_position=2),
        LUTLayer(n_outputs=5, n_detectors=9, n_anchors=3),
    ]
    config: dict[str, Any] = {"input_shape": (6, 6), "n_classes": 5, "layers": layers, "readout": "none", "norm": "none"}
    return LUTClassifier(**{**config, "initial_noise": 1.0, "seed": 0, **fields}).eval()


def classifiers() -> dict[str, Any]:
    """One of every kind: stacked tables, thresholds, a linear read-out, votes, columns of a table of data."""
    one = LUTLayer(n_outputs=8, n_detectors=6, n_anchors=3, anchors="mixed")
    return {
        "stacked": classifier(),
        "thresholds": classifier(input_shape=(4,), layers=[one], readout="lut", readout_detectors=7, readout_anchors=2),
        "linear": classifier(input_shape=(5,), layers=[one], readout="linear"),
        "votes": VotesClassifier(input_shape=(3, 3), n_classes=3, n_tables=12, k=4, thresholds=(60, 127), seed=0).eval(),
        "gates": GateNetwork(
            input_shape=(3, 3), n_classes=3, n_tables=12, k=3, hidden=(10, 8), thresholds=(60, 127), seed=0
        ).eval(),
        "tabular": _tabular(),
    }


def _tabular(**fields: Any) -> Tabular:
    """Columns of a table of data; with core="gates" its tables vote, with sums="probabilities" they add up probabilities."""
    sizes: dict[str, Any] = {"n_classes": 4, "n_tables": 9, "n_anchors": 3, "n_encoded": 3, "n_edges": 20}
    model = Tabular(input_shape=(3,), **{**sizes, **fields}, seed=0).eval()
    generator = torch.Generator().manual_seed(2)
    model.encoding.source.copy_(torch.arange(3))
    model.encoding.edges.copy_(torch.rand(3, 20, generator=generator, dtype=torch.float64).sort(1).values)
    if model.config.core == "gates":
        return model
    left = torch.randint(3, (9, 3, 1), generator=generator)
    right = 3 + torch.randint(20, (9, 3, 1), generator=generator)
    rows = torch.randn(9, 8, 4, generator=generator)
    model.set_tables(torch.cat([left, right], 2), rows.abs() if model.adds_chances else rows)
    return model


def voting_columns() -> Tabular:
    """The same columns, whose tables vote."""
    return _tabular(core="gates", n_classes=3, n_tables=12, gate_codes=(4, 9, 15), temperature=2.0)


def forest() -> Tabular:
    """The same columns, whose tables add up probabilities."""
    return _tabular(sums="probabilities")


def regression(**metadata: float) -> Tabular:
    """Random tables of a number about 700; a third of the spreads are below the least one, some of them negative."""
    generator = torch.Generator().manual_seed(3)
    sizes = {"n_encoded": 4, "n_edges": 20, "n_tables": 9, "n_anchors": 3, "spread_tables": 7, "spread_anchors": 2}
    model = Tabular(input_shape=(4,), n_classes=1, seed=0, **sizes).eval()
    model.encoding.source.copy_(torch.arange(4))
    model.encoding.edges.copy_(torch.rand(4, 20, generator=generator, dtype=torch.float64).sort(1).values)
    for layer, n_tables, n_anchors, low, high in ((model.tables, 9, 3, 60.0, 95.0), (model.spread, 7, 2, -0.4, 0.6)):
        left = torch.randint(4, (n_tables, n_anchors, 1), generator=generator)
        right = 4 + torch.randint(255, (n_tables, n_anchors, 1), generator=generator)
        right[1::2] = 4 + right[1::2] % 16  # where the sliders of a page move
        right[0] = (left[0] + 1) % 4
        rows = low + (high - low) * torch.rand(n_tables, 2**n_anchors, 1, generator=generator)
        model.set_tables(torch.cat([left, right], 2), rows, layer)
    model.metadata = metadata
    return model


def numbers(n_inputs: int, bits: int, n: int = 50, seed: int = 0) -> torch.Tensor:
    """Whole numbers of `bits` bits: int64 [n, n_inputs], the ends of the range among them."""
    x = torch.randint(2**bits, (n, n_inputs), generator=torch.Generator().manual_seed(seed))
    x[0], x[-1] = 0, 2**bits - 1
    return x
