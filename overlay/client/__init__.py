"""The client: what outsiders import to publish, read and follow a channel through the doors of its nodes.

    from m4cast.overlay.client import Channel

    channel = Channel(["127.0.0.1:7401"])
    channel.publish("orders", [{"id": 1, "price": 9.5}])
    channel.read("orders").to_pandas()

`channel` has the calls, `credentials` what a client shows, `tables` takes what people have in their hands as Arrow.
"""

from m4cast.overlay.client.channel import Channel, Frontier, Range, Tail

__all__ = ["Channel", "Frontier", "Range", "Tail"]
