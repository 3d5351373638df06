"""Tables of one channel, with gaps and audit done, for all tests that look at them."""

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.jobs.scenarios import BEGIN, channel

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def audited(spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder."""
    from tests.jobs.audited import make_audited

    folder: Path = tmp_path_factory.mktemp("audited")
    make_audited(spark, str(folder), channel(), BEGIN + timedelta(hours=1))
    return str(folder)
