"""Rows of files and pipes in bounded memory: JSON, CSV, Parquet and Arrow.

`blocks` opens an input and yields its rows block by block, `lines` cuts text into blocks of whole lines, `json_lines`
and `csv_records` read them, `column_types` remembers the types found so far.
"""
