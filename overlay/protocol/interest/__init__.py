"""Interest: which rows each node of the channel wants. Every node knows it of every other (guarantee 9)."""
