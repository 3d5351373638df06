"""Gateways: links between gatekeepers of one or several channels, and what crosses them (PROTOCOL.md 22).

wire        what is on a link, besides the machine's own messages, and all of it to and from bytes
link        one connection: a queue, a pace, frames in and out
links       all connections of a gatekeeper: listening, dialling, hello, certificates
rules       what may cross, and who may say so
kept        what must survive a crash, in the store
places      how the gatekeeper comes into the federation, and keeps its links
exports     the channel's own rows, out of its log
imports     rows of other channels, into this one
finding     rows that are missing, from whoever keeps them
outputs     what becomes of the machine's outputs
hearing     what becomes of the messages of links
gatekeeper  runs the machine of `overlay.federation` beside a node, and composes the others
"""
