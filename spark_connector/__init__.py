"""The Spark connector: the data source `m4cast`, which reads and writes a channel from PySpark.

It reaches the channel only through the overlay's client, as any outsider does.

`provider` is the class that Spark loads. `option_table` lists every option, `options` checks them; `source` reads,
`sink` publishes. `fanout` publishes from inside a pipeline, `progress` records what queries have done. Shared by all:
`offsets` (arithmetic of frontiers), `columns` (Arrow and Spark schemas, the channel's own columns), `access` (reaching
the nodes) and `errors` (the error ids).
"""
