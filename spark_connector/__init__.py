"""The Spark connector: the data source `m4cast` for reading and writing a channel from PySpark.

It reaches the channel only as an outsider, through the overlay's client. Nothing is in this room yet.
"""
