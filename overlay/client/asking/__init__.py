"""Queries to a channel other than ranges and tails: the current state of tables, and questions to all nodes."""
