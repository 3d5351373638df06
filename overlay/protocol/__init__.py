"""The broadcast channel as pure state machines: `outputs = node.handle(input, now_ms)`.

There is no I/O, clock, global random state, logging or await in this room. Time and randomness are arguments; what
is to be done is returned as values (`effects.py`) that a driver performs in order. `docs/PROTOCOL.md` is normative.

A room imports itself, `wire` and the shared values; only composers import rooms.

shared values  effects, context, timers, calls, neighbours, holdings, floods, clocks
composers      node, connections, arrival, liveness, lookout, departure, and the room selection
rooms          wire, finding, membership, roster, streams, publishing, interest, clients, selective, routes
"""
