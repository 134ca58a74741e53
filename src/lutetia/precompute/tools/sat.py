"""yosys searches for an input at which a claim is false. A claim is a module whose output `ok` must be one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lutetia.errors import JobError
from lutetia.precompute.tools.find import run_yosys

if TYPE_CHECKING:
    from lutetia.precompute.tools.hardware import Hardware

FEATURE = "prove()"


def first_false(
    hardware: Hardware, folder: Path, text: str, modules: Sequence[str], shown: str, *, alike: bool = True
) -> tuple[int, dict[str, int]] | None:
    """The first claim that is false, and the signals of `shown` that show it; the sources lie in the folder.

    `alike`: both sides of a claim have parts in common. These are merged, so that the solver sees only where they differ.
    """
    if not modules:
        return None
    (folder / "claims.v").write_text(text)
    chosen = " ".join(modules)
    script = ["read_verilog -DSYNTHESIS " + " ".join([*hardware.sources, "claims.v"]), "hierarchy", "proc -norom"]
    merge = ("opt_merge -share_all", "opt_expr", "opt_clean") if alike else ()
    script += [f"{command} {chosen}" for command in ("flatten", "opt_clean", *merge)]
    for number, module in enumerate(modules):
        script.append(f"sat -verify -prove ok 1 -show {shown} -dump_json wrong{number}.json {module}")
    for number in range(len(modules)):
        (folder / f"wrong{number}.json").unlink(missing_ok=True)
    done = run_yosys(script, folder, FEATURE, check=False)
    if not done.returncode:
        return None
    for number in range(len(modules)):
        counterexample = folder / f"wrong{number}.json"
        if counterexample.is_file():
            return number, _signals(json.loads(counterexample.read_text()))
    raise JobError(f"yosys failed with exit code {done.returncode}: {(done.stdout + done.stderr).strip()[-800:]}")


def _signals(found: dict[str, Any]) -> dict[str, int]:
    """The values of a counterexample, from the WaveJSON that yosys writes."""
    values = {}
    for signal in found["signal"]:
        text = str(signal.get("data", [""])[0]) if "=" in str(signal.get("wave", "")) else str(signal["wave"])
        digits = "".join(each for each in text if each in "01")
        values[str(signal["name"]).lstrip("\\")] = int(digits, 2) if digits else 0
    return values
