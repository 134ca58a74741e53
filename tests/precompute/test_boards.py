"""Circuits on boards: frames, boards as data, and the Verilog of the serial line, asked at its pins in a simulator."""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from patterns import fit

from lutetia.cli.values import BOARDS
from lutetia.errors import ArgumentError, DataError
from lutetia.nn import LUT
from lutetia.precompute import (
    Binary,
    Compare,
    EquivalenceError,
    Graph,
    Input,
    Quantise,
    Stream,
    StreamEdge,
    UInt,
    find_tool,
    integer_model,
    lut_network,
    trace,
)
from lutetia.precompute.boards import make
from lutetia.precompute.boards.frames import END, ESC, Answer, Frames, checksum, framed, padding, question
from lutetia.precompute.boards.make import TooLargeError, build_board
from lutetia.precompute.boards.payloads import circuit_answers, circuit_questions, circuit_replies, core_questions, core_replies
from lutetia.precompute.boards.simulate import pause, run_bench, simulate_board
from lutetia.precompute.boards.table import CHIPS, Board, board_names, read_board
from lutetia.precompute.boards.top import Wrapped, bench_text, line_of, top_text, wrapped_circuit, wrapped_core
from lutetia.precompute.front.samples import random_input
from precompute.test_signal_core import core_of as signal_core_of
from tools import optional_tool, require_tool

ICEBREAKER = read_board("icebreaker")
CUT, BROKEN = 0x300, 0x100


# ---- frames ----------------------------------------------------------------------------------------------------------


def slow_checksum(content: bytes) -> int:
    """Bit by bit, as a polynomial is divided."""
    value = 0xFFFF
    for byte in content:
        for bit in range(7, -1, -1):
            top = value >> 15 ^ byte >> bit & 1
            value = (value << 1 & 0xFFFF) ^ (0x1021 if top else 0)
    return value ^ 0xFFFF


@given(st.binary(max_size=40))
def test_the_checksum_is_the_remainder_of_a_division(content: bytes) -> None:
    assert checksum(content) == slow_checksum(content)


@given(st.lists(st.tuples(st.integers(0, 255), st.integers(0, 255), st.binary(max_size=12)), max_size=5), st.integers(1, 9))
def test_frames_come_back_in_any_pieces(parts: list[tuple[int, int, bytes]], size: int) -> None:
    answers = [Answer(number, status, 0xC0DBDCDD, payload) for number, status, payload in parts]
    sent = b"".join(framed(bytes([each.number, each.status]) + bytes.fromhex("c0dbdcdd") + each.payload) for each in answers)
    frames = Frames()
    assert [each for at in range(0, len(sent), size) for each in frames.take(sent[at : at + size])] == answers


@given(st.binary(min_size=6, max_size=12), st.data())
def test_a_frame_with_another_byte_is_none(content: bytes, data: st.DataObject) -> None:
    frame = framed(content)
    at = data.draw(st.integers(0, len(frame) - 2))
    byte = data.draw(st.integers(0, 255).filter(lambda byte: byte not in (frame[at], END, ESC)))
    found = Frames().take(frame[:at] + bytes([byte]) + frame[at + 1 :])
    assert found == [] or ESC in frame  # what follows an ESC may be its other meaning, which the checksum may miss


def test_a_question_in_bytes() -> None:
    assert question(7, 0xC0DB0001, b"\x05").hex(" ") == "07 db dc db dd 00 01 05 df 9e c0"
    assert slow_checksum(bytes.fromhex("07c0db000105")) == 0xDF9E


# ---- boards ----------------------------------------------------------------------------------------------------------


def test_all_boards_are_whole() -> None:
    assert tuple(board_names()) == BOARDS
    for name in board_names():
        board = read_board(name)
        assert line_of(board).baud == board.baud
        assert board.source.startswith("https://")
        assert board.device.nextpnr == f"nextpnr-{board.family}"
    assert read_board("ulx3s-85f") == replace(read_board("ulx3s-12f"), name="ulx3s-85f", title="ULX3S 85F", chip="ecp5-85k")


def test_the_guide_lists_the_boards() -> None:
    """With the facts of boards.toml."""
    wanted = []
    for name in board_names():
        board = read_board(name)
        luts, clock = CHIPS[board.chip].luts, board.clock_hz // 10**6
        pins = f"[file]({board.source})"
        wanted.append(f"| `{name}` | {board.title} | {board.chip} | {luts:,} | {clock} MHz | {board.baud:,} | {pins} |")
    guide = (Path(__file__).parents[2] / "docs" / "boards.md").read_text("utf-8")
    assert [line for line in guide.splitlines() if line.startswith("| `")] == wanted


def test_the_guide_describes_a_board_that_can_be_read(tmp_path: Path) -> None:
    guide = (Path(__file__).parents[2] / "docs" / "boards.md").read_text("utf-8")
    (text,) = re.findall(r"```toml\n(.*?)```", guide, re.DOTALL)
    (tmp_path / "mine.toml").write_text(text)
    board = read_board(str(tmp_path / "mine.toml"))
    assert replace(board, name="", title="", source="") == replace(read_board("hx8k"), name="", title="", source="", baud=115_200)


def test_constraints_of_a_board() -> None:
    name, text = ICEBREAKER.constraints
    assert name == "pins.pcf"
    assert text.splitlines()[1:] == ["set_io clk 35", "set_io -pullup yes rx 6", "set_io tx 9", "set_io led 37"]
    name, text = read_board("ulx3s-25f").constraints
    assert name == "pins.lpf"
    assert 'LOCATE COMP "rx" SITE "M1";\nIOBUF PORT "rx" IO_TYPE=LVCMOS33 PULLMODE=UP;' in text
    assert text.startswith("# ULX3S 25F: https://")
    assert 'FREQUENCY PORT "clk" 25 MHZ;' in text


def test_a_board_of_your_own(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('like = "icestick"\ntitle = "mine"\nbaud = 115200\nled_pin = ""\n')
    assert read_board(str(file)) == replace(read_board("icestick"), name="mine", title="mine", baud=115200, led_pin="")
    assert "led" not in read_board(str(file)).constraints[1]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('like = "icestik"', "like is 'icestik', did you mean icestick?"),
        ("like = 3", "like is 3, expected one of icebreaker"),
        ('like = "hx8k"\nclock = "J3"', "there is no 'clock': did you mean clock_"),
        ('title = "mine"', "chip is missing, expected chip, package, clock_pin, clock_hz, rx_pin, tx_pin, flash too"),
        ('like = "hx8k"\nclock_hz = "12"', "clock_hz is '12', expected a whole number"),
        ('like = "hx8k"\nled_is_low = 1', "led_is_low is 1, expected true or false"),
        ('like = "hx8k"\nclock_hz = 12', "clock_hz is 12, expected 1,000,000 to"),
        ('like = "hx8k"\nchip = "hx9k"', "chip is 'hx9k', expected one of lp1k"),
        ('like = "hx8k"\npackage = "a b"', "package is 'a b', expected a package as nextpnr calls it"),
        ('like = "hx8k"\nrx_pin = "J3; rm"', "rx_pin is 'J3; rm', expected a pin of the package"),
        ('like = "hx8k"\nrx_pin = "J3"', "clock_pin is 'J3', expected a pin of its own"),
        ('like = "hx8k"\nbaud = 9600', "baud is 9600, expected one of 115200"),
        ('like = "hx8k"\nflash = "iceprog"', "flash is 'iceprog', expected a command with {file} in it"),
        ('like = "hx8k"\nport = "a\\nb"', "port is 'a\\nb', expected text of one line"),
        ("like = ", "is not TOML"),
    ],
)
def test_a_board_that_is_refused(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "mine.toml").write_text(text)
    with pytest.raises(DataError) as caught:
        read_board(str(tmp_path / "mine.toml"))
    assert str(caught.value).startswith(str(tmp_path / "mine.toml"))
    assert said in str(caught.value)


def test_a_board_that_nobody_knows(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"there is no board 'icebraker': did you mean icebreaker\?"):
        read_board("icebraker")
    with pytest.raises(DataError, match=r"none.toml does not exist, expected a board"):
        read_board(str(tmp_path / "none.toml"))


def test_the_rate_follows_the_clock() -> None:
    assert (line_of(ICEBREAKER).divisor, line_of(ICEBREAKER).baud) == (12, 1_000_000)
    halved = line_of(ICEBREAKER, 1)
    assert (halved.hz, halved.divisor, halved.baud) == (6e6, 12, 500_000)
    assert line_of(replace(ICEBREAKER, baud=115_200)).divisor == 104
    with pytest.raises(ArgumentError, match=r"a clock of 0\.75 MHz makes no serial line of 115,200 baud or less"):
        line_of(replace(ICEBREAKER, baud=115_200), 4)


# ---- a circuit at its pins -------------------------------------------------------------------------------------------


@cache
def circuit(kind: str = "class") -> tuple[Graph, Wrapped]:
    if kind == "class":
        graph = lut_network(LUT(6, 4, n_detectors=3, n_anchors=3, seed=0), bits=8, weight_bits=6).graph
    elif kind == "number":
        graph = lut_network(LUT(2, 1, n_detectors=4, n_anchors=3, seed=1), bits=3, weight_bits=14, argmax=False).graph
    else:  # without registers
        edge, lanes = StreamEdge((UInt(4),) * 2), (np.array([0, 1, 0]), np.array([1, 0, -1]), np.array([0, 0, 7]))
        graph = Graph([Input((), edge), Compare((0,), edge.carrying([Binary()] * 3), *lanes)])
        assert graph.cycles().first == 0
    return graph, wrapped_circuit(graph.emit("verilog"))


def play(wrapped: Wrapped, tokens: list[int], board: Board = ICEBREAKER, halvings: int = 0) -> list[Answer]:
    line = replace(line_of(board, halvings), divisor=5)
    require_tool("iverilog")
    return run_bench(wrapped, top_text(wrapped, line, board), bench_text(line), [*tokens, *pause(200)])


def sides(graph: Graph, n: int, seed: int = 0) -> tuple[list[bytes], list[bytes]]:
    x = random_input(graph, n, seed)
    return circuit_questions(graph, x), circuit_replies(graph, graph(x))


@pytest.mark.parametrize("kind", ["class", "number", "bare"])
def test_questions_that_follow_each_other_are_answered(kind: str) -> None:
    """Without a pause, and with every byte of the identity in need of an escape."""
    require_tool("iverilog")
    graph, wrapped = circuit(kind)
    wrapped = replace(wrapped, identity=0xC0DBC0DB)
    asked, answers = sides(graph, 30)
    if kind == "class":
        worst = torch.tensor([[0xC0, 0xDB] * 3, [0xDB] * 6, [0xC0] * 6])
        asked += circuit_questions(graph, worst)
        answers += circuit_replies(graph, graph(worst))
    assert wrapped.answer_bytes == {"class": 1, "number": 2, "bare": 1}[kind]
    simulate_board(wrapped, ICEBREAKER, asked, answers)
    assert circuit_answers(graph, answers[:30]).tolist() == graph(random_input(graph, 30, 0)).tolist()


def test_numbers_that_need_escapes_do_not_fall_behind() -> None:
    """The longest answers to the shortest questions: the padding is as much as they need."""
    require_tool("iverilog")
    graph, wrapped = circuit("number")
    assert padding(wrapped.question_bytes, wrapped.answer_bytes) == 7
    asked, answers = sides(graph, 64)
    simulate_board(wrapped, ICEBREAKER, asked * 4, answers * 4)


def test_a_wrong_answer_is_found() -> None:
    require_tool("iverilog")
    graph, wrapped = circuit()
    asked, answers = sides(graph, 5)
    with pytest.raises(EquivalenceError, match=r"the board answers question 3 with .., expected "):
        simulate_board(wrapped, ICEBREAKER, asked, [*answers[:3], bytes([answers[3][0] ^ 1]), answers[4]])
    with pytest.raises(EquivalenceError, match="the board answers question 5 with nothing"):
        simulate_board(wrapped, ICEBREAKER, asked, [*answers, b"\0"])
    with pytest.raises(EquivalenceError, match="the board sends 5 answers, expected 4"):
        simulate_board(wrapped, ICEBREAKER, asked, answers[:4])


def flipped(frame: bytes, at: int) -> list[int]:
    return [byte ^ (0x11 if place == at else 0) for place, byte in enumerate(frame)]


def test_damage_costs_only_what_is_damaged() -> None:
    """Between each two kinds of damage a good question is asked, and answered."""
    graph, wrapped = circuit()
    asked, answers = sides(graph, 40)
    number = iter(range(40))
    tokens: list[int] = []
    wanted: list[Answer] = []

    def good() -> None:
        row = next(number)
        tokens.extend([*question(row, wrapped.identity, asked[row]), *pause(30)])
        wanted.append(Answer(row, 0, wrapped.identity, answers[row]))

    def bad(content: list[int]) -> None:
        tokens.extend(content)
        good()

    frame = question(200, wrapped.identity, asked[0])
    bad([0x55, 0xC0])  # noise, as the board begins in the middle of nowhere
    for at in range(len(frame) - 1):
        bad(flipped(frame, at))  # a byte that is wrong
    bad([*frame[:-4], END])  # too short
    bad([*frame[:-1], 0x00, END])  # too long
    bad([*frame[:-1], ESC, END])  # an escape of nothing
    bad([END] * 5)
    bad([*frame[:4], frame[4] | BROKEN, *frame[5:]])  # no stop bit
    bad([*frame[:3], ESC, 0x41, *frame[3:]])  # an escape of what needs none
    tokens += [*frame[:9], CUT]  # the power is cut within a question, and the next one begins without an END
    good()
    tokens += [*frame[:9], CUT]
    bad([*frame[9:]])
    tokens += [*frame[:9], END, *question(201, wrapped.identity, asked[1])]  # directly behind a short one
    wanted.append(Answer(201, 0, wrapped.identity, answers[1]))
    assert play(wrapped, tokens) == wanted


def test_a_board_says_what_it_holds() -> None:
    graph, wrapped = circuit()
    asked, answers = sides(graph, 1)
    other = question(5, wrapped.identity ^ 1, asked[0])
    longer = question(6, wrapped.identity, asked[0] + b"\0")
    tokens = [END, *question(3, 0, b""), *pause(40), *other, *pause(40), *longer, *pause(40)]
    tokens += question(4, wrapped.identity, asked[0])
    who = [Answer(number, 1, wrapped.identity, b"") for number in (3, 5, 6)]
    assert play(wrapped, tokens) == [*who, Answer(4, 0, wrapped.identity, answers[0])]


def test_a_clock_that_is_halved() -> None:
    graph, wrapped = circuit()
    asked, answers = sides(graph, 2)
    tokens = [END, *question(1, wrapped.identity, asked[0]), *pause(30), *question(2, wrapped.identity, asked[1])]
    assert [each.payload for each in play(wrapped, tokens, halvings=2)] == answers
    assert "wire clock = halved[1];" in top_text(wrapped, line_of(ICEBREAKER, 2), ICEBREAKER)


def test_a_circuit_of_many_samples_has_no_board() -> None:
    model = torch.nn.Sequential(torch.nn.Conv1d(1, 1, 3), Quantise(UInt(2)))
    with torch.no_grad():
        model[0].weight.fill_(1.0)
    net = trace(model, input=Stream(1, UInt(2), length=8)).precompute(max_bits=8)
    with pytest.raises(ArgumentError, match="the circuit takes 8 samples of a frame and gives 6, expected one of each"):
        wrapped_circuit(net.emit("verilog"))


# ---- cores -----------------------------------------------------------------------------------------------------------


@cache
def image_core() -> tuple[Wrapped, list[bytes], list[bytes]]:
    model, x = fit("number")
    core = integer_model(model).emit_images()
    images = x[:4].reshape(4, -1)
    return wrapped_core(core), core_questions(core, images), core_replies(core, core.answers(images))


@cache
def window_core() -> tuple[Wrapped, list[bytes], list[bytes]]:
    core, recordings = signal_core_of("odd")
    windows = core.cut(list(recordings))[:6]
    return wrapped_core(core), core_questions(core, windows), core_replies(core, core.answers(windows))


@pytest.mark.parametrize("made", [image_core, window_core], ids=["image", "window"])
def test_a_core_answers_at_its_pins(made: object) -> None:
    require_tool("iverilog")
    wrapped, asked, answers = made()  # type: ignore[operator]
    assert wrapped.words > 1
    assert len(set(answers)) > 1
    simulate_board(wrapped, ICEBREAKER, asked, answers)


@pytest.mark.parametrize("made", [image_core, window_core], ids=["image", "window"])
def test_a_core_forgets_what_was_damaged(made: object) -> None:
    """Half of a question is in its memories when the rest is lost."""
    wrapped, asked, answers = made()  # type: ignore[operator]
    frame = question(9, wrapped.identity, asked[0])
    wait = pause(60 + wrapped.cycles // 50)
    tokens = [END, *frame[: len(frame) // 2], END, *wait]  # too short
    tokens += [*question(1, wrapped.identity, asked[1]), *wait]
    tokens += [*flipped(frame, len(frame) - 3), *wait]  # all words but the last are taken, then the checksum is wrong
    tokens += [*question(2, wrapped.identity, asked[0]), *wait]
    tokens += [*frame[: len(frame) // 2], CUT, END, *wait]
    tokens += [*question(3, wrapped.identity, asked[1]), *wait]
    tokens += [*frame[:-1], 1, END, *wait, *question(4, wrapped.identity, asked[0]), *wait]  # too long
    wanted = [Answer(number, 0, wrapped.identity, answers[number % 2]) for number in (1, 2, 3, 4)]
    assert [each for each in play(wrapped, tokens) if not each.status] == wanted


def test_a_core_that_is_busy_takes_nothing_else() -> None:
    """A second image while one is answered: it has no answer, and spoils none."""
    wrapped, asked, answers = image_core()
    first, second = (question(number, wrapped.identity, asked[number]) for number in (0, 1))
    wait = pause(60 + wrapped.cycles // 50)
    assert wrapped.cycles > 50 * 20  # it is busy when the pixels of the second one come
    tokens = [END, *first, *second, *wait, *wait, *question(2, wrapped.identity, asked[2]), *wait]
    assert play(wrapped, tokens) == [Answer(number, 0, wrapped.identity, answers[number]) for number in (0, 2)]


def test_verilator_warns_of_nothing(tmp_path: Path) -> None:
    require_tool("verilator")
    for name, wrapped in (("circuit", circuit()[1]), ("core", window_core()[0])):
        folder = tmp_path / name
        folder.mkdir()
        for file, text in {**wrapped.files, "top.v": top_text(wrapped, line_of(ICEBREAKER), ICEBREAKER)}.items():
            (folder / file).write_text(text)
        command = ["verilator", "--lint-only", "--top-module", "lutetia_board", *wrapped.sources, "top.v"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        assert "top.v" not in done.stderr, done.stderr
        assert done.returncode == 0, done.stderr


# ---- a bitstream -----------------------------------------------------------------------------------------------------


def test_what_nextpnr_says_of_the_room(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    said = "Info: Device utilisation:\nInfo: \t ICESTORM_LC: 1616/ 1280 126%\nInfo: \t ICESTORM_RAM: 20/ 16 125%\n"
    done = subprocess.CompletedProcess([], 0, "", said)
    monkeypatch.setattr(make, "find_tool", lambda tool: [tool])
    monkeypatch.setattr(make, "run_program", lambda *given, **options: done)
    needs = "it needs 1,616 LUTs, and there are 1,280 and 20 block RAMs, and there are 16"
    with pytest.raises(TooLargeError, match=needs) as caught:
        make._fit(read_board("icestick"), tmp_path)
    assert caught.value.parts == {"LUTs": (1616, 1280), "block RAMs": (20, 16)}


def test_a_bitstream_without_its_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(make, "find_tool", lambda tool: None)
    made = build_board(circuit()[1], ICEBREAKER)
    assert made.bitstream is None
    assert made.left_out == "a bitstream needs nextpnr, which is not installed: apt install nextpnr-ice40"
    assert made.to_dict()["bitstream_bytes"] is None


@pytest.mark.slow
def test_the_bitstream_itself_answers(tmp_path: Path) -> None:
    """The bitstream as its tools read it back: the LUTs, registers and wires of the device, simulated at its pins."""
    require_tool("iverilog")
    require_tool("nextpnr-ice40")
    for tool in ("icepack", "iceunpack", "icebox_vlog"):
        optional_tool(tool)
    graph, wrapped = circuit()
    board = read_board("icestick")
    made = build_board(wrapped, board)
    assert made.bitstream is not None
    assert made.fmax_mhz is not None
    assert made.fmax_mhz > 12
    assert 0 < made.used["LUTs"][0] < made.used["LUTs"][1] == CHIPS["hx1k"].luts
    (tmp_path / "circuit.bin").write_bytes(made.bitstream)
    pins = board.constraints[1].replace(" -pullup yes", "").splitlines()[1:]
    (tmp_path / "pins.pcf").write_text("\n".join(pins) + "\n")
    subprocess.run(["iceunpack", "circuit.bin", "circuit.asc"], cwd=tmp_path, check=True)
    read = ["icebox_vlog", "-s", "-n", "lutetia_board", "-d", "tq144", "-p", "pins.pcf", "circuit.asc"]
    netlist = subprocess.run(read, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    asked, answers = sides(graph, 8)
    tokens = [END, *question(50, 0, b""), *pause(40)]
    tokens += [token for row, each in enumerate(asked) for token in question(row, wrapped.identity, each)]
    chip = replace(wrapped, files={}, sources=[])
    bench = bench_text(made.line).replace("board.started = 0;", "").replace("board.rst = 1;", "")
    heard = run_bench(chip, "`timescale 1ns / 1ns\n" + netlist, bench, [*tokens, *pause(60)])
    expected = [Answer(row, 0, wrapped.identity, answer) for row, answer in enumerate(answers)]
    assert heard == [Answer(50, 1, wrapped.identity, b""), *expected]


@pytest.mark.slow
@pytest.mark.skipif(find_tool("ecppack") is None, reason="ecppack is optional")
def test_an_ecp5_is_placed_on_its_pins() -> None:
    made = build_board(circuit()[1], read_board("ulx3s-12f"))
    assert made.bitstream is not None
    assert made.used["LUTs"][0] < 1000


@pytest.mark.slow
def test_a_circuit_that_is_too_large() -> None:
    require_tool("nextpnr-ice40")
    optional_tool("icepack")
    graph = lut_network(LUT(16, 6, n_detectors=24, n_anchors=4, seed=0), bits=2, weight_bits=6).graph
    with pytest.raises(TooLargeError, match=r"the circuit does not fit the iCEstick: it needs \d,\d+ LUTs, and there are 1,280"):
        build_board(wrapped_circuit(graph.emit("verilog")), read_board("icestick"))
