"""Demand: what other nodes want, arranged for the question whom a batch is for.

Any doubt is a match: a batch without a summary, a language or version that is not known here, a condition that cannot
be read. Topics and profiles are known by hash; a collision sends a batch where nobody wants it.

The row of a client is its registration on mail (PROTOCOL.md, 21.6): it wants the rows whose `_to` is the client's key.
Those of a node are a table of hashes of keys, whatever their number.

Cost: per batch, `may_match` for each profile of its topic until one matches (about 2 us each).
"""

from collections.abc import Iterable, Iterator

from xxhash import xxh3_64_intdigest

from m4cast.overlay.ids import NodeId, StreamId
from m4cast.overlay.profiles import summary_bytes
from m4cast.overlay.profiles.condition import Always, Condition
from m4cast.overlay.profiles.profile import canonical_condition
from m4cast.overlay.profiles.summary import Summary, may_match
from m4cast.overlay.protocol.effects import Staged
from m4cast.overlay.protocol.selective.contract import KEEPS_TOPIC, AnnouncedItem, ItemKey, kept_origin
from m4cast.overlay.protocol.wire.batch import SUMMARY_EXTENSION, Batch
from m4cast.overlay.protocol.wire.interest import CLIENT_LANGUAGE, MAIL_HASH, MAIL_TO
from m4cast.overlay.protocol.wire.selective import ProfileText


def topic_hash(topic: str) -> int:
    return xxh3_64_intdigest(topic.encode())


KEEPS_HASH = topic_hash(KEEPS_TOPIC)


def condition_of(profile: ProfileText) -> Condition:
    return canonical_condition(profile.text, profile.language, profile.version)


def is_known(profile: ProfileText) -> bool:
    """True if the condition means here what it means everywhere: a doubtful one is taken for every row."""
    return not profile.text or not isinstance(condition_of(profile), Always)


def summary_of(rows: Batch | Staged) -> Summary | None:
    found = [extension.value for extension in rows.extensions if extension.type == SUMMARY_EXTENSION]
    summary = summary_bytes.decode(found[0]) if len(found) == 1 else None
    return summary if summary is not None and summary.rows == rows.row_count else None


def matches(conditions: Iterable[Condition], summary: Summary | None) -> bool:
    """True if a batch with this summary may have a row for one of these conditions."""
    return any(summary is None or may_match(condition, summary) for condition in conditions)


class Demand:
    def __init__(self) -> None:
        self.versions: dict[NodeId, int] = {}
        """The versions of the entries in use."""
        self._by_topic: dict[int, dict[NodeId, dict[int, ProfileText]]] = {}
        self._keepers: dict[NodeId, dict[NodeId, None]] = {}
        """Origin -> the nodes that keep its streams."""
        self._clients: dict[NodeId, dict[int, None]] = {}
        """Hashes of the keys of the clients that are attached to a node."""

    def change(
        self, node_id: NodeId, version: int, joined: Iterable[AnnouncedItem], left: Iterable[ItemKey]
    ) -> tuple[dict[int, None], dict[NodeId, None]]:
        """Take a change of an entry. `joined`: also what rejoined. Returns the topics and the kept origins for which
        something joined."""
        self.versions[node_id] = version
        topics: dict[int, None] = {}
        origins: dict[NodeId, None] = {}
        for key in left:
            self._leave(node_id, key.topic_hash, key.profile_hash)
        for item in joined:
            if item.language == CLIENT_LANGUAGE:
                self._clients.setdefault(node_id, {})[item.profile_hash] = None
                topics[item.topic_hash] = None
                continue
            text = ProfileText(item.language, item.version, item.text)
            self._by_topic.setdefault(item.topic_hash, {}).setdefault(node_id, {})[item.profile_hash] = text
            origin = kept_origin(item.text) if item.topic_hash == KEEPS_HASH else None
            if origin is not None:
                self._keepers.setdefault(origin, {})[node_id] = None
                origins[origin] = None
            else:
                topics[item.topic_hash] = None
        return topics, origins

    def _leave(self, node_id: NodeId, topic: int, profile: int) -> None:
        if topic == MAIL_HASH:
            self._clients.get(node_id, {}).pop(profile, None)
        profiles = self._by_topic.get(topic, {}).get(node_id, {})
        gone = profiles.pop(profile, None)
        if gone is not None and topic == KEEPS_HASH and (origin := kept_origin(gone.text)) is not None:
            self._keepers.get(origin, {}).pop(node_id, None)
        if not profiles:
            self._by_topic.get(topic, {}).pop(node_id, None)

    def remove(self, node_id: NodeId) -> None:
        """The node is absent: its entry is not used."""
        self.versions.pop(node_id, None)
        self._clients.pop(node_id, None)
        for nodes in self._by_topic.values():
            nodes.pop(node_id, None)
        for keepers in self._keepers.values():
            keepers.pop(node_id, None)

    # ---- questions

    def keepers(self, origin: NodeId) -> list[NodeId]:
        return list(self._keepers.get(origin, ()))

    def interested(self, origin: NodeId, topic: str) -> list[NodeId]:
        """Nodes with a registration on the topic, and those that keep the origin."""
        hashed = topic_hash(topic)
        clients = [node_id for node_id, keys in self._clients.items() if keys] if hashed == MAIL_HASH else ()
        return list(dict.fromkeys((*self._keepers.get(origin, ()), *self._by_topic.get(hashed, ()), *clients)))

    def takers(self, batch: Batch) -> Iterator[NodeId]:
        """The nodes whose entries want the batch."""
        return self.takers_of(batch.stream, batch)

    def takers_of(self, stream: StreamId, rows: Batch | Staged) -> Iterator[NodeId]:
        """The same for rows that are a batch of this stream, or will be."""
        keepers = self._keepers.get(stream.origin, {})
        yield from keepers
        hashed = topic_hash(stream.topic)
        nodes = self._by_topic.get(hashed, {})
        mailed = self._mailed(rows) if hashed == MAIL_HASH else {}
        if not nodes and not mailed:
            return
        summary = summary_of(rows)
        for node_id in {**nodes, **mailed}:
            profiles = nodes.get(node_id, {})
            if node_id not in keepers and (node_id in mailed or matches(map(condition_of, profiles.values()), summary)):
                yield node_id

    def _mailed(self, rows: Batch | Staged) -> dict[NodeId, None]:
        """The nodes of the clients that a batch of mail is for; if that cannot be told, all that have clients."""
        summary = summary_of(rows)
        column = None if summary is None else summary.columns.get((MAIL_TO,))
        if column is None or column.values is None:
            return {node_id: None for node_id, keys in self._clients.items() if keys}
        wanted = [xxh3_64_intdigest(to.encode()) for to in column.values if isinstance(to, str)]
        return {node_id: None for node_id, keys in self._clients.items() if any(each in keys for each in wanted)}
