"""The protocol on a real network: TCP connections, timers and a store around the pure node.

`driver` feeds a node its inputs and performs its outputs. It does so on `network` (each `connection` cuts a byte
stream into frames, `listener` accepts them, `tls` and `certificates` protect them), `node_clock`, `store_side` and
`upkeep`; `refusals` counts who was turned away.
"""
