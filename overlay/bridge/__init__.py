"""The Kafka bridge: Kafka topics into channel topics (`kafka_in`) and back (`kafka_out`), exactly once both ways.

`settings` says what a bridge is told, `routes` which topic becomes which. `codecs` (with `avro_values`, `registry` and
`cloud_events`) turns values into columns and back, `records` the rest of a record; `fitting` makes columns fit the
topic. `positions` decides where a partition begins, `feed` holds what is read of it, `writer` publishes it; `progress`
is how far kafka-out has come, kept in Kafka. `brokers` makes Kafka's clients, `trouble` speaks once of what goes on for
long, `metrics` counts. A bridge is a client of the channel like others. docs/KAFKA.md is for its users.
"""
