"""Publisher keys as their owners administrate them: a list of those at this node, and their removal.

They are listed from the store, sorted by their bytes, a page at a time: there may be very many, and the node's loop
must not wait. A client sees and removes the keys that it created, an administrator all.
"""

from collections.abc import Callable
from dataclasses import dataclass

from m4cast.overlay.door.fields import Fields, shown
from m4cast.overlay.door.node_handle import NodeHandle, waited
from m4cast.overlay.door.refusals import bad_request
from m4cast.overlay.protocol.effects import KeyRemoved, PublisherState, RemoveKey
from m4cast.overlay.store.store import Store

KEY_BYTES_MAX = 200
PAGE_KEYS_MAX = 1_000
LOOKED_AT_MAX = 10_000
"""Keys that are read for one page: a client that owns few of many gets short pages. It takes about 40 ms."""
READ_AT_ONCE = 1_000
"""Keys per transaction of the store: a long transaction would keep pages from being reused."""


@dataclass(frozen=True, slots=True)
class KeyQuestion:
    """Requests a page of publisher keys: those that begin with `prefix`, from the first one after `after` on."""

    prefix: str
    after: str
    limit: int


def parse_publishers(fields: Fields) -> KeyQuestion:
    prefix, after = (_part_of_key(fields, name) for name in ("prefix", "after"))
    return KeyQuestion(prefix, after, fields.whole("limit", 1, PAGE_KEYS_MAX) or PAGE_KEYS_MAX)


def parse_key(fields: Fields) -> str:
    return fields.required_text("key", "a publisher key")


def _part_of_key(fields: Fields, name: str) -> str:
    part = fields.text(name, "")
    try:
        size = len(part.encode())
    except UnicodeEncodeError:
        size = KEY_BYTES_MAX + 1
    if size > KEY_BYTES_MAX:
        raise bad_request(f"{name} must be at most {KEY_BYTES_MAX} bytes of UTF-8, as keys are, not {shown(part)}")
    return part


class PublisherKeys:
    """Any thread may use it."""

    def __init__(self, store: Store, node: NodeHandle, timeout_s: float) -> None:
        self._store = store
        self._node = node
        self._timeout_s = timeout_s

    def page(self, asked: KeyQuestion, owner: str | None) -> dict[str, object]:
        """A page of the keys of this owner (None: of anybody), and the key after which the next page begins."""
        now_ms = self._node.now_ms()
        up_ms = self._node.look(lambda node: node.publishing.commits.up_ms(now_ms), self._timeout_s)
        found: list[dict[str, object]] = []
        start, last = max(asked.prefix, f"{asked.after}\0" if asked.after else ""), None
        for _ in range(LOOKED_AT_MAX // READ_AT_ONCE):
            states = self._store.publishers(start, READ_AT_ONCE)
            for key, state in states:
                if not key.startswith(asked.prefix):
                    return {"publishers": found, "next": None}
                if owner is None or state.owner == owner:
                    found.append(_listed(key, state, up_ms))
                if len(found) == asked.limit:
                    return {"publishers": found, "next": key}
            if len(states) < READ_AT_ONCE:
                return {"publishers": found, "next": None}
            last = states[-1][0]
            start = f"{last}\0"
        return {"publishers": found, "next": last}

    def remove(self, key: str, owner: str | None, is_cancelled: Callable[[], bool]) -> dict[str, object]:
        asked = self._node.request(lambda number: RemoveKey(number, key, owner))
        answer = waited(asked, self._timeout_s, is_cancelled)
        assert isinstance(answer, KeyRemoved)
        return {"key": key, "removed": answer.position is not None, "position": answer.position}


def _listed(key: str, state: PublisherState, up_ms: int) -> dict[str, object]:
    return {
        "key": key,
        "position": state.position,
        "owner": state.owner or None,
        "unused_ms": up_ms - state.used_ms if state.used_ms else None,
    }
