"""What all tests share: seeds, threads, Triton's interpreter where there is no GPU, hidden tools, and a list of skips."""

from __future__ import annotations

import gc
import itertools
import os
import random
import signal
import sys
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from _pytest.assertion import rewrite
from _pytest.runner import runtestprotocol

# The helpers beside this file (tools.py, ports.py, browser.py) are imported by name, from sub-folders too.
sys.path.insert(0, str(Path(__file__).parent))
import interpreter
import warm
from tools import is_missing_program, is_missing_tool, path_without_tools

# Files whose tests take longest. They are started first, so that at the end no worker waits for one of them.
LONG = (
    *("tests/fuzz/test_calls.py", "tests/test_site.py", "tests/demo", "tests/examples", "tests/test_code_blocks.py"),
    *("tests/cli/test_train_command.py", "tests/cli/test_train_table.py", "tests/attention/test_decode_compiles.py"),
    *("tests/training/test_fsdp.py", "tests/training/test_torchrun.py", "tests/training/test_distributed.py"),
)
WHOLE_PATH = "LUTETIA_WHOLE_PATH"  # the PATH with the tools, while they are hidden

os.environ.setdefault("MPLBACKEND", "Agg")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # tests start processes that share the cores
os.environ.setdefault("TORCH_DYNAMO_RUN_GC_AFTER_COMPILE", "0")
gc.disable()  # until all is imported


def share_cores(workers: int) -> None:
    """Before torch is loaded: workers that each run a thread per core would fight for the cores."""
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // workers)))


if workers := int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "0")):
    share_cores(workers)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--tools",
        choices=("any", "hidden", "both"),
        default="any",
        help="any: use the programs that are installed; hidden: as on a bare machine, no simulator, browser or compiler; "
        "both: hidden, and then with the tools each test that was skipped for want of one, and each marked `tools`",
    )


def pytest_configure(config: pytest.Config) -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell's background job: commands under test would inherit it
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if config.getoption("--tools") != "any" and not hasattr(config, "workerinput"):  # workers inherit both paths
        os.environ[WHOLE_PATH] = os.environ["PATH"]
        os.environ["PATH"] = path_without_tools()
    if workers := config.getoption("numprocesses", None):
        share_cores(workers)
        if not warm.has_gpu():
            config.option.tx = [f"popen//python={warm.command()}"] * len(config.option.tx)
        for name in ("plain", *(["yosys"] if warm.has_yosys() else [])):
            warm.server(name)  # here, so that all workers have one


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One worker more than cores: tests wait for the processes that they start, and another one can use that time."""
    return int(os.environ.get("PYTEST_XDIST_AUTO_NUM_WORKERS") or (os.cpu_count() or 1) + 1)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The longest first."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: not item.nodeid.startswith(LONG))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Under `--tools both`, run a test without the tools, then with them if it asked for one; the last run counts."""
    both = item.config.getoption("--tools") == "both"
    if not both and not hasattr(item.config, "workerinput"):
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    reports = runtestprotocol(item, log=False, nextitem=nextitem)
    if both and asked_for_tools(item, reports):
        hidden, os.environ["PATH"] = os.environ["PATH"], os.environ[WHOLE_PATH]
        try:
            forget_skipped_fixtures(item)
            reports = runtestprotocol(item, log=False, nextitem=nextitem)
        finally:
            os.environ["PATH"] = hidden
    for report in worth_telling(item.config, reports):
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def asked_for_tools(item: pytest.Item, reports: list[pytest.TestReport]) -> bool:
    failed = any(report.failed for report in reports)
    asked = any(map(is_missing_program, skip_reasons([report for report in reports if report.skipped])))
    return asked or (item.get_closest_marker("tools") is not None and not failed)


def worth_telling(config: pytest.Config, reports: list[pytest.TestReport]) -> list[pytest.TestReport]:
    """A worker says of a test that passed only that: setting up and tearing down are two messages more, of half a millisecond."""
    if not hasattr(config, "workerinput") or config.getoption("durations") is not None or config.getoption("xmlpath", None):
        return reports
    return [report for report in reports if report.when == "call" or not report.passed]


def forget_skipped_fixtures(item: pytest.Item) -> None:
    """Let a test be set up anew: pytest keeps what a fixture raised, as it keeps what one gave."""
    assert isinstance(item, pytest.Function)
    item._initrequest()
    for definition in itertools.chain(*item._fixtureinfo.name2fixturedefs.values()):
        if definition.cached_result is not None and definition.cached_result[2] is not None:
            definition.finish(item._request)


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Set up what test modules import. Here and not above, so that the session starts without waiting for torch."""
    if session.config.getoption("numprocesses", None):
        return  # this process only hands tests to its workers
    if hasattr(session.config, "workerinput") and session.config.args_source is pytest.Config.ArgsSource.TESTPATHS:
        rewrite_share(session.config)
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


def rewrite_share(config: pytest.Config) -> None:
    """Rewrite the assertions of every Nth test module, N workers sharing them: each imports all, and would rewrite all."""
    number, count = int(os.environ["PYTEST_XDIST_WORKER"].removeprefix("gw")), int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
    for path in sorted(Path(__file__).parent.rglob("test_*.py"))[number::count]:
        folder = rewrite.get_cache_dir(path)
        pyc = folder / (path.stem + rewrite.PYC_TAIL)
        if rewrite._read_pyc(path, pyc) is None and rewrite.try_makedirs(folder):
            stat, code = rewrite._rewrite_test(path, config)
            rewrite._write_pyc(config.stash[rewrite.assertstate_key], code, stat, pyc)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Now that all is imported."""
    interpreter.remember()
    warm.quick_yosys()
    spare_collector()
    gc.set_threshold(100_000, 20, 100)
    gc.enable()


def spare_collector() -> None:
    """Let the garbage collector pass over all that is there: to look through modules again and again took a tenth of the run."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="module")
def what_stays() -> Iterator[None]:
    """Tests leave much that stays: graphs that were compiled, caches, what is reported of each."""
    yield
    spare_collector()


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Every test starts from the same random numbers."""
    import torch

    # Without a GPU, torch.manual_seed would note where it was called from, for the day when there is one: four milliseconds.
    (torch.manual_seed if torch.cuda.is_available() else torch.default_generator.manual_seed)(0)
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


def pytest_sessionfinish(session: pytest.Session) -> None:
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
