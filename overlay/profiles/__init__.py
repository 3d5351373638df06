"""Profiles: conditions on rows that stay, and everything that is asked of them. Pure."""
