"""`audit_runs`: one row for each run of a job: what it read, what it found, and where the next run goes on."""

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
    comment="Runs of the jobs: what they read and found, the verdict, and where the next one goes on",
    columns=(
        Column("run_id", StringType(), "a new one for each run", nullable=False),
        Column("job", StringType(), "ordering_gaps or delivery_audit", nullable=False),
        Column("started_at", TimestampType(), "by the job's clock", nullable=False),
        Column("finished_at", TimestampType(), "by the job's clock", nullable=False),
        Column("is_full", BooleanType(), "from all records, not only new ones", nullable=False),
        Column("deliveries_id", StringType(), "Delta's id of the table that was read", nullable=False),
        Column("deliveries_version", LongType(), "what was read goes up to here", nullable=False),
        Column("audited_until", TimestampType(), "delivery_audit: windows that end here or earlier are stated"),
        Column("members", ArrayType(MEMBER), "delivery_audit: the roster that it went by"),
        Column("records", LongType(), "delivery records that were new", nullable=False),
        Column("verdict", StringType(), "OK or INCOMPLETE", nullable=False),
        Column(
            "missing",
            LongType(),
            "rows: at receivers that expected them, in all windows or lines so far",
            nullable=False,
        ),
        Column("lost", LongType(), "rows that skips gave up, in all", nullable=False),
        Column("duplicates", LongType(), "rows, in all", nullable=False),
        Column("unaccounted", LongType(), "rows that were published and no node has a record of", nullable=False),
        Column("summary", StringType(), "the same for people", nullable=False),
        Column("receipts", StringType(), "ordering_gaps: the receipts that were read", since=2),
        Column(
            "deleted_until",
            TimestampType(),
            "delivery_audit: records up to here are deleted; windows that begin before stay as they were stated",
            since=2,
        ),
    ),
    key=("run_id",),
    time="finished_at",
    version=2,
)
