"""Gateways: links between gatekeepers of one or several channels, and what crosses them (PROTOCOL.md 22).

messages    what is on a link, besides the machine's own messages
frames      both to and from bytes
link        one connection: a queue, a pace, frames in and out
links       all connections of a gatekeeper: listening, dialling, hello, certificates
rules       what may cross, and who may say so
kept        what must survive a crash, in the store
places      how the gatekeeper comes into the federation, and keeps its links
exports     the channel's own rows, out of its log
imports     rows of other channels, into this one
finding     rows that are missing, from whoever keeps them
gatekeeper  runs the machine of `overlay.federation` beside a node, and composes the others
"""
