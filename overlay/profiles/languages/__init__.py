"""Filter languages: each module turns one way to write a filter into a condition, or refuses it with the place."""
