"""Clients that nodes of the channel ask for, before they send mail to them: whether anybody in the federation answers
for them (PROTOCOL.md 22.9)."""

from m4cast.overlay.federation.federation import Federation
from m4cast.overlay.federation.messages import EventId, UnitEvent
from m4cast.overlay.net.driver import Driver
from m4cast.overlay.profiles.condition import Kind
from m4cast.overlay.profiles.profile import read
from m4cast.overlay.profiles.summary import ColumnSummary, Summary
from m4cast.overlay.protocol.clients.elsewhere import (
    FOUND_PREFIX,
    FOUND_TOPIC,
    SOUGHT_HASH,
    SOUGHT_MAX,
    found_text,
    sought_of,
)
from m4cast.overlay.protocol.effects import InterestChanged, Subscribe, Unsubscribe, Wish
from m4cast.overlay.protocol.wire.interest import MAIL_TO, MAIL_TOPIC


class SoughtClients:
    """`answers`: mail of this channel may leave by this gatekeeper, so that its answers count."""

    def __init__(self, driver: Driver, machine: Federation, *, answers: bool) -> None:
        self._driver = driver
        self._machine = machine
        self._answers = answers
        self._is_new = True

    def changed(self, change: InterestChanged) -> None:
        hashes = [item.topic_hash for item in (*change.joined, *change.rejoined)]
        if SOUGHT_HASH in (*hashes, *(key.topic_hash for key in change.left)):
            self._is_new = True
            self.look()

    def look(self) -> None:
        """Answer questions, and withdraw answers to those that are over."""
        if not self._is_new:
            return
        node = self._driver.node
        items = (item for entry in node.interest.view.used() for item in entry.items.values())
        texts = (item.text for item in items if item.topic_hash == SOUGHT_HASH)
        keys = sorted({key for text in texts if (key := sought_of(text)) is not None})[:SOUGHT_MAX]
        self._is_new = bool(keys)
        wishes: dict[str, Wish] = {}
        for key in keys:
            is_found = self._is_found(key)
            if self._answers and is_found is not None:
                profile = read(found_text(key, is_found=is_found))
                wishes[FOUND_PREFIX + key] = Wish(FOUND_PREFIX + key, FOUND_TOPIC, profile)
        rows = node.interest.registrations.rows
        gone = tuple(each for each in rows if each.startswith(FOUND_PREFIX) and each not in wishes)
        new = tuple(each for name, each in wishes.items() if name not in rows)
        if gone:
            self._driver.feed(Unsubscribe(0, gone))
        if new:
            self._driver.feed(Subscribe(0, new))

    def _is_found(self, key: str) -> bool | None:
        """True if any unit may answer for the client; None if this gatekeeper does not hold what top units want."""
        machine = self._machine
        if not machine.gateways.holds(machine.vertex.top + 1) or not machine.vertex.is_synced:
            return None
        named = ColumnSummary(Kind.TEXT, 0, key, key, frozenset((key,)))
        mail = UnitEvent(EventId(b"", 0, 0, 0), MAIL_TOPIC, Summary(1, {(MAIL_TO,): named}))
        return machine.interest.tables.is_known(mail)
