"""How a node finds the channel: seeking through portals, and the search of portal ports."""
