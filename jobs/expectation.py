"""Expectations of rows: which ones a receiver should have, and which remain unknown. Shared by gaps and audit.

A row is *expected* at a receiver that was on the channel when the row was published, according to the roster, and, if
its stream is selective, wanted the row then (see `wants`). If a receiver has no record of an expected row, the row is

    missing       in general;
    not expected  if it precedes all of the receiver's records of its stream: the receiver began there (at `latest`), or
                  its earlier records were deleted (`m4cast maintain`); or if the receiver has no record of the stream,
                  some of its records were deleted, and the row is old enough to have been in them;
    not read      if the receiver has left, or has no record at all, and the row follows all of its records of the
                  stream: its last records are gone or were never ingested, and may have contained the row.

A node numbers its delivery records from 1 without gaps, and delivers each stream in order. So numbers decide whether
records of a node were deleted and which rows they may have contained; clocks, which differ, are used as little as
possible.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from m4cast.jobs.ranges import islands
from m4cast.jobs.runs import AuditRun, NodeLife, in_utc
from m4cast.jobs.table_folder import TableFolder, frame
from m4cast.jobs.wants import BATCH, InterestFacts
from m4cast.schemas.tables.deliveries import DELIVERIES

NODES = StructType([StructField("node_id", StringType())])


# Members


def roster_members(roster: DataFrame, reporters: Iterable[str]) -> tuple[NodeLife, ...]:
    reported = set(reporters)
    rows = [in_utc(row.asDict()) for row in roster.collect()]
    names = [name for name in NodeLife.__slots__ if name != "has_reported"]
    found = [NodeLife(**{name: row[name] for name in names}, has_reported=row["node_id"] in reported) for row in rows]
    return tuple(sorted(found, key=lambda member: (member.node_id, member.incarnation)))


def membership_changes(before: Sequence[NodeLife], now: Sequence[NodeLife]) -> datetime | None:
    """The earliest moment at which the two rosters disagree about who was a member; None if they agree."""

    def spans(members: Sequence[NodeLife]) -> dict[tuple[str, int], tuple[datetime, datetime | None]]:
        return {(each.node_id, each.incarnation): (each.from_at, each.to_at) for each in members}

    old, new = spans(before), spans(now)
    times: list[datetime] = []
    for key in old.keys() | new.keys():
        for one, other in ((old.get(key), new.get(key)), (new.get(key), old.get(key))):
            if one is not None and other is None:
                times.append(one[0])
            elif one is not None and other is not None:
                times += [mine for mine, theirs in zip(one, other, strict=True) if mine is not None and mine != theirs]
    return min(times, default=None)


def gone_nodes(members: Iterable[NodeLife]) -> set[str]:
    """Nodes that have left and not returned."""
    latest = {each.node_id: each for each in sorted(members, key=lambda each: each.incarnation)}
    return {node_id for node_id, each in latest.items() if each.to_at is not None}


def of_roster(members: Iterable[NodeLife] | None, nodes: set[str]) -> set[str]:
    """The nodes that belong to this channel. Records of others were copied (see `beyond`), and only in part."""
    return nodes if members is None else nodes & {each.node_id for each in members}


def unread_nodes(members: Iterable[NodeLife] | None) -> list[str]:
    """Nodes whose last records will not be read, since they have left, and nodes without any record."""
    found = tuple(members or ())
    return sorted(gone_nodes(found) | {each.node_id for each in found if not each.has_reported})


def members_of(
    roster: DataFrame, reporters: DataFrame, within: Sequence[str] = (), cut: DataFrame | None = None
) -> DataFrame:
    """One row per node of the roster: its memberships, whether it is silent or gone, its host, whether it has a
    delivery record (`reporters`), and whether some of its records were deleted (`cut`)."""
    keys = [*within, "node_id"]
    is_silent = F.col("silent") & F.col("to_at").isNull()
    members = roster.groupBy(*keys).agg(
        F.collect_list(F.struct("from_at", "to_at")).alias("memberships"),
        F.max_by(is_silent, "incarnation").alias("silent"),
        F.max_by(F.col("to_at").isNotNull(), "incarnation").alias("is_gone"),
        F.max_by(F.regexp_replace("address", ":[0-9]+$", ""), "incarnation").alias("host"),
    )
    marks = {"has_reported": reporters, "is_cut": cut}
    for name, nodes in marks.items():
        if nodes is None:
            members = members.withColumn(name, F.lit(False))
            continue
        marked = nodes.select(*keys).distinct().withColumn(name, F.lit(True))
        members = members.join(marked, on=keys, how="left").withColumn(name, F.col(name).isNotNull())
    return members


def nodes_frame(tables: TableFolder, nodes: Iterable[str]) -> DataFrame:
    return frame(tables.spark, [{"node_id": each} for each in sorted(nodes)], NODES)


def is_member() -> Column:
    """True if a receiver with `memberships` was on the channel at `published_at`."""
    at = F.col("published_at")
    return F.coalesce(
        F.exists("memberships", lambda each: (each["from_at"] <= at) & (each["to_at"].isNull() | (at < each["to_at"]))),
        F.lit(False),
    )


def expected_ranges(
    batches: DataFrame, members: DataFrame, within: Sequence[str] = (), wants: InterestFacts | None = None
) -> DataFrame:
    """The sequences of the batches that each member was expected to receive, in as few ranges as possible."""
    published = batches.select(
        *within,
        "origin",
        "topic",
        F.col("first_sequence").alias("first"),
        F.col("last_sequence").alias("last"),
        "published_at",
    ).distinct()
    nodes = F.broadcast(members.select(*within, "node_id", "memberships"))
    pairs = published.join(nodes, on=list(within), how="inner") if within else published.crossJoin(nodes)
    pairs = pairs.where(is_member())
    if wants is not None:
        streams = F.broadcast(wants.streams.withColumn("is_selective", F.lit(True)))
        wanted = wants.batches.where("is_wanted").select(*BATCH, "node_id", "is_wanted")
        pairs = pairs.join(streams, on=["origin", "topic"], how="left").join(wanted, on=[*BATCH, "node_id"], how="left")
        pairs = pairs.where(F.col("is_selective").isNull() | F.col("is_wanted"))
    expected = pairs.select(*within, "node_id", "origin", "topic", "first", "last")
    return islands(expected, [*within, "node_id", "origin", "topic"])


# Deleted records


@dataclass(frozen=True, slots=True)
class Deleted:
    """Delivery records that were deleted."""

    until: datetime
    """None of these records is about a row published, or a delivery made, after this moment."""
    nodes: frozenset[str]
    """Nodes with deleted records."""


def find_deleted(
    tables: TableFolder,
    records: DataFrame,
    last: AuditRun | None,
    version: int,
    reporters: Iterable[str],
    now: datetime,
    *,
    is_full: bool,
) -> Deleted | None:
    """The records deleted up to a version of `deliveries`, of which `records` are left. `reporters`: nodes that have,
    or had, records."""

    def cut() -> frozenset[str]:
        whole = records.where(F.col("delivery") == 1).select("node_id").distinct().collect()
        return frozenset(reporters) - {row["node_id"] for row in whole}

    until = None if last is None else last.deleted_until
    try:
        if last is not None:
            latest = F.max(F.greatest("delivered_at", "published_at")).alias("at")
            gone = tables.deleted(DELIVERIES, last.deliveries_version, version).agg(latest)
            found = in_utc(gone.collect()[0].asDict())["at"]
            until = max((each for each in (until, found) if each is not None), default=None)
    except PySparkException:
        if not is_full:
            raise
        last = None  # the versions since the last run are gone, and with them what was deleted
    if last is None:
        return Deleted(now, nodes) if (nodes := cut()) else None
    return None if until is None else Deleted(until, cut())
