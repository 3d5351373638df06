"""Selective topics in a simulated channel: registrations that come and go, and the checkers of guarantees 10 and 11.

The machine of `protocol/selective` runs alone, on a network that is worse than a real one: every routed frame may be
lost, repeated and delayed, independently of all others. Interest entries spread by the same means, so views differ and
lag; words about failures may be false. Places crash and fall back to what was synced.

Safety, after every event at a place: what it counts as covered for a registration is in its log, nothing is stored
twice, no registration begins after a row published since it was made, and no batch is sent to a node that never wanted
it. Liveness, after a phase without faults: every matching row that a whole holder has left is there, and coverage
reaches its end.
"""
