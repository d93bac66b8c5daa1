"""Processor time: a plugin that says what each test costs, the processes that it starts included.

A test without the mark ``slow`` may take ``--max-seconds``, and all together ``--max-minutes``; the
run fails otherwise. A fixture counts for the first test that uses it, and a process when it has
been waited for.
"""

from __future__ import annotations

import resource
from collections.abc import Generator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from _pytest.terminal import TerminalReporter

SHOWN = 30
PROPERTY = "processor_s"
BEGAN = pytest.StashKey[float]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the two limits."""
    parser.addoption("--max-seconds", type=float, help="processor time of a test not marked slow")
    parser.addoption("--max-minutes", type=float, help="processor time of all tests")


def spent() -> float:
    """Return the processor time of this process and of its children that have ended."""
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in usages)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, bool | None, bool | None]:
    """Note when a test begins."""
    item.stash[BEGAN] = spent()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add what a test has cost when it has been torn down."""
    report = yield
    if call.when == "teardown":
        is_slow = item.get_closest_marker("slow") is not None
        report.user_properties.append((PROPERTY, [spent() - item.stash[BEGAN], is_slow]))
    return report


def list_costs(config: pytest.Config) -> list[tuple[float, bool, str]]:
    """Return seconds, whether it is marked slow, and the name of each test, the longest first."""
    reporter: TerminalReporter | None = config.pluginmanager.get_plugin("terminalreporter")
    reports = [one for found in reporter.stats.values() for one in found] if reporter else []
    return sorted(
        (
            (*value, report.nodeid)
            for report in reports
            if getattr(report, "when", None) == "teardown"
            for name, value in report.user_properties
            if name == PROPERTY
        ),
        reverse=True,
    )


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail if a limit is exceeded."""
    if find_failures(list_costs(session.config), session.config):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: TerminalReporter, config: pytest.Config) -> None:
    """Show the sum, the tests that cost most, and which are over a limit."""
    costs = list_costs(config)
    total = sum(seconds for seconds, *_ in costs)
    terminalreporter.section(f"processor time: {total / 60:.1f} minutes")
    for seconds, _, test in costs[:SHOWN]:
        terminalreporter.write_line(f"{seconds:7.1f} s  {test}")
    for line in find_failures(costs, config):
        terminalreporter.write_line(f"TOO SLOW: {line}", red=True)


def find_failures(costs: list[tuple[float, bool, str]], config: pytest.Config) -> list[str]:
    """Return what is over a limit."""
    most, all_of_them = (config.getoption(name) for name in ("max_seconds", "max_minutes"))
    found = []
    if most is not None:
        found += [
            f"{test} takes {seconds:.1f} of {most:g} s and is not marked slow"
            for seconds, is_slow, test in costs
            if seconds > most and not is_slow
        ]
    total = sum(seconds for seconds, *_ in costs) / 60
    if all_of_them is not None and total > all_of_them:
        found.append(f"all tests take {total:.1f} of {all_of_them:g} minutes")
    return found
