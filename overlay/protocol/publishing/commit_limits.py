"""Limits of one commit request: its shape, and how much of it a node takes on.

The checks here look at a request, and at how much the node has taken on; those of keys and positions are in
`commit.py`. Guarantee 7: everything that a client can make grow has a limit, and its refusal names the limit.
"""

from collections.abc import Container

from m4cast.overlay.ids import TOPIC_BYTES_MAX
from m4cast.overlay.protocol.effects import Commit, Publish, Refused, Stage, Staged
from m4cast.overlay.protocol.wire.interest import MAIL_TOPIC
from m4cast.overlay.value import value

KEY_BYTES_MAX = 200
"""Limit on a publisher key or a stage id; both are keys of the store, which takes 511 bytes."""
POSITION_BYTES_MAX = 1_000
DAY_MS = 24 * 3_600_000
INT_MAX = 2**31 - 1
SCHEMA_ID_MAX = 2**64 - 1


@value
class CommitLimits:
    """Each number is a guess unless it says otherwise."""

    batch_bytes_max: int = 16 << 20
    """Payload of one batch. Higher: fewer, larger frames, and a longer wait behind each on every link."""
    payload_bytes_max: int = 256 << 20
    """Payload that is not yet synced, and of one publish. It is in memory: this is what it costs."""
    staged_bytes_max: int = 64 << 30
    """Payload that is staged. It is on the disk, which the store watches: this only bounds a mistake."""
    staged_max: int = 4_096
    """Stage ids at a time, and payloads in one commit. Higher: larger transactions."""
    stage_expire_ms: int = 3_600_000
    """The time for which a staged payload waits for its commit. Higher: leftovers of dead attempts hold their bytes
    longer."""
    outstanding_max: int = 1_024
    """Requests that wait for the disk. Higher: longer waits in place of `busy`."""
    moves_max: int = 1_024
    """Keys in one commit."""
    topics_max: int = 10_000
    """Topics of this node. Every node of the channel keeps an entry for each, for ever."""
    client_topics_max: int = 2_500
    """Topics of this node that one client created."""
    publisher_bytes_max: int = 64 << 20
    """Memory of publisher keys, as `keys.key_bytes` counts it: 1 KiB each, more with many topics or long texts."""
    client_publisher_bytes_max: int = 16 << 20
    """Memory of the publisher keys that one client created."""
    publisher_expire_ms: int = 90 * 24 * 3_600_000
    """The time for which a key may go unused while the node runs. A repeat that arrives later is not recognised as
    one."""
    sweep_keys: int = 1_000
    """Keys looked at in one step of their expiry. Higher: fewer and larger transactions."""
    recovering_max: int = 65_536
    """Commits of former identities whose parts are remembered; beyond it the older half is forgotten."""
    system_topics: bool = False
    """Allow topics that start with `_`: for the node's own publishers only."""

    def cure_of(self, actual: str | None) -> str:
        """Return the advice for a key that is at another position than the request expected."""
        if actual is not None:
            return "go on from the actual position, or use a key of your own if another publisher moves this one"
        days = self.publisher_expire_ms / DAY_MS
        return (
            f"this node never had the key, or it was removed, or it expired after {days:g} days without use: if these "
            "rows were not published before, publish them without expect, as for a new key"
        )

    def refuse_commit(self, request: Commit | Publish) -> Refused | None:
        """Reasons against a commit that no state of the node can cure."""
        names = request.stage_ids if isinstance(request, Commit) else request.payloads
        if not names and not request.moves:
            return _bad(request, "a commit needs a payload or a key to move")
        if len(names) > self.staged_max or len(request.moves) > self.moves_max:
            detail = f"at most {self.staged_max} payloads and {self.moves_max} keys in one commit: split it"
            return Refused(request.request, "too-large", detail)
        if not 0 <= request.acks <= INT_MAX:
            return _bad(request, f"acks must be 0 or more, not {request.acks}")
        for move in request.moves:
            if not _fits(move.key, KEY_BYTES_MAX) or not _fits(move.next, POSITION_BYTES_MAX):
                return _bad(request, f"a key has 1-{KEY_BYTES_MAX}, a position 1-{POSITION_BYTES_MAX} bytes of UTF-8")
            if move.expect == move.next:
                return _bad(request, f"key {move.key!r} would stay at {move.next!r}: a move needs a new position")
        if twice := _first_duplicate(tuple(move.key for move in request.moves)):
            return _bad(request, f"key {twice!r} is named twice: each key moves once in a commit")
        if isinstance(request, Commit) and (twice := _first_duplicate(request.stage_ids)):
            return _bad(request, f"stage id {twice!r} is named twice: each payload is numbered once")
        return None

    def refuse_stage(self, request: Stage, selective: Container[str]) -> Refused | None:
        if not _fits(request.stage_id, KEY_BYTES_MAX):
            return _bad(request, f"a stage id has 1-{KEY_BYTES_MAX} bytes of UTF-8")
        return self.refuse_payload(request, request.staged, selective)

    def refuse_payload(
        self, request: Stage | Publish, staged: Staged, selective: Container[str] = ()
    ) -> Refused | None:
        """`selective`: the topics that are. Mail is published by clients, once its topic is."""
        if not _fits(staged.topic, TOPIC_BYTES_MAX):
            return _bad(request, f"a topic has 1-{TOPIC_BYTES_MAX} bytes of UTF-8")
        if staged.topic.startswith("_") and not self.system_topics:
            if staged.topic != MAIL_TOPIC:
                return _bad(request, f"topic {staged.topic!r}: names starting with _ are the system's; choose another")
            if staged.topic not in selective:
                return _bad(request, f"topic {MAIL_TOPIC!r} is not there yet: it is made when a client opens its inbox")
        if not 1 <= staged.row_count <= INT_MAX:
            return _bad(request, f"row_count must be 1-{INT_MAX}, not {staged.row_count}")
        if not 0 <= staged.schema_id <= SCHEMA_ID_MAX:
            return _bad(request, f"schema_id must be 0-{SCHEMA_ID_MAX}, not {staged.schema_id}")
        if len(staged.payload) > self.batch_bytes_max:
            detail = f"payload of {len(staged.payload)} bytes, at most {self.batch_bytes_max}: split it"
            return Refused(request.request, "too-large", detail)
        return None

    # ---- with what the node has taken on already

    def refuse_more_staged(self, request: Stage, staged: int, staged_bytes: int) -> Refused | None:
        if staged >= self.staged_max:
            detail = f"{self.staged_max} payloads are staged: commit or abort some first"
            return Refused(request.request, "busy", detail)
        if staged_bytes + len(request.staged.payload) > self.staged_bytes_max:
            detail = f"{staged_bytes} bytes are staged: commit or abort some first"
            return Refused(request.request, "busy", detail)
        return None

    def refuse_bytes(self, request: Stage | Publish, payload_bytes: int, unsynced_bytes: int) -> Refused | None:
        bytes_max = self.payload_bytes_max
        if payload_bytes > bytes_max:
            detail = f"{payload_bytes} bytes in one request, at most {bytes_max}: split it"
            return Refused(request.request, "too-large", detail)
        if unsynced_bytes + payload_bytes <= bytes_max:
            return None
        detail = f"{bytes_max} bytes may be on their way to disk: try again later"
        return Refused(request.request, "busy", detail)

    def refuse_waiting(self, request: Commit | Publish, waiting: int) -> Refused | None:
        if waiting < self.outstanding_max:
            return None
        return Refused(request.request, "busy", f"{waiting} requests wait for the disk: try again later")

    def refuse_topics(self, request: Commit | Publish, new: int, *, topics: int, own_topics: int) -> Refused | None:
        """`topics` of this node and `own_topics` of the client exist; the request creates `new` ones."""
        if topics + new > self.topics_max:
            detail = (
                f"this node has {topics} topics, of at most {self.topics_max} (topics_max): publish under one of them, "
                "or at another node"
            )
            return Refused(request.request, "too-many", detail)
        if request.owner and own_topics + new > self.client_topics_max:
            detail = (
                f"client {request.owner!r} created {own_topics} topics of this node, of at most "
                f"{self.client_topics_max} (client_topics_max): publish under one of them; one that an administrator "
                "deletes counts no longer"
            )
            return Refused(request.request, "too-many", detail)
        return None


def _bad(request: Stage | Commit | Publish, detail: str) -> Refused:
    return Refused(request.request, "bad-request", detail)


def _fits(text: str, bytes_max: int) -> bool:
    try:
        return 1 <= len(text.encode()) <= bytes_max
    except UnicodeEncodeError:
        return False


def _first_duplicate(names: tuple[str, ...]) -> str | None:
    if len(dict.fromkeys(names)) == len(names):
        return None
    return next(name for at, name in enumerate(names) if name in names[:at])
