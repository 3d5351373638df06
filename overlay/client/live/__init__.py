"""The asynchronous client (`m4cast.aio`): `async_channel` has the calls, `link` is a WebSocket to one web door."""
