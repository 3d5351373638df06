"""A process with several clients, each of which takes notifications until it has the last row.

`python -m tests.processes.client_group JSON`: the doors and the numbers of the clients. It prints `ready` when all have
subscribed, reads the last row's number from standard input, and prints what became of each client, as JSON.
"""

import json
import subprocess
import sys
import threading
from typing import Any

from m4cast.overlay.client import Client
from tests.processes.clusters import TIMEOUT_S


class GroupFollower(threading.Thread):
    def __init__(self, number: int, doors: list[str]) -> None:
        super().__init__(name=f"client-{number}", daemon=True)
        first = 1 + number % (len(doors) - 1)  # not the publisher's
        self.client = Client.new(doors[first:] + doors[:first], key=f"client-{number}", timeout_s=TIMEOUT_S / 2)
        self.client.subscribe("load", "number >= 0" if number % 2 else None, start="earliest")
        self.client.subscribe("load", "number < 500", name="few")
        self.rows = 0
        self.last: int | None = None
        """The last row there will be, once that is known."""
        self.error: str | None = None

    def run(self) -> None:
        try:
            while self.last is None or self.rows <= self.last:
                for rows in self.client.notifications(idle_s=0.5):
                    numbers = rows.column("number").to_pylist()
                    if numbers != list(range(self.rows, self.rows + len(numbers))):
                        raise AssertionError(f"after {self.rows} rows came {numbers[:20]}")
                    self.rows += len(numbers)
            self.client.disconnect()
        except BaseException as error:
            self.error = f"{type(error).__name__}: {error}"

    def outcome(self) -> dict[str, Any]:
        return {"client": self.name, "rows": self.rows, "session": self.client.memory.session, "error": self.error}


def start(doors: list[str], numbers: list[int]) -> "subprocess.Popen[str]":
    """The process, once its clients have subscribed."""
    words = [sys.executable, "-m", "tests.processes.client_group", json.dumps([doors, numbers])]
    group = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert group.stdout is not None and group.stdout.readline() == "ready\n"
    return group


def main() -> None:
    doors, numbers = json.loads(sys.argv[1])
    followers = [GroupFollower(number, doors) for number in numbers]
    for follower in followers:
        follower.start()
    print("ready", flush=True)
    last = int(sys.stdin.readline())
    for follower in followers:
        follower.last = last
    for follower in followers:
        follower.join(TIMEOUT_S)
    print(json.dumps([follower.outcome() for follower in followers]))


if __name__ == "__main__":
    main()
