"""The direct engine of ingest: rows go from a node into Parquet files of the table without passing through the JVM.

Spark runs the query: offsets, checkpoints, triggers, tasks, retries. Its tasks (`source`) read rows over Flight, write
them with Arrow into the table's folder (`data_file`, in the form that `layout` describes), and return one row for each
file. The driver commits the files to Delta's log (`table_log`). `engine` decides which tables can be filled this way
and starts their queries.
"""
