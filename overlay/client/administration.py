"""Administration: what owners, operators and audits ask of nodes. Every `Channel` has these calls.

Topics, publisher keys, status and departure belong to single nodes. Leases are taken at all nodes.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

import pyarrow as pa
from pyarrow import flight

from m4cast.overlay.client.connections import as_client_error
from m4cast.overlay.client.doors import PATIENCE_S, Doors
from m4cast.overlay.client.interest import ActiveLevel, Activity, InterestTail, activity
from m4cast.overlay.client.put_call import put
from m4cast.overlay.client.roaming.many import SubscribedClients, subscribe_rows
from m4cast.overlay.client.tables import table_of
from m4cast.overlay.client.tail import Frontier, Start, start_of, topics_of
from m4cast.overlay.errors import RefusedError, UnreachableError

if TYPE_CHECKING:
    from m4cast.overlay.client.channel import Channel

RESTORED_BYTES = 1 << 20
"""Rows that are restored are sent in record batches of about this size."""


@dataclass(frozen=True, slots=True)
class Lease:
    """A reader's lease: the nodes that retain rows for it."""

    reader: str
    expires_at_ms: dict[str, int]
    """The time at which the lease expires at each node that was reached, by that node's clock."""
    missing: Frontier
    """Streams whose next rows none of these nodes retains, with the first sequence that one of them does."""


class DeliveryRange(NamedTuple):
    """The delivery records of a node: the number of the first one retained, and the next number."""

    node_id: str
    low: int
    next: int


class Administration:
    """The part of a `Channel` that administrates nodes."""

    _doors: Doors

    # ---- topics and publisher keys

    def describe(self, topic: str) -> dict[str, Any]:
        """Describe what the answering node has of a topic: columns, streams, rows, bytes, retention, summaries.

        >>> channel.describe("orders")["columns"]
        [{'name': 'id', 'type': 'int64'}, {'name': 'price', 'type': 'double'}]
        """
        described: dict[str, Any] = self._doors.ask("topic", {"topic": topic})
        return described

    def explain(
        self, topic: str, where: str, *, language: str | None = None, rows: int | None = None
    ) -> dict[str, Any]:
        """Explain what a filter means and costs at the answering node: canonical form, id, columns (and those that the
        topic lacks), how many of the newest batches summaries pass over, how many of the newest rows match, CPU time.
        `rows` rows are tested (None: 100,000): of each stream's newest an equal share, at least one.

        >>> channel.explain("orders", "price > 100")["matching_rows"]
        3
        """
        question = {"topic": topic, "where": where, "language": language, "rows": rows}
        explained: dict[str, Any] = self._doors.ask("explain", question)
        return explained

    def set_retention(
        self, topic: str, *, max_bytes: int | None = None, max_age_ms: int | None = None
    ) -> dict[str, Any]:
        """Set how much of a topic the first node retains. Other nodes are not affected. None: the node's default.
        Returns the retention now in force.

        >>> channel.set_retention("orders", max_bytes=10 << 30)
        {'max_bytes': 10737418240, 'max_age_ms': 604800000, 'is_default': False}
        """
        wanted = {"topic": topic, "max_bytes": max_bytes, "max_age_ms": max_age_ms}
        in_force: dict[str, Any] = self._doors.ask_first("topic-retention", wanted)
        return in_force

    def set_summaries(
        self, topic: str, summarise: Literal["auto", "off"] | Sequence[str | Sequence[str]] = "auto"
    ) -> dict[str, Any]:
        """Set which columns of a topic the first node summarises in what is published there: these; none (`off`); or
        those that reads at that node and registrations at any node filter by (`auto`). A list of names is a member of a
        struct. Other nodes are not affected. Returns the setting, and the columns that are summarised now.

        >>> channel.set_summaries("orders", ["country", ["address", "city"]])
        {'summarise': ['country', ['address', 'city']], 'columns': ['country', ['address', 'city']]}
        """
        wanted = summarise if isinstance(summarise, str) else list(summarise)
        in_force: dict[str, Any] = self._doors.ask_first("topic-summaries", {"topic": topic, "summarise": wanted})
        return in_force

    def create_topic(self, topic: str, *, keepers: int = 2, route_by: Sequence[str] = ()) -> dict[str, Any]:
        """Make a selective topic: its rows go to the nodes that want them, and to `keepers` others, so that they
        survive the node that they are published at. `route_by` names the columns by which it is decided where rows go.

        >>> channel.create_topic("orders", keepers=2, route_by=["country"])
        {'topic': 'orders', 'keepers': 2, 'route_by': ['country']}
        """
        wanted = {"topic": topic, "keepers": keepers, "route_by": list(route_by)}
        made: dict[str, Any] = self._doors.ask_first("topic-create", wanted)
        return made

    def delete_topic(self, topic: str) -> dict[str, Any]:
        """Delete what the first node has of a topic. Other nodes are not affected, and its numbering continues.

        >>> channel.delete_topic("orders")["bytes"]
        52428800
        """
        deleted: dict[str, Any] = self._doors.ask_first("topic-delete", {"topic": topic})
        return deleted

    def compact_table(self, topic: str) -> dict[str, Any]:
        """Remove from the first node the batches of a table in which nothing stands any more. Other nodes are not
        affected. Batches that follow one in which a row stands, in the same stream, stay.

        >>> channel.compact_table("offers")["batches"]
        12
        """
        compacted: dict[str, Any] = self._doors.ask_first("topic-compact", {"topic": topic})
        return compacted

    def restore(self, topic: str, rows: Any, batch: Mapping[str, object]) -> bool:
        """Put rows back into the access point's store that it does not keep any longer: those of one batch, in order.
        `batch` has what its delivery record has (docs/CLIENT.md). They are taken if they prove to be the ones that were
        published, and are held for a day. Returns False if the node has them already.

        >>> channel.restore("orders", rows, batch)
        True
        """
        table = table_of(rows)
        command = {"topic": topic, "restore": dict(batch), "rows": table.num_rows}
        options = self._doors.options(self._doors.timeout_s + PATIENCE_S)
        _, _, is_new = self._doors.first(lambda client, _: put(client, command, table, RESTORED_BYTES, options))
        return is_new

    def publishers(self, prefix: str = "") -> Iterator[dict[str, Any]]:
        """The publisher keys at the access point that begin with `prefix`, sorted: dicts of `key`, `position`, `owner`
        (the client that created it; None: unknown) and `unused_ms` (the node's up time since the key was last used;
        None: unknown). With a token: the keys that it created, unless it is an administrator's."""
        after: str | None = None
        while True:
            page = self._doors.ask_first("publishers", {"prefix": prefix, "after": after})
            yield from page["publishers"]
            after = page["next"]
            if after is None:
                return

    def remove_publisher(self, key: str) -> str | None:
        """Remove a publisher key at the access point. Returns its last position, or None if the key did not exist. Its
        rows stay published. Repeating its last publish would publish those rows again."""
        position: str | None = self._doors.ask_first("publisher-remove", {"key": key})["position"]
        return position

    # ---- clients

    def clients(self, key: str | None = None) -> Iterator[dict[str, Any]]:
        """Iterate over the attachments of clients that the answering node knows, sorted by key: dicts of `key`,
        `node_id`, `node`, `door`, `session`, `covered`, `since_ms` and `online` (None: only its access point knows).
        With a key: that one."""
        after = ""
        while True:
            page = self._doors.ask("clients", {"key": key} if key is not None else {"after": after})
            yield from page["clients"]
            after = page["next"]
            if after is None:
                return

    def finger(self, key: str) -> dict[str, Any] | None:
        """Return where a client is attached; None: no node knows it. `online` says whether it is connected, as its
        access point reports; it is None if that does not answer.

        >>> channel.finger("shop-7")["online"]
        True
        """
        row = next(self.clients(key), None)
        if row is not None and row["online"] is None and row["door"]:
            with suppress(UnreachableError, RefusedError):  # it stays unknown
                there = replace(self._doors, nodes=(row["door"],)).ask("clients", {"key": key})["clients"]
                row = there[0] if there else row
        return row

    def access_points(self) -> list[str]:
        """The doors of all nodes that are present: not of those that leave or have failed."""
        nodes = self.topology()["nodes"]
        return sorted(node["door"] for node in nodes if node["door"] and not node["leaving"] and not node["silent"])

    def subscribe_all(
        self, rows: Iterable[Mapping[str, Any]], *, start: Literal["latest", "earliest"] = "latest"
    ) -> SubscribedClients:
        """Give a profile to a client for each row: `key`, `credential`, `topic`, and if wanted `where`, `language` and
        `name`. Clients that nobody has are created, at the first node that answers. A profile that a client has already
        changes nothing. If rows are refused, the others are done all the same, and the error names them.

        >>> channel.subscribe_all([{"key": "a", "credential": secret, "topic": "orders", "where": "price > 100"}])
        """
        return subscribe_rows(cast("Channel", self), rows, start=start)

    def client_profiles(self) -> Iterator[dict[str, Any]]:
        """Profiles of the clients that are attached to the first node, sorted by key: dicts of `key`, `name`, `topic`,
        `where`, `language` and `begin`."""
        after: str | None = ""
        while after is not None:
            page = self._doors.ask_first("clients-profiles", {"after": after})
            yield from page["profiles"]
            after = page["next"]

    def remove_client(self, key: str) -> bool:
        """Remove a client at the first node. Returns whether it was attached there."""
        return bool(self._doors.ask_first("client-remove", {"key": key})["removed"])

    # ---- the node and the channel

    def status(self) -> dict[str, Any]:
        """The answering node, its neighbours, and what it knows of the channel."""
        status: dict[str, Any] = self._doors.ask("status", {})
        return status

    def topology(self, root: str | None = None) -> dict[str, Any]:
        """The graph as the answering node knows it: its own links, and the links that others reported in their last
        beacons. With `root`, a node id as hex, it has that node's tree: `tree` is the parent of each node in it."""
        topology: dict[str, Any] = self._doors.ask("topology", {} if root is None else {"root": root})
        return topology

    def units(self) -> dict[str, Any]:
        """The federation as the first node knows it, if it is a gatekeeper (`is_gatekeeper`): its `context`, the
        `units` that it is in and those beside them, `gateways`, its own `links` with their counts, and `wants`, each
        with the level up to which it is active (top + 1: everywhere)."""
        units: dict[str, Any] = self._doors.ask_first("units", {})
        return units

    def trace(self, topic: str, origin: str, sequence: int) -> dict[str, Any]:
        """The way of a row between channels, from the first node, which has to be a gatekeeper (`is_gatekeeper`): the
        `steps` that gatekeepers remember, in order, and whether one of them could not be asked (`is_cut`). Each step
        has the `channel` and `address` of its gatekeeper, how many gateways the row had crossed (`hops`), its `kind`
        (`issued`, `came`, `matched`, `sent`, `withheld`, `delivered`), and what belongs to it."""
        question = {"topic": topic, "origin": origin, "sequence": sequence}
        way: dict[str, Any] = self._doors.ask_first("trace", question)
        return way

    def drain(self, copies: int | None = None) -> int | None:
        """Remove the first node from the channel for good: it accepts no more publishes, waits until `copies` other
        nodes (None: all its neighbours) have all its rows on disk, then leaves and stops.

        Returns how many nodes have them; None if it has no rows of its own. If they do not have them in time, the node
        stays and accepts publishes again (`RefusedError` with the code `not-drained`).
        """
        question = {"timeout_ms": int(self._doors.timeout_s * 1000), **({} if copies is None else {"copies": copies})}
        drained: dict[str, int | None] = self._doors.ask_first("drain", question, PATIENCE_S)
        return drained["copies"]

    def shutdown(self) -> None:
        """Let the first node leave the channel in order and stop, as SIGTERM does. It may be started again."""
        self._doors.ask_first("shutdown", {})

    def shutdown_channel(self, channel: str) -> None:
        """Shut the whole channel down, through the first node: every node on it stops, and keeps its store. `channel`
        is its name, "type/instance", as a confirmation."""
        self._doors.ask_first("shutdown-channel", {"channel": channel})

    # ---- interest

    def register(
        self,
        topic: str,
        where: str = "",
        *,
        language: str = "sql",
        start: Start = "latest",
    ) -> dict[str, Any]:
        """Register rows of a topic as wanted at the first node: all, or those that satisfy a condition. The channel
        keeps it, over restarts of the node, until `unregister`. Rows of selective topics go where they are wanted;
        those of broadcast topics to every node, wanted or not.

        `start`, for a selective topic: "latest", or what was published before as well: "earliest", from a time on (up
        to `clock_skew_ms` more), or from a frontier, as in `Channel.read`.

        >>> channel.register("orders", "country = 'PL'")
        {'id': 'ann/0f3a55d1c04bb2e7', 'epoch': 8589934592}
        """
        question = {"topic": topic, **_filter(where, language), "start": start_of(start)}
        registered: dict[str, Any] = self._doors.ask_first("subscribe", question)
        return registered

    def unregister(self, topic: str, where: str = "", *, language: str = "sql") -> bool:
        """Give up what `register` registered at the first node. Returns whether it was registered.

        >>> channel.unregister("orders", "country = 'PL'")
        True
        """
        question = {"topic": topic, **_filter(where, language)}
        removed: bool = self._doors.ask_first("unsubscribe", question)["removed"]
        return removed

    def active(
        self,
        topic: str,
        where: str = "",
        *,
        language: str = "sql",
        timeout_s: float = 30,
        level: ActiveLevel = "channel",
    ) -> Activity:
        """Wait until what `register` registered at the first node is active: all nodes that are present have confirmed
        that they know of it. After `timeout_s` the answer says who has not. Of a selective topic, `effective_from` has
        the first row of each stream that is wanted. `level="system"`: until the whole federation knows of it; `levels`
        tells how far it does (docs/FEDERATION.md).

        >>> channel.active("orders", "country = 'PL'")
        Activity(epoch=8589934592, is_active=True, confirmed=('n2', 'n3'), missing=(), effective_from={'2f0c...': 1},
                 levels=UnitLevels(seen=1, confirmed=1, system=1))
        """
        return activity(self._doors, topic, _filter(where, language), timeout_s, level)

    def subscriptions(
        self, topic: str | None = None, *, seen: int | None = None, wait_s: float = 0, costs: bool = False
    ) -> dict[str, Any]:
        """Return who wants what, at which node and since when, as the answering node knows it: `registrations`, those
        of this node with their owners (`own`), and the `revision` of this view. With `seen`, a revision, it waits for
        another one, up to `wait_s` seconds (at most 10). With `costs`, each of the node's own registrations on
        selective topics has its `cost`: what came for it, what of that matched, what came in vain, and what was spared.

        >>> [(each["node"], each["topic"], each["where"]) for each in channel.subscriptions()["registrations"]]
        [('n1', 'orders', "country = 'PL'")]
        """
        question: dict[str, object] = {"topic": topic, "seen": seen, "wait_ms": int(wait_s * 1000)}
        if costs:
            question["costs"] = True
        view: dict[str, Any] = self._doors.ask("subscriptions", question)
        return view

    def interest_changes(self, topic: str | None = None, *, idle_s: float | None = None) -> InterestTail:
        """Follow who wants what: an iterator of changes, each with its `kind` (`joined`, `left`, or `rejoined`: given
        up and made again in between) and the fields of `subscriptions`. It begins with everything that is wanted now,
        and ends after `idle_s` without a change.

        >>> for change in channel.interest_changes("orders"):
        ...     print(change["kind"], change["node"], change["where"])
        joined n1 country = 'PL'
        """
        return InterestTail(self._doors, topic, idle_s)

    # ---- leases

    def lease(
        self,
        reader: str,
        frontier: Frontier | None = None,
        *,
        topics: str | Sequence[str] | None = None,
        ttl_s: float = 600,
        where: str = "",
        language: str = "sql",
    ) -> Lease:
        """Retain rows for a reader: from its frontier on, and all rows of the `topics` that the frontier does not name.
        Renew the lease before it expires, with the frontier reached. All nodes are asked; one has to answer.

        `where`: the filter that it reads selective topics by. `readers` counts by it how far the reader lags, and what
        nodes registered for such reads stays while the lease lasts.

        `RefusedError` with the code `reader-cut`: a node removed rows that the lease held, and did not renew it.

        >>> channel.lease("report", channel.frontier("orders")).missing
        {}
        """
        question: dict[str, object] = {"reader": reader, "frontier": frontier or {}, "ttl_ms": int(ttl_s * 1000)}
        if topics is not None:
            question["topics"] = topics_of(topics)
        if where:
            question |= _filter(where, language)
        answers = self._doors.ask_all("lease", question)
        missing: Frontier = {}
        for topic, origins in next(iter(answers.values()))["missing"].items():
            for origin in origins:
                lows = [each["missing"].get(topic, {}).get(origin) for each in answers.values()]
                if None not in lows:
                    missing.setdefault(topic, {})[origin] = min(lows)
        return Lease(reader, {node: each["expires_at_ms"] for node, each in answers.items()}, missing)

    def release(self, reader: str) -> bool:
        """End the lease of a reader at all nodes that can be reached. Returns whether one of them had it.

        >>> channel.release("report")
        True
        """
        return any(each["released"] for each in self._doors.ask_all("release", {"reader": reader}).values())

    def readers(self) -> list[dict[str, Any]]:
        """The readers with a lease at the answering node, and how far they lag.

        >>> [(each["reader"], each["rows_behind"]) for each in channel.readers()]
        [('report', 120)]
        """
        readers: list[dict[str, Any]] = self._doors.ask("readers", {})
        return readers

    # ---- what an audit reads

    def delivery_range(self) -> DeliveryRange:
        """The first delivery record that the first node retains, and the next number.

        >>> channel.delivery_range()
        DeliveryRange(node_id='2f0c...', low=1, next=2031)
        """
        return DeliveryRange(**self._doors.ask_first("delivery-range", {}))

    def deliveries(
        self,
        start: int | Literal["earliest", "latest"] = "earliest",
        end: int | Literal["latest"] = "latest",
        *,
        on_missing: Literal["fail", "skip"] = "fail",
    ) -> pa.Table:
        """Read the deliveries of the first node, in the order of arrival: batches, and skips with their reasons. The
        numbers are that node's own.

        >>> channel.deliveries(1, 100).to_pandas()[["topic", "first_sequence", "last_sequence", "kind"]]
        """
        ticket = self._deliveries_ticket(start, end, on_missing)
        return self._doors.first(lambda client, limit_s: self._doors.read(client, limit_s + PATIENCE_S, ticket))

    def delivery_batches(
        self, start: int, end: int, *, on_missing: Literal["fail", "skip"] = "fail"
    ) -> Iterator[pa.RecordBatch]:
        """The same as an iterator of record batches, for ranges that are larger than memory.

        >>> for batch in channel.delivery_batches(1, 100):
        ...     print(batch.num_rows)
        """

        def open_at(first: int) -> Any:
            ticket = self._deliveries_ticket(first, end, on_missing)
            return self._doors.first(lambda client, limit_s: self._doors.open(client, limit_s + PATIENCE_S, ticket))

        first = start
        while True:
            came = False
            try:
                for chunk in open_at(first):
                    came = True
                    first = json.loads(chunk.app_metadata.to_pybytes())["next"]
                    yield chunk.data
                return
            except pa.ArrowException as error:
                # The call may time out while its user processes what has arrived: the next one continues from there.
                if not (came and isinstance(error, flight.FlightTimedOutError)):
                    raise as_client_error(self._doors.nodes[0], error) from None

    def _deliveries_ticket(
        self, start: int | str, end: int | str, on_missing: Literal["fail", "skip"]
    ) -> dict[str, object]:
        ticket = {"read": "deliveries", "start": start, "end": end, "on_missing": on_missing}
        return {**ticket, "timeout_ms": int(self._doors.timeout_s * 1000)}

    def interest(self, start: int = 0) -> pa.Table:
        """The registrations that the first node has and had, each from when to when, as far as they changed with the
        revision `start` or later: of topics that the token may read or subscribe to.

        >>> channel.interest().to_pandas()[["topic", "condition", "epoch", "from_at", "until_at"]]
        """
        ticket = {"read": "interest", "start": start}
        return self._doors.first(lambda client, limit_s: self._doors.read(client, limit_s, ticket))

    def roster(self) -> pa.Table:
        """The nodes that are and were on the channel, by incarnation, as far as the answering node knows.

        >>> channel.roster().to_pandas()[["name", "incarnation", "from_at", "to_at", "reason"]]
        """
        return self._doors.anywhere(lambda client, limit_s: self._doors.read(client, limit_s, {"read": "roster"}))


def _filter(where: str, language: str) -> dict[str, str]:
    return {"where": where, "language": language} if where else {}
