"""The broadcast channel as pure state machines: `outputs = node.handle(input, now_ms)`.

No I/O, clock, global random state, logging or await in this room. Time and randomness come in as arguments; what
is to be done comes out as values (`effects.py`) that a driver performs in order. `docs/PROTOCOL.md` is normative.
"""
