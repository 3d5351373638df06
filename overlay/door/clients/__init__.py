"""Clients at the door: who is attached to this node, what it keeps for them, and what it retains."""
