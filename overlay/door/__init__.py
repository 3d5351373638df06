"""The client door of a node: what clients may ask for, and the transports by which they reach it (`docs/PROTOCOL.md`).

`actions` is the table of what clients may ask for besides rows, `services` performs calls, and `flight` is the
transport over Arrow Flight. `requests` and `fields` parse what clients send; `rights` and `tokens` decide who may do
what; a `Refusal` says why not. `http` serves operators: metrics, health, topology.
"""
