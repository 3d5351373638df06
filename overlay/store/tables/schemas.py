"""Schemas by their ids. They are kept for ever: rows of a schema may arrive again at any time."""

from m4cast.overlay.store.table import StoreTable, Tables, Txn, WriteTxn, sequence_key

SCHEMAS = StoreTable("schemas")


def write_schema(schema_id: int, schema: bytes, tables: Tables, txn: WriteTxn) -> None:
    txn.put(sequence_key(schema_id), schema, db=tables[SCHEMAS])


def read_schema(schema_id: int, tables: Tables, txn: Txn) -> bytes | None:
    schema = txn.get(sequence_key(schema_id), db=tables[SCHEMAS])
    return None if schema is None else bytes(schema)
