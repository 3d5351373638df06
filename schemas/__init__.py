"""The schemas: what travels and what is stored, defined once for everyone who reads or writes it.

`records` defines the records that the channel keeps about itself, once for Arrow, Avro and Delta; `avro/` holds other
Avro definitions, as data files; `tables/` the Delta tables. Nothing here imports another room.
"""
