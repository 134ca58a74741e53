"""Mermaid diagrams: read back by a small strict parser of the part of the language that is written."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lutetia import flow
from lutetia.errors import ArgumentError
from lutetia.flow import Edge, Flow, Step, TensorInfo

# A label is letters, digits, spaces, the marks that are the diagram's own, and entities. Words may hold _ . - inside.
LABEL = r"(?:[^\W_]|[ ×…/\[\]?]|#\d+;|<br/>|(?<=[^\W_])[_.-](?=[^\W_]))+"
LINES = {
    "tensor": re.compile(rf'(t\d+)\["({LABEL})"\]:::(\w+)'),
    "step": re.compile(rf'(s\d+|more)\("({LABEL})"\):::(\w+)'),
    "frame": re.compile(rf'subgraph (s\d+)\["({LABEL})"\]'),
    "end": re.compile(r"end"),
    "arrow": re.compile(r"([st]\d+) --> ([st]\d+)"),
    "style": re.compile(r"classDef (\w+) ((?:[a-z]+:(?:#[0-9a-f]{6}|none))(?:,[a-z]+:(?:#[0-9a-f]{6}|none))*)"),
}


@dataclass
class Diagram:
    direction: str
    labels: dict[str, list[str]] = field(default_factory=dict)  # id -> lines of text
    kinds: dict[str, str] = field(default_factory=dict)
    frames: dict[str, tuple[str, ...]] = field(default_factory=dict)  # id -> the frames around it
    arrows: list[tuple[str, str]] = field(default_factory=list)
    styles: dict[str, str] = field(default_factory=dict)
    classes: dict[str, str] = field(default_factory=dict)

    def names(self, kind: str) -> list[str]:
        return [self.labels[node][0] for node in self.labels if self.kinds[node] == kind]

    def flows(self) -> set[tuple[str, str]]:
        return {(" ".join(self.labels[a]), " ".join(self.labels[b])) for a, b in self.arrows}


def read(text: str) -> Diagram:
    first, *rest = text.splitlines()
    header = re.fullmatch(r"flowchart (TD|TB|BT|LR|RL)", first)
    assert header, first
    assert text.endswith("\n")
    diagram = Diagram(header[1])
    inside: list[str] = []
    for line in rest:
        kind, match = next(((kind, m) for kind, rule in LINES.items() if (m := rule.fullmatch(line.strip()))), (None, None))
        assert match, f"not in the grammar: {line}"
        assert line.startswith("    " * (len(inside) + (kind != "end")))
        if kind in ("tensor", "step", "frame"):
            node = match[1]
            assert node not in diagram.labels
            diagram.labels[node] = [decode(part) for part in match[2].split("<br/>")]
            diagram.kinds[node], diagram.frames[node] = str(kind), tuple(inside)
            if kind == "frame":
                inside.append(node)
            else:
                diagram.classes[node] = match[3]
        elif kind == "end":
            inside.pop()
        elif kind == "arrow":
            diagram.arrows.append((match[1], match[2]))
        else:
            diagram.styles[match[1]] = match[2]
    assert not inside
    assert len(set(diagram.arrows)) == len(diagram.arrows)
    for source, target in diagram.arrows:
        assert {diagram.kinds[source], diagram.kinds[target]} in ({"tensor", "step"}, {"tensor", "frame"})
        # Mermaid cannot join a frame to what is inside it
        assert source not in diagram.frames[target]
        assert target not in diagram.frames[source]
    assert set(diagram.classes.values()) <= set(diagram.styles)
    return diagram


def decode(label: str) -> str:
    return re.sub(r"#(\d+);", lambda code: chr(int(code[1])), label)


def run_step(name: str, inputs: dict[str, Any] | None = None, part: str = "user", **outputs: Any) -> None:
    with flow.step(name, part=part, inputs=inputs) as step:
        step.outputs(**outputs)


def two_layers() -> Flow:
    x = torch.zeros(64, 256)
    with flow.record() as run:
        for _ in range(2):
            with flow.step("layer", inputs={"x": x, "unused": torch.zeros(2)}) as layer:
                indices = torch.zeros(64, 16, dtype=torch.int32)
                run_step("check_detectors", {"x": x}, part="lut", lookup_indices=indices)
                made = torch.zeros(64, 256)
                run_step("fill_outputs", {"indices": indices, "x": x}, part="lut", output=made)
                x = made
                layer.outputs(y=x, aux=torch.zeros(3))
    return run


def test_the_diagram_of_two_kernels() -> None:
    x, i, d = torch.zeros(64, 256), torch.zeros(64, 16, dtype=torch.int32), torch.zeros(64, 16)
    with flow.record() as run:
        run_step("check_detectors", {"x": x}, part="lut", lookup_indices=i, min_delta=d)
        run_step("fill_outputs", {"indices": i.T}, part="lut", output=torch.zeros(()))
    assert run.mermaid() == (
        "flowchart TD\n"
        '    t0["X<br/>[64 × 256]"]:::tensor\n'
        '    s0("check_detectors"):::step\n'
        '    t1["Lookup Indices<br/>[64 × 16]"]:::tensor\n'
        '    t2["Min Delta<br/>[64 × 16]"]:::tensor\n'
        '    s1("fill_outputs"):::step\n'
        '    t3["Output<br/>scalar"]:::tensor\n'
        "    t0 --> s0\n"
        "    s0 --> t1\n"
        "    s0 --> t2\n"
        "    t1 --> s1\n"
        "    s1 --> t3\n"
        "    classDef tensor fill:#ffffff,stroke:#757575,color:#000000\n"
        "    classDef step fill:#81c784,stroke:#519657,color:#000000\n"
    )
    diagram = read(run.mermaid(direction="LR", symbols={"B": 64, "N": 16}))
    assert diagram.direction == "LR"
    assert diagram.labels["t0"] == ["X", "[B × 256]"]
    assert diagram.labels["t1"] == ["Lookup Indices", "[B × N]"]


def test_a_size_gets_a_name_only_where_it_is_certain() -> None:
    x = TensorInfo("x", (64, 3), "float32", 768, "cpu", 0, None)
    other = Flow([Step(0, "look", "user", (x,))])
    assert read(other.mermaid(symbols={"B": 64, "C": 3})).labels["t0"] == ["X", "[B × C]"]
    assert read(other.mermaid(symbols={"B": 64, "A": 64, "C": 3})).labels["t0"] == ["X", "[64 × C]"]  # B or A: nothing tells

    # A table of 64 rows behind 64 inputs: of a lookup layer's tensors the axes are known by their names.
    shapes = {"input": (512, 64), "weights": (128, 64, 10), "anchors": (128, 6, 2), "lookup_indices": (512, 128)}
    tensors = [TensorInfo(name, shape, "float32", 4, "cpu", at, None) for at, (name, shape) in enumerate(shapes.items())]
    layer = Flow([Step(0, "fill_outputs", "lut", tuple(tensors))])
    drawn = read(layer.mermaid(symbols={"B": 512, "I": 64, "O": 10, "Nₜ": 128})).labels
    assert [drawn[f"t{at}"][1] for at in range(4)] == ["[B × I]", "[Nₜ × 64 × O]", "[Nₜ × 6 × 2]", "[B × Nₜ]"]
    drawn = read(layer.mermaid(symbols={"B": 512, "I": 64, "R": 64, "O": 10})).labels
    assert [drawn[f"t{at}"][1] for at in range(2)] == ["[B × I]", "[128 × R × O]"]
    assert read(layer.mermaid(symbols={"rows": 64})).labels["t1"] == ["Weights", "[128 × rows × 10]"]


def test_an_empty_flow() -> None:
    assert read(Flow().mermaid()).labels == {}
    assert read(two_layers().mermaid(parts=[])).labels == {}


def test_steps_with_steps_inside_are_frames() -> None:
    diagram = read(two_layers().mermaid())
    assert diagram.names("frame") == ["layer", "layer"]
    assert diagram.names("step") == ["check_detectors", "fill_outputs"] * 2
    frames = {" ".join(diagram.labels[node]): len(diagram.frames[node]) for node in diagram.labels}
    assert frames["X [64 × 256]"] == 0  # named by the frame, so outside it
    assert frames["Output [64 × 256]"] == 0
    assert frames["Lookup Indices [64 × 16]"] == 1
    assert frames["check_detectors"] == 1
    assert diagram.flows() == {
        ("X [64 × 256]", "check_detectors"),
        ("check_detectors", "Lookup Indices [64 × 16]"),
        ("X [64 × 256]", "fill_outputs"),
        ("Lookup Indices [64 × 16]", "fill_outputs"),
        ("fill_outputs", "Output [64 × 256]"),
        ("Output [64 × 256]", "check_detectors"),
        ("Output [64 × 256]", "fill_outputs"),
        ("Unused [2]", "layer"),
        ("layer", "Aux [3]"),
    }


def test_a_value_shared_by_two_frames_is_in_neither() -> None:
    x = torch.zeros(3)
    with flow.record() as run, flow.step("outer"):
        with flow.step("first"):
            run_step("make", x=x)
        with flow.step("second"):
            run_step("use", {"x": x})
    assert read(run.mermaid()).frames["t0"] == ("s0",)


def test_only_some_parts() -> None:
    run = two_layers()
    diagram = read(run.mermaid(parts="lut"))
    assert diagram.names("frame") == []
    assert diagram.names("step") == ["check_detectors", "fill_outputs"] * 2
    outer = read(run.mermaid(parts=["user"]))
    assert outer.names("step") == ["layer", "layer"]
    assert ("layer", "Output [64 × 256]") in outer.flows()
    assert ("Output [64 × 256]", "layer") in outer.flows()


def test_a_value_updated_in_place_is_a_new_box() -> None:
    x = torch.zeros(3)
    with flow.record() as run:
        run_step("update", {"state": x}, state=x)
        run_step("read", {"s": x.view(3, 1)})
    diagram = read(run.mermaid())
    assert diagram.names("tensor") == ["State", "State"]
    assert diagram.arrows == [("t0", "s0"), ("s0", "t1"), ("t1", "s1")]


def test_several_writers_of_one_input_are_all_drawn() -> None:
    x = torch.zeros(10)
    with flow.record() as run:
        run_step("left", left=x[:5])
        run_step("right", right=x[5:])
        run_step("read", {"x": x})
    assert {("Left [5]", "read"), ("Right [5]", "read")} <= read(run.mermaid()).flows()


def test_views_of_one_value_share_a_box() -> None:
    x = torch.zeros(4, 2)
    with flow.record() as run:
        run_step("a", {"one": x, "two": x.T})
        run_step("b", {"three": x[0]})
    diagram = read(run.mermaid())
    assert diagram.labels["t0"] == ["One / Two", "[4 × 2]"]
    assert diagram.arrows == [("t0", "s0"), ("t0", "s1")]


def test_a_failed_step_is_marked() -> None:
    with flow.record() as run, pytest.raises(ValueError, match="no"), flow.step("outer"), flow.step("inner"):
        raise ValueError("no")
    diagram = read(run.mermaid())
    assert diagram.labels == {"s0": ["outer failed"], "s1": ["inner", "failed"]}
    assert diagram.classes == {"s1": "failed"}


def test_unknown_sizes_are_asked_about() -> None:
    info = TensorInfo("x", (-1, 3), "float32", 0, "meta", 0, None)
    assert read(Flow([Step(0, "a", "lut", (info,))]).mermaid()).labels["t0"] == ["X", "[? × 3]"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"direction": "down"}, "direction is 'down'"),
        ({"limit": 0}, "limit is 0"),
        ({"symbols": {"B": "64"}}, "symbols is"),
        ({"symbols": {64: "B"}}, "symbols is"),
        ({"symbols": ["B"]}, "symbols is"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        two_layers().mermaid(**options)


# Many steps


def test_up_to_the_limit_every_step_is_drawn() -> None:
    run = two_layers()
    assert len([n for n in read(run.mermaid(limit=6)).kinds.values() if n != "tensor"]) == 6
    folded = read(run.mermaid(limit=5))
    assert folded.names("frame") == ["layer × 2"]
    assert [folded.labels[node] for node in ("s1", "s2")] == [["check_detectors", "× 2"], ["fill_outputs", "× 2"]]
    assert folded.arrows.count(("s1", "t2")) == 1


def test_steps_alike_are_drawn_as_one() -> None:
    x = torch.zeros(8)
    with flow.record() as run:
        for index in range(300):
            weight, made = torch.zeros(3, 8 if index % 3 else 5), torch.zeros(8)
            run_step("update", {"x": x, "w": weight}, y=made)
            x = made
    diagram = read(run.mermaid())
    assert [diagram.labels[node] for node in diagram.labels if diagram.kinds[node] == "step"] == [
        ["update", "× 100"],
        ["update", "× 200"],
    ]
    assert sorted(diagram.names("tensor")) == ["W", "W", "X", "Y", "Y"]
    one = read(run.mermaid(limit=1))
    assert [line for node in one.labels for line in one.labels[node]] == [
        "X",
        "[8]",
        "W",
        "[3 × …]",
        "update",
        "× 300",
        "Y",
        "[8]",
    ]


def test_steps_alike_keep_before_and_after_apart() -> None:
    with flow.record() as run:
        for state in torch.zeros(3, 5):
            run_step("update", {"state": state}, state=state)
    diagram = read(run.mermaid(limit=1))
    assert diagram.names("tensor") == ["State", "State"]
    assert diagram.arrows == [("t0", "s0"), ("s0", "t1")]


def test_what_does_not_fit_is_counted() -> None:
    with flow.record() as run:
        for index in range(1000):
            run_step(f"step{index}", {"x": torch.zeros(index % 7 + 1)}, y=torch.zeros(2))
    text = run.mermaid()
    diagram = read(text)
    assert diagram.labels["more"] == ["… 800 more steps"]
    assert len(diagram.names("step")) == 201
    small = read(run.mermaid(limit=3))
    assert small.names("step") == ["step0", "step1", "step2", "… 997 more steps"]


def test_a_diagram_stays_within_what_mermaid_draws() -> None:
    with flow.record() as run:
        for index in range(150):  # fewer steps than the limit, but too many arrows
            run_step(f"{'name' * 20}{index % 100}", {f"x{i}": torch.zeros(1) for i in range(5)})
        run_step("list", {"xs": [torch.zeros(2) for _ in range(1000)]})
    text = run.mermaid()
    diagram = read(text)
    assert len(diagram.arrows) <= 500
    assert len(text) <= 50_000
    assert len(diagram.names("step")) > 20


def test_long_labels_are_fewer() -> None:
    with flow.record() as run:
        for index in range(150):
            run_step(f"{index}{'🎉' * 50}")
    text = run.mermaid()
    assert len(text) <= 50_000
    assert len(read(text).names("step")) > 20


def test_a_long_list_is_one_box_when_it_must_be() -> None:
    with flow.record() as run:
        run_step("list", {"xs": [torch.zeros(2) for _ in range(1000)]})
    assert read(run.mermaid()).labels == {"t0": ["Xs", "[2]"], "s0": ["list"]}


def test_deep_nesting_is_drawn() -> None:
    steps = [Step(index, f"s{index}", "user", parent=index - 1 if index else None) for index in range(2000)]
    assert read(Flow(steps).mermaid()).frames["s1"] == ("s0",)


# Names from outside

NASTY = [
    'a"b', "[x]", "(x)", "{x}", "<script>alert(1)</script>", "line\nbreak", "end", "#", "#quot;", "a;b", "`code`", '"`md`"',
    "ünïcödé 中文", "1. list", "- item", "_em_ **b**", "%% c", "%%{init: {}}%%", "---", "style a:b#c;", "classDef x:#y;",
    "fa:fa-car", "$$x$$", "A-->B", "&lt;", "<br/>", "\\", "|", "@{ shape: x }", "a:::b", "🎉", "</svg>", "click a href", "o", "x",
]  # fmt: skip


def expected(name: str) -> str:
    """What is shown of a name: no control characters, single spaces, at most 60 characters."""
    shown = "".join(" " if unicodedata.category(char)[0] in "CZ" else char for char in name).replace("ﬂ", "fl")
    shown = " ".join(shown.split())
    return (shown[:60] + "…" if len(shown) > 60 else shown) or "unnamed"


def check_name(name: str) -> None:
    first, second = TensorInfo(name, (2,), "int8", 2, "cpu", 0, None), TensorInfo(name, (3,), "int8", 3, "cpu", 1, 1)
    outer, inner = Step(0, name, name, (first,)), Step(1, name, name, (first,), (second,), parent=0)
    diagram = read(Flow([outer, inner]).mermaid(symbols={name: 3}))
    assert diagram.labels["s0"] == diagram.labels["s1"] == [expected(name)]
    assert diagram.labels["t1"][1] == f"[{expected(name)}]"
    title, shown = diagram.labels["t0"][0], expected(name)
    if re.fullmatch(r"[\w.]+", name):  # shown as words
        title, shown = (re.sub("[ _]", "", text).casefold()[:40] for text in (title, shown))
    assert title == shown
    assert diagram.arrows == [("t0", "s1"), ("s1", "t1")]


@pytest.mark.parametrize("name", [*NASTY, "", "  ", "\x00", "\u202ereversed", "x" * 500, "ﬂ°°34¶ß"])
def test_any_name_can_be_drawn(name: str) -> None:
    check_name(name)


@settings(max_examples=200)
@given(
    st.text(max_size=80)
    | st.text(alphabet="\"'`[](){}<>#;:&%|-_.=~/\\ \n1aé", max_size=30)
    | st.sampled_from(NASTY).map(lambda n: n * 2)
)
def test_every_name_can_be_drawn(name: str) -> None:
    check_name(name)


def test_a_flow_made_by_hand_need_not_be_consistent() -> None:
    known, unknown = TensorInfo("y", (1,), "int8", 1, "cpu", 5, 1), TensorInfo("z", (1,), "int8", 1, "cpu", 7, 0)
    run = Flow([Step(0, "a", "p", outputs=(known,)), Step(1, "b", "p", inputs=(unknown,))], [Edge(0, 1, "y", "x", 99)])
    assert read(run.mermaid()).flows() == {("a", "Y [1]"), ("Z [1]", "b")}
