"""The schemas: what travels and what is stored, defined once for everyone who reads or writes it.

`avro/` holds the Avro definitions, as data files; `tables/` the Delta tables.
Nothing here imports another room.
"""
