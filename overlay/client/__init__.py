"""The client: what outsiders import to publish, read and follow a channel through the doors of its nodes.

    from m4cast.overlay.client import Channel

    channel = Channel(["127.0.0.1:7401"])
    channel.publish("orders", [{"id": 1, "price": 9.5}])
    channel.read("orders").to_pandas()

`channel` has the calls, `doors` knows whom to ask, `publishing` and `publisher` send rows, `ranges` reads what is
there, `tail` follows topics, `times` understands times, `presence` watches an access point, `connections` keeps what is
open, `credentials` has what a client shows, `tables` takes what people have in their hands as Arrow, `hints` says what
to try when a connection fails.
"""

from m4cast.overlay.client.channel import Channel, DeliveryRange, Lease
from m4cast.overlay.client.publisher import Publisher
from m4cast.overlay.client.put_call import RowRange
from m4cast.overlay.client.ranges import RangeReader
from m4cast.overlay.client.tail import Frontier, Subscription, Tail

__all__ = [
    "Channel",
    "DeliveryRange",
    "Frontier",
    "Lease",
    "Publisher",
    "RangeReader",
    "RowRange",
    "Subscription",
    "Tail",
]
