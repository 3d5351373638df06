"""SQL views over the audit's tables: `m4cast_latest`, `m4cast_missing` and `m4cast_health`.

They read the tables by their paths. Temporary views need only a session that can read Delta. Permanent views need a
catalog that stores views: name one of its schemas (a Hive metastore behind `spark_catalog` stores them; Spark's
in-memory catalog loses them with the session).
"""

from pyspark.sql import SparkSession

from m4cast.jobs.table_folder import TableFolder
from m4cast.schemas.tables.delivery_audit import DELIVERY_AUDIT
from m4cast.schemas.tables.ordering_gaps import ORDERING_GAPS
from m4cast.schemas.tables.roster import ROSTER

NAMES = "SELECT node_id, max_by(name, incarnation) AS name FROM {roster} GROUP BY node_id"
VIEWS = {
    "m4cast_latest": f"""
        SELECT coalesce(o.name, a.origin) AS origin, a.topic, coalesce(r.name, a.node_id) AS receiver, latest.*
        FROM (SELECT origin, topic, node_id, max_by(struct(window_start, status, published, delivered, missing, lost,
                completeness, latency_p50_ms, latency_p99_ms, clocks), window_start) AS latest
              FROM {{delivery_audit}} GROUP BY origin, topic, node_id) a
        LEFT JOIN ({NAMES}) o ON a.origin = o.node_id
        LEFT JOIN ({NAMES}) r ON a.node_id = r.node_id""",
    "m4cast_missing": f"""
        SELECT coalesce(o.name, g.origin) AS origin, g.topic, coalesce(r.name, g.node_id) AS receiver, g.first, g.last,
               coalesce(g.expected, g.last - g.first + 1) AS rows, g.is_tail, g.first_seen_at
        FROM {{ordering_gaps}} g
        LEFT JOIN ({NAMES}) o ON g.origin = o.node_id
        LEFT JOIN ({NAMES}) r ON g.node_id = r.node_id
        WHERE g.line = 'stream' AND g.state = 'MISSING' AND coalesce(g.expected, 1) > 0""",
    "m4cast_health": f"""
        SELECT coalesce(r.name, a.node_id) AS receiver, sum(a.expected) AS expected, sum(a.missing) AS missing,
               sum(a.lost) AS lost, sum(coalesce(a.not_read, 0)) AS not_read, sum(a.duplicates) AS duplicates,
               100 * (1 - (sum(a.missing) + sum(a.lost))
                      / nullif(sum(a.expected) - sum(coalesce(a.not_read, 0)), 0)) AS completeness,
               max(a.latency_p99_ms) AS worst_p99_ms, max(a.window_start) AS last_window,
               max_by(a.status, struct(a.window_start, a.missing)) AS last_status
        FROM {{delivery_audit}} a LEFT JOIN ({NAMES}) r ON a.node_id = r.node_id
        GROUP BY a.node_id, r.name""",
}


def create_views(spark: SparkSession, folder: str, schema: str | None = None) -> list[str]:
    """Create the views over the tables in `folder`, in this session or in a catalog's schema; returns their names."""
    tables = TableFolder(spark, folder)
    places = {}
    for table in (DELIVERY_AUDIT, ORDERING_GAPS, ROSTER):
        tables.read(table)  # raises if it is missing
        tables.ensure(table)
        places[table.name] = table.quoted(folder)
    kind = "TEMPORARY VIEW" if schema is None else "VIEW"
    names = [name if schema is None else f"{schema}.{name}" for name in VIEWS]
    for name, query in zip(names, VIEWS.values(), strict=True):
        spark.sql(f"CREATE OR REPLACE {kind} {name} AS {query.format(**places)}")
    return names
