"""What all tests share: seeds, threads, Triton's interpreter where there is no GPU, hidden tools, and a list of skips."""

from __future__ import annotations

import gc
import os
import random
import sys
from collections import Counter
from collections.abc import Generator
from pathlib import Path

import pytest

# The helpers beside this file (tools.py, ports.py, browser.py) are imported by name, from sub-folders too.
sys.path.insert(0, str(Path(__file__).parent))
from tools import is_missing_program, is_missing_tool, path_without_tools

# Files whose tests take longest. They are started first, so that at the end no worker waits for one of them.
LONG = (
    *("tests/fuzz/test_calls.py", "tests/test_site.py", "tests/demo", "tests/examples", "tests/test_code_blocks.py"),
    *("tests/cli/test_train_command.py", "tests/cli/test_train_table.py", "tests/attention/test_decode_compiles.py"),
    *("tests/training/test_fsdp.py", "tests/training/test_torchrun.py", "tests/training/test_distributed.py"),
)
NEEDS_TOOLS = "lutetia/needs_tools"  # in pytest's cache: the tests that the last run with hidden tools skipped

os.environ.setdefault("MPLBACKEND", "Agg")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # tests start processes that share the cores
if workers := int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "0")):
    # Before torch is loaded: workers that each run a thread per core would fight for the cores.
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // workers)))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--tools",
        choices=("any", "hidden", "only"),
        default="any",
        help="any: use the programs that are installed; hidden: as on a bare machine, no simulator, browser or compiler; "
        "only: run just the tests that the last `hidden` run skipped, and those marked `tools`",
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--tools") == "hidden" and not hasattr(config, "workerinput"):  # workers inherit the path
        os.environ["PATH"] = path_without_tools()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One worker more than cores: tests wait for the processes that they start, and another one can use that time."""
    return int(os.environ.get("PYTEST_XDIST_AUTO_NUM_WORKERS") or (os.cpu_count() or 1) + 1)


def skipped_before(config: pytest.Config) -> set[str]:
    """The tests, or whole modules, that the last run with hidden tools skipped for want of one."""
    return set(config.cache.get(NEEDS_TOOLS, [])) if config.cache else set()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Under `--tools only`, import no module without a test to keep: importing all of them takes longer than many a test."""
    if config.getoption("--tools") != "only" or collection_path.suffix != ".py":
        return None
    modules = {config.rootpath / nodeid.split("::")[0] for nodeid in skipped_before(config)}
    marked = "mark.tools" in collection_path.read_text(encoding="utf-8")
    return None if collection_path in modules or marked else True


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The longest first; under `--tools only`, keep the tests that behave differently where the tools are there."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: not item.nodeid.startswith(LONG))
    if config.getoption("--tools") != "only":
        return
    skipped = skipped_before(config)
    keep = [each for each in items if {each.nodeid, each.nodeid.split("::")[0]} & skipped or each.get_closest_marker("tools")]
    config.hook.pytest_deselected(items=[each for each in items if each not in keep])
    items[:] = keep


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Set up what test modules import. Here and not above, so that the session starts without waiting for torch."""
    if session.config.getoption("numprocesses", None):
        return  # this process only hands tests to its workers
    import torch

    # Triton reads this as its kernels are decorated, so before anything imports it.
    if not torch.cuda.is_available():
        os.environ["TRITON_INTERPRET"] = "1"
    try:
        import hypothesis
    except ImportError:
        return
    # The same examples in every run, and no time limit on a busy machine.
    hypothesis.settings.register_profile("lutetia", derandomize=True, deadline=None, database=None)
    hypothesis.settings.load_profile("lutetia")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Spare the garbage collector the modules, which stay: looking through them again and again takes a tenth of the run."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 100)


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Every test starts from the same random numbers."""
    import torch

    torch.manual_seed(0)
    random.seed(0)


def skip_reasons(reports: list[pytest.TestReport | pytest.CollectReport]) -> Counter[str]:
    """How many tests were skipped for each reason."""
    reasons: Counter[str] = Counter()
    for report in reports:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        reasons[reason.removeprefix("Skipped: ")] += 1
    return reasons


def on_ci() -> bool:
    return os.environ.get("CI", "").lower() not in ("", "0", "false")


def skipped_reports(config: pytest.Config) -> list[pytest.TestReport | pytest.CollectReport]:
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    return reporter.stats.get("skipped", []) if reporter else []


def missing_tools(config: pytest.Config) -> list[str]:
    """The skips that CI does not forgive: a tool that is missing without being hidden."""
    hidden = config.getoption("--tools") == "hidden"
    reasons = skip_reasons(skipped_reports(config))
    return sorted(each for each in reasons if is_missing_tool(each) and not (hidden and is_missing_program(each)))


def remember_what_needs_tools(config: pytest.Config) -> None:
    """Note in pytest's cache which tests, or whole modules, were skipped for want of a program."""
    if config.getoption("--tools") != "hidden" or hasattr(config, "workerinput") or config.cache is None:
        return
    skipped = {each.nodeid for each in skipped_reports(config) if any(map(is_missing_program, skip_reasons([each])))}
    config.cache.set(NEEDS_TOOLS, sorted(skipped))


def pytest_sessionfinish(session: pytest.Session) -> None:
    remember_what_needs_tools(session.config)
    if (
        on_ci()
        and missing_tools(session.config)
        and session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
    ):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(wrapper=True, tryfirst=True)  # outermost, so that this is what the run ends with
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> Generator[None, None, None]:
    yield
    reasons = skip_reasons(terminalreporter.stats.get("skipped", []))
    if not reasons:
        return
    terminalreporter.section("skipped")
    for reason, count in sorted(reasons.items()):
        terminalreporter.line(f"skipped because {reason} ({count} test{'s' if count > 1 else ''})")
    if on_ci() and missing_tools(config):
        terminalreporter.line("CI allows no missing tool: the run fails", red=True)
