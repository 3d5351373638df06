"""The web door: HTTP and WebSocket for clients, on the node's own loop (docs/HTTP.md).

`door` opens it, `routes` is the table of its paths and `openapi` describes them. `calls` admits requests and turns
refusals into answers, `workers` are the threads that parse and read, `query` and `positions` read parameters, `bodies`
makes rows of what is posted and `texts` the reverse. `posts`, `reads`, `tails` and `live`, a room of its own, are the
handlers; `follower` waits for new rows on behalf of the last two.
"""
