"""Selective topics at the door: what is registered for readers, up to where each reader sees, and what filters cost."""
