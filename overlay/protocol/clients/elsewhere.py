"""Questions for clients that a channel does not know, and their answers, between its nodes and gatekeepers (PROTOCOL.md
22.9).

Both travel as items of the interest whose conditions spell them out, as holds do: a node asks with an item of the topic
`_sought`, a gatekeeper answers with one of the topic `_found`, and both are withdrawn.
"""

from xxhash import xxh3_64_intdigest

from m4cast.overlay.profiles.languages.canonical import facts_of, facts_text

SOUGHT_TOPIC, FOUND_TOPIC = "_sought", "_found"
SOUGHT_HASH, FOUND_HASH = (xxh3_64_intdigest(topic.encode()) for topic in (SOUGHT_TOPIC, FOUND_TOPIC))
SOUGHT_PREFIX, FOUND_PREFIX = "_sought/", "_found/"
"""Ids of the registrations that announce them."""
SOUGHT_MAX = 512
"""Clients that are asked for at once. At most 1,024 items of a topic are announced."""


def sought_text(key: str) -> str:
    return facts_text({"key": key})


def sought_of(text: str) -> str | None:
    match facts_of(text):
        case {"key": str(key), **others} if not others:
            return key
    return None


def found_text(key: str, *, is_found: bool) -> str:
    return facts_text({"key": key, "found": int(is_found)})


def found_of(text: str) -> tuple[str, bool] | None:
    match facts_of(text):
        case {"key": str(key), "found": int(found), **others} if not others:
            return key, found == 1
    return None
