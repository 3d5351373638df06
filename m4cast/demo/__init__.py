"""The demo: `spark` is the full one, `quick` the one without Spark.

`orders` generates the rows, `display` shows progress, `outcome` counts what became of every row.
"""
