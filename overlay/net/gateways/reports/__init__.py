"""Reports: what the federation's machine tells its node, and what the channel makes of it (PROTOCOL.md 22.7 and on).

reports          composes the others
echo             a question to all gatekeepers
client_finding   asks all gatekeepers for a client
ways             what was done with the latest batches
announced_levels how far wants are known, announced to the channel's nodes
sought_clients   clients that are asked for before mail is sent to them
quiet_topics     rows of topics that nobody outside wants stay at their origins
roamers          clients that come from other channels, or went there
"""
