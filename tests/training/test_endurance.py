"""Long runs: flat memory, threads that share a layer, processes that share a cold cache, a home that cannot be written."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

import lutetia
from lutetia import nn, toml
from small import classifier_tables, transformer_tables, write_samples, write_text
from tools import require_module

require_module("numba")
pytestmark = pytest.mark.slow
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(lutetia.__file__).parent.parent), "OMP_NUM_THREADS": "1"}
GROWTH = 8 << 20  # bytes that a process may grow after it has warmed up; what leaks does so by each step
MEASURE = """
import gc, resource
from pathlib import Path
def used():
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
"""


def python(code: str, folder: Path, environment: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=environment or ENVIRONMENT, capture_output=True, text=True, timeout=1800
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def flat(numbers: str) -> None:
    """The second half of what was measured is no larger than the first, but for what an allocator keeps."""
    sizes = [int(number) for number in numbers.split()]
    assert len(sizes) >= 10
    first, last = max(sizes[2 : len(sizes) // 2]), max(sizes[len(sizes) // 2 :])
    assert last - first < GROWTH, sizes


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="this system does not tell the memory of a process")
@pytest.mark.parametrize("kind", ["classifier", "transformer"])
def test_2000_training_steps_with_flat_memory(kind: str, tmp_path: Path) -> None:
    write_samples(tmp_path)
    write_text(tmp_path)
    tables = {"classifier": classifier_tables, "transformer": transformer_tables}[kind]
    often = {"steps": 2000, "eval_every": 100, "log_every": 10}
    (tmp_path / "run.toml").write_text(toml.dumps(tables(train=often, checkpoint={"every": 100, "keep": 2})))
    flat(
        python(
            MEASURE
            + """
from lutetia.training import loop, train
step, sizes = loop.Trainer.step, []
def measured(self):
    step(self)
    if self.position.step % 100 == 0:
        sizes.append(used())
loop.Trainer.step = measured
summary = train("run.toml", "out", device="cpu")
assert summary["step"] == 2000, summary
print(*sizes)
""",
            tmp_path,
        )
    )


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="this system does not tell the memory of a process")
@pytest.mark.parametrize("attention", ["lut", "softmax"])
def test_20000_bytes_are_written_with_flat_memory(attention: str, tmp_path: Path) -> None:
    flat(
        python(
            MEASURE
            + f"""
from lutetia.models import LUTTransformer
model = LUTTransformer(context=32, width=16, n_layers=1, n_heads=2, n_detectors=2, ff_detectors=4, ff_anchors=3, seed=0,
                       attention={attention!r}).eval()
sizes, written = [], 0
for piece in model.generate(b"once ", 20000, seed=0, stream=True):
    before, written = written, written + len(piece)
    if before // 1000 < written // 1000:
        sizes.append(used())
assert written == 20000, written
print(*sizes)
""",
            tmp_path,
        )
    )


@pytest.mark.parametrize("layer", ["lut", "attention", "projected"])
def test_eight_threads_call_one_layer(layer: str) -> None:
    made: torch.nn.Module = {
        "lut": lambda: nn.LUT(16, 8, 12, 4, seed=0),
        "attention": lambda: nn.LUTAttention(16, 8, 6, 2, 2, 16, seed=0),
        "projected": lambda: nn.ProjectedLUT(16, 8, heads=2, head_width=4, n_detectors=4, n_anchors=3, seed=0),
    }[layer]()
    inputs = [torch.randn(3, 5, 16, generator=torch.Generator().manual_seed(number)) for number in range(8)]
    with torch.no_grad():
        wanted = [made(x) for x in inputs]
    wrong: list[str] = []

    def call(number: int) -> None:
        try:
            for _ in range(200):
                x = inputs[number].clone().requires_grad_()
                y = made(x)
                if not torch.equal(y, wanted[number]):
                    wrong.append(f"thread {number} got another answer")
                y.sum().backward()
        except Exception as error:
            wrong.append(f"thread {number}: {type(error).__name__}: {error}")

    threads = [threading.Thread(target=call, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


CALL = (
    "import torch; from lutetia import nn; print(nn.LUT(8, 4, 6, 3, seed=0)(torch.arange(16.0).reshape(2, 8)).detach().tolist())"
)


def cold(folder: Path) -> dict[str, str]:
    """An environment whose compile caches are empty."""
    home = folder / "home"
    home.mkdir()
    caches = {"NUMBA_CACHE_DIR": home / "numba", "XDG_CACHE_HOME": home / "cache", "TRITON_CACHE_DIR": home / "triton"}
    return {**ENVIRONMENT, "HOME": str(home), **{name: str(place) for name, place in caches.items()}}


def test_two_processes_with_a_cold_compile_cache(tmp_path: Path) -> None:
    environment = cold(tmp_path)
    started = [
        subprocess.Popen([sys.executable, "-c", CALL], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    ends = [process.communicate(timeout=1800) for process in started]
    assert [process.returncode for process in started] == [0, 0], ends
    assert ends[0][0] == ends[1][0] == python(CALL, tmp_path, environment)  # the third finds what the two have written


def test_a_home_that_cannot_be_written(tmp_path: Path) -> None:
    """Even root cannot write below a file."""
    (tmp_path / "home").write_text("")
    nowhere = str(tmp_path / "home" / "none")
    environment = {**ENVIRONMENT, **dict.fromkeys(("HOME", "XDG_CACHE_HOME", "NUMBA_CACHE_DIR", "TRITON_CACHE_DIR"), nowhere)}
    assert python(CALL, tmp_path, environment) == python(CALL, tmp_path)


@pytest.mark.gpu
def test_two_gpus_train_together(tmp_path: Path) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("there are fewer than two GPUs")
    write_samples(tmp_path)
    (tmp_path / "run.toml").write_text(toml.dumps(classifier_tables()))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--log-dir=logs"]
    done = subprocess.run(
        [*command, "-m", "lutetia", "train", "run.toml", "--out", "two", "--json"],
        cwd=tmp_path,
        env=ENVIRONMENT,
        capture_output=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert b'"processes": 2' in done.stdout


# ---- no command removes a file that it did not make ------------------------------------------------------------------

COMMANDS = [
    ["train", "run.toml", "--out", "{}"],
    ["train", "run.toml", "--out", "{}", "--resume"],
    ["generate", "{}", "--max-new", "3"],
    ["generate", "language", "--prompt", "a", "--max-new", "3"],
    ["explain", "{}", "1,2,3,4,5,6,7"],
    ["explain", "model", "1,2,3,4,5,6,7", "--html", "{}/why.html"],
    ["explain", "model", "1,2,3,4,5,6,7", "--png", "{}/notes.txt"],
    ["build", "model", "--no-prove", "--input-bits", "2", "--out", "{}"],
    ["build", "model", "--no-prove", "--input-bits", "2", "--out", "model"],
    ["flow", "model", "1,2,3,4,5,6,7", "--out", "{}/run.html"],
    ["build", "language", "--target", "c", "--out", "{}"],
    ["page", "model", "--out", "{}/page.html"],
    ["quantize", "language", "--out", "{}"],
    ["train", "samples.npz", "--out", "{}"],
    ["evaluate", "{}"],
    ["evaluate", "model", "samples.npz"],
    ["predict", "model", "1,2,3,4,5,6,7"],
    ["info", "{}"],
    ["demo", "--out", "{}"],
    ["bench"],
    ["doctor"],
]


@pytest.mark.parametrize("arguments", COMMANDS, ids=lambda arguments: " ".join(arguments[:2]))
@pytest.mark.parametrize("target", ["theirs", "model", "."])
def test_no_command_removes_a_file_that_it_did_not_make(arguments: list[str], target: str, tmp_path: Path) -> None:
    from lutetia.models import LUTClassifier, LUTTransformer

    require_module("typer")
    write_samples(tmp_path)
    (tmp_path / "run.toml").write_text(toml.dumps(classifier_tables(train={"steps": 2})))
    layer = {"kind": "lut", "n_outputs": 3, "n_detectors": 4, "n_anchors": 2}
    LUTClassifier(input_shape=(7,), n_classes=3, readout="none", layers=[layer], seed=0).save_pretrained(tmp_path / "model")
    LUTTransformer(context=8, width=8, n_layers=1, n_detectors=2, ff_detectors=2, ff_anchors=2).save_pretrained(
        tmp_path / "language"
    )
    for name in (
        "theirs/notes.txt",
        "theirs/manifest.json",
        "theirs/report.html",
        "theirs/checkpoints/step-000001/mine",
        "model/mine",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("{}")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    command = [sys.executable, "-m", "lutetia", *(each.format(target) for each in arguments)]
    done = subprocess.run(command, cwd=tmp_path, env=ENVIRONMENT, stdin=subprocess.DEVNULL, capture_output=True, timeout=600)
    assert done.returncode in (0, 1, 2), done.stderr[-2000:]
    assert [str(path) for path in before if not path.exists()] == []
    changed = [str(path.relative_to(tmp_path)) for path, content in before.items() if path.read_bytes() != content]
    asked = [each.format(target).removeprefix("./") for each in arguments if each.endswith("notes.txt")]  # named, so overwritten
    assert [name for name in changed if name not in asked] == []
