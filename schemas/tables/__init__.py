"""The Delta tables that a channel fills and that audits read, one file each.

`table.py` defines what a table is: columns, layout, and the statements that create or upgrade it. Tables are stored in
one folder (any URI that Spark can write), each under its name; no catalog is needed.
The columns of `deliveries`, `roster`, `interest` and `dead_letters` are those of their records
(`m4cast.schemas.records`).
"""
