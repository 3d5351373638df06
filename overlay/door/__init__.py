"""The client door of a node: an Arrow Flight server over a driver and a store (`docs/PROTOCOL.md`, "Client door").

`flight.FlightDoor` is the server. Behind it: `requests` (what clients may say), `refusals` (how they are told no),
`payload` (rows as bytes), `catalogue` (which schemas a topic has), `progress` (how far each stream is here),
`publishing` and `reading`.
"""
