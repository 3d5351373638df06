"""Quenching at the origin: a gatekeeper has the rows of its channel's selective topics while somebody outside wants
something of them (PROTOCOL.md 22.6.2).

The machine knows, topic by topic, that nobody anywhere does; but origins are kept whole. So they are dropped when none
of the topics that may leave is wanted, and send nothing to this gatekeeper from then on; and kept again, before a want
is confirmed, when one is.
"""

from m4cast.overlay.federation.contract import TopicQuenched
from m4cast.overlay.federation.federation import Federation
from m4cast.overlay.net.driver import Driver
from m4cast.overlay.net.gateways.channel_side import ChannelSide
from m4cast.overlay.net.gateways.rules import GatewayRules
from m4cast.overlay.protocol.selective.contract import keep_id


class QuietTopics:
    def __init__(self, driver: Driver, machine: Federation, rules: GatewayRules) -> None:
        self._driver = driver
        self._side = ChannelSide(driver)
        self._machine = machine
        self._rules = rules

    def topics(self) -> list[str]:
        """Selective topics that may leave, and of which nobody outside wants anything."""
        return [topic for topic in self._exported() if self._machine.answers.is_quenched(topic)]

    def _exported(self) -> list[str]:
        return [topic for topic in self._driver.node.selection.descriptors if self._rules.exported(topic)]

    def quenched(self, output: TopicQuenched) -> None:
        """Note whether any other channel wants something of the topic."""
        if output.topic in self._exported():
            self.look()

    def look(self) -> None:
        exported = self._exported()
        if not exported:
            return
        rows = self._driver.node.interest.registrations.rows
        origins = self._side.origins()
        if len(self.topics()) == len(exported):
            kept = self._driver.node.selection.selective.across.kept
            dropped = tuple(each for each in origins if each in kept)
            if dropped:
                self._side.drop(dropped)
        else:
            missing = tuple(each for each in origins if keep_id(each) not in rows)
            if missing:
                self._side.keep(missing)
