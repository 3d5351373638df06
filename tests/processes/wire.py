"""The wire: carries IP packets between network namespaces, with the faults of real networks.

Every host is a namespace with one TUN device (`hosts.py`), and this process, which holds the other ends of all of
them, is all there is between: it reads the packets of a host, looks up the line from that host to the packet's
destination, and writes the packet there when it is due. A line is one direction, so a partition can be one-sided. Each
has a delay with jitter, a share of packets that is lost and one that overtakes others, a bandwidth with a bounded queue
whose tail is dropped, and can be cut.

It does what `tc netem` and `tc tbf` do, needs no kernel module, and draws all chance from one seed. (Which packet meets
which chance depends on the kernels' timing: the same seed gives the same kind of weather, not the same drops.)

Run as `python -m tests.processes.wire SEED FD...`: the n-th descriptor is host n's TUN device. Lines of JSON on the
standard input change lines, `{"lines": [[0, 3], [3, 0]], "weather": {"delay_ms": 50}}`; at its end the wire ends too
and prints what it counted.
"""

import json
import os
import selectors
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from heapq import heappop, heappush
from random import Random
from time import monotonic
from typing import Any

QUEUE_BYTES_MAX = 256 << 10
"""What waits for a line's bandwidth; beyond it the newest packet is dropped. As deep as a cheap router's."""
FLYING_BYTES_MAX = 8 << 20
"""What is under way on a line; beyond it packets are dropped."""
PACKET_BYTES_MAX = 1 << 16
PACKETS_AT_ONCE = 64
"""Read from one host before others have their turn."""
CONTROL_BYTES_MAX = 1 << 20
IPV4 = 4
HOST_BYTE = 18
"""The third byte of an IPv4 packet's destination: the host's number (10.77.HOST.x)."""


@dataclass(frozen=True, slots=True)
class Weather:
    """The quality of a line. The default has no faults."""

    delay_ms: float = 0
    jitter_ms: float = 0
    loss: float = 0
    """Share of packets, 0 to 1."""
    reorder: float = 0
    """Share of packets that are not delayed, and so overtake those before them."""
    bytes_per_s: float = 0
    """0: no limit."""
    cut: bool = False

    def and_also(self, other: "Weather") -> "Weather":
        """Both on one line."""
        limits = [each.bytes_per_s for each in (self, other) if each.bytes_per_s]
        return Weather(
            self.delay_ms + other.delay_ms,
            self.jitter_ms + other.jitter_ms,
            1 - (1 - self.loss) * (1 - other.loss),
            max(self.reorder, other.reorder),
            min(limits, default=0),
            self.cut or other.cut,
        )


FINE = Weather()


class Line:
    """One direction between two hosts."""

    def __init__(self, random: Random, counts: Counter[str]) -> None:
        self.weather = FINE
        self.flying_bytes = 0
        self._random = random
        self._counts = counts
        self._free_at_s = 0.0
        self._last_due_s = 0.0

    def due(self, size: int, now_s: float) -> float | None:
        """The time at which a packet that is sent now arrives; None: it is lost."""
        weather = self.weather
        if weather.cut:
            return self._lost("cut")
        if weather.loss and self._random.random() < weather.loss:
            return self._lost("lost")
        sent_s = now_s
        if weather.bytes_per_s:
            sent_s = max(now_s, self._free_at_s)
            if (sent_s - now_s) * weather.bytes_per_s + size > QUEUE_BYTES_MAX:
                return self._lost("dropped")
            self._free_at_s = sent_s = sent_s + size / weather.bytes_per_s
        if self.flying_bytes + size > FLYING_BYTES_MAX:
            return self._lost("dropped")
        if weather.reorder and self._random.random() < weather.reorder:
            self._counts["reordered"] += 1
            return sent_s
        swing_ms = self._random.uniform(-weather.jitter_ms, weather.jitter_ms)
        self._last_due_s = max(sent_s + max(0.0, weather.delay_ms + swing_ms) / 1000, self._last_due_s)
        return self._last_due_s

    def _lost(self, how: str) -> float | None:
        self._counts[how] += 1
        return None


class Wire:
    def __init__(self, seed: int, devices: Sequence[int]) -> None:
        self.counts: Counter[str] = Counter()
        self._devices = devices
        random = Random(seed)
        self._lines = [[Line(random, self.counts) for _ in devices] for _ in devices]
        self._flying: list[tuple[float, int, Line, int, bytes]] = []
        self._number = 0
        self._selector = selectors.DefaultSelector()
        for host, device in enumerate(devices):
            os.set_blocking(device, False)
            self._selector.register(device, selectors.EVENT_READ, host)

    def run(self, control: int) -> None:
        """Run until the control ends."""
        os.set_blocking(control, False)
        self._selector.register(control, selectors.EVENT_READ, None)
        said = b""
        while True:
            wait_s = max(0.0, self._flying[0][0] - monotonic()) if self._flying else None
            for key, _ in self._selector.select(wait_s):
                if key.data is not None:
                    self._take_from(key.data)
                    continue
                news = os.read(control, CONTROL_BYTES_MAX)
                if not news:
                    return
                *changes, said = (said + news).split(b"\n")
                assert len(said) <= CONTROL_BYTES_MAX
                for change in changes:
                    self._change(json.loads(change))
            self._land()

    def _change(self, change: dict[str, Any]) -> None:
        weather = Weather(**change["weather"])
        for source, destination in change["lines"]:
            self._lines[source][destination].weather = weather

    def _take_from(self, host: int) -> None:
        device, lines = self._devices[host], self._lines[host]
        for _ in range(PACKETS_AT_ONCE):
            try:
                packet = os.read(device, PACKET_BYTES_MAX)
            except BlockingIOError:
                return
            if packet[0] >> 4 != IPV4 or packet[HOST_BYTE] >= len(lines):
                continue  # a kernel's own words to its neighbours
            now_s = monotonic()
            line = lines[packet[HOST_BYTE]]
            due_s = line.due(len(packet), now_s)
            if due_s is None:
                continue
            if due_s <= now_s and not line.flying_bytes:
                self._hand_over(packet)
            else:
                self._number += 1
                line.flying_bytes += len(packet)
                heappush(self._flying, (due_s, self._number, line, len(packet), packet))

    def _land(self) -> None:
        now_s = monotonic()
        while self._flying and self._flying[0][0] <= now_s:
            _, _, line, size, packet = heappop(self._flying)
            line.flying_bytes -= size
            self._hand_over(packet)

    def _hand_over(self, packet: bytes) -> None:
        self.counts["carried"] += 1
        with suppress(BlockingIOError):  # its queue is full: lost, as on any network
            os.write(self._devices[packet[HOST_BYTE]], packet)


def change_words(lines: Sequence[tuple[int, int]], weather: Weather) -> bytes:
    """The commands of the wire on its standard input."""
    return json.dumps({"lines": lines, "weather": asdict(weather)}).encode() + b"\n"


def main() -> None:
    seed, *devices = map(int, sys.argv[1:])
    wire = Wire(seed, devices)
    wire.run(sys.stdin.fileno())
    print(json.dumps(wire.counts))


if __name__ == "__main__":
    main()
