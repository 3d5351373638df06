"""The actions of the door: one table of what clients may ask for besides rows.

A row has everything that an action is: its name, the right that it takes, the fields that its body may have, the line
that ListActions shows, and the functions that parse its body and perform it. What is not in the table is refused. Every
transport serves this table; `docs/CLIENT.md` and `overlay/client` are compared with it by
`tests/overlay/door/test_actions.py`.

To add an action, add a row here, a method to the client, and a line to the table in `docs/CLIENT.md`.

Reason: the file is long because it is one table; what is not in it, no transport offers.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from m4cast.overlay.door.access.rights import Caller, Right
from m4cast.overlay.door.admin.interest import parse_active, parse_changes, parse_interest, parse_wish
from m4cast.overlay.door.admin.keys import parse_key, parse_publishers
from m4cast.overlay.door.admin.leases import LeaseRequest, parse_lease, parse_reader
from m4cast.overlay.door.admin.leaving import parse_channel, parse_drain
from m4cast.overlay.door.admin.status import position_of, status_of, topology_of, tree_of
from m4cast.overlay.door.admin.topics import parse_retention, parse_setup, parse_summaries
from m4cast.overlay.door.clients import mail
from m4cast.overlay.door.clients.client_requests import (
    MailRequest,
    parse_client_key,
    parse_clients,
    parse_connect,
    parse_disconnect,
    parse_mail,
    parse_save,
    parse_state_question,
)
from m4cast.overlay.door.clients.many_clients import parse_many
from m4cast.overlay.door.fields import Fields
from m4cast.overlay.door.publish.puts import StagedCommit, parse_commit, parse_stage_ids
from m4cast.overlay.door.read.explaining import FilterQuestion, parse_explain
from m4cast.overlay.door.read.extents import Extents, FrontierQuestion, StreamExtents, parse_question
from m4cast.overlay.door.refusals import bad_request
from m4cast.overlay.door.selected.reads import ReadQuestion, parse_read_question
from m4cast.overlay.door.services import DELIVERIES_COVER_ALL, Services
from m4cast.overlay.ids import NodeId, StreamId
from m4cast.overlay.protocol.node import Node

Q = TypeVar("Q")
UNKNOWN = "unknown"
"""The name under which calls of actions that do not exist are counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Action(Generic[Q]):
    name: str
    right: Right
    """The right that a token needs in any case. Rights on the topics in question are checked by `perform`."""
    about: str
    """The text that ListActions shows: the effect, and `{fields} -> answer`."""
    fields: tuple[str, ...] = ()
    body: Literal["none", "optional", "required"] = "none"
    """`none` and `optional`: no body is the same as `{}`."""
    parse: Callable[[Fields], Q]
    perform: Callable[[Services, Q, Caller], object]
    """Returns the answer, ready for JSON."""

    def question(self, body: bytes) -> Q:
        written = body if body or self.body == "required" else b"{}"
        return self.parse(Fields(written, f"the body of action {self.name}", self.fields))


def act(services: Services, name: str, body: bytes, caller: Caller) -> object:
    """Perform an action by its name; the answer, ready for JSON."""
    action = ACTIONS.get(name)
    caller.rights.require("admin" if action is None else action.right)
    with services.open_actions.admitted(caller.name):
        if action is None:
            raise bad_request(f"there is no action {name[:100]!r}: choose one of {', '.join(ACTIONS)}")
        return services.parsed(lambda: action.perform(services, action.question(body), caller), caller)


# ---- the rows that take more than one line


def _nothing(fields: Fields) -> None:
    """The parser of actions without fields."""


def _abort(door: Services, stage_ids: tuple[str, ...], caller: Caller) -> object:
    door.require_staged(stage_ids, caller.rights)
    return door.publishing.abort(stage_ids)


def _commit(door: Services, commit: StagedCommit, caller: Caller) -> object:
    door.require_staged(commit.stage_ids, caller.rights)
    return door.publishing.commit(commit, caller)


def _delivery_range(door: Services, _: None, caller: Caller) -> object:
    caller.rights.require_all("read")
    caller.rights.require_no_filter(DELIVERIES_COVER_ALL)
    low, until = door.store.delivery_range()
    return {"node_id": door.node_id(), "low": low, "next": until}


def _explain(door: Services, question: FilterQuestion, caller: Caller) -> object:
    door.readable((question.topic,), caller.rights)
    return door.explaining.explain(question, caller)


def _frontier(door: Services, question: FrontierQuestion, caller: Caller) -> Extents:
    def topics() -> tuple[str, ...]:
        return door.readable(question.topics, caller.rights)

    extents = door.extents
    if question.topics and not question.stored:
        start = question.at_ms if question.seen is None else question.seen
        seen = door.seen_by(topics(), question.profile, caller, "latest" if start is None else start)
        extents = extents if seen is door.frontiers else StreamExtents(door.store, seen)
    if question.seen is None:
        return extents.now(topics(), question.at_ms)
    return extents.news(question, topics, caller.is_cancelled)


def _lease(door: Services, lease: LeaseRequest, caller: Caller) -> object:
    caller.rights.require_topics("read", (*lease.all_topics(), *door.readers.topics_of(lease.reader)))
    profiles = caller.rights.filters(lease.all_topics(), lease.profile)
    return door.readers.lease(lease, {topic: profile.text for topic, profile in profiles.items()})


def _open_mail(door: Services, asked: MailRequest, caller: Caller) -> object:
    unknown = door.clients.unknown(asked, caller)
    if mail.SETUP.topic not in door.topics.selective.topics:
        door.topics.create(mail.SETUP, caller)
    lows = door.store.lows(door.frontiers.positions((mail.SETUP.topic,)))
    return {"lows": {stream.origin.hex(): low for stream, low in lows.items()}, "unknown": unknown}


def _read_registration(door: Services, asked: ReadQuestion, caller: Caller) -> object:
    door.readable((asked.topic,), caller.rights)
    return door.topics.selective.registration(asked, caller)


def _release(door: Services, reader: str, caller: Caller) -> object:
    caller.rights.require_topics("read", door.readers.topics_of(reader))
    return door.readers.release(reader)


def _status(door: Services, _: None, caller: Caller) -> object:
    status = door.node.look(status_of, door.timeout_s)
    spent = door.calls.filter_cpu.so_far()
    filter_cpu_ms = {client: round(cpu_s * 1000) for client, cpu_s in spent.items() if caller.owner in (None, client)}
    return {
        **status,
        "topics": len(door.frontiers.topics()),
        "streams": door.store.stream_count(),
        "filter_cpu_ms": filter_cpu_ms,
    }


def _parse_row(fields: Fields) -> tuple[StreamId, int]:
    origin, sequence = fields.node_id("origin"), fields.whole("sequence", 1, 2**62)
    if origin is None or sequence is None:
        raise bad_request("origin and sequence are missing: set them to the _origin and _sequence of a row")
    return StreamId(origin, fields.topic()), sequence


def _trace(door: Services, asked: tuple[StreamId, int], caller: Caller) -> object:
    stream, sequence = asked
    caller.rights.require_topics("read", (stream.topic,))
    found = door.node.trace(stream, sequence, door.timeout_s)
    return {"is_gatekeeper": False, "steps": [], "is_cut": False} if found is None else {"is_gatekeeper": True, **found}


def _topology(door: Services, root: NodeId | None, caller: Caller) -> object:
    now_ms = door.node.now_ms()

    def look(node: Node) -> dict[str, object]:
        tree = {} if root is None else {"tree": tree_of(node, root, now_ms)}
        return {**topology_of(node, now_ms), **tree}

    return {"channel": door.channel, **door.node.look(look, door.timeout_s)}


def _topic(door: Services, topic: str, caller: Caller) -> object:
    door.readable((topic,), caller.rights)
    return door.topics.describe(topic, is_whole=caller.rights.filter_of(topic) is None)


# ---- the table

_ROWS: tuple[Action[Any], ...] = (
    Action(
        name="abort",
        right="publish",
        about='Discard staged payloads: {"stage_ids"}',
        fields=("stage_ids",),
        body="required",
        parse=parse_stage_ids,
        perform=_abort,
    ),
    Action(
        name="client-connect",
        right="client",
        about='Attach a client to this node: {"key", "credential", "session", "state", "create", "member", '
        '"take", "short"} -> {"session", "connection", "state", "lacking", "waiting_max", "node_id"}',
        fields=("key", "credential", "session", "state", "create", "member", "take", "short"),
        body="required",
        parse=parse_connect,
        perform=lambda door, asked, caller: door.clients.connect(asked, caller),
    ),
    Action(
        name="client-disconnect",
        right="client",
        about='End a connection, and keep the state: {"key", "connection"}',
        fields=("key", "connection"),
        body="required",
        parse=parse_disconnect,
        perform=lambda door, asked, caller: door.clients.disconnect(asked, caller),
    ),
    Action(
        name="client-mail",
        right="client",
        about='Make mail possible, and say which clients nobody knows: {"key", "connection", "to"} -> {"lows", '
        '"unknown"}',
        fields=("key", "connection", "to"),
        body="required",
        parse=parse_mail,
        perform=_open_mail,
    ),
    Action(
        name="client-remove",
        right="admin",
        about='Remove a client of this node: {"key"} -> {"key", "removed"}',
        fields=("key",),
        body="required",
        parse=parse_client_key,
        perform=lambda door, key, caller: door.clients.remove(key),
    ),
    Action(
        name="client-save",
        right="client",
        about='Store the state of a connected client: {"key", "connection", "state"} -> {"lacking"}',
        fields=("key", "connection", "state"),
        body="required",
        parse=parse_save,
        perform=lambda door, asked, caller: door.clients.save(asked, caller),
    ),
    Action(
        name="client-share",
        right="client",
        about='Save the position of a member of a group, and learn that of the others: {"key", "connection", "state"} '
        '-> {"version", "state", "members"}',
        fields=("key", "connection", "state"),
        body="required",
        parse=parse_save,
        perform=lambda door, asked, caller: door.clients.share(asked, caller),
    ),
    Action(
        name="client-state",
        right="client",
        about='What this node keeps of a client, to carry it elsewhere: {"key", "credential", "short"} -> {"session", '
        '"state"}',
        fields=("key", "credential", "short"),
        body="required",
        parse=parse_state_question,
        perform=lambda door, asked, caller: door.clients.state(asked, caller),
    ),
    Action(
        name="clients",
        right="client",
        about='Where clients are attached, and what waits for those of this node: {"key"} or {"after"}, {"waiting"} -> '
        '{"clients", "next"}; next null: no more',
        fields=("key", "after", "waiting"),
        body="optional",
        parse=parse_clients,
        perform=lambda door, asked, caller: door.clients.table(asked, caller),
    ),
    Action(
        name="clients-profiles",
        right="client",
        about='Profiles of the clients that are attached to this node, by key: nothing or {"after"} -> {"profiles": '
        '[{"key", "name", "topic", "where", "language", "begin"}], "next"}',
        fields=("after",),
        body="optional",
        parse=lambda fields: fields.text("after", ""),
        perform=lambda door, after, caller: door.clients.profiles(after, caller),
    ),
    Action(
        name="clients-subscribe",
        right="client",
        about='Give profiles to many clients, which are created if nobody has them: {"clients", "start"} -> '
        '{"clients": [{"key", "created", "changed"} or {"key", "code", "detail"}]}',
        fields=("clients", "start"),
        body="required",
        parse=parse_many,
        perform=lambda door, asked, caller: door.clients.subscribe_all(asked, caller),
    ),
    Action(
        name="commit",
        right="publish",
        about='Publish staged payloads and move keys: {"stage_ids", "key", "expect", "next", "acks"} -> {"ranges"}',
        fields=("stage_ids", "key", "expect", "next", "moves", "acks", "timeout_ms"),
        body="required",
        parse=parse_commit,
        perform=_commit,
    ),
    Action(
        name="delivery-range",
        right="read",
        about='The delivery records of this node: whose, the first retained, the next -> {"node_id", "low", "next"}',
        parse=_nothing,
        perform=_delivery_range,
    ),
    Action(
        name="drain",
        right="admin",
        about='Leave once other nodes have all rows of this one: {"copies", "timeout_ms"} or nothing -> {"copies", '
        '"delivery_records"}, the number of delivery records that are lost with it unless they were read',
        fields=("copies", "timeout_ms"),
        body="optional",
        parse=parse_drain,
        perform=lambda door, request, caller: door.leaving.drain(request, caller.is_cancelled),
    ),
    Action(
        name="explain",
        right="read",
        about='What a filter means and costs here: {"topic", "where", "language", "rows"} -> canonical form, id, '
        "columns, what summaries decide, how much of the topic passes",
        fields=("topic", "where", "language", "rows"),
        body="required",
        parse=parse_explain,
        perform=_explain,
    ),
    Action(
        name="frontier",
        right="read",
        about='How far each stream reaches: {"topics", "at_ms", "seen", "wait_ms", "where", "language", '
        '"stored"} -> '
        "{topic: {origin: [low, next]}}",
        fields=("topic", "topics", "at_ms", "seen", "wait_ms", "where", "language", "stored"),
        body="optional",
        parse=parse_question,
        perform=_frontier,
    ),
    Action(
        name="lease",
        right="read",
        about='Retain rows for a reader: {"reader", "frontier", "topics", "ttl_ms", "where", "language"} -> '
        '{"expires_at_ms", "missing"}',
        fields=("reader", "frontier", "topic", "topics", "ttl_ms", "where", "language"),
        body="required",
        parse=parse_lease,
        perform=_lease,
    ),
    Action(
        name="position",
        right="publish",
        about='The position of a publisher key: {"key"} -> {"position", "ranges"}; position null: the key is new',
        fields=("key",),
        body="required",
        parse=parse_key,
        perform=lambda door, key, caller: door.node.look(lambda node: position_of(node, key), door.timeout_s),
    ),
    Action(
        name="publisher-remove",
        right="any",
        about='Remove a publisher key, and keep its rows: {"key"} -> {"key", "removed", "position"}, its last position',
        fields=("key",),
        body="required",
        parse=parse_key,
        perform=lambda door, key, caller: door.keys.remove(key, caller.owner, caller.is_cancelled),
    ),
    Action(
        name="publishers",
        right="any",
        about='A page of publisher keys: {"prefix", "after", "limit"} -> {"publishers", "next"}; next null: no more',
        fields=("prefix", "after", "limit"),
        body="optional",
        parse=parse_publishers,
        perform=lambda door, asked, caller: door.keys.page(asked, caller.owner),
    ),
    Action(
        name="read-registration",
        right="read",
        about="How this client's reads of a selective topic are registered here, and which nodes know of that: "
        '{"topic", "where", "language", "start", "wait_ms", "system"} -> {"is_selective", "epoch", "is_active", '
        '"confirmed", "missing", "effective_from", "levels"}',
        fields=("topic", "where", "language", "start", "wait_ms", "system"),
        body="required",
        parse=parse_read_question,
        perform=_read_registration,
    ),
    Action(
        name="readers",
        right="read",
        about="The readers that rows are retained for, and how far they lag",
        parse=_nothing,
        perform=lambda door, _, caller: door.readers.all(lambda topic: caller.rights.may("read", topic)),
    ),
    Action(
        name="release",
        right="read",
        about='End the lease of a reader: {"reader"} -> {"released"}',
        fields=("reader",),
        body="required",
        parse=parse_reader,
        perform=_release,
    ),
    Action(
        name="shutdown",
        right="admin",
        about="Leave the channel in order, and stop",
        parse=_nothing,
        perform=lambda door, _, caller: door.leaving.shutdown(),
    ),
    Action(
        name="shutdown-channel",
        right="admin",
        about='Shut the whole channel down: {"channel"}, its name; every node on it stops',
        fields=("channel",),
        body="required",
        parse=parse_channel,
        perform=lambda door, named, caller: door.leaving.shutdown_channel(named, door.channel),
    ),
    Action(
        name="status",
        right="any",
        about="This node, and what it knows of the channel",
        parse=_nothing,
        perform=_status,
    ),
    Action(
        name="subscribe",
        right="subscribe",
        about='Register rows as wanted at this node: {"topic", "where", "language", "start"} -> {"id", "epoch"}; '
        "start: earliest, latest (if absent), a time in ms, or a position, {topic: {origin: next}}",
        fields=("topic", "where", "language", "start"),
        body="required",
        parse=parse_wish,
        perform=lambda door, asked, caller: door.interest.subscribe(asked, caller),
    ),
    Action(
        name="subscription-active",
        right="subscribe",
        about='Which nodes know of what subscribe registered: {"topic", "where", "language", "wait_ms", "system"} -> '
        '{"epoch", "is_active", "confirmed", "missing", "effective_from", "levels"}',
        fields=("topic", "where", "language", "wait_ms", "system"),
        body="required",
        parse=parse_active,
        perform=lambda door, asked, caller: door.interest.active(asked, caller),
    ),
    Action(
        name="subscription-changes",
        right="any",
        about='How that changed after a cursor, or all of it: {"topic", "after", "wait_ms"} -> {"cursor", "is_whole", '
        '"changes"}',
        fields=("topic", "after", "wait_ms"),
        body="optional",
        parse=parse_changes,
        perform=lambda door, asked, caller: door.interest.changes(asked, caller),
    ),
    Action(
        name="subscriptions",
        right="any",
        about='Who wants what, at which node, since when: {"topic", "seen", "wait_ms", "costs"} -> {"revision", '
        '"registrations", "own"}',
        fields=("topic", "seen", "wait_ms", "costs"),
        body="optional",
        parse=parse_interest,
        perform=lambda door, asked, caller: door.interest.view(asked, caller),
    ),
    Action(
        name="topic",
        right="read",
        about='What this node has of a topic: {"topic"} -> columns, streams, rows, bytes, retention, summaries',
        fields=("topic",),
        body="required",
        parse=Fields.topic,
        perform=_topic,
    ),
    Action(
        name="topic-compact",
        right="admin",
        about='Remove batches of a table in which nothing stands: {"topic"} -> {"topic", "batches", "streams"}',
        fields=("topic",),
        body="required",
        parse=Fields.topic,
        perform=lambda door, topic, caller: door.topics.compact(topic),
    ),
    Action(
        name="topic-create",
        right="admin",
        about='Make a selective topic: {"topic", "spread", "keepers", "route_by"} -> {"topic", "keepers", "route_by"}',
        fields=("topic", "spread", "keepers", "route_by"),
        body="required",
        parse=parse_setup,
        perform=lambda door, wanted, caller: door.topics.create(wanted, caller),
    ),
    Action(
        name="topic-delete",
        right="admin",
        about='Delete what this node has of a topic: {"topic"} -> {"topic", "bytes", "streams"}',
        fields=("topic",),
        body="required",
        parse=Fields.topic,
        perform=lambda door, topic, caller: door.topics.delete(topic),
    ),
    Action(
        name="topic-retention",
        right="admin",
        about='Set how much of a topic this node retains: {"topic", "max_bytes", "max_age_ms"}',
        fields=("topic", "max_bytes", "max_age_ms"),
        body="required",
        parse=parse_retention,
        perform=lambda door, wanted, caller: door.topics.retain(wanted),
    ),
    Action(
        name="topic-summaries",
        right="admin",
        about='Set which columns of a topic are summarised: {"topic", "summarise"} -> {"summarise", "columns"}',
        fields=("topic", "summarise"),
        body="required",
        parse=parse_summaries,
        perform=lambda door, wanted, caller: door.topics.summarise(wanted),
    ),
    Action(
        name="topics",
        right="read",
        about="The topics that this node knows -> [topic]",
        parse=_nothing,
        perform=lambda door, _, caller: list(door.readable(None, caller.rights)),
    ),
    Action(
        name="topology",
        right="any",
        about='The graph as this node knows it: {"root"} -> {"channel", "node_id", "nodes"}, with the neighbours of '
        'each node; and "tree", the parent of each in the tree of the root, if one is given',
        fields=("root",),
        body="optional",
        parse=lambda fields: fields.node_id("root"),
        perform=_topology,
    ),
    Action(
        name="trace",
        right="read",
        about='The way of a row between channels, as gatekeepers remember it: {"topic", "origin", "sequence"} -> '
        '{"is_gatekeeper", "steps", "is_cut"}',
        fields=("topic", "origin", "sequence"),
        body="required",
        parse=_parse_row,
        perform=_trace,
    ),
    Action(
        name="units",
        right="any",
        about='The federation as this gatekeeper knows it -> {"is_gatekeeper", "units", "gateways", "links", "wants", '
        '...}; other nodes answer {"is_gatekeeper": false}',
        parse=_nothing,
        perform=lambda door, _, caller: door.node.units(door.timeout_s) or {"is_gatekeeper": False},
    ),
    Action(
        name="unsubscribe",
        right="subscribe",
        about='Give up what subscribe registered: {"topic", "where", "language"} -> {"id", "removed"}',
        fields=("topic", "where", "language"),
        body="required",
        parse=parse_wish,
        perform=lambda door, asked, caller: door.interest.unsubscribe(asked, caller),
    ),
)
ACTIONS: dict[str, Action[Any]] = {action.name: action for action in _ROWS}
assert len(ACTIONS) == len(_ROWS), "two actions have one name"
