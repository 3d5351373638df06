"""The client: publish, read and follow a channel through the doors of its nodes (`docs/CLIENT.md`).

    from m4cast.overlay.client import Channel

    channel = Channel(["127.0.0.1:7500"])
    channel.publish("orders", [{"id": 1, "price": 9.5}])
    channel.read("orders").to_pandas()

`channel` and `administration` have the calls. `doors` decides which node is asked, `put_call` and `publisher` send
rows, `ranges` reads a range, `tail` follows topics, `times` parses times, `state_watch` polls an access point,
`connections` keeps connections open, `credentials` holds tokens and certificates, `tables` converts rows to Arrow, and
`hints` suggests what to try when a connection fails. `live` is the asynchronous client. `roaming` has clients with a
lasting key.
"""

from m4cast.overlay.client.administration import DeliveryRange, Lease
from m4cast.overlay.client.channel import Channel
from m4cast.overlay.client.publisher import Publisher
from m4cast.overlay.client.put_call import RowRange
from m4cast.overlay.client.ranges import RangeReader
from m4cast.overlay.client.roaming.client import Client
from m4cast.overlay.client.roaming.group_member import GroupMember
from m4cast.overlay.client.roaming.notifications import Notifications
from m4cast.overlay.client.tail import Frontier, Subscription, Tail

__all__ = [
    "Channel",
    "Client",
    "DeliveryRange",
    "Frontier",
    "GroupMember",
    "Lease",
    "Notifications",
    "Publisher",
    "RangeReader",
    "RowRange",
    "Subscription",
    "Tail",
]
