"""The durable log of a node: one LMDB environment per channel.

`store.Store` is the door to this room. Behind it: `tables` (what is in the file, one module per table), `folder` (whose
file it is), `log` (what an append does in a transaction), `writer` (one thread, group commit, failures), `retention`
(what is removed, and which readers hold it back), `time_index` (rows by time), `inspection` (check and stats, also from
outside), `free_space`.
"""
