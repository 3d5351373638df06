"""Whole federations in virtual time: the machine of `overlay.federation` on simulated links, disks and clocks.

`world` moves time, links and disks; `hierarchies` builds federations, by the machine's own additions; `checks` watches
guarantee 14; `campaign` breaks things while batches are published and clients come and go.
"""
