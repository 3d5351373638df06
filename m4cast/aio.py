"""The asynchronous client: publish, read and follow through the web doors of nodes (`pip install 'm4cast[aio]'`), and a
client with profiles and a position, through the Flight doors.

from m4cast.aio import Channel

async with Channel("127.0.0.1:7700") as channel:
    await channel.publish("orders", [{"id": 1, "price": 9.5}])
"""

from m4cast.overlay.client.live.async_channel import AsyncChannel as Channel
from m4cast.overlay.client.live.async_channel import AsyncTail as Tail
from m4cast.overlay.client.roaming.async_client import AsyncClient as Client

__all__ = ["Channel", "Client", "Tail"]
