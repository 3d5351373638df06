"""Rows that are published here: staging, numbering, publisher keys and acknowledgements."""
