"""Who may do what: `rights`, and the `tokens` that grant them."""
