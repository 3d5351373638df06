"""Reading: rows (`reading`), rows that match a filter (`filtering`), delivery records and the roster (`deliveries`),
and how far streams reach (`extents`).

A filtered read takes batches from the store (`portions`), tests them (`matching`), and answers stream by stream
(`stream_answer`); tails that have caught up are matched together (`live_matching`). `pacing` counts what it costs,
`explaining` says what a filter means.
"""
