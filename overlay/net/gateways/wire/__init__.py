"""Messages between gatekeepers: `messages` has the values, `frames` their bytes."""
