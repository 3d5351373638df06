"""The budgets of folders: whose time counts where, and what a run over budget ends with."""

from pathlib import Path

import pytest

from tests.time_table import BUDGETS_S, folder_of, over_budget

ROOT = Path(__file__).parent.parent

pytest_plugins = ["pytester"]


def test_a_folder_without_a_budget_counts_to_the_one_above_it() -> None:
    assert folder_of("tests/test_x.py::test_a") == "tests"
    assert folder_of("tests/overlay/protocol/wire/test_frame.py::test_a[1/2]") == "tests/overlay/protocol"
    assert folder_of("tests/new/test_x.py::test_a") == "tests"


def test_every_budget_is_of_a_folder_that_exists() -> None:
    assert [folder for folder in BUDGETS_S if not (ROOT / folder).is_dir()] == []


def test_more_than_the_budget_is_over_it() -> None:
    budget = BUDGETS_S["tests/jobs"]
    assert over_budget({"tests/jobs": (1, budget), "tests/schemas": (1, 0.1)}) == []
    assert over_budget({"tests/jobs": (1, budget + 0.1), "tests/schemas": (1, 0.1)}) == ["tests/jobs"]


@pytest.mark.parametrize(("variable", "exit_code"), [("1", pytest.ExitCode.TESTS_FAILED), ("", pytest.ExitCode.OK)])
def test_a_run_over_budget_fails_where_budgets_are_kept(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, variable: str, exit_code: pytest.ExitCode
) -> None:
    monkeypatch.setenv("M4CAST_BUDGETS", variable)
    monkeypatch.setitem(BUDGETS_S, "tests", 0)
    pytester.makepyfile(
        **{"tests/test_a": "def test_a(): pass", "tests/schemas/test_b": "def test_b(): pass"},
    )
    pytester.makeconftest(
        "from tests.time_table import TimeTable\n"
        "def pytest_configure(config): config.pluginmanager.register(TimeTable())"
    )
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider")
    assert result.ret == exit_code
    result.stdout.fnmatch_lines(["folder *tests *seconds *budget", "tests * over its budget"])
