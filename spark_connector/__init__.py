"""The Spark connector: the data source `m4cast` for reading and writing a channel from PySpark.

It reaches the channel only as an outsider, through the overlay's client.

`provider` is what Spark finds, `options` has every option, `offsets` the arithmetic of frontiers, `planner` decides
what a micro-batch takes and how it is split, `source` reads, `lease` has rows kept for it, `sink` publishes, `columns`
turns a topic's columns into Spark's, `receipts` remembers what was published, `fanout` publishes from pipelines,
`progress` tells what queries have done, `access` reaches the nodes, `errors` has the ids.
"""
