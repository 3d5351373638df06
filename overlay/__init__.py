"""The overlay: peer nodes joined in an m-regular graph, and everything that makes them one broadcast channel.

Rooms: `protocol` (pure state machines), `sim` (the same machines in virtual time). `ids`, `errors` and `config`
are the values that every room shares.
"""
