"""Models on which two earlier walks disagreed: relevance in float64 against the slow engine.

PE Audio is missing: its codec runs under no_grad, so that no input leads to its output. Eight are built from guessed sizes. With
a checkout of transformers all are, as its tests build them:

    TRANSFORMERS_CHECKOUT=FOLDER pytest -o addopts= -m slow tests/relevance/test_disputed_models.py
"""

from __future__ import annotations

import importlib
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

pytest.importorskip("transformers")
import slow_engine
import transformers.models.gpt_bigcode.modeling_gpt_bigcode  # noqa: F401  compiles F.softmax, so it is imported before the fixture

from lutetia import relevance

CHECKOUT = os.environ.get("TRANSFORMERS_CHECKOUT")
# By model type the test class of transformers; those of unguessed inputs need a checkout.
GUESSED = {
    "aria": "AriaForConditionalGenerationModel",
    "doge": "DogeModel",
    "vit_mae": "ViTMAEModel",
    "evolla": "EvollaModel",
    "roformer": "RoFormerModel",
    "seamless_m4t": "SeamlessM4TModelWithTextInput",
    "cohere_asr": "CohereAsrModel",
    "prophetnet": "ProphetNetModel",
}
OTHERS = {
    "hrm_text": "HrmTextModel",
    "informer": "InformerModel",
    "time_series_transformer": "TimeSeriesTransformerModel",
    "speecht5": "SpeechT5Model",
    "sam": "SamModel",
    "sam_hq": "SamHQModel",
    "patchtsmixer": "PatchTSMixerModel",
    "sapiens2": "Sapiens2Model",
    "deepseek_ocr2": "DeepseekOcr2Model",
    "conditional_detr": "ConditionalDetrModel",
    "timesfm": "TimesFmModel",
    "pp_ocrv5_server_det": "PPOCRV5ServerDetModel",
    "pp_ocrv5_mobile_det": "PPOCRV5MobileDetModel",
}


@pytest.fixture(autouse=True)
def everything_in_double(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Models that compute norms or softmax in float32 keep float64 here."""
    softmax, narrow = F.softmax, Tensor.float

    def keep(x: Tensor, dim: int | None = None, dtype: Any = None, **more: Any) -> Tensor:
        return softmax(x, dim=dim, **more)

    monkeypatch.setattr(F, "softmax", keep)
    monkeypatch.setattr(Tensor, "float", lambda self: self if self.dtype == torch.float64 else narrow(self))
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def tiny(name: str) -> tuple[Any, dict[str, Any]]:
    """A tiny model in float64 and its inputs."""
    import suite_models
    import tiny_models

    if CHECKOUT is None:
        return tiny_models.build(name, eager=True)
    module = importlib.import_module(f"tests.models.{name}.test_modeling_{name}")
    return suite_models.build(getattr(module, {**GUESSED, **OTHERS}[name] + "Test"), eager=True)


def with_leaves(model: Any, inputs: dict[str, Any]) -> tuple[dict[str, Any], list[Tensor]]:
    """The inputs, and those of them that get relevance: tokens become embeddings where the model takes them."""
    leaves = []
    for key, value in list(inputs.items()):
        if not isinstance(value, Tensor):
            continue
        if value.is_floating_point() and "mask" not in key:
            inputs[key] = value.requires_grad_()
            leaves.append(inputs[key])
        elif key == "input_ids" and "inputs_embeds" not in inputs:
            try:
                embeddings = model.get_input_embeddings()(value).detach().requires_grad_()
                changed = {**{k: v for k, v in inputs.items() if k != key}, "inputs_embeds": embeddings}
                with torch.no_grad():
                    model(**changed)
            except (TypeError, ValueError, RuntimeError, NotImplementedError, AttributeError):  # the model wants its tokens
                continue
            inputs = changed
            leaves.append(embeddings)
    return inputs, leaves


@pytest.mark.slow
@pytest.mark.parametrize("name", [*GUESSED, *OTHERS])
def test_the_slow_engine_agrees(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if CHECKOUT is None and name in OTHERS:
        pytest.skip("needs a checkout of transformers: TRANSFORMERS_CHECKOUT=FOLDER")
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    if CHECKOUT is not None:
        monkeypatch.syspath_prepend(CHECKOUT)
    model, inputs = tiny(name)
    inputs, leaves = with_leaves(model, inputs)
    with slow_engine.Recorder() as recorder, relevance.watch(model):
        output = relevance.api.main_output(model(**inputs))
    seed = torch.randn(output.shape)
    expected = slow_engine.relevance(recorder, output, seed, 1e-6)
    reached = [leaf for leaf in leaves if leaf in expected]
    assert any(expected[leaf].any() for leaf in reached)
    r = relevance.explain(output, seed, wrt=reached, rules=relevance.presets.epsilon(1e-6))
    assert not r.report.unseen
    for leaf in reached:
        size = expected[leaf].abs().max().clamp(min=1e-30)  # untrained, DeepSeek-OCR 2 does not see its image
        assert size < math.inf
        torch.testing.assert_close(r[leaf] / size, expected[leaf] / size, rtol=0, atol=1e-6)
