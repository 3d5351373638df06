"""Levels of wants: how far those of a channel are known in the federation, as its gatekeepers tell the nodes
(PROTOCOL.md 22.8).

It travels as items of the interest, of the topic `_units`, whose conditions spell it out, as holds do: one that says
that there is a gatekeeper and how many levels there are, and one for each want that gatekeepers announce outside.
"""

import re
from typing import NamedTuple

from xxhash import xxh3_64_intdigest

from m4cast.overlay.profiles.languages.canonical import facts_of, facts_text
from m4cast.overlay.protocol.clients.elsewhere import FOUND_PREFIX
from m4cast.overlay.protocol.clients.roamed import ROAMED_PREFIX

UNITS_TOPIC = "_units"
UNITS_HASH = xxh3_64_intdigest(UNITS_TOPIC.encode())
UNITS_PREFIX = "_units/"
"""Ids of the registrations that announce it."""
MIRROR_PREFIX = "_gateway/"
"""Ids of the registrations of a gatekeeper for what its channel wants of others."""
GATE_PREFIXES = (UNITS_PREFIX, MIRROR_PREFIX, ROAMED_PREFIX, FOUND_PREFIX)
"""Ids of registrations that only a gatekeeper has."""
UNITS_MAX = 512
"""Wants that a gatekeeper tells of; the first by topic. At most 1,024 items of a topic are announced."""
_HEX = re.compile("(?:[0-9a-f]{2})*")


class WantLevels(NamedTuple):
    """Levels up to which rows of a want were seen, and up to which it is confirmed: 0 the node, 1 the channel, and so
    on; `system`: everywhere."""

    confirmed: int
    seen: int
    system: int


def gatekeeper_text(system: int, *, has_mail: bool) -> str:
    """`has_mail`: mail of the channel leaves by it. It does not cover the others, which would then not be announced."""
    return facts_text({"gatekeeper": 1, "mail": int(has_mail), "system": system})


def has_mail(text: str) -> bool:
    """True if the item is that of a gatekeeper by which mail leaves."""
    facts = facts_of(text)
    return facts.get("gatekeeper") == facts.get("mail") == 1


def quiet_text(topic: str) -> str:
    """The text of an item which says that no unit outside wants anything of a topic that may leave the channel."""
    return facts_text({"quiet": topic})


def levels_text(topic: str, want: bytes, levels: WantLevels) -> str:
    return facts_text({"topic": topic, "want": want.hex(), **levels._asdict()})


def levels_of(text: str) -> tuple[str, bytes, WantLevels] | None:
    """The topic, the id of the profile (empty: every row) and the levels; None: nothing that this program knows."""
    match facts_of(text):
        case {
            "topic": str(topic),
            "want": str(want),
            "confirmed": int(confirmed),
            "seen": int(seen),
            "system": int(system),
        } if _HEX.fullmatch(want):
            return topic, bytes.fromhex(want), WantLevels(confirmed, seen, system)
    return None
