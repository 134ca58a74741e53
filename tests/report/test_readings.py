"""The first picture: every number in it is the network's own."""

from __future__ import annotations

import re

import pytest
import stories
import torch

from lutetia import report
from lutetia.models import DenseClassifier
from lutetia.report.reading_picture import picture


def test_the_table_and_its_row_are_those_of_the_network() -> None:
    model, x = stories.classifier(), torch.rand(5, 7)
    reading = report.reading(model, x)
    assert reading is not None
    layer, detector = model.readout, reading.detector
    assert torch.equal(torch.tensor(reading.table), layer.weight[detector.number])
    row = sum((x.flatten()[a] > x.flatten()[b]).item() << r for r, (a, b) in enumerate(layer.anchors[detector.number].tolist()))
    assert detector.row == row
    assert reading.totals == pytest.approx(model(x[None])[0].tolist())
    assert reading.n_tables == 23
    # The rows that all tables look up add up to the totals.
    total = torch.zeros(4)
    for t, pairs in enumerate(layer.anchors.tolist()):
        total += layer.weight[t, sum((x.flatten()[a] > x.flatten()[b]).item() << r for r, (a, b) in enumerate(pairs))].detach()
    assert reading.totals == pytest.approx(total.tolist(), abs=1e-5)


def test_the_picture_says_so() -> None:
    reading = report.reading(stories.classifier(), torch.rand(5, 7, generator=torch.Generator().manual_seed(1)))
    assert reading is not None
    drawn = picture(reading)
    detector = reading.detector
    bits = f"{detector.row:0{len(detector.bits)}b}"
    assert f"highest bit first: {bits}, which is" in drawn
    answers = re.findall(r"<b>(\d)</b></td><td class=\"soft\">× (\d+)", drawn)
    assert "".join(bit for bit, _ in answers) == bits  # read downwards
    assert sum(int(bit) * int(weight) for bit, weight in answers) == detector.row
    best = max(range(4), key=lambda at: reading.totals[at])
    assert f"the image is read as {best}." in drawn
    assert drawn.count('class="cell ') == len(reading.table) * 4
    assert drawn.count("<circle") == 3 * len(detector.anchors)  # two ends of a pair, and its name


@pytest.mark.parametrize(
    "model",
    [
        stories.classifier(layers=({"kind": "lut", "n_outputs": 9, "n_detectors": 6, "n_anchors": 3},)),
        stories.classifier(readout_anchors=7),
        DenseClassifier(input_shape=(5, 7), n_classes=4, layers=(), seed=0),
    ],
    ids=["two layers", "128 rows", "no tables"],
)
def test_what_one_picture_cannot_show_has_none(model: object) -> None:
    assert report.reading(model, torch.rand(5, 7)) is None  # type: ignore[arg-type]
