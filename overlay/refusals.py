"""The table of refusals: every code with which a client's request can be refused, and what to do about it.

A refusal is a stable code and a detail that names the thing and the fix. The code decides what a program does next, and
this table says what that is, for everybody: the doors (which Flight error or HTTP status they send), the client
(whether another node is asked), the Spark connector (whether it waits, and under which error id a query fails) and the
documentation.
`tests/overlay/test_refusals.py` checks that the table has every code that is raised anywhere, and compares
`docs/CLIENT.md` with it.
"""

from dataclasses import dataclass
from typing import Literal

Repeat = Literal["here", "later", "read elsewhere", "publish elsewhere"]
"""The place where the same request may succeed: `here` at the same node (it may have been done: repeat it with the
same key), `later` at the same node, or `elsewhere` at another node, if it is a read or an unkeyed publish."""
FlightError = Literal["server", "unavailable", "timed out", "cancelled", "unauthenticated", "unauthorized", "internal"]

GRPC_STATUS: dict[FlightError, str] = {
    "server": "UNKNOWN",
    "unavailable": "UNAVAILABLE",
    "timed out": "DEADLINE_EXCEEDED",
    "cancelled": "CANCELLED",
    "unauthenticated": "UNAUTHENTICATED",
    "unauthorized": "PERMISSION_DENIED",
    "internal": "INTERNAL",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusalKind:
    code: str
    meaning: str
    fix: str
    repeat: tuple[Repeat, ...] = ()
    """Empty: never; the request has to change."""
    flight: FlightError | None = "server"
    """The Flight error that carries it. None: the client raises it by itself."""
    http: int = 400
    """The status of an HTTP answer that carries it."""
    spark_id: str = "M4CAST_REFUSED"
    """The id of the Spark connector's error."""


_ROWS = (
    # ---- the request has to change
    RefusalKind(
        code="bad-request",
        meaning="the request is malformed: JSON, a field, its type or value, a path of several parts, a topic that "
        "begins with `_` (to publish), an unknown action or channel, an unreadable Arrow stream",
        fix="correct the request; the detail names the field and what it may be",
    ),
    RefusalKind(
        code="bad-topic",
        meaning="the name of a topic is empty, has more than 200 bytes, is not printable, or is not UTF-8",
        fix="choose another name",
    ),
    RefusalKind(
        code="bad-schema",
        http=422,
        meaning="columns cannot be published: their types, number or depth",
        fix="cast, drop or flatten columns",
    ),
    RefusalKind(
        code="reserved-column",
        http=422,
        meaning="a column has a name that the channel reserves",
        fix="rename or drop the column",
    ),
    RefusalKind(
        code="bad-rows",
        http=422,
        meaning="values cannot be published: text that is not UTF-8, times that would lose digits, null keys of a map",
        fix="correct or round the values",
    ),
    RefusalKind(
        code="schema-conflict",
        http=409,
        meaning="one column has two types",
        fix="cast the column, or use another column or topic; read such topics apart",
        spark_id="M4CAST_SCHEMA_CONFLICT",
    ),
    RefusalKind(
        code="too-large",
        http=413,
        meaning="a record batch, a keyed call, a commit or a stage exceeds its limit",
        fix="split it",
    ),
    RefusalKind(
        code="too-many",
        http=409,
        meaning="topics, publisher keys, readers, or topics with their own retention exceed a limit of the node or of "
        "this client",
        fix="use existing ones, remove some, or have the limit raised",
    ),
    RefusalKind(
        code="too-few-nodes",
        http=409,
        meaning="`acks` exceeds the nodes that can acknowledge, or `copies` of a drain the neighbours",
        fix="ask for fewer, or start more nodes",
    ),
    RefusalKind(
        code="wrong-spread",
        http=409,
        meaning="a topic is to be selective, and the node has broadcast rows of it",
        fix="choose another name for the topic",
    ),
    RefusalKind(
        code="old-nodes",
        http=409,
        meaning="a selective topic is to be created, and nodes are present that have not reported the protocol version",
        fix="upgrade the nodes that the detail names; those that have the version report it within seconds",
    ),
    RefusalKind(
        code="cut-off",
        meaning="a keyed call broke off, or had another number of rows than `rows` says; nothing was published",
        fix="send all rows, and set `rows` to their number",
    ),
    RefusalKind(
        code="stage-conflict",
        http=409,
        meaning="the stage id holds other content",
        fix="use a new stage id",
    ),
    RefusalKind(
        code="missing-stage",
        http=404,
        meaning="a stage id is unknown: never staged, committed, aborted, expired, or lost in a crash",
        fix="stage again",
        spark_id="M4CAST_STAGE_LOST",
    ),
    RefusalKind(
        code="wrong-position",
        http=409,
        meaning="a publisher key is neither at `expect` nor at `next`",
        fix="continue from the actual position; if another publisher moves the key, use another key",
    ),
    RefusalKind(
        code="partly-moved",
        http=409,
        meaning="some of the keys are at `next` already",
        fix="commit the other keys apart",
    ),
    RefusalKind(
        code="not-arrow",
        http=422,
        meaning="the payload of a batch in the range cannot be read; the detail names the batch",
        fix="start after it, read raw batches, or delete the topic at that node",
        spark_id="M4CAST_NOT_ARROW",
    ),
    RefusalKind(
        code="not-restored",
        http=409,
        meaning="rows were to be put back, and are not those that were published, or have no place at this node; the "
        "detail says why",
        fix="restore other rows, or at another node",
    ),
    RefusalKind(
        code="reader-cut",
        http=410,
        meaning="rows that the reader's lease held were removed: it fell too far behind",
        fix="continue after the removed rows, or release the reader",
    ),
    RefusalKind(
        code="not-drained",
        http=409,
        meaning="too few other nodes received all rows of the node in time; it stays and accepts publishes again",
        fix="ask for fewer copies, or allow more time",
    ),
    RefusalKind(
        code="alone",
        http=409,
        meaning="no node is linked to the one that is to be drained, so that none can take over its rows",
        fix="wait until it has a neighbour",
    ),
    RefusalKind(
        code="not-implemented",
        http=501,
        meaning="the door does not support the call",
        fix="publish with DoPut, read with DoGet",
    ),
    RefusalKind(
        code="unauthenticated",
        http=401,
        meaning="the call has no token, or an unknown one",
        fix="send a valid token",
        flight="unauthenticated",
    ),
    RefusalKind(
        code="forbidden",
        http=403,
        meaning="the token lacks the right, or the publisher key belongs to another client; the detail names them",
        fix="use a token that has the right, or ask an administrator",
        flight="unauthorized",
    ),
    RefusalKind(
        code="unknown-client",
        http=404,
        meaning="no node that is present has a client of this key, as far as this node knows",
        fix="check the key; connect with the library's state, or wait for the client's access point; create it if it "
        "is new",
        spark_id="M4CAST_CLIENT",
    ),
    RefusalKind(
        code="bad-credential",
        http=403,
        meaning="the credential is not that of the client's key",
        fix="use the credential that the client was created with",
        flight="unauthorized",
        spark_id="M4CAST_CLIENT",
    ),
    RefusalKind(
        code="regrouped",
        http=409,
        meaning="members of the group have come or gone, and share its streams anew",
        fix="call `client-share`, and read again; the library does so",
    ),
    RefusalKind(
        code="unknown-resource",
        meaning="the client offers no such file, or not any more",
        fix="look what it offers: `Client.resources`",
        flight=None,
    ),
    RefusalKind(
        code="owner-offline",
        meaning="the owner of the file is not connected",
        fix="ask for a rendezvous",
        flight=None,
    ),
    RefusalKind(
        code="not-confirmed",
        meaning="the question before a download was answered with no",
        fix="ask again",
        flight=None,
    ),
    RefusalKind(
        code="file-refused",
        meaning="the owner refused to send the file, or what it sent has another checksum: the detail says which",
        fix="accept more bytes, or ask for the file as it is now",
        flight=None,
    ),
    RefusalKind(
        code="client-elsewhere",
        http=409,
        meaning="the client is attached to another node, or was connected again: this connection is over",
        fix="bring the client's state from its access point; the library does so. Use another key for another process",
        spark_id="M4CAST_CLIENT",
    ),
    RefusalKind(
        code="client-connected",
        http=409,
        meaning="profiles of a client were to be changed from outside, and it is connected",
        fix="subscribe in the process that is connected, or end it first",
        spark_id="M4CAST_CLIENT",
    ),
    RefusalKind(
        code="not-connected",
        http=409,
        meaning="the node does not know this connection of the client: it was restarted, or the client disconnected",
        fix="connect again; the library does so",
    ),
    # ---- another node may answer
    RefusalKind(
        code="unknown-topic",
        http=404,
        meaning="the node does not know the topic. (A range up to a frontier waits for it, a tail for its first rows)",
        fix="check the name, or wait until rows are published",
        repeat=("read elsewhere",),
        spark_id="M4CAST_UNKNOWN_TOPIC",
    ),
    RefusalKind(
        code="missing",
        http=410,
        meaning="rows of the range are not retained at this node",
        fix='read from another node, start at `"earliest"`, or set `on_missing` to `"skip"`',
        repeat=("read elsewhere",),
        flight="unavailable",
        spark_id="M4CAST_DATA_LOSS",
    ),
    RefusalKind(
        code="internal",
        http=500,
        meaning="a bug of the node, or the system denied it memory or threads. Unacknowledged rows of an unkeyed call "
        "may be published or not",
        fix="see the node's log, and report it",
        repeat=("read elsewhere",),
        flight="internal",
    ),
    # ---- it passes
    RefusalKind(
        code="behind",
        http=503,
        meaning="rows of the range have not arrived at this node yet",
        fix="wait, or read from another node",
        repeat=("later", "read elsewhere"),
        flight="unavailable",
        spark_id="M4CAST_BEHIND",
    ),
    RefusalKind(
        code="busy",
        http=503,
        meaning="too much is staged, unsynced, queued or open at the node",
        fix="repeat the request later",
        repeat=("later", "read elsewhere"),
        flight="unavailable",
    ),
    RefusalKind(
        code="not-ready",
        http=503,
        meaning="the node has just started, and does not know yet whether its store is up to date; or too few of the "
        "nodes that could acknowledge rows of a selective topic are present now",
        fix="repeat the request later",
        repeat=("later", "read elsewhere", "publish elsewhere"),
        flight="unavailable",
    ),
    RefusalKind(
        code="leaving",
        http=503,
        meaning="the node is leaving the channel and accepts no more publishes",
        fix="publish at another node",
        repeat=("later", "publish elsewhere"),
        flight="unavailable",
    ),
    RefusalKind(
        code="stopping",
        http=503,
        meaning="the node is stopping",
        fix="ask another node, or the same one when it is back",
        repeat=("later", "read elsewhere", "publish elsewhere"),
        flight="unavailable",
    ),
    RefusalKind(
        code="store",
        http=503,
        meaning="the disk failed and nothing was written, or a damaged batch was read, which the node fetches again",
        fix="repeat the request; see the node's log",
        repeat=("later", "read elsewhere", "publish elsewhere"),
        flight="unavailable",
    ),
    RefusalKind(
        code="store-full",
        http=507,
        meaning="the node's store is nearly full",
        fix="retain less, give it more space, or publish at another node",
        repeat=("later", "publish elsewhere"),
        flight="unavailable",
    ),
    # ---- whether it was done is not known
    RefusalKind(
        code="timeout",
        http=504,
        meaning="no answer arrived in time; whether the request was performed is not known",
        fix="repeat it with the same key and positions, or look for the rows",
        repeat=("here",),
        flight="timed out",
    ),
    RefusalKind(
        code="cancelled",
        http=499,
        meaning="the client has disconnected; only logs and metrics show it",
        fix="none is needed: nobody waits for the answer",
        flight="cancelled",
    ),
    RefusalKind(
        code="unacknowledged",
        meaning="the call ended before all rows were acknowledged; the others may be published",
        fix="repeat it with the same key and positions, or look for the rows",
        repeat=("here",),
        flight=None,
    ),
    RefusalKind(
        code="flight",
        meaning="the answer is an error of Flight or gRPC without a code; the detail quotes it",
        fix="see the detail: it is usually a request that Flight itself rejects",
        flight=None,
    ),
)
REFUSALS: dict[str, RefusalKind] = {kind.code: kind for kind in _ROWS}
assert len(REFUSALS) == len(_ROWS), "two refusals have one code"


def repeatable(*repeat: Repeat) -> frozenset[str]:
    """The codes whose request may be repeated in one of these ways."""
    return frozenset(kind.code for kind in REFUSALS.values() if not set(repeat).isdisjoint(kind.repeat))


READ_ELSEWHERE = repeatable("read elsewhere")
"""Refusals of a read that another node may not make."""
PUBLISH_ELSEWHERE = repeatable("publish elsewhere")
"""Refusals of an unkeyed publish that another node may not make: this one accepts no rows now."""
PASSING = repeatable("here", "later")
"""Refusals that pass. A keyed request may be repeated even if it was performed already."""
