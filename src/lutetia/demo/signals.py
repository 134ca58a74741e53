"""Windows of a sensor: how a fan runs, from its vibration, with what the tables ask of a window."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from lutetia.demo.telling import Context, Told
from lutetia.report import CellTable

if TYPE_CHECKING:
    from lutetia.sklearn import LUTClassifier

RUNS = ("smooth", "unbalanced", "rubbing")
RECORDINGS, HELD_OUT = 8, 2  # of each kind, and how many of them are not fitted
LENGTH, WINDOW, TURN = 800, 100, 20  # samples of a recording, of a window and of a turn
TABLES = 30
SHOWN = 5  # comparisons in the report
PAGE_BITS = 24  # of a table entry, so that the page says what the model says
ASKED = (
    "Vibration along two axes, made up by a formula: an unbalanced fan swings once a turn, a rubbing one is knocked once a turn. "
    "What a table asks is computed from whole numbers, so a board that runs the C of lutetia build gives the same answers. "
    "fan.html, beside this page, gives them in a browser: choose a window there. fan-circuit holds Verilog that takes a sample "
    "at a time, with a test bench."
)


def tell(context: Context) -> Told:
    """Fit windows of some recordings, answer those of others, and say why the first of them was answered so."""
    from lutetia.sklearn import LUTClassifier, WindowFeatures, cut_windows

    rows, label, recording = _recordings()
    cut = cut_windows(rows, WINDOW, y=label, series=recording)
    assert cut.y is not None
    assert cut.series is not None
    held = cut.series % RECORDINGS < HELD_OUT
    features = WindowFeatures(signals=["along", "across"], decimals=2)
    x = features.fit_transform(cut.x)
    model = LUTClassifier(TABLES, 3, pairs=0.0, random_state=0).fit(x[~held], cut.y[~held])
    features.save(model, context.out / "fan")
    right = int((model.predict(x[held]) == cut.y[held]).sum())
    first = x[held & (cut.y == RUNS[2])][:1]
    explained = model.explain(first)
    cells = [(each.text, f"{each.effect:+.2f}".replace("-", "−")) for each in explained.comparisons[0][:SHOWN]]
    context.data.append(CellTable(("comparison", "effect"), cells, ASKED, f"Why a window was read as {model.predict(first)[0]}"))
    begins = np.arange(len(RUNS)) * RECORDINGS * LENGTH
    shown = [features.windows_.samples(rows[begin : begin + LENGTH]) for begin in begins]  # a held-out one of each kind
    page = _page(model, shown, context.out / "fan.html")
    circuit, checked = _circuit(model, shown, context.out / "fan-circuit")
    context.figures[f"of {int(held.sum())} windows of unseen recordings read correctly"] = f"{right / held.sum():.1%}"
    return Told(
        f"{TABLES} tables hear how a fan runs: {right} of {int(held.sum())} windows of {HELD_OUT * len(RUNS)} unseen recordings "
        f"are read correctly, shown in {page.name}; what decided for one that rubs:",
        (context.out / "fan", page, circuit),
        "\n".join([*(f"    {name} ({effect})" for name, effect in cells[:3]), f"    {checked}"]),
    )


def _page(model: LUTClassifier, shown: list[np.ndarray], path: Path) -> Path:
    """A page that shows some recordings, and what the model says of any other."""
    from lutetia.precompute import ExampleRecording, integer_model, model_page

    places = [LENGTH * number for number in range(len(RUNS))]
    example = ExampleRecording(np.concatenate(shown), places, RUNS, "Unseen recordings of a fan")
    whole = integer_model(model.model_, weight_bits=PAGE_BITS)
    path.write_text(model_page(whole, "How a fan runs", example=example), encoding="utf-8")
    return path


def _circuit(model: LUTClassifier, shown: list[np.ndarray], folder: Path) -> tuple[Path, str]:
    """The model as a core, and what was checked of it: its memories, and where there is a simulator some windows in that."""
    from lutetia.precompute import IntegerClassifier, core_simulator, integer_model

    whole = integer_model(model.model_)
    assert isinstance(whole, IntegerClassifier)
    core = whole.emit_signals()
    core.save(folder, shown)
    core.check_memories(shown)
    checked, tool = f"its memories answer {len(core.answers(shown))} windows as the model does", core_simulator(is_long=False)
    if tool is not None:
        some = [own[: WINDOW + core.windows.step] for own in shown]
        core.simulate(some, tool=tool)
        checked += f", and so does {tool} {len(core.answers(some))} of them"
    return folder, f"a circuit of it answers {core.cycles:,} cycles after a window; {checked}"


def _recordings() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Samples of two axes [rows, 2], how the fan ran [rows], and the number of the recording [rows]."""
    draw = np.random.default_rng(0)
    rows, labels, numbers = [], [], []
    for number in range(RECORDINGS * len(RUNS)):
        kind, t = number // RECORDINGS, np.arange(LENGTH) + draw.integers(TURN)
        turn = 2 * np.pi * t / TURN
        force = 0.3 + 0.3 * draw.random()
        own = draw.normal(0, 0.2, (LENGTH, 2))
        if kind == 1:
            own += force * np.stack([np.sin(turn), np.cos(turn)], 1)
        elif kind == 2:
            own[t % TURN < 2] += 3 * force
        rows.append(own)
        labels += [RUNS[kind]] * LENGTH
        numbers += [number] * LENGTH
    return np.concatenate(rows), np.array(labels), np.array(numbers)
