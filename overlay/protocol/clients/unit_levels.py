"""How far wants of a channel are known in the federation, told by its gatekeepers to the nodes (PROTOCOL.md 22.8).

It travels as items of the interest, of the topic `_units`, whose conditions spell it out, as holds do: one that says
that there is a gatekeeper and how many levels there are, and one for each want that gatekeepers announce outside.
"""

import re
from typing import NamedTuple

from xxhash import xxh3_64_intdigest

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
_LEVELS = re.compile(
    r"topic = '((?:[^']|'')+)' AND want = '([0-9a-f]*)' AND seen = (\d{1,2}) AND confirmed = (\d{1,2}) "
    r"AND system = (\d{1,2})"
)


class WantLevels(NamedTuple):
    """Levels up to which rows of a want were seen, and up to which it is confirmed: 0 the node, 1 the channel, and so
    on; `system`: everywhere."""

    confirmed: int
    seen: int
    system: int


def gatekeeper_text(system: int, *, has_mail: bool) -> str:
    """`has_mail`: mail of the channel leaves by it. It does not cover the others, which would then not be announced."""
    return f"gatekeeper = 1 AND mail = {int(has_mail)} AND system = {system}"


def has_mail(text: str) -> bool:
    """True if the item is that of a gatekeeper by which mail leaves."""
    return text.startswith("gatekeeper = 1 AND mail = 1 AND ")


def quiet_text(topic: str) -> str:
    """Nobody outside wants anything of a topic that a gatekeeper may let out."""
    named = topic.replace("'", "''")
    return f"quiet = '{named}'"


def levels_text(topic: str, want: bytes, levels: WantLevels) -> str:
    named = topic.replace("'", "''")
    return (
        f"topic = '{named}' AND want = '{want.hex()}' AND seen = {levels.seen} AND confirmed = {levels.confirmed} "
        f"AND system = {levels.system}"
    )


def levels_of(text: str) -> tuple[str, bytes, WantLevels] | None:
    """The topic, the id of the profile (empty: every row) and the levels; None: nothing that this program knows."""
    found = _LEVELS.fullmatch(text)
    if found is None or len(found[2]) % 2:
        return None
    levels = WantLevels(int(found[4]), int(found[3]), int(found[5]))
    return found[1].replace("''", "'"), bytes.fromhex(found[2]), levels
