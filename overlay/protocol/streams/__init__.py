"""Rows on their way: ordering, spreading, pulling, filling, repair, and the past of this node's own streams."""
