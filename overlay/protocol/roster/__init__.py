"""Who else is on the channel: beacons, the passive list, and the picture of the graph."""
