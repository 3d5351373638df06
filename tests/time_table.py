"""Time of a test run: a table per folder after the tests, and a budget for each folder.

A run with `M4CAST_BUDGETS` set (as `.ci/run` does) fails if a folder is over its budget, so that the whole suite stays
as short as it is. Budgets leave room for a machine that does other work as well, about one and a half times what the
tests of a folder took on one.
"""

import os
from collections import defaultdict

import pytest
from _pytest.terminal import TerminalReporter

BUDGETS_S = {
    "tests": 450,
    "tests/bench": 180,
    "tests/fuzz": 60,
    "tests/docs": 950,
    "tests/jobs": 2_700,
    "tests/overlay": 60,
    "tests/overlay/bridge": 300,
    "tests/overlay/client": 240,
    "tests/overlay/door": 360,
    "tests/overlay/federation": 120,
    "tests/overlay/net": 120,
    "tests/overlay/profiles": 120,
    "tests/overlay/protocol": 300,
    "tests/overlay/sim": 60,
    "tests/overlay/store": 120,
    "tests/processes": 400,
    "tests/schemas": 60,
    "tests/security": 180,
    "tests/simulation": 1_600,
    "tests/spark_connector": 1_100,
}
"""Seconds that the tests of a folder may take together; of a folder that is not here, those of the one above it."""


def folder_of(nodeid: str) -> str:
    folder = nodeid.partition("::")[0].rpartition("/")[0]
    while folder not in BUDGETS_S and "/" in folder:
        folder = folder.rpartition("/")[0]
    return folder


def measured(reporter: TerminalReporter) -> dict[str, tuple[int, float]]:
    """Folder -> (tests, seconds), the slowest first."""
    seconds: dict[str, float] = defaultdict(float)
    tests: dict[str, set[str]] = defaultdict(set)
    for reports in reporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                folder = folder_of(report.nodeid)
                seconds[folder] += report.duration
                tests[folder].add(report.nodeid)
    ordered = sorted(seconds, key=lambda folder: -seconds[folder])
    return {folder: (len(tests[folder]), seconds[folder]) for folder in ordered}


def over_budget(table: dict[str, tuple[int, float]]) -> list[str]:
    return [folder for folder, (_, seconds) in table.items() if seconds > BUDGETS_S.get(folder, BUDGETS_S["tests"])]


class TimeTable:
    """Prints the table, and fails the run where budgets are kept."""

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        reporter = session.config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None and os.environ.get("M4CAST_BUDGETS") and over_budget(measured(reporter)):
            session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: TerminalReporter) -> None:
        table = measured(terminalreporter)
        if len(table) < 2:
            return
        terminalreporter.section("time per folder")
        terminalreporter.write_line(f"{'folder':30} {'tests':>6} {'seconds':>8} {'budget':>7}")
        late = over_budget(table)
        for folder, (tests, seconds) in table.items():
            mark = "  over its budget" if folder in late else ""
            terminalreporter.write_line(f"{folder:30} {tests:>6} {seconds:>8.1f} {BUDGETS_S.get(folder, 0):>7}{mark}")
