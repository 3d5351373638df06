"""The m-regular graph: joining, edges, holes, swaps, merging, and the links of this node."""
