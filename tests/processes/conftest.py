"""The campaigns in network namespaces wait for most of their minutes, so they begin with the first test of this folder
and run beside the others; the tests that look at how they ended come last (see `tests/conftest.py`)."""

from collections.abc import Iterator
from typing import cast

import pytest

from tests.processes.campaigns import Campaigns


@pytest.fixture(scope="session", autouse=True)
def campaigns(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Campaigns]:
    begun = Campaigns(tmp_path_factory.mktemp("campaigns"))
    try:
        for item in request.session.items:
            if isinstance(item, pytest.Function) and "campaign" in item.fixturenames:
                begun.begin(*cast(tuple[str, str, float], item.callspec.params["campaign"]))
        yield begun
    finally:
        begun.end()
