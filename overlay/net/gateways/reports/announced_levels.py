"""Levels of wants, announced to the channel's nodes: how far the federation knows what they want (PROTOCOL.md 22.8)."""

from collections.abc import Callable

from m4cast.overlay.federation.federation import Federation
from m4cast.overlay.net.driver import Driver
from m4cast.overlay.profiles.profile import read
from m4cast.overlay.protocol.clients.unit_levels import (
    UNITS_MAX,
    UNITS_PREFIX,
    UNITS_TOPIC,
    WantLevels,
    gatekeeper_text,
    levels_text,
    quiet_text,
)
from m4cast.overlay.protocol.effects import Subscribe, Unsubscribe, Wish


class AnnouncedLevels:
    """`has_mail`: mail of the channel leaves by this gatekeeper; `quiet`: topics of which nobody outside wants any."""

    def __init__(self, driver: Driver, machine: Federation, quiet: Callable[[], list[str]], *, has_mail: bool) -> None:
        self._has_mail = has_mail
        self._quiet = quiet
        self._driver = driver
        self._machine = machine
        self._announced: dict[str, str] = {}

    @property
    def active(self) -> dict[str, int]:
        """Want -> the level up to which it is confirmed."""
        interest = self._machine.interest
        return {name: level for name in interest.clients if (level := interest.confirmed_level(name)) >= 0}

    def look(self) -> None:
        """Announce what has changed."""
        interest, system = self._machine.interest, self._machine.vertex.top + 1
        texts = {UNITS_PREFIX: gatekeeper_text(system, has_mail=self._has_mail)}
        texts |= {f"{UNITS_PREFIX}/{topic}": quiet_text(topic) for topic in sorted(self._quiet())[:UNITS_MAX]}
        roamers = self._machine.roaming.clients
        wants = sorted((want.key, name) for name, want in interest.clients.items() if name not in roamers)
        for (topic, want), name in wants[:UNITS_MAX]:
            levels = WantLevels(max(interest.confirmed_level(name), 0), max(interest.seen_level(name), 0), system)
            texts[f"{UNITS_PREFIX}{topic}/{want.hex()}"] = levels_text(topic, want, levels)
        rows = self._driver.node.interest.registrations.rows
        gone = tuple(each for each in rows if each.startswith(UNITS_PREFIX) and each not in texts)
        new = tuple(
            Wish(each, UNITS_TOPIC, read(text))
            for each, text in texts.items()
            if self._announced.get(each) != text or each not in rows
        )
        self._announced = texts
        if gone:
            self._driver.feed(Unsubscribe(0, gone))
        if new:
            self._driver.feed(Subscribe(0, new))
