"""Questions for clients that a channel does not know, and their answers, between its nodes and gatekeepers (PROTOCOL.md
22.9).

Both travel as items of the interest whose conditions spell them out, as holds do: a node asks with an item of the topic
`_sought`, a gatekeeper answers with one of the topic `_found`, and both are withdrawn.
"""

import re

from xxhash import xxh3_64_intdigest

SOUGHT_TOPIC, FOUND_TOPIC = "_sought", "_found"
SOUGHT_HASH, FOUND_HASH = (xxh3_64_intdigest(topic.encode()) for topic in (SOUGHT_TOPIC, FOUND_TOPIC))
SOUGHT_PREFIX, FOUND_PREFIX = "_sought/", "_found/"
"""Ids of the registrations that announce them."""
SOUGHT_MAX = 512
"""Clients that are asked for at once. At most 1,024 items of a topic are announced."""
_SOUGHT = re.compile(r"key = '((?:[^']|'')+)'")
_FOUND = re.compile(r"key = '((?:[^']|'')+)' AND found = ([01])")


def sought_text(key: str) -> str:
    return f"key = '{_quoted(key)}'"


def sought_of(text: str) -> str | None:
    found = _SOUGHT.fullmatch(text)
    return None if found is None else found[1].replace("''", "'")


def found_text(key: str, *, is_found: bool) -> str:
    return f"key = '{_quoted(key)}' AND found = {int(is_found)}"


def found_of(text: str) -> tuple[str, bool] | None:
    found = _FOUND.fullmatch(text)
    return None if found is None else (found[1].replace("''", "'"), found[2] == "1")


def _quoted(key: str) -> str:
    return key.replace("'", "''")
