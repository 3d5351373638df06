"""Publishing to a channel from Spark.

`writers` stages rows in the tasks and commits them in the driver, `standing` finds the node that knows how far a sink
has published, `receipts` writes a file for each commit.
"""
