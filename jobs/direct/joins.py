"""Joins: from which row on, and since when, the shared query reads a topic.

All topics share one query, but each can begin, fail and begin again on its own. A *join* gives a topic a number and the
first sequence to read of each of its streams. Offsets contain the number of each topic's join: as long as it is the
present one, the topic's position is in the offset; otherwise the topic begins at the start of its join. So a topic that
failed in a micro-batch joins again at the beginning of that micro-batch, while the query and the other topics go on.

Joins are kept beside the query's checkpoint, a file for each topic, written before anything depends on them. The
planner of the query, which Spark runs in a process of its own, gets them with the layouts of the tables from another
file, the *plan*, which means nothing once the driver has ended.
"""

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from m4cast.jobs.direct.durable import sync

Start = dict[str, int]
"""The next sequence of each stream of one topic, by origin. Streams that are not named begin at 1."""


@dataclass(frozen=True, slots=True)
class TopicJoin:
    query: str
    """The query of this folder that reads the topic: `Ingest.selection`."""
    number: int
    start: Start
    is_sure: bool = True
    """False: rows from the start on may be in the table already."""

    def again(self, start: Start | None, *, is_sure: bool = True) -> "TopicJoin":
        """A new one from here on; None: from the start of this one."""
        return TopicJoin(self.query, new_number(self.number), self.start if start is None else start, is_sure)


def new_number(last: int = 0) -> int:
    """Greater than the last one, and than those of joins whose file is gone: milliseconds since 1970."""
    return max(int(time.time() * 1000), last + 1)


@dataclass(frozen=True)
class JoinFolder:
    folder: Path

    def file(self, table: str) -> Path:
        """Named as the table's folder, which may be as long as file names can be."""
        return self.folder / table.removeprefix("events/")

    def read(self, table: str) -> TopicJoin | None:
        try:
            return TopicJoin(**json.loads(self.file(table).read_text()))
        except FileNotFoundError:
            return None

    def write(self, table: str, join: TopicJoin) -> None:
        """Durable when it returns."""
        self.folder.mkdir(parents=True, exist_ok=True)
        _replace(self.file(table), json.dumps(asdict(join)), is_durable=True)

    def remove(self, table: str) -> None:
        self.file(table).unlink(missing_ok=True)


def joins_in(checkpoints: Path) -> JoinFolder:
    from m4cast.jobs.ingest import SHARED

    return JoinFolder(checkpoints / SHARED / "topics")


@dataclass(frozen=True, slots=True)
class PlannedTopic:
    number: int
    start: Start
    layout: str | None
    """`FileLayout` as JSON; None while the topic is not read, though its rows are retained."""
    where: str | None = None
    """The condition, in SQL, of the rows that are read."""


@dataclass(frozen=True)
class PlanFile:
    path: Path

    def write(self, topics: Mapping[str, PlannedTopic]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        _replace(self.path, json.dumps({name: asdict(topic) for name, topic in topics.items()}), is_durable=False)

    def read(self) -> dict[str, PlannedTopic]:
        return {name: PlannedTopic(**topic) for name, topic in json.loads(self.path.read_text()).items()}

    def version(self) -> tuple[int, int]:
        """Differs after each `write`."""
        found = self.path.stat()
        return found.st_ino, found.st_mtime_ns


def _replace(path: Path, text: str, *, is_durable: bool) -> None:
    new = path.with_name(f"{path.name[:200]}.new")
    new.write_text(text)
    if is_durable:
        sync(new)
    new.replace(path)
    if is_durable:
        sync(path.parent)
