"""Every page of the library: one policy, by the hashes of its own style and scripts, and text that stays text."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable
from html import unescape

import pytest
import torch

from attention.decode_oracle import make
from lutetia import report
from lutetia._shared.markup import Html, tag
from lutetia._shared.pages import Article, Page, Section, article, asset, document, packed
from lutetia.attention import timeline
from lutetia.attention.cores import simulate
from lutetia.flow import Flow, flow_page, record
from lutetia.flow import step as flow_step
from lutetia.relevance import pictures

HOSTILE = "</title></style></script><script>alert(1)</script>\"'><img src=x onerror=alert(1)> $data"


def recorded_page() -> str:
    with record() as flow, flow_step(HOSTILE, inputs={HOSTILE: torch.ones(2)}) as step:
        step.outputs(y=torch.ones(2))
    return flow_page(flow)


def report_page() -> str:
    return report.html(report.Story(HOSTILE, HOSTILE, {HOSTILE: HOSTILE}, flows=[report.PartFlow(HOSTILE, Flow())]))


def relevance_page() -> str:
    pieces = pictures.heat_map_html(torch.eye(3), HOSTILE), pictures.token_strip([HOSTILE], torch.ones(1), HOSTILE)
    return pictures.page(*pieces, title=HOSTILE)


def build_page() -> str:
    from lutetia.cli.build_page import page

    size = {"channels": 4, "bits": 8, "tables": 0, "lookups": 0, "widest": 0, "table_bits": 0, "luts": 0, "flip_flops": 0}
    node = {"number": 0, "kind": "input", "name": HOSTILE, "sources": [], **size}
    port = {"name": HOSTILE, "bits": [7, 0], "low": 0, "high": 255, "signed": False, "categories": [HOSTILE]}
    return page(
        {
            "lutetia": "1", "checkpoint": HOSTILE, "model": HOSTILE, "weights": 1, "input_bits": 1, "weight_bits": 2,
            "graph": [node], "tables": [{"table": 0, "address_bits": 4, "rows": 16, "outputs": [3]}], "lookups": 1, "latency": 2,
            "estimate": {"luts": 5, "flip_flops": 6}, "simulated": None, "proof": None, "synthesis": None,
            "steps": [{"step": "simulation", "seconds": 0.0, "left_out": HOSTILE}], "ports": [port], "classes": [HOSTILE],
            "input": {},
        }
    )  # fmt: skip


def timeline_page() -> str:
    case = make(batch=1, lengths=(16,), capacity=16, head_dim=8)
    with record() as flow:
        simulate(case.q, case.k, case.v, **case.arguments, cores=2, sync="lockstep", tile=8)
    return timeline.html(flow)


PAGES: list[Callable[[], str]] = [recorded_page, report_page, relevance_page, build_page, timeline_page]


def sources(policy: str, kind: str) -> set[str]:
    found = re.search(rf"{kind} ([^;]+)", policy)
    return set(found[1].split()) if found else set()


def digest(content: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"


@pytest.mark.parametrize("draw", PAGES, ids=lambda draw: draw.__name__)
def test_a_page_allows_its_own_style_and_scripts_and_nothing_else(draw: Callable[[], str]) -> None:
    page = draw()
    (policy,) = map(unescape, re.findall(r'<meta http-equiv="Content-Security-Policy" content="([^"]+)">', page))
    assert policy.startswith("default-src 'none'; ")
    assert {"base-uri 'none'", "form-action 'none'"} <= set(policy.split("; "))
    styles = {digest(content) for content in re.findall(r"<style>(.*?)</style>", page, re.DOTALL)}
    scripts = {digest(content) for content in re.findall(r'<script type="module">(.*?)</script>', page, re.DOTALL)}
    assert len(styles) == 1
    assert styles <= sources(policy, "style-src(?:-elem)?")
    assert scripts <= sources(policy, "script-src")
    assert "unsafe-eval" not in policy
    assert "unsafe-inline" not in " ".join(sources(policy, "script-src") | sources(policy, "style-src(?:-elem)?"))
    assert not re.search(r"(?:src|href)=\"(?!#|data:image/png)", page)
    assert page.index("Content-Security-Policy") < page.index("<style>")


@pytest.mark.parametrize("draw", PAGES[:4], ids=lambda draw: draw.__name__)
def test_what_a_user_typed_is_text(draw: Callable[[], str]) -> None:
    page = draw()
    assert "<img src=x" not in page
    assert "<script>alert" not in page
    assert page.count("<script") == page.count("</script>")


@pytest.mark.parametrize("draw", PAGES, ids=lambda draw: draw.__name__)
def test_pages_share_their_colours(draw: Callable[[], str]) -> None:
    page = draw()
    (style,) = re.findall(r"<style>(.*?)</style>", page.split("<body")[0], re.DOTALL)
    assert style.count("--paper:") == 1
    assert style.startswith(asset("tokens.css"))


def test_an_article_has_links_only_where_there_is_a_choice() -> None:
    one = [Section("a", "A & B", tag("p", "1 < 2"))]
    page = article(Article("Title", "Lead.", {"name": "value"}, one))
    assert '<h2 id="a-title">A &amp; B</h2>' in page
    assert "1 &lt; 2" in page
    assert 'href="#a"' not in page
    assert page.count('href="#') == 1  # the one to skip to the content
    two = article(Article("Title", sections=[*one, Section("c", "C", Html("<hr>"))]))
    assert 'href="#a"' in two
    assert 'href="#c"' in two


def test_json_cannot_end_its_element() -> None:
    page = document(Page("t", Html(""), data={"x": packed({"a": "</script><b>", "u": "\u2028"})}))
    assert '<script type="application/json" id="x">{"a":"\\u003c/script\\u003e\\u003cb\\u003e","u":"\\u2028"}</script>' in page
    with pytest.raises(ValueError, match="JSON"):
        packed(float("nan"))
