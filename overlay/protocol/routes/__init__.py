"""Routes: ways through the graph that every node computes for itself, from the neighbour lists in beacons."""
