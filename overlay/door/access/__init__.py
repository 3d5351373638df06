"""Access control: `rights`, and the `tokens` that grant them."""
