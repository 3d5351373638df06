"""Units: channels of channels. A pure machine beside a node, which routes batches between units of any level.

A channel is a cluster of at most 64 nodes; clusters form super-clusters, and so on up to the top level. `Federation` is
one node's part in it: its place in the hierarchy, its links to nodes of its own cluster and of other units (gateways),
what it knows of all units beside its own, what the units below it want, and the batches that it has to see through.

    contract    inputs, outputs, settings, what is kept on disk
    units       ids, records, contexts and addresses of units
    messages    what travels over links, and to nodes without a link
    addition    how nodes, gateways and whole units are added (A2, A3)
    gateways    the table of connections and how they are told (A4)
    graph       the connectivity graph, costs, paths and the cache of next hops (A5 to A8)
    interest    what units want, and who has confirmed it (A11, A12); `wants` has its values
    routing     batches with what is left to do for them (A13, A16)
    vertex      what these machines share
    federation  the machine: `handle`

A-numbers are the algorithms of GES, "Routing events using the Grid Event Service"; docs/FEDERATION.md is normative.
"""
