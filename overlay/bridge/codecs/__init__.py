"""Codecs: Kafka values to columns of channel rows, and back. The setting `codec` chooses one.

| codec | file | a value is |
| --- | --- | --- |
| raw | `raw_codec` | bytes, in the column `value` |
| json | `json_codec` | a JSON object; its members are the columns |
| avro | `avro_codec` | Avro after a schema registry's prefix: a zero byte and the schema's id in four bytes |
| avro-single | `avro_codec` | Avro single-object encoding: C3 01, then the schema's fingerprint in eight bytes |
| cloudevents, cloudevents-structured | `cloud_events` | an event in binary or structured mode |

`codec` holds the interface and what all codecs share. `avro_values` and `json_values` convert values, `registry` is the
client of a schema registry.
"""
