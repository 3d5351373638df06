"""The HTTP door of a node, for operators and their tools: `server`, and the `metrics` that it serves."""
