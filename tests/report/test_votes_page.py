"""The page that runs a circuit of votes: its answers are those of the graph, and a reader can look at every table."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from lutetia import report
from lutetia.models import GateNetwork
from lutetia.precompute.front.voting import voting, wiring

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from browser import OpenPage

pytest_plugins = ["browser"]


def network(skip: bool) -> GateNetwork:
    options = {"hidden": (14, 9), "n_tables": 12, "k": 3, "bits": 4, "thresholds": (3, 9), "skip": skip}
    return GateNetwork(input_shape=(4, 5), n_classes=3, seed=1, **options).eval()  # type: ignore[arg-type]


def story(model: GateNetwork, x: torch.Tensor) -> report.Story:
    votes = voting(model.graph(), x)
    rows = zip(x.tolist(), votes.answers.tolist(), votes.counts.tolist(), votes.reads.tolist(), strict=True)
    items = [report.Decision(values, answer, counts, {"reads": reads}, label=2) for values, answer, counts, reads in rows]
    circuit = report.VotingCircuit(**wiring(model.graph()), top=15)
    return report.Story("Votes", decided=report.Decisions((4, 5), items, votes=circuit))


def counts(page: Page) -> list[int]:
    return [int(each) for each in page.locator(".voters .row > span").all_inner_texts()]


@pytest.mark.parametrize("skip", [False, True])
def test_the_page_runs_the_circuit(skip: bool, open_page: OpenPage) -> None:
    model = network(skip)
    x = torch.randint(0, 16, (8, 20), generator=torch.Generator().manual_seed(0))
    page, _, problems = open_page(report.html(story(model, x)))
    votes = voting(model.graph(), x)
    for at in range(len(x)):
        page.locator("#votes .picker input").nth(at).check()
        assert counts(page) == votes.counts[at].tolist()
        winner = page.locator(".voters .won b").inner_text()
        assert winner == str(votes.answers[at])
    assert problems == []


def test_a_reader_changes_pixels_and_looks_at_tables(open_page: OpenPage) -> None:
    model = network(True)
    x = torch.randint(0, 16, (3, 20), generator=torch.Generator().manual_seed(0))
    page, _, problems = open_page(report.html(story(model, x)))
    page.locator("#votes .picker input").nth(1).check()
    assert "the label is 2" in page.locator("#votes .verdict").inner_text()
    page.locator(".voters rect").nth(5).click()
    chosen = int(page.locator("#votes input[type=number]").input_value())
    wires = wiring(model.graph())
    assert chosen == [table for _, own, _ in wires["classes"] for table in own][5]
    assert page.locator("#votes .reads > li").count() == len(wires["layers"][-1][1][chosen][0])
    changed, seen = x[1].clone(), []
    for pixel in range(20):
        changed[pixel] = 0 if changed[pixel] * 2 > 15 else 15
        box = page.locator("#votes .maps svg").first.bounding_box()
        assert box is not None
        page.mouse.click(box["x"] + box["width"] * (pixel % 5 + 0.5) / 5, box["y"] + box["height"] * (pixel // 5 + 0.5) / 4)
        seen.append(counts(page))
        assert seen[-1] == voting(model.graph(), changed[None]).counts[0].tolist()
    assert len({tuple(each) for each in seen}) > 3
    assert "an image that you changed" in page.locator("#votes .verdict").inner_text()
    assert problems == []


def test_the_marks_are_the_bits_that_a_table_depends_on(open_page: OpenPage) -> None:
    model = network(True)
    x = torch.randint(0, 16, (1, 20), generator=torch.Generator().manual_seed(0))
    page, _, _ = open_page(report.html(story(model, x)))
    wires = wiring(model.graph())

    def behind(layer: int, bit: int) -> set[int]:
        reads = wires["layers"][layer][1][bit][0]
        return set(reads) if layer == 0 else set().union(*(behind(layer - 1, read) for read in reads))

    script = "marks => marks.map((each) => [Math.floor(each.getAttribute('x')), Math.floor(each.getAttribute('y'))])"
    for table in range(len(wires["layers"][-1][1])):
        page.locator("#votes input[type=number]").fill(str(table))
        marked = set()
        for place, constant in enumerate((3, 9)):
            marks = page.locator("#votes .pixels").nth(place + 1).locator("rect.near, rect.far")
            marked |= {(row * 5 + column, constant) for column, row in marks.evaluate_all(script)}
        assert marked == {wires["bits"][bit] for bit in behind(len(wires["layers"]) - 1, table)}
