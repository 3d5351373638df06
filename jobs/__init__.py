"""The jobs: Spark batch work on the tables that a channel fills.

Seven jobs, each a command and a script: `ingest`, `ordering_gaps`, `delivery_audit`, `maintain`, `repair`, `snapshot`
and `audit.notified`. The rooms `feeds`, `direct`, `gaps`, `audit` and `report` hold their parts. Shared: `command`
(options and sessions of commands), `session` (Spark with Delta), `table_folder` (the Delta tables), `runs` (the table
`audit_runs`), `expectation` (which rows a receiver should have), `wants` (which rows of selective topics it wanted),
`beyond` (rows of other channels), `ranges` (arithmetic of ranges), `steps` (progress on stderr), `views` (SQL views).

A job sees schemas and the Spark connector, never the protocol.
"""
