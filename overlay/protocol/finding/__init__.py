"""Finding the channel: seeking through portals, and the search of portal ports."""
