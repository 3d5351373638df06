"""Publish a numbered import exactly once, however often it runs: `python docs/examples/exactly_once.py HOST:PORT,...`.

The key's position is stored at the access point (the first node) in the same transaction as the rows. So a program that
was killed asks for the position, and goes on from there.
"""

import sys

from m4cast import Channel

TOPIC = "example-import"
KEY = "example-import"
PARTS = [[{"part": part, "line": line} for line in range(10)] for part in range(1, 4)]


def main(nodes: str) -> int:
    """Publish the parts that are left; returns their number."""
    with Channel(nodes) as channel:
        position = channel.position(KEY)  # None before the first part
        done = int(position or 0)
        for number in range(done + 1, len(PARTS) + 1):
            channel.publish(TOPIC, PARTS[number - 1], key=KEY, expect=position, next=number)
            position = str(number)
            print(f"part {number} is published")
    return len(PARTS) - done


if __name__ == "__main__":
    main(sys.argv[1])
