"""Tiny models with random weights as transformers' own tests make them, from a checkout of that library.

    git clone --depth 1 --branch v5.22.2 https://github.com/huggingface/transformers

The tests need `parameterized`, `datasets` and `timeout-decorator`, some of them `timm` and `torchvision`.
"""

from __future__ import annotations

import importlib
import inspect
import sys
import unittest
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

PATTERN = "tests/models/*/test_modeling_*.py"


def test_cases(folder: Path, only: Collection[str]) -> dict[str, Any]:
    """Every test class of a checkout that makes a model, by its name without "Test"; or those in the files of a few."""
    if not list(folder.glob(PATTERN)):
        raise SystemExit(f"--suite {folder} has no {PATTERN}: expected a checkout of transformers")
    sys.path.insert(0, str(folder))
    cases: dict[str, Any] = {}
    for path in sorted(folder.glob(PATTERN)):
        name = ".".join(path.relative_to(folder).with_suffix("").parts)
        if only and not any(f"class {each}Test(" in path.read_text(encoding="utf-8") for each in only):
            continue
        try:
            module = importlib.import_module(name)
        except Exception as error:  # a test file may need any package
            print(f"{name}: {type(error).__name__}: {error}", file=sys.stderr)
            continue
        for case in _cases_in(module):
            cases[case.__name__.removesuffix("Test")] = case
    return cases


def _cases_in(module: Any) -> Iterator[Any]:
    for case in vars(module).values():
        is_case = inspect.isclass(case) and issubclass(case, unittest.TestCase) and case.__module__ == module.__name__
        if is_case and hasattr(case, "all_model_classes"):
            yield case


def build(case: Any, eager: bool = False) -> tuple[nn.Module, dict[str, Any]]:
    """The model of a test class in evaluation mode, and the inputs that its tests give it.

    `eager`: attention and experts written out in parts.
    """
    test = case()
    test.setUp()
    torch.manual_seed(0)
    tester = test.model_tester
    config, inputs = tester.prepare_config_and_inputs_for_common()
    config.use_cache = False  # RWKV writes its cache over values that autograd keeps: its backward fails, too
    if eager:
        for each in (config, *(value for value in vars(config).values() if hasattr(value, "model_type"))):
            each._attn_implementation = each._experts_implementation = "eager"
    kind = test.all_model_classes[0]
    model = kind(config).eval()
    inputs = dict(test._prepare_for_class(inputs, kind)) if hasattr(test, "_prepare_for_class") else dict(inputs)
    inputs = {name: _in_default_precision(value) for name, value in inputs.items()}
    with torch.no_grad():
        model(**inputs)
    return model, inputs


def _in_default_precision(value: Any) -> Any:
    """Tensors of numbers as the model's weights are; anything else as it is."""
    is_float = isinstance(value, torch.Tensor) and value.is_floating_point()
    return value.to(torch.get_default_dtype()) if is_float else value
