"""Few records are interpreted, small tables in one task, and a session is left as it was."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from m4cast.jobs.session import FEW_RECORDS, IN_ONE_TASK, INTERPRETED, S3_SETTINGS, interpreted_if_few

JOBS = Path(__file__).parents[2] / "docs" / "JOBS.md"
AS_COMPILED = {"spark.sql.codegen.wholeStage": "true", "spark.sql.codegen.factoryMode": "CODEGEN_ONLY"}


@pytest.mark.parametrize(("records", "expected"), [(FEW_RECORDS, INTERPRETED), (FEW_RECORDS + 1, AS_COMPILED)])
def test_few_records_are_interpreted(spark: SparkSession, records: int, expected: dict[str, str]) -> None:
    session = spark.newSession()
    for key, value in AS_COMPILED.items():
        session.conf.set(key, value)

    def settings() -> dict[str, str | None]:
        return {key: session.conf.get(key) for key in INTERPRETED}

    def fail() -> None:
        with interpreted_if_few(session, records):
            seen.update(settings())
            raise RuntimeError("in the middle")

    seen: dict[str, str | None] = {}
    with pytest.raises(RuntimeError, match="in the middle"):
        fail()
    assert seen == expected
    assert settings() == AS_COMPILED


def test_the_settings_for_object_stores_are_those_of_the_page() -> None:
    page = JOBS.read_text(encoding="utf-8")
    for name, value in S3_SETTINGS.items():
        assert f"--spark-conf {name}={value}" in page


def test_small_tables_are_read_in_one_task(spark: SparkSession) -> None:
    session = spark.newSession()
    session.conf.unset("spark.sql.leafNodeDefaultParallelism")

    def settings() -> dict[str, str | None]:
        return {key: session.conf.get(key, None) for key in IN_ONE_TASK}

    before = settings()
    with interpreted_if_few(session, FEW_RECORDS + 1, is_small=True):
        assert settings() == IN_ONE_TASK
        assert session.sql("SELECT id FROM range(10)").groupBy("id").count().rdd.getNumPartitions() == 1
    assert settings() == before != IN_ONE_TASK
