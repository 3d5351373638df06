"""Delta's log of one table, read and written with Delta Kernel, whose jars come with delta-spark.

Kernel runs in the driver's JVM and never touches rows: it gets the names, sizes and statistics of files. It supports
the features that events tables use (clustering, column mapping), checks conflicts with other writers, and accepts a
transaction identifier (query id, micro-batch number) only once.

Kernel's public interface cannot describe files for a table with column mapping that it has not written itself, so two
classes of its internal packages are used as well; `jobs.session` pins the version.
"""

import json
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

from py4j.java_gateway import JavaClass
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.sql.types import StructField, StructType

from m4cast.jobs.direct.data_file import DataFile
from m4cast.jobs.direct.layout import FileLayout
from m4cast.jobs.direct.quick_commit import LastCommit
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
    """With Delta's names for them in their metadata."""
    statistics: tuple[tuple[str, ...], ...]
    """Physical paths of the columns whose statistics the table wants."""
    partitions: tuple[str, ...]
    """The columns that it is partitioned by."""


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
        self._last: LastCommit | None = None

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
        """As last seen."""
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
        """True if the table had only been created when it was last seen."""
        return bool(self._last_seen().getVersion() == 0)

    def why_not(self, partitions: tuple[str, ...] = ()) -> str | None:
        """Why Kernel cannot append to the table, which should be partitioned by these columns; None if it can."""
        try:
            snapshot = self._last_seen()
            if tuple(snapshot.getPartitionColumnNames()) != partitions or len(partitions) > 1:
                return "it is partitioned"
            self._transaction(snapshot)
        except Py4JJavaError as error:
            return str(error.java_exception.getMessage()).partition("\n")[0]
        return None

    def has(self, query: str, micro_batch: int) -> bool:
        """Look for this micro-batch of the query, or a later one, in the log."""
        self._seen = self._snapshot()
        last = self._seen.getLatestTransactionVersion(self._engine, query)
        return bool(last.isPresent() and last.get() >= micro_batch)

    def append(self, files: Sequence[DataFile], layout: FileLayout, query: str, micro_batch: int) -> bool:
        """Add the files to the table in one commit. False if the log already has this micro-batch of the query."""
        rows = sum(file.rows for file in files)
        writer = f"{WRITER} query {query}, micro-batch {micro_batch}, {rows} rows"
        if self._last is not None:
            self._last = self._last.followed(files, layout, query, micro_batch, writer)
            self._seen = None
            if self._last is not None:
                return True
        for attempt in range(COMMITS_MAX):
            snapshot, self._seen = self._last_seen(), None
            if not layout.is_part_of(_columns(snapshot)):
                raise TableLogError(
                    f"{TABLE_CHANGED} the columns of {self._path} were changed while files were written for it: "
                    "restart ingest, which writes them again"
                )
            try:
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
            self._seen = after.get() if after.isPresent() else None
            self._last = LastCommit.noted(
                int(done.getVersion()), query, micro_batch, layout, self._features(snapshot), self._properties(snapshot)
            )
            return True
        raise AssertionError("the last attempt returns or raises")

    def _last_seen(self) -> Any:
        self._seen = self._seen or self._snapshot()
        return self._seen

    def _snapshot(self) -> Any:
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
