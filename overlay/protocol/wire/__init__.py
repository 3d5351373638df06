"""The data sent between nodes: batches, control messages, and the frames that carry them."""
