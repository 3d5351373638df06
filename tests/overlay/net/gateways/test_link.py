"""One link between gatekeepers: what is paced, what passes, and how long the oldest message waits."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from m4cast.overlay.config.federation import GatewayConfig
from m4cast.overlay.federation.messages import EventAck, EventId
from m4cast.overlay.federation.units import UnitId
from m4cast.overlay.ids import NodeId
from m4cast.overlay.net.gateways import link as links
from m4cast.overlay.net.gateways.link import GatewayLink
from m4cast.overlay.net.gateways.wire.frames import LENGTH_BYTES, decode
from m4cast.overlay.net.gateways.wire.messages import AcrossFrame, CarriedCopy, StreamHead, WithheldCopy

ORIGIN = bytes(range(16))
BODY = bytes(60_000)
SLOW = GatewayConfig(channel="m4cast/b", bytes_per_s_max=1_000)
"""A minute for each body."""


class Connection:
    """Notes what is written, and takes it at once, or, while `is_stalled`, not at all."""

    def __init__(self) -> None:
        self.written: list[Any] = []
        self.is_stalled = self.is_cut = False
        self._eased = asyncio.Event()

    def writelines(self, pieces: list[bytes]) -> None:
        self.written.append(decode(b"".join(pieces)[LENGTH_BYTES:])[0])

    async def drain(self) -> None:
        while self.is_stalled:
            await self._eased.wait()

    def ease(self) -> None:
        self.is_stalled = self.is_cut = False
        self._eased.set()

    def close(self) -> None:
        pass

    @property
    def transport(self) -> "Connection":
        return self

    def abort(self) -> None:
        self.is_cut = True


class Clock:
    """Time that a test sets; sleeps last until something else happens."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s


def frame(number: int) -> AcrossFrame:
    return AcrossFrame(UnitId(ORIGIN), number, is_back=False)


def head(number: int) -> CarriedCopy:
    stream_head = StreamHead(NodeId(ORIGIN), "t", 1, 2)
    return CarriedCopy(number, EventId(ORIGIN, 1, 1, number), "t", (), 0, (), (UnitId(ORIGIN),), (), 1, stream_head)


def run(
    monkeypatch: pytest.MonkeyPatch,
    test: Callable[[GatewayLink, Connection, Clock], Any],
    gateway: GatewayConfig | None,
) -> None:
    async def whole() -> None:
        clock, connection = Clock(), Connection()
        monkeypatch.setattr(links, "time", clock)
        link = GatewayLink(asyncio.StreamReader(), connection, 1, 1 << 20)  # type: ignore[arg-type]
        link.gateway = gateway
        link.start()
        try:
            await test(link, connection, clock)
        finally:
            link.abort()

    asyncio.run(whole())


async def turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def test_acknowledgements_pass_what_is_paced_and_numbers_of_copies_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(link: GatewayLink, connection: Connection, clock: Clock) -> None:
        link.send(frame(1), BODY)
        link.send(frame(2), BODY)
        await turns()
        link.send(WithheldCopy(7))
        link.send(EventAck(1))
        link.send(EventAck(2))
        await turns()
        assert connection.written == [frame(1), EventAck(1), EventAck(2)], "the second body waits for its minute"
        clock.now_s += 61
        link.send(EventAck(3))
        await turns()
        assert connection.written[3:] == [EventAck(3), frame(2)]
        clock.now_s += 61
        link.send(EventAck(4))
        await turns()
        assert connection.written[5:] == [EventAck(4), WithheldCopy(7)] and link.queued_bytes == 0

    run(monkeypatch, test, SLOW)


def test_the_delay_is_that_of_the_oldest_message_and_ends_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(link: GatewayLink, connection: Connection, clock: Clock) -> None:
        assert link.delay_s == 0.0
        link.send(frame(1), BODY)
        await turns()
        assert link.delay_s == 0.0, "it was taken at once"
        connection.is_stalled = True
        link.send(frame(2), BODY)
        await turns()
        link.send(frame(3), BODY)
        clock.now_s += 5
        assert link.delay_s == pytest.approx(5.0), "a connection that takes nothing delays, too"
        connection.ease()
        await turns()
        assert link.delay_s == 0.0 and connection.written == [frame(1), frame(2), frame(3)]

    run(monkeypatch, test, None)


def test_a_link_tells_which_copies_wait_for_their_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(link: GatewayLink, connection: Connection, clock: Clock) -> None:
        link.send(frame(1), BODY)
        for number in (4, 5, 6):
            link.send(head(number))
        await turns()
        clock.now_s += 7
        assert link.waits_from == 4 and link.delay_s == pytest.approx(7.0)
        link.unsend((4, 6))
        assert link.waits_from == 5
        connection.is_stalled = True
        link.send(EventAck(1))
        await turns()
        assert link.waits_from == 0, "the connection takes nothing: what waits behind it is overdue as what was sent"
        connection.ease()
        clock.now_s += 61
        link.send(EventAck(2))
        await turns()
        assert [each for each in connection.written if isinstance(each, CarriedCopy)] == [head(5)]
        assert link.waits_from == 0 and link.delay_s == 0.0

    run(monkeypatch, test, SLOW)


def test_a_peer_that_takes_nothing_is_cut_off_before_it_takes_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(link: GatewayLink, connection: Connection, clock: Clock) -> None:
        monkeypatch.setattr(links, "URGENT_MAX", 10)
        connection.is_stalled = True
        link.send(frame(1), BODY)
        await turns()
        for number in range(10):
            link.send(EventAck(number))
        assert not connection.is_cut
        link.send(EventAck(11))
        assert connection.is_cut

    run(monkeypatch, test, None)
