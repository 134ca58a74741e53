"""Stories for the tests of the report: a small one of real models, and one whose every text is hostile."""

from __future__ import annotations

import torch

from lutetia import report
from lutetia.flow import record
from lutetia.flow import step as flow_step
from lutetia.models import LUTClassifier, LUTTransformer
from lutetia.precompute import lut_network


def classifier(**fields: object) -> LUTClassifier:
    given = {"readout": "lut", "readout_detectors": 23, "readout_anchors": 4, "initial_noise": 1.0, "seed": 0, **fields}
    return LUTClassifier(input_shape=(5, 7), n_classes=4, **given).eval()


def transformer() -> LUTTransformer:
    sizes = {"width": 16, "n_layers": 1, "n_heads": 2, "context": 24, "ff_detectors": 8, "ff_anchors": 3}
    return LUTTransformer(**sizes, initial_noise=0.5, seed=0).eval()


def real() -> report.Story:
    """A story with every section, from untrained models."""
    model, writer = classifier(), transformer()
    x = torch.rand(10, 5, 7, generator=torch.Generator().manual_seed(0))
    labels = model(x).argmax(1)
    labels[3] = (labels[3] + 1) % 4
    net = lut_network(model, bits=3, weight_bits=5)
    with record() as forward:
        model(x)
    with record() as writing:
        writer.generate("def", 3, seed=0)
    steps = range(1, 301)
    curve = report.Curve("training", steps, [3 / (1 + step / 9) + 0.2 * (step % 3) for step in steps])
    held_out = report.Curve("held out", [100, 200, 300], [1.0, 0.6, 0.5])
    checks = [
        report.Check("proved", True, "all of it"),
        report.Check("simulated", None, "no simulator"),
        report.Check("placed", False),
    ]
    return report.Story(
        "A story of tables",
        "Of tables.",
        {"accuracy": "90 %"},
        [
            report.Training(
                "digits", [curve, held_out], "They were learned.", {"weights": "1,472"}, torch.eye(4).long().tolist()
            ),
            report.Training("text", [held_out], unit="nats per byte"),
        ],
        [report.Writing("LUT attention", "def ", "read(self):\n    pass"), report.Writing("softmax attention", "def ", "f(x)")],
        report.decisions(model, x, labels, said="Ten inputs."),
        [report.strip(writer, "def f(x):\n  ré", begin=4, title="One line")],
        report.circuit(net.graph, x=net.quantise(x[:3]), checks=checks, said="In whole numbers."),
        [report.PartFlow("one input", forward, "Forward."), report.PartFlow("three bytes", writing)],
        [report.CellTable(("what", "ratio"), [("forward", 5.25), ("backward", 3.0)], "In one run.", "Ratios")],
        report.machine(),
        report.reading(model, x[0], said="One table, one input."),
        report.Evaluation(
            [[3, 1], [0, 2]],
            ["ham", "egg"],
            report.CellTable(("class", "recall"), [("ham", "75%"), ("egg", "100%")]),
            "Two classes.",
        ),
        [report.CellTable(("comparison", "effect"), [("age > 40", "+1.5")], "One row.", "Why the first")],
    )


def hostile(text: str) -> report.Story:
    """Every text that a story can hold, the same."""
    detector = report.Detector(0, [(0, 1)], [True], 1, [0.5, -0.25], 0.75, [text, text])
    decision = report.Decision([0.0, 1.0], 0, [1.0, 0.0], {text: [1.0, -1.0]}, detectors=[detector], label=1)
    wave = report.Waveform([report.WaveLine(text, [(0, 1, text)]), report.WaveLine(text, [(0, 1, "1")], True)], 1, text)
    table = report.CellTable((text, text), [(text, 1)], text, text)
    parts = [report.Part(text, text, (), 2, 3, text), report.Part(text, text, (0,), 1, 1, text)]
    with record() as flow, flow_step(text, inputs={"x": torch.ones(2)}) as step:
        step.outputs(y=torch.ones(2))
    return report.Story(
        text,
        text,
        {text: text},
        [
            report.Training(
                text, [report.Curve(text, [1, 2], [2.0, 1.0])], text, {text: text}, [[1, 0], [0, 1]], [text, text], text
            )
        ],
        [report.Writing(text, text, text, {text: text})],
        report.Decisions((2,), [decision, decision], [text, text], text, {text: text}, {text: text}, [text, text]),
        [report.Strip(text, [text, text], {1: [0.5]}, text)],
        report.Circuit(parts, text, {text: text}, table, [report.Check(text, True, text)], wave),
        [report.PartFlow(text, flow, text)],
        [table],
        {text: text},
        report.Reading((1, 2), [0.0, 1.0], detector, [[1.0, -1.0]] * 2, [1.0, 0.5], 3, [text, text], text),
        report.Evaluation([[3, 1], [0, 2]], [text, text], table, text),
        [table],
    )
