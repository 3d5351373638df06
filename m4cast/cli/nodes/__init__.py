"""Commands that run, inspect and retire nodes."""
