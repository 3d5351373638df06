"""Clients: profiles and positions that outlast connections, and the two halves that keep them (PROTOCOL.md, 21)."""
