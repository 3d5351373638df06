"""The overlay: peer nodes joined in an m-regular graph, and everything that makes them one broadcast channel.

protocol    a node as pure state machines
federation  units of channels, as a machine beside the node
profiles    filters on rows
sim         the same machines in virtual time
net         the same machines on real sockets
store       the durable log
door        what clients and operators may ask of a node, and the transports by which they do
client      the Python client
bridge      Kafka in and out
config      the settings of channels and nodes

Besides `config`, the values that every room may use are `ids`, `errors`, `refusals`, `value` and `histogram`. `heap`
limits what the process keeps of freed memory.
"""
