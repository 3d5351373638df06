"""Runs of jobs, as stored in `audit_runs`: what they read and found, and where the next run continues."""

import uuid
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any

from pyspark.sql import functions as F

from m4cast.jobs.table_folder import TableFolder, frame
from m4cast.schemas.tables.audit_runs import AUDIT_RUNS


@dataclass(frozen=True, slots=True)
class NodeLife:
    """One incarnation of a node, from the roster."""

    node_id: str
    name: str
    address: str
    incarnation: int
    from_at: datetime
    to_at: datetime | None
    reason: str | None
    silent: bool
    has_reported: bool
    """True if the node has a delivery record."""


@dataclass(frozen=True, slots=True)
class AuditRun:
    """The columns of `audit_runs`."""

    run_id: str
    job: str
    started_at: datetime
    finished_at: datetime
    is_full: bool
    deliveries_id: str
    deliveries_version: int
    records: int
    audited_until: datetime | None = None
    members: tuple[NodeLife, ...] | None = None
    verdict: str = ""
    missing: int = 0
    lost: int = 0
    duplicates: int = 0
    unaccounted: int = 0
    summary: str = ""
    receipts: str | None = None
    deleted_until: datetime | None = None
    not_read: int | None = 0
    selective_topics: tuple[str, ...] | None = None
    interest_read_at: datetime | None = None

    @classmethod
    def begun(
        cls, job: str, started_at: datetime, deliveries_id: str, deliveries_version: int, *, is_full: bool, records: int
    ) -> "AuditRun":
        run_id = uuid.uuid4().hex
        return cls(
            run_id=run_id,
            job=job,
            started_at=started_at,
            finished_at=started_at,
            is_full=is_full,
            deliveries_id=deliveries_id,
            deliveries_version=deliveries_version,
            records=records,
        )

    def ended(self, *, missing: int, lost: int, not_read: int, duplicates: int, unaccounted: int) -> "AuditRun":
        """The run with its findings and the resulting verdict."""
        is_known = missing == lost == unaccounted == 0
        return replace(
            self,
            finished_at=datetime.now(UTC),
            verdict=("NOT_READ" if not_read else "OK") if is_known else "INCOMPLETE",
            missing=missing,
            lost=lost,
            not_read=not_read,
            duplicates=duplicates,
            unaccounted=unaccounted,
        )


def record_run(tables: TableFolder, run: AuditRun) -> None:
    tables.append(AUDIT_RUNS, frame(tables.spark, [asdict(run)], AUDIT_RUNS.schema))


def last_run(runs: Iterable[AuditRun], job: str) -> AuditRun | None:
    """The latest finished run of the job, of `last_runs`."""
    return next((run for run in runs if run.job == job), None)


def last_runs(tables: TableFolder) -> list[AuditRun]:
    """The latest finished run of each job."""
    runs = tables.read(AUDIT_RUNS)
    latest = runs.groupBy("job").agg(F.max_by(F.struct(*runs.columns), "finished_at").alias("run")).select("run.*")
    found = []
    for row in latest.collect():
        fields = in_utc(row.asDict(recursive=True))
        members = fields.pop("members")
        known = None if members is None else tuple(NodeLife(**in_utc(each)) for each in members)
        topics = tuple(fields.pop("selective_topics") or ())
        found.append(AuditRun(**fields, members=known, selective_topics=topics))
    return found


def in_utc(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields with times in UTC: Spark returns them without a zone, in that of this process."""
    return {name: value.astimezone(UTC) if isinstance(value, datetime) else value for name, value in fields.items()}
