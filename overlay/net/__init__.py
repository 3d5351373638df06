"""The protocol on a real network: TCP connections, timers and a store around the pure node.

`driver` performs what a node wants and feeds it what happens; `connection` cuts a byte stream into frames.
"""
