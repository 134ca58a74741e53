"""The built-in simulator: yosys reads the Verilog, `elaborated` computes it, and a test bench in Python feeds it.

The bench is the one of `testbench`: both sides pause at random, data is noise while it is not valid, and answers beyond the
expected ones are wrong.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lutetia.precompute.tools.elaborated import ELABORATE, FlatCircuit, read_circuit
from lutetia.precompute.tools.find import check_time, run_yosys

if TYPE_CHECKING:
    from lutetia.precompute.hdl.testbench import Bench
    from lutetia.precompute.tools.hardware import Hardware

RESET = 4  # cycles
AFTER = 40  # cycles in which no further answer may come


class Played(NamedTuple):
    """Answers as bits [n, width], whether the bench found nothing wrong, the cycles of the first sample and of each answer."""

    answers: np.ndarray
    right: bool
    times: list[int]


def simulate_builtin(hardware: Hardware, made: Bench, folder: Path, *, seed: int, stalls: bool) -> Played:
    """Run the test bench; the sources lie in the folder."""
    script = ["read_verilog -DSYNTHESIS " + " ".join(hardware.sources), f"hierarchy -top {hardware.name}", *ELABORATE]
    run_yosys([*script, "write_json circuit.json"], folder, "simulate")
    return play(read_circuit(folder / "circuit.json", hardware.name), made, seed=seed, stalls=stalls)


def play(circuit: FlatCircuit, made: Bench, *, seed: int, stalls: bool) -> Played:
    """Run the bench: every run begins with a reset."""
    rng = np.random.default_rng(seed)
    values = circuit.start(rng)
    answers: list[np.ndarray] = []
    times: list[int] = []
    right = True
    for run in range(made.runs):
        stimulus = made.stimulus[run * made.sent : (run + 1) * made.sent]
        received = _one_run(circuit, values, stimulus, made, rng, times, stalls)
        answers += received[: made.received]
        if len(received) < made.received:
            return Played(_stacked(answers, made), False, times)
        right = right and (made.more or len(received) == made.received)
    return Played(_stacked(answers, made), right, times)


def _stacked(answers: list[np.ndarray], made: Bench) -> np.ndarray:
    return np.stack(answers) if answers else np.zeros((0, made.expected.shape[1]), dtype=np.uint8)


def _pauses(rng: np.random.Generator, stalls: bool) -> Iterator[tuple[bool, bool]]:
    """Whether each side goes on, per cycle; in turn: no pauses, a slow producer, a slow consumer, both at random."""
    cycle = 0
    while True:
        phase, cycle = cycle // 37 % 4, cycle + 1
        rare, often = rng.random(2) < 1 / 16, rng.random(2) < 1 / 2
        go = {0: (True, True), 1: (bool(rare[0]), True), 2: (True, bool(rare[1])), 3: (bool(often[0]), bool(often[1]))}[phase]
        yield go if stalls else (True, True)


def _one_run(
    circuit: FlatCircuit,
    values: np.ndarray,
    stimulus: np.ndarray,
    made: Bench,
    rng: np.random.Generator,
    times: list[int],
    stalls: bool,
) -> list[np.ndarray]:
    """One reset, all samples, and what came out; it ends after `patience` cycles in which nothing moves, or too many answers."""
    ports, pauses = circuit.ports, _pauses(rng, stalls)
    received: list[np.ndarray] = []
    sent = accepted = idle = after = cycle = 0
    start = RESET if stalls else RESET + made.rest
    valid = False
    while after < AFTER and idle <= made.patience and len(received) <= made.received + AFTER:
        go_in, go_out = next(pauses)
        reset = cycle < RESET
        if not valid and go_in and cycle >= start and sent < len(stimulus) and not reset:
            valid, sent = True, sent + 1
            values[ports["in_data"]] = stimulus[sent - 1]
        elif not valid:
            values[ports["in_data"]] = rng.integers(0, 2, len(ports["in_data"]), dtype=np.uint8)
        values[ports["rst"]], values[ports["in_valid"]], values[ports["out_ready"]] = reset, valid, go_out and not reset
        circuit.settle(values)
        given = not reset and bool(values[ports["out_valid"]][0]) and go_out
        taken = valid and bool(values[ports["in_ready"]][0])
        if given:
            received.append(values[ports["out_data"]].copy())
        times += [cycle] * (int(valid and not times) + int(given))
        circuit.clock(values)
        accepted += taken
        valid = valid and not taken
        idle = 0 if given or taken or reset else idle + 1
        after = after + 1 if accepted == len(stimulus) and len(received) >= made.received else 0
        cycle += 1
        if cycle % 256 == 0:
            check_time("the built-in simulator")
    return received
