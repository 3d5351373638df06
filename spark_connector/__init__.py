"""The Spark connector: the data source `m4cast` for reading and writing a channel from PySpark.

It reaches the channel only as an outsider, through the overlay's client.

`provider` is what Spark finds, `options` has every option, `offsets` the arithmetic of frontiers, `planner` decides
what a micro-batch takes and how it is split, `topics` knows what there is, `edges` where a read begins and ends,
`source` is what Spark asks, `spans` reads in its tasks, `lease` has rows kept for it, `deliveries` and `roster` read
what nodes record, `nodes` finds these, `sink` publishes, `standing` knows at which node a sink stands, `receipts`
remembers what was published, `fanout` publishes from pipelines, `progress` tells what queries have done, `columns` has
a topic's columns as Spark's and the channel's own, `access` reaches the nodes, `errors` has the ids.
"""
