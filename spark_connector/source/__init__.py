"""Reading a channel from Spark.

`rows` reads topics, `deliveries` the delivery records of nodes, `changing_records` who is on the channel and who wants
what: each is a stream and a batch reader. `planner` decides what a micro-batch takes and how it is split, `topics` asks
the nodes what they have, `edges` computes where a read begins and ends, `spans` reads inside the tasks, `lease` makes
the nodes keep unread rows, `nodes` finds the nodes.
"""
