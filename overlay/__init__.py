"""The overlay: peer nodes joined in an m-regular graph, and everything that makes them one broadcast channel.

Rooms: `protocol` (pure state machines), `sim` (the same machines in virtual time), `net` (on real sockets), `store`
(the durable log), `door` (where clients come in), `client` (what they come with). `ids`, `errors` and `config` are
the values that every room shares.
"""
