"""What `lutetia.toml` writes, the standard library's reader reads back unchanged."""

from __future__ import annotations

import math
import tomllib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lutetia.errors import ArgumentError
from lutetia.toml import dumps

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
SCALARS = st.one_of(TEXT, st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False))
VALUES = st.recursive(
    SCALARS, lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(TEXT, inner, max_size=4)), max_leaves=20
)


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(TEXT, VALUES, max_size=5))
def test_what_is_written_is_read_back(table: dict[str, Any]) -> None:
    assert same(tomllib.loads(dumps(table)), table)


def same(a: Any, b: Any) -> bool:
    """Equal, and of the same type all the way down: 1, 1.0 and True are three things, and so are 0.0 and -0.0."""
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return list(sorted(a)) == list(sorted(b)) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    return repr(a) == repr(b)


def test_a_document_reads_well() -> None:
    table = {
        "seed": 1,
        "model": {"name": 'a "b"\n', "sizes": [1, 2], "deep": {"rate": 1e-4}},
        "layer": [{"n": 1}, {"n": 2}],
        "x": 1.0,
    }
    assert dumps(table) == (
        'seed = 1\nx = 1.0\n\n[model]\nname = "a \\"b\\"\\n"\nsizes = [1, 2]\n\n[model.deep]\nrate = 0.0001\n\n'
        "[[layer]]\nn = 1\n\n[[layer]]\nn = 2\n"
    )


def test_odd_things() -> None:
    assert dumps({}) == "\n"
    assert math.isnan(tomllib.loads(dumps({"x": math.nan}))["x"])
    assert tomllib.loads(dumps({"t": (1, 2), "long": list(range(100))})) == {"t": [1, 2], "long": list(range(100))}
    assert tomllib.loads(dumps({"mixed": [{"a": 1}, 2, {}], "": {"a.b": {"": 0}}})) == {
        "mixed": [{"a": 1}, 2, {}],
        "": {"a.b": {"": 0}},
    }


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ([1], "expected a table"),
        ({"a": {"b": None}}, r"a\.b is None"),
        ({"a": [1, object]}, "^a is"),
        ({"a": 2**63}, "64 bits"),
        ({"a": {1: 2}}, "a has the key 1"),
        ({"a": [1, {2: 3}]}, "a has the key 2"),
        ({"a": "\ud800"}, "UTF-8"),
        ({"\ud800": 1}, "UTF-8"),
    ],
)
def test_what_toml_cannot_hold_is_named(table: Any, said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        dumps(table)
