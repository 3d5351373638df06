"""Commands that move rows: publish, tail, and the Kafka bridge."""
