"""Administration: topics, publisher keys, reader leases, the node's status, and its departure."""
