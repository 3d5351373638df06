"""The doors of a node: what clients may ask for, and the transports by which they reach it (`docs/PROTOCOL.md`).

`actions` is the table of what clients may ask for besides rows; `services` performs calls. There are two transports of
both: `flight` is Arrow Flight, `web` is HTTP and WebSocket. `http` serves operators: metrics and health.

publish, rows      publishing; payloads and the schemas of topics
read, selected     reading and following, with filters; the same for selective topics
clients            clients with a key that are attached to this node
admin              topics, publisher keys, leases, status, departure
access             rights, and the tokens that grant them
console            the page for people

`requests` and `fields` parse what clients send, and `refusals` says why it is refused. `limits`, `quotas` and
`call_counts` bound and count calls. `node_handle` asks the node on its loop; `frontiers` wait for new rows.
"""
