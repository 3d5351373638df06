"""HTTP: the `server` of both doors with the limits of its `connections`, and the door for operators and their tools:
`monitoring`, and the `metrics` that it serves."""
