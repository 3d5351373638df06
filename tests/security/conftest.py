"""Fixtures of the tests of bad peers and strangers."""

from collections.abc import Iterator

import pytest

from tests.overlay.door.web.doors import WebServed, web_serving
from tests.security.attackers import Certificates
from tests.security.narrow_door import NARROW, ORIGIN


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebServed]:
    """A plain node whose web door has low limits, and serves the pages of one origin."""
    with web_serving(tmp_path_factory.mktemp("narrow"), 1, NARROW, origins=(ORIGIN,)) as web:
        yield web
