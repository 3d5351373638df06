"""Selective topics: rows travel to the nodes that want them, and statements prove the rest (PROTOCOL.md, 18)."""
