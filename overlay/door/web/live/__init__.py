"""`/live`: publish and subscribe on one WebSocket. `connection` serves one, `messages` are what travels on it."""
