"""One pair of nodes with web doors for all tests that need nothing special; each test has topics of its own."""

from collections.abc import Iterator

import pytest

from tests.overlay.door.web.doors import WebServed, web_serving


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebServed]:
    with web_serving(tmp_path_factory.mktemp("web"), 2) as served:
        yield served
