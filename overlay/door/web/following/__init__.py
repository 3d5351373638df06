"""Following: rows of a topic as they arrive, from a position on, for one client at a time."""
