"""Few records are interpreted, and a session is left as it was."""

import pytest
from pyspark.sql import SparkSession

from m4cast.jobs.session import FEW_RECORDS, INTERPRETED, interpreted_if_few

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
