"""Masks equal Spark SQL's answers in ANSI mode, with the session's time zone at UTC."""

from collections.abc import Iterator
from random import Random
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from m4cast.overlay.profiles.evaluation import BatchTerms
from m4cast.overlay.profiles.profile import parse
from tests.overlay.profiles.agreement import agreed_filter, agreement_batch, spark_text

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WRITTEN = [
    "s = 'it''s' OR s = 'x_y\\\\z'",
    "s LIKE 'x\\_y%' OR s LIKE 'b#%' ESCAPE '#'",
    "lower(s) = 'zürich' AND s <> 'zürich'",
    "NOT (i32 BETWEEN 0 AND 5.5) AND d9 NOT IN (5, 0.1)",
    "i32 <=> NULL OR NOT (b <=> TRUE)",
    "b AND NOT (f64 > 4.5) OR b IS NOT TRUE",
    "ts >= '2026-01-01 12:30:00' AND day < '2026-06-30'",
    "tsz > TIMESTAMP '2026-01-01 13:30:00+01:00' OR ts = TIMESTAMP '2026-01-01'",
    "i64 = '5' OR f64 < '0.1' OR i32 IN ('1', '5')",
    "f64 = double('NaN') OR f64 > 1e299",
    "f32 = 0.1F OR f64 IN (0.1F, 4.5F) OR f32 < -1.25F",
    "y = X'FFFE' OR y < X'61'",
    "st.x = 1 OR st.t IS NULL",
    "i64 = 9007199254740993 OR i64 > 1e18",
    "s IN ('a', NULL) OR s NOT IN ('b', NULL)",
]
"""Filters as people write them, each in both engines."""


@pytest.fixture
def utc(spark: "SparkSession") -> Iterator["SparkSession"]:
    names = {"spark.sql.session.timeZone": "UTC", "spark.sql.ansi.enabled": "true"}
    before = {name: spark.conf.get(name) for name in names}
    for name, setting in names.items():
        spark.conf.set(name, setting)
    yield spark
    for name, former in before.items():
        spark.conf.set(name, str(former))


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_masks_equal_spark(utc: "SparkSession", seed: int) -> None:
    random = Random(seed)
    batch = agreement_batch(random, 50)
    terms = BatchTerms(batch)
    made = [agreed_filter(random, random.choice([0, 0, 1])) for _ in range(200)]
    texts = [*WRITTEN, *map(spark_text, made)]
    frame = utc.createDataFrame(pa.table(batch))
    answers = frame.selectExpr(*(f"coalesce({text}, FALSE) AS c{at}" for at, text in enumerate(texts))).toArrow()
    for at, text in enumerate(texts):
        assert terms.mask(parse(text).condition).tolist() == answers.column(at).to_pylist(), text
    assert terms.errors == 0
