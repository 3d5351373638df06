"""Runs of jobs, as `audit_runs` keeps them: what they read and found, and where the next one goes on."""

import uuid
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any

from pyspark.sql import functions as F

from m4cast.jobs.tables import Tables, frame
from m4cast.schemas.tables.audit_runs import AUDIT_RUNS


@dataclass(frozen=True, slots=True)
class Member:
    """One incarnation of a node, as the audit takes it from the roster."""

    node_id: str
    name: str
    address: str
    incarnation: int
    from_at: datetime
    to_at: datetime | None
    reason: str | None
    silent: bool
    has_reported: bool
    """There is a delivery record of the node."""


@dataclass(frozen=True, slots=True)
class Run:
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
    members: tuple[Member, ...] | None = None
    verdict: str = ""
    missing: int = 0
    lost: int = 0
    duplicates: int = 0
    unaccounted: int = 0
    summary: str = ""
    receipts: str | None = None
    deleted_until: datetime | None = None
    not_read: int | None = 0

    @classmethod
    def begun(
        cls, job: str, started_at: datetime, deliveries_id: str, deliveries_version: int, *, is_full: bool, records: int
    ) -> "Run":
        run_id = uuid.uuid4().hex
        return cls(run_id, job, started_at, started_at, is_full, deliveries_id, deliveries_version, records)

    def ended(self, *, missing: int, lost: int, not_read: int, duplicates: int, unaccounted: int) -> "Run":
        """With what was found, and the verdict that follows from it."""
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


def record_run(tables: Tables, run: Run) -> None:
    tables.append(AUDIT_RUNS, frame(tables.spark, [asdict(run)], AUDIT_RUNS.schema))


def last_run(tables: Tables, job: str) -> Run | None:
    """The latest run of the job that was finished."""
    return next((run for run in last_runs(tables) if run.job == job), None)


def last_runs(tables: Tables) -> list[Run]:
    """The latest run of each job that was finished."""
    runs = tables.read(AUDIT_RUNS)
    latest = runs.groupBy("job").agg(F.max_by(F.struct(*runs.columns), "finished_at").alias("run")).select("run.*")
    found = []
    for row in latest.collect():
        fields = in_utc(row.asDict(recursive=True))
        members = fields.pop("members")
        told = None if members is None else tuple(Member(**in_utc(each)) for each in members)
        found.append(Run(**fields, members=told))
    return found


def in_utc(fields: dict[str, Any]) -> dict[str, Any]:
    """Spark hands moments over in this process's own zone, without saying so."""
    return {name: value.astimezone(UTC) if isinstance(value, datetime) else value for name, value in fields.items()}
