"""The other nodes on the channel: beacons, the passive list, and the picture of the graph."""
