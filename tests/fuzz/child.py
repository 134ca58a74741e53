"""The process that meets damaged files and wild calls: it may crash, hang or run out of memory, and its parent notices.

It reads jobs, one JSON object to a line: {"what": "loader", "corpus" or "calls", "name", "seed", "first", "count", "folder",
"keep"}. For each case it prints `{"begin": number}`, and for each job at its end `{"done": {..}}`. An error that is not
Lutetia's is printed as `{"raw": ..}`, and its input copied from the folder to the one to keep.
"""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

SECONDS, FIRST_SECONDS = 60.0, 900.0  # of processor time for one case, which takes milliseconds; the first ones compile
MEMORY = 1 << 30  # bytes that a case may ask for beyond what the process has: its files have a megabyte at most
WARM_UP, FIRST_MEMORY = 200, 4 << 30  # of so many calls, which compile and import
SIZED = ("lut", "nn")  # packages whose calls say how large their tables are: a MemoryError is the answer to a size too large

sys.path.insert(0, str(Path(__file__).parent))


def limit_memory(more: int = MEMORY) -> None:
    """Allow the process only so many more bytes than it has now."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + more, hard))


def tell(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)


def attempt(job: dict[str, Any], number: int, action: Callable[[], object], seconds: float = SECONDS) -> str:
    """Run one case under its time limit: "accepted", "refused", or "raw"."""
    from lutetia.errors import LutetiaError

    tell(begin=number)
    signal.setitimer(signal.ITIMER_PROF, seconds)  # its signal ends the process, also within a kernel
    try:
        action()
        return "accepted"
    except LutetiaError:
        return "refused"
    except BaseException as error:  # whatever it is: that is the finding
        if job["name"].partition(".")[0] in SIZED and is_out_of_memory(error):
            return "out of memory"
        trace = "".join(traceback.format_exception(error))[-4000:]
        shutil.copytree(job["folder"], f"{job['keep']}-{number}", dirs_exist_ok=True)
        Path(f"{job['keep']}-{number}", "how.txt").write_text(f"{type(error).__name__}\n{trace}")
        tell(raw=f"{job['keep']}-{number}: {' '.join(str(trace).splitlines()[-1:])[:300]}")
        return "raw"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def is_out_of_memory(error: BaseException) -> bool:
    return isinstance(error, MemoryError) or "allocate memory" in str(error)  # torch says it with a RuntimeError


def run_loader(job: dict[str, Any], counts: Counter[str]) -> None:
    from loaders import LOADERS, sign
    from mutate import mutate

    loader, place = LOADERS[job["name"]], Path(job["folder"])
    with tempfile.TemporaryDirectory() as scratch:
        whole = Path(scratch, "whole")
        whole.mkdir()
        loader.make(whole)
        names = list(loader.damaged) or sorted(str(file.relative_to(whole)) for file in whole.rglob("*") if file.is_file())
        contents = {name: (whole / name).read_bytes() for name in names if (whole / name).exists()}
        if job["first"] == 0:
            # Undamaged, and before the limit: it compiles.
            end = attempt(job, -1, lambda: loader.use(_copied(whole, place)), FIRST_SECONDS)
            counts[end] += 1
            if end != "accepted":
                tell(raw=f"{job['name']}: whole files are {end}")
        limit_memory()
        for number in range(job["first"], job["first"] + job["count"]):
            draw = random.Random(f"{job['name']} {job['seed']} {number}")
            _copied(whole, place)
            for name in draw.sample(list(contents), 1 if draw.random() < 0.9 else min(2, len(contents))):
                (place / name).write_bytes(mutate(contents[name], draw, list(contents.values())))
            if loader.signed:
                sign(place)
            counts[attempt(job, number, lambda: loader.use(place))] += 1


def run_corpus(job: dict[str, Any], counts: Counter[str]) -> None:
    """Files that were found before: those of each folder of the corpus replace the whole ones."""
    from loaders import LOADERS, sign

    loader, place = LOADERS[job["name"]], Path(job["folder"])
    limit_memory()
    for number, case in enumerate(sorted(Path(job["corpus"]).iterdir())):
        place.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(place)
        place.mkdir()
        loader.make(place)
        shutil.copytree(case, place, dirs_exist_ok=True)
        if loader.signed:
            sign(place)
        counts[attempt(job, number, lambda: loader.use(place))] += 1


def run_calls(job: dict[str, Any], counts: Counter[str]) -> None:
    """Calls of one function, named as in "attention.prefill"."""
    from wild_calls import GROUPS

    package, _, function = job["name"].partition(".")
    draw_call, place = GROUPS[package][function], Path(job["folder"])
    place.mkdir(parents=True, exist_ok=True)
    limit_memory(FIRST_MEMORY)
    for number in range(job["first"], job["first"] + job["count"]):
        if number == job["first"] + WARM_UP:
            limit_memory()
        words, action = draw_call(random.Random(f"{job['name']} {job['seed']} {number}"))
        (place / "call.txt").write_text(words)
        counts[attempt(job, number, action, FIRST_SECONDS if number < WARM_UP else SECONDS)] += 1


def _copied(whole: Path, place: Path) -> Path:
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(whole, place)
    return place


def main() -> None:
    warnings.simplefilter("ignore")
    import torch

    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp()  # in the runner's scratch folder, as all that a killed child leaves
    for line in sys.stdin:
        job = json.loads(line)
        counts: Counter[str] = Counter()
        {"loader": run_loader, "corpus": run_corpus, "calls": run_calls}[job["what"]](job, counts)
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.getrlimit(resource.RLIMIT_AS)[1]))
        tell(done=counts)


if __name__ == "__main__":
    main()
