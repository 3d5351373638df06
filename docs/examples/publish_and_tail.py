"""Publish rows at one node and follow them at all others: `python docs/examples/publish_and_tail.py HOST:PORT,...`.

`m4cast cluster up` starts nodes to try it with, and prints their addresses.
"""

import sys

from m4cast import Channel

TOPIC = "example-tail"


def main(nodes: str) -> list[dict[str, object]]:
    orders = [{"id": number, "price": number * 1.5} for number in range(3)]
    with Channel(nodes) as channel:
        before = channel.frontier()  # where every topic ends now
        channel.publish(TOPIC, orders)  # returns when the rows are on disk
        received = []
        # The last node of the list reads what the first one published. It ends after 5 s without news.
        for batch in channel.at(channel.nodes[-1]).tail(TOPIC, start=before, idle_s=5):
            for row in batch.to_pylist():
                print(row["_sequence"], row["id"], row["price"])
                received.append(row)
            if len(received) == len(orders):
                break
    return received


if __name__ == "__main__":
    main(sys.argv[1])
