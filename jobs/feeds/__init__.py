"""The streaming queries of ingest (`jobs/ingest.py`).

`feed` runs feeds and restarts them, `event_feeds` reads topics, `record_feeds` delivery records, roster and interest.
`dead_letters` keeps batches that cannot be decoded, `display` shows what feeds do.
"""
