"""The direct engine of ingest: rows go from a node into Parquet files of the table without passing through the JVM.

Spark runs the queries: offsets, checkpoints, triggers, tasks, retries. Tasks read rows over Flight, write them with
Arrow into the table's folder (`data_file`, in the form that `layout` describes), and return one row for each file. The
driver commits the files to Delta's log (`table_log`). `engine` decides which tables can be filled this way.

All topics share one query: `shared_feed` runs it in the driver, `shared_source` plans micro-batches and reads them in
the tasks, `joins` says from which rows on. `source` is for one topic (a snapshot) and for delivery records.
"""
