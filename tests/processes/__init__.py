"""Faults on real node processes: killed, stopped, rolled back, away, slow, newer. The soak form of each test
(`pytest -m soak`) is the same fact with its full count, and prints what it measured."""
