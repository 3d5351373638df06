"""Clients that are attached in another channel now, told to the nodes of the channel that they left (PROTOCOL.md 22.7).

Such a note travels as an item of the interest, of the topic `_roamed`, whose condition spells it out, as holds do.
"""

from xxhash import xxh3_64_intdigest

from m4cast.overlay.profiles.languages.canonical import facts_of, facts_text

ROAMED_TOPIC = "_roamed"
ROAMED_HASH = xxh3_64_intdigest(ROAMED_TOPIC.encode())
ROAMED_PREFIX = "_roamed/"
"""Ids of the registrations that announce it."""
ROAMED_MAX = 512
"""Clients that a gatekeeper tells of at once; others wait. At most 1,024 items of a topic are announced."""


def roamed_text(key: str, session: int) -> str:
    return facts_text({"key": key, "number": session})


def roamed_of(text: str) -> tuple[str, int] | None:
    """The client's key, and its session in the other channel; None: nothing that this program understands."""
    match facts_of(text):
        case {"key": str(key), "number": int(session), **others} if not others:
            return key, session
    return None
