"""A process with several clients, each of which takes notifications until it has the last row.

`python -m tests.processes.client_group JSON`: the doors, the numbers of the clients, and a folder. It prints `ready`
when all have subscribed, reads the last row's number from standard input, and prints what became of each client, as
JSON. It may be killed at any time and started again with the same words. Clients with even numbers keep their position
beside what they have processed, in one file that is replaced: they get each row once. The others know key and
credential alone when they are back: they get each row at least once, from the position that was saved last.
"""

import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from m4cast.overlay.client import Client
from tests.processes.clusters import TIMEOUT_S


class GroupFollower(threading.Thread):
    def __init__(self, number: int, doors: list[str], folder: Path) -> None:
        super().__init__(name=f"client-{number}", daemon=True)
        first = 1 + number % (len(doors) - 1)  # not the publisher's
        nodes, key = doors[first:] + doors[:first], f"client-{number}"
        self.client = Client(nodes, key=key, credential=f"the secret of {key}", timeout_s=TIMEOUT_S / 2)
        self._file = folder / key
        self.repeated = 0
        self._keeps_position = number % 2 == 0
        self._is_back = self._file.exists()
        kept: dict[str, Any] = json.loads(self._file.read_text()) if self._is_back else {"rows": 0, "restarts": -1}
        self.rows, self.restarts = kept["rows"], kept["restarts"] + 1
        if self._is_back and self._keeps_position:
            self.client.position = kept["position"]  # then it needs nothing from its former access point
        self.client.connect(create=not self._is_back)
        if not self._is_back:
            self.client.subscribe("load", "number >= 0" if number % 2 else None, start="earliest")
            self.client.subscribe("load", "number < 500", name="few")
            self.client.save()
        self._keep()
        self.last: int | None = None
        """The last row there will be, once that is known."""
        self.error: str | None = None

    def run(self) -> None:
        try:
            while self.last is None or self.rows <= self.last:
                for rows in self.client.notifications(idle_s=0.5):
                    self._process(rows.column("number").to_pylist())
            self.client.disconnect()
        except BaseException as error:
            self.error = f"{type(error).__name__}: {error}"

    def _process(self, numbers: list[int]) -> None:
        if self._is_back and not self._keeps_position and numbers[0] < self.rows:
            self.repeated += self.rows - numbers[0]
            self.rows = numbers[0]
        self._is_back = False
        if numbers != list(range(self.rows, self.rows + len(numbers))):
            raise AssertionError(f"after {self.rows} rows came {numbers[:20]}")
        self.rows += len(numbers)
        self.client.acknowledge()
        self._keep()

    def _keep(self) -> None:
        position = self.client.position if self._keeps_position else None
        beside = self._file.with_suffix(".new")
        beside.write_text(json.dumps({"rows": self.rows, "restarts": self.restarts, "position": position}))
        beside.replace(self._file)

    def outcome(self) -> dict[str, Any]:
        counts = {"rows": self.rows, "repeated": self.repeated, "restarts": self.restarts}
        return {"client": self.name, "session": self.client.memory.session, "error": self.error, **counts}


def start(doors: list[str], numbers: list[int], folder: Path) -> "subprocess.Popen[str]":
    """The process, once its clients have subscribed."""
    words = [sys.executable, "-m", "tests.processes.client_group", json.dumps([doors, numbers, str(folder)])]
    group = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert group.stdout is not None and group.stdout.readline() == "ready\n"
    return group


def main() -> None:
    doors, numbers, folder = json.loads(sys.argv[1])
    followers = [GroupFollower(number, doors, Path(folder)) for number in numbers]
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
