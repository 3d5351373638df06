"""The graph of a channel: `graph` is the value, `survey` asks nodes for it, `table` prints it, `picture` draws it."""
