"""Boards: which device, which pins, which clock. Data in boards.toml, or in a file of one's own."""

from __future__ import annotations

import re
from dataclasses import MISSING, dataclass, fields
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from lutetia import toml
from lutetia.errors import DataError, did_you_mean
from lutetia.precompute.boards.serial import RATES
from lutetia.precompute.tools.place import DEVICES, Device

PIN = re.compile(r"[A-Za-z]{0,2}\d{1,3}")
PACKAGE = re.compile(r"[A-Za-z0-9:]{1,16}")
MOST_HZ = 400_000_000


class Chip(NamedTuple):
    """A device: its family, as a target of synthesis, the option of nextpnr, lookup tables of four inputs and block RAMs."""

    family: str
    option: str
    luts: int
    block_rams: int


CHIPS = {
    "lp1k": Chip("ice40", "--lp1k", 1280, 16),
    "hx1k": Chip("ice40", "--hx1k", 1280, 16),
    "up5k": Chip("ice40", "--up5k", 5280, 30),
    "lp8k": Chip("ice40", "--lp8k", 7680, 32),
    "hx8k": Chip("ice40", "--hx8k", 7680, 32),
    "ecp5-12k": Chip("ecp5", "--12k", 12_000, 32),
    "ecp5-25k": Chip("ecp5", "--25k", 24_288, 56),
    "ecp5-45k": Chip("ecp5", "--45k", 43_848, 108),
    "ecp5-85k": Chip("ecp5", "--85k", 83_640, 208),
}


@dataclass(frozen=True)
class Board:
    """A board; `rx_pin` is where the FPGA receives. `flash` is a command in which {file} stands for the bitstream."""

    name: str
    title: str
    chip: str
    package: str
    clock_pin: str
    clock_hz: int
    rx_pin: str
    tx_pin: str
    flash: str
    source: str = ""  # where the pins are from
    led_pin: str = ""  # none without one
    led_is_low: bool = False  # it shines while the pin is low
    baud: int = 115_200
    port: str = "/dev/ttyUSB0"  # what the serial line is usually called

    @property
    def device(self) -> Device:
        """The device, for place and route."""
        chip, base = CHIPS[self.chip], DEVICES[CHIPS[self.chip].family]
        options = (chip.option, "--package", self.package)
        return Device(self.title, base.nextpnr, 4, options, base.constraints, base.placed, base.packer, base.speed_grades)

    @property
    def family(self) -> str:
        """The target of synthesis."""
        return CHIPS[self.chip].family

    @property
    def constraints(self) -> tuple[str, str]:
        """The name and the text of the file of pins."""
        pins = {"clk": self.clock_pin, "rx": self.rx_pin, "tx": self.tx_pin} | ({"led": self.led_pin} if self.led_pin else {})
        about = f"# {self.title}" + (f": {self.source}" if self.source else "")
        if self.family == "ice40":
            lines = [f"set_io{' -pullup yes' * (name == 'rx')} {name} {pin}" for name, pin in pins.items()]
            return "pins.pcf", "\n".join([about, *lines, ""])
        lines = [f'FREQUENCY PORT "clk" {self.clock_hz / 1e6:g} MHZ;']
        for name, pin in pins.items():
            pull = " PULLMODE=UP" if name == "rx" else ""
            lines += [f'LOCATE COMP "{name}" SITE "{pin}";', f'IOBUF PORT "{name}" IO_TYPE=LVCMOS33{pull};']
        return "pins.lpf", "\n".join([about, *lines, ""])


def board_names() -> list[str]:
    """The boards that are known."""
    return list(_known())


def read_board(name: str) -> Board:
    """A board by its name, or by the file that describes it."""
    if not name.endswith(".toml"):
        if name not in _known():
            hint = did_you_mean(name, board_names())
            raise DataError(f"there is no board {name!r}: {hint} Or give a file, such as my.toml")
        return _board(name, _known()[name], name)
    path = Path(name)
    return _board(path.stem, toml.read(path, "a board"), name)


def _known() -> dict[str, dict[str, Any]]:
    text = files("lutetia.precompute.boards").joinpath("boards.toml").read_text(encoding="utf-8")
    return toml.loads(text)


def _board(name: str, given: dict[str, Any], where: str) -> Board:
    """A board from its table, which may be `like` another one of boards.toml."""
    like = given.get("like")
    if like is not None:
        if not isinstance(like, str) or like not in _known():
            raise DataError(f"{where}: like is {like!r}, {did_you_mean(like, board_names())}")
        given = {**_known()[like], **{key: value for key, value in given.items() if key != "like"}}
    keys = {each.name: each for each in fields(Board) if each.name != "name"}
    for key, value in given.items():
        if key not in keys:
            raise DataError(f"{where}: there is no {key!r}: {did_you_mean(key, keys)}")
        wanted = {"int": int, "bool": bool}.get(str(keys[key].type), str)
        if type(value) is not wanted:
            raise DataError(f"{where}: {key} is {value!r}, expected {_kinds[wanted]}")
    missing = [key for key, each in keys.items() if each.default is MISSING and key not in given]
    if missing:
        raise DataError(f"{where}: {missing[0]} is missing, expected {', '.join(missing)} too")
    board = Board(name=name, **given)
    _check(board, where)
    return board


_kinds = {int: "a whole number", bool: "true or false", str: "text in quotes"}


def _check(board: Board, where: str) -> None:
    def refuse(key: str, expected: str) -> None:
        raise DataError(f"{where}: {key} is {getattr(board, key)!r}, expected {expected}")

    if board.chip not in CHIPS:
        refuse("chip", f"one of {', '.join(CHIPS)}")
    if not PACKAGE.fullmatch(board.package):
        refuse("package", "a package as nextpnr calls it, such as sg48")
    pins = [board.clock_pin, board.rx_pin, board.tx_pin, *([board.led_pin] if board.led_pin else [])]
    for key in ("clock_pin", "rx_pin", "tx_pin", "led_pin"):
        pin = getattr(board, key)
        if not PIN.fullmatch(pin) and (pin or key != "led_pin"):
            refuse(key, "a pin of the package, such as 35 or J3")
        if pins.count(pin) > 1:
            refuse(key, "a pin of its own")
    if not 1_000_000 <= board.clock_hz <= MOST_HZ:
        refuse("clock_hz", f"1,000,000 to {MOST_HZ:,}")
    if board.baud not in RATES:
        refuse("baud", f"one of {', '.join(map(str, RATES))}")
    if "{file}" not in board.flash or not board.flash.isprintable():
        refuse("flash", "a command with {file} in it, such as iceprog {file}")
    for key in ("title", "source", "port"):
        if not getattr(board, key).isprintable() or (key != "source" and not getattr(board, key)):
            refuse(key, "text of one line")
