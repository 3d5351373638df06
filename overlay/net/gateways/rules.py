"""Rules: what may cross a gateway, and with which channel it is made.

`exports` is about streams that were published on this channel, `transits` about those of others that pass through.
Inside a channel everything may be passed on: its gatekeepers are one unit's.
"""

from collections.abc import Iterable

from m4cast.overlay.config.federation import ALL_TOPICS, ANY_CHANNEL, FederationConfig, GatewayConfig, begin_ms

SYSTEM_PREFIX = "_"


class GatewayRules:
    def __init__(self, config: FederationConfig, channel: str) -> None:
        self.channel = channel
        self._gateways = config.gateways

    def gateway_to(self, channel: str, address: str = "") -> GatewayConfig | None:
        """The rules for links with a channel; those that name its address, or it, before those for any."""
        found = [each for each in self._gateways if each.channel in (channel, ANY_CHANNEL)]
        found.sort(key=lambda each: (each.address != address, each.channel == ANY_CHANNEL))
        return found[0] if found else None

    def exported(self, topic: str) -> bool:
        return any(allows(each.exports, topic) for each in self._gateways)

    def imported(self) -> dict[str, int]:
        """The broadcast topics that are imported -> the time with which their streams begin, 0 for the earliest."""
        topics: dict[str, int] = {}
        for gateway in self._gateways:
            for topic in gateway.imports:
                topics[topic] = min(begin_ms(gateway.begin), topics.get(topic, 1 << 62))
        return topics

    def on_demand(self) -> dict[str, int]:
        """The same of topics that are imported where somebody wants them."""
        topics: dict[str, int] = {}
        for gateway in self._gateways:
            for topic in gateway.on_demand:
                topics[topic] = min(begin_ms(gateway.begin), topics.get(topic, 1 << 62))
        return topics


def allows(topics: Iterable[str], topic: str) -> bool:
    return any(each == topic or (each == ALL_TOPICS and not topic.startswith(SYSTEM_PREFIX)) for each in topics)


def may_leave(gateway: GatewayConfig | None, topic: str, *, is_own: bool) -> bool:
    """True if rows may go out by a gateway. None: a link inside the channel."""
    return gateway is None or allows(gateway.exports if is_own else gateway.transits, topic)


def is_banned(gateway: GatewayConfig | None, topic: str) -> bool:
    """True if own rows that leave by a gateway must not be passed on by the channel at its other end."""
    return gateway is not None and allows(gateway.no_transit, topic)


def may_enter(gateway: GatewayConfig | None, topic: str) -> bool:
    """True if rows may come in by a gateway: to stay, or to pass through."""
    return gateway is None or allows((*gateway.imports, *gateway.on_demand, *gateway.transits), topic)
