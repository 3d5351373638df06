"""kafka-in: Kafka topics into channel topics.

`bridge` runs it. `group_consumer` is its consumer in the Kafka group, `placement` decides where a partition begins
(`positions` are how far it was carried), `partition_feed` buffers what was read, `writer` publishes it and `fitting`
casts decoded columns to those of the topic.
"""
