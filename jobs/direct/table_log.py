"""Delta's log of one table, read and written with Delta Kernel, whose jars come with delta-spark.

Kernel runs in the driver's JVM and never touches rows: it gets the names, sizes and statistics of files. It supports
the features that events tables use (clustering, column mapping), checks conflicts with other writers, and accepts a
transaction identifier (query id, micro-batch number) only once.

Kernel's public interface cannot describe files for a table with column mapping that it has not written itself, so two
classes of its internal packages are used as well; `jobs.session` pins the version.
"""

import json
import logging
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

from py4j.java_gateway import JavaClass
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.sql.types import StructField, StructType

from m4cast.jobs.direct.data_file import DataFile
from m4cast.jobs.direct.durable import sync
from m4cast.jobs.direct.layout import FileLayout, unmet
from m4cast.jobs.direct.quick_commit import FEATURES, LastCommit, VersionFile, is_replaced, log_of, path_of
from m4cast.overlay.errors import M4castError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from m4cast.schemas.tables.table import Table

log = logging.getLogger("m4cast.jobs")

WRITER = "m4cast ingest"
COMMITS_MAX = 20
"""Attempts of one commit while others change the table's metadata. Kernel itself retries after appends of others."""
TABLE_CHANGED = "[M4CAST_TABLE_CHANGED]"
REPLAYED = "io.delta.kernel.exceptions.ConcurrentTransactionException"
CHANGED = frozenset(
    {
        "io.delta.kernel.exceptions.MetadataChangedException",
        "io.delta.kernel.exceptions.ProtocolChangedException",
        "io.delta.kernel.exceptions.MaxCommitRetryLimitReachedException",
        "io.delta.kernel.exceptions.ConcurrentWriteException",
    }
)
"""Conflicts that are resolved by another attempt on the table as it is then."""
KNOWN_FEATURES = FEATURES | {
    "allowColumnDefaults",
    "checkConstraints",
    "checkpointProtection",
    "generatedColumns",
    "identityColumns",
    "inCommitTimestamp",
    "rowTracking",
    "typeWidening",
    "v2Checkpoint",
    "vacuumProtocolCheck",
    "variantType",
}
"""Delta's features that a table may have. Kernel does what they ask of a commit, or refuses it: constraints, generated
columns and identities that are in use. Others may ask something of files, which Kernel does not see."""
CHECKPOINT = "CHECKPOINT"
"""The only post-commit hook of Kernel that is run. Another would write a checksum of the table's state, which others
may use to open the table faster, and take as long as the commit again."""
EXISTS = "io.delta.kernel.exceptions.TableAlreadyExistsException"


_ENGINES: "WeakKeyDictionary[SparkSession, Any]" = WeakKeyDictionary()
"""Kernel's way to files, by session."""


class TableLogError(M4castError):
    """Files could not be committed: the text has a stable id, which survives the way through Spark, and the reason."""


class TableForm(NamedTuple):
    columns: StructType
    """Their metadata contain Delta's names for them."""
    statistics: tuple[tuple[str, ...], ...]
    """Physical paths of the columns whose statistics the table wants."""
    partitions: tuple[str, ...]
    """The columns that it is partitioned by."""


class Added(NamedTuple):
    """The files that a commit has added to the table."""

    version: int
    files: Sequence[DataFile]
    layout: FileLayout
    query: str
    micro_batch: int

    @property
    def log(self) -> Path:
        return log_of(self.layout)

    @property
    def is_replaced(self) -> bool:
        return is_replaced(self.log, self.version, self.query, self.micro_batch)

    @property
    def has_files(self) -> bool:
        """False if the table is another one now, in the same folder."""
        return all((Path(self.layout.folder) / file.name).exists() for file in self.files)


class TableLog:
    def __init__(self, spark: "SparkSession", path: str) -> None:
        jvm: Any = spark.sparkContext._jvm
        session: Any = spark._jsparkSession
        self._path = path
        self._java = jvm.java.util
        self._kernel = jvm.io.delta.kernel
        if spark not in _ENGINES:  # each has a copy of Hadoop's settings: one is enough for thousands of tables
            configuration = session.sessionState().newHadoopConf()
            _ENGINES[spark] = self._kernel.defaults.engine.DefaultEngine.create(configuration)
        self._engine = _ENGINES[spark]
        self._seen: Any = None
        """The table as it was last seen, for the next commit: Kernel checks what others have committed since."""
        self._seen_at_ns = 0
        """Since 1970, before Kernel looked or after it committed."""
        self._last: LastCommit | None = None
        self._added: Added | None = None
        """The files that the last commit added."""

    @staticmethod
    def is_available(spark: "SparkSession") -> bool:
        jvm: Any = spark.sparkContext._jvm
        return isinstance(jvm.io.delta.kernel.defaults.engine.DefaultEngine, JavaClass)

    def refresh(self) -> None:
        """Look at the table again when it is used next."""
        self._seen = None

    def form(self) -> TableForm:
        """The table as it was last seen."""
        snapshot = self._last_seen()
        state = self._transaction(snapshot).getTransactionState(self._engine)
        paths = self._kernel.internal.TransactionImpl.getStatisticsColumns(state)
        statistics = tuple(tuple(path.getNames()) for path in paths)
        return TableForm(_columns(snapshot), statistics, tuple(snapshot.getPartitionColumnNames()))

    def properties(self) -> dict[str, str]:
        """The table's properties, as last seen."""
        return self._properties(self._last_seen())

    @staticmethod
    def _properties(snapshot: Any) -> dict[str, str]:
        return dict(snapshot.getMetadata().getConfiguration())

    @staticmethod
    def _features(snapshot: Any) -> list[str]:
        """Delta's writer features that the table has, also those that its protocol implies."""
        found = snapshot.getProtocol().getImplicitlyAndExplicitlySupportedFeatures().toArray()
        return [str(feature.featureName()) for feature in found]

    def version(self) -> int:
        """Delta's number of the table's present version."""
        self._seen = self._snapshot()
        return int(self._seen.getVersion())

    def state(self) -> tuple[str, int]:
        """Delta's id of the table, and the number of its present version."""
        version = self.version()
        return str(self._seen.getMetadata().getId()), version

    def create(self, table: "Table") -> bool:
        """Create the table as Spark does, but for its comment, and much sooner. If somebody else has created it
        meanwhile, that one counts. False if Kernel cannot create such a table."""
        try:
            transaction = self._creation(table)
            transaction.commit(self._engine, self._kernel.utils.CloseableIterable.emptyIterable())
        except Py4JJavaError as error:
            if error.java_exception.getClass().getName() not in (EXISTS, *CHANGED):
                log.warning("Kernel does not create %s, Spark does: %s", self._path, error.java_exception.getMessage())
                return False
        self.refresh()
        return True

    def _creation(self, table: "Table") -> Any:
        kernel, layout = self._kernel, self._kernel.transaction.DataLayoutSpec
        fields = [StructField(each.name, each.type, each.nullable, {"comment": each.comment}) for each in table.columns]
        columns = kernel.internal.types.DataTypeJsonSerDe.deserializeStructType(StructType(fields).json())
        properties, chosen = self._java.HashMap(), self._java.ArrayList()
        for name, value in table.all_properties.items():
            properties.put(name, value)
        for name in table.cluster_by or table.partition_by:
            chosen.add(kernel.expressions.Column(name))
        builder = kernel.TableManager.buildCreateTableTransaction(self._path, columns, WRITER)
        builder = builder.withTableProperties(properties)
        if table.cluster_by:
            builder = builder.withDataLayoutSpec(layout.clustered(chosen))
        elif table.partition_by:
            builder = builder.withDataLayoutSpec(layout.partitioned(chosen))
        return builder.build(self._engine)

    def is_new(self) -> bool:
        """True if the table, on a file system that is mounted, had only been created when it was last seen. A table can
        be created with rows (CLONE)."""
        snapshot = self._last_seen()
        if snapshot.getVersion() > 0:
            return False
        log = Path(str(snapshot.getPath()).removeprefix("file:")) / "_delta_log"
        return not any(action.startswith('{"add"') for action in path_of(log, 0).read_text("utf-8").splitlines())

    def why_not(self, partitions: tuple[str, ...] = (), written: Collection[str] | None = None) -> str | None:
        """The reason why files with these columns (None: all) cannot be appended to the table, which should be
        partitioned by those; None if they can."""
        try:
            snapshot = self._last_seen()
            if tuple(snapshot.getPartitionColumnNames()) != partitions or len(partitions) > 1:
                return "it is partitioned"
            self._transaction(snapshot)
            return self._unmet(snapshot, written)
        except Py4JJavaError as error:
            return str(error.java_exception.getMessage()).partition("\n")[0]

    def _unmet(self, snapshot: Any, written: Collection[str] | None) -> str | None:
        unknown = sorted(set(self._features(snapshot)) - KNOWN_FEATURES)
        if unknown:
            return f"it has the feature {unknown[0]}"
        columns = _columns(snapshot)
        return unmet(columns, {name.lower() for name in (columns.names if written is None else written)})

    def has(self, query: str, micro_batch: int) -> bool:
        """Look for this micro-batch of the query, or a later one, in the log."""
        self._seen = self._snapshot()
        last = self._seen.getLatestTransactionVersion(self._engine, query)
        return bool(last.isPresent() and last.get() >= micro_batch)

    def append(self, files: Sequence[DataFile], layout: FileLayout, query: str, micro_batch: int) -> bool:
        """Add the files to the table in one commit. False if the log already has this micro-batch of the query."""
        self.confirm()
        if self._seen is not None and not self._is_there(layout):
            self.refresh()
        rows = sum(file.rows for file in files)
        writer = f"{WRITER} query {query}, micro-batch {micro_batch}, {rows} rows"
        last = self._last or self._before_first(layout, query)
        self._last = None if last is None else last.followed(files, layout, query, micro_batch, writer)
        if last is not None:
            self._seen = None
        if self._last is not None:
            self._added = Added(self._last.version, files, layout, query, micro_batch)
            return True
        for attempt in range(COMMITS_MAX):
            snapshot, self._seen = self._last_seen(), None
            if not layout.is_part_of(_columns(snapshot)):
                raise TableLogError(
                    f"{TABLE_CHANGED} the columns of {self._path} were changed while files were written for it: "
                    "restart ingest, which writes them again"
                )
            try:
                if why_not := self._unmet(snapshot, layout.names_in(_columns(snapshot))):
                    raise TableLogError(f"[M4CAST_COMMIT_FAILED] {self._path}: {why_not}")
                transaction = self._transaction(snapshot, writer, (query, micro_batch))
                done = transaction.commit(self._engine, self._actions(transaction, snapshot, files))
            except Py4JJavaError as error:
                name = error.java_exception.getClass().getName()
                if name == REPLAYED and self.has(query, micro_batch):
                    return False
                if name in (REPLAYED, *CHANGED) and attempt < COMMITS_MAX - 1:
                    continue
                problem = str(error.java_exception.getMessage()).partition("\n")[0]
                raise TableLogError(
                    f"[M4CAST_COMMIT_FAILED] {self._path}: {name.rpartition('.')[2]}: {problem}"
                ) from error
            hooks = done.getPostCommitHooks()
            for at in range(hooks.size()):  # the end of an iterator would be an exception of Java's, which is slow
                if hooks.get(at).getType().toString() == CHECKPOINT:
                    self._invoke(hooks.get(at))
            after = done.getPostCommitSnapshot()
            self._seen, self._seen_at_ns = after.get() if after.isPresent() else None, time.time_ns()
            version = int(done.getVersion())
            features, properties = self._features(snapshot), self._properties(snapshot)
            self._last = LastCommit.noted(version, query, micro_batch, layout, features, properties)
            self._added = Added(version, files, layout, query, micro_batch)
            self._sync(self._added)
            return True
        raise AssertionError("the last attempt returns or raises")

    def _is_there(self, layout: FileLayout) -> bool:
        """False if the version that was last seen is another one now: another table, in the same folder, may have as
        many, and Kernel would not notice."""
        file = VersionFile.of(log_of(layout), int(self._seen.getVersion()))
        return file is not None and file.written_at_ns <= self._seen_at_ns

    def confirm(self) -> None:
        """Make sure that the last commit is in the log: if another writer has replaced its version, as can happen on a
        local disk (`quick_commit`), commit its files again. `append` begins with this, since a later micro-batch in the
        log would hide that one is missing."""
        while self._added is not None and self._added.is_replaced:
            added, self._added = self._added, None
            self._last = self._seen = None
            if added.has_files and not self.has(added.query, added.micro_batch):
                log.warning("version %d of %s was replaced: its rows are committed again", added.version, self._path)
                self.append(added.files, added.layout, added.query, added.micro_batch)

    @staticmethod
    def _sync(added: Added) -> None:
        """Hadoop does not wait until a version is on the disk."""
        for place in (path_of(added.log, added.version), added.log):
            with suppress(FileNotFoundError):  # replaced at this moment, on a network file system
                sync(place)

    def _before_first(self, layout: FileLayout, query: str) -> LastCommit | None:
        """The commit that the first one of a query without Kernel follows: the table as it was last seen, with its
        columns and the query's last micro-batch. None if that commit is Kernel's."""
        snapshot = self._last_seen()
        features, properties = self._features(snapshot), self._properties(snapshot)
        found = LastCommit.noted(int(snapshot.getVersion()), query, -1, layout, features, properties)
        if found is None or not layout.is_part_of(_columns(snapshot)):
            return None
        known = snapshot.getLatestTransactionVersion(self._engine, query)
        return replace(found, micro_batch=int(known.get())) if known.isPresent() else found

    def _last_seen(self) -> Any:
        self._seen = self._seen or self._snapshot()
        return self._seen

    def _snapshot(self) -> Any:
        self._seen_at_ns = time.time_ns()
        return self._kernel.Table.forPath(self._engine, self._path).getLatestSnapshot(self._engine)

    def _transaction(self, snapshot: Any, writer: str = WRITER, identifier: tuple[str, int] | None = None) -> Any:
        builder = snapshot.buildUpdateTableTransaction(writer, self._kernel.Operation.STREAMING_UPDATE)
        if identifier is not None:
            builder = builder.withTransactionId(*identifier)
        return builder.build(self._engine)

    def _actions(self, transaction: Any, snapshot: Any, files: Sequence[DataFile]) -> Any:
        java, internal = self._java, self._kernel.internal
        state = transaction.getTransactionState(self._engine)
        schema = internal.data.TransactionStateRow.getPhysicalSchema(state)
        folder = snapshot.getPath()
        names = snapshot.getPartitionColumnNames()
        actions: Any = None
        for value in sorted({file.partition or "" for file in files}):
            found, partition = java.ArrayList(), java.HashMap()
            if names:
                partition.put(names[0], self._kernel.expressions.Literal.ofString(value))
            for file in files:
                if (file.partition or "") == value:
                    statistics = self._kernel.statistics.DataFileStatistics.deserializeFromJson(file.statistics, schema)
                    place = f"{folder}/{file.name}"
                    found.add(self._kernel.utils.DataFileStatus(place, file.bytes, file.modified_at_ms, statistics))
            context = internal.DataWriteContextImpl(folder, partition, java.ArrayList())
            rows = internal.util.Utils.toCloseableIterator(found.iterator())
            mine = self._kernel.Transaction.generateAppendActions(self._engine, state, rows, context)
            actions = mine if actions is None else actions.combine(mine)
        return self._kernel.utils.CloseableIterable.inMemoryIterable(actions)

    def _invoke(self, hook: Any) -> None:
        """Write a checkpoint of the log, when one is due. The commit is done; without them, the table is
        whole and opened more slowly."""
        try:
            hook.threadSafeInvoke(self._engine)
        except Py4JError:
            log.warning("the log of %s lacks a %s", self._path, hook.getType(), exc_info=True)


def _columns(snapshot: Any) -> StructType:
    return StructType.fromJson(json.loads(snapshot.getMetadata().getSchemaString()))
