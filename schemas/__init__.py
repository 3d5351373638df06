"""The schemas: what travels and what is stored, defined once for everyone who reads or writes it.

`avro/` holds the Avro definitions, as data files. The Delta tables will be defined here too; there are none yet.
Nothing here imports another room.
"""
