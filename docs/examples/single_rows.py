"""Publish rows as they arrive, one by one: `python docs/examples/single_rows.py HOST:PORT,...`.

A `Publisher` packs rows into batches on the way and acknowledges each of them. It is at-least-once: after an error, the
rows beyond `acked` may have been published or not.
"""

import sys

from m4cast import Channel, Publisher

TOPIC = "example-rows"


def send_measurements(publisher: Publisher, count: int) -> None:
    for number in range(count):
        publisher.send({"sensor": f"s{number % 3}", "value": number / 10})


def main(nodes: str) -> int:
    with Channel(nodes) as channel, channel.publisher(TOPIC) as publisher:
        send_measurements(publisher, 1000)
        acked = publisher.flush()  # returns when all rows are on disk
    print(f"{acked} rows are acknowledged")
    return acked


if __name__ == "__main__":
    main(sys.argv[1])
