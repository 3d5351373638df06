"""The durable log of a node: one LMDB environment per channel.

`store.Store` is the door to this room. Behind it: `layout` (what is in the file), `folder` (whose file it is), `log`
(what an append does in a transaction), `writer` (one thread, group commit, failures), `retention` (what is removed,
and who holds it back), `inspection` (check and stats, also from outside).
"""
