"""What all tests share: seeds, Triton's interpreter where there is no GPU, and a last word on what was skipped."""

from __future__ import annotations

import os
import random
import sys
from collections import Counter
from collections.abc import Generator
from pathlib import Path

import pytest

# The helpers beside this file (tools.py, ports.py, browser.py) are imported by name, from sub-folders too.
sys.path.insert(0, str(Path(__file__).parent))
from tools import is_missing_tool

os.environ.setdefault("MPLBACKEND", "Agg")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # tests start processes that share the cores


@pytest.hookimpl(tryfirst=True)
def pytest_collection() -> None:
    """Set up what test modules import. Here and not above, so that the session starts without waiting for torch."""
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


def missing_tools(config: pytest.Config) -> list[str]:
    """The skips that CI does not forgive."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    skipped = reporter.stats.get("skipped", []) if reporter else []
    return sorted(filter(is_missing_tool, skip_reasons(skipped)))


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
