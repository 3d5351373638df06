"""Which tests run beside which: the suite runs in two processes (`make test`), the tests of a file in one of them.

All tests that use Spark stay together, since a second JVM would cost more time than it saves. Simulation comes first:
it takes longest, and the two processes should end together.
"""

import pytest

SPARK_FIXTURE = "spark"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        uses_spark = SPARK_FIXTURE in getattr(item, "fixturenames", ())
        item.add_marker(pytest.mark.xdist_group(SPARK_FIXTURE if uses_spark else _file(item)))
    items.sort(key=lambda item: not _file(item).startswith("tests/simulation/"))


def _file(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]
