"""Rows as bytes: canonical types and payloads (`payload`, `folded`), and the schemas of a topic (`catalogue`)."""
