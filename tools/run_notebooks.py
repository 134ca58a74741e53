"""Run the notebooks of examples/ and store them with their outputs.

Usage: python tools/run_notebooks.py [NAME ...]

Run this after a change to a notebook or to what it shows; a test runs them too and compares what they print.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import nbclient
import nbformat
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import AsyncKernelManager

ROOT = Path(__file__).resolve().parent.parent
PYTHON = [sys.executable]  # what starts a kernel
LONGEST = 600  # seconds before a cell counts as hung; the first use of yosys compiles it for minutes


class ThisPython(AsyncKernelManager):
    """Starts the interpreter that runs this, whatever kernels are installed."""

    @property
    def kernel_spec(self) -> KernelSpec:
        argv = [*PYTHON, "-m", "ipykernel_launcher", "-f", "{connection_file}", "--log-level=40"]
        return KernelSpec(argv=argv, display_name="this Python", language="python")


def main(names: list[str]) -> int:
    for path in sorted((ROOT / "examples").glob("*.ipynb")):
        if not names or path.stem in names:
            notebook = nbformat.read(path, as_version=nbformat.NO_CONVERT)
            with tempfile.TemporaryDirectory() as folder:
                execute(notebook, Path(folder))
            write(notebook, path)
            print(path)
    return 0


def execute(notebook: nbformat.NotebookNode, folder: Path) -> None:
    """Run all cells in a folder, in a process with no settings of its user; the first error comes out."""
    environment = {name: value for name, value in os.environ.items() if name != "MPLBACKEND"}  # so that figures are shown
    environment |= {"PYTHONPATH": str(ROOT / "src"), "IPYTHONDIR": str(folder / "ipython"), "OMP_NUM_THREADS": "1"}
    resources = {"metadata": {"path": str(folder)}}
    client = nbclient.NotebookClient(notebook, timeout=LONGEST, resources=resources, kernel_manager_class=ThisPython)
    client.execute(env=environment)


def write(notebook: nbformat.NotebookNode, path: Path) -> None:
    """Store a notebook that has run, without what differs from machine to machine."""
    notebook.metadata = nbformat.NotebookNode(language_info={"name": "python"})
    for cell in notebook.cells:
        cell.metadata = nbformat.NotebookNode()
        if cell.cell_type == "code":
            cell.outputs = joined(cell.outputs)
    part = path.with_name(f".{path.name}.part")
    try:
        part.write_text(nbformat.writes(notebook, indent=1) + "\n", encoding="utf-8")
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def joined(outputs: list[nbformat.NotebookNode]) -> list[nbformat.NotebookNode]:
    """The outputs of a cell, what was printed in pieces as one: where it is cut depends on timing."""
    kept: list[nbformat.NotebookNode] = []
    for output in outputs:
        if output.output_type == "stream" and kept and kept[-1].get("name") == output.name:
            kept[-1].text += output.text
        else:
            kept.append(output)
    return kept


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
