"""The Kafka bridge: Kafka topics into channel topics (`kafka_in`) and back (`kafka_out`), exactly once both ways.

`settings` holds a bridge's settings, `routes` which topic becomes which. `codecs` turns values into columns and back,
`records` does the same for the other parts of a record. `brokers` creates Kafka clients, `trouble` waits for a service
that is down, `metrics` counts. To the channel, a bridge is a client like any other. Users read docs/KAFKA.md.
"""
