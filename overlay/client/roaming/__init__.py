"""Clients with a lasting key: profiles and a position that they find again at any node."""
