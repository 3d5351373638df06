"""The settings as files: `cluster.toml` must agree on all nodes of a channel, `node.toml` belongs to one node.

Both list every setting with its default, its range and what raising it costs. `m4cast.overlay.config` reads them.
"""
