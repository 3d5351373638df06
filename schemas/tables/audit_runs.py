"""`audit_runs`: one row for each run of a job: what it read, what it found, and where the next run continues."""

from pyspark.sql.types import ArrayType, BooleanType, LongType, StringType, StructField, StructType, TimestampType

from m4cast.schemas.tables.table import Column, Table

MEMBER = StructType(
    [
        StructField("node_id", StringType()),
        StructField("name", StringType()),
        StructField("address", StringType()),
        StructField("incarnation", LongType()),
        StructField("from_at", TimestampType()),
        StructField("to_at", TimestampType()),
        StructField("reason", StringType()),
        StructField("silent", BooleanType()),
        StructField("has_reported", BooleanType()),
    ]
)

AUDIT_RUNS = Table(
    name="audit_runs",
    comment="Runs of the jobs: what they read and found, the verdict, and where the next run continues",
    columns=(
        Column("run_id", StringType(), "a new one for each run", nullable=False),
        Column("job", StringType(), "ordering_gaps or delivery_audit", nullable=False),
        Column("started_at", TimestampType(), "by the job's clock", nullable=False),
        Column("finished_at", TimestampType(), "by the job's clock", nullable=False),
        Column("is_full", BooleanType(), "whether it read all records, not only new ones", nullable=False),
        Column("deliveries_id", StringType(), "Delta's id of the table that it read", nullable=False),
        Column("deliveries_version", LongType(), "the version of the table that it read", nullable=False),
        Column(
            "audited_until",
            TimestampType(),
            "windows that end here or earlier are closed",
        ),
        Column("members", ArrayType(MEMBER), "the roster that it used"),
        Column("records", LongType(), "delivery records that were new", nullable=False),
        Column("verdict", StringType(), "OK, NOT_READ or INCOMPLETE", nullable=False),
        Column(
            "missing",
            LongType(),
            "rows: at receivers that expected them, in all windows or lines so far",
            nullable=False,
        ),
        Column("lost", LongType(), "rows that skips gave up, in all", nullable=False),
        Column("duplicates", LongType(), "rows, in all", nullable=False),
        Column("unaccounted", LongType(), "rows that were published and no node has a record of", nullable=False),
        Column("summary", StringType(), "the same as text", nullable=False),
        Column("receipts", StringType(), "ordering_gaps: the receipts that were read", since=2),
        Column(
            "deleted_until",
            TimestampType(),
            "delivery records of rows that were published or delivered up to here may be deleted",
            since=2,
        ),
        Column(
            "not_read",
            LongType(),
            "expected rows that are unknown, as records of receivers were not read",
            since=3,
        ),
        Column("selective_topics", ArrayType(StringType()), "topics with selective streams, met so far", since=4),
        Column("interest_read_at", TimestampType(), "the last change of interest that it knew", since=4),
    ),
    key=("run_id",),
    time="finished_at",
    version=4,
)
