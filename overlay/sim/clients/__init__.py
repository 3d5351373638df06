"""Clients in a simulated channel of broadcast topics: they come, go, migrate and change their profiles; guarantee 12.

The halves of `protocol/clients` run as a door and a library run them. Around them everything is simple and worse than
real: places get rows late, trim whatever no lease holds, crash, lose their disks; rows of the client table spread one
entry at a time in any order; processes die with and without their memory.

The checker (`Application`) knows nothing of fills and positions as the library has them. It lists, row by row, what the
application is owed, and compares it with every portion that is handed over.
"""
