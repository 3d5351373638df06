"""kafka-out: channel topics into Kafka topics.

`bridge` runs it. `transactions` sends rows and commits them together with the bridge's progress, which `progress_topic`
keeps in Kafka. `record_columns` holds what a record needs besides its value, `row_letters` publishes dead letters.
"""
